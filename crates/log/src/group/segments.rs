//! The segments of a group: where each lies in the group, and its memory until it is evicted.

use std::sync::Arc;

use millstream_base::{Cursor, Position, SegmentIndex};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::Group;
use crate::ids::Generation;
use crate::index::entry::EntryKind;
use crate::index::file::Index;
use crate::memory::buffer::{Buffer, Slice};

/// This bit of a cursor's segment says that the others are a generation.
const OF_GENERATION: u32 = 1 << 31;

#[derive(Debug)]
pub struct Segment {
    pub base: Position,
    /// `None` for the head.
    pub end: Option<Position>,
    /// `None` when evicted.
    pub buffer: Option<Arc<Buffer>>,
    /// Bytes of the buffer before the first one of the segment.
    pub lead: usize,
}

/// Returns the generation that the cursor of a rewritten group names.
pub fn generation_of(cursor: &Cursor) -> Option<Generation> {
    let number = cursor.segment.0 & !OF_GENERATION;
    (cursor.segment.0 != number).then_some(Generation(number))
}

impl Group {
    /// Opens the next segment at `base`.
    pub fn open_segment(&self, base: Position, buffer: Arc<Buffer>, lead: usize) -> SegmentIndex {
        let mut segments = self.segments.write();
        if let Some(last) = segments.last() {
            assert_eq!(last.end, Some(base), "segments leave no gap");
        }
        segments.push(Segment {
            base,
            end: None,
            buffer: Some(buffer),
            lead,
        });
        SegmentIndex(segments.len() as u32 - 1)
    }

    /// Closes the head segment at `end`.
    pub fn close_segment(&self, end: Position) {
        let mut segments = self.segments.write();
        let last = segments
            .last_mut()
            .expect("a lane closes a segment that it has opened");
        assert!(last.end.is_none() && last.base <= end);
        last.end = Some(end);
    }

    /// Returns the number of segments that the group has had so far, as far as they are known.
    pub fn segment_count(&self) -> u32 {
        self.segments.read().len() as u32
    }

    /// Loads the segments' index from the index, where they are not known yet.
    pub fn load_segments(&self, dir: &DataDir) -> Result<()> {
        if self.segment_count() > 0 || self.synced() == Position(0) {
            return Ok(());
        }
        let path = self.index_path(dir);
        let index = Index::read(&*dir.disk, &path, &self.name())
            .map_err(|error| LogError::io("read index", &path, error))?;
        let mut starts: Vec<Position> = index
            .entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::SegmentStart)
            .map(|entry| entry.position)
            .collect();
        if starts.first() != Some(&Position(0)) {
            starts.insert(0, Position(0));
        }
        let mut segments = self.segments.write();
        if segments.is_empty() {
            let ends: Vec<Position> = starts
                .iter()
                .skip(1)
                .copied()
                .chain([self.synced()])
                .collect();
            segments.extend(starts.iter().zip(ends).map(|(&base, end)| Segment {
                base,
                end: Some(end),
                buffer: None,
                lead: 0,
            }));
        }
        Ok(())
    }

    /// The segments that take memory.
    pub fn segments_in_memory(&self) -> Vec<SegmentIndex> {
        let segments = self.segments.read();
        let indexed = (0..).map(SegmentIndex).zip(segments.iter());
        let in_memory = indexed.filter(|(_, segment)| segment.buffer.is_some());
        in_memory.map(|(index, _)| index).collect()
    }

    /// The segment that holds `position`, or the last one for the group's end.
    pub fn segment_at(&self, position: Position) -> SegmentIndex {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= position);
        SegmentIndex(after.saturating_sub(1) as u32)
    }

    /// Returns the cursor of a position. A cursor into a rewritten group names the generation in place of the segment, since
    /// positions differ between generations.
    pub fn cursor(&self, position: Position) -> Cursor {
        Cursor {
            stream: self.lane.stream,
            streamlet: self.lane.streamlet,
            group: self.id,
            segment: match self.is_rewritten() {
                true => SegmentIndex(self.name().generation.0 | OF_GENERATION),
                false => self.segment_at(position),
            },
            position,
        }
    }

    /// Whether a cursor of this group's id was made for this file of it.
    pub fn has_made(&self, cursor: &Cursor) -> bool {
        generation_of(cursor) == self.is_rewritten().then(|| self.name().generation)
    }

    /// Returns the position where a segment starts.
    pub fn segment_base(&self, segment: SegmentIndex) -> Option<Position> {
        self.segments
            .read()
            .get(segment.0 as usize)
            .map(|segment| segment.base)
    }

    /// The end of a segment, if it is closed.
    pub fn segment_end(&self, segment: SegmentIndex) -> Option<Position> {
        self.segments
            .read()
            .get(segment.0 as usize)
            .and_then(|segment| segment.end)
    }

    /// Returns the bytes of `[from, to)` that memory holds in the segment of `from`; `None` when it is evicted.
    pub fn slice_in_memory(&self, from: Position, to: Position) -> Option<Slice> {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= from);
        let segment = segments.get(after.checked_sub(1)?)?;
        let end = segment.end.map_or(to, |end| end.min(to));
        if end <= from {
            return None;
        }
        let buffer = segment.buffer.as_ref()?;
        let start = segment.lead + (from.0 - segment.base.0) as usize;
        Some(buffer.slice(start..start + (end.0 - from.0) as usize))
    }

    /// Slices of memory that together hold `[from, to)`.
    pub(super) fn slices(&self, from: Position, to: Position) -> Vec<Slice> {
        let mut slices = Vec::new();
        let mut at = from;
        while at < to {
            let slice = self
                .slice_in_memory(at, to)
                .expect("a segment is persisted before it is evicted");
            at = at.plus(slice.len() as u64);
            slices.push(slice);
        }
        slices
    }

    /// Whether memory holds the segment of a position.
    pub fn is_in_memory(&self, position: Position) -> bool {
        let segments = self.segments.read();
        let after = segments.partition_point(|segment| segment.base <= position);
        let segment = after.checked_sub(1).and_then(|last| segments.get(last));
        segment.is_some_and(|segment| segment.buffer.is_some())
    }

    /// Returns the memory that a segment takes.
    pub fn segment_memory(&self, segment: SegmentIndex) -> usize {
        let segments = self.segments.read();
        let segment = segments.get(segment.0 as usize);
        let buffer = segment.and_then(|segment| segment.buffer.as_ref());
        buffer.map_or(0, |buffer| buffer.capacity())
    }

    /// Whether the bytes at a position are only in the file.
    pub fn is_evicted(&self, position: Position) -> bool {
        position < self.durable() && !self.is_in_memory(position)
    }

    /// Gives the buffer of a segment back, if it is closed and persisted, or the group is removed. Returns its size, 0 if it was
    /// gone already; `None` if it stays.
    pub fn evict(&self, segment: SegmentIndex) -> Option<usize> {
        let (is_removed, synced) = (self.is_removed(), self.synced());
        let stays = |segment: &Segment| {
            let is_persisted = segment.end.is_some_and(|end| end <= synced);
            segment.buffer.is_some() && !is_removed && !is_persisted
        };
        // Most calls end here, beside readers.
        let segments = self.segments.read();
        if segments.get(segment.0 as usize).is_some_and(stays) {
            return None;
        }
        drop(segments);
        let mut segments = self.segments.write();
        let segment = segments.get_mut(segment.0 as usize);
        let buffer = segment.and_then(|segment| segment.buffer.take());
        drop(segments);
        self.forget_index_if_cold();
        Some(buffer.map_or(0, |buffer| buffer.capacity()))
    }

    /// Forgets the index of a group that no longer takes memory otherwise: a reader that needs it again
    /// reads the index file.
    pub(super) fn forget_index_if_cold(&self) {
        let segments = self.segments.read();
        // Eviction goes through them from the first to the last.
        let in_memory = |segment: &Segment| segment.buffer.is_some();
        if !segments.iter().rev().any(in_memory) {
            self.forget_index();
        }
    }
}
