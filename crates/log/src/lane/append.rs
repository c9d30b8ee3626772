//! Appending to a lane: a chunk is checked, copied into the head segment, accounted for and handed to the virtual log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::disk::PAGE_BYTES;
use millstream_base::{Offset, Position, ProducerId, Timestamp};
use millstream_record::{ChunkHeader, EndMarker, set_place};
use parking_lot::MutexGuard;

use crate::error::{LogError, Result};
use crate::index::entry::EntryKind;
use crate::lane::LaneState;
use crate::lane::context::AppendContext;
use crate::lane::end::LaneEnd;
use crate::lane::head::{Head, OpenGroup, close_group, is_entry_due};
use crate::lane::residents::Resident;
use crate::lane::virtual_log::Pushed;
use crate::memory::pool::BLOCK_BYTES_MIN;
use crate::producers::{Producers, TransactionStep, Verdict};
use crate::settings::config::Durability;

/// The result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The offset of its first record.
    pub base_offset: Offset,
    /// The offset behind its last record: durable when the lane's durable offset has reached it.
    pub next_offset: Offset,
    /// Whether it had been stored before.
    pub duplicate: bool,
    /// The time that its records have got with this append, where the stream's settings ask for that.
    pub append_time: Option<Timestamp>,
}

pub enum AppendStep {
    Done(Appended),
    /// A buffer is missing; try again when one came free.
    NeedsBuffer,
}

impl LaneState {
    /// Appends a chunk of data whose header and checksum were checked.
    pub fn append(
        self: &Arc<Self>,
        context: &AppendContext,
        header: &ChunkHeader,
        chunk: &[u8],
    ) -> Result<AppendStep> {
        let head = self.head.lock();
        self.check_open(context)?;
        match stored_before(&head, header)? {
            Some(duplicate) => Ok(AppendStep::Done(duplicate)),
            None => self.store(context, head, header, chunk, None),
        }
    }

    /// Appends a chunk whose header and checksum were checked, if `accept` accepts the end of the lane, under the lane's lock.
    /// `None` if it does not.
    pub fn append_if(
        self: &Arc<Self>,
        context: &AppendContext,
        header: &ChunkHeader,
        chunk: &[u8],
        accept: impl FnOnce(&LaneEnd) -> Result<bool>,
    ) -> Result<Option<AppendStep>> {
        let head = self.head.lock();
        self.check_open(context)?;
        if let Some(duplicate) = stored_before(&head, header)? {
            return Ok(Some(AppendStep::Done(duplicate)));
        }
        match accept(&LaneEnd::of(&head))? {
            true => self.store(context, head, header, chunk, None).map(Some),
            false => Ok(None),
        }
    }

    /// Appends the chunk of a marker.
    pub fn append_marker(
        self: &Arc<Self>,
        context: &AppendContext,
        header: &ChunkHeader,
        chunk: &[u8],
        marker: &EndMarker,
    ) -> Result<AppendStep> {
        let head = self.head.lock();
        self.check_open(context)?;
        head.producers.check_marker(marker)?;
        self.store(context, head, header, chunk, Some(marker))
    }

    /// Whether the lane takes anything. The caller holds its lock, so that a log that is closed waits
    /// for earlier appends.
    #[inline]
    fn check_open(&self, context: &AppendContext) -> Result<()> {
        if self.stream.removed.load(Ordering::Relaxed) {
            return Err(LogError::UnknownStream {
                name: self.stream.name.clone(),
            });
        }
        if let Some(fault) = self.fault.get() {
            return Err(fault.clone());
        }
        if context.closed.load(Ordering::Relaxed) {
            return Err(LogError::Closed);
        }
        Ok(())
    }

    /// Stores a chunk that is new.
    ///
    /// The order of the steps matters: nothing is changed before everything that can fail has been
    /// done, and the reference is pushed under the lane's lock, so that the virtual log has the
    /// lane's chunks in their order.
    #[inline(always)]
    fn store(
        self: &Arc<Self>,
        context: &AppendContext,
        mut head: MutexGuard<'_, Head>,
        header: &ChunkHeader,
        chunk: &[u8],
        marker: Option<&EndMarker>,
    ) -> Result<AppendStep> {
        if context.disk.is_full() {
            return Err(context.disk.full_error());
        }

        // Step 1: make room.
        if !head.has_room(chunk.len()) && !self.open_segment(context, &mut head, chunk.len())? {
            return Ok(AppendStep::NeedsBuffer);
        }

        // Step 2: copy.
        let base_offset = head.next_offset;
        let next_offset = base_offset.plus(u64::from(header.last_offset_delta) + 1);
        let Head {
            open, producers, ..
        } = &mut *head;
        let open = open.as_mut().expect("there is room in it");
        if is_entry_due(open.position, open.indexed_at) {
            open.add_index_entry(EntryKind::Within, base_offset, producers);
        }
        let position = open.position;
        let leader_epoch = self.epochs.current();
        let writer = open.writer.as_mut().expect("there is room in it");
        let at = writer.filled();
        writer
            .extend::<std::convert::Infallible>(chunk.len(), |free| {
                free.copy_from_slice(chunk);
                set_place(free, base_offset, leader_epoch);
                Ok(chunk.len())
            })
            .unwrap_or_else(|never| match never {});

        // Step 3: account for it.
        open.fingerprint.add(position, header.crc, chunk.len());
        open.position = position.plus(chunk.len() as u64);
        open.max_timestamp = open.max_timestamp.max(header.max_timestamp);
        if header.producer_id != ProducerId::NONE {
            open.changed.insert(header.producer_id);
            match marker {
                Some(marker) => {
                    let timestamp = header.max_timestamp;
                    self.end_transaction(open, producers, marker, base_offset, timestamp);
                }
                None => {
                    if producers.appended(header, base_offset) == TransactionStep::Begun {
                        self.unstable.begin(base_offset);
                    }
                }
            }
        }
        head.next_offset = next_offset;
        head.appended_at = context.recently();

        // Step 4: hand it to the virtual log.
        let open = head.open.as_ref().expect("just written to");
        let mut pushed = Pushed::InLine;
        if open.is_memory_only {
            open.group.set_durable(open.position);
            self.set_durable_offset(next_offset);
        } else {
            let writer = open.writer.as_ref().expect("just written to");
            pushed = self.virtual_log.push(
                self,
                &open.group,
                position,
                writer.buffer(),
                at..at + chunk.len(),
                next_offset,
            );
            if self.stream.durability == Durability::Async {
                open.group.set_high_watermark(open.position);
                self.early_offset.store(next_offset.0, Ordering::Release);
            }
        }
        drop(head);
        if self.stream.durability == Durability::Async {
            self.notify_watchers();
        }
        match pushed {
            Pushed::InLine => {}
            Pushed::First => context.queue.add(Arc::clone(&self.virtual_log)),
            Pushed::Due => context.queue.hurry(&self.virtual_log),
        }
        Ok(AppendStep::Done(Appended {
            base_offset,
            next_offset,
            duplicate: false,
            append_time: None,
        }))
    }

    /// Takes note of the marker at `offset`.
    fn end_transaction(
        &self,
        open: &mut OpenGroup,
        producers: &mut Producers,
        marker: &EndMarker,
        offset: Offset,
        timestamp: Timestamp,
    ) {
        let Some(ended) = producers.ended(marker, offset, timestamp) else {
            return;
        };
        if let Some(aborted) = ended.aborted() {
            open.add_aborted(aborted);
        }
        self.unstable.end(&ended, self.durable_offset());
    }

    /// Opens a segment with room for `bytes`, and a group where the last one is full. `false` when
    /// the pool has no buffer.
    fn open_segment(&self, context: &AppendContext, head: &mut Head, bytes: usize) -> Result<bool> {
        let full = head.open.as_ref().is_some_and(|open| open.writer.is_some());
        let wanted = if full {
            // The last one was filled, not given back: the lane is busy.
            let wanted = match self.is_memory_only() {
                true => 2 * head.segment_bytes,
                false => context.pool.next_segment_bytes(head.segment_bytes, bytes),
            };
            wanted.min(self.stream.limits.segment_bytes_max())
        } else {
            BLOCK_BYTES_MIN
        };
        let Some(mut writer) = context.pool.allocate_segment(wanted, bytes) else {
            return Ok(false);
        };
        head.segment_bytes = writer.room();
        context.check_memory();

        let Head {
            open,
            producers,
            next_offset,
            ..
        } = head;
        if let Some(open) = open
            && open.writer.take().is_some()
        {
            open.group.close_segment(open.position);
        }
        if open.as_ref().is_some_and(|open| !open.takes(bytes)) {
            close_group(open, *next_offset, producers);
        }
        let open = match open {
            Some(open) => open,
            None => open.insert(self.new_group(*next_offset)),
        };
        open.add_index_entry(EntryKind::SegmentStart, *next_offset, producers);
        if open.position == Position(0) && self.stream.limits.needs_keys() {
            // The age of the record that comes counts.
            context.compaction_marks.add(self.id);
        }
        // Behind a lead of this many bytes its pages lie in memory as in the file: they are written
        // without a copy.
        let lead = open.position.0 as usize % PAGE_BYTES;
        let lead = if lead + bytes <= writer.room() {
            lead
        } else {
            0
        };
        writer.skip(lead);
        let buffer = Arc::clone(writer.buffer());
        let segment = open.group.open_segment(open.position, buffer, lead);
        open.writer = Some(writer);
        context.residents.add(Resident {
            lane: self.id,
            group: Arc::clone(&open.group),
            segment,
        });
        Ok(true)
    }
}

/// Returns the first append of a chunk that its producer sends again.
#[inline]
fn stored_before(head: &Head, header: &ChunkHeader) -> Result<Option<Appended>> {
    let Verdict::Duplicate(base_offset) = head.producers.check(header)? else {
        return Ok(None);
    };
    Ok(Some(Appended {
        base_offset,
        next_offset: base_offset.plus(u64::from(header.last_offset_delta) + 1),
        duplicate: true,
        append_time: None,
    }))
}
