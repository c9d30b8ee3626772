//! The errors of ranks and channels.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::credit::MESSAGE_BYTES_MAX;

/// The length, in bytes, to which the message of a failure is truncated.
pub const FAILURE_BYTES_MAX: usize = 4096;

/// The reason why the ranks cannot begin or continue.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExchangeError {
    /// A rank, perhaps this one, has aborted all ranks.
    #[error("rank {rank}: {message}")]
    Failed {
        /// The rank that failed.
        rank: u32,
        /// The reason.
        message: Arc<str>,
    },
    /// [`Ranks::leave`](crate::Ranks::leave) was called before.
    #[error("this rank has left, so it cannot send any more")]
    Left,
    /// The process was started as one of several, with which it could only talk through MPI.
    #[error(
        "{variable} shows that this is one of {tasks} tasks, but the program was built without MPI: \
         build it with `--features mpi`, or start it only once"
    )]
    WithoutMpi {
        /// The environment variable that the launcher has set.
        variable: &'static str,
        /// The number of tasks.
        tasks: u32,
    },
    /// MPI could not begin.
    #[error("MPI: {message}")]
    Mpi {
        /// The fault.
        message: Arc<str>,
    },
}

/// The reason why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SendError {
    /// There is no credit for it now. The sender's waker is woken when credit comes back.
    #[error("the channel has no credit for {} bytes now: send them when its waker is woken", .0.len())]
    Full(Bytes),
    /// It is longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {} bytes is longer than {MESSAGE_BYTES_MAX}: send it in parts", .0.len())]
    TooLong(Bytes),
    /// This rank has left, or a rank has failed: sending has ended.
    #[error(transparent)]
    Ended(#[from] ExchangeError),
}

/// The failure of a rank, with its reason: the ranks send it to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub rank: u32,
    pub message: Arc<str>,
}

impl Failure {
    pub fn new(rank: u32, message: &str) -> Failure {
        Failure {
            rank,
            message: cut(message, FAILURE_BYTES_MAX).into(),
        }
    }
}

impl From<Failure> for ExchangeError {
    fn from(Failure { rank, message }: Failure) -> Self {
        ExchangeError::Failed { rank, message }
    }
}

/// Returns the beginning of a text, at most `bytes_max` long.
pub fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
