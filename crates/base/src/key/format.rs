//! The bytes between the values of a key, and its bounds.

use super::error::KeyError;

/// Stands before each element of a sequence, unless the elements are bytes.
pub const ELEMENT: u8 = 1;

/// Ends text, bytes and sequences that are not at the end of the key.
pub const END: [u8; 2] = [0, 1];

/// Stands behind a zero byte of text or bytes that [`END`] ends. It is larger than the second byte of `END`, so longer text sorts later.
pub const ESCAPE: u8 = 0xff;

/// The bits of the one NaN that a key has.
pub const NAN_32: u32 = 0x7fc0_0000;
pub const NAN_64: u64 = 0x7ff8_0000_0000_0000;

/// Levels of a key: options, enums, tuples, sequences and newtypes within each other. It bounds the stack that a key of a
/// recursive type needs.
pub const LEVELS_MAX: u32 = 64;

/// Lowers the number of levels that may still follow.
pub fn below(levels: u32) -> Result<u32, KeyError> {
    levels.checked_sub(1).ok_or(KeyError::Levels)
}
