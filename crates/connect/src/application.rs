//! A stream as an application reads it: group by group, as the log hands them out, from where the
//! application's last flow ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{Cursor, Position, StreamletIndex};
use millstream_log::{Application, Log, LogError, ReadChunks, Stream};

use crate::source::{Read, SLICE_BYTES, cut, is_before};

/// The groups that one flow has of an application.
pub struct ApplicationReader {
    log: Log,
    stream: Stream,
    application: Arc<Application>,
    /// What the log knows this flow by.
    consumer: String,
    /// By partition: groups in the order of their ids. A later one is read when the one before is at
    /// its end.
    lanes: BTreeMap<u32, VecDeque<HandedGroup>>,
    /// Partition that was read last.
    turn: u32,
    /// Groups that were read to their ends, and are not committed.
    passed: Vec<HandedGroup>,
}

/// A group that is read by nobody else.
struct HandedGroup {
    /// Where to read on.
    cursor: Cursor,
    /// Up to where it is known to be done.
    committed: Position,
    /// There was nothing more in it when it was last looked at.
    is_at_head: bool,
}

impl ApplicationReader {
    pub fn new(log: &Log, stream: &Stream, name: &str) -> Result<Self, LogError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(ApplicationReader {
            log: log.clone(),
            stream: stream.clone(),
            application: log.application(stream.name(), name)?,
            consumer: format!("flow {}", NEXT.fetch_add(1, Ordering::Relaxed)),
            lanes: BTreeMap::new(),
            turn: 0,
            passed: Vec::new(),
        })
    }

    /// Reads on in the next lane that has something, up to `ends`, by partition.
    pub fn read(&mut self, ends: Option<&[Cursor]>) -> Result<Read, LogError> {
        loop {
            if let Some(read) = self.read_handed(ends)? {
                return Ok(read);
            }
            if !self.claim()? {
                break;
            }
        }
        Ok(match ends {
            // What lies before the ends is durable, so nothing more will be readable there.
            Some(_) => Read::End,
            None => Read::Nothing,
        })
    }

    fn read_handed(&mut self, ends: Option<&[Cursor]>) -> Result<Option<Read>, LogError> {
        let after = self.lanes.range(self.turn + 1..).map(|(lane, _)| *lane);
        let from_start = self.lanes.range(..=self.turn).map(|(lane, _)| *lane);
        let partitions: Vec<u32> = after.chain(from_start).collect();
        for partition in partitions {
            let end = match ends {
                None => None,
                // A lane that was added since then has nothing from before.
                Some(ends) => match ends.get(partition as usize) {
                    None => continue,
                    end => end,
                },
            };
            match self.read_lane(partition, end) {
                Ok(None) => {}
                Ok(Some(chunks)) => {
                    self.turn = partition;
                    return Ok(Some(Read::Chunks(chunks)));
                }
                Err(LogError::ReadBudget) => return Ok(Some(Read::Busy)),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn read_lane(
        &mut self,
        partition: u32,
        end: Option<&Cursor>,
    ) -> Result<Option<ReadChunks>, LogError> {
        let Some(groups) = self.lanes.get_mut(&partition) else {
            return Ok(None);
        };
        let groups = groups.make_contiguous();
        let Some((mut index, mut chunks)) = first_readable(&self.log, groups, end)? else {
            return Ok(None);
        };
        // What is durable of a group has all of those before it: now there is nothing that these may
        // still get.
        if let Some(earlier) = first_readable(&self.log, &mut groups[..index], end)? {
            (index, chunks) = earlier;
        }
        groups[index].cursor = chunks.next;
        if let Some(groups) = self.lanes.get_mut(&partition) {
            self.passed.extend(groups.drain(..index));
        }
        Ok(Some(chunks))
    }

    /// Asks for more groups: as many as a streamlet has lanes, so that others get some too.
    fn claim(&mut self) -> Result<bool, LogError> {
        let config = self.stream.config();
        let mut has_any = false;
        for streamlet in (0..config.streamlets).map(StreamletIndex) {
            let count = config.lanes as usize;
            let handed = self
                .application
                .next_groups(streamlet, &self.consumer, count)?;
            for cursor in handed {
                // Retention may be faster.
                let Ok(lane) = self.stream.lane_of_group(streamlet, cursor.group) else {
                    continue;
                };
                let groups = self.lanes.entry(lane.partition()).or_default();
                // What another flow gave back may be earlier than what this one has.
                let place = groups.partition_point(|group| group.cursor.group < cursor.group);
                let group = HandedGroup {
                    committed: cursor.position,
                    is_at_head: false,
                    cursor,
                };
                groups.insert(place, group);
                has_any = true;
            }
        }
        Ok(has_any)
    }

    /// Gives back all groups. What was not committed is handed out again.
    pub fn release(&mut self) {
        self.lanes.clear();
        self.passed.clear();
        self.application.release(&self.consumer);
    }

    /// Keeps how far everything is read.
    pub fn commit(&mut self) -> Result<(), LogError> {
        let reading = self.lanes.values_mut().flatten();
        for group in self.passed.iter_mut().chain(reading) {
            if group.committed < group.cursor.position {
                self.application.commit(&self.consumer, &group.cursor)?;
                group.committed = group.cursor.position;
            }
        }
        self.passed.clear();
        Ok(())
    }
}

/// The first group that has something before `end`.
fn first_readable(
    log: &Log,
    groups: &mut [HandedGroup],
    end: Option<&Cursor>,
) -> Result<Option<(usize, ReadChunks)>, LogError> {
    for (index, group) in groups.iter_mut().enumerate() {
        let cursor = &group.cursor;
        if end.is_some_and(|end| !is_before(cursor, end)) {
            break;
        }
        let chunks = match log.read(cursor, SLICE_BYTES) {
            // Retention took the group after all of it was read.
            Err(LogError::CursorRemoved { .. }) if group.is_at_head => None,
            chunks => chunks?,
        };
        group.is_at_head = chunks.is_none();
        let chunks = chunks.and_then(|chunks| match end {
            Some(end) if is_before(end, &chunks.next) => cut(chunks, end),
            _ => Some(chunks),
        });
        if let Some(chunks) = chunks {
            return Ok(Some((index, chunks)));
        }
    }
    Ok(None)
}

impl Drop for ApplicationReader {
    fn drop(&mut self) {
        self.release();
    }
}
