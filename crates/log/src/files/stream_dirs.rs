//! The folders of streams: which there are, and the groups in them.

use std::io;

use hashbrown::HashSet;
use millstream_base::{GroupId, LaneIndex, Offset, StreamId, StreamletIndex};

use crate::error::{LogError, Result};
use crate::files::{DataDir, list};
use crate::ids::{GroupName, LaneId};

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
            let (stem, is_log) = match name.rsplit_once('.') {
                Some((stem, "log")) => (stem, true),
                Some((stem, "index")) => (stem, false),
                _ => (name.as_str(), false),
            };
            let Some((lane, group, offset)) = parse_group_name(stream, stem) else {
                return Err(LogError::ForeignFile {
                    path: path.join(name),
                });
            };
            if is_log {
                groups.push((lane, group, offset));
            } else {
                indexes.push((lane, group, offset));
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

fn parse_group_name(stream: StreamId, stem: &str) -> Option<(LaneId, GroupId, Offset)> {
    let mut numbers = stem.split('-');
    let lane = LaneId {
        stream,
        streamlet: StreamletIndex(numbers.next()?.parse().ok()?),
        lane: LaneIndex(numbers.next()?.parse().ok()?),
    };
    let group = GroupId(numbers.next()?.parse().ok()?);
    let offset = Offset(numbers.next()?.parse().ok()?);
    numbers.next().is_none().then_some((lane, group, offset))
}
