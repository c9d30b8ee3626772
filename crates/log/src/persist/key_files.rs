//! The key files of closed groups of keyed streams, made in the background. Those of a stream that is not keyed any more stay
//! until their groups go, since they are right if it is keyed again.

use std::sync::{Arc, Weak};

use crate::core::Core;
use crate::lane::LaneState;
use crate::read::keys::cover::{ensure_key_file, next_group};
use crate::stream::StreamState;

/// How many lanes a step looks at: some 5 ms of work each second. With more lanes a turn takes several steps; till then
/// lookups read the groups that have no key file yet.
const LANES_MAX: usize = 10_000;

impl Core {
    /// Makes at most one key file of each lane that it looks at. `true` when there may be more to do.
    pub fn key_step(&self) -> bool {
        self.key_step_of(LANES_MAX)
    }

    /// As [`key_step`](Self::key_step), for so many lanes at most.
    fn key_step_of(&self, lanes_max: usize) -> bool {
        if self.appends.disk.is_full() {
            return false;
        }
        let mut turn = self.key_turn.lanes.lock();
        if turn.is_empty() {
            *turn = self.keyed_lanes();
        }
        let left = turn.len().saturating_sub(lanes_max);
        let lanes = turn.split_off(left);
        drop(turn);
        let mut worked = false;
        for lane in lanes.iter().filter_map(Weak::upgrade) {
            if self.reads.key_files.is_closing() {
                return false;
            }
            worked |= self.build_next_key_file(&lane);
        }
        worked
    }

    /// Returns the lanes of keyed streams. The memory for keys of others is given back.
    fn keyed_lanes(&self) -> Vec<Weak<LaneState>> {
        let streams: Vec<Arc<StreamState>> = self.streams.read().by_id.values().cloned().collect();
        let mut lanes = Vec::new();
        for stream in streams {
            let shared = &stream.shared;
            if self.is_keyed(shared) {
                lanes.extend(stream.made_lanes().iter().map(Arc::downgrade));
            } else if shared.keyed.take_indexes() {
                forget_tables(&stream);
            }
        }
        lanes
    }

    /// Makes sure that the next group of a lane has a key file.
    fn build_next_key_file(&self, lane: &LaneState) -> bool {
        let covered = lane.made_key_index().map(|index| index.covered());
        let Some((group, end)) = next_group(lane, covered.unwrap_or_default()) else {
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

#[cfg(test)]
mod tests {
    use millstream_base::{ByteSize, Timestamp};
    use millstream_record::{ChunkBuilder, Compression};
    use millstream_sim::{SimClock, SimDisk, SimRandom};

    use super::*;
    use crate::log::Log;
    use crate::settings::config::{Background, Durability, LogConfig, StreamConfig};
    use crate::settings::defaults::{CLEANUP_POLICY, COMPACT};

    #[test]
    fn a_turn_looks_at_all_lanes_in_steps() {
        const LANES: u32 = 5;
        let disk = SimDisk::new(1);
        let config = LogConfig {
            background: Background::Manual,
            ..LogConfig::with_pool("/data", ByteSize(4 << 20))
        };
        let (clock, random) = (SimClock::new(Timestamp(0)), SimRandom::new(1));
        let (clock, random) = (Arc::new(clock), Arc::new(random));
        let log = Log::open_on(config, Arc::new(disk.clone()), clock, random).unwrap();
        let config = StreamConfig {
            lanes: LANES,
            durability: Durability::Async,
            segment: ByteSize(64 << 10),
            group_segments: 1,
            settings: [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into(),
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        let mut builder = ChunkBuilder::new(Compression::None);
        let pushed = builder.push(Timestamp(0), Some(b"k"), Some(&[7; 40_000]), &[]);
        pushed.unwrap();
        let chunk = builder.finish(None).unwrap().to_vec();
        for lane in 0..LANES {
            // The second one closes the group of the first.
            for _ in 0..2 {
                stream.partition(lane).unwrap().append(&chunk).unwrap();
            }
        }
        let core = &log.inner.core;
        while core.sync_step() {}
        log.persist();
        while core.persist_step() {}
        let made = || {
            let files = disk.files().into_iter();
            files
                .filter(|(path, _)| path.extension().is_some_and(|kind| kind == "keys"))
                .count()
        };
        let steps: Vec<(bool, usize)> = (0..4).map(|_| (core.key_step_of(2), made())).collect();
        assert_eq!(steps, [(true, 2), (true, 4), (true, 5), (false, 5)]);
    }
}
