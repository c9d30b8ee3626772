//! The indexes of a lane's secondary keys, and the sizes of all its key indexes.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::keys::index::KeyIndex;
use crate::keys::kind::KeyKind;
use crate::keys::secondary::name::SecondaryName;
use crate::keys::table::KeyStats;
use crate::lane::LaneState;

/// The indexes of a lane's secondary keys. Each is made when it is first needed.
#[derive(Debug, Default)]
pub struct SecondaryIndexes(RwLock<Vec<Arc<KeyIndex>>>);

impl LaneState {
    /// Returns the index of the lane's secondary keys of this name, which may be empty, and may be of another number of
    /// partitions.
    pub fn secondary_index(&self, name: &SecondaryName, partitions: u32) -> Arc<KeyIndex> {
        self.stream.keyed.note_index();
        if let Some(made) = self.made_secondary_index(name) {
            return made;
        }
        let mut indexes = self.secondary.0.write();
        let made = indexes.iter().find(|index| is_of(index, name));
        if let Some(made) = made {
            return Arc::clone(made);
        }
        let kind = KeyKind::Secondary(name.clone());
        let has_files = !self.is_memory_only();
        let new = Arc::new(KeyIndex::new(kind, self.partition, partitions, has_files));
        indexes.push(Arc::clone(&new));
        new
    }

    /// Returns the index of the lane's secondary keys of this name, if there is one.
    pub fn made_secondary_index(&self, name: &SecondaryName) -> Option<Arc<KeyIndex>> {
        let indexes = self.secondary.0.read();
        indexes.iter().find(|index| is_of(index, name)).cloned()
    }

    /// Returns the existing indexes of the lane's secondary keys.
    pub fn secondary_indexes(&self) -> Vec<Arc<KeyIndex>> {
        self.secondary.0.read().clone()
    }

    /// Returns how many records there are of which an index of secondary keys leaves some out; `None` if there is no index.
    pub fn partly_indexed(&self) -> Option<u64> {
        let indexes = self.secondary_indexes();
        let left_out = indexes.iter().map(|index| self.stats_of(index).without_key);
        (!indexes.is_empty()).then(|| left_out.sum())
    }

    /// Takes the indexes of secondary keys away whose names are not `wanted`, and returns them.
    pub fn take_secondary_indexes(&self, wanted: &[SecondaryName]) -> Vec<Arc<KeyIndex>> {
        let is_wanted = |index: &Arc<KeyIndex>| wanted.iter().any(|name| is_of(index, name));
        if self.secondary.0.read().iter().all(is_wanted) {
            return Vec::new();
        }
        let mut indexes = self.secondary.0.write();
        let taken = indexes.extract_if(.., |index| !is_wanted(index));
        taken.collect()
    }

    /// Returns the size of one of the lane's key indexes.
    pub fn stats_of(&self, index: &KeyIndex) -> KeyStats {
        let (covered, mut stats) = (index.covered(), index.stats());
        for group in self.groups() {
            if group.end().is_none_or(|end| end.offset > covered) {
                break;
            }
            if let Some(counts) = group.counts_of(index.kind()) {
                stats.files += 1;
                stats.file_bytes += counts.file_bytes;
                stats.keys += counts.keys - counts.tombstones;
                stats.misplaced += counts.misplaced;
                stats.without_key += counts.without_key;
            }
        }
        stats
    }
}

fn is_of(index: &KeyIndex, name: &SecondaryName) -> bool {
    matches!(index.kind(), KeyKind::Secondary(other) if other == name)
}
