//! The key files beside group files. They follow from their groups, so a start neither lists nor needs them.

use std::io;
use std::path::PathBuf;

use millstream_base::StreamId;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::ids::GroupName;

/// The ending of a key file, and that of one that is not finished.
pub const KEYS: &str = "keys";
const UNFINISHED: &str = "new";

/// A key file in a stream's folder.
#[derive(Debug)]
pub struct FoundKeyFile {
    pub path: PathBuf,
    pub group: GroupName,
    pub is_finished: bool,
}

impl DataDir {
    pub fn keys_path(&self, name: &GroupName) -> PathBuf {
        self.stream_dir(name.lane.stream)
            .join(format!("{name}.{KEYS}"))
    }

    /// The path of a key file until it is finished.
    pub fn unfinished_keys_path(&self, name: &GroupName) -> PathBuf {
        self.stream_dir(name.lane.stream)
            .join(format!("{name}.{KEYS}.{UNFINISHED}"))
    }

    /// The key files in a stream's folder, unfinished ones included. None if there is no folder.
    pub fn list_key_files(&self, stream: StreamId) -> Result<Vec<FoundKeyFile>> {
        let folder = self.stream_dir(stream);
        let entries = match self.disk.list(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(LogError::io("list", folder, error)),
        };
        let found = entries.into_iter().filter_map(|entry| {
            let (group, is_finished) = parse(stream, &entry.name)?;
            Some(FoundKeyFile {
                path: folder.join(entry.name),
                group,
                is_finished,
            })
        });
        Ok(found.collect())
    }

    /// Removes key files of a stream, which is not in use.
    pub fn remove_key_files(
        &self,
        stream: StreamId,
        is_wanted: impl Fn(&GroupName) -> bool,
    ) -> Result<()> {
        let mut found = self.list_key_files(stream)?;
        found.retain(|found| is_wanted(&found.group));
        if found.is_empty() {
            return Ok(());
        }
        for FoundKeyFile { path, .. } in found {
            let removed = self.disk.remove_file(&path);
            removed.map_err(|error| LogError::io("remove", &path, error))?;
        }
        self.sync_dir(&self.stream_dir(stream))
    }
}

/// Whether a file of this name in a stream's folder is a key file, or a part of one that is not finished.
pub fn is_key_file(stream: StreamId, name: &str) -> bool {
    parse(stream, name).is_some()
}

/// Returns the group of a key file, and whether it is finished.
fn parse(stream: StreamId, name: &str) -> Option<(GroupName, bool)> {
    let mut parts = name.split('.');
    let group = GroupName::parse(stream, parts.next()?)?;
    if parts.next()? != KEYS {
        return None;
    }
    let is_finished = match (parts.next(), parts.next()) {
        (None, _) => true,
        (Some(UNFINISHED), None) => false,
        (Some(number), Some(UNFINISHED)) if number.parse::<u32>().is_ok() => false,
        _ => return None,
    };
    parts.next().is_none().then_some((group, is_finished))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_are_known_by_their_names() {
        let stream = StreamId(16);
        let group = "1-20-0000000003-00000000000000000400";
        for (name, expected) in [
            (format!("{group}.keys"), Some(true)),
            (format!("{group}-0001.keys"), Some(true)),
            (format!("{group}.keys.new"), Some(false)),
            (format!("{group}.keys.12.new"), Some(false)),
            (format!("{group}.log"), None),
            (format!("{group}.keys.12"), None),
            (format!("{group}.keys.x.new"), None),
            (format!("{group}.keys.1.new.new"), None),
            (format!("{group}.keys.new.new"), None),
            ("1-20.keys".to_owned(), None),
        ] {
            let found = parse(stream, &name).map(|(_, is_finished)| is_finished);
            assert_eq!(found, expected, "{name}");
        }
    }
}
