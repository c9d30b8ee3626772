//! Keys in memory until they are sorted.

use super::{Version, filter};

/// The most keys of which the last record is remembered: 32 KiB, which a processor has at hand.
const RECENT_MAX: usize = 8192;

/// Records with keys, in the order in which they came. The keys lie in one buffer, and sorting moves only references to
/// them: with an allocation for each key and a comparison of keys for each step in a tree, keys took half of the time of a
/// compaction.
#[derive(Debug)]
pub struct KeyBuffer {
    keys: Vec<u8>,
    records: Vec<KeyedRecord>,
    /// The length of a prefix that all keys share.
    shared: usize,
    /// The number of the last record with a key, by the key's hash: a key that is put again and again takes little memory.
    /// Of keys with the same place the last one counts, so the record's key is compared.
    recent: Box<[u32]>,
}

#[derive(Debug, Clone, Copy)]
struct KeyedRecord {
    /// The key's position in `keys`.
    start: u32,
    length: u32,
    version: Version,
}

/// A reference to a record, which is compared mostly without its key.
#[derive(Debug, Clone, Copy)]
pub struct KeyReference {
    /// The first bytes behind the prefix that all keys share, the first one in the highest bits. A key that ends before has
    /// zeros there, so it comes before those that go on or is compared with them whole.
    prefix: u64,
    /// The record's number: newer ones have higher numbers.
    number: u32,
}

/// The memory that a record takes beside its key, with the reference to it.
const RECORD_BYTES: usize = size_of::<KeyedRecord>() + size_of::<KeyReference>();

impl Default for KeyBuffer {
    fn default() -> Self {
        KeyBuffer {
            keys: Vec::new(),
            records: Vec::new(),
            shared: 0,
            recent: vec![u32::MAX; RECENT_MAX].into(),
        }
    }
}

impl KeyBuffer {
    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether there is room for a record with a key, or no record yet, in this many bytes of memory. They are no more than
    /// a `u32` counts.
    pub fn has_room(&self, key: &[u8], bytes_max: usize) -> bool {
        let bytes = self.keys.len() + (self.records.len() + 1) * RECORD_BYTES;
        self.is_empty() || bytes + key.len() <= bytes_max
    }

    /// Adds a record that is newer than all before.
    pub fn add(&mut self, key: &[u8], version: Version) {
        let recent = &mut self.recent[filter::hash(key) as usize % RECENT_MAX];
        if let Some(record) = self.records.get_mut(*recent as usize) {
            let start = record.start as usize;
            if self.keys[start..start + record.length as usize] == *key {
                record.version = version;
                return;
            }
        }
        *recent = self.records.len() as u32;
        self.shared = match self.records.first() {
            None => key.len(),
            Some(first) => {
                let shared = &self.key_of(first)[..self.shared];
                shared.iter().zip(key).take_while(|(a, b)| a == b).count()
            }
        };
        self.records.push(KeyedRecord {
            start: self.keys.len() as u32,
            length: key.len() as u32,
            version,
        });
        self.keys.extend_from_slice(key);
    }

    /// Returns the newest record of each key, in the order of the keys.
    pub fn sorted(&self) -> Vec<KeyReference> {
        let numbered = self.records.iter().zip(0_u32..);
        let references = numbered.map(|(record, number)| KeyReference {
            prefix: prefix(&self.key_of(record)[self.shared..]),
            number,
        });
        let mut references: Vec<KeyReference> = references.collect();
        references.sort_unstable_by(|a, b| {
            let by_key = || self.key(a)[self.shared..].cmp(&self.key(b)[self.shared..]);
            let by_age = || b.number.cmp(&a.number);
            a.prefix.cmp(&b.prefix).then_with(by_key).then_with(by_age)
        });
        references.dedup_by(|older, newest| {
            older.prefix == newest.prefix && self.key(older) == self.key(newest)
        });
        references
    }

    /// Returns a record and its key.
    pub fn get(&self, reference: &KeyReference) -> (&[u8], &Version) {
        let record = &self.records[reference.number as usize];
        (self.key_of(record), &record.version)
    }

    /// Forgets all records.
    pub fn clear(&mut self) {
        self.records.clear();
        self.keys.clear();
    }

    fn key(&self, reference: &KeyReference) -> &[u8] {
        self.get(reference).0
    }

    fn key_of(&self, record: &KeyedRecord) -> &[u8] {
        let start = record.start as usize;
        &self.keys[start..start + record.length as usize]
    }
}

/// The first bytes of a key's rest, as a number.
fn prefix(rest: &[u8]) -> u64 {
    let mut first = [0; size_of::<u64>()];
    let length = rest.len().min(first.len());
    first[..length].copy_from_slice(&rest[..length]);
    u64::from_be_bytes(first)
}
