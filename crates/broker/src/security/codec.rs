//! The primitives of records.

use bytes::{Buf, BufMut, Bytes};

use super::record::RecordError;

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

    pub fn u8(mut self, number: u8) -> Self {
        self.0.put_u8(number);
        self
    }

    pub fn u32(mut self, number: u32) -> Self {
        self.0.put_u32(number);
        self
    }

    /// As many as the reader expects.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.put_slice(bytes);
        self
    }

    /// At most 2^16 - 1 bytes: names and salts are bounded far below.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.put_u16(bytes.len() as u16);
        self.raw(bytes)
    }

    pub fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }
}

/// Reads a record's key or value.
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

    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        self.0
            .try_get_u32()
            .map_err(|_| RecordError::CutOff { field })
    }

    pub fn raw(&mut self, bytes: usize, field: &'static str) -> Result<Bytes> {
        if self.0.len() < bytes {
            return Err(RecordError::CutOff { field });
        }
        Ok(self.0.split_to(bytes))
    }

    pub fn bytes(&mut self, field: &'static str) -> Result<Bytes> {
        let bytes = self.0.try_get_u16();
        let bytes = bytes.map_err(|_| RecordError::CutOff { field })?;
        self.raw(bytes.into(), field)
    }

    pub fn text(&mut self, field: &'static str) -> Result<String> {
        let bytes = self.bytes(field)?.to_vec();
        String::from_utf8(bytes).map_err(|_| RecordError::Invalid { field })
    }

    /// What the text means.
    pub fn parsed<T: std::str::FromStr>(&mut self, field: &'static str) -> Result<T> {
        let text = self.text(field)?;
        text.parse().map_err(|_| RecordError::Invalid { field })
    }

    /// What the number means.
    pub fn code<T>(&mut self, field: &'static str, known: fn(i8) -> Option<T>) -> Result<T> {
        let value = self.u8(field)?;
        let code = i8::try_from(value).ok();
        code.and_then(known)
            .ok_or(RecordError::Unknown { field, value })
    }
}
