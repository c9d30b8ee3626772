//! How a soak test is set.

use std::time::Duration;

/// Shorter ones show nothing.
const CONNECTIONS_MIN: usize = 40;
const LASTS_MIN: Duration = Duration::from_secs(1);

/// What the command line says of it; the rest has defaults.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Options {
    pub lasts: Option<Duration>,
    pub connections: Option<usize>,
    /// The server is not killed in the middle.
    pub spares_server: bool,
}

impl Options {
    /// Takes `--for`.
    pub fn set_lasts(&mut self, text: &str) -> Result<(), String> {
        let lasts = humantime::parse_duration(text);
        let lasts = lasts.map_err(|error| format!("--for {text}: {error}; for instance 5min"))?;
        if lasts < LASTS_MIN {
            return Err(format!("--for {text}: at least {LASTS_MIN:?}"));
        }
        self.lasts = Some(lasts);
        Ok(())
    }

    /// Takes `--connections`.
    pub fn set_connections(&mut self, text: &str) -> Result<(), String> {
        let connections = text.parse().ok();
        let connections = connections.filter(|number| *number >= CONNECTIONS_MIN);
        let refused = || format!("--connections {text}: a number, at least {CONNECTIONS_MIN}");
        self.connections = Some(connections.ok_or_else(refused)?);
        Ok(())
    }
}
