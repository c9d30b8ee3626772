//! The folders of streams: which there are, and the groups in them.

use std::io;

use hashbrown::HashSet;
use millstream_base::StreamId;

use crate::error::{LogError, Result};
use crate::files::key_files::key_file_ending;
use crate::files::{DataDir, INDEX, LOG, list};
use crate::ids::GroupName;
use crate::keys::kind::KeyKind;

/// The files in a stream's folder, in no particular order.
#[derive(Debug, Default)]
pub struct GroupFiles {
    /// Groups that have a file.
    pub groups: Vec<GroupName>,
    /// Groups that have an index and no file.
    pub lone_indexes: Vec<GroupName>,
    /// Groups that have a key file and no file; once for each key file.
    pub lone_keys: Vec<GroupName>,
    /// Names of key files that were not finished.
    pub unfinished: Vec<String>,
}

impl DataDir {
    /// Makes sure that a stream's folder exists. [`DataDir::sync_stream_dir`] makes that durable.
    pub fn create_stream_dir(&self, stream: StreamId) -> Result<()> {
        if self.stream_dirs.lock().contains_key(&stream) {
            return Ok(());
        }
        let path = self.stream_dir(stream);
        self.disk
            .create_dir_all(&path)
            .map_err(|error| LogError::io("create folder", path, error))?;
        self.stream_dirs.lock().entry(stream).or_insert(false);
        Ok(())
    }

    /// Makes a stream's names durable: those in its folder, and the folder's.
    pub fn sync_stream_dir(&self, stream: StreamId) -> Result<()> {
        self.sync_dir(&self.stream_dir(stream))?;
        if self.stream_dirs.lock().get(&stream) == Some(&true) {
            return Ok(());
        }
        self.sync_dir(&self.streams_dir())?;
        if let Some(is_durable) = self.stream_dirs.lock().get_mut(&stream) {
            *is_durable = true;
        }
        Ok(())
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

    /// Returns the groups that have files in a stream's folder, and those that have an index only; in no
    /// particular order.
    pub fn list_groups(&self, stream: StreamId) -> Result<(Vec<GroupName>, Vec<GroupName>)> {
        let files = self.group_files(stream)?;
        Ok((files.groups, files.lone_indexes))
    }

    /// Returns the files in a stream's folder, if there is one.
    pub fn group_files(&self, stream: StreamId) -> Result<GroupFiles> {
        let path = self.stream_dir(stream);
        let mut files = GroupFiles::default();
        let names = match list(&*self.disk, &path) {
            Err(LogError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(files);
            }
            names => names?,
        };
        for name in names {
            let parsed = name
                .split_once('.')
                .and_then(|(stem, ending)| Some((GroupName::parse(stream, stem)?, ending)));
            match parsed {
                Some((group, LOG)) => files.groups.push(group),
                Some((group, INDEX)) => files.lone_indexes.push(group),
                Some((group, ending))
                    if let Some((kind, is_finished)) = key_file_ending(ending) =>
                {
                    if let KeyKind::Secondary(index) = &kind {
                        self.note_secondary(stream, index);
                    }
                    match is_finished {
                        true => files.lone_keys.push(group),
                        false => files.unfinished.push(name),
                    }
                }
                _ => {
                    return Err(LogError::ForeignFile {
                        path: path.join(name),
                    });
                }
            }
        }
        let known: HashSet<GroupName> = files.groups.iter().copied().collect();
        files.lone_indexes.retain(|name| !known.contains(name));
        files.lone_keys.retain(|name| !known.contains(name));
        Ok(files)
    }

    /// Removes the files of a group that the manifest does not list any more.
    pub fn remove_group_files(&self, name: &GroupName) -> Result<()> {
        let secondary = self.secondary_of(name.lane.stream).into_iter();
        let secondary = secondary.map(KeyKind::Secondary);
        let key_files = secondary.map(|kind| self.key_file_path(name, &kind));
        let others = [
            self.keys_path(name),
            self.index_path(name),
            self.group_path(name),
        ];
        for path in key_files.chain(others) {
            match self.disk.remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(LogError::io("remove", path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a stream's folder and all in it.
    pub fn remove_stream_dir(&self, stream: StreamId) -> Result<()> {
        self.stream_dirs.lock().remove(&stream);
        self.secondary.lock().remove(&stream);
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
