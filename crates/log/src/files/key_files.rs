//! The key files beside group files. They follow from their groups, so a start needs none of them.

use std::io;
use std::path::PathBuf;

use millstream_base::StreamId;

use crate::error::{LogError, Result};
use crate::files::{DataDir, KEYS, KEYS_BY};
use crate::ids::GroupName;
use crate::keys::kind::KeyKind;
use crate::keys::secondary::name::SecondaryName;

/// Reads the ending of a key file's name: which keys it has, and whether it is finished. `keys` and `by-<name>` are; others
/// go on with `.new`, or with `.<number>.new` for a part.
pub fn key_file_ending(ending: &str) -> Option<(KeyKind, bool)> {
    let (kind, rest) = match ending.split_once('.') {
        Some((kind, rest)) => (kind, Some(rest)),
        None => (ending, None),
    };
    let kind = match kind.strip_prefix(KEYS_BY) {
        Some(name) => KeyKind::Secondary(SecondaryName::parse(name)?),
        None if kind == KEYS => KeyKind::Primary,
        None => return None,
    };
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match rest {
        None => Some((kind, true)),
        Some("new") => Some((kind, false)),
        Some(rest) => is_number(rest.strip_suffix(".new")?).then_some((kind, false)),
    }
}

impl DataDir {
    /// The path of a key file of a group.
    pub fn key_file_path(&self, name: &GroupName, kind: &KeyKind) -> PathBuf {
        let file = match kind {
            KeyKind::Primary => format!("{name}.{KEYS}"),
            KeyKind::Secondary(index) => format!("{name}.{KEYS_BY}{}", &**index),
        };
        self.stream_dir(name.lane.stream).join(file)
    }

    /// The path of a key file until it is finished.
    pub fn unfinished_key_file_path(&self, name: &GroupName, kind: &KeyKind) -> PathBuf {
        let mut path = self.key_file_path(name, kind);
        path.as_mut_os_string().push(".new");
        path
    }

    /// The path of the file of a group's keys until it is finished.
    pub fn unfinished_keys_path(&self, name: &GroupName) -> PathBuf {
        self.unfinished_key_file_path(name, &KeyKind::Primary)
    }

    /// Takes note that a stream's folder may have files of an index of secondary keys.
    pub fn note_secondary(&self, stream: StreamId, name: &SecondaryName) {
        let mut secondary = self.secondary.lock();
        let names = secondary.entry(stream).or_default();
        if !names.contains(name) {
            names.insert(name.clone());
        }
    }

    /// Returns the indexes of secondary keys for which a stream's folder may have files.
    pub fn secondary_of(&self, stream: StreamId) -> Vec<SecondaryName> {
        let secondary = self.secondary.lock();
        let names = secondary.get(&stream).into_iter().flatten();
        names.cloned().collect()
    }

    /// Removes the files of an index of secondary keys, while nothing makes or uses any.
    pub fn remove_secondary(&self, stream: StreamId, name: &SecondaryName) -> Result<()> {
        // Before the folder is listed, so that a file that is made from here on is noted again.
        if let Some(names) = self.secondary.lock().get_mut(&stream) {
            names.remove(name);
        }
        let wanted = KeyKind::Secondary(name.clone());
        let removed = self.remove_key_files(stream, |_, kind| *kind == wanted);
        if removed.is_err() {
            self.note_secondary(stream, name);
        }
        removed
    }

    /// Removes key files of a stream, unfinished ones included, while nothing uses them.
    pub fn remove_key_files(
        &self,
        stream: StreamId,
        is_wanted: impl Fn(&GroupName, &KeyKind) -> bool,
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
            let (kind, _) = key_file_ending(ending)?;
            Some(is_wanted(&group, &kind))
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
