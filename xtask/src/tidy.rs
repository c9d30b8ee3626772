//! The checks, one module each: a check looks at the tree and lists what is not as it should be.

mod circles;
mod commands;
mod layout;
mod manifests;
mod map;
mod pages;
mod unsafe_code;
mod words;

use std::fmt;

pub use self::circles::check as circles;

use crate::tree::Tree;
use crate::workspace::Package;

/// Something that is not as it should be.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    /// A path, with a line where that helps.
    place: String,
    /// What is wrong there and, unless it is plain, what to do.
    what: String,
}

impl Problem {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }

    fn at_line(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self::new(format!("{path}:{line}"), what)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Runs all checks; the commands of the guide come last, since they take their time.
pub fn run(tree: &Tree, packages: &[Package]) -> anyhow::Result<Vec<Problem>> {
    let mut problems = layout::check(packages);
    problems.extend(manifests::check(tree, packages));
    problems.extend(unsafe_code::check(tree));
    problems.extend(map::check(tree));
    problems.extend(pages::check_links(tree));
    problems.extend(pages::check_index(tree));
    problems.extend(pages::check_changelog(tree, packages));
    problems.extend(words::check(tree));
    problems.extend(commands::check(tree)?);
    Ok(problems)
}
