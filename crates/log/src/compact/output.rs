//! The files of a rewritten group, until the manifest lists them.

use millstream_base::{DiskFile, GroupId, Position};
use uuid::Uuid;

use crate::compact::rewrite::{RewriteOutput, Rewritten};
use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::group_head::GroupHead;
use crate::ids::GroupName;
use crate::index::entry::IndexEntry;
use crate::index::file::IndexWriter;

/// The files of a group that replaces others. They are removed when this is dropped, unless they are [kept](Self::keep).
pub struct NewFiles<'a> {
    dir: &'a DataDir,
    name: GroupName,
    identity: Uuid,
    leader_epoch: i32,
    chunks: Box<dyn DiskFile>,
    position: Position,
    index: IndexWriter,
    /// The names that a drop removes.
    _names: Names<'a>,
}

/// The names of a group's files.
struct Names<'a> {
    dir: &'a DataDir,
    name: GroupName,
    are_kept: bool,
}

impl Drop for Names<'_> {
    fn drop(&mut self) {
        if self.are_kept {
            return;
        }
        let _ = self
            .dir
            .disk
            .remove_file(&self.dir.unfinished_keys_path(&self.name));
        // They are not listed, so a start removes the remaining ones.
        let _ = self.dir.remove_group_files(&self.name);
    }
}

impl<'a> NewFiles<'a> {
    /// Makes the files, which the manifest does not list.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn create(
        dir: &'a DataDir,
        name: GroupName,
        identity: Uuid,
        leader_epoch: i32,
    ) -> Result<NewFiles<'a>> {
        let names = Names {
            dir,
            name,
            are_kept: false,
        };
        let (path, index_path) = (dir.group_path(&name), dir.index_path(&name));
        let chunks = dir
            .begin_rewritten(&name)
            .map_err(|error| LogError::io("make", path, error))?;
        let index = IndexWriter::open(&*dir.disk, &index_path, &name, identity, 0)
            .map_err(|error| LogError::io("make", index_path, error))?;
        Ok(NewFiles {
            dir,
            name,
            identity,
            leader_epoch,
            chunks,
            position: Position(0),
            index,
            _names: names,
        })
    }

    /// Makes the files durable, with their names: the chunks first, then the head, which says that they are whole.
    ///
    /// # Errors
    /// When that fails.
    pub fn finish(&self, rewritten: &Rewritten, last: GroupId) -> Result<()> {
        let (dir, name) = (self.dir, &self.name);
        let path = || dir.group_path(name);
        let sync = || {
            self.chunks.sync()?;
            dir.write_head(&GroupHead {
                replaced_to: last,
                end: (rewritten.end.offset, rewritten.end.position),
                ..GroupHead::of_first(*name, self.identity, self.leader_epoch)
            })?;
            self.chunks.sync()
        };
        sync().map_err(|error| LogError::io("write", path(), error))?;
        self.index
            .sync()
            .map_err(|error| LogError::io("sync", dir.index_path(name), error))?;
        let unfinished = dir.unfinished_keys_path(name);
        dir.disk
            .rename(&unfinished, &dir.keys_path(name))
            .map_err(|error| LogError::io("rename", unfinished, error))?;
        dir.sync_stream_dir(name.lane.stream)
    }

    /// Leaves the files where they are.
    pub fn keep(mut self) {
        self._names.are_kept = true;
    }
}

impl RewriteOutput for NewFiles<'_> {
    fn append(&mut self, chunks: &[u8]) -> Result<()> {
        let written = self.chunks.write_at(chunks, self.position.0);
        written.map_err(|error| LogError::io("write", self.dir.group_path(&self.name), error))?;
        self.position = self.position.plus(chunks.len() as u64);
        Ok(())
    }

    fn add_entry(&mut self, entry: IndexEntry) -> Result<()> {
        let written = self.index.append([&entry]);
        written.map_err(|error| LogError::io("write", self.dir.index_path(&self.name), error))
    }
}
