//! The trait for disks, and the system's file system. The trait offers only operations whose order and
//! durability the log reasons about, so a simulated disk can lose, tear and refuse the same writes as a
//! real one.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags};

use crate::direct::DirectHandle;
pub use crate::direct::PAGE_BYTES;

/// The access that a handle of a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading; the file must exist.
    Read,
    /// Reading here and there; the file must exist. The system reads nothing ahead.
    ReadHereAndThere,
    /// Reading and writing; the file must exist.
    Write,
    /// Reading and writing; the file is created when it does not exist.
    Create,
}

impl Access {
    /// Whether the file can be written.
    pub fn is_for_writing(self) -> bool {
        matches!(self, Access::Write | Access::Create)
    }
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name in the folder; names that are not UTF-8 are given with replacement characters.
    pub name: String,
    /// Whether it is a folder.
    pub is_dir: bool,
}

/// A file system.
///
/// A write survives a crash of the machine only after [`DiskFile::sync`]. A new, changed or removed name survives it
/// only after [`Disk::sync_dir`] of the name's folder.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>>;

    /// Creates a folder and the folders above it where they are missing.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Lists a folder, in the order of the names.
    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>>;

    /// Renames a file atomically, and replaces any file with the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes all files and names below `path` durable as they are now. It costs less than many single syncs.
    fn sync_tree(&self, path: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Reads at `offset` and returns the number of bytes read; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads like [`DiskFile::read_at`], for data that is not read again soon, so the system need not cache
    /// it. Only a read whose memory, offset and length are multiples of [`PAGE_BYTES`] goes past the cache.
    fn read_past_cache_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buffer, offset)
    }

    /// Reads like [`DiskFile::read_at`], for data that a writer may have left in the system's cache, and that is not read again
    /// soon: the system need not keep bytes that it reads from the disk for this.
    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buffer, offset)
    }

    /// Writes all of `parts`, one after another, at `offset`.
    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Writes like [`DiskFile::write_all_at`], for data that is not read from the file soon. Large writes go
    /// past the system's cache.
    fn write_past_cache_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write_all_at(parts, offset)
    }

    /// Makes all writes to this file durable, and its length.
    fn sync(&self) -> io::Result<()>;

    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves blocks, so that writes below `len` need no new ones; the length stays the same.
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// Takes the exclusive lock of the file, until the file is closed. `false` when another open file holds
    /// it.
    fn try_lock(&self) -> io::Result<bool>;
}

impl dyn DiskFile + '_ {
    /// Fills `buffer` from `offset`, up to the end of the file. Returns the number of bytes read.
    ///
    /// # Errors
    /// Like [`DiskFile::read_at`].
    pub fn read_full_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fill(buffer, offset, |rest, at| self.read_at(rest, at))
    }

    /// Reads like [`read_full_at`](Self::read_full_at), past the system's cache.
    ///
    /// # Errors
    /// Like [`DiskFile::read_past_cache_at`].
    pub fn read_full_past_cache_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fill(buffer, offset, |rest, at| self.read_past_cache_at(rest, at))
    }

    /// Reads like [`read_full_at`](Self::read_full_at), for data that is read once.
    ///
    /// # Errors
    /// Like [`DiskFile::read_once_at`].
    pub fn read_full_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fill(buffer, offset, |rest, at| self.read_once_at(rest, at))
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Like [`DiskFile::write_all_at`].
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(&mut [IoSlice::new(bytes)], offset)
    }
}

/// Calls `read` until `buffer` is full or the file ends. Returns the number of bytes read.
fn fill(
    buffer: &mut [u8],
    offset: u64,
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// `RWF_DONTCACHE` of Linux: the cache gives the bytes that it has, and drops those that this read brings in.
const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// The operating system's file system. It creates files and folders that only their owner may use.
#[derive(Debug, Default)]
pub struct SystemDisk;

/// The most parts that Linux takes in one gathered write (`UIO_MAXIOV`).
pub(crate) const PARTS_MAX: usize = 1024;

impl Disk for SystemDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(access.is_for_writing())
            .create(access == Access::Create)
            .mode(0o600)
            .open(path)?;
        if access == Access::ReadHereAndThere {
            // Only a hint: without it reads take longer.
            let _ = fadvise(&file, 0, None, Advice::Random);
        }
        Ok(Box::new(SystemFile::new(file)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name: &OsStr = &entry.file_name();
            entries.push(DirEntry {
                name: name.to_string_lossy().into_owned(),
                is_dir: entry.file_type()?.is_dir(),
            });
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        // Since Linux 5.8 this reports errors of writes that were already under way.
        Ok(rustix::fs::syncfs(File::open(path)?)?)
    }
}

struct SystemFile {
    file: File,
    direct_reads: DirectHandle,
    direct_writes: DirectHandle,
    /// Whether the system has not refused a read with [`DONT_CACHE`] yet.
    has_dont_cache: AtomicBool,
}

impl SystemFile {
    fn new(file: File) -> SystemFile {
        SystemFile {
            file,
            direct_reads: DirectHandle::default(),
            direct_writes: DirectHandle::default(),
            has_dont_cache: AtomicBool::new(true),
        }
    }

    fn read_with(
        &self,
        flags: ReadWriteFlags,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(buffer)], offset, flags)
    }

    /// Notes that the system refuses [`DONT_CACHE`]. It reads nothing ahead from then on, since no read would drop these bytes.
    fn give_up_dont_cache(&self) {
        self.has_dont_cache.store(false, Ordering::Relaxed);
        let _ = fadvise(&self.file, 0, None, Advice::Random);
    }

    /// Reads as with [`DONT_CACHE`]. The cache keeps the bytes that it has: other readers may need them, and dropping bytes that
    /// are not written back would have the disk write them.
    fn read_and_drop(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Ok(count @ 1..) = self.read_with(ReadWriteFlags::NOWAIT, buffer, offset) {
            return Ok(count);
        }
        let count = self.file.read_at(buffer, offset)?;
        if let Some(read) = NonZeroU64::new(count as u64) {
            let _ = fadvise(&self.file, offset, Some(read), Advice::DontNeed);
        }
        Ok(count)
    }
}

impl DiskFile for SystemFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn read_past_cache_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.direct_reads.read_at(&self.file, buffer, offset) {
            Some(count) => Ok(count),
            None => self.read_at(buffer, offset),
        }
    }

    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.has_dont_cache.load(Ordering::Relaxed) {
            match self.read_with(DONT_CACHE, buffer, offset) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => return Err(Errno::INTR.into()),
                // Before Linux 6.14, on some file systems, and where a filter refuses the system call. Other errors come again.
                Err(_) => self.give_up_dont_cache(),
            }
        }
        self.read_and_drop(buffer, offset)
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let mut rest = parts;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let few = &rest[..rest.len().min(PARTS_MAX)];
            match rustix::io::pwritev(&self.file, few, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    offset += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_past_cache_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        match self.direct_writes.write_all_at(&self.file, parts, offset)? {
            true => Ok(()),
            false => self.write_all_at(parts, offset),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, len) {
            // Some file systems cannot reserve blocks; later writes then allocate them.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vectored_write_may_have_more_slices_than_one_system_call_takes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = SystemDisk.open(&path, Access::Create).unwrap();
        let numbers: Vec<[u8; 4]> = (0..3000_u32).map(u32::to_le_bytes).collect();
        let mut parts: Vec<IoSlice> = numbers.iter().map(|n| IoSlice::new(n)).collect();
        parts.insert(7, IoSlice::new(b""));
        file.write_all_at(&mut parts, 5).unwrap();
        assert_eq!(file.len().unwrap(), 5 + 12_000);
        let mut read = vec![0; 20_000];
        assert_eq!(file.read_full_at(&mut read, 5).unwrap(), 12_000);
        assert_eq!(read[..12_000], numbers.concat());
    }

    /// Before Linux 6.14, reading a large backlog pushed all other files out of the cache.
    #[test]
    fn a_read_that_the_system_cannot_leave_out_of_the_cache_drops_its_bytes() {
        const PAGES: usize = 64;
        // `/tmp` may be in memory.
        let file = SystemFile::new(tempfile::tempfile_in(".").unwrap());
        file.give_up_dont_cache();
        let content: Vec<u8> = (0..PAGES * PAGE_BYTES).map(|n| (n % 251) as u8).collect();
        let disk_file: &dyn DiskFile = &file;
        disk_file.write_at(&content, 0).unwrap();
        disk_file.sync().unwrap();
        let read = |pages: usize| {
            let mut read = vec![0; pages * PAGE_BYTES];
            let count = disk_file.read_full_once_at(&mut read, 0).unwrap();
            assert!(read[..count] == content[..pages * PAGE_BYTES]);
        };
        // This has the system read the page, if it is not there.
        let is_cached = |page: usize| {
            let at = (page * PAGE_BYTES) as u64;
            let read = file.read_with(ReadWriteFlags::NOWAIT, &mut [0; PAGE_BYTES], at);
            read.is_ok_and(|count| count > 0)
        };
        let cached = |pages: usize| (0..pages).filter(|page| is_cached(*page)).count();
        if cached(PAGES) < PAGES {
            // This file system does not tell.
            return;
        }
        read(PAGES);
        assert_eq!(cached(PAGES), PAGES, "these were in the cache before");
        // A disk may be so fast that a read finds its first bytes in the cache, so there are several rounds.
        let mut left = 0;
        let is_dropped = (0..10).any(|_| {
            fadvise(&file.file, 0, None, Advice::DontNeed).unwrap();
            if is_cached(PAGES - 1) {
                // This file system has no cache, but is one.
                return true;
            }
            read(PAGES / 2);
            left = cached(PAGES - 1);
            left <= 2
        });
        assert!(is_dropped, "{left} pages stay in the cache");
    }

    #[test]
    fn a_lock_is_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = SystemDisk.open(&path, Access::Create).unwrap();
        let second = SystemDisk.open(&path, Access::Create).unwrap();
        assert!(first.try_lock().unwrap());
        assert!(!second.try_lock().unwrap());
        drop(first);
        assert!(second.try_lock().unwrap());
    }
}
