//! The folders of streams: which there are, and the groups in them.

use std::io;

use hashbrown::HashSet;
use millstream_base::StreamId;

use crate::error::{LogError, Result};
use crate::files::{DataDir, INDEX, LOG, list};
use crate::ids::{Generation, GroupName};

impl DataDir {
    /// Makes sure that a stream's folder exists for good.
    pub fn create_stream_dir(&self, stream: StreamId) -> Result<()> {
        if self.stream_dirs.lock().contains(&stream) {
            return Ok(());
        }
        let path = self.stream_dir(stream);
        self.disk
            .create_dir_all(&path)
            .map_err(|error| LogError::io("create folder", path, error))?;
        self.stream_dirs.lock().insert(stream);
        Ok(())
    }

    /// Makes a stream's names durable: those in its folder, and the folder's.
    pub fn sync_stream_dir(&self, stream: StreamId) -> Result<()> {
        self.sync_dir(&self.stream_dir(stream))?;
        self.sync_dir(&self.streams_dir())
    }

    /// Makes everything durable that was written to group files.
    pub fn sync_streams(&self) -> Result<()> {
        let path = self.streams_dir();
        self.disk
            .sync_tree(&path)
            .map_err(|error| LogError::io("sync folder", path, error))
    }

    /// The streams that have folders.
    pub fn list_streams(&self) -> Result<Vec<StreamId>> {
        let path = self.streams_dir();
        list(&*self.disk, &path)?
            .into_iter()
            .map(|name| match name.parse() {
                Ok(id) if StreamId(id).to_string() == name => Ok(StreamId(id)),
                _ => Err(LogError::ForeignFile {
                    path: path.join(name),
                }),
            })
            .collect()
    }

    /// The groups that have files in a stream's folder, and those that have an index only; in no
    /// particular order.
    pub fn list_groups(&self, stream: StreamId) -> Result<(Vec<GroupName>, Vec<GroupName>)> {
        let path = self.stream_dir(stream);
        let mut groups = Vec::new();
        let mut indexes = Vec::new();
        for name in list(&*self.disk, &path)? {
            let parsed = name.rsplit_once('.').and_then(|(stem, ending)| {
                let group = GroupName::parse(stream, stem)?;
                // This program makes no other ones.
                (group.generation == Generation::FORMAT_2).then_some((group, ending))
            });
            match parsed {
                Some((group, LOG)) => groups.push(group),
                Some((group, INDEX)) => indexes.push(group),
                _ => {
                    return Err(LogError::ForeignFile {
                        path: path.join(name),
                    });
                }
            }
        }
        let known: HashSet<GroupName> = groups.iter().copied().collect();
        indexes.retain(|index| !known.contains(index));
        Ok((groups, indexes))
    }

    /// Removes a stream's folder and all in it.
    pub fn remove_stream_dir(&self, stream: StreamId) -> Result<()> {
        self.stream_dirs.lock().remove(&stream);
        let path = self.stream_dir(stream);
        let names = match self.disk.list(&path) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(LogError::io("list", path, error)),
        };
        for entry in names {
            let path = path.join(entry.name);
            self.disk
                .remove_file(&path)
                .map_err(|error| LogError::io("remove", path, error))?;
        }
        self.disk
            .remove_dir(&path)
            .map_err(|error| LogError::io("remove folder", path, error))
    }
}
