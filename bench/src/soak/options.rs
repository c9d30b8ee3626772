//! Settings of a soak test.

/// Fewer show nothing.
const CONNECTIONS_MIN: usize = 40;

/// The settings of the command line; the others have defaults.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Options {
    pub connections: Option<usize>,
    /// The server is not killed in the middle.
    pub spares_server: bool,
}

impl Options {
    /// Takes `--connections`.
    pub fn set_connections(&mut self, text: &str) -> Result<(), String> {
        let connections = text.parse().ok();
        let connections = connections.filter(|number| *number >= CONNECTIONS_MIN);
        let refused = || format!("--connections {text}: a number, at least {CONNECTIONS_MIN}");
        self.connections = Some(connections.ok_or_else(refused)?);
        Ok(())
    }
}
