//! The key files beside group files. They follow from their groups, so a start needs none of them.

use std::io;
use std::path::PathBuf;

use millstream_base::StreamId;

use crate::error::{LogError, Result};
use crate::files::stream_dirs::is_unfinished_keys;
use crate::files::{DataDir, KEYS};
use crate::ids::GroupName;

impl DataDir {
    /// The path of a key file until it is finished.
    pub fn unfinished_keys_path(&self, name: &GroupName) -> PathBuf {
        self.stream_dir(name.lane.stream)
            .join(format!("{name}.{KEYS}.new"))
    }

    /// Removes key files of a stream, unfinished ones included, while nothing uses them.
    pub fn remove_key_files(
        &self,
        stream: StreamId,
        is_wanted: impl Fn(&GroupName) -> bool,
    ) -> Result<()> {
        let folder = self.stream_dir(stream);
        let entries = match self.disk.list(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(LogError::io("list", folder, error)),
        };
        let is_key_file = |name: &str| {
            let (stem, ending) = name.split_once('.')?;
            let group = GroupName::parse(stream, stem)?;
            Some((ending == KEYS || is_unfinished_keys(ending)) && is_wanted(&group))
        };
        let mut names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
        names.retain(|name| is_key_file(name) == Some(true));
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            let path = folder.join(name);
            let removed = self.disk.remove_file(&path);
            removed.map_err(|error| LogError::io("remove", path, error))?;
        }
        self.sync_dir(&folder)
    }
}
