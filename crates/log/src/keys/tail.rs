//! The keys at the end of a lane, behind the records that look-ups see: those that are not durable yet, or of transactions
//! that have not ended. Conditional changes compare with them.

use std::collections::BTreeMap;

use millstream_base::{GroupId, Offset, Position, ProducerId};
use millstream_record::{Life, Record, TransactionEnd};

/// The memory that a key takes beside its own bytes, about.
const KEY_OVERHEAD_BYTES: usize = 96;

/// The most memory of a lane's tail.
const BYTES_MAX: usize = 16 << 20;

/// The fewest keys that are swept.
const SWEPT_MIN: usize = 1_000;

/// A version of a key that look-ups may not see yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailVersion {
    pub offset: Offset,
    pub content: Content,
    pub life: Life,
    /// It is final when the lane is durable up to here: behind its record, or behind its transaction's marker.
    pub settled_at: Offset,
}

/// The part of a record's value that changes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// There is no value.
    Tombstone,
    /// A whole number, in decimal digits.
    Number(i64),
    /// Any other value.
    Other,
}

/// The answer of the tail for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InTail {
    /// The key has no record in it, so look-ups find its newest version.
    Older,
    /// Its newest version.
    Newest(TailVersion),
    /// A transaction has a version of it and has not ended.
    Undecided,
}

type Versions = BTreeMap<Box<[u8]>, TailVersion>;

/// The newest versions of the keys between two offsets of a lane.
#[derive(Debug, Clone, Default)]
pub struct KeyTail {
    /// It has the records from here on. All transactions that had records before have ended.
    from: Offset,
    /// It has the records before this one.
    next: Offset,
    /// The group and the position of the chunk that begins at `next`; `None` before the first read.
    place: Option<(GroupId, Position)>,
    /// How often groups had been replaced when it began: `place` holds until the next time.
    swaps: u64,
    /// The versions of committed records, and of records without a transaction.
    decided: Versions,
    /// The versions of open transactions, by their producers.
    undecided: BTreeMap<ProducerId, Versions>,
    bytes: usize,
    /// The number of decided keys that the last sweep left.
    swept: usize,
    /// Whether its keys did not fit, so that it has none.
    is_full: bool,
}

impl KeyTail {
    /// An empty tail that begins at `from`, when groups had been replaced `swaps` times.
    pub fn new(from: Offset, swaps: u64) -> KeyTail {
        KeyTail {
            from,
            next: from,
            swaps,
            ..KeyTail::default()
        }
    }

    /// The offset from which on it has all records.
    pub fn from(&self) -> Offset {
        self.from
    }

    /// The offset behind the last record that it has.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// The group and the position of the chunk that begins at [`next`](Self::next).
    pub fn place(&self) -> Option<(GroupId, Position)> {
        self.place
    }

    /// How often groups had been replaced when it began.
    pub fn swaps(&self) -> u64 {
        self.swaps
    }

    /// Whether its keys did not fit into its memory.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Adds a record of this producer's open transaction, or of none.
    pub fn add(&mut self, record: &Record<'_>, transaction: Option<ProducerId>) {
        let Some(key) = record
            .key
            .filter(|_| !self.is_full && record.offset >= self.from)
        else {
            return;
        };
        let version = TailVersion {
            offset: record.offset,
            content: Content::of(record.value),
            life: Life::of(record),
            settled_at: record.offset.plus(1),
        };
        let versions = match transaction {
            Some(producer) => self.undecided.entry(producer).or_default(),
            None => &mut self.decided,
        };
        match versions.get_mut(key) {
            Some(known) => *known = version,
            None => {
                versions.insert(key.into(), version);
                self.bytes += key.len() + KEY_OVERHEAD_BYTES;
            }
        }
        if self.bytes > BYTES_MAX {
            (self.decided, self.undecided) = Default::default();
            self.bytes = 0;
            self.is_full = true;
        }
    }

    /// Ends the transaction of a producer, by the marker at `offset`.
    pub fn end(&mut self, producer: ProducerId, end: TransactionEnd, offset: Offset) {
        for (key, version) in self.undecided.remove(&producer).unwrap_or_default() {
            let key_bytes = key.len() + KEY_OVERHEAD_BYTES;
            let is_newer = |known: &TailVersion| known.offset > version.offset;
            if end == TransactionEnd::Abort || self.decided.get(&key).is_some_and(is_newer) {
                self.bytes -= key_bytes;
                continue;
            }
            let version = TailVersion {
                settled_at: offset.plus(1),
                ..version
            };
            if self.decided.insert(key, version).is_some() {
                self.bytes -= key_bytes;
            }
        }
    }

    /// Takes note that it has all records before `next`, and of the place of the chunk that begins there.
    pub fn advance(&mut self, next: Offset, place: (GroupId, Position)) {
        self.next = next;
        self.place = Some(place);
    }

    /// Drops the keys whose newest versions lookups see, since they see everything before `seen`: if at least half of
    /// the keys have been added since the last time, so that each costs a constant time.
    pub fn sweep(&mut self, seen: Offset) {
        if seen <= self.from || self.decided.len() < (2 * self.swept).max(SWEPT_MIN) {
            return;
        }
        let mut bytes = 0;
        self.decided.retain(|key, version| {
            let stays = version.settled_at > seen;
            if !stays {
                bytes += key.len() + KEY_OVERHEAD_BYTES;
            }
            stays
        });
        self.bytes -= bytes;
        self.swept = self.decided.len();
        self.from = seen;
    }

    /// Whether a key has a version from `offset` on.
    pub fn has_since(&self, key: &[u8], offset: Offset) -> bool {
        has_since(&self.decided, key, offset) || self.is_undecided_since(key, offset)
    }

    fn is_undecided_since(&self, key: &[u8], offset: Offset) -> bool {
        let mut undecided = self.undecided.values();
        undecided.any(|versions| has_since(versions, key, offset))
    }

    /// Returns the newest version of a key. Versions before `earliest` have been deleted.
    pub fn get(&self, key: &[u8], earliest: Offset) -> InTail {
        if self.is_undecided_since(key, earliest) {
            return InTail::Undecided;
        }
        match self.decided.get(key) {
            Some(version) => InTail::Newest(*version),
            None => InTail::Older,
        }
    }
}

fn has_since(versions: &Versions, key: &[u8], offset: Offset) -> bool {
    let version = versions.get(key);
    version.is_some_and(|version| version.offset >= offset)
}

impl Content {
    /// Returns as much of a value as changes need.
    pub fn of(value: Option<&[u8]>) -> Content {
        match value {
            None => Content::Tombstone,
            Some(value) => number(value).map_or(Content::Other, Content::Number),
        }
    }
}

/// Parses a whole number as JSON writes it: without a plus sign, and without zeros in front.
fn number(value: &[u8]) -> Option<i64> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let is_plain = match digits {
        [b'0'] => digits.len() == value.len(),
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    let text = std::str::from_utf8(value).ok().filter(|_| is_plain)?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use millstream_base::Timestamp;
    use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor};

    use super::*;

    const PRODUCER: ProducerId = ProducerId(7);

    fn add(tail: &mut KeyTail, producer: Option<ProducerId>, key: &str, value: Option<&str>) {
        let mut builder = ChunkBuilder::new(Compression::None);
        let (key, value) = (Some(key.as_bytes()), value.map(str::as_bytes));
        builder.push(Timestamp(0), key, value, &[]).unwrap();
        let mut bytes = builder.finish(None).unwrap().to_vec();
        millstream_record::set_base_offset(&mut bytes, tail.next());
        let chunk = Chunk::parse(&bytes).unwrap();
        for record in chunk.records(&mut Decompressor::default()).unwrap() {
            tail.add(&record.unwrap(), producer);
        }
        advance(tail);
    }

    fn advance(tail: &mut KeyTail) {
        tail.advance(tail.next().plus(1), (GroupId(0), Position(0)));
    }

    fn end(tail: &mut KeyTail, end: TransactionEnd) {
        tail.end(PRODUCER, end, tail.next());
        advance(tail);
    }

    /// The offset of the newest version, and where it is settled.
    fn newest(tail: &KeyTail, key: &str) -> Option<(u64, u64)> {
        match tail.get(key.as_bytes(), Offset(0)) {
            InTail::Newest(version) => Some((version.offset.0, version.settled_at.0)),
            InTail::Older | InTail::Undecided => None,
        }
    }

    #[test]
    fn the_newest_record_of_a_key_counts() {
        let mut tail = KeyTail::new(Offset(5), 0);
        add(&mut tail, None, "a", Some("1"));
        add(&mut tail, None, "b", None);
        add(&mut tail, None, "a", Some("word"));
        assert_eq!(newest(&tail, "a"), Some((7, 8)));
        assert_eq!(newest(&tail, "b"), Some((6, 7)));
        assert_eq!(tail.get(b"c", Offset(0)), InTail::Older);
        assert_eq!(tail.bytes, 2 * (1 + KEY_OVERHEAD_BYTES));
    }

    #[test]
    fn a_key_is_undecided_until_its_transaction_ends() {
        for outcome in [TransactionEnd::Commit, TransactionEnd::Abort] {
            let mut tail = KeyTail::new(Offset(0), 0);
            add(&mut tail, None, "a", Some("1"));
            add(&mut tail, Some(PRODUCER), "a", Some("2"));
            add(&mut tail, Some(PRODUCER), "b", None);
            assert_eq!(tail.get(b"a", Offset(0)), InTail::Undecided);
            assert_eq!(tail.get(b"b", Offset(0)), InTail::Undecided);
            // Another producer's record does not decide it.
            add(&mut tail, None, "b", Some("3"));
            assert_eq!(tail.get(b"b", Offset(0)), InTail::Undecided);
            end(&mut tail, outcome);
            let is_committed = outcome == TransactionEnd::Commit;
            let expected = if is_committed { (1, 5) } else { (0, 1) };
            assert_eq!(newest(&tail, "a"), Some(expected));
            assert_eq!(newest(&tail, "b"), Some((3, 4)), "it is newer");
            assert_eq!(tail.bytes, 2 * (1 + KEY_OVERHEAD_BYTES));
        }
    }

    #[test]
    fn keys_visible_to_lookups_are_dropped_once_there_are_many() {
        let mut tail = KeyTail::new(Offset(0), 0);
        for n in 0..SWEPT_MIN {
            add(&mut tail, None, &n.to_string(), Some("1"));
        }
        let seen = Offset(SWEPT_MIN as u64 - 2);
        tail.sweep(seen);
        assert_eq!((tail.decided.len(), tail.from()), (2, seen));
        assert_eq!(tail.bytes, 2 * (3 + KEY_OVERHEAD_BYTES));
        tail.sweep(tail.next());
        assert_eq!(tail.decided.len(), 2, "they are few");
    }

    #[test]
    fn the_memory_of_undecided_keys_is_bounded() {
        let mut tail = KeyTail::new(Offset(0), 0);
        let long = "k".repeat(BYTES_MAX / 2);
        for n in ["1", "2"] {
            assert!(!tail.is_full());
            add(&mut tail, Some(PRODUCER), &format!("{long}{n}"), None);
        }
        assert!(tail.is_full());
        assert_eq!(tail.bytes, 0);
        add(&mut tail, None, "a", None);
        assert_eq!(tail.get(b"a", Offset(0)), InTail::Older);
    }

    #[test]
    fn integers_parse_as_in_json() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-7", Some(-7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("+1", None),
            ("01", None),
            (" 1", None),
            ("1 ", None),
            ("1.0", None),
            ("1e3", None),
            ("--1", None),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(number(b"1\xff"), None);
    }
}
