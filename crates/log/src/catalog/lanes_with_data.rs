//! Which lanes have data, as programs of format 2 noted it in the catalog: so a start misses files that were removed before
//! the directory was upgraded. Since then the manifest lists the files.

use millstream_base::{Position, StreamId};

use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::ids::LaneId;

/// The prefix of the keys of these notes in the catalog.
const PREFIX: &str = "data/";

/// Takes the notes of a stream away that is deleted.
pub fn forget_data(core: &Core, catalog: &Table, stream: StreamId) -> Result<()> {
    for (key, _) in catalog.list::<bool>(&format!("{PREFIX}{stream}/"))? {
        catalog.put::<bool>(core, &key, None)?;
    }
    Ok(())
}

/// Finds lanes that had data and have none any more: they refuse writes, and reads fail. Returns the
/// keys of obsolete notes: notes about any other lane.
pub fn check_data(core: &Core, catalog: &Table) -> Result<Vec<String>> {
    let mut stale = Vec::new();
    for (key, _) in catalog.list::<bool>(PREFIX)? {
        let id = LaneId::from_key(PREFIX, &key);
        let lane = id.and_then(|id| core.stream(id.stream)?.lane(id.streamlet, id.lane));
        let is_listed = |id| {
            let manifest = core.dir.manifest();
            manifest.look_at(|listed| listed.lane(id).is_some())
        };
        let lane = lane.filter(|lane| !lane.is_memory_only() && !is_listed(lane.id));
        match lane.filter(|lane| lane.first_group().is_none()) {
            Some(lane) => {
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
            None => stale.push(key),
        }
    }
    Ok(stale)
}
