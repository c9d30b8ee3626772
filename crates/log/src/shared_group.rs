//! Shared groups: their consumers divide the groups of a stream's lanes, and each group is handed to one consumer at a
//! time.
//!
//! Several consumers read different groups of one streamlet at once (kera 6.2.3). A consumer commits its positions in
//! its groups. Its unfinished groups go to the next consumer that asks, from the committed position on. Committed
//! positions are durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{Cursor, GroupId, Offset, Position, StreamletIndex};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::group::Group;
use crate::produce::wait::wait_durable;
use crate::read::from_cursor::{beyond_end, no_chunk, starts_chunk};
use crate::stream::StreamState;

/// The progress of a shared group in one streamlet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    /// All groups below this one are done.
    done_below: GroupId,
    /// The done groups among the others.
    done: BTreeSet<GroupId>,
    /// The committed positions of the begun groups.
    begun: BTreeMap<GroupId, Position>,
    /// The generations of the begun groups that were rewritten: a position holds for one of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    generations: BTreeMap<GroupId, u32>,
}

#[derive(Debug, Default)]
struct HandOut {
    progress: Progress,
    /// The reader that has each group.
    given: BTreeMap<GroupId, Holder>,
}

/// A reader that has groups. Several readers may have the same consumer's name one after the other, the next one before
/// the last one has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    consumer: Arc<str>,
    /// The reader's number. `None` for consumers that ask for groups by name.
    reader: Option<u64>,
}

impl Holder {
    pub fn consumer(&self) -> &str {
        &self.consumer
    }
}

/// A shared group of one stream: hands out groups, and stores the committed positions.
pub struct SharedGroup {
    core: Arc<Core>,
    stream: Arc<StreamState>,
    positions: Arc<Table>,
    name: String,
    streamlets: Mutex<BTreeMap<StreamletIndex, HandOut>>,
    /// The number of the next reader.
    next_reader: AtomicU64,
}

/// A noted position that is not durable yet.
#[derive(Debug)]
#[must_use = "it is not durable before `finish_commit` returns"]
pub struct Commit {
    /// The offset up to which the table of positions must become durable.
    end: Option<Offset>,
}

impl std::fmt::Debug for SharedGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedGroup")
            .field("name", &self.name)
            .field("stream", &self.stream.shared.name)
            .finish_non_exhaustive()
    }
}

impl SharedGroup {
    pub(crate) fn open(
        core: Arc<Core>,
        stream: Arc<StreamState>,
        positions: Arc<Table>,
        name: &str,
    ) -> Result<SharedGroup> {
        let shared = &stream.shared;
        shared.has_shared_groups.store(true, Ordering::Release);
        let prefix = format!("{}/{name}/", shared.id);
        let mut streamlets = BTreeMap::new();
        for (key, progress) in positions.list::<Progress>(&prefix)? {
            if let Ok(streamlet) = key[prefix.len()..].parse() {
                let hand_out = HandOut {
                    progress,
                    given: BTreeMap::new(),
                };
                streamlets.insert(StreamletIndex(streamlet), hand_out);
            }
        }
        Ok(SharedGroup {
            core,
            stream,
            positions,
            name: name.to_owned(),
            streamlets: Mutex::new(streamlets),
            next_reader: AtomicU64::new(0),
        })
    }

    /// Adds a reader; commits name it by the consumer's name.
    pub(crate) fn add_reader(&self, consumer: String) -> Holder {
        Holder {
            consumer: consumer.into(),
            reader: Some(self.next_reader.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Hands up to `groups_max` groups of a streamlet to `consumer`, in the order of their ids, and
    /// returns the cursors to read them from. A group stays with its consumer until it is done or released.
    ///
    /// # Errors
    /// When the stream has no such streamlet.
    pub fn next_groups(
        &self,
        streamlet: StreamletIndex,
        consumer: &str,
        groups_max: usize,
    ) -> Result<Vec<Cursor>> {
        let holder = Holder {
            consumer: consumer.into(),
            reader: None,
        };
        let handed = self.hand_out(streamlet, &holder, groups_max, |_, _| true)?;
        Ok(handed.into_iter().map(|(_, cursor)| cursor).collect())
    }

    /// As [`SharedGroup::next_groups`], but only wanted groups, with their partitions.
    pub(crate) fn hand_out(
        &self,
        streamlet: StreamletIndex,
        holder: &Holder,
        groups_max: usize,
        mut wants: impl FnMut(u32, &Cursor) -> bool,
    ) -> Result<Vec<(u32, Cursor)>> {
        let groups = self.groups(streamlet)?;
        let mut streamlets = self.streamlets.lock();
        let hand_out = streamlets.entry(streamlet).or_default();
        let mut handed = Vec::new();
        for group in &groups {
            if handed.len() == groups_max {
                break;
            }
            let HandOut { progress, given } = &mut *hand_out;
            let begun = progress.position_in(group);
            let position = self.start_of(group).max(begun.unwrap_or_default());
            if progress.is_done(group.id) || is_over(&groups, group, position) {
                given.remove(&group.id);
                continue;
            }
            if given.contains_key(&group.id) {
                continue;
            }
            let Some(lane) = self.stream.lane(streamlet, group.lane.lane) else {
                continue;
            };
            let cursor = group.cursor(position);
            if wants(lane.partition, &cursor) {
                given.insert(group.id, holder.clone());
                handed.push((lane.partition, cursor));
            }
        }
        Ok(handed)
    }

    /// Commits that everything before `cursor` in its group is done. A closed group that is done
    /// to its end is never handed out again. Returns when the position is durable.
    ///
    /// # Errors
    /// When the group is not handed out to this consumer, no chunk starts at the position, or it cannot be stored.
    pub fn commit(&self, consumer: &str, cursor: &Cursor) -> Result<()> {
        self.finish_commit(self.begin_commit(consumer, cursor)?)
    }

    /// As [`SharedGroup::commit`], but the position is durable only when
    /// [`SharedGroup::finish_commit`] returns: several that are begun before share the disk's work.
    ///
    /// # Errors
    /// See [`SharedGroup::commit`].
    pub fn begin_commit(&self, consumer: &str, cursor: &Cursor) -> Result<Commit> {
        let is_chunk_start = self.is_chunk_start(cursor)?;
        self.begin_commit_at(consumer, cursor, is_chunk_start)
    }

    /// Commits a cursor that a read has returned, and that needs no check.
    pub(crate) fn commit_read(&self, consumer: &str, cursor: &Cursor) -> Result<()> {
        self.finish_commit(self.begin_commit_at(consumer, cursor, true)?)
    }

    /// Returns whether the next consumer can read from a cursor. One that no read can check counts as good.
    fn is_chunk_start(&self, cursor: &Cursor) -> Result<bool> {
        let groups = self.groups(cursor.streamlet)?;
        let group = groups.iter().find(|group| group.id == cursor.group);
        let is_within =
            |group: &&Arc<Group>| group.has_made(cursor) && cursor.position < group.durable();
        let group = group.filter(is_within);
        let lane = group.and_then(|group| self.stream.lane(cursor.streamlet, group.lane.lane));
        let Some((group, lane)) = group.zip(lane) else {
            return Ok(true);
        };
        let checked = starts_chunk(&self.core.reads, &lane, group, cursor.position);
        Ok(checked.unwrap_or(true))
    }

    fn begin_commit_at(
        &self,
        consumer: &str,
        cursor: &Cursor,
        is_chunk_start: bool,
    ) -> Result<Commit> {
        let groups = self.groups(cursor.streamlet)?;
        let mut streamlets = self.streamlets.lock();
        let hand_out = streamlets.entry(cursor.streamlet).or_default();
        let holder = hand_out.given.get(&cursor.group);
        if holder.map(Holder::consumer) != Some(consumer) {
            return Err(LogError::NotHandedOut {
                group: cursor.group,
                consumer: consumer.to_owned(),
                shared_group: self.name.clone(),
            });
        }
        let Ok(n) = groups.binary_search_by_key(&cursor.group, |group| group.id) else {
            // Retention has removed the group: there is nothing left to hand out.
            hand_out.given.remove(&cursor.group);
            hand_out.progress.end(cursor.group);
            return Ok(Commit { end: None });
        };
        let group = &groups[n];
        if !group.has_made(cursor) {
            // It was rewritten since: a consumer gets it again from its beginning, since its positions have changed.
            hand_out.given.remove(&cursor.group);
            return Ok(Commit { end: None });
        }
        if cursor.position > group.durable() {
            return Err(beyond_end(group, cursor.position));
        }
        if !is_chunk_start {
            return Err(no_chunk(group, cursor.position));
        }
        let mut progress = hand_out.progress.clone();
        progress.begin(group, cursor.position);
        let over: Vec<GroupId> = groups
            .iter()
            .filter(|group| {
                let position = progress.position_in(group);
                position.is_some_and(|position| is_over(&groups, group, position))
            })
            .map(|group| group.id)
            .collect();
        for group in &over {
            progress.end(*group);
            progress.done.insert(*group);
        }
        if !over.is_empty() {
            let stored = self.groups_after_those_being_made(cursor.streamlet)?;
            progress.join(stored.iter().map(|group| group.id));
        }
        let key = format!(
            "{}/{}/{}",
            self.stream.shared.id, self.name, cursor.streamlet
        );
        let offset = self.positions.put(&self.core, &key, Some(&progress))?;
        hand_out.progress = progress;
        hand_out.given.retain(|group, _| !over.contains(group));
        Ok(Commit { end: Some(offset) })
    }

    /// Returns when a position is durable.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn finish_commit(&self, commit: Commit) -> Result<()> {
        if let Some(end) = commit.end {
            wait_durable(&self.core, self.positions.lane(), end)?;
            self.positions.compact(&self.core);
        }
        Ok(())
    }

    /// Takes back all groups of a consumer that is gone; others get them from their committed
    /// positions on.
    pub fn release(&self, consumer: &str) {
        self.take_back(|holder| holder.consumer() == consumer);
    }

    /// As [`SharedGroup::release`], but only for this reader.
    pub(crate) fn release_reader(&self, reader: &Holder) {
        self.take_back(|holder| holder == reader);
    }

    /// Returns whether a reader still has a group: it is neither finished nor taken from it.
    pub(crate) fn is_given(&self, reader: &Holder, group: &Cursor) -> bool {
        let streamlets = self.streamlets.lock();
        let hand_out = streamlets.get(&group.streamlet);
        hand_out.is_some_and(|hand_out| hand_out.given.get(&group.group) == Some(reader))
    }

    fn take_back(&self, is_gone: impl Fn(&Holder) -> bool) {
        for hand_out in self.streamlets.lock().values_mut() {
            hand_out.given.retain(|_, holder| !is_gone(holder));
        }
        // Readers that found no group may get one now.
        self.stream.shared.durable_moved.notify(usize::MAX);
    }

    /// As [`SharedGroup::groups`], including every group that got its id before this call: a lane makes a group under its
    /// lock, and meanwhile another lane may be done with a group of a higher id.
    fn groups_after_those_being_made(&self, streamlet: StreamletIndex) -> Result<Vec<Arc<Group>>> {
        for lane in self.stream.streamlet(streamlet).unwrap_or_default() {
            lane.next_offset();
        }
        self.groups(streamlet)
    }

    /// Returns the start of a group, behind its deleted records.
    fn start_of(&self, group: &Group) -> Position {
        let lane = self.stream.lane(group.lane.streamlet, group.lane.lane);
        let first = lane.and_then(|lane| lane.first_place());
        let first = first.filter(|(first, _)| std::ptr::eq(&**first, group));
        first.map_or(Position(0), |(_, position)| position)
    }

    /// Returns the groups of all lanes of a streamlet, by id, without those whose records were all deleted.
    fn groups(&self, streamlet: StreamletIndex) -> Result<Vec<Arc<Group>>> {
        let lanes = self.stream.streamlet(streamlet);
        let lanes = lanes.ok_or_else(|| LogError::UnknownPartition {
            stream: self.stream.shared.name.clone(),
            what: format!("streamlet {streamlet}"),
        })?;
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for lane in lanes {
            let first = lane.first_place().map_or(GroupId(0), |(group, _)| group.id);
            let stored = lane.groups().into_iter();
            groups.extend(stored.filter(|group| group.id >= first));
        }
        groups.sort_unstable_by_key(|group| group.id);
        Ok(groups)
    }
}

/// Returns whether a group will never hold anything behind `position`. Its end must be durable, too:
/// it is once the lane's next group has data. Before, a crash may open the group again.
fn is_over(groups: &[Arc<Group>], group: &Group, position: Position) -> bool {
    group.end().is_some_and(|end| position >= end.position)
        && groups
            .iter()
            .find(|other| other.lane == group.lane && other.id > group.id)
            .is_some_and(|next| next.durable() > Position(0) || next.has_file())
}

/// Returns the generation of a group that was rewritten.
fn generation_of(group: &Group) -> Option<u32> {
    group.is_rewritten().then(|| group.name().generation.0)
}

impl Progress {
    /// Returns the committed position in a group. `None` if it was not begun, or was rewritten since.
    fn position_in(&self, group: &Group) -> Option<Position> {
        let generation = self.generations.get(&group.id).copied();
        let position = self.begun.get(&group.id).copied();
        position.filter(|_| generation == generation_of(group))
    }

    fn begin(&mut self, group: &Group, position: Position) {
        self.end(group.id);
        self.begun.insert(group.id, position);
        if let Some(generation) = generation_of(group) {
            self.generations.insert(group.id, generation);
        }
    }

    fn end(&mut self, group: GroupId) {
        self.begun.remove(&group);
        self.generations.remove(&group);
    }

    fn is_done(&self, group: GroupId) -> bool {
        group < self.done_below || self.done.contains(&group)
    }

    /// Raises `done_below` to the first stored group that is not done. `stored`
    /// are the groups of all lanes in the order of their ids. A missing id belongs to a
    /// removed group, or to one that a crash destroyed before it held anything durable: neither
    /// comes back.
    fn join(&mut self, stored: impl Iterator<Item = GroupId>) {
        for group in stored {
            if !self.is_done(group) {
                self.done_below = group;
                break;
            }
        }
        self.done = self.done.split_off(&self.done_below);
        self.begun = self.begun.split_off(&self.done_below);
        self.generations = self.generations.split_off(&self.done_below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_groups_are_merged_across_the_ids_of_lost_groups() {
        let mut progress = Progress::default();
        // Of groups 1 to 100, the crash took every third before it was durable.
        let stored = || (1..=100).filter(|id| id % 3 != 0).map(GroupId);
        for group in stored().take(60) {
            progress.done.insert(group);
            progress.join(stored());
            assert!(progress.done.is_empty(), "{progress:?}");
            assert!(progress.is_done(group));
        }
        let next = stored().nth(60).expect("there are more");
        assert!(!progress.is_done(next));

        // A group that is done out of turn waits for the group before.
        let after = stored().nth(61).expect("there are more");
        progress.done.insert(after);
        progress.join(stored());
        assert_eq!((progress.done_below, progress.done.len()), (next, 1));
    }
}
