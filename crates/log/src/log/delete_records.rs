//! Deleting the beginning of a lane, before retention would.
//!
//! Where a lane begins is noted in the catalog. Whole groups before are removed then, as retention
//! removes them; readers pass over the rest of the first group. A note that a
//! lane's first group has reached is obsolete, and the next start removes it.

use std::sync::Arc;

use millstream_base::Offset;

use crate::catalog::lane_starts::note_starts;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::handle::partition::StreamPartition;
use crate::ids::LaneId;
use crate::lane::LaneState;
use crate::lane::start::StartPlace;
use crate::log::Log;
use crate::read::seek::seek_offset;

impl Log {
    /// Deletes the records before an offset of each lane. Their room is free as soon as none of
    /// their group is left. Returns for each lane the offset where it begins now, durably.
    ///
    /// # Errors
    /// When the offset is beyond the durable one, the stream is deleted, or the deletion cannot be
    /// noted. On a full disk groups are removed first, to make room for the note.
    pub fn delete_before(&self, lanes: &[(StreamPartition, Offset)]) -> Vec<Result<Offset>> {
        let _one = self.inner.changing.lock();
        let deletions: Vec<Result<Deletion<'_>>> = lanes
            .iter()
            .map(|(lane, offset)| Deletion::new(&lane.core, &lane.lane, *offset))
            .collect();
        let starts: Vec<(LaneId, Offset)> = deletions
            .iter()
            .flatten()
            .filter(|deletion| deletion.is_noted())
            .map(|deletion| (deletion.lane.id, deletion.offset))
            .collect();
        let note = || note_starts(&self.inner.core, &self.inner.catalog, &starts);
        let mut noted = note();
        if noted.as_ref().is_err_and(LogError::is_disk_full) {
            let made_room = deletions.iter().flatten().filter(|deletion| {
                let made_room = deletion.make_room(&self.inner.core);
                made_room.is_ok()
            });
            if made_room.count() > 0 {
                noted = note();
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

/// The records to be deleted of a lane.
struct Deletion<'a> {
    lane: &'a Arc<LaneState>,
    offset: Offset,
    place: StartPlace,
}

impl Deletion<'_> {
    fn new<'a>(core: &Core, lane: &'a Arc<LaneState>, offset: Offset) -> Result<Deletion<'a>> {
        if lane.is_removed() {
            return Err(LogError::UnknownStream {
                name: lane.stream.name.clone(),
            });
        }
        // Deleted records stay deleted.
        let offset = offset.max(lane.earliest_offset());
        let found = seek_offset(&core.reads, lane, offset)?;
        Ok(Deletion {
            lane,
            offset,
            place: StartPlace::from(&found),
        })
    }

    /// Whether there is anything to delete.
    fn is_needed(&self) -> bool {
        self.offset > self.lane.earliest_offset()
    }

    /// Whether the next start needs a note.
    fn is_noted(&self) -> bool {
        self.is_needed() && !self.lane.is_memory_only()
    }

    /// Removes the groups that the deletion takes as a whole, which needs no note.
    fn make_room(&self, core: &Core) -> Result<()> {
        match self.lane.group(self.place.group) {
            Some(group) if self.is_noted() => core.make_room_before(self.lane, &group),
            _ => Ok(()),
        }
    }

    /// Finishes a deletion whose note is durable.
    fn finish(&self, core: &Core) {
        if !self.is_needed() {
            return;
        }
        self.set_start(core);
        if let Err(error) = core.remove_deleted(self.lane) {
            tracing::warn!(stream = %self.lane.stream.name, %error,
                "the room of deleted records is not free yet; retention tries again");
        }
    }

    fn set_start(&self, core: &Core) {
        let _no_swap = self.lane.changing_groups.lock();
        let group = self.lane.group(self.place.group);
        let is_there = group.is_some_and(|group| self.place.is_in(&group));
        let place = match is_there || self.offset <= self.lane.earliest_offset() {
            true => self.place,
            // The group was rewritten since the place was found.
            false => match seek_offset(&core.reads, self.lane, self.offset) {
                Ok(found) => StartPlace::from(&found),
                Err(error) => {
                    tracing::warn!(stream = %self.lane.stream.name, %error,
                        "the start of the lane was not found; cursors may point at deleted records");
                    StartPlace::of_begin(self.lane.group_of_offset(self.offset).as_deref())
                }
            },
        };
        self.lane.start.set(self.offset, place);
    }
}
