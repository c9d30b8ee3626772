//! Groups that a rewrite has replaced: their files stay until no reader has them, and for some time more.
//!
//! A crash before that leaves files that the manifest does not list, so a start removes them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::group::Group;
use crate::ids::LaneId;

/// The groups that were replaced and have files.
#[derive(Debug, Default)]
pub struct Replaced {
    groups: Mutex<Vec<ReplacedGroup>>,
}

/// A group that was replaced.
#[derive(Debug)]
pub struct ReplacedGroup {
    pub group: Arc<Group>,
    /// No file is removed before this monotonic time.
    pub stays_until: Duration,
}

impl Replaced {
    /// Whether any is of this lane: then a reader may need the markers of its transactions.
    pub fn has_any_of(&self, lane: LaneId) -> bool {
        self.groups.lock().iter().any(|old| old.group.lane == lane)
    }

    /// Adds groups that were replaced just now.
    pub fn add(&self, groups: &[Arc<Group>], stays_until: Duration) {
        let old = groups.iter().map(|group| ReplacedGroup {
            group: Arc::clone(group),
            stays_until,
        });
        self.groups.lock().extend(old);
    }

    /// Locks them, to remove some. Held while their files are removed, so that they count until these are gone.
    pub fn lock(&self) -> MutexGuard<'_, Vec<ReplacedGroup>> {
        self.groups.lock()
    }
}
