//! Key files of keyed streams, in the background: those of groups that are closed, and the removal of those that are not
//! needed any more. The key files of a stream that is not keyed any more stay until their groups go, since they are right
//! if it is keyed again.

use std::io;
use std::sync::Arc;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::lane::LaneState;
use crate::read::keys::cover::{ensure_key_file, next_group};
use crate::stream::StreamState;

impl Core {
    /// Makes at most one key file of each lane. `true` when there may be more to do.
    pub fn key_step(&self) -> bool {
        if self.appends.disk.is_full() {
            return false;
        }
        let streams: Vec<Arc<StreamState>> = self.streams.read().by_id.values().cloned().collect();
        let mut worked = false;
        for stream in streams {
            let shared = &stream.shared;
            if !self.is_keyed(shared) {
                if shared.keyed.take_indexes() {
                    forget_tables(&stream);
                }
                continue;
            }
            if shared.keyed.begin_cleaning()
                && let Err(error) = self.remove_stray_key_files(&stream)
            {
                tracing::warn!(stream = %shared.name, %error,
                    "key files that are not needed any more stay until the next start");
            }
            for lane in stream.made_lanes() {
                if self.reads.key_files.is_closing() {
                    return false;
                }
                worked |= self.build_next_key_file(&lane);
            }
        }
        worked
    }

    /// Makes sure that the next group of a lane has a key file.
    fn build_next_key_file(&self, lane: &LaneState) -> bool {
        let covered = lane.made_key_index().map(|index| index.covered());
        let stable = lane.last_stable_offset();
        let Some((group, end)) = next_group(lane, covered.unwrap_or_default(), stable) else {
            return false;
        };
        let partitions = lane.stream.partition_count();
        let index = lane.key_index(partitions);
        let Some(counts) = ensure_key_file(&self.reads, lane, index, &group, &end) else {
            return false;
        };
        let update = index.update();
        update.set_partitions(partitions);
        // A lookup may have found a damaged key file meanwhile.
        let earliest = lane.earliest_offset();
        let first = update.covered().max(earliest);
        if group.first_offset <= first && first < end.offset && group.key_counts().is_some() {
            update.cover(end.offset, &counts);
            update.sweep(earliest);
        }
        true
    }

    /// Removes key files in a stream's folder that were not finished, or whose groups are gone.
    fn remove_stray_key_files(&self, stream: &StreamState) -> Result<()> {
        for found in self.dir.list_key_files(stream.shared.id)? {
            let id = found.group.lane;
            let Some(lane) = stream.lane(id.streamlet, id.lane) else {
                continue;
            };
            // Lest it is one that is being made.
            let _building = lane.key_index(stream.partition_count()).build();
            let group = lane.group(found.group.id);
            let has_group = group.is_some_and(|group| group.name() == found.group);
            if found.is_finished && has_group {
                continue;
            }
            match self.dir.disk.remove_file(&found.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(LogError::io("remove", found.path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Gives back the memory for the keys of a stream.
fn forget_tables(stream: &StreamState) {
    for lane in stream.made_lanes() {
        if let Some(index) = lane.made_key_index() {
            index.update().forget();
            lane.groups()
                .iter()
                .for_each(|group| group.forget_loaded_keys());
        }
    }
}
