//! The input of the decoders: a frame whose lengths are checked before a decoder trusts them.
//!
//! The generated decoders reserve memory for as many elements as an array announces, and a frame of
//! a few bytes can announce four billion. They read through [`Input`], which knows what a length can
//! be:
//!
//! - **Flexible versions** have all lengths as varints, and nothing else. One that is larger than
//!   what is left of the frame is refused. (So is a tag of 128 or more near the end of a frame. No
//!   such tag exists.)
//! - **Older versions** have lengths as 16- or 32-bit integers among other integers. A 32-bit
//!   integer that is too large for a length is given out as the smallest number that is still too
//!   large: if it is a length, the array runs into the end of the frame. If nothing does, all such
//!   integers were ordinary fields, and the message is decoded once more as it is.
//! - **An element is at least one field**, and fields are counted. So an array cannot announce more
//!   than the fields that are left, while strings and bytes can: they are slices of the frame.
//!
//! So memory is reserved for no more elements than the frame has bytes, nor more than
//! [`REQUEST_FIELDS_MAX`] or [`RESPONSE_FIELDS_MAX`]; only what is less than 128 goes unchecked. And
//! there is no recursion, nor any array whose elements take no bytes.

use bytes::{Buf, Bytes, TryGetError};
use kafka_protocol::protocol::Decodable;
use kafka_protocol::protocol::buf::{ByteBuf, NotEnoughBytesError};

use crate::error::Malformed;

/// The most fields that a request may have: a fetch of 140,000 partitions. What it decodes to takes
/// up to about 100 bytes for each.
pub const REQUEST_FIELDS_MAX: usize = 1 << 20;

/// The most fields that a response may have: the metadata of 600,000 partitions.
pub const RESPONSE_FIELDS_MAX: usize = 1 << 23;

/// The most bytes of a varint of 32 bits.
const VARINT_BYTES_MAX: usize = 5;

/// How many fields a message may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldsMax(pub usize);

/// How a version writes the lengths of strings, bytes and arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// As varints, plus one: flexible versions.
    Compact,
    /// As 16- or 32-bit integers.
    Fixed,
    /// The same, after it turned out that none is too large.
    FixedAndChecked,
}

/// A frame, or the rest of it.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    bytes: Bytes,
    size: usize,
    lengths: Lengths,
    fields_left: usize,
    /// Bytes of a varint that are still to be given out.
    varint: Varint,
    /// A number that was given out smaller than it is.
    shortened: Option<Shortened>,
    /// Whether an integer was given out smaller than it is.
    doubtful: bool,
    /// Why a read failed, where that is more than that bytes are missing.
    fault: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Shortened {
    given: usize,
    real: usize,
    /// Whether it is known to be a length, of bytes, which come next.
    is_length: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Varint {
    bytes: [u8; VARINT_BYTES_MAX],
    next: usize,
    end: usize,
}

impl Iterator for Varint {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes[..self.end].get(self.next).copied()?;
        self.next += 1;
        Some(byte)
    }
}

impl Input {
    pub(crate) fn new(bytes: Bytes, lengths: Lengths, fields_max: FieldsMax) -> Input {
        Input {
            size: bytes.len(),
            bytes,
            lengths,
            fields_left: fields_max.0,
            varint: Varint::default(),
            shortened: None,
            doubtful: false,
            fault: None,
        }
    }

    /// Decodes one of the generated messages, and leaves the bytes after it.
    pub(crate) fn message<T: Decodable>(&mut self, version: i16) -> Result<T, Malformed> {
        let start = self.clone();
        let mut decoded = T::decode(self, version);
        if decoded.is_ok() {
            // What it says is in `fault`.
            let _ = self.end_field();
        }
        if decoded.is_ok() && self.fault.is_none() && self.doubtful {
            // Nothing ran into the end of the frame, so no large integer was a length.
            *self = start;
            self.lengths = Lengths::FixedAndChecked;
            decoded = T::decode(self, version);
            self.lengths = Lengths::Fixed;
        }
        match (decoded, self.fault.take()) {
            (Ok(message), None) => Ok(message),
            (_, Some(what)) => Err(self.malformed(what)),
            (Err(error), None) => Err(self.malformed(error.to_string().trim())),
        }
    }

    pub(crate) fn set_lengths(&mut self, lengths: Lengths) {
        self.lengths = lengths;
    }

    /// Why the last read failed, if it was not only that bytes are missing.
    pub(crate) fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// Checks that nothing is left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(self.malformed(format!("{left} bytes are left behind the message"))),
        }
    }

    pub(crate) fn malformed(&self, what: impl Into<String>) -> Malformed {
        Malformed {
            position: self.size - self.bytes.len(),
            what: what.into(),
        }
    }

    /// Notes why reading fails; the generated decoders pass only this on.
    fn fail(&mut self, what: impl Into<String>) -> TryGetError {
        self.fault.get_or_insert(what.into());
        TryGetError {
            requested: 0,
            available: 0,
        }
    }

    /// The field before was no length of bytes, and not only a part of a varint.
    fn end_field(&mut self) -> Result<(), TryGetError> {
        match self.shortened.take() {
            Some(field) if field.is_length => return Err(self.fail(too_many_fields())),
            Some(_) => self.doubtful = true,
            None => {}
        }
        if self.varint.next < self.varint.end {
            return Err(self.fail("a varint begins where none is expected"));
        }
        Ok(())
    }

    /// One more field begins.
    fn field(&mut self) -> Result<(), TryGetError> {
        self.end_field()?;
        self.fields_left = match self.fields_left.checked_sub(1) {
            Some(left) => left,
            None => return Err(self.fail(too_many_fields())),
        };
        Ok(())
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], TryGetError> {
        self.field()?;
        let Some(value) = self.bytes.first_chunk().copied() else {
            return Err(TryGetError {
                requested: N,
                available: self.bytes.len(),
            });
        };
        self.bytes.advance(N);
        Ok(value)
    }

    /// Takes a whole varint, and has its bytes given out one by one: as they are, or, if only bytes
    /// can be so long, those of the length of nothing.
    fn varint(&mut self) -> Result<u8, TryGetError> {
        let mut first_bytes = self.bytes.iter().take(VARINT_BYTES_MAX);
        let Some(last) = first_bytes.position(|byte| *byte < 0x80) else {
            return Err(self.fail("a varint does not end within 5 bytes"));
        };
        let mut varint = Varint {
            end: last + 1,
            ..Varint::default()
        };
        let bytes = &mut varint.bytes[..=last];
        bytes.copy_from_slice(&self.bytes[..=last]);
        self.bytes.advance(last + 1);
        let value = bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
        // In its shortest form it is at least as large as any number that ends with it, which is what
        // the decoder finds if the first byte was a boolean.
        if bytes[last] == 0 || value > u64::from(u32::MAX) {
            return Err(self.fail("a varint is not in its shortest form, or too large"));
        }
        let value = value as usize;
        if value > self.bytes.len() + 1 {
            let left = self.bytes.len();
            return Err(self.fail(format!("a length of {value}, but {left} bytes are left")));
        }
        if value > self.fields_left + 1 {
            bytes.fill(0x80);
            bytes[0] = 0x81;
            bytes[last] = 0;
            self.shortened = Some(Shortened {
                given: 0,
                real: value - 1,
                is_length: true,
            });
        }
        self.varint = varint;
        self.varint
            .next()
            .ok_or_else(|| self.fail("an empty varint"))
    }

    fn take(&mut self, size: usize) -> Result<Bytes, NotEnoughBytesError> {
        let size = match self.shortened.take_if(|length| length.given == size) {
            Some(length) => length.real,
            None => size,
        };
        if self.field().is_err() || size > self.bytes.len() {
            return Err(NotEnoughBytesError);
        }
        Ok(self.bytes.split_to(size))
    }
}

fn too_many_fields() -> String {
    "there are too many fields".to_owned()
}

impl Buf for Input {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    fn try_get_u8(&mut self) -> Result<u8, TryGetError> {
        if let Some(byte) = self.varint.next() {
            return Ok(byte);
        }
        match self.bytes.first() {
            // A boolean is never that large. One that is would be taken for a part of the varint
            // behind it, whose value is then no larger than what is checked here.
            Some(first) if *first >= 0x80 && self.lengths == Lengths::Compact => {
                self.field()?;
                self.varint()
            }
            _ => self.fixed::<1>().map(|[byte]| byte),
        }
    }

    fn try_get_i8(&mut self) -> Result<i8, TryGetError> {
        self.fixed().map(i8::from_be_bytes)
    }

    fn try_get_i16(&mut self) -> Result<i16, TryGetError> {
        self.fixed().map(i16::from_be_bytes)
    }

    fn try_get_u16(&mut self) -> Result<u16, TryGetError> {
        self.fixed().map(u16::from_be_bytes)
    }

    fn try_get_i32(&mut self) -> Result<i32, TryGetError> {
        let value = i32::from_be_bytes(self.fixed()?);
        let length_max = self.bytes.len().min(self.fields_left);
        match usize::try_from(value) {
            Ok(real) if self.lengths == Lengths::Fixed && real > length_max => {
                let given = length_max + 1;
                self.shortened = Some(Shortened {
                    given,
                    real,
                    is_length: false,
                });
                Ok(i32::try_from(given).unwrap_or(value))
            }
            _ => Ok(value),
        }
    }

    fn try_get_u32(&mut self) -> Result<u32, TryGetError> {
        self.fixed().map(u32::from_be_bytes)
    }

    fn try_get_i64(&mut self) -> Result<i64, TryGetError> {
        self.fixed().map(i64::from_be_bytes)
    }

    fn try_get_u64(&mut self) -> Result<u64, TryGetError> {
        self.fixed().map(u64::from_be_bytes)
    }

    fn try_get_f64(&mut self) -> Result<f64, TryGetError> {
        self.fixed().map(f64::from_be_bytes)
    }

    fn try_copy_to_slice(&mut self, target: &mut [u8]) -> Result<(), TryGetError> {
        self.field()?;
        if target.len() > self.bytes.len() {
            return Err(TryGetError {
                requested: target.len(),
                available: self.bytes.len(),
            });
        }
        self.bytes.copy_to_slice(target);
        Ok(())
    }
}

impl ByteBuf for Input {
    fn peek_bytes(&mut self, range: std::ops::Range<usize>) -> Bytes {
        self.bytes.slice(range)
    }

    fn get_bytes(&mut self, size: usize) -> Bytes {
        self.bytes.split_to(size)
    }

    fn try_get_bytes(&mut self, size: usize) -> Result<Bytes, NotEnoughBytesError> {
        self.take(size)
    }
}
