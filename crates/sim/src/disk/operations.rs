//! The operations of the simulated disk and of its open files.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use millstream_base::disk::{Access, DirEntry, Disk, DiskFile};
use parking_lot::MutexGuard;
use rustix::io::Errno;

use super::{FILE_BYTES_MAX, SimDisk, State};
use crate::image::{FileId, HandleId, Node};
use crate::trace::OperationKind;

impl Disk for SimDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let state = &mut *self.state.lock();
        state.check_alive()?;
        let (folder, name) = state.image.place(path)?;
        let file = match state.image.child(folder, name) {
            Some(Node::Folder(_)) => return Err(Errno::ISDIR.into()),
            Some(Node::File(_)) if state.is_read_only && access.is_for_writing() => {
                return Err(Errno::ROFS.into());
            }
            Some(Node::File(file)) => file,
            None if access == Access::Create => {
                let create = |state: &mut State| state.image.create_file(folder, name);
                state.operate(path, OperationKind::Create, create)?
            }
            None => return Err(Errno::NOENT.into()),
        };
        Ok(Box::new(self.handle(state, file, path, access)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.state.lock();
        state.check_alive()?;
        let above: Vec<&Path> = path.ancestors().collect();
        for path in above.into_iter().rev() {
            match state.image.node(path) {
                Ok(Node::Folder(_)) => {}
                Ok(Node::File(_)) => return Err(Errno::EXIST.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let (parent, name) = state.image.place(path)?;
                    let create = |state: &mut State| state.image.create_folder(parent, name);
                    state.operate(path, OperationKind::CreateDir, create)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let state = self.state.lock();
        state.check_alive()?;
        let names = state.image.names(state.image.folder(path)?);
        let entries = names.map(|(name, node)| DirEntry {
            name: name.to_string(),
            is_dir: matches!(node, Node::Folder(_)),
        });
        Ok(entries.collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let kind = OperationKind::Rename { to: to.to_owned() };
        let mut state = self.state.lock();
        state.operate(from, kind, |state| state.image.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operate(path, OperationKind::RemoveFile, |state| {
            state.image.remove_file(path)
        })
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operate(path, OperationKind::RemoveDir, |state| {
            state.image.remove_folder(path)
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operate(path, OperationKind::SyncDir, |state| {
            let folder = state.image.folder(path)?;
            if state.takes_sync_fault(path) {
                return Err(Errno::IO.into());
            }
            state.image.sync_names(&[folder]);
            Ok(())
        })
    }

    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operate(path, OperationKind::SyncTree, |state| {
            let mut result = Ok(());
            let mut folders = Vec::new();
            for (path, node) in state.image.tree(state.image.folder(path)?, path) {
                match node {
                    Node::File(file) if state.image.is_dirty(file) => {
                        result = result.and(state.sync_file(file, &path));
                    }
                    Node::File(_) => {}
                    Node::Folder(folder) => folders.push((path, folder)),
                }
            }
            let mut synced = Vec::new();
            for (path, folder) in folders {
                match state.takes_sync_fault(&path) {
                    true => result = Err(Errno::IO.into()),
                    false => synced.push(folder),
                }
            }
            state.image.sync_names(&synced);
            result
        })
    }
}

impl SimDisk {
    /// Opens an existing file under a handle of its own.
    fn handle(&self, state: &mut State, file: FileId, path: &Path, access: Access) -> SimFile {
        state.handles += 1;
        state.image.opened(file);
        SimFile {
            disk: self.clone(),
            id: file,
            path: path.to_owned(),
            is_writable: access.is_for_writing(),
            handle: HandleId(state.handles),
        }
    }
}

struct SimFile {
    disk: SimDisk,
    id: FileId,
    path: PathBuf,
    is_writable: bool,
    handle: HandleId,
}

impl SimFile {
    /// Locks the disk for an operation, after the hook of [`SimDisk::before_file_operations`].
    fn lock_for(&self, kind: &OperationKind) -> MutexGuard<'_, State> {
        let hook = self.disk.state.lock().file_hook.clone();
        if let Some(hook) = hook {
            hook(&self.path, kind);
        }
        self.disk.state.lock()
    }

    /// Runs an operation that changes the content.
    fn change(
        &self,
        kind: OperationKind,
        apply: impl FnOnce(&mut State) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.is_writable {
            return Err(Errno::BADF.into());
        }
        self.lock_for(&kind).operate(&self.path, kind, apply)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state.lock();
        state.check_alive()?;
        let bytes = state.image.content(self.id).bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = bytes.get(start..).unwrap_or_default();
        let count = found.len().min(buffer.len());
        buffer[..count].copy_from_slice(&found[..count]);
        Ok(count)
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::with_capacity(len);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let end = size(offset.saturating_add(len as u64))?;
        let kind = OperationKind::Write {
            offset,
            len: len as u64,
        };
        self.change(kind, |state| {
            if state.crashed {
                bytes.truncate(state.rng.usize(..=len));
            }
            let at = end - len;
            state.image.write(self.id, at, bytes, &mut state.rng)
        })
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock_for(&OperationKind::Sync);
        state.operate(&self.path, OperationKind::Sync, |state| {
            state.sync_file(self.id, &self.path)
        })
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.disk.state.lock();
        state.check_alive()?;
        Ok(state.image.content(self.id).bytes().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let size = size(len)?;
        self.change(OperationKind::SetLen { len }, |state| {
            state.image.set_len(self.id, size)
        })
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let size = size(len)?;
        self.change(OperationKind::Reserve { len }, |state| {
            state.image.reserve(self.id, size)
        })
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut state = self.disk.state.lock();
        state.check_alive()?;
        Ok(state.image.try_lock(self.id, self.handle))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        state.image.closed(self.id, self.handle);
    }
}

/// Checks a length against [`FILE_BYTES_MAX`].
fn size(len: u64) -> io::Result<usize> {
    match usize::try_from(len) {
        Ok(size) if size <= FILE_BYTES_MAX => Ok(size),
        _ => Err(Errno::FBIG.into()),
    }
}
