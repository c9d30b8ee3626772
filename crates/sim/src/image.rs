//! The content of a disk: folders, files, and the room they take. Faults and counts are elsewhere.
//!
//! Names change as in a file system with a journal: the changes of one folder become durable in order,
//! and a rename changes both of its folders at once or neither.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::io;
use std::mem;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use crate::Rng;
use crate::file::{Change, Content, File};

/// Index into [`Image::files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId(usize);

/// Index into [`Image::folders`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderId(usize);

/// Tells handles of open files apart.
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

    // Lookups.

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

    // Names.

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

    // Contents.

    /// Writes `bytes` at `at`; on a full disk perhaps only some of them.
    pub(crate) fn write(
        &mut self,
        file: FileId,
        at: usize,
        mut bytes: Vec<u8>,
        rng: &mut Rng,
    ) -> io::Result<()> {
        let reach = self.files[file.0].room + self.capacity.saturating_sub(self.used);
        let fitting = usize::try_from(reach)
            .unwrap_or(usize::MAX)
            .saturating_sub(at);
        let is_cut = fitting < bytes.len();
        if is_cut {
            bytes.truncate(rng.usize(..=fitting));
        }
        if !bytes.is_empty() {
            let bytes = Arc::new(bytes);
            self.change(file, Change::Write { at, bytes })?;
        }
        match is_cut {
            true => Err(Errno::NOSPC.into()),
            false => Ok(()),
        }
    }

    pub(crate) fn set_len(&mut self, file: FileId, len: usize) -> io::Result<()> {
        let shrinks = len < self.content(file).bytes().len();
        self.change(file, Change::SetLen { len, shrinks })
    }

    pub(crate) fn reserve(&mut self, file: FileId, len: usize) -> io::Result<()> {
        self.change(file, Change::Reserve { len })
    }

    fn change(&mut self, file: FileId, change: Change) -> io::Result<()> {
        let inode = &mut self.files[file.0];
        let room = change.room_after(inode.file.cached()) as u64;
        let used = self.used - inode.room + room;
        if room > inode.room && used > self.capacity {
            return Err(Errno::NOSPC.into());
        }
        self.used = used;
        inode.room = room;
        inode.file.change(change);
        Ok(())
    }

    pub(crate) fn is_dirty(&self, file: FileId) -> bool {
        self.files[file.0].file.is_dirty()
    }

    pub(crate) fn sync(&mut self, file: FileId) {
        self.files[file.0].file.sync();
    }

    pub(crate) fn fail_sync(&mut self, file: FileId, rng: &mut Rng) {
        self.files[file.0].file.fail_sync(rng);
    }

    /// Makes `bytes` the file's content, durably.
    pub(crate) fn replace(&mut self, file: FileId, bytes: Vec<u8>) {
        let inode = &mut self.files[file.0];
        self.used = self.used - inode.room + bytes.len() as u64;
        inode.room = bytes.len() as u64;
        inode.file = File::of_bytes(bytes);
    }

    // Open files.

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

    // Ends of a run.

    /// The image after a kill of the process: the page cache survives it, open files do not.
    pub(crate) fn after_kill(&self) -> Image {
        let mut image = self.clone();
        for index in 0..image.files.len() {
            image.files[index].open_handles = 0;
            image.files[index].locked_by = None;
            image.free(FileId(index));
        }
        image
    }

    /// The image after a crash of the machine.
    pub(crate) fn after_crash(&self, rng: &mut Rng) -> Image {
        let folders = self.folders_after_crash(rng);
        let mut image = Image::empty(self.capacity);
        self.copy_durable(&folders, ROOT, &mut image, ROOT, rng);
        image
    }

    /// The folders with the surviving unsynced changes of `durable_names`.
    fn folders_after_crash(&self, rng: &mut Rng) -> Vec<Folder> {
        let mut folders = self.folders.clone();
        let mut surviving = vec![0; folders.len()];
        for change in &self.unsynced_names {
            change.folders().for_each(|folder| surviving[folder.0] += 1);
        }
        for count in &mut surviving {
            *count = match rng.u8(..4) {
                0 => 0,
                1 => *count,
                _ => rng.usize(..=*count),
            };
        }
        for change in &self.unsynced_names {
            if change.folders().all(|folder| surviving[folder.0] > 0) {
                change.apply(&mut folders, |folder| &mut folder.durable_names);
                change.folders().for_each(|folder| surviving[folder.0] -= 1);
            } else {
                change.folders().for_each(|folder| surviving[folder.0] = 0);
            }
        }
        folders
    }

    /// Copies all nodes below the folder `from` to the folder `to` of `image`.
    fn copy_durable(
        &self,
        folders: &[Folder],
        from: FolderId,
        image: &mut Image,
        to: FolderId,
        rng: &mut Rng,
    ) {
        let mut names = Names::new();
        for (name, node) in &folders[from.0].durable_names {
            let copy = match *node {
                Node::Folder(folder) => {
                    let copy = FolderId(image.folders.len());
                    image.folders.push(Folder::default());
                    self.copy_durable(folders, folder, image, copy, rng);
                    Node::Folder(copy)
                }
                Node::File(file) => {
                    let content = self.files[file.0].file.after_crash(rng);
                    let room = content.room() as u64;
                    image.used += room;
                    image.files.push(Inode {
                        file: File::durable(content),
                        room,
                        named: true,
                        durably_named: true,
                        ..Inode::default()
                    });
                    Node::File(FileId(image.files.len() - 1))
                }
            };
            names.insert(name.clone(), copy);
        }
        image.folders[to.0] = Folder {
            names: names.clone(),
            durable_names: names,
        };
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
