//! Flink with queries as SQL, in a process that receives one order after the other.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Ran, Rows};
use crate::folder::Folder;
use crate::measure::Bench;
use crate::project::{self, build_peers, is_built};

/// The longest time of a run.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// A cluster that runs. It ends with this.
pub struct Flink {
    process: Child,
    orders: ChildStdin,
    printed: Receiver<String>,
    _data: Folder,
}

/// The line that Flink prints after a run.
#[derive(Debug, Deserialize)]
struct Printed {
    seconds: f64,
    cpu_seconds: f64,
    checkpoints: f64,
    peak_bytes: f64,
}

impl Flink {
    /// Starts it, if it is built. A quick run goes without it.
    pub fn start(bench: &Bench) -> Result<Option<Flink>> {
        if bench.is_quick() {
            return Ok(None);
        }
        build_peers(["flink"]);
        if !is_built("flink/built", "Flink") {
            return Ok(None);
        }
        let data = bench.folder("flink", 3 << 30)?;
        let mut process =
            millstream_testing::command(project::root().join("bench/peers/nexmark.sh"))
                .arg(data.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .context("cannot start Flink")?;
        let orders = process.stdin.take().context("it has no input")?;
        let output = process.stdout.take().context("it has no output")?;
        let (lines, printed) = channel();
        thread::spawn(move || {
            let output = BufReader::new(output).lines().map_while(Result::ok);
            // The receiver is gone when Flink is not needed any more.
            let _ = output.into_iter().try_for_each(|line| lines.send(line));
        });
        Ok(Some(Flink {
            process,
            orders,
            printed,
            _data: data,
        }))
    }

    /// Runs a query over a file with this number of events. Its results are dropped.
    pub fn run(&mut self, query: &str, events: &Path, count: u64) -> Result<Ran> {
        let ran: Printed = self.order("run", query, events)?;
        Ok(Ran {
            events_per_cpu_second: count as f64 / ran.cpu_seconds,
            events_per_second: count as f64 / ran.seconds,
            peak_mib: ran.peak_bytes / f64::from(1 << 20),
            checkpoints: ran.checkpoints,
        })
    }

    /// Returns the rows that a query leaves.
    pub fn check(&mut self, query: &str, events: &Path) -> Result<Rows> {
        self.order("check", query, events)
    }

    fn order<T: DeserializeOwned>(&mut self, order: &str, query: &str, events: &Path) -> Result<T> {
        writeln!(self.orders, "{order} {query} {}", events.display())
            .context("Flink has ended (see above)")?;
        let line = self.printed.recv_timeout(WAIT_MAX);
        let line = line.context("Flink has ended (see above), or takes more than five minutes")?;
        serde_json::from_str(&line).with_context(|| format!("Flink printed {line:?}"))
    }
}

impl Drop for Flink {
    fn drop(&mut self) {
        // Its data goes with it, so nothing is lost.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
