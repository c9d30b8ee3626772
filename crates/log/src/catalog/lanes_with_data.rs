//! Which lanes have data: noted in the catalog, so that a start misses files that were removed.
//!
//! A lane is noted when it got its first file, and all that have durable data are when the log is closed. A
//! lane that once had a file always has one: retention leaves the last one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::{Offset, Position, StreamId};

use crate::catalog::CATALOG;
use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::ids::LaneId;
use crate::lane::LaneState;
use crate::produce::wait::wait_durable;

/// The prefix of the keys of these notes in the catalog.
const PREFIX: &str = "data/";

impl Core {
    /// Lets lanes that get files be noted in the catalog.
    pub fn remember(&self, catalog: &Arc<Table>) {
        let _ = self.catalog.set(Arc::downgrade(catalog));
        let lanes = self.made_lanes().into_iter();
        let with_files = lanes.filter(|lane| lane.groups().iter().any(|group| group.has_file()));
        let ids = with_files.map(|lane| lane.id).collect();
        *self.dir.named.lock() = ids;
    }

    /// Notes the lanes that got files. A note that cannot be made now is made at the next call.
    pub fn note_data(&self) {
        let mut named = std::mem::take(&mut *self.dir.named.lock());
        if named.is_empty() {
            return;
        }
        let Some(catalog) = self.catalog.get().and_then(std::sync::Weak::upgrade) else {
            return;
        };
        while let Some(id) = named.pop() {
            let lane = self.stream(id.stream);
            let lane = lane.and_then(|stream| stream.lane(id.streamlet, id.lane));
            let Some(lane) = lane.filter(|lane| is_to_be_noted(lane)) else {
                continue;
            };
            match catalog.try_put(
                &self.appends,
                self.clock.now(),
                &id.to_key(PREFIX),
                Some(&true),
            ) {
                Ok(Some(_)) => lane.has_data_noted.store(true, Ordering::Relaxed),
                Ok(None) | Err(_) => {
                    named.push(id);
                    break;
                }
            }
        }
        self.dir.named.lock().append(&mut named);
    }
}

fn is_to_be_noted(lane: &LaneState) -> bool {
    // A start that finds streams without a catalog reports that the catalog is missing.
    lane.id.stream != CATALOG
        && !lane.is_memory_only()
        && !lane.is_removed()
        && !lane.has_data_noted.load(Ordering::Relaxed)
}

/// Notes all lanes that have durable data.
pub fn note_all_data(core: &Core, catalog: &Table, lanes: &[Arc<LaneState>]) {
    for lane in lanes.iter().filter(|lane| is_to_be_noted(lane)) {
        // The next start must not miss data that was never durable.
        let _ = wait_durable(core, lane, lane.next_offset());
        if lane.durable_offset() == Offset(0) {
            continue;
        }
        match catalog.put(core, &lane.id.to_key(PREFIX), Some(&true)) {
            Ok(_) => lane.has_data_noted.store(true, Ordering::Relaxed),
            // The next start notes those that have files.
            Err(error) => {
                tracing::warn!(%error, "the catalog could not note all lanes that have data; the next start notes those with files");
                return;
            }
        }
    }
}

/// Takes the notes of a stream away that is deleted.
pub fn forget_data(core: &Core, catalog: &Table, stream: StreamId) -> Result<()> {
    for (key, _) in catalog.list::<bool>(&format!("{PREFIX}{stream}/"))? {
        catalog.put::<bool>(core, &key, None)?;
    }
    Ok(())
}

/// Finds lanes that had data and have none any more: they refuse writes, and reads fail. Returns the
/// keys of notes that are obsolete.
pub fn check_data(core: &Core, catalog: &Table) -> Result<Vec<String>> {
    let mut stale = Vec::new();
    for (key, _) in catalog.list::<bool>(PREFIX)? {
        let id = LaneId::from_key(PREFIX, &key);
        let lane = id.and_then(|id| core.stream(id.stream)?.lane(id.streamlet, id.lane));
        let Some(lane) = lane.filter(|lane| !lane.is_memory_only()) else {
            stale.push(key);
            continue;
        };
        lane.has_data_noted.store(true, Ordering::Relaxed);
        if lane.first_group().is_none() {
            let LaneId {
                streamlet, lane: n, ..
            } = lane.id;
            let what = format!(
                "streamlet {streamlet}, lane {n} of stream {} had data, and all of its files are missing",
                lane.stream.name
            );
            let path = core.dir.stream_dir(lane.id.stream);
            lane.found_fault(LogError::corrupted(path, Position(0), what));
        }
    }
    Ok(stale)
}
