//! The key file of a group: whether it is there, and the parts of it that memory has.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::disk::Access;

use crate::files::DataDir;
use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::keys::file::read::KeyFile;
use crate::keys::file::{Horizons, KeyCounts, KeyFileError};

/// The state of a group's key file. Changed by the thread that reads or makes the file; read by lookups.
#[derive(Debug, Default)]
pub struct GroupKeys {
    /// The counts of the key file, if it is there.
    counts: Option<KeyCounts>,
    /// The parts for lookups, if memory has them.
    loaded: Option<Arc<KeyFile>>,
    /// Whether a lookup found that the file is damaged or lost.
    is_damaged: bool,
}

impl Group {
    /// Returns the counts of its key file; `None` if it is not known to be there.
    pub fn key_counts(&self) -> Option<KeyCounts> {
        self.keys.read().counts
    }

    /// Returns when its tombstones and markers may go, if its key file tells.
    pub fn horizons(&self) -> Option<Horizons> {
        self.key_counts()?.horizons
    }

    /// Whether a lookup found that the key file is damaged or lost.
    pub fn has_damaged_keys(&self) -> bool {
        self.keys.read().is_damaged
    }

    /// Notes that its key file is there, whole as far as it was read.
    pub fn note_key_file(&self, counts: KeyCounts) {
        *self.keys.write() = GroupKeys {
            counts: Some(counts),
            loaded: None,
            is_damaged: false,
        };
    }

    /// Notes that its key file is damaged or lost. `false` if that is known, or the file was made anew since it was read:
    /// then its parts in memory are no longer `used`.
    pub fn lose_key_file(&self, used: Option<&Arc<KeyFile>>) -> bool {
        let mut keys = self.keys.write();
        let is_other = match (used, &keys.loaded) {
            (Some(used), Some(loaded)) => !Arc::ptr_eq(used, loaded),
            _ => false,
        };
        if is_other || keys.counts.is_none() {
            return false;
        }
        *keys = GroupKeys {
            is_damaged: true,
            ..GroupKeys::default()
        };
        true
    }

    /// Reads the counts of its key file.
    pub fn read_key_counts(
        &self,
        dir: &DataDir,
        end: &GroupEnd,
    ) -> Result<KeyCounts, KeyFileError> {
        let file = dir.disk.open(&dir.keys_path(&self.name()), Access::Read)?;
        KeyFile::read_counts(&*file, &self.name(), end.offset)
    }

    /// Returns the parts of its key file that memory has.
    pub fn loaded_keys(&self) -> Option<Arc<KeyFile>> {
        let loaded = self.keys.read().loaded.clone();
        if !self.keys_used.load(Ordering::Relaxed) {
            self.keys_used.store(true, Ordering::Relaxed);
        }
        loaded
    }

    /// Takes over parts of its key file that were read. `false` when memory has them already.
    pub fn set_loaded_keys(&self, loaded: Arc<KeyFile>) -> bool {
        let mut keys = self.keys.write();
        let is_news = keys.loaded.is_none() && keys.counts.is_some() && !self.is_removed();
        if is_news {
            keys.loaded = Some(loaded);
        }
        is_news
    }

    /// Whether the parts in memory were used since the last call.
    pub fn keys_are_used(&self) -> bool {
        self.keys_used.swap(false, Ordering::Relaxed)
    }

    /// Gives back the memory of its key file.
    pub fn forget_loaded_keys(&self) {
        self.keys.write().loaded = None;
    }
}
