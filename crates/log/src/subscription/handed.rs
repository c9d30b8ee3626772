//! Chunks that a subscription hands out, and their absence.

use millstream_base::Offset;

use crate::error::LogError;
use crate::handle::readers::ReadChunks;

/// Chunks that are handed out.
#[derive(Debug, Clone)]
pub struct Handed {
    /// The lane's number among the lanes of the subscription, or among all lanes of the stream.
    pub place: u32,
    /// Whole chunks. There may be none, if the subscription left out aborted or filtered ones.
    pub chunks: ReadChunks,
    /// The first wanted offset. The first chunk may hold records before it.
    pub from: Offset,
    /// The offset behind the last record.
    pub next: Offset,
    /// The end of the readable offsets.
    pub end: Offset,
}

/// The result of asking a subscription for more.
#[derive(Debug)]
pub enum Next {
    /// These chunks.
    Handed(Handed),
    /// There are chunks, but other readers hold all memory for catch-up reads or for decompression.
    Busy,
    /// There are no chunks now.
    Nothing,
    /// There will be no more chunks: see [`Subscription::end_at_head`](crate::Subscription::end_at_head).
    End,
}

/// The error that stops a lane of a subscription, or the subscription.
#[derive(Clone, thiserror::Error)]
#[error("{error}")]
pub struct SubscriptionError {
    /// The lane that failed, as in [`Handed::place`].
    pub place: Option<u32>,
    /// The error. [`LogError::OffsetOutOfRange`] names the earliest offset, and
    /// [`LogError::CursorRemoved`] the earliest cursor.
    pub error: LogError,
}

millstream_base::debug_as_display!(SubscriptionError);

impl From<LogError> for SubscriptionError {
    fn from(error: LogError) -> SubscriptionError {
        SubscriptionError { place: None, error }
    }
}
