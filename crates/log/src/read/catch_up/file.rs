//! Reading parts of groups' files, and checking their chunks.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use millstream_base::disk::{Access, PAGE_BYTES};
use millstream_base::{ByteSize, DiskFile, Position};
use millstream_record::{ChunkHeader, Chunks};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::lane::LaneState;
use crate::lane::groups::GroupBehind;
use crate::memory::buffer::{BufferWriter, Slice};
use crate::memory::pool::Arena;
use crate::read::catch_up::windows::{WINDOW_BYTES, block_bytes};
use crate::read::catch_up::{CatchUp, Purpose};
use crate::settings::config::Durability;

/// The least that is read outside of windows: a batch of Kafka's producers by default, 16 KiB, wherever in a page it begins.
const PIECE_BYTES: usize = (16 << 10) + PAGE_BYTES;

impl CatchUp {
    /// The window that begins at a position: it ends where the index knows of a chunk that begins. `None` when
    /// it does not, or the window would be too large.
    pub fn window_range(
        &self,
        lane: &LaneState,
        group: &Arc<Group>,
        from: Position,
        window_bytes: usize,
    ) -> Option<Range<Position>> {
        let block_max = self.shared.pool.block_bytes_max(Arena::Windows);
        let page_start = from.0 - from.0 % PAGE_BYTES as u64;
        let most = Position(page_start + window_bytes.min(WINDOW_BYTES).min(block_max) as u64);
        let file_end = group.synced().min(group.durable());
        let mut end = file_end;
        if end > most {
            let last = self.indexes.look_at(lane, group, |index| {
                let last = index.last_before(|point| point.position <= most);
                let last = last.filter(|point| point.position > from);
                last.or_else(|| index.first_behind(from))
            });
            end = last.ok()??.position.min(file_end);
        }
        let range = from..end;
        (from < end && block_bytes(&range) <= block_max).then_some(range)
    }

    /// Returns the next window from a position on, in this group or behind it. `None` where memory has the next bytes, or
    /// there are none.
    pub fn next_window(
        &self,
        lane: &LaneState,
        group: &Arc<Group>,
        at: Position,
        window_bytes: usize,
    ) -> Option<(Arc<Group>, Range<Position>)> {
        let ended = group.end().is_some_and(|end| at >= end.position);
        let (group, at) = match ended {
            true => match lane.group_behind(group, at)? {
                GroupBehind::At(behind) => (behind, Position(0)),
                // Its reader looks for the position first.
                GroupBehind::Within(..) => return None,
            },
            false => (Arc::clone(group), at),
        };
        if group.is_removed() || group.is_in_memory(at) {
            return None;
        }
        let range = self.window_range(lane, &group, at, window_bytes)?;
        Some((group, range))
    }

    /// Reads a file from a position up to `end`: as much as is asked for, or one chunk.
    pub fn read_piece(
        &self,
        group: &Arc<Group>,
        range: Range<Position>,
        bytes_max: usize,
        purpose: Purpose,
    ) -> Result<Slice> {
        let from = range.start;
        let path = group.path(&self.dir);
        let left = usize::try_from(range.end.0.saturating_sub(from.0)).unwrap_or(usize::MAX);
        let block_max = self.shared.pool.block_bytes_max(Arena::Windows);
        let read_error = |error| LogError::io("read", &path, error);
        let file = self
            .dir
            .open_group(&group.name(), purpose.access())
            .map_err(|error| LogError::io("open", &path, error))?;
        let read = |bytes: usize| -> Result<Slice> {
            let mut writer = self.allocate(bytes).ok_or(LogError::ReadBudget)?;
            writer.extend(bytes, |buffer| {
                file.read_full_at(buffer, from.0).map_err(read_error)
            })?;
            let filled = writer.filled();
            Ok(writer.buffer().slice(0..filled))
        };

        let bytes = bytes_max.clamp(PIECE_BYTES, WINDOW_BYTES);
        let mut piece = read(bytes.min(block_max).min(left))?;
        // The first chunk decides how much is needed at least.
        let first = ChunkHeader::parse(&piece)
            .map_err(|error| LogError::corrupted(&path, from, error.to_string()))?;
        let first_bytes = first.total_bytes as usize;
        if first_bytes > left {
            let what = "this chunk reaches beyond the group's end".to_owned();
            return Err(LogError::corrupted(&path, from, what));
        }
        if first_bytes > block_max {
            let needed = ByteSize(2 * first_bytes as u64);
            return Err(LogError::BadSetting {
                setting: "catch_up",
                why: format!(
                    "a stored chunk of {} needs at least {needed} to be read",
                    ByteSize(first_bytes as u64)
                ),
            });
        }
        if first_bytes > piece.len() {
            piece = read(first_bytes)?;
        }
        let wanted = bytes_max.max(first_bytes).min(piece.len());
        let whole = check_chunks(&piece[..wanted], &path, group, from)?;
        Ok(piece.slice(0..whole))
    }
}

impl Purpose {
    fn access(self) -> Access {
        match self {
            Purpose::ReadOn => Access::Read,
            Purpose::LookUp => Access::ReadHereAndThere,
        }
    }
}

/// The way in which windows are read: that in which the file was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Through the system's cache, which has the bytes that were written last. A read past it would have the disk write them
    /// first.
    Cached,
    BypassCache,
}

impl ReadMode {
    pub fn of(lane: &LaneState) -> ReadMode {
        match lane.stream.durability {
            Durability::Written => ReadMode::Cached,
            Durability::Sync | Durability::Async | Durability::Memory => ReadMode::BypassCache,
        }
    }
}

/// Reads a window of a group's file, and checks every chunk in it; returns the whole chunks from its start on, of which there
/// is one at least.
pub fn load(
    file: &dyn DiskFile,
    path: &Path,
    group: &Group,
    range: Range<Position>,
    mode: ReadMode,
    mut writer: BufferWriter,
) -> Result<Slice> {
    let len = (range.end.0 - range.start.0) as usize;
    // Whole pages.
    let (lead, room) = (range.start.0 as usize % PAGE_BYTES, block_bytes(&range));
    writer.extend(room, |buffer| {
        let at = range.start.0 - lead as u64;
        let read = match mode {
            ReadMode::Cached => file.read_full_once_at(buffer, at),
            ReadMode::BypassCache => file.read_full_past_cache_at(buffer, at),
        };
        let count = read.map_err(|error| LogError::io("read", path, error))?;
        let read = buffer.get(lead..count.min(lead + len)).unwrap_or_default();
        check_chunks(read, path, group, range.start).map(|whole| lead + whole)
    })?;
    let filled = writer.filled();
    Ok(writer.buffer().slice(lead..filled))
}

/// Checks bytes from disk before they are believed; returns the end of the last good chunk.
fn check_chunks(bytes: &[u8], path: &Path, group: &Group, from: Position) -> Result<usize> {
    let corrupted = |at: usize, what: String| LogError::corrupted(path, from.plus(at as u64), what);
    let mut chunks = Chunks::new(bytes);
    let mut end = 0;
    // The checksum does not cover a chunk's offset, but they follow each other.
    let mut next = (from == Position(0)).then_some(group.first_offset);
    loop {
        match chunks.next() {
            Some(Ok(chunk)) => {
                let offset = chunk.header().base_offset;
                let follows = next.is_none_or(|next| next == offset);
                let at = from.plus(chunks.position() as u64);
                next = Some(chunk.header().next_offset());
                let ends = group.end().filter(|end| end.position == at);
                if !follows || ends.is_some_and(|end| Some(end.offset) != next) {
                    let what = format!("offset {offset} does not come here");
                    return Err(corrupted(end, what));
                }
                end = chunks.position();
            }
            // The bytes end within this chunk, or it is damaged. The chunks before it are good; the next
            // read finds out.
            Some(Err(_)) | None if end > 0 => return Ok(end),
            Some(Err(error)) => return Err(corrupted(0, error.to_string())),
            None => return Err(corrupted(0, "the file ends here".to_owned())),
        }
    }
}
