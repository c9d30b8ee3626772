//! The key files of a group: whether they are there, and the parts of them that memory has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_base::disk::Access;

use crate::files::DataDir;
use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::keys::file::read::KeyFile;
use crate::keys::file::{Horizons, KeyCounts, KeyFileError};
use crate::keys::kind::KeyKind;
use crate::keys::secondary::name::SecondaryName;

/// The states of a group's key files.
#[derive(Debug, Default)]
pub struct GroupKeys {
    primary: KeyFileState,
    /// The states of known secondary key files, in no particular order.
    secondary: Vec<(SecondaryName, KeyFileState)>,
}

/// The state of a key file. Changed by the thread that reads or makes the file; read by lookups.
#[derive(Debug, Default)]
struct KeyFileState {
    /// The counts of the key file, if it is there.
    counts: Option<KeyCounts>,
    /// The parts for lookups, if memory has them.
    loaded: Option<Arc<KeyFile>>,
    /// Whether a lookup found that the file is damaged or lost.
    is_damaged: bool,
    /// Whether the parts in memory were used since the cache last asked.
    is_used: AtomicBool,
}

impl GroupKeys {
    fn get(&self, kind: &KeyKind) -> Option<&KeyFileState> {
        let KeyKind::Secondary(name) = kind else {
            return Some(&self.primary);
        };
        let mut known = self.secondary.iter();
        known.find_map(|(other, state)| (other == name).then_some(state))
    }

    fn get_mut(&mut self, kind: &KeyKind) -> &mut KeyFileState {
        let KeyKind::Secondary(name) = kind else {
            return &mut self.primary;
        };
        let known = self.secondary.iter().position(|(other, _)| other == name);
        let at = known.unwrap_or_else(|| {
            self.secondary.push((name.clone(), KeyFileState::default()));
            self.secondary.len() - 1
        });
        &mut self.secondary[at].1
    }
}

impl Group {
    /// Returns the counts of the file of its keys; `None` if that is not known to be there.
    pub fn key_counts(&self) -> Option<KeyCounts> {
        self.keys.read().primary.counts
    }

    /// Returns the counts of a key file; `None` if it is not known to be there.
    pub fn counts_of(&self, kind: &KeyKind) -> Option<KeyCounts> {
        self.keys.read().get(kind)?.counts
    }

    /// Returns when its tombstones and markers may be removed, if its key file says so.
    pub fn horizons(&self) -> Option<Horizons> {
        self.key_counts()?.horizons
    }

    /// Whether a lookup found that a key file is damaged or lost.
    pub fn has_damaged_keys(&self, kind: &KeyKind) -> bool {
        self.keys
            .read()
            .get(kind)
            .is_some_and(|keys| keys.is_damaged)
    }

    /// Records that a key file exists, and is undamaged as far as it was read.
    pub fn note_key_file(&self, kind: &KeyKind, counts: KeyCounts) {
        *self.keys.write().get_mut(kind) = KeyFileState {
            counts: Some(counts),
            ..KeyFileState::default()
        };
    }

    /// Records that a key file is damaged or lost. Returns `false` if that is known, or the file was rebuilt since it was read:
    /// then its parts in memory are no longer `used`.
    pub fn lose_key_file(&self, kind: &KeyKind, used: Option<&Arc<KeyFile>>) -> bool {
        let mut keys = self.keys.write();
        let keys = keys.get_mut(kind);
        let is_other = match (used, &keys.loaded) {
            (Some(used), Some(loaded)) => !Arc::ptr_eq(used, loaded),
            _ => false,
        };
        if is_other || keys.counts.is_none() {
            return false;
        }
        *keys = KeyFileState {
            is_damaged: true,
            ..KeyFileState::default()
        };
        true
    }

    /// Reads the counts of a key file.
    pub fn read_key_counts(
        &self,
        dir: &DataDir,
        kind: &KeyKind,
        end: &GroupEnd,
    ) -> Result<KeyCounts, KeyFileError> {
        let name = self.name();
        let file = dir
            .disk
            .open(&dir.key_file_path(&name, kind), Access::Read)?;
        KeyFile::read_counts(&*file, &name, kind, end.offset)
    }

    /// Returns the parts of a key file that memory has.
    pub fn loaded_keys(&self, kind: &KeyKind) -> Option<Arc<KeyFile>> {
        let keys = self.keys.read();
        let keys = keys.get(kind)?;
        if !keys.is_used.load(Ordering::Relaxed) {
            keys.is_used.store(true, Ordering::Relaxed);
        }
        keys.loaded.clone()
    }

    /// Takes over parts of a key file that were read. `false` when memory has them already.
    pub fn set_loaded_keys(&self, kind: &KeyKind, loaded: Arc<KeyFile>) -> bool {
        let mut keys = self.keys.write();
        let keys = keys.get_mut(kind);
        let is_news = keys.loaded.is_none() && keys.counts.is_some() && !self.is_removed();
        if is_news {
            keys.loaded = Some(loaded);
        }
        is_news
    }

    /// Whether the parts of a key file in memory were used since the last call.
    pub fn keys_are_used(&self, kind: &KeyKind) -> bool {
        let keys = self.keys.read();
        let keys = keys.get(kind);
        keys.is_some_and(|keys| keys.is_used.swap(false, Ordering::Relaxed))
    }

    /// Gives back the memory of a key file.
    pub fn forget_loaded(&self, kind: &KeyKind) {
        self.keys.write().get_mut(kind).loaded = None;
    }

    /// Gives back the memory of its key files.
    pub fn forget_loaded_keys(&self) {
        let mut keys = self.keys.write();
        keys.primary.loaded = None;
        keys.secondary
            .iter_mut()
            .for_each(|(_, keys)| keys.loaded = None);
    }

    /// Forgets the file of an index of secondary keys, before it is removed.
    pub fn forget_secondary(&self, name: &SecondaryName) {
        let mut keys = self.keys.write();
        keys.secondary.retain(|(other, _)| other != name);
    }
}
