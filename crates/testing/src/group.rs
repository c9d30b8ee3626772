//! Groups of processes.

use std::ffi::OsStr;
use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// A process of the group reads the pipe until its other end is gone, and then kills the group.
const START: &str = r#"
    exec 3<&0 </dev/null
    { read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 &
    exec "$@" 3<&-
"#;

/// Keeps a group of processes alive: the group is killed when this is dropped, and when the process with it ends,
/// however that ends.
#[derive(Debug)]
pub struct Lifeline {
    /// Nothing is ever written to it.
    _pipe: PipeWriter,
}

/// Returns a command for a program in a process group of its own. All processes of the group end with the lifeline,
/// whichever thread holds it. Their standard input is empty.
///
/// # Errors
/// When there are too many open files.
pub fn group(program: impl AsRef<OsStr>) -> io::Result<(Command, Lifeline)> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new("sh");
    command
        .args(["-c", START, "sh"])
        .arg(program)
        .stdin(reader)
        .process_group(0);
    Ok((command, Lifeline { _pipe: writer }))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn all_processes_of_a_group_end_with_the_lifeline() {
        let (mut command, lifeline) = group("bash").unwrap();
        command.args(["-c", "sleep 1000 & cat; echo $$; sleep 1000"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        drop(command);
        let mut stdout = child.stdout.take().unwrap();
        let mut number = [0; 1];
        stdout.read_exact(&mut number).unwrap();
        drop(lifeline);
        // All of them have closed the pipe.
        stdout.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(child.wait().unwrap().code(), None);
    }
}
