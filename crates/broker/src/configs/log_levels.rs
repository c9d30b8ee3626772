//! Levels of log lines, and the owner of the program's log, which the broker asks for them.

use std::fmt;
use std::str::FromStr;

/// The target whose level applies to all targets without a level of their own.
pub const ROOT: &str = "root";

/// The least important lines that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Only errors.
    Error,
    /// Warnings too.
    Warn,
    /// Occasional events too.
    Info,
    /// Details that help to find faults too.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    const ALL: [(&'static str, LogLevel); 5] = [
        ("DEBUG", LogLevel::Debug),
        ("ERROR", LogLevel::Error),
        ("INFO", LogLevel::Info),
        ("TRACE", LogLevel::Trace),
        ("WARN", LogLevel::Warn),
    ];
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = LogLevel::ALL.iter().find(|(_, level)| level == self);
        f.pad(found.map_or("", |(name, _)| name))
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<LogLevel, String> {
        let found = LogLevel::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, level)| *level).ok_or_else(|| {
            let names = LogLevel::ALL.map(|(name, _)| name);
            format!("{text:?} is no level; there are {}", names.join(", "))
        })
    }
}

/// The levels of the program's log lines: the broker shows and changes them for administrators.
pub trait LogLevels: Send + Sync {
    /// The targets with their levels, [`ROOT`] among them; `None` for a target that is turned off.
    fn levels(&self) -> Vec<(&'static str, Option<LogLevel>)>;

    /// Gives a target a level, or that of [`ROOT`].
    fn set(&self, target: &str, level: Option<LogLevel>);
}
