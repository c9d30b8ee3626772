//! Executes the commands of README and the guide.
//!
//! A block that is marked `sh` is a script that must succeed. In a block that is marked `console`,
//! a line that begins with `$ ` is a command that must succeed, and the lines below it are its output
//! on stdout and stderr. `…` matches any text within a line, and a line of `…` alone matches any
//! lines. `^C` stands for the reader's Ctrl-C; the check sends it once the command has printed all
//! lines above it, and skips other output in between.
//!
//! A block that is marked `console background` is a transcript whose commands run until the page's
//! last command has ended. The next command starts once they have printed the lines on the page.
//! `millstream start` listens on a free port there, and the page's other commands use that server.
//!
//! Where a command names the addresses `localhost:9092` and `127.0.0.1:8081`, it gets that server's and another free
//! port's. `cargo run --release -p PACKAGE --example NAME --` runs the example as it was built for the tests.
//!
//! A block that cannot be executed names the reason: `sh no-run it takes an hour`.
//!
//! All blocks of a page run in one folder, which looks like a fresh clone and is also the home folder,
//! with the built program on the `PATH`. Background processes of a command end with it.

mod transcript;

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use millstream_testing::Lifeline;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use self::transcript::{Block, Step};
use super::Problem;
use crate::markdown;
use crate::tree::Tree;

const TIME_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The most output of a command; the check drops the rest.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// The variable with the path of the program that the commands call `millstream`.
const PROGRAM_VARIABLE: &str = "MILLSTREAM_BIN";

/// The addresses that pages name.
const SERVER: &str = "localhost:9092";
const HTTP: &str = "127.0.0.1:8081";

/// The command that builds and runs an example of the library, up to the example's name.
const EXAMPLE: &str = "cargo run --release -p millstream --example ";

/// Variables that `make` sets, and a reader's shell does not have.
const INHERITED_VARIABLES: [&str; 3] = ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"];

pub fn check(tree: &Tree) -> anyhow::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let mut program = None;
    for (path, page) in tree.guide() {
        let mut steps = Vec::new();
        for fence in markdown::fences(page) {
            match Block::parse(&fence.value) {
                Ok(Block::Steps(found)) => {
                    steps.extend(found.into_iter().map(|step| (fence.line + step.line, step)));
                }
                Ok(Block::NotRun(reason)) => {
                    println!("{path}:{}: not run: {reason}", fence.line);
                }
                Ok(Block::NoCommands) => {}
                Err(what) => problems.push(Problem::at_line(path, fence.line, what)),
            }
        }
        if steps.is_empty() {
            continue;
        }
        let program = match &program {
            Some(program) => program,
            None => program.insert(built_program(tree)?),
        };
        let mut desk = Desk::new(tree, program)?;
        for (line, step) in steps {
            println!("{path}:{line}: $ {}", step.command);
            if let Err(error) = desk.run(&step) {
                problems.push(Problem::at_line(path, line, format!("{error:#}")));
            }
        }
    }
    Ok(problems)
}

/// Returns the program that the environment names, or else a debug build.
fn built_program(tree: &Tree) -> anyhow::Result<PathBuf> {
    if let Some(program) = std::env::var_os(PROGRAM_VARIABLE) {
        return fs::canonicalize(&program)
            .with_context(|| format!("{PROGRAM_VARIABLE} is {program:?}"));
    }
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--locked",
            "--package=millstream-cli",
            "--package=millstream",
            "--bins",
            "--examples",
            "--message-format=json",
        ])
        .current_dir(tree.root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo build failed: {}", output.status);
    }
    serde_json::Deserializer::from_slice(&output.stdout)
        .into_iter::<serde_json::Value>()
        .filter_map(|message| Some(PathBuf::from(message.ok()?["executable"].as_str()?)))
        .filter(|program| program.ends_with("millstream"))
        .last()
        .context("cargo built no program called millstream")
}

/// The environment of one page: its folder, and its running commands.
struct Desk {
    folder: TempDir,
    program: PathBuf,
    path: OsString,
    /// The address on which a server listens, unless its command sets another.
    server: String,
    /// The address that a page's other program serves at.
    http: String,
    /// The commands that run until the page's end.
    running: Vec<(Child, Lifeline)>,
}

impl Drop for Desk {
    fn drop(&mut self) {
        for (mut child, _) in self.running.drain(..) {
            // An error means that no process is left.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
        }
    }
}

impl Desk {
    fn new(tree: &Tree, program: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        for path in tree.paths() {
            let name = path.split('/').next().unwrap_or(path);
            let place = folder.path().join(name);
            if place.symlink_metadata().is_err() {
                symlink(tree.root().join(name), place)?;
            }
        }
        let programs = folder.path().join("bin");
        fs::create_dir(&programs)?;
        symlink(program, programs.join("millstream"))?;
        let old_path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(programs).chain(std::env::split_paths(&old_path));
        Ok(Self {
            path: std::env::join_paths(folders)?,
            folder,
            program: program.to_owned(),
            server: free_address()?,
            http: free_address()?,
            running: Vec::new(),
        })
    }

    /// Returns a command with the addresses and the programs of this place.
    fn as_run_here(&self, command: &str) -> String {
        let command = command
            .replace(SERVER, &self.server)
            .replace(HTTP, &self.http);
        let Some((_, words)) = command.split_once(EXAMPLE) else {
            return command;
        };
        let examples = self.program.with_file_name("examples");
        format!("{}/{}", examples.display(), words.replacen(" -- ", " ", 1))
    }

    fn run(&mut self, step: &Step) -> anyhow::Result<()> {
        let (reader, writer) = std::io::pipe()?;
        let (mut command, lifeline) = millstream_testing::group("bash")?;
        command
            .args(["-euo", "pipefail", "-c", &self.as_run_here(&step.command)])
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            .env("PATH", &self.path)
            .env(PROGRAM_VARIABLE, &self.program)
            .env("MILLSTREAM_LISTEN", &self.server)
            .env("MILLSTREAM_SERVER", &self.server)
            .stdout(writer.try_clone()?)
            .stderr(writer);
        for variable in INHERITED_VARIABLES {
            command.env_remove(variable);
        }
        let child = command.spawn().context("cannot start bash")?;
        // `command` holds the write ends of the pipe. The reading thread ends only when they are closed.
        drop(command);
        let output = Output::gather(reader);
        if step.stays {
            self.running.push((child, lifeline));
            return wait_until_shown(step, &output);
        }
        let (status, interrupted) = wait(child, step, &output)?;
        let text = output.finish()?;
        if !status.success() && !interrupted {
            bail!("`{}` failed ({status}); it printed:\n{text}", step.command);
        }
        if !step.is_shown_by(&text) {
            bail!(
                "`{}` printed other lines than the page shows:\n{text}",
                step.command
            );
        }
        Ok(())
    }
}

fn free_address() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Waits until the command ends, presses Ctrl-C where the page does, and ends remaining background
/// processes. Returns whether it pressed Ctrl-C.
fn wait(mut child: Child, step: &Step, output: &Output) -> anyhow::Result<(ExitStatus, bool)> {
    let group = Pid::from_child(&child);
    let deadline = Instant::now() + TIME_MAX;
    let mut interrupted = false;
    loop {
        if let Some(status) = child.try_wait()? {
            // An error means that no process is left.
            let _ = kill_process_group(group, Signal::KILL);
            return Ok((status, interrupted));
        }
        if !interrupted && step.is_interrupted_at(&output.so_far()) {
            interrupted = true;
            kill_process_group(group, Signal::INT)?;
        }
        if Instant::now() > deadline {
            kill_process_group(group, Signal::KILL)?;
            child.wait()?;
            bail!(
                "`{}` has not ended after {} s; it printed:\n{}",
                step.command,
                TIME_MAX.as_secs(),
                output.so_far()
            );
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until a background command has printed the lines on the page.
fn wait_until_shown(step: &Step, output: &Output) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIME_MAX;
    while !step.is_shown_by(&output.so_far()) {
        if Instant::now() > deadline {
            bail!(
                "`{}` has not printed the lines that the page shows, but:\n{}",
                step.command,
                output.so_far()
            );
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The output of a command; a thread reads it, so that the command never blocks on a full pipe.
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: thread::JoinHandle<std::io::Result<()>>,
}

impl Output {
    fn gather(reader: std::io::PipeReader) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let gathered = Arc::clone(&bytes);
        let thread = thread::spawn(move || {
            let mut reader = reader.take(OUTPUT_BYTES_MAX);
            let mut buffer = [0; 4096];
            loop {
                let length = reader.read(&mut buffer)?;
                if length == 0 {
                    return Ok(());
                }
                let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
                gathered.extend_from_slice(&buffer[..length]);
            }
        });
        Self { bytes, thread }
    }

    fn so_far(&self) -> String {
        text_of(&self.bytes)
    }

    /// Waits until the last process has closed the pipe, and returns the whole output.
    fn finish(self) -> anyhow::Result<String> {
        match self.thread.join() {
            Ok(result) => result.context("cannot read the command's output")?,
            Err(_) => bail!("the thread that reads the command's output has panicked"),
        }
        Ok(text_of(&self.bytes))
    }
}

fn text_of(bytes: &Mutex<Vec<u8>>) -> String {
    let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(block: &str) -> Result<(), String> {
        run_all(&[("console", block)])
    }

    fn run_all(blocks: &[(&str, &str)]) -> Result<(), String> {
        let mut steps = Vec::new();
        for (info, block) in blocks {
            let fence = markdown::Fence {
                info: (*info).to_owned(),
                text: (*block).to_owned(),
            };
            let Ok(Block::Steps(found)) = Block::parse(&fence) else {
                panic!("no steps in {block:?}");
            };
            steps.extend(found);
        }
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("README.md"), "hello\n").unwrap();
        let tree = Tree::read(root.path()).unwrap();
        let mut desk = Desk::new(&tree, Path::new("/bin/echo")).unwrap();
        steps
            .iter()
            .try_for_each(|step| desk.run(step))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn commands_run_in_a_copy_of_the_tree() {
        assert_eq!(run("$ cat README.md\nhello\n"), Ok(()));
        assert_eq!(run("$ touch new\n$ ls\nREADME.md\nbin\nnew\n"), Ok(()));
        assert_eq!(run("$ millstream stream list\nstream …\n"), Ok(()));
        assert_eq!(run("$ \"$MILLSTREAM_BIN\" 1 >&2\n1\n"), Ok(()));
    }

    #[test]
    fn a_failure_or_another_output_is_a_problem() {
        let failure = run("$ echo oh no; false\n…\n").unwrap_err();
        assert!(
            failure.contains("failed") && failure.contains("oh no"),
            "{failure}"
        );
        let other = run("$ echo one\ntwo\n").unwrap_err();
        assert!(other.contains("other lines"), "{other}");
    }

    #[test]
    fn a_transcript_may_press_ctrl_c() {
        let block = "\
$ trap 'echo bye; exit 1' INT; echo ready; while true; do sleep 0.01; done
ready
^C
bye
";
        assert_eq!(run(block), Ok(()));
    }

    #[test]
    fn background_commands_run_until_the_end_of_the_page() {
        let start = Instant::now();
        let blocks = [
            (
                "console background",
                "$ echo ready; echo $$ > pid; exec sleep 50\nready\n",
            ),
            ("console", "$ sleep 0.1; kill -0 $(cat pid)\n"),
        ];
        assert_eq!(run_all(&blocks), Ok(()));
        assert!(start.elapsed() < Duration::from_secs(25));
    }

    #[test]
    fn background_processes_end_with_their_command() {
        let start = Instant::now();
        assert_eq!(run("$ sleep 50 & echo started\nstarted\n"), Ok(()));
        assert!(start.elapsed() < Duration::from_secs(25));
    }
}
