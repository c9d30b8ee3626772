//! The records of a chunk, read in place.

use std::fmt;
use std::iter::FusedIterator;

use millstream_base::{Offset, Text, Timestamp};

use crate::{ChunkError, ChunkHeader, RecordFault, TimestampType, varint};

/// The least size of a record: length, attributes, deltas of timestamp and offset, lengths of key and value,
/// number of headers; one byte each.
pub(crate) const RECORD_BYTES_MIN: usize = 7;

/// The least size of a header: lengths of name and value.
const HEADER_BYTES_MIN: usize = 2;

/// The prefix of the names of headers that are secondary keys.
pub const SECONDARY_KEY_PREFIX: &str = "k.";

/// The most secondary keys of a record that indexes have, over all names: the first ones. Producers of this workspace send no
/// more.
pub const SECONDARY_KEYS_MAX: usize = 64;

/// The name of the header that holds the secondary key `name`.
///
/// ```
/// assert_eq!(millstream_record::secondary_key("city"), "k.city");
/// ```
pub fn secondary_key(name: &str) -> String {
    format!("{SECONDARY_KEY_PREFIX}{name}")
}

/// A record. It borrows key, value and headers from the chunk or from the decompressor.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// Its number in the partition.
    pub offset: Offset,
    /// The time at which it was made or appended; the chunk's [`TimestampType`](crate::TimestampType) decides.
    pub timestamp: Timestamp,
    /// The primary key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    headers: Headers<'a>,
}

impl<'a> Record<'a> {
    /// The headers, in the producer's order; names can occur repeatedly.
    pub fn headers(&self) -> Headers<'a> {
        self.headers
    }

    /// The same record without value and headers: a tombstone, if it has a key.
    pub(crate) fn without_value(&self) -> Record<'a> {
        Record {
            value: None,
            headers: Headers { rest: &[] },
            ..*self
        }
    }

    /// The secondary keys, name and key, from the headers named `k.<name>`. Headers with a null value are no keys.
    pub fn secondary_keys(&self) -> SecondaryKeys<'a> {
        SecondaryKeys(self.headers)
    }
}

/// Shows text as text, and other bytes as escapes.
impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("offset", &self.offset)
            .field("timestamp", &self.timestamp)
            .field("key", &self.key.map(Text))
            .field("value", &self.value.map(Text))
            .field("headers", &self.headers)
            .finish()
    }
}

/// A header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header<'a> {
    /// The name; by convention UTF-8, which is not checked.
    pub name: &'a [u8],
    /// The value.
    pub value: Option<&'a [u8]>,
}

impl fmt::Debug for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("name", &Text(self.name))
            .field("value", &self.value.map(Text))
            .finish()
    }
}

/// The headers of a record.
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    /// Well-formed headers, which [`Records`] has checked.
    rest: &'a [u8],
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let mut fields = Fields { rest: self.rest };
        let header = fields.header().ok();
        self.rest = fields.rest;
        header
    }
}

impl FusedIterator for Headers<'_> {}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// The secondary keys of a record.
#[derive(Debug, Clone, Copy)]
pub struct SecondaryKeys<'a>(Headers<'a>);

impl<'a> Iterator for SecondaryKeys<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.find_map(|header| {
            let name = header.name.strip_prefix(SECONDARY_KEY_PREFIX.as_bytes())?;
            Some((name, header.value?))
        })
    }
}

impl FusedIterator for SecondaryKeys<'_> {}

/// Iterates over the records of a chunk. Their offsets rise, perhaps with gaps. It ends after the first error.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    /// The bytes of the remaining records, decompressed.
    rest: &'a [u8],
    /// The number of records returned so far.
    index: u32,
    count: u32,
    base_offset: Offset,
    last_offset_delta: u32,
    /// The least offset delta of the next record: offsets rise.
    next_offset_delta: i64,
    base_timestamp: i64,
    /// Masks the timestamp deltas: all ones, or 0 where all records have the base timestamp.
    timestamp_delta_mask: i64,
}

impl<'a> Records<'a> {
    pub(crate) fn new(header: &ChunkHeader, bytes: &'a [u8]) -> Result<Records<'a>, ChunkError> {
        let count = header.record_count;
        // Callers reserve room for this many records, so it must not exceed the bytes.
        if count as usize > bytes.len() / RECORD_BYTES_MIN {
            return Err(ChunkError::RecordCount {
                count,
                bytes: bytes.len(),
            });
        }
        let (base_timestamp, timestamp_delta_mask) = match header.attributes.timestamp_type() {
            TimestampType::Create => (header.base_timestamp.0, -1),
            TimestampType::LogAppend => (header.max_timestamp.0, 0),
        };
        Ok(Records {
            rest: bytes,
            index: 0,
            count,
            base_offset: header.base_offset,
            last_offset_delta: header.last_offset_delta,
            next_offset_delta: 0,
            base_timestamp,
            timestamp_delta_mask,
        })
    }

    /// Checks the remaining records. It finds the same faults as the iterator, and takes less time where records have
    /// no headers.
    ///
    /// # Errors
    /// The first error that the iterator would return.
    pub fn check(mut self) -> Result<(), ChunkError> {
        for _ in 0..TRIES_MAX {
            self.pass_plain();
            match self.next() {
                Some(record) => drop(record?),
                None => return Ok(()),
            }
        }
        self.try_for_each(|record| record.map(drop))
    }

    /// Skips plain records, up to the first record with headers, with long numbers, or with a fault.
    fn pass_plain(&mut self) {
        let (mut rest, mut offset_delta) = (self.rest, self.next_offset_delta as u64);
        let count_max = u64::from(self.count - self.index);
        let offsets_left = u64::from(self.last_offset_delta) + 1 - offset_delta;
        let end = offset_delta + count_max.min(offsets_left);
        while offset_delta < end
            && let Some(behind) = behind_plain(rest, offset_delta)
        {
            rest = behind;
            offset_delta += 1;
        }
        self.index += (offset_delta - self.next_offset_delta as u64) as u32;
        self.rest = rest;
        self.next_offset_delta = offset_delta as i64;
    }

    /// The bytes of the remaining records, unless there was an error.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline(always)]
    fn record(&mut self) -> Result<Record<'a>, FieldFault> {
        // Step 1: the record's own bytes.
        let mut fields = Fields { rest: self.rest };
        let length = fields.length("length", 0)?;
        let (record, rest) = fields.rest.split_at(length as usize);
        self.rest = rest;

        // Step 2: its fields. The format defines no attributes, so any are valid.
        let mut fields = Fields { rest: record };
        fields.take("attributes", 1)?;
        let timestamp_delta = fields.number("timestampDelta")?;
        let offset_delta = fields.ranged(
            "offsetDelta",
            self.next_offset_delta,
            self.last_offset_delta.into(),
        )?;
        let key = fields.nullable("keyLength")?;
        let value = fields.nullable("valueLength")?;

        // Step 3: its headers. The check happens here, so that a reader of headers meets no errors.
        let count_max = fields.rest.len() / HEADER_BYTES_MIN;
        let header_count = fields.ranged("headerCount", 0, count_max as i64)?;
        let headers = Headers { rest: fields.rest };
        for _ in 0..header_count {
            fields.header()?;
        }
        if !fields.rest.is_empty() {
            return Err(FieldFault {
                field: "length",
                fault: RecordFault::Excess(fields.rest.len()),
            });
        }

        self.next_offset_delta = offset_delta + 1;
        // Wraps as Java's arithmetic does: any two timestamps have a delta.
        let timestamp = self
            .base_timestamp
            .wrapping_add(timestamp_delta & self.timestamp_delta_mask);
        Ok(Record {
            offset: self.base_offset.plus(offset_delta as u64),
            timestamp: Timestamp(timestamp),
            key,
            value,
            headers,
        })
    }

    #[cold]
    fn fail(&mut self, error: ChunkError) -> Option<Result<Record<'a>, ChunkError>> {
        self.rest = &[];
        self.index = self.count;
        Some(Err(error))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ChunkError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.index == self.count {
            if self.rest.is_empty() {
                return None;
            }
            return self.fail(ChunkError::RecordsExcess {
                count: self.count,
                bytes: self.rest.len(),
            });
        }
        match self.record() {
            Ok(record) => {
                self.index += 1;
                Some(Ok(record))
            }
            Err(FieldFault { field, fault }) => self.fail(ChunkError::Record {
                index: self.index,
                field,
                fault,
            }),
        }
    }
}

impl FusedIterator for Records<'_> {}

/// After this many records that are not plain, [`Records::check`] no longer tries to skip plain ones.
const TRIES_MAX: usize = 8;

/// Returns the bytes behind a plain record. A plain record has this offset delta, no headers, and short numbers; at
/// least seven bytes follow its value's length. `None` when the first record is not plain, or has a fault.
#[inline(always)]
fn behind_plain(bytes: &[u8], offset_delta: u64) -> Option<&[u8]> {
    let word_at = |at: usize| {
        let word = bytes.get(at..at + 8)?.try_into();
        word.ok().map(u64::from_le_bytes)
    };
    let word = word_at(0)?;
    let (length, length_bytes) = short(word)?;
    // The length has at most three bytes and the attributes one, so four more are in the word. The timestamp's delta
    // may be any number.
    let last_bytes = !(word >> (8 * (length_bytes + 1))) & 0x8080_8080;
    if last_bytes == 0 {
        return None;
    }
    let mut at = length_bytes + 1 + last_bytes.trailing_zeros() as usize / 8 + 1;

    let word = word_at(at)?;
    let (found, delta_bytes) = short(word)?;
    if found != 2 * offset_delta {
        return None;
    }
    at += delta_bytes;
    let (key, key_bytes) = short(word >> (8 * delta_bytes))?;
    at += key_bytes + field_bytes(key)?;
    let (value, value_bytes) = short(word_at(at)?)?;
    at += value_bytes + field_bytes(value)?;

    let end = length_bytes + positive(length)?;
    let is_end = at + 1 == end && *bytes.get(at)? == 0;
    if is_end { bytes.get(end..) } else { None }
}

/// Returns the zigzag number in the first one to three bytes of a word, and how many bytes it takes.
#[inline(always)]
fn short(word: u64) -> Option<(u64, usize)> {
    let low = word & 0x7f;
    if word & 0x80 == 0 {
        return Some((low, 1));
    }
    let middle = (word >> 8 & 0x7f) << 7;
    if word & 0x8000 == 0 {
        return Some((low | middle, 2));
    }
    let high = (word >> 16 & 0x7f) << 14;
    (word & 0x80_0000 == 0).then_some((low | middle | high, 3))
}

/// Returns the size of a field from the zigzag number of its length; 0 for a null field.
#[inline(always)]
fn field_bytes(length: u64) -> Option<usize> {
    const NULL: u64 = 1;
    match length {
        NULL => Some(0),
        length => positive(length),
    }
}

#[inline(always)]
fn positive(zigzag: u64) -> Option<usize> {
    (zigzag & 1 == 0).then_some((zigzag >> 1) as usize)
}

/// A field of a record, and its fault.
#[derive(Debug)]
struct FieldFault {
    field: &'static str,
    fault: RecordFault,
}

/// Takes fields off the front of a slice.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    #[inline(always)]
    fn number(&mut self, field: &'static str) -> Result<i64, FieldFault> {
        let Some((number, rest)) = varint::read(self.rest) else {
            let fault = RecordFault::Varint;
            return Err(FieldFault { field, fault });
        };
        self.rest = rest;
        Ok(number)
    }

    #[inline(always)]
    fn ranged(&mut self, field: &'static str, min: i64, max: i64) -> Result<i64, FieldFault> {
        let value = self.number(field)?;
        within(field, value, min, max)
    }

    /// Takes the length of bytes that follow.
    #[inline(always)]
    fn length(&mut self, field: &'static str, min: i64) -> Result<i64, FieldFault> {
        let value = self.number(field)?;
        within(field, value, min, self.rest.len() as i64)
    }

    /// Takes a length and this many bytes.
    #[inline(always)]
    fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], FieldFault> {
        let length = self.length(field, 0)?;
        self.take(field, length as usize)
    }

    /// Takes a length and this many bytes; -1 is null.
    #[inline(always)]
    fn nullable(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, FieldFault> {
        match self.length(field, -1)? {
            -1 => Ok(None),
            length => self.take(field, length as usize).map(Some),
        }
    }

    /// Takes this many bytes.
    #[inline(always)]
    fn take(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], FieldFault> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            let fault = RecordFault::CutOff;
            return Err(FieldFault { field, fault });
        };
        self.rest = rest;
        Ok(taken)
    }

    #[inline(always)]
    fn header(&mut self) -> Result<Header<'a>, FieldFault> {
        Ok(Header {
            name: self.bytes("headerNameLength")?,
            value: self.nullable("headerValueLength")?,
        })
    }
}

#[inline(always)]
fn within(field: &'static str, value: i64, min: i64, max: i64) -> Result<i64, FieldFault> {
    if min <= value && value <= max {
        Ok(value)
    } else {
        let fault = RecordFault::Range { value, min, max };
        Err(FieldFault { field, fault })
    }
}
