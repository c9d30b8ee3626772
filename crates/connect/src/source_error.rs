//! Errors of sources, the same in the process and over a server.

use std::sync::Arc;

use millstream_base::Offset;
use millstream_client::ClientError;
use millstream_log::LogError;
use millstream_record::ChunkError;

/// An error because of which a flow cannot continue to read a stream.
#[derive(Clone, thiserror::Error)]
pub enum SourceError {
    /// Reading failed.
    #[error("stream {stream}: {error}")]
    Read {
        /// The stream.
        stream: String,
        /// The reason.
        error: ReadError,
    },
    /// A partition lacks some of its records, or is read-only after a failure.
    #[error("stream {stream}, partition {partition}: {fault}")]
    Partition {
        /// The stream.
        stream: String,
        /// The partition's number in the stream.
        partition: u32,
        /// Why.
        fault: String,
    },
    /// A source of another kind saved the positions in a checkpoint.
    #[error(
        "stream {stream}: the checkpoint has its positions in another form ({error}): resume the flow with the program that \
         took the checkpoint, or begin anew"
    )]
    Unreadable {
        /// The stream.
        stream: String,
        /// The decoder's error.
        error: postcard::Error,
    },
    /// A checkpoint was taken of another stream.
    #[error("stream {stream} is not the one that the checkpoint is of: it was made again since")]
    Other {
        /// The stream.
        stream: String,
    },
    /// The stream no longer holds the records behind the checkpoint. A server that is away gives
    /// [`Read`](Self::Read) instead, after a while.
    #[error(
        "stream {stream}{}: the records behind the checkpoint cannot be read: {error}; to leave them out, begin anew",
        partition.map(|partition| format!(", partition {partition}")).unwrap_or_default()
    )]
    Gone {
        /// The stream.
        stream: String,
        /// The partition's number in the stream.
        partition: Option<u32>,
        /// The reason.
        error: ReadError,
    },
    /// A crash took back records that were read before the checkpoint, so other records have their offsets now.
    #[error(
        "stream {stream}, partition {partition}: a crash took back records before offset {offset}, which were read before \
         the checkpoint; to leave them out, begin anew"
    )]
    TakenBack {
        /// The stream.
        stream: String,
        /// The partition's number in the stream.
        partition: u32,
        /// The first offset that was not read before the checkpoint.
        offset: Offset,
    },
    /// The log keeps a shared group's positions itself.
    #[error(
        "stream {stream} is read as an application, which keeps itself how far it is: read it without one to take checkpoints"
    )]
    OfApplication {
        /// The stream.
        stream: String,
    },
    /// The records of a chunk contradict its header.
    #[error(
        "stream {stream}, partition {partition}, chunk with offset {offset}: {error}; it was stored as its producer sent it"
    )]
    Chunk {
        /// The stream.
        stream: String,
        /// The partition's number in the stream.
        partition: u32,
        /// The offset of its first record that cannot be read.
        offset: Offset,
        /// The contradiction.
        error: ChunkError,
    },
}

millstream_base::debug_as_display!(SourceError);

/// The error of a log, or of the client of a server.
#[derive(Clone, thiserror::Error)]
pub enum ReadError {
    /// An error of a log in the process.
    #[error(transparent)]
    Log(#[from] LogError),
    /// An error of a server.
    #[error(transparent)]
    Server(Arc<ClientError>),
}

millstream_base::debug_as_display!(ReadError);

impl From<ClientError> for ReadError {
    fn from(error: ClientError) -> ReadError {
        ReadError::Server(Arc::new(error))
    }
}

impl SourceError {
    pub(crate) fn read(stream: &str, error: impl Into<ReadError>) -> SourceError {
        SourceError::Read {
            stream: stream.to_owned(),
            error: error.into(),
        }
    }
}
