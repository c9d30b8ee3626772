//! Deleting the beginning of a lane, before retention would.
//!
//! Where a lane begins is noted in the catalog. Whole groups before are removed then, as retention
//! removes them; what is left of the first group is passed over by those who read. A note that a
//! lane's first group has reached says nothing any more, and is taken away by the next start.

use std::sync::Arc;

use millstream_base::{GroupId, Offset, Position, StreamId};

use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::ids::LaneId;
use crate::lane::LaneState;
use crate::log::{Inner, Lane, Log};
use crate::produce::wait::wait_durable;
use crate::read::seek::seek_offset;

/// What the keys of these notes begin with in the catalog.
const PREFIX: &str = "start/";

impl Log {
    /// Deletes the records before an offset of each lane. Their room is free as soon as nothing of
    /// their group is left. One answer for each lane: where it begins now, for good.
    ///
    /// # Errors
    /// When the offset is beyond what is durable, the stream is deleted, or the deletion cannot be
    /// noted. On a full disk groups are removed first, to make room for the note.
    pub fn delete_before(&self, lanes: &[(Lane, Offset)]) -> Vec<Result<Offset>> {
        let _one = self.inner.changing.lock();
        let deletions: Vec<Result<Deletion<'_>>> = lanes
            .iter()
            .map(|(lane, offset)| Deletion::new(&lane.core, &lane.lane, *offset))
            .collect();
        let mut noted = self.inner.note_starts(&deletions);
        if noted.as_ref().is_err_and(LogError::is_disk_full) {
            let made_room = deletions.iter().flatten().filter(|deletion| {
                let made_room = deletion.make_room(&self.inner.core);
                made_room.is_ok()
            });
            if made_room.count() > 0 {
                noted = self.inner.note_starts(&deletions);
            }
        }
        let deletions = deletions.into_iter();
        let results = deletions.map(|deletion| {
            let deletion = deletion?;
            noted.clone()?;
            deletion.finish(&self.inner.core);
            Ok(deletion.lane.earliest_offset())
        });
        results.collect()
    }
}

/// What is to be deleted of a lane.
struct Deletion<'a> {
    lane: &'a Arc<LaneState>,
    offset: Offset,
    place: (GroupId, Position),
}

impl Deletion<'_> {
    fn new<'a>(core: &Core, lane: &'a Arc<LaneState>, offset: Offset) -> Result<Deletion<'a>> {
        if lane.is_removed() {
            return Err(LogError::UnknownStream {
                name: lane.stream.name.clone(),
            });
        }
        // What is deleted already stays so.
        let offset = offset.max(lane.earliest_offset());
        let found = seek_offset(&core.reads, lane, offset)?;
        Ok(Deletion {
            lane,
            offset,
            place: (found.group, found.position),
        })
    }

    /// Whether there is anything to delete.
    fn is_needed(&self) -> bool {
        self.offset > self.lane.earliest_offset()
    }

    /// Whether the next start must be told.
    fn is_noted(&self) -> bool {
        self.is_needed() && !self.lane.is_scratch()
    }

    fn key(&self) -> String {
        self.lane.id.to_key(PREFIX)
    }

    /// Removes the groups that the deletion takes as a whole, which needs no note.
    fn make_room(&self, core: &Core) -> Result<()> {
        match self.lane.group(self.place.0) {
            Some(group) if self.is_noted() => core.make_room_before(self.lane, &group),
            _ => Ok(()),
        }
    }

    /// The deletion is noted for good.
    fn finish(&self, core: &Core) {
        if !self.is_needed() {
            return;
        }
        self.lane.start.set(self.offset, self.place);
        if let Err(error) = core.remove_deleted(self.lane) {
            tracing::warn!(stream = %self.lane.stream.name, %error,
                "the room of what was deleted is not free yet; retention tries again");
        }
    }
}

impl Inner {
    /// Returns when all of the notes are durable.
    fn note_starts(&self, deletions: &[Result<Deletion<'_>>]) -> Result<()> {
        let mut end = None;
        for deletion in deletions.iter().flatten().filter(|one| one.is_noted()) {
            let put = self
                .catalog
                .put(&self.core, &deletion.key(), Some(&deletion.offset))?;
            end = Some(put);
        }
        if let Some(end) = end {
            wait_durable(&self.core, self.catalog.lane(), end)?;
            self.catalog.compact(&self.core);
        }
        Ok(())
    }

    /// Takes the notes of a stream away that is deleted. They need not be gone for good: the next
    /// start finds that there is no such stream.
    pub fn forget_starts(&self, stream: StreamId) -> Result<()> {
        for (key, _) in self.catalog.list::<Offset>(&format!("{PREFIX}{stream}/"))? {
            self.catalog.put::<Offset>(&self.core, &key, None)?;
        }
        Ok(())
    }
}

/// What a start finds in the notes.
#[derive(Debug, Default)]
pub struct StoredStarts {
    /// Keys of notes that say nothing any more.
    pub stale: Vec<String>,
    /// The highest number of a stream that a note names.
    pub last_stream: u64,
}

/// Lets lanes begin where the notes say.
pub fn restore_starts(core: &Core, catalog: &Table) -> Result<StoredStarts> {
    let mut starts = StoredStarts::default();
    for (key, offset) in catalog.list::<Offset>(PREFIX)? {
        let id = LaneId::from_key(PREFIX, &key);
        starts.last_stream = starts.last_stream.max(id.map_or(0, |id| id.stream.0));
        let lane = id.and_then(|id| core.stream(id.stream)?.lane(id.streamlet, id.lane));
        let lane = lane.filter(|lane| !lane.is_scratch());
        let Some(lane) = lane.filter(|lane| lane.earliest_offset() < offset) else {
            starts.stale.push(key);
            continue;
        };
        let end = lane.durable_offset();
        if end < offset {
            // The disk lost what came before it; what comes next must not be hidden.
            starts.stale.push(key);
        }
        let offset = offset.min(end);
        let found =
            seek_offset(&core.reads, &lane, offset).map(|found| (found.group, found.position));
        let place = found.unwrap_or_else(|error| {
            tracing::warn!(stream = %lane.stream.name, %error,
                "not found where the lane begins; cursors may be in what was deleted");
            let group = lane.group_of_offset(offset);
            (group.map_or(GroupId(0), |group| group.id), Position(0))
        });
        lane.start.set(offset, place);
    }
    Ok(starts)
}
