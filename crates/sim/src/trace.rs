//! The record of a disk's operations, which a failing test prints.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// One operation that changes a disk, or makes changes durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Its number, as [`SimDisk::operations`](crate::SimDisk::operations) counts, from 1.
    pub number: u64,
    /// The file or folder; of an open file, the name under which it was opened.
    pub path: PathBuf,
    /// The kind of operation.
    pub kind: OperationKind,
    /// The error, if the operation failed.
    pub error: Option<io::ErrorKind>,
}

/// The kind of an operation. Offsets and lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // Named after the methods of `Disk` and `DiskFile`.
pub enum OperationKind {
    Create,
    CreateDir,
    Rename { to: PathBuf },
    RemoveFile,
    RemoveDir,
    SyncDir,
    SyncTree,
    Write { offset: u64, len: u64 },
    SetLen { len: u64 },
    Reserve { len: u64 },
    Sync,
}

impl OperationKind {
    pub(crate) fn is_sync(&self) -> bool {
        matches!(self, Self::Sync | Self::SyncDir | Self::SyncTree)
    }

    pub(crate) fn is_of_content(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::SetLen { .. } | Self::Reserve { .. }
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "{:>6} ", self.number)?;
        match &self.kind {
            OperationKind::Create => write!(f, "create {path}"),
            OperationKind::CreateDir => write!(f, "create folder {path}"),
            OperationKind::Rename { to } => write!(f, "rename {path} to {}", to.display()),
            OperationKind::RemoveFile => write!(f, "remove {path}"),
            OperationKind::RemoveDir => write!(f, "remove folder {path}"),
            OperationKind::SyncDir => write!(f, "sync folder {path}"),
            OperationKind::SyncTree => write!(f, "sync tree {path}"),
            OperationKind::Write { offset, len } => {
                write!(f, "write {path} [{offset}, {})", offset + len)
            }
            OperationKind::SetLen { len } => write!(f, "set length of {path} to {len}"),
            OperationKind::Reserve { len } => write!(f, "reserve {len} for {path}"),
            OperationKind::Sync => write!(f, "sync {path}"),
        }?;
        match self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}
