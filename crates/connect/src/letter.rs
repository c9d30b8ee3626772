//! The encoding of a dead letter as a record.

use std::fmt;

use millstream_base::{Offset, Timestamp};
use millstream_flow::{DeadLetter, Origin};
use millstream_record::{ChunkBuilder, ChunkError, Compression, Record};

use crate::sink::EncodedRecord;

/// The suffix that, behind a flow's name, names the stream of its dead letters.
pub const DEAD_LETTERS_SUFFIX: &str = ".dead_letters";

/// A larger record is left out of its dead letter, which then has only its place: a chunk takes 8 MiB, or less where
/// memory is short, including the other fields of the letter.
const ORIGINAL_BYTES_MAX: usize = 7 << 20;

const FLOW: &str = "flow";
/// A secondary key.
const OPERATOR: &str = "k.operator";
const ERROR: &str = "error";
const ITEM: &str = "item";
const STREAM: &str = "origin.stream";
const PARTITION: &str = "origin.partition";
const OFFSET: &str = "origin.offset";
const TIMESTAMP: &str = "origin.timestamp";
/// Lists which of key and value the record does not have; without it, an empty one is empty.
const NULL: &str = "origin.null";
/// Begins the name of each header of the record.
const HEADER_PREFIX: &[u8] = b"origin.header.";

/// The record that a part of a flow's source is.
pub fn origin(stream: &str, partition: u32, record: &Record<'_>) -> Origin {
    let headers = record
        .headers()
        .map(|header| (header.name.to_vec(), header.value.map(<[u8]>::to_vec)));
    Origin {
        stream: stream.to_owned(),
        partition,
        offset: record.offset,
        timestamp: record.timestamp,
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers: headers.collect(),
    }
}

/// Writes a record as its dead letter shows it: the value, as text.
pub fn show_record(record: &Record<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match record.value {
        Some(value) => f.write_str(&String::from_utf8_lossy(value)),
        None => f.write_str("(a record without a value)"),
    }
}

/// A letter on its way to a stream.
pub struct LetterToStore {
    pub letter: DeadLetter,
    /// Whether the letter contains the record that the item was made of.
    pub holds_record: bool,
}

impl LetterToStore {
    pub fn new(letter: &DeadLetter) -> LetterToStore {
        let origin = letter.origin.as_deref();
        LetterToStore {
            holds_record: origin.is_some_and(|origin| bytes(origin) <= ORIGINAL_BYTES_MAX),
            letter: letter.clone(),
        }
    }
}

/// Writes a letter of a flow as a record. If the source record of the item is known, the letter has its key and value, and
/// headers have the rest. Otherwise the value is the item.
pub fn encode(flow: &str, to_store: &LetterToStore, record: &mut EncodedRecord) {
    let letter = &to_store.letter;
    let origin = letter.origin.as_deref();
    let original = origin.filter(|_| to_store.holds_record);
    let mut add = |name: &str, value: &[u8]| {
        let header = (name.as_bytes().to_vec(), Some(value.to_vec()));
        record.headers.push(header);
    };
    add(FLOW, flow.as_bytes());
    add(OPERATOR, letter.operator.as_bytes());
    add(ERROR, letter.error.as_bytes());
    if let Some(origin) = origin {
        add(STREAM, origin.stream.as_bytes());
        add(PARTITION, origin.partition.to_string().as_bytes());
        add(OFFSET, origin.offset.to_string().as_bytes());
        add(TIMESTAMP, origin.timestamp.0.to_string().as_bytes());
    }
    let Some(original) = original else {
        record.value.extend_from_slice(letter.item.as_bytes());
        return;
    };
    add(ITEM, letter.item.as_bytes());
    let null = match (&original.key, &original.value) {
        (None, None) => "key value",
        (None, Some(_)) => "key",
        (Some(_), None) => "value",
        (Some(_), Some(_)) => "",
    };
    add(NULL, null.as_bytes());
    for (name, value) in &original.headers {
        let name = [HEADER_PREFIX, name].concat();
        record.headers.push((name, value.clone()));
    }
    record
        .key
        .extend_from_slice(original.key.as_deref().unwrap_or_default());
    record
        .value
        .extend_from_slice(original.value.as_deref().unwrap_or_default());
    record.is_deletion = original.value.is_none();
}

/// Returns the size of a chunk with this letter alone.
pub fn chunk_bytes(flow: &str, letter: &LetterToStore) -> Result<usize, ChunkError> {
    let mut record = EncodedRecord::default();
    encode(flow, letter, &mut record);
    let mut builder = ChunkBuilder::new(Compression::None);
    let (key, value) = (record.key(), record.value());
    builder.push(record.timestamp, key, value, &record.headers())?;
    Ok(builder.len())
}

fn bytes(origin: &Origin) -> usize {
    let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
    let headers = origin.headers.iter();
    let headers = headers.map(|(name, value)| HEADER_PREFIX.len() + name.len() + len(value));
    len(&origin.key) + len(&origin.value) + headers.sum::<usize>()
}

/// A dead letter as a stream holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLetter {
    /// The time at which the flow wrote it.
    pub timestamp: Timestamp,
    /// The flow; empty in letters of older versions.
    pub flow: String,
    /// The operator whose code failed on the item.
    pub operator: String,
    /// The error of that code.
    pub error: String,
    /// The value of the record that the item was made of, as text; the operator's input where the flow did not know the
    /// record.
    pub item: String,
    /// The place of the record that the item was made of: stream, partition and offset.
    pub place: Option<(String, u32, Offset)>,
    /// The source record of the item; `None` if the flow did not know it, or it was too large.
    pub original: Option<Origin>,
    /// The size of key and value.
    pub bytes: usize,
}

impl StoredLetter {
    /// Reads a letter. Everything that is missing is empty: others may have written to the stream, too.
    pub fn read(record: &Record<'_>) -> StoredLetter {
        let header = |wanted: &str| {
            let mut headers = record.headers();
            let found = headers.find(|header| header.name == wanted.as_bytes());
            found.and_then(|header| header.value)
        };
        let text =
            |name| header(name).map(|value: &[u8]| String::from_utf8_lossy(value).into_owned());
        let place = || {
            let partition = text(PARTITION)?.parse().ok()?;
            let offset = Offset(text(OFFSET)?.parse().ok()?);
            Some((text(STREAM)?, partition, offset))
        };
        let place = place();
        let item = text(ITEM);
        let null = text(NULL);
        let original = || {
            let (stream, partition, offset) = place.clone()?;
            let null = null.as_deref()?;
            let has = |what| !null.split(' ').any(|null| null == what);
            let headers = record.headers().filter_map(|header| {
                let name = header.name.strip_prefix(HEADER_PREFIX)?;
                Some((name.to_vec(), header.value.map(<[u8]>::to_vec)))
            });
            let or_empty = |bytes: Option<&[u8]>| bytes.unwrap_or_default().to_vec();
            Some(Origin {
                stream,
                partition,
                offset,
                timestamp: Timestamp(text(TIMESTAMP)?.parse().ok()?),
                key: has("key").then(|| or_empty(record.key)),
                value: has("value").then(|| or_empty(record.value)),
                headers: headers.collect(),
            })
        };
        let value = || String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
        StoredLetter {
            timestamp: record.timestamp,
            flow: text(FLOW).unwrap_or_default(),
            operator: text(OPERATOR).unwrap_or_default(),
            error: text(ERROR).unwrap_or_default(),
            original: original(),
            item: item.unwrap_or_else(value),
            place,
            bytes: record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len),
        }
    }
}
