//! The removal of groups: of their files and their memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::files::DataDir;
use crate::files::manifest::Record;
use crate::group::Group;

impl Group {
    /// Takes the group away: frees its buffers and removes its files. The manifest must not need them any more.
    pub fn remove(&self, dir: &DataDir) -> Result<()> {
        // Not while it is being listed.
        let _one = self.syncing.lock();
        self.remove_files(dir)
    }

    /// Whether it is removed, once a removal that is under way is over: its files go before it counts as removed.
    pub fn is_removed_for_good(&self) -> bool {
        let _removal = self.file.lock();
        self.is_removed()
    }

    fn remove_files(&self, dir: &DataDir) -> Result<()> {
        let mut file = self.file.lock();
        dir.remove_group_files(&self.name())?;
        self.removed.store(true, Ordering::Release);
        file.open = None;
        file.index = None;
        for segment in self.segments.write().iter_mut() {
            segment.buffer = None;
        }
        *self.index.write() = None;
        self.forget_loaded_keys();
        self.unwritten_entries.lock().clear();
        Ok(())
    }
}

/// Takes the first groups of a lane away, oldest first, and calls `gone` with each: `next` becomes the lane's first group.
/// The manifest says so durably before the first file is removed, so a crash leaves files that the next start removes.
///
/// # Errors
/// When the manifest takes no record, or a file cannot be removed: it stays with those behind it.
pub fn remove_first_groups(
    dir: &DataDir,
    groups: &[Arc<Group>],
    next: &Group,
    mut gone: impl FnMut(&Group),
) -> Result<()> {
    // None of them is listed behind the record.
    let _one_each: Vec<_> = groups.iter().map(|group| group.syncing.lock()).collect();
    let first = Record::First {
        lane: next.lane,
        group: next.id,
        offset: next.first_offset,
    };
    let manifest = dir.manifest();
    let appended = manifest.append(&[first])?;
    manifest.sync_to(appended)?;
    for group in groups {
        group.remove_files(dir)?;
        gone(group);
    }
    Ok(())
}
