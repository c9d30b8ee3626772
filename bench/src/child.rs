//! Parts of benchmarks that need a process of their own: to be killed, to have its memory or its processor
//! time looked at, or because what is measured goes from process to process.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{log, push, ranks, windows};

/// The first word of a command line that asks this program to be a child of a benchmark.
pub const CHILD: &str = "child";

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    Log(log::Task),
    Push(push::Task),
    Windows(windows::Task),
    Ranks(ranks::Task),
}

/// Runs the task that the command line names.
pub fn run(task: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match serde_json::from_str(task)? {
        Task::Log(task) => log::run_child(task),
        Task::Push(task) => push::run_child(task),
        Task::Windows(task) => windows::run_child(&task),
        Task::Ranks(task) => ranks::run_child(task),
    }
}

/// Tells the parent something, on a line of its own.
pub fn say(what: &impl Serialize) -> Result<()> {
    write_line(&mut std::io::stdout().lock(), what)
}

/// What the parent says next; `None` when it says nothing more.
pub fn hear<T: DeserializeOwned>() -> Result<Option<T>> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    match line.is_empty() {
        true => Ok(None),
        false => Ok(Some(serde_json::from_str(&line)?)),
    }
}

fn write_line(out: &mut impl std::io::Write, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    out.write_all(&line)?;
    Ok(out.flush()?)
}

/// A child at work; killed when it is dropped.
pub struct Working {
    child: Child,
    words: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Working {
    pub fn start(task: &Task) -> Result<Working> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program)
            .args([CHILD, &serde_json::to_string(task)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a child process")?;
        let words = child.stdin.take().context("the child has no input")?;
        let lines = child.stdout.take().context("the child has no output")?;
        Ok(Working {
            child,
            words,
            lines: BufReader::new(lines),
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells the child something.
    pub fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        write_line(&mut self.words, what).context("the child has ended (see above)")
    }

    /// What the child says next.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the child ended early (see above)");
        Ok(serde_json::from_str(&line)?)
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
