//! Flink with its state in RocksDB, in a process that receives one order after the other.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::folder::Folder;
use crate::measure::Bench;
use crate::project::{self, build_peers, is_built};

/// A cluster that runs. It ends with this.
pub struct Flink {
    process: Child,
    orders: ChildStdin,
    printed: BufReader<ChildStdout>,
    _data: Folder,
}

/// The line that Flink prints after a count.
#[derive(Debug, Deserialize)]
pub struct FlinkRan {
    pub events: u64,
    /// From the first event to the last.
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub checkpoints: f64,
    /// The mean time of a checkpoint.
    pub checkpoint_ms: f64,
}

/// The line that Flink prints after a recovery.
#[derive(Debug, Deserialize)]
struct FlinkRecovered {
    /// From the order to resume to the first new event.
    seconds: f64,
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
        let mut process = millstream_testing::command(project::root().join("bench/peers/state.sh"))
            .arg(data.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start Flink")?;
        let orders = process.stdin.take().context("it has no input")?;
        let output = process.stdout.take().context("it has no output")?;
        Ok(Some(Flink {
            process,
            orders,
            printed: BufReader::new(output),
            _data: data,
        }))
    }

    /// Counts events of as many keys, with a checkpoint every second.
    pub fn count(&mut self, keys: u64, events: u64) -> Result<FlinkRan> {
        let ran: FlinkRan = self.order(&format!("count {keys} {events}"))?;
        ensure!(ran.events == events, "Flink counted {ran:?} of {events}");
        Ok(ran)
    }

    /// Runs a job until it has stored some checkpoints of all keys, cancels it, and starts it again from the last one.
    /// Returns the time until the first new event, in seconds. The process stays the same, so nothing of Java's start is in
    /// it.
    pub fn recover(&mut self, keys: u64, checkpoints: u64) -> Result<f64> {
        let recovered: FlinkRecovered = self.order(&format!("recover {keys} {checkpoints}"))?;
        Ok(recovered.seconds)
    }

    fn order<T: for<'de> Deserialize<'de>>(&mut self, order: &str) -> Result<T> {
        writeln!(self.orders, "{order}").context("Flink has ended (see above)")?;
        let mut line = String::new();
        self.printed.read_line(&mut line)?;
        ensure!(!line.is_empty(), "Flink has ended (see above)");
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
