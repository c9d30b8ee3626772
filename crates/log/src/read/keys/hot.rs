//! Copies of the records of hot keys, of all keyed streams, in a bounded part of the node's memory.
//!
//! A copy is right as long as the key index of its lane shows all records that it adds to [`HotKeys::renew`]: so a reader
//! whose index is current needs nothing else. These hold:
//!
//! 1. **A copy is the newest committed version of its key up to the offset that the index has read to**, or its epoch is over:
//!    the index has passed over records without showing them.
//! 2. **A look-up takes its place before it looks into the index**, and fills the place only if it is still its own. A newer
//!    record that comes in between takes the place away.
//! 3. **Newer versions win**: an index that reads records again changes nothing.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hashbrown::DefaultHashBuilder;
use millstream_base::{ByteSize, Offset};
use millstream_record::Record;
use parking_lot::Mutex;
use quick_cache::unsync::Cache;
use quick_cache::{Equivalent, Weighter};
use serde::Serialize;

use crate::ids::LaneId;
use crate::keys::table::record_bytes;
use crate::read::keys::version::{KeyVersion, copy_of};

/// The number of parts, each behind a lock of its own.
const PARTS: usize = 64;

/// The most bytes of a record that is copied.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// The memory of a copy beside the bytes of its record, about.
const OVERHEAD_BYTES: usize = 200;

/// The bytes of a typical copy: the cache prepares room for as many as fit.
const TYPICAL_BYTES: usize = OVERHEAD_BYTES + 200;

/// Copies of records by their keys.
#[derive(Debug)]
pub struct HotKeys {
    parts: Box<[Mutex<Part>]>,
    hasher: DefaultHashBuilder,
    places: AtomicU64,
}

#[derive(Debug)]
struct Part {
    copies: Cache<HotKey, Copy, Weight>,
    hits: u64,
    misses: u64,
}

/// Copies of hot keys' records, and look-ups of keys since the log was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct HotKeyStats {
    /// Keys with a copy; so is a key of which memory knows that it has no value.
    pub keys: u64,
    /// Their memory, about.
    pub bytes: u64,
    /// Its bound: [`LogConfig::hot_keys`](crate::LogConfig::hot_keys).
    pub bytes_max: u64,
    /// Look-ups that a copy answered.
    pub hits: u64,
    /// Look-ups that went to the key index.
    pub misses: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct HotKey {
    lane: LaneId,
    key: Bytes,
}

/// The key of a lookup. It hashes like a [`HotKey`].
#[derive(Debug, Clone, Copy, Hash)]
struct Wanted<'a> {
    lane: LaneId,
    key: &'a [u8],
}

impl Equivalent<HotKey> for Wanted<'_> {
    fn equivalent(&self, other: &HotKey) -> bool {
        self.lane == other.lane && self.key == &other.key[..]
    }
}

#[derive(Debug, Clone)]
struct Copy {
    /// The epoch of the index when the place was taken.
    epoch: u64,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// A look-up is under way, which has this place.
    Place(u64),
    /// The newest version.
    Value(KeyVersion),
    /// No version before this offset has a value.
    Absent(Offset),
}

#[derive(Debug, Clone)]
struct Weight;

impl Weighter<HotKey, Copy> for Weight {
    fn weight(&self, key: &HotKey, copy: &Copy) -> u64 {
        let value = match &copy.state {
            State::Value(version) => version.bytes(),
            State::Place(_) | State::Absent(_) => 0,
        };
        (OVERHEAD_BYTES + key.key.len() + value) as u64
    }
}

/// The place for the result of a look-up.
#[derive(Debug)]
pub struct Place {
    key: HotKey,
    epoch: u64,
    number: u64,
}

impl HotKeys {
    /// Returns an empty cache of this size.
    pub fn new(bytes: ByteSize) -> HotKeys {
        let part_bytes = bytes.as_usize() / PARTS;
        let part = || {
            let typical = part_bytes / TYPICAL_BYTES;
            Mutex::new(Part {
                copies: Cache::with_weighter(typical, part_bytes as u64, Weight),
                hits: 0,
                misses: 0,
            })
        };
        HotKeys {
            parts: std::iter::repeat_with(part).take(PARTS).collect(),
            hasher: DefaultHashBuilder::default(),
            places: AtomicU64::new(0),
        }
    }

    /// Returns the newest version of a key, or that it has no value; `None` if that is not known. The caller's index has all
    /// records, and `epoch` is its epoch since.
    pub fn get(&self, lane: LaneId, key: &[u8], epoch: u64) -> Option<Option<KeyVersion>> {
        let wanted = Wanted { lane, key };
        let mut part = self.part(wanted).lock();
        let copy = part.copies.get(&wanted);
        let known = match &copy.filter(|copy| copy.epoch == epoch)?.state {
            State::Place(_) => return None,
            State::Value(version) => Some(version.clone()),
            State::Absent(_) => None,
        };
        part.hits += 1;
        Some(known)
    }

    /// Takes a place for the result of a lookup, before the lookup begins; `None` for a large key. `epoch` is the index's.
    pub fn begin(&self, lane: LaneId, key: &[u8], epoch: u64) -> Option<Place> {
        if key.len() > RECORD_BYTES_MAX {
            self.part(Wanted { lane, key }).lock().misses += 1;
            return None;
        }
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        let key = HotKey {
            lane,
            key: Bytes::copy_from_slice(key),
        };
        let state = State::Place(number);
        let mut part = self.part(key.wanted()).lock();
        part.misses += 1;
        part.copies.insert(key.clone(), Copy { epoch, state });
        Some(Place { key, epoch, number })
    }

    /// Fills a place with the result of its look-up, if nothing newer came.
    pub fn fill(&self, place: Place, version: Option<&KeyVersion>) {
        let Place { key, epoch, number } = place;
        let copies = &mut self.part(key.wanted()).lock().copies;
        let known = copies.peek(&key.wanted()).map(|copy| &copy.state);
        if !matches!(known, Some(State::Place(other)) if *other == number) {
            return;
        }
        let state = match version {
            None => State::Absent(Offset(0)),
            Some(version) if key.key.len() + version.bytes() <= RECORD_BYTES_MAX => {
                State::Value(version.clone())
            }
            Some(_) => {
                copies.remove(&key.wanted());
                return;
            }
        };
        copies.insert(key, Copy { epoch, state });
    }

    /// Takes note of a committed record that the index of its lane adds in an epoch: the key's copy is renewed, if there is
    /// one.
    pub fn renew(&self, lane: LaneId, record: &Record<'_>, epoch: u64) {
        let Some(key) = record.key else {
            return;
        };
        let wanted = Wanted { lane, key };
        let copies = &mut self.part(wanted).lock().copies;
        let Some(copy) = copies.peek(&wanted) else {
            return;
        };
        let is_known = match &copy.state {
            State::Place(_) => false,
            State::Value(version) => version.offset >= record.offset,
            State::Absent(before) => *before > record.offset,
        };
        if is_known {
            return;
        }
        if record_bytes(record) as usize > RECORD_BYTES_MAX {
            copies.remove(&wanted);
            return;
        }
        let state = match record.value {
            Some(value) => State::Value(copy_of(record, value)),
            None => State::Absent(record.offset.plus(1)),
        };
        let key = HotKey {
            lane,
            key: Bytes::copy_from_slice(key),
        };
        copies.insert(key, Copy { epoch, state });
    }

    /// Returns the sums over all parts, each read at a moment of its own.
    pub fn stats(&self) -> HotKeyStats {
        let parts = self.parts.iter().map(|part| part.lock());
        parts.fold(HotKeyStats::default(), |sum, part| HotKeyStats {
            keys: sum.keys + part.copies.len() as u64,
            bytes: sum.bytes + part.copies.weight(),
            bytes_max: sum.bytes_max + part.copies.capacity(),
            hits: sum.hits + part.hits,
            misses: sum.misses + part.misses,
        })
    }

    fn part(&self, wanted: Wanted<'_>) -> &Mutex<Part> {
        let hash = self.hasher.hash_one(wanted);
        &self.parts[(hash >> 32) as usize % PARTS]
    }
}

impl HotKey {
    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            lane: self.lane,
            key: &self.key,
        }
    }
}

impl KeyVersion {
    /// The bytes of its value and headers.
    fn bytes(&self) -> usize {
        let headers = self.headers.iter();
        let headers = headers.map(|header| {
            let value = header.value.as_ref();
            OVERHEAD_BYTES / 2 + header.name.len() + value.map_or(0, |value| value.len())
        });
        self.value.len() + headers.sum::<usize>()
    }
}
