//! The node whose data directory a command works on.

use anyhow::bail;
use millstream_log::{Log, LogError, Stream};

use crate::settings::Settings;

/// Opens the log; for commands that write, also where there is none yet.
pub fn open(settings: &Settings) -> anyhow::Result<Log> {
    Ok(Log::open(settings.log_config(&settings.data_or_default()))?)
}

/// Opens the log, for commands that make sense only where there is one.
pub fn open_existing(settings: &Settings) -> anyhow::Result<Log> {
    let data = settings.data_or_default();
    if !data.exists() {
        bail!(
            "there is no data directory {}; name one with --data",
            data.display()
        );
    }
    open(settings)
}

/// The stream of this name; an error names a similar one.
pub fn stream(log: &Log, name: &str) -> anyhow::Result<Stream> {
    match log.stream(name) {
        Err(error @ LogError::UnknownStream { .. }) => {
            let names = log.stream_names();
            let similarity = |known: &&String| strsim::jaro_winkler(known, name);
            match names
                .iter()
                .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
            {
                Some(nearest) => bail!("{error}; the nearest that exists is {nearest}"),
                None => {
                    bail!("{error}; there are none, `millstream stream create {name}` makes it")
                }
            }
        }
        result => Ok(result?),
    }
}
