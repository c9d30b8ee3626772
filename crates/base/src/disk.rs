//! The trait for disks, and the system's file system. The trait offers only operations whose order and
//! durability the log reasons about, so a simulated disk can lose, tear and refuse the same writes as a
//! real one.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::io::ReadWriteFlags;

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
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        }
        Ok(Box::new(SystemFile {
            file,
            direct_reads: DirectHandle::default(),
            direct_writes: DirectHandle::default(),
        }))
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
        let parts = &mut [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.file, parts, offset, DONT_CACHE) {
            // Before Linux 6.14, and on some file systems.
            Err(rustix::io::Errno::OPNOTSUPP) => self.read_at(buffer, offset),
            read => Ok(read?),
        }
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
                Err(rustix::io::Errno::INTR) => {}
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
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
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
