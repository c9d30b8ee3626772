//! The indexes of groups that are not in memory otherwise: read when they are needed, kept while they are used.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::Group;
use crate::index::file::Index;
use crate::index::sparse::SparseIndex;
use crate::lane::LaneState;
use crate::recovery::rebuild::reread;

/// How many places of groups that are not in memory are kept, over all groups: some 32 MiB.
const KEPT_MAX: usize = 1 << 20;

/// Groups whose places were read from their indexes. When they are too many, those go that were not
/// used since they were looked at for the last time.
pub struct IndexCache {
    dir: Arc<DataDir>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Those looked at for the last time longest ago come first. With the number of their index.
    groups: VecDeque<(Weak<Group>, usize)>,
    places: usize,
}

impl IndexCache {
    pub fn new(dir: Arc<DataDir>) -> IndexCache {
        IndexCache {
            dir,
            kept: Mutex::default(),
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
            false => reread(&self.dir, lane, group, stored)?,
        };
        let seen = look(&index);
        let points = index.len();
        if group.set_index(index) {
            self.add(group, points);
        }
        Ok(seen)
    }

    fn add(&self, group: &Arc<Group>, places: usize) {
        let mut kept = self.kept.lock();
        kept.groups.push_back((Arc::downgrade(group), places));
        kept.places += places;
        // Each is used at most once more while it is looked at.
        for _ in 0..2 * kept.groups.len() {
            if kept.places <= KEPT_MAX {
                break;
            }
            let Some((oldest, places)) = kept.groups.pop_front() else {
                break;
            };
            match oldest.upgrade() {
                Some(oldest) if oldest.index_is_used() => {
                    kept.groups.push_back((Arc::downgrade(&oldest), places));
                }
                oldest => {
                    kept.places -= places;
                    oldest.inspect(|group| group.forget_index());
                }
            }
        }
    }
}
