//! The live records of a range of groups: for each key the newest one in the range, from a merge of the groups' key files.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use millstream_base::disk::Access;
use millstream_base::{DiskFile, Offset};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::ids::GroupName;
use crate::keys::file::merge::KeyMerge;
use crate::keys::file::read::{KeyFile, ReadBytes};
use crate::keys::file::write::{KeyFileWriter, LeftOut};
use crate::keys::file::{Horizons, KeyFileError, Version};
use crate::keys::kind::KeyKind;

/// The most key files that are merged at once. More are merged into as many temporary ones first.
pub const FILES_MAX: usize = 64;

/// The bytes of a key file that one read fetches.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// The number of the first temporary file among the unfinished key files of its group: higher than the number of any run
/// of a sort.
const FIRST_TEMPORARY: usize = 1 << 20;

/// The keys of a range of adjacent groups.
pub struct RangeKeys<'a> {
    dir: &'a DataDir,
    range: Range<Offset>,
    /// At most [`FILES_MAX`].
    files: Vec<Source>,
    temporary: Vec<PathBuf>,
}

/// A key file to merge.
#[derive(Debug, Clone)]
struct Source {
    path: PathBuf,
    /// The name in its header.
    name: GroupName,
    end: Offset,
}

/// A key file of the range cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    pub path: PathBuf,
    pub error: KeyFileError,
}

/// The live records of one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupLive {
    pub records: u64,
    /// The bytes of their keys, values and headers.
    pub bytes: u64,
    /// The live records without a value.
    pub tombstones: u64,
}

/// Live offsets in their order.
#[derive(Debug)]
pub struct LiveOffsets {
    offsets: Vec<u64>,
    /// All live offsets before this one are there, from where the caller asked for.
    pub until: Offset,
    /// The place of the first one that was not passed.
    at: usize,
}

impl<'a> RangeKeys<'a> {
    /// Begins with the key files of adjacent groups, each with its end offset, oldest first. `files_max` of them are merged
    /// at once.
    ///
    /// # Errors
    /// When key files cannot be read, or temporary ones cannot be written.
    pub fn open(
        dir: &'a DataDir,
        groups: &[(GroupName, Offset)],
        files_max: usize,
    ) -> std::result::Result<RangeKeys<'a>, Unreadable> {
        let files = groups.iter().map(|(name, end)| Source {
            path: dir.keys_path(name),
            name: *name,
            end: *end,
        });
        let first = groups.first().map(|(name, _)| name.first_offset);
        let last = groups.last().map(|(_, end)| *end);
        let mut keys = RangeKeys {
            dir,
            range: first.unwrap_or_default()..last.unwrap_or_default(),
            files: files.collect(),
            temporary: Vec::new(),
        };
        while keys.files.len() > files_max.max(2) {
            let sources = std::mem::take(&mut keys.files);
            for sources in sources.chunks(files_max.max(2)) {
                let merged = keys.merge(sources)?;
                keys.files.push(merged);
            }
        }
        Ok(keys)
    }

    /// Counts the live records of each of the groups that begin at these offsets, from the offset `from` on.
    ///
    /// # Errors
    /// When key files cannot be read.
    pub fn count(
        &self,
        from: Offset,
        firsts: &[Offset],
    ) -> std::result::Result<Vec<GroupLive>, Unreadable> {
        let mut counts = vec![GroupLive::default(); firsts.len()];
        self.for_each(|_, version| {
            let group = firsts.partition_point(|first| *first <= version.offset);
            if version.offset >= from
                && let Some(count) = group.checked_sub(1).and_then(|group| counts.get_mut(group))
            {
                count.records += 1;
                count.bytes += u64::from(version.bytes);
                count.tombstones += u64::from(version.is_tombstone);
            }
            Ok(())
        })?;
        Ok(counts)
    }

    /// Returns the smallest live offsets from `from` on: at most `max`, and all if they are no more than half of that.
    ///
    /// # Errors
    /// When key files cannot be read.
    pub fn live(&self, from: Offset, max: usize) -> std::result::Result<LiveOffsets, Unreadable> {
        let (mut offsets, mut until) = (Vec::new(), self.range.end);
        let half = (max / 2).max(1);
        self.for_each(|_, version| {
            if version.offset >= from && version.offset < until {
                offsets.push(version.offset.0);
                if offsets.len() > 2 * half {
                    // The smaller half stays: each offset is visited a constant number of times.
                    let (_, first_left_out, _) = offsets.select_nth_unstable(half);
                    until = Offset(*first_left_out);
                    offsets.truncate(half);
                }
            }
            Ok(())
        })?;
        offsets.sort_unstable();
        Ok(LiveOffsets {
            offsets,
            until,
            at: 0,
        })
    }

    /// Calls `each` with each key of the range and its newest record, in the order of the keys.
    fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &Version) -> std::result::Result<(), KeyFileError>,
    ) -> std::result::Result<(), Unreadable> {
        for_each_merged(self.dir, &self.files, &mut each)
    }

    /// Merges key files into a temporary one.
    fn merge(&mut self, sources: &[Source]) -> std::result::Result<Source, Unreadable> {
        let (name, end) = (sources[0].name, sources[sources.len() - 1].end);
        let number = FIRST_TEMPORARY + self.temporary.len();
        let mut path = self.dir.unfinished_keys_path(&name);
        path.set_extension(format!("{number}.new"));
        // Removed in any case, also when it cannot be written.
        self.temporary.push(path.clone());
        let unreadable = |error| Unreadable {
            path: path.clone(),
            error,
        };
        let create = || {
            let file = self.dir.disk.open(&path, Access::Create)?;
            file.set_len(0)?;
            Ok(file)
        };
        let file = create().map_err(|error: io::Error| unreadable(error.into()))?;
        let mut writer = KeyFileWriter::new(&*file, &name, &KeyKind::Primary);
        for_each_merged(self.dir, sources, &mut |key, version| {
            Ok(writer.add(key, version)?)
        })?;
        let finished = writer.finish(end, LeftOut::default(), Horizons::default());
        finished.map_err(|error| unreadable(error.into()))?;
        Ok(Source { path, name, end })
    }
}

impl Drop for RangeKeys<'_> {
    fn drop(&mut self) {
        for path in &self.temporary {
            let _ = self.dir.disk.remove_file(path);
        }
    }
}

fn for_each_merged(
    dir: &DataDir,
    sources: &[Source],
    each: &mut impl FnMut(&[u8], &Version) -> std::result::Result<(), KeyFileError>,
) -> std::result::Result<(), Unreadable> {
    let files = sources.iter().map(|source| open_source(dir, source));
    let files: Vec<(KeyFile, ReadAhead<'_>)> = files.collect::<std::result::Result<_, _>>()?;
    let unreadable = |file: Option<&ReadAhead<'_>>, error| Unreadable {
        path: file.map_or_else(PathBuf::new, |file| file.path.to_owned()),
        error,
    };
    let cursors = files.iter().map(|(keys, file)| {
        let cursor = keys.cursor(file, &[]);
        cursor.map_err(|error| unreadable(Some(file), error))
    });
    let mut merge = KeyMerge::new(cursors.collect::<std::result::Result<_, _>>()?);
    loop {
        let version = merge.advance();
        let version = version.map_err(|error| unreadable(merge.file(), error))?;
        let Some(version) = version else {
            return Ok(());
        };
        each(merge.key(), &version).map_err(|error| unreadable(None, error))?;
    }
}

fn open_source<'s>(
    dir: &DataDir,
    source: &'s Source,
) -> std::result::Result<(KeyFile, ReadAhead<'s>), Unreadable> {
    let open = || {
        let file = dir.disk.open(&source.path, Access::Read)?;
        let keys = KeyFile::open_for_cursors(&*file, &source.name, source.end)?;
        Ok((keys, ReadAhead::new(file, &source.path)))
    };
    open().map_err(|error| Unreadable {
        path: source.path.clone(),
        error,
    })
}

/// A file that is read from its start to its end, in pieces of a size that disks like.
struct ReadAhead<'a> {
    file: Box<dyn DiskFile>,
    path: &'a Path,
    /// The position of the piece in memory, and the piece.
    piece: RefCell<(u64, Vec<u8>)>,
}

impl<'a> ReadAhead<'a> {
    fn new(file: Box<dyn DiskFile>, path: &'a Path) -> ReadAhead<'a> {
        ReadAhead {
            file,
            path,
            piece: RefCell::default(),
        }
    }
}

impl ReadBytes for ReadAhead<'_> {
    fn read_bytes(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let (start, piece) = &mut *self.piece.borrow_mut();
        let in_piece = |start: u64, piece: &[u8]| {
            let from = usize::try_from(position.checked_sub(start)?).ok()?;
            (from + buffer.len() <= piece.len()).then_some(from)
        };
        let from = match in_piece(*start, piece) {
            Some(from) => from,
            None => {
                piece.resize(READ_AHEAD_BYTES.max(buffer.len()), 0);
                let count = self.file.read_full_at(piece, position)?;
                piece.truncate(count);
                *start = position;
                0
            }
        };
        let found = &piece[from..];
        let count = found.len().min(buffer.len());
        buffer[..count].copy_from_slice(&found[..count]);
        Ok(count)
    }
}

impl LiveOffsets {
    /// Whether an offset is live. Offsets rise from call to call, and are before [`until`](Self::until).
    pub fn contains(&mut self, offset: Offset) -> bool {
        let rest = &self.offsets[self.at..];
        // Most calls pass one offset or none.
        self.at += rest.iter().take_while(|live| **live < offset.0).count();
        self.offsets.get(self.at) == Some(&offset.0)
    }
}

impl From<&Unreadable> for LogError {
    fn from(Unreadable { path, error }: &Unreadable) -> LogError {
        match error {
            KeyFileError::Io(error) => {
                let copied = match error.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(error.kind(), error.to_string()),
                };
                LogError::io("read", path, copied)
            }
            KeyFileError::Damaged { position, what } => {
                LogError::corrupted(path, millstream_base::Position(*position), what)
            }
        }
    }
}

/// The live offsets of a range, in the order of a rewrite.
pub struct LiveReader<'a> {
    keys: &'a RangeKeys<'a>,
    /// Deleted records before this offset are not live.
    first: Offset,
    max: usize,
    current: Option<LiveOffsets>,
    /// Why the last call failed.
    unreadable: Option<Unreadable>,
}

impl<'a> LiveReader<'a> {
    /// Begins at the offset `first`, with at most `max` offsets in memory.
    pub fn new(keys: &'a RangeKeys<'a>, first: Offset, max: usize) -> LiveReader<'a> {
        LiveReader {
            keys,
            first,
            max,
            current: None,
            unreadable: None,
        }
    }

    /// Returns the end of the range: no record behind it makes others go.
    pub fn range_end(&self) -> Offset {
        self.keys.range.end
    }

    /// Returns the key file that made the last call fail, if one did.
    pub fn take_unreadable(&mut self) -> Option<Unreadable> {
        self.unreadable.take()
    }

    /// Returns live offsets among which are all of a chunk's. The offsets of chunks rise from call to call.
    ///
    /// # Errors
    /// When key files cannot be read.
    pub fn of_chunk(&mut self, offsets: Range<Offset>) -> Result<&mut LiveOffsets> {
        let has_all = |live: &LiveOffsets| live.until >= offsets.end;
        if !self.current.as_ref().is_some_and(has_all) {
            self.current = None;
            let from = self.first.max(offsets.start);
            let mut max = self.max;
            // This loops only if one chunk has more live records than memory may hold.
            loop {
                let live = match self.keys.live(from, max) {
                    Ok(live) => live,
                    Err(unreadable) => {
                        let error = LogError::from(&unreadable);
                        self.unreadable = Some(unreadable);
                        return Err(error);
                    }
                };
                let is_enough = has_all(&live) || live.until >= self.keys.range.end;
                if is_enough {
                    return Ok(self.current.insert(live));
                }
                max = max.saturating_mul(2);
            }
        }
        match &mut self.current {
            Some(live) => Ok(live),
            None => unreachable!("it was checked above"),
        }
    }
}
