//! The content of a disk: folders, files, and the room they take. `disk` adds faults and counts.
//!
//! Names change as in a file system with a journal: the changes of one folder become durable in order,
//! and a rename changes both of its folders at once or neither.

mod contents;
mod crash;
mod names;

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::io;
use std::mem;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use crate::file::{Content, File};

/// Index into [`Image::files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId(usize);

/// Index into [`Image::folders`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderId(usize);

/// The identity of a handle of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandleId(pub(crate) u64);

pub(crate) const ROOT: FolderId = FolderId(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    File(FileId),
    Folder(FolderId),
}

type Names = BTreeMap<Arc<str>, Node>;

#[derive(Debug, Clone, Default)]
struct Folder {
    names: Names,
    durable_names: Names,
}

#[derive(Debug, Clone, Default)]
struct Inode {
    file: File,
    /// The room counted in [`Image::used`].
    room: u64,
    named: bool,
    durably_named: bool,
    open_handles: usize,
    locked_by: Option<HandleId>,
}

/// A change of names that is not durable yet. It becomes durable as a whole.
#[derive(Debug, Clone)]
struct NameChange {
    removed: Option<(FolderId, Arc<str>)>,
    added: Option<(FolderId, Arc<str>, Node)>,
}

impl NameChange {
    /// The folders it touches, each once.
    fn folders(&self) -> impl Iterator<Item = FolderId> + use<> {
        let from = self.removed.as_ref().map(|(folder, _)| *folder);
        let to = self.added.as_ref().map(|(folder, ..)| *folder);
        from.into_iter().chain(to.filter(|_| to != from))
    }

    /// Applies the change to the names that `names` returns for a folder. Returns the node that lost its name.
    fn apply(&self, folders: &mut [Folder], names: fn(&mut Folder) -> &mut Names) -> Option<Node> {
        let removed = match &self.removed {
            Some((folder, name)) => names(&mut folders[folder.0]).remove(name),
            None => None,
        };
        match &self.added {
            Some((folder, name, node)) => names(&mut folders[folder.0]).insert(name.clone(), *node),
            None => removed,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Image {
    files: Vec<Inode>,
    folders: Vec<Folder>,
    /// In the order in which they were made, over all folders.
    unsynced_names: Vec<NameChange>,
    /// The room of all files that have a name or are open.
    used: u64,
    pub(crate) capacity: u64,
}

impl Image {
    pub(crate) fn empty(capacity: u64) -> Self {
        Image {
            files: Vec::new(),
            folders: vec![Folder::default()],
            unsynced_names: Vec::new(),
            used: 0,
            capacity,
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn node(&self, path: &Path) -> io::Result<Node> {
        let mut node = Node::Folder(ROOT);
        for name in names_of(path)? {
            let Node::Folder(folder) = node else {
                return Err(Errno::NOTDIR.into());
            };
            node = self.child(folder, name).ok_or(Errno::NOENT)?;
        }
        Ok(node)
    }

    pub(crate) fn folder(&self, path: &Path) -> io::Result<FolderId> {
        match self.node(path)? {
            Node::Folder(folder) => Ok(folder),
            Node::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    pub(crate) fn file(&self, path: &Path) -> io::Result<FileId> {
        match self.node(path)? {
            Node::File(file) => Ok(file),
            Node::Folder(_) => Err(Errno::ISDIR.into()),
        }
    }

    /// The folder of a path's last name, and that name, which need not exist.
    pub(crate) fn place<'a>(&self, path: &'a Path) -> io::Result<(FolderId, &'a str)> {
        let name = names_of(path)?.pop().ok_or(Errno::BUSY)?;
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok((self.folder(parent)?, name))
    }

    pub(crate) fn child(&self, folder: FolderId, name: &str) -> Option<Node> {
        self.folders[folder.0].names.get(name).copied()
    }

    pub(crate) fn names(&self, folder: FolderId) -> btree_map::Iter<'_, Arc<str>, Node> {
        self.folders[folder.0].names.iter()
    }

    pub(crate) fn content(&self, file: FileId) -> &Content {
        self.files[file.0].file.cached()
    }

    /// All folders and files below a folder, itself included.
    pub(crate) fn tree(&self, folder: FolderId, path: &Path) -> Vec<(PathBuf, Node)> {
        let mut found = vec![(path.to_owned(), Node::Folder(folder))];
        for (name, node) in self.names(folder) {
            let path = path.join(&**name);
            match node {
                Node::Folder(folder) => found.extend(self.tree(*folder, &path)),
                Node::File(_) => found.push((path, *node)),
            }
        }
        found
    }

    pub(crate) fn opened(&mut self, file: FileId) {
        self.files[file.0].open_handles += 1;
    }

    pub(crate) fn closed(&mut self, file: FileId, handle: HandleId) {
        let inode = &mut self.files[file.0];
        inode.open_handles -= 1;
        inode.locked_by = inode.locked_by.filter(|holder| *holder != handle);
        self.free(file);
    }

    pub(crate) fn try_lock(&mut self, file: FileId, handle: HandleId) -> bool {
        *self.files[file.0].locked_by.get_or_insert(handle) == handle
    }

    /// Frees the room of a file without names and handles, and its content once no crash can restore a
    /// name of it.
    fn free(&mut self, file: FileId) {
        let inode = &mut self.files[file.0];
        if inode.named || inode.open_handles > 0 {
            return;
        }
        self.used -= mem::take(&mut inode.room);
        if !inode.durably_named {
            inode.file = File::default();
        }
    }
}

/// The names along a path, from the root.
fn names_of(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_str().ok_or(Errno::ILSEQ)?),
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL.into()),
        }
    }
    Ok(names)
}
