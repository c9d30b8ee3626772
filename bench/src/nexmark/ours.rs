//! A query of ours, in a process of its own.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use millstream::flow::FlowSettings;
use millstream::{Flow, Node, secs};
use millstream_nexmark::{Counter, Origin, QUERIES, Query};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::rows::rows;
use crate::child::{Task, Working, report};
use crate::folder::Folder;
use crate::measure::{ended, time};
use crate::proc::status_mib;

/// Workers, and sources of events.
const INSTANCES: u32 = 2;

/// Runs a query over a file of events.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunQuery {
    query: String,
    events: PathBuf,
    data: PathBuf,
    work: Work,
}

/// The end of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Counts and drops them, and reports the costs.
    Discard,
    /// Writes them to a topic, and reports the rows that they leave.
    Check,
}

/// The costs of a query.
#[derive(Debug, Serialize, Deserialize)]
pub struct Printed {
    pub results: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub checkpoints: f64,
    pub peak_mib: f64,
}

impl RunQuery {
    pub fn new(query: &str, folder: &Folder, events: &Path, work: Work) -> RunQuery {
        RunQuery {
            query: query.to_owned(),
            events: events.to_owned(),
            data: folder.path().join("ours"),
            work,
        }
    }

    /// Runs it in a child process, over an empty log.
    pub fn answer<T: DeserializeOwned>(&self) -> Result<T> {
        if self.data.exists() {
            fs::remove_dir_all(&self.data)?;
        }
        Working::start(self)?.hear()
    }
}

impl Task for RunQuery {
    const NAME: &'static str = "nexmark/query";

    fn run(self) -> Result<()> {
        let mut queries = QUERIES.iter();
        let definition = queries.find(|query| query.name == self.query);
        let definition = definition.with_context(|| format!("no query {}", self.query))?;
        let node = Node::embedded(&self.data)?;
        let settings = FlowSettings {
            workers: NonZeroUsize::new(INSTANCES as usize).context("no worker")?,
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings(&self.query, settings).checkpoint_interval(secs(1));
        let origin = Origin::File {
            path: self.events,
            sources: INSTANCES,
        };
        let counter = Counter::default();
        let query = Query::new(flow, &node, origin);
        let query = match self.work {
            Work::Discard => query.discard(counter.clone()),
            Work::Check => query,
        };
        let flow = (definition.build)(&query);
        let mut checkpoints = 0;
        // Dropped behind the measured time: neither side frees its state at the end.
        let mut running = None;
        let took = time(|| {
            let running = running.insert(flow.start()?);
            ended(running)?;
            let stored = running.checkpoints().unwrap_or_default();
            ensure!(
                stored.failed == 0,
                "a checkpoint failed: {:?}",
                stored.error
            );
            checkpoints = stored.kept;
            Ok(())
        })?;
        match self.work {
            Work::Discard => report(&Printed {
                results: counter.count(),
                seconds: took.seconds,
                cpu_seconds: took.cpu_seconds,
                checkpoints: checkpoints as f64,
                peak_mib: status_mib(std::process::id(), "VmHWM")?,
            }),
            Work::Check => report(&rows(&node, &self.query)?),
        }
    }
}
