//! Results in a file, as lines of JSON.

use std::io;
use std::path::{Path, PathBuf};
use std::task::Waker;

use millstream_base::disk::Access;
use millstream_base::{Disk, DiskFile};
use serde::Serialize;

use crate::error::BoxError;
use crate::sinks::sink::{Sink, SinkStart};

/// Lines are written when there is as much of them.
const BUFFER_BYTES: usize = 256 << 10;

/// Writes each result as a line of JSON. Flushed lines outlast a crash of the machine.
///
/// A flow that resumes from a checkpoint removes the lines that came after it: each result is in the file exactly
/// once, though lines behind the last checkpoint may yet be replaced. Each rank needs a file of its own.
///
/// ```
/// use millstream_base::SystemDisk;
/// use millstream_flow::Flow;
/// use millstream_flow::sinks::LinesFile;
/// use millstream_flow::sources::Generator;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("squares");
/// let flow = Flow::new("squares");
/// flow.source("numbers", Generator::new(|number| (number, number * number)).limit(3))
///     .sink("file", LinesFile::open(&SystemDisk, &path)?);
/// flow.run()?.join()?;
/// assert_eq!(std::fs::read_to_string(&path)?, "[0,0]\n[1,1]\n[2,4]\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LinesFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The offset of the buffer in the file.
    position: u64,
    /// Whole lines that are not written.
    buffer: Vec<u8>,
    is_synced: bool,
    /// The size of the file when it was opened, until `recover` has kept or truncated its content.
    earlier_bytes: u64,
}

/// The error of a file of lines.
#[derive(thiserror::Error)]
pub enum LinesFileError {
    /// The operating system refuses.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// It holds lines of an earlier run, which this run does not resume.
    #[error("{} holds {bytes} bytes already; remove it, or resume the flow that wrote them", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The file lost lines that it had at the checkpoint.
    #[error("{} has {found} bytes, and had {expected} when the checkpoint was taken", path.display())]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Its length then.
        expected: u64,
        /// Its length now.
        found: u64,
    },
}

millstream_base::debug_as_display!(LinesFileError);

impl LinesFile {
    /// Opens a file, or makes it. It must be empty, unless the flow resumes.
    ///
    /// # Errors
    /// When it cannot be opened or made.
    pub fn open(disk: &dyn Disk, path: impl Into<PathBuf>) -> Result<LinesFile, LinesFileError> {
        let path = path.into();
        let open = || {
            let file = disk.open(&path, Access::Create)?;
            disk.sync_dir(match path.parent() {
                Some(above) if !above.as_os_str().is_empty() => above,
                _ => Path::new("."),
            })?;
            Ok((file.len()?, file))
        };
        match open() {
            Ok((earlier_bytes, file)) => Ok(LinesFile {
                path,
                file,
                position: 0,
                buffer: Vec::new(),
                is_synced: true,
                earlier_bytes,
            }),
            Err(error) => Err(LinesFileError::Io {
                action: "open",
                path,
                error,
            }),
        }
    }

    fn check_taken_over(&self) -> Result<(), LinesFileError> {
        match self.earlier_bytes {
            0 => Ok(()),
            bytes => Err(LinesFileError::Exists {
                path: self.path.clone(),
                bytes,
            }),
        }
    }

    fn write(&mut self) -> Result<(), LinesFileError> {
        let written = self.file.write_at(&self.buffer, self.position);
        written.map_err(|error| self.io_error("write", error))?;
        self.position += self.buffer.len() as u64;
        self.is_synced &= self.buffer.is_empty();
        self.buffer.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), LinesFileError> {
        self.write()?;
        if !self.is_synced {
            let synced = self.file.sync();
            synced.map_err(|error| self.io_error("make durable", error))?;
            self.is_synced = true;
        }
        Ok(())
    }

    fn io_error(&self, action: &'static str, error: io::Error) -> LinesFileError {
        LinesFileError::Io {
            action,
            path: self.path.clone(),
            error,
        }
    }
}

impl<T: Serialize> Sink<T> for LinesFile {
    fn push(&mut self, items: &[T], _waker: &Waker) -> Result<usize, BoxError> {
        self.check_taken_over()?;
        for item in items {
            serde_json::to_writer(&mut self.buffer, item)?;
            self.buffer.push(b'\n');
            if self.buffer.len() >= BUFFER_BYTES {
                self.write()?;
            }
        }
        Ok(items.len())
    }

    fn flush(&mut self, _waker: &Waker) -> Result<bool, BoxError> {
        self.sync()?;
        Ok(true)
    }

    /// Everything was flushed.
    fn prepare(&mut self, _checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        self.check_taken_over()?;
        Ok(self.position.to_le_bytes().to_vec())
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        let Some(prepared) = start.prepared else {
            return Ok(());
        };
        let expected = u64::from_le_bytes(prepared.try_into()?);
        let found = self.earlier_bytes;
        if found < expected {
            return Err(LinesFileError::Shrunk {
                path: self.path.clone(),
                expected,
                found,
            }
            .into());
        }
        let truncated = self.file.set_len(expected).and_then(|()| self.file.sync());
        truncated.map_err(|error| self.io_error("truncate", error))?;
        self.position = expected;
        self.earlier_bytes = 0;
        Ok(())
    }
}
