//! `millstream quickstart`: ingest, store, compute, serve, in one process.

mod ads;
mod live;
mod words;

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow};
use millstream_flow::{FlowError, FlowSettings};
use millstream_log::Log;
use tempfile::TempDir;

use self::live::Live;
use crate::args::QuickstartArgs;
use crate::console::{Progress, TICK};
use crate::node;
use crate::settings::Settings;
use crate::stop::Stop;

pub fn run(
    args: QuickstartArgs,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    let mut progress = Progress::new(is_json);
    let data = Data::choose(settings, &progress)?;
    let log = node::open_in(settings, &data.path)?;
    let mut flow_settings = FlowSettings::default();
    flow_settings.workers = settings.workers.unwrap_or(flow_settings.workers);
    let mut run = Run {
        log: &log,
        settings,
        flow_settings,
        ends_at: args
            .duration
            .and_then(|time| Instant::now().checked_add(time)),
        is_anew: args.anew,
        is_json,
        stop,
        progress: &mut progress,
    };
    match args.file.is_empty() {
        true => ads::run(&mut run, args.rate)?,
        false => words::run(&mut run, &args.file, &args.prefix)?,
    }
    Ok(log.close()?)
}

/// With what to do where a flow cannot go on.
fn explained(error: FlowError) -> anyhow::Error {
    match error {
        FlowError::Checkpoint { .. } => anyhow!(
            "{error}; the program was changed, or records that it needs are gone: start it with --anew to count \
             everything again that the stream holds"
        ),
        error => error.into(),
    }
}

/// What both pipelines need.
struct Run<'a> {
    log: &'a Log,
    settings: &'a Settings,
    flow_settings: FlowSettings,
    /// When ingestion ends by itself.
    ends_at: Option<Instant>,
    /// Everything is counted again.
    is_anew: bool,
    is_json: bool,
    stop: &'a Stop,
    progress: &'a mut Progress,
}

impl Run<'_> {
    /// Does the work on a thread, and shows how it goes meanwhile. It is told to stop when its time
    /// is over, or when `has_failed` says that there is no point in going on.
    fn watch<T: Send>(
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

/// Where the data lies.
struct Data {
    path: PathBuf,
    /// Removed at the end.
    _temporary: Option<TempDir>,
}

impl Data {
    fn choose(settings: &Settings, progress: &Progress) -> anyhow::Result<Data> {
        if let Some(path) = &settings.data {
            return Ok(Data {
                path: path.clone(),
                _temporary: None,
            });
        }
        let folder = tempfile::Builder::new()
            .prefix("millstream-")
            .tempdir()
            .context("cannot create a temporary folder; name one with --data")?;
        progress.note(&format!(
            "data is in {} and removed at the end; keep it with --data DIR",
            folder.path().display()
        ));
        Ok(Data {
            path: folder.path().join("data"),
            _temporary: Some(folder),
        })
    }
}
