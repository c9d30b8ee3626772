//! Look-ups of keys: each waits for indexes and threads without memory, then takes the memory of its answer and reads.

use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{LogError, StreamPartition};
use millstream_wire::native::Answer;
use millstream_wire::{Response, ResponseError, SHARED_BYTES_MIN};

use super::not_done;
use crate::answer_memory::{AnswerMemory, AnswerRoom, Part};
use crate::broker::Broker;
use crate::client::Client;
use crate::key_reads::KeyReads;
use crate::native::refused::Refused;
use crate::reply::Reply;

/// About the most bytes of keys and values in one answer: they are copies, for which there is little memory.
pub const COPIED_BYTES_MAX: usize = 4 << 20;

/// An answer's own memory.
pub const ANSWER_BYTES: usize = 2 << 10;

/// The memory of a key in an answer, beside its bytes and its value's: numbers, and a piece that is written from its place.
pub const KEY_OVERHEAD_BYTES: usize = 512;

/// The memory of a header in an answer, beside its bytes.
pub const HEADER_OVERHEAD_BYTES: usize = 256;

/// A look-up whose request is valid.
pub trait LookUp: Send + Sync + 'static {
    type Answer: Answer + Into<Response> + Send + 'static;

    /// Returns the partitions whose keys it reads.
    fn partitions(&self) -> Vec<StreamPartition>;

    /// Returns the name of the index of secondary keys that it reads, if it reads one.
    fn index(&self) -> Option<&str> {
        None
    }

    /// Returns whether it looks for older versions, for which there are few threads.
    fn is_older(&self) -> bool {
        false
    }

    /// Returns the memory that the answer takes at first.
    fn bytes(&self) -> usize;

    /// Reads, and builds an answer that the memory of `room` covers.
    fn read(&self, room: &mut AnswerRoom) -> Result<Self::Answer, Unread>;
}

/// The reason why a look-up has no result.
pub enum Unread {
    Refused(Refused),
    /// There is not enough memory now for the answer, which has this size.
    NeedsMemory(usize),
}

impl From<LogError> for Unread {
    fn from(error: LogError) -> Unread {
        Unread::Refused(refused_read(error))
    }
}

/// Returns the most bytes of keys and values in the answer to a client that asks for at most `asked` bytes.
pub fn bytes_max(client: &Client, asked: u32) -> usize {
    let bytes = (asked as usize).min(client.answer_bytes_max());
    bytes.min(COPIED_BYTES_MAX)
}

/// Replies with the answer to a look-up.
pub fn reply<L: LookUp>(broker: &Broker, look_up: L) -> Reply {
    let (reads, answers) = (Arc::clone(broker.key_reads()), Arc::clone(broker.answers()));
    Reply::counted(async move { answer(Arc::new(look_up), &reads, &answers).await })
}

/// Answers a look-up when its indexes have read on, and there are a thread and memory for it.
pub async fn answer<L: LookUp>(
    look_up: Arc<L>,
    reads: &KeyReads,
    answers: &AnswerMemory,
) -> (L::Answer, AnswerRoom) {
    let partitions = look_up.partitions();
    let mut bytes = look_up.bytes();
    loop {
        // A request that waits for a rebuild, or for a thread that reads much, holds no memory.
        reads.catch_up(&partitions).await;
        if let Some(index) = look_up.index() {
            reads.catch_up_secondary(&partitions, index).await;
        }
        let thread = match look_up.is_older() {
            true => reads.thread_for_older().await,
            false => None,
        };
        let mut room = answers.take(Part::Late, bytes).await;
        let look_up = Arc::clone(&look_up);
        let read = move || match look_up.read(&mut room) {
            Ok(answer) => Ok((answer, room)),
            Err(Unread::Refused(refused)) => Ok((refused.answer(), room)),
            Err(Unread::NeedsMemory(bytes)) => Err(bytes),
        };
        let read = match thread {
            Some(thread) => thread.run(read).await,
            None => reads.run(read).await,
        };
        match read {
            Some(Ok(answer)) => return answer,
            Some(Err(needed)) => bytes = needed,
            None => {
                let room = answers.take(Part::Late, ANSWER_BYTES).await;
                return (not_done().answer(), room);
            }
        }
    }
}

/// The memory of an answer, as its elements are counted.
#[derive(Debug, Clone, Copy)]
pub struct AnswerBytes {
    /// Large values, which hold their memory until they are written.
    values: usize,
    /// All the rest.
    rest: usize,
}

impl AnswerBytes {
    /// Counts an answer of this size beside its values.
    pub fn new(rest: usize) -> AnswerBytes {
        AnswerBytes { values: 0, rest }
    }

    /// Adds numbers, names and keys.
    pub fn add(&mut self, bytes: usize) {
        self.rest += bytes;
    }

    /// Adds the value of a key, a version or a header.
    pub fn add_value(&mut self, value: &[u8]) {
        match value.len() {
            large @ SHARED_BYTES_MIN.. => self.values += large,
            _ => self.rest += bytes_in_answer(value),
        }
    }

    /// Returns the size of the answer so far.
    pub fn total(&self) -> usize {
        self.rest + self.values
    }

    /// Takes the memory of the answer with these values.
    pub fn take<'a>(
        self,
        room: &mut AnswerRoom,
        values: impl Iterator<Item = &'a mut Bytes>,
    ) -> Result<(), Unread> {
        if !room.grow(self.total()) {
            return Err(Unread::NeedsMemory(self.total()));
        }
        hold_values(room, self.rest, values);
        Ok(())
    }
}

/// The error of a look-up.
pub fn refused_read(error: LogError) -> Refused {
    match error {
        LogError::ReadBudget | LogError::DecompressionBusy { .. } => {
            Refused::new(ResponseError::ThrottlingQuotaExceeded, error.to_string())
        }
        error => error.into(),
    }
}

/// Returns the memory that bytes take in an answer. Small ones are there twice: also in the encoded answer.
pub fn bytes_in_answer(bytes: &[u8]) -> usize {
    match bytes.len() {
        small @ 0..SHARED_BYTES_MIN => 2 * small,
        large => large,
    }
}

/// Lets large values hold their memory until they are written. They are the part of `room` beyond `rest` bytes.
fn hold_values<'a>(
    room: &mut AnswerRoom,
    rest: usize,
    values: impl Iterator<Item = &'a mut Bytes>,
) {
    let mut held = None;
    for value in values.filter(|value| value.len() >= SHARED_BYTES_MIN) {
        let room = held.get_or_insert_with(|| Arc::new(room.split_off(rest)));
        *value = Bytes::from_owner(HeldValue {
            value: std::mem::take(value),
            _room: Arc::clone(room),
        });
    }
}

/// A value with the memory that its answer has taken for it.
struct HeldValue {
    value: Bytes,
    _room: Arc<AnswerRoom>,
}

impl AsRef<[u8]> for HeldValue {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}
