//! Single processes.

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The words before a program's name in the command line of another program that starts it, such as `mpirun`: the kernel
/// kills the process when that other program ends, in whatever way.
pub const ENDS_WITH_PARENT: [&str; 4] = ["setpriv", "--pdeathsig", "KILL", "--"];

/// Starts the program in the place of the shell, unless the parent has ended before the kernel knew of the wish.
const START: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// Returns a command for a program that the kernel kills when the calling process ends, however that ends.
///
/// The kernel takes the thread that starts the program for its parent. So a thread that ends before the process does
/// takes the program with it. Processes that the program starts may go on; see [`group`](crate::group).
///
/// A program that does not exist is no error of `spawn`: the process ends with the code 127.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let [first, more @ ..] = ENDS_WITH_PARENT;
    let mut command = Command::new(first);
    command
        .args(more)
        .args(["sh", "-c", START])
        .arg(std::process::id().to_string())
        .arg(program);
    command
}

/// Starts a command that [`command`] has made. After `limit` the process is killed and a line names it, so reads of its
/// output end then, too.
///
/// # Errors
/// When the process cannot be started.
pub fn start(command: &mut Command, limit: Duration) -> io::Result<Child> {
    let name = name_of(command);
    let child = command.spawn()?;
    // Nothing waits for it before this returns, so its number does not belong to another process yet.
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let timeout = Timespec::try_from(limit).map_err(io::Error::other)?;
    thread::spawn(move || {
        let ended = loop {
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)) {
                Err(Errno::INTR) => {}
                ended => break ended,
            }
        };
        if ended == Ok(0) {
            eprintln!("killed after {limit:?}: {name}");
            // An error means that it has ended since.
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    });
    Ok(child)
}

/// Returns the program and its arguments.
fn name_of(command: &Command) -> String {
    let words = command.get_args().skip_while(|word| *word != START);
    let words: Vec<_> = words.skip(2).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{ChildStdin, ChildStdout, Stdio};
    use std::time::Instant;

    use super::*;

    /// A parent process, which starts `sleep` by this crate when it reads a line, and writes the number of that process.
    #[test]
    #[ignore = "the parent process of the tests below"]
    fn parent() {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let mut child = command("sleep").arg("1000").spawn().unwrap();
        println!("\nstarted {}", child.id());
        std::io::stdout().flush().unwrap();
        // Ends when the test ends.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn parent_process() -> (Child, ChildStdin, BufReader<ChildStdout>) {
        let mut command = command(std::env::current_exe().unwrap());
        command
            .args(["--exact", "process::tests::parent", "--ignored"])
            .arg("--nocapture")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut parent = command.spawn().unwrap();
        let stdin = parent.stdin.take().unwrap();
        let stdout = BufReader::new(parent.stdout.take().unwrap());
        (parent, stdin, stdout)
    }

    #[test]
    fn a_process_dies_with_a_parent_that_is_killed() {
        let (mut parent, mut stdin, stdout) = parent_process();
        stdin.write_all(b"\n").unwrap();
        let mut lines = stdout.lines().map_while(Result::ok);
        let number = lines.find_map(|line| line.strip_prefix("started ")?.parse().ok());
        let child = pidfd_open(Pid::from_raw(number.unwrap()).unwrap(), PidfdFlags::empty());
        let child = child.unwrap();
        parent.kill().unwrap();
        parent.wait().unwrap();
        let limit = Timespec::try_from(Duration::from_secs(60)).unwrap();
        let ended = poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&limit));
        assert_eq!(ended, Ok(1), "the process outlives its parent");
    }

    #[test]
    fn a_process_whose_parent_is_gone_does_not_start() {
        let mut command = Command::new("sh");
        command.args(["-c", START, "1", "echo", "started"]);
        let output = command.output().unwrap();
        assert!(output.stdout.is_empty() && !output.status.success());
    }

    #[test]
    fn a_guarded_program_gets_its_arguments_and_input_and_returns_its_exit_code() {
        let mut command = command("sh");
        command.args(["-c", "cat; echo \"$1\"; exit 3", "_", "a  b'"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"in ").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.stdout, b"in a  b'\n");
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_process_is_killed_after_its_limit() {
        let started_at = Instant::now();
        let mut command = command("sleep");
        command.arg("1000").stdout(Stdio::piped());
        assert_eq!(name_of(&command), "sleep 1000");
        let mut child = start(&mut command, Duration::from_millis(50)).unwrap();
        let mut stdout = child.stdout.take().unwrap();
        assert_eq!(stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert_eq!(child.wait().unwrap().code(), None);
        assert!(started_at.elapsed() < Duration::from_secs(60));
    }
}
