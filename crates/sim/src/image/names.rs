//! Changes of names: in the image at once, and on the disk with a sync of the folder.

use std::io;
use std::mem;
use std::path::Path;

use rustix::io::Errno;

use super::{FileId, Folder, FolderId, Image, Inode, NameChange, Node};

impl Image {
    pub(crate) fn create_file(&mut self, folder: FolderId, name: &str) -> io::Result<FileId> {
        self.room_for_a_name()?;
        let file = FileId(self.files.len());
        self.files.push(Inode::default());
        self.add_name(folder, name, Node::File(file));
        Ok(file)
    }

    pub(crate) fn create_folder(&mut self, parent: FolderId, name: &str) -> io::Result<FolderId> {
        self.room_for_a_name()?;
        let folder = FolderId(self.folders.len());
        self.folders.push(Folder::default());
        self.add_name(parent, name, Node::Folder(folder));
        Ok(folder)
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.node(from)?;
        let (from_folder, from_name) = self.place(from)?;
        let (to_folder, to_name) = self.place(to)?;
        if let Node::Folder(folder) = node {
            let below = self.tree(folder, Path::new(""));
            if below.iter().any(|(_, n)| *n == Node::Folder(to_folder)) {
                return Err(Errno::INVAL.into());
            }
        }
        match (node, self.child(to_folder, to_name)) {
            (node, Some(other)) if node == other => return Ok(()),
            (Node::File(_), Some(Node::Folder(_))) => return Err(Errno::ISDIR.into()),
            (Node::Folder(_), Some(Node::File(_))) => return Err(Errno::NOTDIR.into()),
            (_, Some(Node::Folder(folder))) => self.check_empty(folder)?,
            (_, None | Some(Node::File(_))) => {}
        }
        self.change_names(NameChange {
            removed: Some((from_folder, from_name.into())),
            added: Some((to_folder, to_name.into(), node)),
        });
        Ok(())
    }

    pub(crate) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        self.file(path)?;
        self.remove_name(path)
    }

    pub(crate) fn remove_folder(&mut self, path: &Path) -> io::Result<()> {
        self.check_empty(self.folder(path)?)?;
        self.remove_name(path)
    }

    fn check_empty(&self, folder: FolderId) -> io::Result<()> {
        match self.folders[folder.0].names.is_empty() {
            true => Ok(()),
            false => Err(Errno::NOTEMPTY.into()),
        }
    }

    fn room_for_a_name(&self) -> io::Result<()> {
        match self.used < self.capacity {
            true => Ok(()),
            false => Err(Errno::NOSPC.into()),
        }
    }

    fn add_name(&mut self, folder: FolderId, name: &str, node: Node) {
        self.change_names(NameChange {
            removed: None,
            added: Some((folder, name.into(), node)),
        });
    }

    fn remove_name(&mut self, path: &Path) -> io::Result<()> {
        let (folder, name) = self.place(path)?;
        self.change_names(NameChange {
            removed: Some((folder, name.into())),
            added: None,
        });
        Ok(())
    }

    fn change_names(&mut self, change: NameChange) {
        let nameless = change.apply(&mut self.folders, |folder| &mut folder.names);
        if let Some((_, _, Node::File(file))) = change.added {
            self.files[file.0].named = true;
        }
        if let Some(Node::File(file)) = nameless {
            self.files[file.0].named = false;
            self.free(file);
        }
        self.unsynced_names.push(change);
    }

    /// Makes the names in `folders` durable, with all earlier changes in folders that a rename ties to
    /// them.
    pub(crate) fn sync_names(&mut self, folders: &[FolderId]) {
        let mut tied = vec![false; self.folders.len()];
        for folder in folders {
            tied[folder.0] = true;
        }
        let mut becomes_durable = vec![false; self.unsynced_names.len()];
        for (index, change) in self.unsynced_names.iter().enumerate().rev() {
            if change.folders().any(|folder| tied[folder.0]) {
                becomes_durable[index] = true;
                change.folders().for_each(|folder| tied[folder.0] = true);
            }
        }
        let changes = mem::take(&mut self.unsynced_names);
        for (change, becomes_durable) in changes.into_iter().zip(becomes_durable) {
            if !becomes_durable {
                self.unsynced_names.push(change);
                continue;
            }
            let nameless = change.apply(&mut self.folders, |folder| &mut folder.durable_names);
            if let Some((_, _, Node::File(file))) = change.added {
                self.files[file.0].durably_named = true;
            }
            if let Some(Node::File(file)) = nameless {
                self.files[file.0].durably_named = false;
                self.free(file);
            }
        }
    }
}
