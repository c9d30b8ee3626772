//! A running test program, and all processes that it has started.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::built::Program;

/// The variable that marks a test program and all processes that it starts. The program `millstream` refuses unknown
/// variables that begin with its name, so this one does not.
const MARK: &str = "TEST_PROGRAM_MARK";

/// The folder in which Open MPI makes the folders of its runs. By default all runs of a user on a machine share one, which
/// the last to end removes while another one begins: then that one fails.
const MPI_SESSIONS: &str = "OMPI_MCA_orte_tmpdir_base";

/// Processes of a program that has ended may take this long to end.
const END_MAX: Duration = Duration::from_secs(5);

/// The unit in which Linux shows the processor time of a process.
const TICK_MS: u64 = 10;

/// The kernel truncates the name of a thread to this number of bytes. The test harness names each thread after its
/// test.
const THREAD_NAME_BYTES_MAX: usize = 15;

/// A running test program.
pub struct Running {
    pub program: Program,
    /// The file with the program's output.
    output: PathBuf,
    child: Child,
    started_at: Instant,
    /// The processor time when it was last polled, with that of its processes that have ended.
    cpu: Duration,
    /// The value of [`MARK`].
    mark: String,
}

/// The end of a test program.
pub struct Outcome {
    pub end: End,
    pub time: Duration,
    /// The processor time, but for the last moment.
    pub cpu: Duration,
    /// The program's output.
    pub text: String,
}

/// How a test program ended.
pub enum End {
    Exited(ExitStatus),
    /// It was ended after its limit. These tests were running.
    TimedOut(Vec<String>),
    /// It has exited, and these processes have not.
    LeftProcesses(Vec<String>),
}

impl Running {
    /// Starts the program; its output goes to a file in `folder`.
    pub fn start(program: Program, folder: &Path) -> anyhow::Result<Running> {
        let output = folder.join(format!("{}.txt", program.name.replace(' ', "-")));
        let file = File::create(&output).with_context(|| format!("cannot make {output:?}"))?;
        let mark = format!("{}-{}", std::process::id(), program.name);
        let sessions = output.with_extension("mpi");
        fs::create_dir_all(&sessions).with_context(|| format!("cannot make {sessions:?}"))?;
        let child = Command::new(&program.path)
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder)
            .env(MARK, &mark)
            .env(MPI_SESSIONS, &sessions)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {:?}", program.path))?;
        Ok(Running {
            program,
            output,
            child,
            started_at: Instant::now(),
            cpu: Duration::ZERO,
            mark,
        })
    }

    /// Returns the outcome if the program has ended; ends it if its time is over.
    pub fn poll(&mut self) -> anyhow::Result<Option<Outcome>> {
        self.cpu = processor_time(self.child.id()).unwrap_or(self.cpu);
        let end = match self.child.try_wait()? {
            Some(status) => match self.left_processes() {
                left if left.is_empty() => End::Exited(status),
                left => End::LeftProcesses(left),
            },
            None if self.started_at.elapsed() > self.program.limit => {
                let tests = self.running_tests();
                // The program ends first, so that no test fails for the loss of its processes.
                self.child.kill()?;
                self.child.wait()?;
                kill_all(&self.mark);
                End::TimedOut(tests)
            }
            None => return Ok(None),
        };
        Ok(Some(Outcome {
            end,
            time: self.started_at.elapsed(),
            cpu: self.cpu,
            text: self.text()?,
        }))
    }

    fn text(&self) -> anyhow::Result<String> {
        let bytes =
            fs::read(&self.output).with_context(|| format!("cannot read {:?}", self.output))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Ends the processes that the ended program has left, and returns their command lines.
    fn left_processes(&self) -> Vec<String> {
        let ended_at = Instant::now();
        loop {
            let left = marked(&self.mark);
            if left.is_empty() {
                return Vec::new();
            }
            if ended_at.elapsed() > END_MAX {
                let commands = left.into_iter().map(command_line).collect();
                kill_all(&self.mark);
                return commands;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the tests that have begun and not ended.
    fn running_tests(&self) -> Vec<String> {
        let text = self.text().unwrap_or_default();
        let tests = all_tests(&self.program);
        let threads = thread_names(self.child.id());
        unfinished(&tests, &text)
            .filter(|test| threads.iter().any(|thread| is_thread_of(thread, test)))
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After the program's end no process has this mark any more.
        kill_all(&self.mark);
        let _ = self.child.wait();
    }
}

/// Returns the names of a program's tests.
fn all_tests(program: &Program) -> Vec<String> {
    let list = Command::new(&program.path)
        .args(["--list", "--format=terse"])
        .current_dir(&program.folder)
        .stdin(Stdio::null())
        .output();
    let text = list.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let names = text.unwrap_or_default();
    let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
    names.map(str::to_owned).collect()
}

/// Returns the tests without a result in the output of their program.
fn unfinished<'a>(tests: &'a [String], output: &str) -> impl Iterator<Item = &'a str> {
    let finished: Vec<&str> = output
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "))
        .map(|(name, _)| name.trim_end_matches(" - should panic"))
        .collect();
    let tests = tests.iter().map(String::as_str);
    tests.filter(move |test| !finished.contains(test))
}

/// Returns whether a thread of this name may run the test.
fn is_thread_of(thread: &str, test: &str) -> bool {
    test.starts_with(thread) && (thread == test || thread.len() == THREAD_NAME_BYTES_MAX)
}

/// Returns the processor time of a process and of its children that have ended.
fn processor_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields 14 to 17 of proc(5). The second field, the name, may contain spaces.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields = fields.split(' ').skip(11).take(4);
    let ticks = fields
        .map(|field| field.parse::<u64>().ok())
        .sum::<Option<u64>>()?;
    // Of an ended process the kernel shows zeros.
    (ticks > 0).then(|| Duration::from_millis(ticks * TICK_MS))
}

fn thread_names(pid: u32) -> Vec<String> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

/// Ends all processes with the mark, also those that they start meanwhile.
fn kill_all(mark: &str) {
    let began_at = Instant::now();
    loop {
        let left = marked(mark);
        if left.is_empty() || began_at.elapsed() > END_MAX {
            return;
        }
        for pid in left {
            // An error means that the process has ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the processes that have the mark in their environment and have not ended.
fn marked(mark: &str) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let variable = format!("{MARK}={mark}");
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| {
        // A process that has ended and was not waited for has an empty environment.
        let variables = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let mut variables = variables.split(|byte| *byte == 0);
        variables.any(|other| other == variable.as_bytes())
    })
    .filter_map(Pid::from_raw)
    .collect()
}

fn command_line(pid: Pid) -> String {
    let bytes = fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .replace('\0', " ")
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Runs a shell script as a test program with this limit.
    fn run(script: &str, limit: Duration) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let name = format!("test {}", folder.path().display()).replace('/', "_");
        let program = Program {
            name,
            path,
            folder: folder.path().to_owned(),
            limit,
        };
        let mut running = Running::start(program, folder.path()).unwrap();
        loop {
            if let Some(outcome) = running.poll().unwrap() {
                return outcome;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_program_that_ends_has_a_status_and_an_output() {
        let outcome = run("echo hello; exit 3", Duration::from_secs(30));
        assert!(matches!(outcome.end, End::Exited(status) if status.code() == Some(3)));
        assert_eq!(outcome.text, "hello\n");
    }

    #[test]
    fn a_program_that_hangs_ends_with_its_processes_and_its_test_is_named() {
        let script = r#"
            if [ "${1:-}" = --list ]; then echo 'done: test'; echo 'hangs_on_purpose: test'; exit; fi
            echo 'test done ... ok'
            setsid sleep 1000 &
            echo "$!"
            echo -n hangs_on_purpose >/proc/self/comm
            while :; do sleep 0.01; done
        "#;
        let outcome = run(script, Duration::from_millis(700));
        match outcome.end {
            End::TimedOut(tests) => assert_eq!(tests, ["hangs_on_purpose"]),
            _ => panic!("{:?}", outcome.text),
        }
        let sleeper = outcome.text.lines().nth(1).unwrap();
        let environment = fs::read(format!("/proc/{sleeper}/environ")).unwrap_or_default();
        assert!(environment.is_empty(), "the process {sleeper} goes on");
    }

    #[test]
    fn a_program_that_leaves_a_process_behind_is_reported() {
        // A process shows no environment while it becomes another program.
        let script = r#"
            setsid sleep 1000 &
            until [ "$(</proc/$!/comm)" = sleep ]; do sleep 0.01; done
        "#;
        let outcome = run(script, Duration::from_secs(30));
        match outcome.end {
            End::LeftProcesses(commands) => assert_eq!(commands, ["sleep 1000"]),
            _ => panic!("{:?}", outcome.text),
        }
    }
}
