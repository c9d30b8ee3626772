//! The problems that the checks report.

use std::fmt;

/// A violation of a rule, found by a check.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    /// The path, and the line if the check knows it.
    pub place: String,
    /// The fault and, unless it is obvious, the remedy.
    pub what: String,
}

impl Problem {
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }

    pub fn at_line(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self::new(format!("{path}:{line}"), what)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}
