//! Keys and values of records, byte for byte.
//!
//! A key begins with its kind; a value begins with its version, which is 1 unless its kind has later ones. Numbers are big-endian. Text and bytes
//! follow their length, a u32. An optional field follows a byte: 1 if it is present, 0 if it is missing. Durations are
//! u64 milliseconds; timestamps are i64 milliseconds since 1970.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use millstream_base::Timestamp;

use super::RecordError;

/// The first version of all values.
pub const VERSION: u8 = 1;

/// Writes a record's key or value.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Begins a key of this kind.
    pub fn key(kind: u8) -> Self {
        Writer(vec![kind])
    }

    /// Begins a value.
    pub fn value() -> Self {
        Writer::value_of(VERSION)
    }

    /// Begins a value of a later version.
    pub fn value_of(version: u8) -> Self {
        Writer(vec![version])
    }

    /// Takes all bytes written so far.
    pub fn done(&mut self) -> Bytes {
        std::mem::take(&mut self.0).into()
    }

    pub fn u8(&mut self, number: u8) -> &mut Self {
        self.0.put_u8(number);
        self
    }

    pub fn i16(&mut self, number: i16) -> &mut Self {
        self.0.put_i16(number);
        self
    }

    pub fn i32(&mut self, number: i32) -> &mut Self {
        self.0.put_i32(number);
        self
    }

    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.0.put_u32(number);
        self
    }

    pub fn i64(&mut self, number: i64) -> &mut Self {
        self.0.put_i64(number);
        self
    }

    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.0.put_u64(number);
        self
    }

    pub fn u128(&mut self, number: u128) -> &mut Self {
        self.0.put_u128(number);
        self
    }

    /// Writes a number that is mostly small: seven bits in each byte, the lowest first, and the eighth bit if more follow.
    pub fn varint(&mut self, mut number: u64) -> &mut Self {
        while number >= 1 << 7 {
            self.0.put_u8(number as u8 | 1 << 7);
            number >>= 7;
        }
        self.u8(number as u8)
    }

    /// Writes the number of items that follow. Every caller bounds it far below 2^32.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.u32(count as u32)
    }

    /// Writes bytes without their length: the reader knows it.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.put_slice(bytes);
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).raw(bytes)
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// Writes a duration in whole milliseconds.
    pub fn duration(&mut self, duration: Duration) -> &mut Self {
        self.u64(duration.as_millis().try_into().unwrap_or(u64::MAX))
    }

    pub fn timestamp(&mut self, timestamp: Timestamp) -> &mut Self {
        self.i64(timestamp.0)
    }

    pub fn option<T>(
        &mut self,
        value: &Option<T>,
        write: impl for<'w> FnOnce(&'w mut Self, &T) -> &'w mut Self,
    ) -> &mut Self {
        match value {
            None => self.u8(0),
            Some(value) => write(self.u8(1), value),
        }
    }
}

/// Reads a record's key or value. Nothing is allocated that the bytes do not justify.
#[derive(Debug)]
pub struct Reader(Bytes);

type Result<T> = std::result::Result<T, RecordError>;

impl Reader {
    /// Reads a key, from its kind on, to its end.
    pub fn key<T>(bytes: Bytes, read: impl FnOnce(&mut Reader) -> Result<T>) -> Result<T> {
        let mut reader = Reader(bytes);
        let read = read(&mut reader)?;
        match reader.0.len() {
            0 => Ok(read),
            bytes => Err(RecordError::TooLong { bytes }),
        }
    }

    /// Reads a value, from behind its version on, to its end.
    pub fn value<T>(bytes: Bytes, read: impl FnOnce(&mut Reader) -> Result<T>) -> Result<T> {
        Reader::value_up_to(VERSION, bytes, |_, reader| read(reader))
    }

    /// Reads a value of any version up to this one.
    pub fn value_up_to<T>(
        newest: u8,
        bytes: Bytes,
        read: impl FnOnce(u8, &mut Reader) -> Result<T>,
    ) -> Result<T> {
        Reader::key(bytes, |reader| match reader.u8("version")? {
            version if (VERSION..=newest).contains(&version) => read(version, reader),
            version => Err(RecordError::unknown("version", version)),
        })
    }

    /// Whether the record ends here: older records lack the fields that later versions added.
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8> {
        let number = self.0.try_get_u8();
        number.map_err(|_| RecordError::CutOff { field })
    }

    pub fn i16(&mut self, field: &'static str) -> Result<i16> {
        let number = self.0.try_get_i16();
        number.map_err(|_| RecordError::CutOff { field })
    }

    pub fn i32(&mut self, field: &'static str) -> Result<i32> {
        let number = self.0.try_get_i32();
        number.map_err(|_| RecordError::CutOff { field })
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        let number = self.0.try_get_u32();
        number.map_err(|_| RecordError::CutOff { field })
    }

    pub fn i64(&mut self, field: &'static str) -> Result<i64> {
        let number = self.0.try_get_i64();
        number.map_err(|_| RecordError::CutOff { field })
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64> {
        let number = self.0.try_get_u64();
        number.map_err(|_| RecordError::CutOff { field })
    }

    pub fn u128(&mut self, field: &'static str) -> Result<u128> {
        let number = self.0.try_get_u128();
        number.map_err(|_| RecordError::CutOff { field })
    }

    pub fn varint(&mut self, field: &'static str) -> Result<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8(field)?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 1 << 7 {
                return Ok(number);
            }
        }
        Err(RecordError::Invalid { field })
    }

    /// Reads the number of items that follow. Callers must not allocate by it: corrupt bytes may hold any number.
    pub fn count(&mut self, field: &'static str) -> Result<u32> {
        self.u32(field)
    }

    pub fn raw(&mut self, bytes: usize, field: &'static str) -> Result<Bytes> {
        if self.0.len() < bytes {
            return Err(RecordError::CutOff { field });
        }
        Ok(self.0.split_to(bytes))
    }

    pub fn bytes(&mut self, field: &'static str) -> Result<Bytes> {
        let bytes = self.u32(field)? as usize;
        self.raw(bytes, field)
    }

    /// Reads a text as any text type.
    pub fn text<T: From<Arc<str>>>(&mut self, field: &'static str) -> Result<T> {
        let bytes = self.bytes(field)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| RecordError::NotText { field })?;
        Ok(T::from(Arc::from(text)))
    }

    /// Reads a text and parses it.
    pub fn parsed<T: FromStr>(&mut self, field: &'static str) -> Result<T> {
        let text: Arc<str> = self.text(field)?;
        text.parse().map_err(|_| RecordError::Invalid { field })
    }

    /// Reads a number and converts it to the value that it stands for.
    pub fn code<T>(&mut self, field: &'static str, known: fn(i8) -> Option<T>) -> Result<T> {
        let value = self.u8(field)?;
        let code = i8::try_from(value).ok().and_then(known);
        code.ok_or(RecordError::unknown(field, value))
    }

    pub fn duration(&mut self, field: &'static str) -> Result<Duration> {
        Ok(Duration::from_millis(self.u64(field)?))
    }

    pub fn timestamp(&mut self, field: &'static str) -> Result<Timestamp> {
        Ok(Timestamp(self.i64(field)?))
    }

    pub fn bool(&mut self, field: &'static str) -> Result<bool> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(RecordError::unknown(field, value)),
        }
    }

    pub fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self, &'static str) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.bool(field)? {
            false => Ok(None),
            true => Ok(Some(read(self, field)?)),
        }
    }
}
