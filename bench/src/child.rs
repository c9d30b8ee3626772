//! Child processes: a benchmark gives work to a process of its own to kill it, to measure its memory or processor time,
//! or because it measures traffic between processes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first word of a command line that starts this program as a child.
pub const CHILD: &str = "child";

/// The longest time that a child may take to end.
const END_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The work of a child process.
pub trait Task: Serialize + DeserializeOwned {
    /// Distinguishes it from all other tasks.
    const NAME: &'static str;

    /// Does the work, in the child process.
    ///
    /// # Errors
    /// When the work fails; the child process ends then.
    fn run(self) -> Result<()>;
}

/// A task in a list of tasks.
pub struct Entry {
    pub name: &'static str,
    /// Reads the task from JSON, and runs it.
    pub run: fn(&str) -> Result<()>,
}

impl Entry {
    pub const fn of<T: Task>() -> Entry {
        Entry {
            name: T::NAME,
            run: |json| serde_json::from_str::<T>(json)?.run(),
        }
    }
}

/// The command line, behind the program, of a child process that runs a task.
pub fn words<T: Task>(task: &T) -> Result<[String; 3]> {
    let json = serde_json::to_string(task)?;
    Ok([CHILD.to_owned(), T::NAME.to_owned(), json])
}

/// Sends the parent a value, on a line of its own.
pub fn report(what: &impl Serialize) -> Result<()> {
    write_line(&mut std::io::stdout().lock(), what)
}

/// Reads the next value that the parent sends; `None` at the end of its input.
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
    pub fn start<T: Task>(task: &T) -> Result<Working> {
        let program = std::env::current_exe()?;
        let mut child = millstream_testing::command(program)
            .args(words(task)?)
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

    /// Sends the child a value, on a line of its own.
    pub fn send(&mut self, what: &impl Serialize) -> Result<()> {
        write_line(&mut self.words, what).context("the child has ended (see above)")
    }

    /// Reads the next value that the child sends.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the child ended early (see above)");
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits for its end, which another line has asked for.
    pub fn wait(mut self) -> Result<()> {
        let asked_at = Instant::now();
        while asked_at.elapsed() < END_MAX {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the child has ended with {status}");
                return Ok(());
            }
            sleep(LOOK_EVERY);
        }
        bail!("the child has not ended after {END_MAX:?}")
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
