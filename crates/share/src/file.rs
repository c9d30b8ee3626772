//! Files in memory that processes share.

#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use thiserror::Error;

use crate::layout::{BadShape, FILE_BYTES_MAX, VERSION};

/// A file in memory, mapped to read and write. It exists while a process has it open or mapped.
pub struct SharedFile {
    file: File,
    map: MmapRaw,
}

/// A shared file cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The system refuses: the file does not exist, belongs to another user, or does not fit into memory.
    #[error("{path}: {what} failed: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The file could shrink, which would kill the process that reads it.
    #[error("{path} is not a memory file sealed against shrinking", path = path.display())]
    NotSealed {
        /// The file.
        path: PathBuf,
    },
    /// The file has another size than announced.
    #[error("{path} has {bytes} bytes, not {expected}", path = path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size announced.
        expected: u64,
    },
    /// The file is larger than any file of a subscription.
    #[error("{path} has {bytes} bytes, but a subscription has at most {FILE_BYTES_MAX}", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is not one of a subscription.
    #[error("{path} is not a subscription's file: it does not begin with MILLRING", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file has a layout that this program does not know.
    #[error(
        "{path} has version {found} of the layout, but this program knows {VERSION}: \
         use the same release on both sides, or pull",
        path = path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file belongs to another subscription: the announced one has ended, and the path was used again.
    #[error("{path} is of subscription {found}, not {expected}", path = path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// The identity in its header.
        found: u64,
        /// The identity announced.
        expected: u64,
    },
    /// The file's header is invalid.
    #[error("{path} is damaged: {error}", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The fault.
        #[source]
        error: BadShape,
    },
    /// The file has another number of sources than announced.
    #[error("{path} has {found} sources, not {expected}", path = path.display())]
    Sources {
        /// The file.
        path: PathBuf,
        /// The number of its sources.
        found: usize,
        /// The number announced.
        expected: usize,
    },
}

impl SharedFile {
    /// Creates a file of `bytes` zeros, which can neither shrink nor grow. The name shows in listings of the process's
    /// files.
    ///
    /// # Errors
    /// When the system does not have enough memory to share.
    pub fn create(name: &str, bytes: usize) -> io::Result<SharedFile> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // Without memory this call fails. Without this call, a later write would kill the process.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        let file = File::from(file);
        Ok(SharedFile { file, map })
    }

    /// Opens a file of another process, to read and write.
    #[cfg_attr(loom, expect(dead_code, reason = "models have no files"))]
    pub(crate) fn open(path: &Path) -> Result<SharedFile, OpenError> {
        let (file, bytes) = open_sealed(path, OFlags::RDWR)?;
        if bytes > FILE_BYTES_MAX {
            let path = path.to_owned();
            return Err(OpenError::TooLarge { path, bytes });
        }
        let map = MmapOptions::new().len(bytes as usize).map_raw(&file);
        let map = map.map_err(failed(path, "mapping it"))?;
        Ok(SharedFile { file, map })
    }

    /// Returns the path at which another process of the same user finds the file, while this process has it open.
    pub fn path(&self) -> PathBuf {
        let process = std::process::id();
        format!("/proc/{process}/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Returns a pointer to the first byte. All bytes stay mapped until the file is dropped.
    #[cfg_attr(loom, expect(dead_code, reason = "models have no files"))]
    pub(crate) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Its size.
    #[cfg_attr(loom, expect(dead_code, reason = "models have no files"))]
    pub(crate) fn bytes(&self) -> usize {
        self.map.len()
    }
}

impl fmt::Debug for SharedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedFile").field(&self.path()).finish()
    }
}

/// A file of another process, mapped to be read: the broker's pool.
pub struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// Maps the file at `path`, which must have `bytes` and be sealed against shrinking. The path
    /// is good only if the process that has the file still runs: open the subscription, whose identity is
    /// checked, first.
    ///
    /// # Errors
    /// When it cannot be opened, or is not the announced file.
    pub fn read_only(path: &Path, bytes: u64) -> Result<Arc<Mapping>, OpenError> {
        let (file, found) = open_sealed(path, OFlags::RDONLY)?;
        if found != bytes {
            return Err(OpenError::Size {
                path: path.to_owned(),
                bytes: found,
                expected: bytes,
            });
        }
        let map = MmapOptions::new()
            .len(bytes as usize)
            .map_raw_read_only(&file);
        let map = map.map_err(failed(path, "mapping it"))?;
        Ok(Arc::new(Mapping { map }))
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Returns a part of the file; `None` if the range is not in the file.
    ///
    /// The bytes do not change while the caller has the [`Hold`](crate::Hold) of their descriptor, and the hold is live.
    /// After that they may change at any moment: trust the bytes only if the hold was live after reading them.
    pub fn slice(self: &Arc<Self>, position: u64, bytes: u64) -> Option<Slice> {
        let end = position.checked_add(bytes)?;
        (end <= self.bytes()).then(|| Slice {
            mapping: Arc::clone(self),
            start: position as usize,
            len: bytes as usize,
        })
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("bytes", &self.bytes())
            .finish()
    }
}

/// A part of a [`Mapping`]; the mapping lasts as long as its slices.
#[derive(Clone)]
pub struct Slice {
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Mapping::slice` has checked the range; this slice owns a share of the mapping, and the file is sealed
        // against shrinking. This process cannot write there. The broker does not write there while a live subscription
        // has the descriptor unfinished. After it has revoked the subscription, bytes may change; any byte is valid, and
        // the reader discards the bytes that it read (see `Mapping::slice`).
        unsafe { std::slice::from_raw_parts(self.mapping.map.as_ptr().add(self.start), self.len) }
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Opens a file that is sealed against shrinking. Returns it with its size.
fn open_sealed(path: &Path, access: OFlags) -> Result<(File, u64), OpenError> {
    // If the path leads to a pipe or a terminal instead, opening must neither wait nor take it over.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = file.map_err(|error| failed(path, "opening it")(error.into()))?;
    let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        let path = path.to_owned();
        return Err(OpenError::NotSealed { path });
    }
    let file = File::from(file);
    let metadata = file.metadata();
    let metadata = metadata.map_err(failed(path, "asking for its size"))?;
    Ok((file, metadata.len()))
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |error| OpenError::Io { path, what, error }
}
