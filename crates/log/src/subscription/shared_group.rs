//! Reads a stream for a shared group: group by group, as the log hands them out, from the positions that the
//! shared group has committed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use millstream_base::{Cursor, StreamletIndex};
use millstream_record::ChunkHeader;

use crate::error::{LogError, Result};
use crate::group::segments::generation_of;
use crate::handle::partition::StreamPartition;
use crate::handle::readers::{ReadChunks, ReadStart};
use crate::handle::stream::Stream;
use crate::log::Log;
use crate::shared_group::{Holder, SharedGroup};
use crate::subscription::feed::FirstRun;
use crate::subscription::filter::ChunkFilter;
use crate::subscription::handed::{Handed, Next, SubscriptionError};

/// One subscriber of a shared group, and the groups that it got.
#[derive(Debug)]
pub struct SharedGroupReader {
    log: Log,
    stream: Stream,
    shared_group: Arc<SharedGroup>,
    /// The reader's identity in the shared group.
    holder: Holder,
    /// By partition, groups in the order of their ids. The reader reads a later one when the one before is at
    /// its end.
    lanes: BTreeMap<u32, VecDeque<HandedGroup>>,
    /// Partitions that failed. This subscriber holds their groups, unread, until it releases all.
    failed: BTreeSet<u32>,
    /// Partitions below this one have reported that the stream was deleted, or failed before.
    reported_below: u32,
    /// The partition that was read last.
    turn: u32,
    /// Groups that were read to their ends, and are not committed.
    passed: Vec<HandedGroup>,
    /// By partition, the cursor where the reader ends.
    ends: Option<Vec<Cursor>>,
}

/// A group that only this reader has.
#[derive(Debug)]
struct HandedGroup {
    /// The position of the next chunk.
    cursor: Cursor,
    /// The committed position.
    committed: Cursor,
    /// Whether the last read found nothing more in it.
    is_at_head: bool,
}

impl SharedGroupReader {
    pub fn new(log: &Log, stream: &Stream, name: &str, consumer: String) -> Result<Self> {
        let shared_group = log.shared_group(stream.name(), name)?;
        Ok(SharedGroupReader {
            log: log.clone(),
            stream: stream.clone(),
            holder: shared_group.add_reader(consumer),
            shared_group,
            lanes: BTreeMap::new(),
            failed: BTreeSet::new(),
            reported_below: 0,
            turn: 0,
            passed: Vec::new(),
            ends: None,
        })
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the number of lanes, without those that were added after the ends were set.
    pub fn partition_count(&self) -> u32 {
        let ends = self.ends.as_ref();
        ends.map_or_else(|| self.stream.partition_count(), |ends| ends.len() as u32)
    }

    pub fn has_ends(&self) -> bool {
        self.ends.is_some()
    }

    pub fn end_at_head(&mut self) {
        self.ends = Some(self.stream.reader(ReadStart::Latest).cursors());
    }

    /// Returns chunks of the next wanted lane that has some. It claims no groups of lanes that are not wanted.
    pub fn next(
        &mut self,
        bytes_max: usize,
        mut filter: Option<&mut ChunkFilter>,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Result<Next, SubscriptionError> {
        self.check_stream()?;
        let after = self.lanes.range(self.turn + 1..).map(|(lane, _)| *lane);
        let from_start = self.lanes.range(..=self.turn).map(|(lane, _)| *lane);
        let mut partitions: Vec<u32> = after.chain(from_start).collect();
        partitions.retain(|partition| is_wanted(*partition));
        let mut next = self.read_lanes(partitions, bytes_max, filter.as_deref_mut())?;
        while matches!(next, Next::Nothing | Next::Busy) {
            let claimed = self.claim(&is_wanted)?;
            if claimed.is_empty() {
                break;
            }
            match self.read_lanes(claimed, bytes_max, filter.as_deref_mut())? {
                Next::Nothing => {}
                found => next = found,
            }
        }
        Ok(match (next, &self.ends) {
            // All before the ends is durable, so nothing more will be readable there.
            (Next::Nothing, Some(ends)) if (0..ends.len() as u32).all(is_wanted) => Next::End,
            (next, _) => next,
        })
    }

    /// Fails if the stream was deleted, once for each partition, as subscriptions to partitions do. A reader without a group
    /// would not learn of it otherwise.
    fn check_stream(&mut self) -> Result<(), SubscriptionError> {
        if !self.stream.is_deleted() {
            return Ok(());
        }
        while self.reported_below < self.partition_count() {
            let partition = self.reported_below;
            self.reported_below += 1;
            self.lanes.remove(&partition);
            if self.failed.insert(partition) {
                let name = self.stream.name().to_owned();
                return Err(SubscriptionError {
                    place: Some(partition),
                    error: LogError::UnknownStream { name },
                });
            }
        }
        Ok(())
    }

    fn read_lanes(
        &mut self,
        partitions: impl IntoIterator<Item = u32>,
        bytes_max: usize,
        mut filter: Option<&mut ChunkFilter>,
    ) -> Result<Next, SubscriptionError> {
        let mut next = Next::Nothing;
        for partition in partitions {
            let end = match &self.ends {
                None => None,
                // A lane that was added since then has nothing from before.
                Some(ends) => match ends.get(partition as usize) {
                    None => continue,
                    end => end.copied(),
                },
            };
            let filter = filter.as_deref_mut();
            match self.read_lane(partition, end.as_ref(), bytes_max, filter) {
                Ok(Some(handed)) => {
                    self.turn = partition;
                    return Ok(Next::Handed(handed));
                }
                Ok(None) => {}
                // It does not delay the others.
                Err(LogError::ReadBudget) => next = Next::Busy,
                Err(error) => {
                    self.lanes.remove(&partition);
                    self.failed.insert(partition);
                    let place = Some(partition);
                    return Err(SubscriptionError { place, error });
                }
            }
        }
        Ok(next)
    }

    fn read_lane(
        &mut self,
        partition: u32,
        end: Option<&Cursor>,
        bytes_max: usize,
        filter: Option<&mut ChunkFilter>,
    ) -> Result<Option<Handed>> {
        let Some(groups) = self.lanes.get_mut(&partition) else {
            return Ok(None);
        };
        let reading = Reading {
            log: &self.log,
            lane: self.stream.partition(partition)?,
            end,
            bytes_max,
        };
        let groups = groups.make_contiguous();
        let Some((mut index, mut handed)) = reading.first_readable(groups)? else {
            return Ok(None);
        };
        // A chunk is durable only after all groups before it are durable as a whole, so this look finds all that the
        // earlier groups will ever hold.
        if let Some(earlier) = reading.first_readable(&mut groups[..index])? {
            (index, handed) = earlier;
        }
        if let Some(filter) = filter {
            filter.apply(&mut handed)?;
        }
        groups[index].cursor = handed.chunks.next;
        if let Some(groups) = self.lanes.get_mut(&partition) {
            self.passed.extend(groups.drain(..index));
        }
        Ok(Some(handed))
    }

    /// Claims one more group of each lane where it has nothing left to read; the others are left to other subscribers.
    /// Returns the partitions in which it got one.
    fn claim(&mut self, is_wanted: impl Fn(u32) -> bool) -> Result<BTreeSet<u32>> {
        // Another reader may have committed them under the same consumer's name.
        self.passed
            .retain(|group| self.shared_group.is_given(&self.holder, &group.cursor));
        let config = self.stream.config();
        let mut claimed = BTreeSet::new();
        for streamlet in (0..config.streamlets).map(StreamletIndex) {
            let wants = |partition: u32, cursor: &Cursor| {
                !claimed.contains(&partition)
                    && is_wanted(partition)
                    && self.wants(partition, cursor)
                    && claimed.insert(partition)
            };
            let groups_max = config.lanes as usize;
            let handed = self
                .shared_group
                .hand_out(streamlet, &self.holder, groups_max, wants)?;
            for (partition, cursor) in handed {
                let groups = self.lanes.entry(partition).or_default();
                // A group that another flow gave back may be earlier than the groups of this flow.
                let place = groups.partition_point(|group| group.cursor.group < cursor.group);
                let group = HandedGroup {
                    committed: cursor,
                    is_at_head: false,
                    cursor,
                };
                groups.insert(place, group);
            }
        }
        Ok(claimed)
    }

    /// Returns whether the reader can read a group from this cursor at once: the groups of the lane before it, which this
    /// reader holds, are read to their ends. Other groups are left to other subscribers.
    fn wants(&self, partition: u32, cursor: &Cursor) -> bool {
        let is_before_end = |cursor: &Cursor| match &self.ends {
            None => true,
            Some(ends) => {
                let end = ends.get(partition as usize);
                end.is_some_and(|end| is_before(cursor, end))
            }
        };
        let is_unread = |group: &HandedGroup| !group.is_at_head && is_before_end(&group.cursor);
        let held = self.lanes.get(&partition).into_iter().flatten();
        let mut before = held.take_while(|group| group.cursor.group < cursor.group);
        !self.failed.contains(&partition) && is_before_end(cursor) && !before.any(is_unread)
    }

    /// Gives back all groups. Chunks that were not committed are handed out again.
    pub fn release(&mut self) {
        self.lanes.clear();
        self.passed.clear();
        self.shared_group.release_reader(&self.holder);
    }

    /// Commits the positions up to which all groups are read.
    pub fn commit(&mut self) -> Result<()> {
        let reading = self.lanes.values_mut().flatten();
        for group in self.passed.iter_mut().chain(reading) {
            if group.committed != group.cursor {
                let consumer = self.holder.consumer();
                self.shared_group.commit_read(consumer, &group.cursor)?;
                group.committed = group.cursor;
            }
        }
        self.passed.clear();
        Ok(())
    }
}

/// One search of a lane's groups for chunks.
struct Reading<'a> {
    log: &'a Log,
    lane: StreamPartition,
    end: Option<&'a Cursor>,
    bytes_max: usize,
}

impl Reading<'_> {
    /// Returns the first group that has chunks before the end.
    fn first_readable(&self, groups: &mut [HandedGroup]) -> Result<Option<(usize, Handed)>> {
        for (index, group) in groups.iter_mut().enumerate() {
            let cursor = &group.cursor;
            if self.end.is_some_and(|end| !is_before(cursor, end)) {
                break;
            }
            let chunks = match self.log.read(cursor, self.bytes_max) {
                // Retention took the group after all of it was read.
                Err(LogError::CursorRemoved { .. }) if group.is_at_head => None,
                chunks => chunks?,
            };
            group.is_at_head = chunks.is_none();
            let chunks = chunks.and_then(|chunks| match self.end {
                Some(end) if is_before(end, &chunks.next) && is_comparable(end, &chunks.next) => {
                    truncate_at(chunks, end)
                }
                _ => Some(chunks),
            });
            if let Some(chunks) = chunks {
                // If these chunks are not stable, chunks of later groups are not, either.
                return Ok(self.stable(chunks)?.map(|handed| (index, handed)));
            }
        }
        Ok(None)
    }

    /// Returns the first run of the chunks that is stable; without its bytes if it was aborted.
    fn stable(&self, mut chunks: ReadChunks) -> Result<Option<Handed>> {
        let damaged = |error| LogError::BadCursor {
            cursor: chunks.cursor,
            why: format!("no chunk starts there: {error}"),
        };
        let from = ChunkHeader::parse(&chunks.bytes)
            .map_err(damaged)?
            .base_offset;
        let durable = self.lane.durable_offset();
        let stable = self.lane.last_stable_offset().min(durable);
        let aborted = self.lane.aborted_transactions(from, stable)?;
        let run = FirstRun::of(&chunks.bytes, from, stable, &aborted).map_err(damaged)?;
        if run.bytes == 0 {
            return Ok(None);
        }
        if run.bytes < chunks.bytes.len() {
            chunks.next = Cursor {
                position: chunks.cursor.position.plus(run.bytes as u64),
                ..chunks.cursor
            };
        }
        let seen = if run.is_seen { run.bytes } else { 0 };
        chunks.bytes = chunks.bytes.slice(0..seen);
        Ok(Some(Handed {
            place: self.lane.index(),
            chunks,
            from,
            next: run.next,
            end: stable,
        }))
    }
}

/// Returns whether a cursor is before another one of the same lane. One of a group that was rewritten since the other one was
/// made counts as before, so that all of the group is read.
fn is_before(cursor: &Cursor, other: &Cursor) -> bool {
    match is_comparable(cursor, other) {
        true => (cursor.group, cursor.position) < (other.group, other.position),
        false => true,
    }
}

/// Whether the positions of two cursors are of different groups, or of one file of a group.
fn is_comparable(cursor: &Cursor, other: &Cursor) -> bool {
    cursor.group != other.group || generation_of(cursor) == generation_of(other)
}

/// Returns the chunks that lie before `end`, which is between two of them or before the first.
fn truncate_at(mut chunks: ReadChunks, end: &Cursor) -> Option<ReadChunks> {
    if !is_before(&chunks.cursor, end) {
        return None;
    }
    let left = usize::try_from(end.position.0 - chunks.cursor.position.0).ok()?;
    chunks.bytes = chunks.bytes.slice(0..left);
    chunks.next = *end;
    Some(chunks)
}

impl Drop for SharedGroupReader {
    fn drop(&mut self) {
        self.release();
    }
}
