//! dbsp with queries as circuits, in a process for each run.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Ran, Rows};
use crate::measure::Bench;
use crate::project::{build_peers, is_built, peer};

const PROGRAM: &str = "dbsp/release/dbsp-peer";

/// Events that both workers read together before the circuit computes its results: the cheapest number over all queries.
const STEP_EVENTS: usize = 20_000;

/// The circuit of a query.
pub struct Dbsp {
    query: String,
}

/// The line that dbsp prints after a run.
#[derive(Debug, Deserialize)]
struct Printed {
    changes: u64,
    seconds: f64,
    cpu_seconds: f64,
    peak_bytes: f64,
}

impl Dbsp {
    /// Returns the circuit of a query, if dbsp is built. A quick run goes without it.
    pub fn of(bench: &Bench, query: &str) -> Option<Dbsp> {
        // No operator of dbsp has windows of the wall clock.
        if bench.is_quick() || query == super::OF_CLOCK {
            return None;
        }
        build_peers(["dbsp"]);
        is_built(PROGRAM, "dbsp").then(|| Dbsp {
            query: query.to_owned(),
        })
    }

    /// Runs the query over a file with this number of events. Its results are dropped.
    pub fn run(&self, events: &Path, count: u64) -> Result<Ran> {
        let ran: Printed = self.work("run", events)?;
        ensure!(ran.changes > 0, "{} has no results in dbsp", self.query);
        Ok(Ran {
            events_per_cpu_second: count as f64 / ran.cpu_seconds,
            events_per_second: count as f64 / ran.seconds,
            peak_mib: ran.peak_bytes / f64::from(1 << 20),
            checkpoints: 0.0,
        })
    }

    /// Returns the rows that the query leaves.
    pub fn check(&self, events: &Path) -> Result<Rows> {
        self.work("check", events)
    }

    fn work<T: DeserializeOwned>(&self, work: &str, events: &Path) -> Result<T> {
        let mut command = millstream_testing::command(peer(PROGRAM));
        command
            .args([work, &self.query])
            .arg(events)
            .arg(STEP_EVENTS.to_string())
            .stderr(Stdio::inherit());
        let output = command.output().context("cannot start dbsp")?;
        ensure!(output.status.success(), "dbsp has failed (see above)");
        let line = String::from_utf8(output.stdout)?;
        serde_json::from_str(&line).with_context(|| format!("dbsp printed {line:?}"))
    }
}
