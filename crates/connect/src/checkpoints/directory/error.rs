//! Errors of a directory for checkpoints.

use std::io;
use std::path::{Path, PathBuf};

/// An error of a directory for checkpoints.
#[derive(thiserror::Error)]
pub enum CheckpointDirError {
    /// The operating system refuses.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The path that it concerns.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another run keeps its checkpoints there.
    #[error(
        "{} is in use by another run{}; wait for its end or stop it, or keep these checkpoints in another directory",
        dir.display(),
        holder.map(|pid| format!(", process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The process of that run, on the machine where it runs; `None` if it has not written its id yet.
        holder: Option<u32>,
    },
    /// It holds something else.
    #[error(
        "{} is not a file of a checkpoint; keep the checkpoints of each flow in a directory of their own",
        path.display()
    )]
    Foreign {
        /// The path of the file that is not of a checkpoint.
        path: PathBuf,
    },
    /// A file ends before its length.
    #[error("{} has {expected} bytes and only {found} can be read", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Its length.
        expected: u64,
        /// Its length now.
        found: u64,
    },
    /// A file has other bytes than were written.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The difference.
        why: String,
    },
    /// A change of a state element is not one that the program reads.
    #[error(
        "{}: the change of key {key} cannot be read: {why}; resume with a program that reads it, or remove all files of the \
         directory and start the flow anew, without resuming",
        path.display()
    )]
    Change {
        /// The file.
        path: PathBuf,
        /// The key as text, or its bytes in hexadecimal.
        key: String,
        /// The program's error.
        why: String,
    },
    /// A change of a state element is larger than a file takes.
    #[error(
        "{}: a change has {bytes} bytes, and can have {bytes_max} at most; let the state keep smaller values",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size of the key and the value.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
}

millstream_base::debug_as_display!(CheckpointDirError);

/// Names the failed operation and its path.
pub fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> CheckpointDirError + 'a {
    move |error| CheckpointDirError::Io {
        action,
        path: path.to_owned(),
        error,
    }
}
