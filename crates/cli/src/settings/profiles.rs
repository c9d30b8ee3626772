//! Profiles: servers with their logins, by name, in a file of the user.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use millstream_base::nearest;
use serde::{Deserialize, Serialize};

use super::SettingsError;

/// Only the user may list the folder.
const FOLDER_MODE: u32 = 0o700;

/// The file of a user's profiles.
#[derive(Debug)]
pub struct ProfileFile {
    /// `None` without a folder for it.
    path: Option<PathBuf>,
}

impl ProfileFile {
    /// Returns the file of this user: under `XDG_CONFIG_HOME`, or else under `~/.config`.
    pub fn of_user() -> ProfileFile {
        let folder = |name| std::env::var_os(name).filter(|path: &OsString| !path.is_empty());
        let config = folder("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| Some(PathBuf::from(folder("HOME")?).join(".config")));
        let path = config.map(|config| config.join("millstream").join("profiles.toml"));
        ProfileFile { path }
    }

    /// Returns the file at a path; without one, no folder can hold it.
    #[cfg(test)]
    pub fn at(path: Option<PathBuf>) -> ProfileFile {
        ProfileFile { path }
    }

    /// Returns the path.
    ///
    /// # Errors
    /// If neither `XDG_CONFIG_HOME` nor `HOME` names a folder.
    pub fn path(&self) -> Result<&Path, SettingsError> {
        self.path.as_deref().ok_or(SettingsError::NoProfileFolder)
    }
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profiles {
    /// The profile of commands that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// The settings of each profile, as text.
    #[serde(default)]
    pub profiles: BTreeMap<String, BTreeMap<String, String>>,
}

impl Profiles {
    /// Reads the file; a missing file holds no profiles.
    pub fn read(path: &Path) -> Result<Profiles, SettingsError> {
        match std::fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| SettingsError::Toml {
                path: path.to_owned(),
                error: Box::new(error),
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Profiles::default()),
            Err(error) => Err(SettingsError::Read {
                path: path.to_owned(),
                error,
            }),
        }
    }

    pub fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    /// Returns the settings of a profile.
    pub fn get(&self, name: &str) -> Result<&BTreeMap<String, String>, SettingsError> {
        self.profiles.get(name).ok_or_else(|| {
            let hint = match nearest(name, self.profiles.keys().map(String::as_str)) {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => "`millstream profile list` shows those that exist".to_owned(),
            };
            SettingsError::UnknownProfile {
                name: name.to_owned(),
                hint,
            }
        })
    }

    /// Replaces the file as a whole. Only the user may read it.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let shown = path.display();
        let cannot_write = || format!("cannot write {shown}");
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE);
        builder.create(folder).with_context(cannot_write)?;
        let text = toml::to_string(self).with_context(cannot_write)?;
        // A temporary file has the mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(folder).with_context(cannot_write)?;
        file.write_all(text.as_bytes()).with_context(cannot_write)?;
        file.as_file().sync_all().with_context(cannot_write)?;
        file.persist(path).with_context(cannot_write)?;
        Ok(())
    }
}
