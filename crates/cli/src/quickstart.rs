//! `millstream quickstart`: ingest, store, compute, serve, in one process.

mod ads;
mod live;
mod run;
mod words;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use millstream_flow::FlowSettings;
use tempfile::TempDir;

use self::run::Run;
use crate::args::QuickstartArgs;
use crate::console::Progress;
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

/// The data directory of a run.
struct Data {
    path: PathBuf,
    /// A temporary directory, removed at the end.
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
