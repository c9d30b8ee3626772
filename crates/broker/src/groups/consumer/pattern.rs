//! Regular expressions of topics.

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};

use crate::groups::TopicName;
use crate::groups::topics::Topics;

/// The most memory that a compiled regular expression may take, in bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// Compiles a regular expression that has to match a whole name.
pub(in crate::groups) fn compile(regex: &str) -> Result<Regex, regex::Error> {
    // Compile the expression by itself first: an invalid one could become a valid one between parentheses.
    build(regex)?;
    build(&format!("^(?:{regex})$"))
}

fn build(regex: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(regex)
        .size_limit(REGEX_BYTES_MAX)
        .dfa_size_limit(REGEX_BYTES_MAX)
        .build()
}

/// The topics that match; none if the expression does not compile any more.
pub(in crate::groups) fn matching(regex: &str, topics: &Topics) -> BTreeSet<TopicName> {
    match compile(regex) {
        Ok(regex) => topics
            .all()
            .filter(|name| regex.is_match(name))
            .cloned()
            .collect(),
        Err(_) => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_name_must_match() {
        let regex = compile("orders|a.*").unwrap();
        let matches = ["orders", "a", "ab"].map(|name| regex.is_match(name));
        assert_eq!(matches, [true; 3]);
        let others = ["orders2", "my-orders", "ba"].map(|name| regex.is_match(name));
        assert_eq!(others, [false; 3]);
    }

    #[test]
    fn what_does_not_parse_or_is_too_large_is_refused() {
        assert!(compile("(").is_err());
        assert!(compile("a)(b").is_err());
        assert!(compile(r"\w{1000}{1000}").is_err());
    }
}
