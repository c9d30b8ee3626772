//! The key files of closed groups of keyed streams, made in the background. Key files of a stream that is no longer
//! keyed stay until their groups are removed, since they are right if it is keyed again.

use std::sync::{Arc, Weak};

use millstream_base::Offset;

use crate::core::Core;
use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::keys::index::KeyIndex;
use crate::keys::kind::KeyKind;
use crate::keys::secondary::name::SecondaryName;
use crate::lane::LaneState;
use crate::read::keys::cover::{ensure_key_file, first_without_file, next_group};
use crate::stream::StreamState;

/// The number of lanes that a step checks: some 5 ms of work each second. With more lanes a turn takes several steps; till then
/// lookups read the groups that have no key file yet.
const LANES_MAX: usize = 10_000;

impl Core {
    /// Makes at most one key file of each lane that it looks at. `true` when there may be more to do.
    pub fn key_step(&self) -> bool {
        self.key_step_of(LANES_MAX)
    }

    /// Does one [`key_step`](Self::key_step) for at most `lanes_max` lanes.
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
            for name in &*lane.stream.limits.secondary() {
                worked |= self.build_next_secondary(&lane, name);
            }
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
                self.drop_secondary(&stream);
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
        self.cover_group(lane, lane.key_index(partitions), &group, &end)
    }

    /// Makes sure that the next group of a lane has a file of these secondary keys.
    fn build_next_secondary(&self, lane: &LaneState, name: &SecondaryName) -> bool {
        let made = lane.made_secondary_index(name);
        let covered = made.map_or_else(Offset::default, |index| index.covered());
        let kind = KeyKind::Secondary(name.clone());
        let index = || lane.secondary_index(name, lane.stream.partition_count());
        if let Some(group) = first_without_file(lane, &kind, covered)
            && let Some(end) = group.end()
        {
            return ensure_key_file(&self.reads, lane, &index(), &group, &end).is_some();
        }
        match next_group(lane, covered) {
            Some((group, end)) => self.cover_group(lane, &index(), &group, &end),
            None => false,
        }
    }

    /// Makes sure that a group has the key file of an index, and lets it stand for the records of the group.
    fn cover_group(
        &self,
        lane: &LaneState,
        index: &KeyIndex,
        group: &Arc<Group>,
        end: &GroupEnd,
    ) -> bool {
        let Some(counts) = ensure_key_file(&self.reads, lane, index, group, end) else {
            return false;
        };
        let update = index.update();
        update.set_partitions(lane.stream.partition_count());
        // A lookup may have found a damaged key file meanwhile.
        let earliest = lane.earliest_offset();
        let first = update.covered().max(earliest);
        let is_there = group.counts_of(index.kind()).is_some();
        if group.first_offset <= first && first < end.offset && is_there {
            update.cover(end.offset, &counts);
            update.sweep(earliest);
        }
        true
    }

    /// Drops the indexes of secondary keys that a stream has no more, with their files. One that fails is tried again in the
    /// next turn.
    fn drop_secondary(&self, stream: &StreamState) {
        let Some(_right) = self.reads.key_files.begin_build() else {
            return;
        };
        let (id, wanted) = (stream.shared.id, stream.shared.limits.secondary());
        let lanes = stream.made_lanes();
        let taken = lanes.iter();
        let taken: Vec<Arc<KeyIndex>> = taken
            .flat_map(|lane| lane.take_secondary_indexes(&wanted))
            .collect();
        let stored = self.dir.secondary_of(id).into_iter();
        let unwanted: Vec<SecondaryName> = stored.filter(|name| !wanted.contains(name)).collect();
        if unwanted.is_empty() || stream.is_removed() {
            return;
        }
        // Files that are being made.
        taken.iter().for_each(|index| drop(index.build()));
        for name in unwanted {
            for group in lanes.iter().flat_map(|lane| lane.groups()) {
                group.forget_secondary(&name);
            }
            if let Err(error) = self.dir.remove_secondary(id, &name) {
                tracing::warn!(stream = %stream.shared.name, index = %&*name, %error,
                    "the files of an index of secondary keys cannot be removed now");
            }
        }
    }
}

/// Gives back the memory for the keys of a stream.
fn forget_tables(stream: &StreamState) {
    for lane in stream.made_lanes() {
        if let Some(index) = lane.made_key_index() {
            index.update().forget();
        }
        for index in lane.secondary_indexes() {
            index.update().forget();
        }
        lane.groups()
            .iter()
            .for_each(|group| group.forget_loaded_keys());
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
    fn a_round_checks_all_lanes_for_missing_key_files_in_steps() {
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
