//! Parts of benchmarks that need a process of their own: to be killed, or to have its memory looked
//! at.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{CHILD, instructions, large, restart, streams};

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    IngestAndReadAgain(large::Task),
    IngestUntilKilled(restart::Task),
    CreateStreams(streams::Task),
    CountInstructions(instructions::Task),
}

/// Runs the task that the command line names.
pub fn run(task: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match serde_json::from_str(task)? {
        Task::IngestAndReadAgain(task) => say(&large::run(&task)?),
        Task::IngestUntilKilled(task) => restart::run(&task),
        Task::CreateStreams(task) => say(&streams::run(&task)?),
        Task::CountInstructions(task) => instructions::run(&task),
    }
}

/// Tells the parent something, on a line of its own.
pub fn say(what: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A child at work; killed when it is dropped.
pub struct Working {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Working {
    pub fn start(task: &Task) -> Result<Working> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program)
            .args([CHILD, &serde_json::to_string(task)?])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a child process")?;
        let lines = child.stdout.take().context("the child has no output")?;
        Ok(Working {
            child,
            lines: BufReader::new(lines),
        })
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
