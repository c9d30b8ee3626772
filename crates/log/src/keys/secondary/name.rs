//! The names of indexes of secondary keys, and the setting that has them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The setting of a keyed stream that names its indexes of secondary keys, separated by commas.
pub const SECONDARY: &str = "millstream.keyed.secondary";

/// The most indexes of a stream: each has a file beside each closed group.
pub const INDEXES_MAX: usize = 8;

/// The longest name: it is part of the names of files.
const NAME_BYTES_MAX: usize = 64;

/// The name of an index of secondary keys: letters, digits, `_` and `-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecondaryName(Arc<str>);

impl SecondaryName {
    /// Returns a name; `None` if it is none.
    pub fn parse(name: &str) -> Option<SecondaryName> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_part);
        is_name.then(|| SecondaryName(name.into()))
    }
}

impl Deref for SecondaryName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecondaryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns whether an index of secondary keys can have this name.
pub fn is_secondary_name(name: &str) -> bool {
    SecondaryName::parse(name).is_some()
}

/// Returns why a value of [`SECONDARY`] is refused; `None` if it is a list of names, which may be empty.
pub fn refuse_secondary(names: &str) -> Option<String> {
    let mut known = Vec::new();
    for name in parts(names) {
        match SecondaryName::parse(name) {
            None => {
                return Some(format!(
                    "{name:?} is no name of an index of secondary keys; a name has 1 to {NAME_BYTES_MAX} letters, digits, \
                     _ and -, and an index has the headers k.<name>"
                ));
            }
            Some(name) if known.contains(&name) => return Some(format!("{name:?} is named twice")),
            Some(name) => known.push(name),
        }
    }
    let count = known.len();
    (count > INDEXES_MAX).then(|| {
        format!(
            "{count} indexes of secondary keys are too many; a stream has at most {INDEXES_MAX}"
        )
    })
}

/// Returns the names that a value of [`SECONDARY`] has. A value that is [refused](refuse_secondary) has none: the server
/// checks values before it stores them.
pub fn names_of(names: &str) -> Arc<[SecondaryName]> {
    match refuse_secondary(names) {
        Some(_) => Arc::default(),
        None => parts(names).filter_map(SecondaryName::parse).collect(),
    }
}

fn parts(names: &str) -> impl Iterator<Item = &str> {
    names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_names_are_separated_by_commas_and_bad_names_are_refused() {
        let names = |text: &str| {
            let names = names_of(text);
            names
                .iter()
                .map(|name| name.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(" city, Zip_1,a-b,"), ["city", "Zip_1", "a-b"]);
        assert!(names("").is_empty() && refuse_secondary(" ").is_none());
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let many = (0..=INDEXES_MAX).map(|n| n.to_string());
        let many = many.collect::<Vec<_>>().join(",");
        for (refused, why) in [
            ("a.b", "no name"),
            ("a/b", "no name"),
            ("first name", "no name"),
            ("é", "no name"),
            (&long, "no name"),
            ("a,b,a", "twice"),
            (&many, "9 indexes"),
        ] {
            let found = refuse_secondary(refused).expect(refused);
            assert!(found.contains(why), "{found}");
            assert!(names(refused).is_empty());
        }
    }
}
