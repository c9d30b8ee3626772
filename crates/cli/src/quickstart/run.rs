//! A run of the quick start: the code that its pipelines share.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow};
use millstream_base::ByteSize;
use millstream_flow::{FlowError, FlowSettings};
use millstream_log::{Log, LogError};
use serde::Serialize;

use super::live::Live;
use crate::console::{Progress, TICK};
use crate::settings::Settings;
use crate::stop::Stop;

/// The context of both pipelines.
pub struct Run<'a> {
    pub log: &'a Log,
    pub settings: &'a Settings,
    pub flow_settings: FlowSettings,
    /// When ingestion ends by itself.
    pub ends_at: Option<Instant>,
    /// Whether the flow counts everything again.
    pub is_anew: bool,
    pub is_json: bool,
    pub stop: &'a Stop,
    pub progress: &'a mut Progress,
}

impl Run<'_> {
    /// Does the work on a thread of its own, and shows its progress. Stops the work when its time is over, or when
    /// `has_failed` says that it cannot succeed any more.
    pub fn watch<T: Send>(
        &mut self,
        live: &Live,
        has_failed: impl Fn() -> bool,
        work: impl FnOnce() -> T + Send,
    ) -> anyhow::Result<T> {
        thread::scope(|scope| {
            let (done, is_done) = channel::<()>();
            let worker = thread::Builder::new()
                .name("ingest".to_owned())
                .spawn_scoped(scope, move || {
                    let _done = done;
                    work()
                })
                .context("cannot start a thread")?;
            loop {
                let left = self
                    .ends_at
                    .map(|end| end.saturating_duration_since(Instant::now()));
                let wait = left.map_or(TICK, |left| left.min(TICK));
                if is_done.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let is_over = self.ends_at.is_some_and(|end| Instant::now() >= end);
                if is_over || has_failed() {
                    self.ends_at = None;
                    self.stop.set();
                }
                self.progress.show(live.tick());
            }
            let result = worker.join();
            self.progress.finish();
            result.map_err(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Adds the remedy to an error of a flow.
pub fn explained(error: FlowError) -> anyhow::Error {
    match error {
        FlowError::Checkpoint { .. } => anyhow!(
            "{error}; the program was changed, or records that it needs are gone: start it with --anew to count \
             everything again that the stream holds"
        ),
        error => error.into(),
    }
}

/// The newest bytes that streams keep, by stream; `None` for a stream that keeps all records.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Kept(BTreeMap<String, Option<u64>>);

impl Kept {
    /// Reads the bounds of streams. A missing stream will keep all records.
    pub fn of(log: &Log, streams: &[&str]) -> anyhow::Result<Kept> {
        let kept = streams.iter().map(|name| {
            let kept = match log.stream(name) {
                Ok(stream) => stream.config().retention.map(|ByteSize(bytes)| bytes),
                Err(LogError::UnknownStream { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            Ok(((*name).to_owned(), kept))
        });
        Ok(Kept(kept.collect::<anyhow::Result<_>>()?))
    }

    /// Prints the bounds, and how to change them.
    pub fn note(&self, progress: &Progress) {
        let kept = self.0.iter().map(|(stream, kept)| match kept {
            Some(bytes) => format!("{stream} keeps the newest {}", ByteSize(*bytes)),
            None => format!("{stream} keeps all records"),
        });
        let kept = kept.collect::<Vec<_>>().join(", ");
        progress.note(&format!(
            "{kept}; `millstream stream alter STREAM --retain-bytes SIZE` changes that"
        ));
    }
}
