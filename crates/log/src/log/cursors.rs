//! Reads from cursors, and the shared groups that read a stream together.

use std::sync::Arc;

use millstream_base::Cursor;

use crate::error::{LogError, Result};
use crate::handle::readers::ReadChunks;
use crate::lane::LaneState;
use crate::lane::recent_reads::ReadSpan;
use crate::log::Log;
use crate::names::check_name;
use crate::read::from_cursor::read_from_cursor;
use crate::shared_group::SharedGroup;

impl Log {
    /// Reads durable chunks from a cursor on, within its group; `None` at the durable position. If compaction has rewritten
    /// the group since the cursor was made, the read begins with the rewritten group, so some records come again.
    ///
    /// # Errors
    /// When the cursor points at nothing that is or was stored.
    pub fn read(&self, cursor: &Cursor, bytes_max: usize) -> Result<Option<ReadChunks>> {
        let stream = self.stream_by_id(cursor.stream)?;
        let lanes = stream.streamlet(cursor.streamlet)?;
        let found = lanes
            .iter()
            .find_map(|lane| lane.group_of(cursor).map(|found| (lane, found)));
        let Some((lane, (group, position))) = found else {
            let behind =
                |lane: &LaneState| lane.group_behind_removed(cursor.group, cursor.position);
            if lanes.iter().any(|lane| behind(lane).is_some()) {
                return Ok(None);
            }
            let earliest = lanes
                .iter()
                .filter_map(|lane| lane.first_group().map(|group| (group.id, lane)))
                .min_by_key(|(id, _)| *id);
            return Err(match earliest {
                Some((id, lane)) if cursor.group < id => LogError::CursorRemoved {
                    cursor: *cursor,
                    earliest: lane.earliest_cursor(),
                },
                _ => LogError::BadCursor {
                    cursor: *cursor,
                    why: "there is no such group".to_owned(),
                },
            });
        };
        if lane.start.is_behind(&group, position) {
            return Err(LogError::CursorRemoved {
                cursor: *cursor,
                earliest: lane.earliest_cursor(),
            });
        }
        let bytes = read_from_cursor(&self.inner.core.reads, lane, &group, position, bytes_max)?;
        Ok(bytes.map(|bytes| {
            let behind = position.plus(bytes.len() as u64);
            let span = ReadSpan::within(&group, position, behind);
            lane.note_read(span, self.inner.core.clock.monotonic());
            ReadChunks {
                cursor: group.cursor(position),
                lane: lane.id.lane,
                next: group.cursor(behind),
                bytes,
            }
        }))
    }

    /// Reads from several cursors (multiReadChunks of kera, table 6.1): one result for each, at most
    /// about `bytes_max` together, unless the first chunk alone is larger.
    pub fn read_all(
        &self,
        cursors: &[Cursor],
        bytes_max: usize,
    ) -> Vec<Result<Option<ReadChunks>>> {
        let mut left = bytes_max;
        cursors
            .iter()
            .map(|cursor| {
                if left == 0 {
                    return Ok(None);
                }
                let read = self.read(cursor, left)?;
                let bytes = read.as_ref().map_or(0, |chunks| chunks.bytes.len());
                left = left.saturating_sub(bytes);
                Ok(read)
            })
            .collect()
    }

    /// Returns the shared group of this name on a stream.
    ///
    /// # Errors
    /// When there is no such stream, or the name is refused.
    pub fn shared_group(&self, stream: &str, name: &str) -> Result<Arc<SharedGroup>> {
        check_name(name)?;
        let stream = self.stream(stream)?.stream;
        let mut shared_groups = self.inner.shared_groups.lock();
        let key = (stream.shared.id, name.to_owned());
        if let Some(shared_group) = shared_groups.get(&key) {
            return Ok(Arc::clone(shared_group));
        }
        let shared_group = Arc::new(SharedGroup::open(
            Arc::clone(&self.inner.core),
            stream,
            Arc::clone(&self.inner.positions),
            name,
        )?);
        shared_groups.insert(key, Arc::clone(&shared_group));
        Ok(shared_group)
    }
}
