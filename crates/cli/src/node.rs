//! The node whose data directory a command works on.

use std::path::{Path, PathBuf};

use anyhow::bail;
use millstream_base::nearest;
use millstream_log::{Log, LogError, Stream};

use crate::settings::Settings;

/// Opens the log for commands that write; creates it if there is none.
pub fn open(settings: &Settings) -> anyhow::Result<Log> {
    open_in(settings, &settings.data_or_default())
}

/// Opens the log in a data directory; creates the directory if it is missing.
pub fn open_in(settings: &Settings, data: &Path) -> anyhow::Result<Log> {
    if data.exists() && !data.is_dir() {
        bail!(
            "{} is no folder; name a data directory with --data",
            data.display()
        );
    }
    Ok(Log::open(settings.log_config(data))?)
}

/// Opens the log for commands that need an existing one.
pub fn open_existing(settings: &Settings) -> anyhow::Result<Log> {
    existing(settings)?;
    open(settings)
}

/// Returns the data directory, which must exist.
pub fn existing(settings: &Settings) -> anyhow::Result<PathBuf> {
    let data = settings.data_or_default();
    if !data.exists() {
        bail!(
            "there is no data directory {}; name one with --data",
            data.display()
        );
    }
    Ok(data)
}

/// Returns the stream with this name; the error names the nearest existing stream.
pub fn stream(log: &Log, name: &str) -> anyhow::Result<Stream> {
    match log.stream(name) {
        Err(error @ LogError::UnknownStream { .. }) => {
            let names = log.stream_names();
            if names.is_empty() {
                bail!("{error}; there are none, `millstream stream create {name}` creates it");
            }
            match nearest(name, names.iter().map(String::as_str)) {
                Some(nearest) => bail!(
                    "{error}; did you mean {nearest}? `millstream stream create {name}` creates it"
                ),
                None => bail!(
                    "{error}; `millstream stream list` shows those that exist, and `millstream stream create {name}` creates it"
                ),
            }
        }
        result => Ok(result?),
    }
}
