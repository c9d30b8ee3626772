//! Records of a keyed stream, by their secondary keys.

use std::collections::BTreeMap;

use millstream_base::{KeyRange, Offset};
use millstream_record::{SECONDARY_KEY_PREFIX, SECONDARY_KEYS_MAX};

use crate::error::{LogError, Result};
use crate::handle::keys::SCAN_KEYS_MAX;
use crate::handle::partition::StreamPartition;
use crate::keys::kind::KeyKind;
use crate::keys::scan::Found;
use crate::keys::secondary::entry;
use crate::keys::secondary::name::SecondaryName;
use crate::keys::table::KeyStats;
use crate::read::keys::cover::groups_without_file;
use crate::read::keys::find::{KeyPlace, find_key};
use crate::read::keys::scan::scan_index;
use crate::read::keys::version::{KeyHeader, KeyVersion};
use crate::read::keys::versions::{Wanted, read_versions};

/// The most candidates that one look-up passes over: entries of older versions, and of values that have ended.
const PASSED_OVER_MAX: usize = 1_000;

/// The fewest candidates that a lookup reads together.
const CANDIDATES_MIN: usize = 32;

/// Records of a partition in the order of their secondary keys, then of their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondaryScan {
    /// The records.
    pub entries: Vec<SecondaryEntry>,
    /// The position at which the next lookup continues; `None` at the end of the range.
    pub next: Option<SecondaryPosition>,
}

/// A key's newest version, under one of its secondary keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondaryEntry {
    /// The secondary key.
    pub secondary: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
    /// The key's newest committed version.
    pub version: KeyVersion,
}

/// A place in the order of secondary keys and keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecondaryPosition {
    /// The secondary key.
    pub secondary: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
}

/// The state of an index of secondary keys in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondaryIndexInfo {
    /// The index's name.
    pub name: String,
    /// The number of closed groups without a file of this index, or whose file has not been checked since the start. The first
    /// lookup makes these files, unless the background has made them before.
    pub groups_left: u64,
    /// Its size. Records with secondary keys that it leaves out count as those without a key.
    pub stats: KeyStats,
}

/// The part of a look-up that was found.
struct Page {
    entries: Vec<SecondaryEntry>,
    limit: usize,
    bytes_left: usize,
}

impl StreamPartition {
    /// Returns the records that have a secondary key of a range, from the index of this name: those that are the newest version
    /// of their key. They come in the order of their secondary keys, then of their keys; one with several secondary keys of the
    /// range comes once for each. `from` goes on where an earlier look-up ended. The answer has at most `limit` records, at most
    /// [`SCAN_KEYS_MAX`] and at least one, and at most `bytes_max` bytes of keys, values and headers, beside the first record.
    /// Where it passes over many older versions, it may have fewer records, or none, and say where to go on.
    ///
    /// It sees every record before the last stable offset, as [`get`](Self::get) does. A record that had the secondary key from
    /// the beginning of the look-up to its end is found. One whose secondary key changes meanwhile may be missed in a range.
    ///
    /// ```
    /// use millstream_base::Timestamp;
    /// use millstream_log::{CLEANUP_POLICY, COMPACT, KeyRange, Log, LogConfig, SECONDARY, StreamConfig};
    /// use millstream_record::{ChunkBuilder, Compression, Header};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let log = Log::open(LogConfig::new(dir.path()))?;
    /// let settings = [(CLEANUP_POLICY, COMPACT), (SECONDARY, "city")];
    /// let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    /// let config = StreamConfig { settings: settings.into(), ..StreamConfig::default() };
    /// let partition = log.create_stream("users", config)?.partition(0)?;
    ///
    /// let mut builder = ChunkBuilder::new(Compression::None);
    /// for (key, city) in [("ada", "London"), ("alan", "London"), ("ada", "Turin")] {
    ///     let header = Header { name: b"k.city", value: Some(city.as_bytes()) };
    ///     builder.push(Timestamp(0), Some(key.as_bytes()), Some(b"{}"), &[header])?;
    /// }
    /// let appended = partition.append(&builder.finish(None)?)?;
    /// partition.acknowledge(&appended)?;
    ///
    /// let found = partition.find_by("city", &KeyRange::key("London"), None, 10, 1 << 20)?;
    /// assert_eq!((found.entries.len(), &found.entries[0].key[..]), (1, &b"alan"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get), and when the stream has no such index ([`LogError::NoSecondaryIndex`]).
    pub fn find_by(
        &self,
        name: &str,
        range: &KeyRange,
        from: Option<&SecondaryPosition>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<SecondaryScan> {
        self.check_keyed()?;
        let name = self.secondary_name(name)?;
        let from = from.map(|from| (&from.secondary[..], &from.key[..]));
        let mut range = entry::range_of(range, from);
        let mut page = Page {
            entries: Vec::new(),
            limit: limit.clamp(1, SCAN_KEYS_MAX),
            bytes_left: bytes_max,
        };
        let mut candidates_left = page.limit + PASSED_OVER_MAX;
        loop {
            let missing = page.limit - page.entries.len();
            let count = missing.max(CANDIDATES_MIN).min(candidates_left);
            let step = self.look(|| self.look_at_candidates(&name, &range, count, page.bytes_left));
            let (found, versions) = step?;
            candidates_left -= count;
            let behind = page.add(&name, &found, versions).map(<[u8]>::to_vec);
            let is_cut = behind.is_some();
            match behind.or(found.next) {
                Some(next) if page.is_full() || candidates_left == 0 || is_cut => {
                    return Ok(page.finish(Some(&next)));
                }
                Some(next) => range.from = next,
                None => return Ok(page.finish(None)),
            }
        }
    }

    /// As [`find_by`](Self::find_by), in ranges that follow each other: each ends before the next one begins.
    ///
    /// # Errors
    /// As [`find_by`](Self::find_by).
    pub fn find_in(
        &self,
        name: &str,
        ranges: &[KeyRange],
        from: Option<&SecondaryPosition>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<SecondaryScan> {
        self.check_keyed()?;
        self.secondary_name(name)?;
        let mut all = SecondaryScan {
            entries: Vec::new(),
            next: None,
        };
        let (limit, mut bytes_left) = (limit.clamp(1, SCAN_KEYS_MAX), bytes_max);
        for range in ranges {
            let until = range.until.as_ref();
            if from.is_some_and(|from| until.is_some_and(|until| *until <= from.secondary)) {
                continue;
            }
            if all.entries.len() == limit || bytes_left == 0 && !all.entries.is_empty() {
                all.next = Some(SecondaryPosition {
                    secondary: range.from.clone(),
                    key: Vec::new(),
                });
                break;
            }
            let page = self.find_by(name, range, from, limit - all.entries.len(), bytes_left)?;
            let bytes = |entry: &SecondaryEntry| {
                entry.secondary.len() + bytes_of(&entry.key, &entry.version)
            };
            bytes_left = bytes_left.saturating_sub(page.entries.iter().map(bytes).sum());
            all.entries.extend(page.entries);
            all.next = page.next;
            if all.next.is_some() {
                break;
            }
        }
        Ok(all)
    }

    /// Returns the offset before which an index of secondary keys has all records, as the look-ups so far have left it.
    pub fn secondary_indexed_to(&self, name: &str) -> Offset {
        let name = self.secondary_name(name).ok();
        let index = name.and_then(|name| self.lane.made_secondary_index(&name));
        index.map_or(Offset(0), |index| index.next())
    }

    /// Returns the next candidates, each with the newest version of its key if that may have the secondary key.
    fn look_at_candidates(
        &self,
        name: &SecondaryName,
        range: &KeyRange,
        count: usize,
        bytes_max: usize,
    ) -> Result<(Found<KeyPlace>, Vec<Option<KeyVersion>>)> {
        let (reads, lane) = (&self.core.reads, &self.lane);
        // The lookup waits until the index has all records before this offset.
        let seen_to = lane.last_stable_offset();
        let index = lane.secondary_index(name, self.partitions());
        let partitions = || self.partitions();
        let found = scan_index(reads, lane, &index, partitions, range, count, bytes_max)?;
        let mut newest: Vec<Option<KeyPlace>> = Vec::with_capacity(found.keys.len());
        let mut wanted: BTreeMap<Offset, (&[u8], KeyPlace)> = BTreeMap::new();
        for (entry, place) in &found.keys {
            let key = entry::key_of(entry).unwrap_or_default();
            // If the index had seen this version, it would have an entry with its offset.
            let may_have =
                |newest: &KeyPlace| newest.offset == place.offset || newest.offset >= seen_to;
            let place = find_key(reads, lane, partitions, key)?.filter(may_have);
            if let Some(place) = &place {
                wanted.insert(place.offset, (key, place.clone()));
            }
            newest.push(place);
        }
        let records = wanted.values();
        let records: Vec<Wanted<'_>> = records.map(|(key, place)| Wanted { key, place }).collect();
        let versions = read_versions(reads, lane, &records)?;
        let versions: BTreeMap<Offset, Option<KeyVersion>> =
            wanted.keys().copied().zip(versions).collect();
        let newest = newest.into_iter().map(|place| {
            let version = versions.get(&place?.offset)?.clone()?;
            self.alive(version)
        });
        let newest = newest.collect();
        drop(records);
        Ok((found, newest))
    }

    /// Returns the names of the stream's indexes of secondary keys, with their states in this partition.
    pub fn secondary_indexes(&self) -> Vec<SecondaryIndexInfo> {
        let names = self.lane.stream.limits.secondary();
        let info = |name: &SecondaryName| {
            let index = self.lane.made_secondary_index(name);
            let kind = KeyKind::Secondary(name.clone());
            SecondaryIndexInfo {
                name: name.to_string(),
                groups_left: groups_without_file(&self.lane, &kind),
                stats: index.map_or_else(KeyStats::default, |index| self.lane.stats_of(&index)),
            }
        };
        names.iter().map(info).collect()
    }

    fn secondary_name(&self, name: &str) -> Result<SecondaryName> {
        let names = self.lane.stream.limits.secondary();
        let known = names.iter().find(|known| ***known == *name);
        known.cloned().ok_or_else(|| {
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            LogError::NoSecondaryIndex {
                stream: self.lane.stream.name.clone(),
                name: name.to_owned(),
                known: match names.is_empty() {
                    true => "none".to_owned(),
                    false => names.join(", "),
                },
            }
        })
    }
}

impl Page {
    fn is_full(&self) -> bool {
        self.entries.len() == self.limit || self.bytes_left == 0 && !self.entries.is_empty()
    }

    /// Adds the candidates whose records confirm them, in order. Returns the first one that does not fit.
    fn add<'a>(
        &mut self,
        name: &SecondaryName,
        found: &'a Found<KeyPlace>,
        versions: Vec<Option<KeyVersion>>,
    ) -> Option<&'a [u8]> {
        for ((candidate, _), version) in found.keys.iter().zip(versions) {
            let Some((version, (secondary, key))) = version.zip(entry::decode(candidate)) else {
                continue;
            };
            if !has_secondary(&version, name, &secondary) {
                continue;
            }
            let bytes = secondary.len() + bytes_of(key, &version);
            let is_first = self.entries.is_empty();
            if self.entries.len() == self.limit || bytes > self.bytes_left && !is_first {
                return Some(candidate);
            }
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
            self.entries.push(SecondaryEntry {
                secondary,
                key: key.to_vec(),
                version,
            });
        }
        None
    }

    fn finish(self, next: Option<&[u8]>) -> SecondaryScan {
        let next = next.and_then(entry::decode);
        SecondaryScan {
            entries: self.entries,
            next: next.map(|(secondary, key)| SecondaryPosition {
                secondary,
                key: key.to_vec(),
            }),
        }
    }
}

/// Whether a version has a secondary key, among those that an index has.
fn has_secondary(version: &KeyVersion, name: &SecondaryName, secondary: &[u8]) -> bool {
    let keys = version.headers.iter().filter_map(|header| {
        let name = header.name.strip_prefix(SECONDARY_KEY_PREFIX.as_bytes())?;
        Some((name, header.value.as_deref()?))
    });
    let mut keys = keys.take(SECONDARY_KEYS_MAX);
    keys.any(|(other, key)| other == name.as_bytes() && key == secondary)
}

fn bytes_of(key: &[u8], version: &KeyVersion) -> usize {
    let header = |header: &KeyHeader| {
        header.name.len() + header.value.as_ref().map_or(0, |value| value.len())
    };
    key.len() + version.value.len() + version.headers.iter().map(header).sum::<usize>()
}
