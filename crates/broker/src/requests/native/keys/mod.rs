//! Records of keyed streams, by their keys.

mod change;
mod find;
mod get;
mod history;
mod put;
mod scan;
mod secondary;
mod together;

use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{KEY_BYTES_MAX, LogError};
use millstream_wire::native::KeyVersion;
use millstream_wire::{ResponseError, SHARED_BYTES_MIN};

use crate::answer_memory::AnswerRoom;
use crate::native::refused::Refused;

/// The most keys of one request.
const KEYS_MAX: usize = 1024;

/// About the most bytes of keys and values in one answer: they are copies, for which there is little memory.
const COPIED_BYTES_MAX: usize = 4 << 20;

/// An answer's own memory.
const ANSWER_BYTES: usize = 2 << 10;

/// The memory of a key in an answer, beside its bytes and its value's: numbers, and a piece that is written from its place.
const KEY_OVERHEAD_BYTES: usize = 512;

fn check_key(key: &[u8]) -> Result<(), Refused> {
    match key.len() {
        0..=KEY_BYTES_MAX => Ok(()),
        bytes => Err(Refused::new(
            ResponseError::InvalidRequest,
            format!("the key has {bytes} bytes, and may have at most {KEY_BYTES_MAX}"),
        )),
    }
}

/// The error of a look-up.
fn refused_read(error: LogError) -> Refused {
    match error {
        LogError::ReadBudget | LogError::DecompressionBusy { .. } => {
            Refused::new(ResponseError::ThrottlingQuotaExceeded, error.to_string())
        }
        error => error.into(),
    }
}

/// The error of a request that ended without a result.
pub fn not_done() -> Refused {
    Refused::new(
        ResponseError::UnknownServerError,
        "the request was not carried out: see the log of the server",
    )
}

fn wire_version(version: millstream_log::KeyVersion) -> KeyVersion {
    KeyVersion {
        version: version.offset,
        timestamp: version.timestamp,
        value: version.value,
        expires_at: version.expires_at,
    }
}

/// Returns the memory that bytes take in an answer. Small ones are there twice: also in the encoded answer.
fn bytes_in_answer(bytes: &[u8]) -> usize {
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
