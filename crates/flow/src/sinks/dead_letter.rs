//! Items that a flow could not process.

use std::sync::Arc;
use std::task::Waker;

use millstream_base::{Offset, Timestamp};

use crate::error::BoxError;
use crate::sinks::sink::SinkStart;

/// The name by which dead letters are known to checkpoints, and to errors about them.
pub const DEAD_LETTERS: &str = "dead letters";

/// An item that made user code panic twice, or for which it returned an error, or that came too late for its windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The operator whose code failed, or for whose windows it came too late.
    pub operator: Arc<str>,
    /// The value of the record that the item was made of, as text: bytes that are no UTF-8 become U+FFFD. Where the
    /// flow does not know the record, or it has no value, this is the operator's argument as `Debug` prints it. Cut off
    /// after 64 KiB.
    pub item: String,
    /// The message of the panic, or the error; cut off after 64 KiB. Of a late item it begins with `late:`.
    pub error: String,
    /// The record that the item was made of; `None` where the flow does not know it: of items that do not come from a
    /// stream, and of those that have left the stage of their source.
    pub origin: Option<Arc<Origin>>,
}

impl DeadLetter {
    /// Its memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let origin = self.origin.as_deref();
        let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let record = origin.map_or(0, |origin| {
            let headers = origin.headers.iter();
            let headers = headers.map(|(name, value)| name.len() + len(value));
            size_of::<Origin>() + len(&origin.key) + len(&origin.value) + headers.sum::<usize>()
        });
        size_of::<DeadLetter>() + self.item.len() + self.error.len() + record
    }
}

/// A record of a stream, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The stream.
    pub stream: String,
    /// The partition's number.
    pub partition: u32,
    /// The record's number in the partition.
    pub offset: Offset,
    /// When it was made.
    pub timestamp: Timestamp,
    /// The primary key.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Option<Vec<u8>>,
    /// The headers, name and value, in the producer's order.
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Keeps dead letters. Without one a panic or an error of user code fails the flow, and late items are left out.
///
/// It may take part in checkpoints as a [sink](crate::Sink#exactly-once) does: then each letter is there once,
/// however often the flow is killed and resumes.
pub trait DeadLetters: Send + Sync + 'static {
    /// Keeps the letters that come of one item, or of several late ones. It may wait: dead letters are not meant to be
    /// many.
    ///
    /// # Errors
    /// Ends the flow.
    fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError>;

    /// Whether letters count only when they are [committed](DeadLetters::commit); as
    /// [`Sink::waits_for_commit`](crate::Sink::waits_for_commit).
    fn waits_for_commit(&self) -> bool {
        false
    }

    /// Begins: decides the letters that an earlier run has left; as [`Sink::recover`](crate::Sink::recover).
    ///
    /// # Errors
    /// When it cannot: the flow does not begin.
    fn recover(&self, _start: &SinkStart<'_>) -> Result<(), BoxError> {
        Ok(())
    }

    /// Ends the letters that belong to a checkpoint, and names them; as [`Sink::prepare`](crate::Sink::prepare).
    ///
    /// # Errors
    /// Ends the flow.
    fn prepare(&self, _checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        Ok(Vec::new())
    }

    /// Commits the letters of a checkpoint that is complete; as [`Sink::commit`](crate::Sink::commit).
    ///
    /// # Errors
    /// Ends the flow.
    fn commit(&self, _checkpoint: u64, _waker: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}
