//! Looks up keys, and compares with the model.

use std::collections::BTreeMap;

use millstream_base::partition_of_key;
use millstream_log::{KeyRange, LogError};
use millstream_record::{Chunk, Decompressor};

use super::{ModelChunk, ModelLane, World, lane_of};

/// How many keys the chunks of the tests have.
const KEYS: u64 = 5;

/// The key of a chunk's record. Keyed streams refuse records without one.
pub(super) fn key_of(chunk: u64, record: u64) -> [u8; 2] {
    let number = (chunk * 7 + record * 3) % KEYS;
    [b'k', number as u8]
}

/// Each key with a value: the offset and the value.
type Table = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

impl World {
    /// Damages and removes some key files: the log makes them anew.
    pub fn damage_key_files(&mut self) {
        let files = self.disk.files().into_iter();
        let key_files = files.filter(|(path, _)| path.to_string_lossy().contains(".keys"));
        for (path, len) in key_files {
            let damage = self.rng.u8(..4);
            self.note(format!("damage {damage} of {}", path.display()));
            match damage {
                0 => self.disk.remove(&path),
                1 => self.disk.truncate(&path, self.rng.usize(..=len as usize)),
                2 if len > 0 => self.disk.flip_bit(&path, self.rng.u64(..len * 8)),
                _ => Ok(()),
            }
            .expect("it exists");
        }
    }

    /// Looks up all keys of a lane, one by one and by a scan.
    pub fn check_keys(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let at = format!("keys of {name} {key:?}");
        if !stream.is_keyed() {
            let refused = lane.get(b"k");
            assert!(matches!(refused, Err(LogError::NotKeyed { .. })), "{at}");
            return;
        }
        let stable = lane.last_stable_offset().0;
        let earliest = lane.earliest_offset().0;
        let partitions = self.model.streams[name].lanes.len();
        let model = &self.model.streams[name].lanes[&key];
        let is_owned = |key: &[u8]| partition_of_key(key, partitions) == lane.index() as usize;
        let mut expected = table_of(model, stable);
        expected.retain(|key, (offset, _)| is_owned(key) && *offset >= earliest);

        for number in 0..KEYS as u8 {
            let key = [b'k', number];
            let found = match lane.get(&key) {
                Ok(found) => found.map(|found| (found.offset.0, found.value.to_vec())),
                Err(error) => return self.excuse(&error),
            };
            assert_eq!(found.as_ref(), expected.get(&key[..]), "{at}: {number}");
        }
        let scan = match lane.scan(&KeyRange::all(), usize::MAX, usize::MAX) {
            Ok(scan) => scan,
            Err(error) => return self.excuse(&error),
        };
        let entries = scan.entries.into_iter();
        let found = entries.map(|entry| {
            let version = entry.version;
            (entry.key, (version.offset.0, version.value.to_vec()))
        });
        assert_eq!(found.collect::<Table>(), expected, "{at}");
        assert_eq!(lane.key_stats().indexed_to.0, stable, "{at}");
    }
}

/// The table after all committed records before an offset.
fn table_of(lane: &ModelLane, stable: u64) -> Table {
    // The markers of transactions before the offset may come behind it.
    let aborted = lane.transactions(u64::MAX).aborted;
    let is_aborted = |chunk: &ModelChunk| {
        let is_in = |(id, first, last): &(i64, u64, u64)| {
            chunk.producer.is_some_and(|(other, ..)| other == *id)
                && (*first..*last).contains(&chunk.base)
        };
        chunk.is_transactional && aborted.iter().any(is_in)
    };
    let mut table = Table::new();
    // Where records of an open transaction were deleted, the offset lies within a chunk.
    let before = lane.chunks.iter().take_while(|chunk| chunk.end() <= stable);
    for chunk in before.filter(|chunk| chunk.marker.is_none() && !is_aborted(chunk)) {
        let parsed = Chunk::parse(&chunk.bytes).expect("made by the test");
        let mut decompressor = Decompressor::default();
        let records = parsed.records(&mut decompressor).expect("uncompressed");
        for record in records {
            let record = record.expect("made by the test");
            let Some(key) = record.key else { continue };
            match record.value {
                Some(value) => {
                    let offset = chunk.base + record.offset.0;
                    table.insert(key.to_vec(), (offset, value.to_vec()));
                }
                None => drop(table.remove(key)),
            }
        }
    }
    table
}
