//! The primitives of records: numbers are big-endian; text and bytes have their length before them; what
//! may be missing has a byte before it that is 1 or 0.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use millstream_base::Timestamp;

use super::RecordError;

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

    pub fn i32(&mut self, number: i32) -> &mut Self {
        self.0.put_i32(number);
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

    /// How many there are of what follows; as [`bytes`](Self::bytes), bounded far below 2^32.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.0.put_u32(count as u32);
        self
    }

    /// At most 2^32 - 1 bytes: everything that comes here was bounded far below.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.put_u32(bytes.len() as u32);
        self.0.put_slice(bytes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// In whole milliseconds.
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

    fn need(&self, bytes: usize, field: &'static str) -> Result<()> {
        if self.0.len() < bytes {
            return Err(RecordError::CutOff { field });
        }
        Ok(())
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8> {
        self.need(1, field)?;
        Ok(self.0.get_u8())
    }

    pub fn i32(&mut self, field: &'static str) -> Result<i32> {
        self.need(4, field)?;
        Ok(self.0.get_i32())
    }

    pub fn i64(&mut self, field: &'static str) -> Result<i64> {
        self.need(8, field)?;
        Ok(self.0.get_i64())
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64> {
        self.need(8, field)?;
        Ok(self.0.get_u64())
    }

    pub fn u128(&mut self, field: &'static str) -> Result<u128> {
        self.need(16, field)?;
        Ok(self.0.get_u128())
    }

    /// How many there are of what follows; nothing may be allocated for it, since it may be anything.
    pub fn count(&mut self, field: &'static str) -> Result<u32> {
        self.need(4, field)?;
        Ok(self.0.get_u32())
    }

    pub fn bytes(&mut self, field: &'static str) -> Result<Bytes> {
        self.need(4, field)?;
        let bytes = self.0.get_u32() as usize;
        self.need(bytes, field)?;
        Ok(self.0.split_to(bytes))
    }

    /// Any of the texts in their types.
    pub fn text<T: From<Arc<str>>>(&mut self, field: &'static str) -> Result<T> {
        let bytes = self.bytes(field)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| RecordError::NotText { field })?;
        Ok(T::from(Arc::from(text)))
    }

    pub fn duration(&mut self, field: &'static str) -> Result<Duration> {
        Ok(Duration::from_millis(self.u64(field)?))
    }

    pub fn timestamp(&mut self, field: &'static str) -> Result<Timestamp> {
        Ok(Timestamp(self.i64(field)?))
    }

    pub fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self, &'static str) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.u8(field)? {
            0 => Ok(None),
            1 => Ok(Some(read(self, field)?)),
            value => Err(RecordError::Unknown { field, value }),
        }
    }
}
