//! Other systems, each in a process of its own that receives one order after the other.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use millstream_ads::benchmark::{App, Order, Outcome, Released};
use millstream_ads::workload::Made;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use std::os::unix::process::CommandExt as _;

use super::contender::{Contender, Counted};
use crate::project;

/// How long a system may take to start, and to end a run.
const WAIT_MAX: Duration = Duration::from_secs(90);

/// A system that is built.
pub struct Peer {
    app: App,
    process: Child,
    orders: ChildStdin,
    printed: Receiver<String>,
}

/// The line that a system prints after a run.
#[derive(Debug, Deserialize)]
struct Printed {
    seconds: f64,
    cpu_seconds: f64,
    /// By instance: starts of windows, and how many events were made for them.
    made: Vec<Vec<(i64, u64)>>,
    released: Vec<Released>,
}

impl Peer {
    /// Starts a system by its name. Flink takes a time in milliseconds: how long its buffers wait to be full.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(name: &str, buffers_wait_ms: Option<u64>, app: App) -> Result<Peer> {
        let mut process = millstream_testing::command(project::root().join("bench/peers/ads.sh"))
            .arg(name)
            .args(buffers_wait_ms.map(|ms| ms.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The processes that the script starts end with it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let orders = process.stdin.take().context("it has no input")?;
        let output = process.stdout.take().context("it has no output")?;
        Ok(Peer {
            app,
            process,
            orders,
            printed: lines(output),
        })
    }
}

impl Contender for Peer {
    fn run(&mut self, order: &Order) -> Result<Counted> {
        let Order {
            rate,
            duration_ms,
            window_ms,
            start_ms,
            ..
        } = order;
        let app = self.app.name();
        writeln!(
            self.orders,
            "{app} {rate} {duration_ms} {window_ms} {start_ms}"
        )
        .context("it has ended (see above)")?;
        let line = match self
            .printed
            .recv_timeout(WAIT_MAX + Duration::from_millis(*duration_ms))
        {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                // A late answer would be taken for that of the next order.
                self.kill();
                bail!("it has not come to an end in time")
            }
            Err(RecvTimeoutError::Disconnected) => bail!("it has ended (see above)"),
        };
        let printed: Printed = serde_json::from_str(&line).with_context(|| {
            format!(
                "it printed {:?}",
                line.chars().take(200).collect::<String>()
            )
        })?;
        let made = |(window_ms, events)| Made { window_ms, events };
        let of_instance = |of: Vec<_>| of.into_iter().map(made).collect();
        Ok(Counted {
            outcome: Outcome {
                seconds: printed.seconds,
                made: printed.made.into_iter().map(of_instance).collect(),
                released: printed.released,
            },
            cpu_seconds: printed.cpu_seconds,
        })
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }
}

impl Peer {
    /// Ends its process, and those that this has started.
    fn kill(&mut self) {
        if !self.is_alive() {
            return;
        }
        if let Ok(id) = i32::try_from(self.process.id())
            && let Some(group) = Pid::from_raw(id)
        {
            // It may have ended since.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.process.wait();
    }
}

/// Reads lines on a thread, so that one can be waited for with patience.
fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}
