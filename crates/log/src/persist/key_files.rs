//! The key files of closed groups of keyed streams, made in the background. Those of a stream that is not keyed any more stay
//! until their groups go, since they are right if it is keyed again.

use std::sync::Arc;

use crate::core::Core;
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
