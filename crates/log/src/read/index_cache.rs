//! The indexes of groups that are not in memory otherwise: a reader that needs one loads it, and the cache holds it while
//! it is used.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::Group;
use crate::index::file::Index;
use crate::index::sparse::SparseIndex;
use crate::lane::LaneState;
use crate::recovery::rebuild::rebuild_index;

/// The indexes that were read from files. When there are too many, the cache evicts indexes that were not used since
/// its last check of them.
pub struct IndexCache {
    dir: Arc<DataDir>,
    /// The most points in the cache, over all groups.
    points_max: usize,
    cached: Mutex<Cached>,
}

#[derive(Debug, Default)]
struct Cached {
    /// Each group with its number of points; the group that the cache checked longest ago comes first.
    groups: VecDeque<(Weak<Group>, usize)>,
    points: usize,
}

impl IndexCache {
    pub fn new(dir: Arc<DataDir>, points_max: usize) -> IndexCache {
        IndexCache {
            dir,
            points_max,
            cached: Mutex::default(),
        }
    }

    /// Lets `look` see the entries of a group's index; reads the index where memory does not have it.
    pub fn look_at<R>(
        &self,
        lane: &LaneState,
        group: &Arc<Group>,
        look: impl Fn(&SparseIndex) -> R,
    ) -> Result<R> {
        if let Some(seen) = group.look_at_index(&look) {
            return Ok(seen);
        }
        let path = group.index_path(&self.dir);
        let stored = Index::read(&*self.dir.disk, &path, &group.name())
            .map_err(|error| LogError::io("read", &path, error))?;
        let index = match stored.is_whole() {
            true => SparseIndex::of(&stored),
            false => rebuild_index(&self.dir, lane, group, stored)?,
        };
        let seen = look(&index);
        let points = index.len();
        if group.set_index(index) {
            self.add(group, points);
        }
        Ok(seen)
    }

    fn add(&self, group: &Arc<Group>, points: usize) {
        let mut cached = self.cached.lock();
        cached.groups.push_back((Arc::downgrade(group), points));
        cached.points += points;
        // Readers mark each at most once more meanwhile, so this ends.
        for _ in 0..2 * cached.groups.len() {
            if cached.points <= self.points_max {
                break;
            }
            let Some((oldest, points)) = cached.groups.pop_front() else {
                break;
            };
            match oldest.upgrade() {
                Some(oldest) if oldest.index_is_used() => {
                    cached.groups.push_back((Arc::downgrade(&oldest), points));
                }
                oldest => {
                    cached.points -= points;
                    oldest.inspect(|group| group.forget_index());
                }
            }
        }
    }
}
