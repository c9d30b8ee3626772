//! Text files, read in parallel by byte ranges that never split a line.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use bytes::Bytes;
use memchr::{memchr, memrchr};
use millstream_base::disk::Access;
use millstream_base::{ByteSize, Disk, DiskFile, Text};
use millstream_ring::SAMPLE_EVERY;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::BoxError;
use crate::parts::Parts;
use crate::sources::source::{Output, Source, SourceStatus};
use crate::time::partitions::SourcePartitions;

/// The limits of a read and of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineLimits {
    /// Bytes of a block; 128 KiB by default. At least 1.
    pub block_bytes: u64,
    /// Longest line, without its line end; 8 MiB by default. At least `block_bytes`.
    pub line_bytes_max: u64,
}

impl Default for LineLimits {
    fn default() -> Self {
        LineLimits {
            block_bytes: 128 << 10,
            line_bytes_max: 8 << 20,
        }
    }
}

/// An error because of which lines cannot be read.
#[derive(thiserror::Error)]
pub enum LineError {
    /// The operating system refuses.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file has become shorter since it was opened.
    #[error("{} has shrunk while it was read: it had {expected} bytes and ends at {found} now", path.display())]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened.
        expected: u64,
        /// The end that was found.
        found: u64,
    },
    /// A line longer than allowed.
    #[error("{}: the line at byte {position} is longer than {}; is this a text file?", path.display(), ByteSize(*line_bytes_max))]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// The beginning of the line.
        position: u64,
        /// The bound.
        line_bytes_max: u64,
    },
    /// A checkpoint was taken of other files, or of earlier versions of the files.
    #[error("{what}; a flow resumes with the files that its checkpoint was taken of")]
    Other {
        /// The property that has changed.
        what: String,
    },
    /// A range of no bytes, or lines shorter than a range.
    #[error("blocks of {} with lines of up to {}: a block must have at least one byte, and a line must be allowed the length of a block", ByteSize(limits.block_bytes), ByteSize(limits.line_bytes_max))]
    Limits {
        /// The range that was asked for.
        limits: LineLimits,
    },
}

millstream_base::debug_as_display!(LineError);

/// Some whole lines of a file, one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineBlock {
    /// The number of the file, from 0.
    pub file: usize,
    /// The offset in the file at which the lines begin.
    pub position: u64,
    /// The lines with their line ends. The last line of a file may have none.
    pub bytes: Bytes,
}

impl LineBlock {
    /// The lines without their `\n`; a `\r` before it belongs to the line. [`Bytes::slice_ref`] makes of one a slice
    /// that shares the block's memory.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (line, behind) = match memchr(b'\n', rest) {
                Some(end) => (&rest[..end], &rest[end + 1..]),
                None => (rest, &[][..]),
            };
            rest = behind;
            Some(line)
        })
    }
}

/// Its [`lines`](LineBlock::lines).
impl Parts for LineBlock {
    type Part<'a> = Text<'a>;

    fn for_each_part(&self, mut visit: impl FnMut(&Text<'_>)) {
        self.lines().for_each(|line| visit(&Text(line)));
    }

    fn show(line: &Text<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(line))
    }
}

/// Reads the lines of some files. Clones share the work: each range of bytes is read by one of
/// them. One alone gives the lines in order.
///
/// The ranges of a file are `block_bytes` long. A line belongs to the range that it begins in, so
/// every range can be read without knowing the others.
#[derive(Clone)]
pub struct LineFiles {
    shared: Arc<Shared>,
    /// From one range that is read here to the next.
    step: u64,
}

struct Shared {
    limits: LineLimits,
    files: Vec<File>,
    buffers: Arc<Buffers>,
    /// The next range that no source reads, numbered through all files.
    next_range: AtomicU64,
}

struct File {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    len: u64,
    /// The number behind the number of its last range.
    ranges_end: u64,
}

impl LineFiles {
    /// Opens the files. Lines that are appended to them later are not read.
    ///
    /// # Errors
    /// When a file cannot be opened, or the limits make no sense.
    pub fn open(
        disk: &dyn Disk,
        paths: impl IntoIterator<Item = PathBuf>,
        limits: LineLimits,
    ) -> Result<Self, LineError> {
        if limits.block_bytes == 0 || limits.line_bytes_max < limits.block_bytes {
            return Err(LineError::Limits { limits });
        }
        let mut files = Vec::new();
        let mut ranges_end = 0;
        for path in paths {
            let opened = disk
                .open(&path, Access::Read)
                .and_then(|file| Ok((file.len()?, file)));
            let (len, file) = match opened {
                Ok(opened) => opened,
                Err(error) => return Err(LineError::Io { path, error }),
            };
            ranges_end += len.div_ceil(limits.block_bytes);
            files.push(File {
                path,
                file,
                len,
                ranges_end,
            });
        }
        Ok(LineFiles {
            shared: Arc::new(Shared {
                limits,
                files,
                buffers: Arc::default(),
                next_range: AtomicU64::new(0),
            }),
            step: 1,
        })
    }

    /// Returns the share of one of several ranks that have all opened the same files; called before anything is read.
    #[must_use]
    pub fn of_rank(self, rank: u32, ranks: u32) -> Self {
        self.shared
            .next_range
            .store(u64::from(rank), Ordering::Relaxed);
        LineFiles {
            step: u64::from(ranks),
            ..self
        }
    }

    /// Splits the work among `instances` sources.
    pub fn split(self, instances: usize) -> Vec<Self> {
        vec![self; instances]
    }

    /// The lengths of all files together.
    pub fn len_bytes(&self) -> u64 {
        self.shared.files.iter().map(|file| file.len).sum()
    }
}

impl Source for LineFiles {
    type Item = LineBlock;

    fn partitions(&self) -> SourcePartitions<'_, LineBlock> {
        SourcePartitions::One
    }

    /// Counting the lines would cost as much as reading them: each block is sampled.
    fn records_of(&self, _: &LineBlock) -> u64 {
        SAMPLE_EVERY
    }

    /// Gives at most one block.
    fn poll(
        &mut self,
        out: &mut Output<LineBlock>,
        _budget: usize,
        _waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let shared = &*self.shared;
        let range = shared.next_range.fetch_add(self.step, Ordering::Relaxed);
        let file = shared
            .files
            .partition_point(|file| file.ranges_end <= range);
        let Some(opened) = shared.files.get(file) else {
            return Ok(SourceStatus::End);
        };
        let first_range = file
            .checked_sub(1)
            .map_or(0, |before| shared.files[before].ranges_end);
        let start = (range - first_range) * shared.limits.block_bytes;
        let lines = opened.lines_from(start, shared.limits, &shared.buffers)?;
        if let Some((position, bytes)) = lines {
            out.push(LineBlock {
                file,
                position,
                bytes,
            });
        }
        Ok(SourceStatus::Ready)
    }

    fn shares_position(&self) -> bool {
        true
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(postcard::to_stdvec(&self.shared.place())?)
    }

    /// Continues behind the lines that all of the sources had given together. The files must be the same as then, with the
    /// same lengths.
    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let saved: SharedPosition = postcard::from_bytes(saved)?;
        self.shared.check(&saved)?;
        let next = &self.shared.next_range;
        next.store(saved.next_range, Ordering::Relaxed);
        Ok(())
    }
}

/// The position of sources that share their work.
#[derive(Serialize, Deserialize)]
struct SharedPosition {
    /// No range from here on was read.
    next_range: u64,
    /// Bytes of a range, by which ranges are numbered.
    block_bytes: u64,
    lens: Vec<u64>,
}

impl Shared {
    fn place(&self) -> SharedPosition {
        let ranges = self.files.last().map_or(0, |file| file.ranges_end);
        SharedPosition {
            // Each source that found nothing left has counted on.
            next_range: self.next_range.load(Ordering::Relaxed).min(ranges),
            block_bytes: self.limits.block_bytes,
            lens: self.files.iter().map(|file| file.len).collect(),
        }
    }

    fn check(&self, saved: &SharedPosition) -> Result<(), LineError> {
        let other = |what| Err(LineError::Other { what });
        if saved.lens.len() != self.files.len() {
            let (then, now) = (saved.lens.len(), self.files.len());
            return other(format!("there were {then} files, and there are {now}"));
        }
        if saved.block_bytes != self.limits.block_bytes {
            let [then, now] = [saved.block_bytes, self.limits.block_bytes].map(ByteSize);
            return other(format!("blocks had {then}, and have {now}"));
        }
        let mut files = self.files.iter().zip(&saved.lens);
        match files.find(|(file, len)| file.len != **len) {
            None => Ok(()),
            Some((file, len)) => other(format!(
                "{} had {len} bytes, and has {}",
                file.path.display(),
                file.len
            )),
        }
    }
}

/// Read behind a range at first, to reach the end of its last line.
const OVERHANG_BYTES: u64 = 4096;

impl File {
    /// The lines that begin in the range from `start`, and the position of the first.
    fn lines_from(
        &self,
        start: u64,
        limits: LineLimits,
        buffers: &Arc<Buffers>,
    ) -> Result<Option<(u64, Bytes)>, LineError> {
        let end = self.len.min(start + limits.block_bytes);
        // A line begins behind a line end: the byte before the range shows whether one begins with the range.
        let read_from = start.saturating_sub(1);
        let mut buffer = Buffer::take(buffers);
        self.read_to(&mut buffer, read_from, end.saturating_add(OVERHANG_BYTES))?;
        let mut bytes = buffer.as_ref();
        let in_range = &bytes[..(end - read_from) as usize];
        let first = match start {
            0 => 0,
            _ => match memchr(b'\n', &in_range[..in_range.len() - 1]) {
                Some(line_end) => line_end + 1,
                None => return Ok(None),
            },
        };
        // The last line ends with the first line end at or behind the last byte of the range.
        let mut searched = in_range.len() - 1;
        let last_start = memrchr(b'\n', &bytes[first..searched]).map_or(first, |at| first + at + 1);
        loop {
            if let Some(line_end) = memchr(b'\n', &bytes[searched..]) {
                bytes = &bytes[..searched + line_end + 1];
                break;
            }
            searched = bytes.len();
            if (searched - last_start) as u64 > limits.line_bytes_max {
                break;
            }
            let read_to = read_from + searched as u64;
            if read_to == self.len {
                break;
            }
            // Twice as much each time, but never much more than the longest line.
            let more = (searched as u64).min(limits.line_bytes_max) + 1;
            self.read_to(&mut buffer, read_from, read_to + more)?;
            bytes = buffer.as_ref();
        }
        let last_line = &bytes[last_start..];
        let last_line = last_line.strip_suffix(b"\n").unwrap_or(last_line);
        if last_line.len() as u64 > limits.line_bytes_max {
            return Err(LineError::LineTooLong {
                path: self.path.clone(),
                position: read_from + last_start as u64,
                line_bytes_max: limits.line_bytes_max,
            });
        }
        let position = read_from + first as u64;
        let lines = first..bytes.len();
        Ok(Some((position, Bytes::from_owner(buffer).slice(lines))))
    }

    /// Extends a buffer, which holds the file from `from`, to position `to` or the end.
    fn read_to(&self, buffer: &mut Buffer, from: u64, to: u64) -> Result<(), LineError> {
        let to = to.min(self.len);
        let position = from + buffer.filled as u64;
        let count = self
            .file
            .read_full_at(buffer.extend_to((to - from) as usize), position)
            .map_err(|error| LineError::Io {
                path: self.path.clone(),
                error,
            })?;
        let read_to = position + count as u64;
        if read_to < to {
            // The file may end before this block.
            let found = self.file.len().map_or(read_to, |len| len.min(read_to));
            return Err(LineError::Shrunk {
                path: self.path.clone(),
                expected: self.len,
                found,
            });
        }
        Ok(())
    }
}

/// Memory that blocks were read into, to be used again: the last one first, since it may still be in
/// a core's cache.
#[derive(Default)]
struct Buffers(Mutex<Vec<Vec<u8>>>);

/// The pool holds as many as may be on their way through a flow.
const BUFFERS_MAX: usize = 64;

/// Larger ones were for a line that is longer than usual.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Returns to the pool when no block refers to it any more.
struct Buffer {
    /// Once written bytes stay: memory is not cleared again.
    bytes: Vec<u8>,
    /// The number of bytes that hold something.
    filled: usize,
    buffers: Arc<Buffers>,
}

impl Buffer {
    fn take(buffers: &Arc<Buffers>) -> Buffer {
        Buffer {
            bytes: buffers.0.lock().pop().unwrap_or_default(),
            filled: 0,
            buffers: Arc::clone(buffers),
        }
    }

    /// Makes room behind the content, up to a total number of bytes.
    fn extend_to(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
        let before = std::mem::replace(&mut self.filled, bytes);
        &mut self.bytes[before..bytes]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() <= BUFFER_BYTES_MAX {
            let mut kept = self.buffers.0.lock();
            if kept.len() < BUFFERS_MAX {
                kept.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}
