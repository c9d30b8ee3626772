//! Runs the program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing that a test does takes longer.
const TIME_MAX: Duration = Duration::from_secs(120);

/// A program that runs longer is killed, so that reads of its output end.
const PROGRAM_MAX: Duration = Duration::from_secs(300);

/// The program, without the settings in the environment of the test, and with a small pool.
pub fn program() -> Command {
    prepared(millstream_testing::command(env!(
        "CARGO_BIN_EXE_millstream"
    )))
}

/// As [`program`], with SIGHUP ignored or not at its start, independent of this process.
pub fn program_with_hangup(is_ignored: bool) -> Command {
    let mut command = millstream_testing::command("env");
    command
        .arg(match is_ignored {
            true => "--ignore-signal=HUP",
            false => "--default-signal=HUP",
        })
        .arg(env!("CARGO_BIN_EXE_millstream"));
    prepared(command)
}

/// Removes the settings of the user that runs the test, and sets a small pool.
pub fn prepared(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MILLSTREAM_") {
            command.env_remove(name);
        }
    }
    command
        .env("MILLSTREAM_POOL", "64MiB")
        // Without the user's profiles.
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Flows under `mpirun`, with some arguments for each of the processes.
#[cfg(feature = "mpi")]
pub fn mpirun(processes: &[&[&str]]) -> Command {
    let mut command = millstream_testing::command("mpirun");
    command
        .args(["--oversubscribe", "-q"])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for (index, args) in processes.iter().enumerate() {
        if index > 0 {
            command.arg(":");
        }
        command
            .args(["-n", "1"])
            .args(millstream_testing::ENDS_WITH_PARENT)
            .arg(env!("CARGO_BIN_EXE_millstream"));
        command.args(["flow", "run"]).args(*args);
    }
    prepared(command)
}

/// The status and the output of a finished run.
#[derive(Debug)]
pub struct Run {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Run {
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Stdout, which must be one JSON document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn assert_done(self) -> Run {
        assert_eq!(self.status.code(), Some(0), "{}", self.stderr);
        self
    }

    /// It has ended with this exit code and a message of one line that contains `parts`.
    #[track_caller]
    pub fn assert_fails(&self, code: i32, parts: &[&str]) {
        let message = &self.stderr;
        assert_eq!(self.status.code(), Some(code), "{message}");
        assert!(!message.contains("panicked"), "{message}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        Run {
            status: output.status,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs the program to its end, with the data in `data`.
pub fn run(data: &Path, args: &[&str]) -> Run {
    run_with_input(data, args, Vec::new())
}

/// As [`run`], with something on stdin.
pub fn run_with_input(data: &Path, args: &[&str], input: Vec<u8>) -> Run {
    finish_with_input(spawn(data, args), input)
}

fn finish_with_input(mut child: Child, input: Vec<u8>) -> Run {
    let mut stdin = child.stdin.take().unwrap();
    // A program that ends early does not read it all.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let run = finish(child);
    writer.join().unwrap();
    run
}

/// Starts a program.
pub fn start(command: &mut Command) -> Child {
    millstream_testing::start(command, PROGRAM_MAX).unwrap()
}

/// Starts the program with pipes to it.
pub fn spawn(data: &Path, args: &[&str]) -> Child {
    let mut command = program();
    command.args(args).arg("--data").arg(data);
    start(command.stdin(Stdio::piped()))
}

/// Waits for the end.
pub fn finish(mut child: Child) -> Run {
    let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let stdout = thread::spawn(move || {
        let mut bytes = Vec::new();
        pipes.0.read_to_end(&mut bytes).map(|_| bytes)
    });
    let stderr = thread::spawn(move || {
        let mut bytes = Vec::new();
        pipes.1.read_to_end(&mut bytes).map(|_| bytes)
    });
    let started_at = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started_at.elapsed() > TIME_MAX {
            child.kill().unwrap();
            panic!("the program has not ended after {TIME_MAX:?}");
        }
        thread::sleep(Duration::from_millis(2));
    };
    Run::from(Output {
        status,
        stdout: stdout.join().unwrap().unwrap(),
        stderr: stderr.join().unwrap().unwrap(),
    })
}

/// `millstream start`, and commands that ask it.
pub struct Server {
    child: Option<Child>,
    address: String,
}

impl Server {
    /// On a free port, unless `args` say otherwise; waits until it listens.
    pub fn start(data: &Path, args: &[&str]) -> Server {
        let mut server = Server::of(Server::spawn(data, args), String::new());
        let mut line = server.line();
        // A start may print warnings about the data that it found.
        while !line.starts_with("listening on ") {
            line = server.line();
        }
        let told = line.strip_prefix("listening on ");
        let (address, data_told) = told.and_then(|told| told.split_once(", ")).expect(&line);
        assert_eq!(data_told.trim(), format!("data in {}", data.display()));
        server.address = address.to_owned();
        server
    }

    /// As [`start`](Self::start); also returns the JSON that the server prints.
    pub fn start_with_json(data: &Path) -> (Server, String) {
        let mut child = Server::spawn(data, &["--json"]);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        child.stdout = Some(stdout.into_inner());
        let server = Server {
            child: Some(child),
            address: String::new(),
        };
        (server, line)
    }

    /// Starts it, on a free port.
    pub fn spawn(data: &Path, args: &[&str]) -> Child {
        let mut command = program();
        command
            .env("MILLSTREAM_LISTEN", "127.0.0.1:0")
            .args(["start", "--data"])
            .arg(data)
            .args(args);
        start(&mut command)
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// The next line on its stderr.
    pub fn line(&mut self) -> String {
        line_of(self.child.as_mut().unwrap())
    }

    /// One that listens there.
    pub fn of(child: Child, address: String) -> Server {
        Server {
            child: Some(child),
            address,
        }
    }

    /// A command that asks it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        command.args(args).args(["--server", &self.address]);
        command
    }

    pub fn run(&self, args: &[&str]) -> Run {
        finish(start(&mut self.command(args)))
    }

    pub fn run_with_input(&self, args: &[&str], input: Vec<u8>) -> Run {
        let child = start(self.command(args).stdin(Stdio::piped()));
        finish_with_input(child, input)
    }

    pub fn into_child(mut self) -> Child {
        self.child.take().unwrap()
    }

    /// Ends it in good order.
    pub fn stop(self) -> Run {
        let child = self.into_child();
        send_signal(&child, rustix::process::Signal::TERM);
        finish(child).assert_done()
    }
}

/// The next line on a program's stderr.
pub fn line_of(child: &mut Child) -> String {
    let stderr = child.stderr.as_mut().unwrap();
    // No byte after the line is read.
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        stderr.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// Of a test that has failed.
impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until the program says where it serves.
pub fn address_of(child: &mut Child) -> String {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut told = String::new();
    let address = loop {
        let start = told.len();
        let bytes = stderr.read_line(&mut told).unwrap();
        assert!(bytes > 0, "it does not say where it serves: {told}");
        if let Some(address) = told[start..].strip_prefix("watch it at http://") {
            break address.trim().trim_end_matches('/').to_owned();
        }
    };
    // No later line is lost: the program writes them after the awaited one.
    child.stderr = Some(stderr.into_inner());
    address
}

/// Returns the answer at a path, head and body.
pub fn get(address: &str, path: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

/// As [`get`], of a path that answers with JSON.
pub fn get_json(address: &str, path: &str) -> Value {
    let answer = get(address, path);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

pub fn send_signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// Waits until `condition` holds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < TIME_MAX, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
