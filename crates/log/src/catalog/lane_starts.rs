//! The first offsets of lanes whose first records were deleted: the catalog holds them.

use millstream_base::{Offset, StreamId};

use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::Result;
use crate::ids::LaneId;
use crate::lane::start::StartPlace;
use crate::produce::wait::wait_durable;
use crate::read::seek::seek_offset;

/// The prefix of the keys of these notes in the catalog.
const PREFIX: &str = "start/";

/// The notes as a start finds them.
#[derive(Debug, Default)]
pub struct StoredStarts {
    /// Keys of obsolete notes.
    pub stale: Vec<String>,
    /// The highest number of a stream that a note names.
    pub last_stream: u64,
}

/// Lets lanes begin at the offsets of the notes.
pub fn restore_starts(core: &Core, catalog: &Table) -> Result<StoredStarts> {
    let mut starts = StoredStarts::default();
    for (key, offset) in catalog.list::<Offset>(PREFIX)? {
        let id = LaneId::from_key(PREFIX, &key);
        starts.last_stream = starts.last_stream.max(id.map_or(0, |id| id.stream.0));
        let lane = id.and_then(|id| core.stream(id.stream)?.lane(id.streamlet, id.lane));
        let lane = lane.filter(|lane| !lane.is_memory_only());
        let Some(lane) = lane.filter(|lane| lane.earliest_offset() < offset) else {
            starts.stale.push(key);
            continue;
        };
        let end = lane.durable_offset();
        if end < offset {
            // The disk lost the records before it; new records must not be hidden.
            starts.stale.push(key);
        }
        let offset = offset.min(end);
        let found = seek_offset(&core.reads, &lane, offset);
        let place = found.map(|found| StartPlace::from(&found));
        let place = place.unwrap_or_else(|error| {
            tracing::warn!(stream = %lane.stream.name, %error,
                "the start of the lane was not found; cursors may point at deleted records");
            StartPlace::of_begin(lane.group_of_offset(offset).as_deref())
        });
        lane.start.set(offset, place);
    }
    Ok(starts)
}

/// Notes where lanes begin; returns when all of the notes are durable.
pub fn note_starts(core: &Core, catalog: &Table, starts: &[(LaneId, Offset)]) -> Result<()> {
    let mut end = None;
    for (lane, offset) in starts {
        end = Some(catalog.put(core, &lane.to_key(PREFIX), Some(offset))?);
    }
    if let Some(end) = end {
        wait_durable(core, catalog.lane(), end)?;
        catalog.compact(core);
    }
    Ok(())
}

/// Removes the notes of a stream that is deleted. The removal need not be durable: the next start finds
/// no such stream.
pub fn forget_starts(core: &Core, catalog: &Table, stream: StreamId) -> Result<()> {
    for (key, _) in catalog.list::<Offset>(&format!("{PREFIX}{stream}/"))? {
        catalog.put::<Offset>(core, &key, None)?;
    }
    Ok(())
}
