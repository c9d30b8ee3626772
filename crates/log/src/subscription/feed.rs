//! One lane of a subscription: read on from an offset, as the last stable offset of the lane moves.

use std::ops::Range;
use std::sync::Arc;

use millstream_base::{Offset, Position};
use millstream_record::{ChunkError, Chunks};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::handle::key_watch::RECORDS_REMOVED;
use crate::handle::partition::StreamPartition;
use crate::handle::readers::ReadChunks;
use crate::lane::groups::GroupBehind;
use crate::lane::recent_reads::ReadSpan;
use crate::producers::transactions::AbortedTransaction;
use crate::read::fetch::{FetchBounds, locate};
use crate::read::group::read_up_to_high_watermark;
use crate::subscription::filter::ChunkFilter;
use crate::subscription::handed::Handed;

/// Reads a lane.
#[derive(Debug)]
pub struct Feed {
    lane: StreamPartition,
    /// The first offset that was not handed out.
    next: Offset,
    /// The position of `next`, once it is known.
    at: Option<(Arc<Group>, Position)>,
    /// The offset where the feed ends.
    until: Option<Offset>,
    /// Whether it fails where it would miss the newest change of a key.
    is_watch: bool,
}

impl Feed {
    pub fn new(lane: StreamPartition, from: Offset) -> Feed {
        Feed {
            lane,
            next: from,
            at: None,
            until: None,
            is_watch: false,
        }
    }

    /// As [`new`](Self::new), of a keyed stream. It fails where it would miss the newest change of a key, with
    /// [`LogError::ChangesLost`].
    pub fn watching(lane: StreamPartition, from: Offset) -> Feed {
        Feed {
            is_watch: true,
            ..Feed::new(lane, from)
        }
    }

    pub fn lane(&self) -> &StreamPartition {
        &self.lane
    }

    /// Fails unless the lane has the next chunk, or may get it later.
    fn check(&self) -> Result<()> {
        let lane = &self.lane.lane;
        if lane.is_removed() {
            return Err(LogError::UnknownStream {
                name: lane.stream.name.clone(),
            });
        }
        let (earliest, end) = (lane.earliest_offset(), lane.high_watermark());
        match earliest <= self.next && self.next <= end {
            true => Ok(()),
            false if self.is_watch => Err(self.lane.changes_lost(self.next, RECORDS_REMOVED)),
            false => Err(LogError::OffsetOutOfRange {
                offset: self.next,
                earliest,
                end,
            }),
        }
    }

    /// The first offset that was not handed out.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Returns the readable offsets that were not handed out.
    pub fn unread(&self) -> Range<Offset> {
        self.next..self.end()
    }

    fn end(&self) -> Offset {
        let stable = self.lane.last_stable_offset();
        self.until.map_or(stable, |until| until.min(stable))
    }

    /// Goes on from another offset, which must be in the lane or its end.
    pub fn seek(&mut self, next: Offset) -> Result<()> {
        self.next = next;
        self.at = None;
        self.check()
    }

    pub fn end_at_head(&mut self) {
        self.until = Some(self.lane.last_stable_offset());
    }

    /// Returns whether everything up to the feed's end was handed out.
    pub fn is_at_end(&self) -> bool {
        self.until.is_some_and(|until| self.next >= until)
    }

    /// Returns the next chunks, which carry the lane's `place`; `None` while there are none.
    pub fn read(
        &mut self,
        place: u32,
        bytes_max: usize,
        filter: Option<&mut ChunkFilter>,
    ) -> Result<Option<Handed>> {
        self.check()?;
        let core = Arc::clone(&self.lane.core);
        loop {
            let end = self.end();
            if self.next >= end {
                if !self.is_at_end() && self.next >= self.lane.durable_offset() {
                    self.lane.lane.check_end()?;
                }
                return Ok(None);
            }
            let known = self.at.take().filter(|(group, _)| !group.is_removed());
            let found = match known {
                Some(known) => Some(known),
                None => locate(&core.reads, &self.lane.lane, self.next)?,
            };
            let Some((group, position)) = found else {
                return self.check().map(|()| None);
            };
            let Some(slice) = read_up_to_high_watermark(
                &core.reads,
                &self.lane.lane,
                &group,
                position,
                bytes_max,
            )?
            else {
                if group.is_removed() {
                    self.check()?;
                    continue;
                }
                match self.lane.lane.group_behind(&group, position) {
                    Some(GroupBehind::At(behind)) => self.at = Some((behind, Position(0))),
                    // The next read searches the group for it.
                    Some(GroupBehind::Within(..)) => {}
                    None => {
                        self.at = Some((group, position));
                        return Ok(None);
                    }
                }
                continue;
            };
            let bounds = FetchBounds {
                end,
                bytes_max,
                at_least_one: true,
            };
            let (bytes, next) =
                bounds.of(&core.reads, &self.lane.lane, &group, position, &slice)?;
            if bytes == 0 {
                self.at = Some((group, position));
                return Ok(None);
            }
            let aborted = self.lane.aborted_transactions(self.next, next)?;
            let run = match aborted.is_empty() {
                true => FirstRun {
                    bytes,
                    is_seen: true,
                    next,
                },
                false => FirstRun::of(&slice[..bytes], self.next, end, &aborted)
                    .map_err(|error| LogError::corrupted(group.path(&core.dir), position, error))?,
            };
            let behind = position.plus(run.bytes as u64);
            let lane = &self.lane.lane;
            let mut handed = Handed {
                place,
                chunks: ReadChunks {
                    cursor: group.cursor(position),
                    lane: lane.id.lane,
                    bytes: slice.slice(0..if run.is_seen { run.bytes } else { 0 }),
                    next: group.cursor(behind),
                },
                from: self.next,
                next: run.next,
                end,
            };
            if let Some(filter) = filter {
                filter.apply(&mut handed)?;
            }
            // Checked after the read: a group without a deletion becomes visible only after that was noted.
            if self.is_watch {
                self.lane.check_deletions(self.next)?;
            }
            self.next = handed.next;
            let behind = handed.chunks.next.position;
            let span = ReadSpan::within(&group, position, behind);
            self.lane.note_read(span);
            self.at = Some((group, behind));
            return Ok(Some(handed));
        }
    }
}

/// Chunks at the beginning of a slice that are all committed, or all aborted.
#[derive(Debug, Clone, Copy)]
pub struct FirstRun {
    /// Their bytes. 0 when even the first one is not stable.
    pub bytes: usize,
    /// Whether they are handed out.
    pub is_seen: bool,
    /// The offset behind them.
    pub next: Offset,
}

impl FirstRun {
    /// Returns the first run of chunks below the last stable offset; `from` is the first one's offset.
    pub fn of(
        chunks: &[u8],
        from: Offset,
        stable: Offset,
        aborted: &[AbortedTransaction],
    ) -> Result<FirstRun, ChunkError> {
        let mut run = FirstRun {
            bytes: 0,
            is_seen: true,
            next: from,
        };
        let mut chunks = Chunks::trusted(chunks);
        while let Some(chunk) = chunks.next() {
            let chunk = chunk?;
            let header = chunk.header();
            let is_seen = !aborted.iter().any(|aborted| aborted.holds(header));
            let is_other = run.bytes > 0 && run.is_seen != is_seen;
            if chunk.header().base_offset >= stable || is_other {
                break;
            }
            run = FirstRun {
                bytes: chunks.position(),
                is_seen,
                next: chunk.header().next_offset(),
            };
        }
        Ok(run)
    }
}
