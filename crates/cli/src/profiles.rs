//! Profiles: servers with their logins, by name, in a file of the user; and `millstream profile …`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use millstream_base::nearest;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::ProfileCommand;
use crate::console::{Align, Table, print_json, report};
use crate::settings::{Settings, SettingsError};
use crate::usage::WrongUsage;

/// The settings that a profile may hold. Passwords and tokens stay in files of their own.
pub const PROFILE_SETTINGS: [&str; 8] = [
    "server",
    "user",
    "password_file",
    "token_file",
    "mechanism",
    "tls_certificate",
    "tls_key",
    "tls_authorities",
];

/// Only the user may list the folder.
const FOLDER_MODE: u32 = 0o700;

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profiles {
    /// The profile of commands that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    /// The settings of each profile, as text.
    #[serde(default)]
    profiles: BTreeMap<String, BTreeMap<String, String>>,
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
    fn write(&self, path: &Path) -> anyhow::Result<()> {
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

/// Returns the path of the file: under `XDG_CONFIG_HOME`, or else under `~/.config`; `None` without a home folder.
pub fn path() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|path: &OsString| !path.is_empty());
    let config = folder("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| Some(PathBuf::from(folder("HOME")?).join(".config")));
    Some(config?.join("millstream").join("profiles.toml"))
}

/// Carries out a command. `flags` are the settings on the command line alone.
pub fn run(command: ProfileCommand, flags: &Settings, is_json: bool) -> anyhow::Result<()> {
    let path = path().context("there is no folder for profiles: set XDG_CONFIG_HOME or HOME")?;
    let mut all = Profiles::read(&path)?;
    let (name, done) = match command {
        ProfileCommand::List => return list(&all, is_json),
        ProfileCommand::Add { name } => {
            let settings = flags.for_profile()?;
            if !settings.contains_key("server") {
                return Err(WrongUsage::error(
                    "a profile names a server: add --server HOST:PORT",
                ));
            }
            if all.profiles.contains_key(&name) {
                bail!("there is a profile {name}; `millstream profile remove {name}` removes it");
            }
            all.profiles.insert(name.clone(), settings);
            (name, "added")
        }
        ProfileCommand::Use { name } => {
            all.get(&name)?;
            all.current = Some(name.clone());
            (name, "commands now use")
        }
        ProfileCommand::Remove { name } => {
            all.get(&name)?;
            all.profiles.remove(&name);
            all.current.take_if(|current| *current == name);
            (name, "removed")
        }
    };
    all.write(&path)?;
    report(
        is_json,
        &json!({ "profile": name, "current": all.current, "file": path }),
        format_args!("{done} profile {name}"),
    )
}

fn list(all: &Profiles, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let profiles = all.profiles.iter().map(|(name, settings)| {
            json!({ "profile": name, "is_current": all.current() == Some(name), "settings": settings })
        });
        return print_json(&json!({ "profiles": profiles.collect::<Vec<_>>() }));
    }
    let mut table = Table::new(&[
        ("profile", Align::Left),
        ("server", Align::Left),
        ("user", Align::Left),
        ("in use", Align::Left),
    ]);
    for (name, settings) in &all.profiles {
        let text = |setting| settings.get(setting).cloned().unwrap_or_default();
        let is_current = all.current() == Some(name);
        table.row([
            name.clone(),
            text("server"),
            text("user"),
            if is_current { "yes" } else { "" }.to_owned(),
        ]);
    }
    table.print()
}
