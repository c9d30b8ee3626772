//! The primitives of records.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use millstream_base::Timestamp;

use super::{RecordError, unknown};

/// Writes a record's key or value.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Begins with the kind of a key, or the version of a value.
    pub fn new(first: u8) -> Self {
        Writer(vec![first])
    }

    pub fn done(self) -> Bytes {
        self.0.into()
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

    pub fn i64(&mut self, number: i64) -> &mut Self {
        self.0.put_i64(number);
        self
    }

    /// How many there are of what follows, or bytes of a text: bounded far below 2^32.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.0.put_u32(count as u32);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.count(text.len());
        self.0.put_slice(text.as_bytes());
        self
    }

    /// In whole milliseconds.
    pub fn duration(&mut self, duration: Duration) -> &mut Self {
        let millis = duration.as_millis().try_into().unwrap_or(u64::MAX);
        self.0.put_u64(millis);
        self
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
    pub fn new(bytes: Bytes) -> Self {
        Reader(bytes)
    }

    /// Nothing may be left.
    pub fn done(self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            bytes => Err(RecordError::TooLong { bytes }),
        }
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8> {
        self.0
            .try_get_u8()
            .map_err(|_| RecordError::CutOff { field })
    }

    pub fn i16(&mut self, field: &'static str) -> Result<i16> {
        self.0
            .try_get_i16()
            .map_err(|_| RecordError::CutOff { field })
    }

    pub fn i32(&mut self, field: &'static str) -> Result<i32> {
        self.0
            .try_get_i32()
            .map_err(|_| RecordError::CutOff { field })
    }

    pub fn i64(&mut self, field: &'static str) -> Result<i64> {
        self.0
            .try_get_i64()
            .map_err(|_| RecordError::CutOff { field })
    }

    /// How many there are of what follows; nothing may be allocated for it, since it may be anything.
    pub fn count(&mut self, field: &'static str) -> Result<u32> {
        self.0
            .try_get_u32()
            .map_err(|_| RecordError::CutOff { field })
    }

    /// Any of the texts in their types.
    pub fn text<T: From<Arc<str>>>(&mut self, field: &'static str) -> Result<T> {
        let bytes = self.count(field)? as usize;
        if self.0.len() < bytes {
            return Err(RecordError::CutOff { field });
        }
        let bytes = self.0.split_to(bytes);
        let text = std::str::from_utf8(&bytes).map_err(|_| RecordError::NotText { field })?;
        Ok(T::from(Arc::from(text)))
    }

    pub fn duration(&mut self, field: &'static str) -> Result<Duration> {
        let millis = self
            .0
            .try_get_u64()
            .map_err(|_| RecordError::CutOff { field })?;
        Ok(Duration::from_millis(millis))
    }

    pub fn timestamp(&mut self, field: &'static str) -> Result<Timestamp> {
        Ok(Timestamp(self.i64(field)?))
    }

    pub fn bool(&mut self, field: &'static str) -> Result<bool> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(unknown(field, value)),
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
