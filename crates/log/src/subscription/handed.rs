//! Chunks that a subscription hands out, and their absence.

use millstream_base::Offset;

use crate::error::LogError;
use crate::handle::readers::ReadChunks;

/// Chunks that are handed out.
#[derive(Debug, Clone)]
pub struct Handed {
    /// The lane: its number among those that were subscribed to, or among all of the stream.
    pub place: u32,
    /// Whole chunks. There may be none, where the subscription left out aborted ones.
    pub chunks: ReadChunks,
    /// Records before are in the first chunk, and were not asked for.
    pub from: Offset,
    /// The offset behind the last record.
    pub next: Offset,
    /// Up to where there was something to be handed out.
    pub end: Offset,
}

/// The result of asking a subscription for more.
#[derive(Debug)]
pub enum Next {
    /// These chunks.
    Handed(Handed),
    /// Something, for which there is no memory: other readers hold all that there is for catch-up reads, or for
    /// decompression.
    Busy,
    /// Nothing now.
    Nothing,
    /// Nothing more: see [`Subscription::end_at_head`](crate::Subscription::end_at_head).
    End,
}

/// Why a subscription cannot go on.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct SubscriptionError {
    /// The lane that it is about, as in [`Handed::place`].
    pub place: Option<u32>,
    /// The error. [`LogError::OffsetOutOfRange`] names the earliest offset, and
    /// [`LogError::CursorRemoved`] the earliest cursor.
    pub error: LogError,
}

impl From<LogError> for SubscriptionError {
    fn from(error: LogError) -> SubscriptionError {
        SubscriptionError { place: None, error }
    }
}
