//! The input of the decoders: a frame whose lengths are checked before a decoder trusts them.
//!
//! The generated decoders reserve memory for as many elements as an array announces, and a frame of
//! a few bytes can announce four billion. They read through [`Input`], which bounds every length:
//!
//! - **Flexible versions** write all lengths as varints, and use varints for lengths and tags only.
//!   `Input` refuses a varint that is larger than the rest of the frame. (It also refuses a tag of 128
//!   or more near the end of a frame. No such tag exists.)
//! - **Older versions** write lengths as 16- or 32-bit integers among other integers. If a 32-bit
//!   integer is too large for a length, `Input` returns the smallest number that is still too large.
//!   If the integer is a length, the array then runs into the end of the frame. If no array does, all
//!   of these integers were ordinary fields, and `Input` decodes the message again with their real values.
//! - **An element is at least one field**, and `Input` counts fields. So an array cannot announce more
//!   elements than fields remain. Strings and bytes can be longer: they are slices of the frame.
//!
//! So decoders reserve memory for at most as many elements as the frame has bytes, and for at most
//! [`REQUEST_FIELDS_MAX`] or [`RESPONSE_FIELDS_MAX`]; only lengths below 128 are unchecked. The
//! messages have no recursion, and no array whose elements take no bytes.

use bytes::{Buf, Bytes, TryGetError};
use kafka_protocol::protocol::Decodable;
use kafka_protocol::protocol::buf::{ByteBuf, NotEnoughBytesError};

use crate::error::Malformed;

/// The most fields that a request may have: a fetch of 140,000 partitions.
pub const REQUEST_FIELDS_MAX: usize = 1 << 20;

/// The bytes that a decoded field takes up to, about.
pub const FIELD_BYTES: usize = 100;

/// The most fields that a response may have: the metadata of 600,000 partitions.
pub const RESPONSE_FIELDS_MAX: usize = 1 << 23;

/// The most bytes of a varint of 32 bits.
const VARINT_BYTES_MAX: usize = 5;

/// The most fields of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldsMax(pub usize);

/// The encoding of the lengths of strings, bytes and arrays in a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// Varints of the length plus one: flexible versions.
    Compact,
    /// 16- or 32-bit integers.
    Fixed,
    /// The same, after a first pass found that none is too large.
    FixedAndChecked,
}

/// A frame, or the rest of it.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    bytes: Bytes,
    size: usize,
    lengths: Lengths,
    fields_left: usize,
    /// The bytes of a varint that the decoder has not read yet.
    varint: Varint,
    /// The last number, if the decoder got a smaller one than the frame has.
    shortened: Option<Shortened>,
    /// Whether the decoder got a smaller integer than the frame has.
    doubtful: bool,
    /// The reason of a failed read; `None` if bytes are missing.
    fault: Option<String>,
    /// The version of a native message. Set before it is decoded.
    version: i16,
}

#[derive(Debug, Clone, Copy)]
struct Shortened {
    given: usize,
    real: usize,
    /// Whether it is certainly a length; its bytes follow.
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
            version: 0,
        }
    }

    /// Returns how many fields of a request have been read.
    pub(crate) fn request_fields(&self) -> usize {
        REQUEST_FIELDS_MAX - self.fields_left
    }

    /// Returns the version of the native message that is decoded.
    pub(crate) fn version(&self) -> i16 {
        self.version
    }

    pub(crate) fn set_version(&mut self, version: i16) {
        self.version = version;
    }

    /// Decodes one of the generated messages, and leaves the bytes behind it.
    pub(crate) fn message<T: Decodable>(&mut self, version: i16) -> Result<T, Malformed> {
        let start = self.clone();
        let mut decoded = T::decode(self, version);
        if decoded.is_ok() {
            // The reason is in `fault`.
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

    /// Returns the reason why the last read failed; `None` if bytes are missing.
    pub(crate) fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// Checks that the frame has no more bytes.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(self.malformed(format!("{left} bytes follow the message"))),
        }
    }

    pub(crate) fn malformed(&self, what: impl Into<String>) -> Malformed {
        Malformed {
            position: self.size - self.bytes.len(),
            what: what.into(),
        }
    }

    /// Records why a read fails, since the generated decoders do not pass reasons on.
    fn fail(&mut self, what: impl Into<String>) -> TryGetError {
        self.fault.get_or_insert(what.into());
        TryGetError {
            requested: 0,
            available: 0,
        }
    }

    /// Checks that the previous field was no length of bytes, and that the decoder has read its whole varint.
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

    /// Begins the next field, and counts it.
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

    /// Takes a whole varint, and returns its first byte; the decoder reads the others one by one. If the
    /// length is possible for bytes only, the decoder gets the varint of an empty array instead.
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
        // If the first byte was a boolean, the decoder finds only the end of this varint. In its shortest
        // form, the varint is at least as large as any number that its last bytes form.
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
            // A valid boolean is never this large. `varint` treats an invalid one as the first byte of the
            // varint behind it, and that varint's value is at most the value that `varint` checks.
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
