//! Regular expressions of clients and administrators.

use regex::{Regex, RegexBuilder};

/// The most memory that a compiled regular expression may take, in bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// Compiles a regular expression that has to match a whole text.
pub fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    // Compile the pattern by itself first: an invalid one could become a valid one between parentheses.
    build(pattern)?;
    build(&format!("^(?:{pattern})$"))
}

fn build(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern)
        .size_limit(REGEX_BYTES_MAX)
        .dfa_size_limit(REGEX_BYTES_MAX)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_text_must_match() {
        let regex = compile("orders|a.*").unwrap();
        let matches = ["orders", "a", "ab"].map(|name| regex.is_match(name));
        assert_eq!(matches, [true; 3]);
        let others = ["orders2", "my-orders", "ba"].map(|name| regex.is_match(name));
        assert_eq!(others, [false; 3]);
    }

    #[test]
    fn patterns_that_do_not_parse_or_are_too_large_are_refused() {
        assert!(compile("(").is_err());
        assert!(compile("a)(b").is_err());
        assert!(compile(r"\w{1000}{1000}").is_err());
    }
}
