//! The text of a filter.

use std::time::UNIX_EPOCH;

use memchr::memmem::Finder;
use millstream_base::Timestamp;

use super::term::{Comparison, Term, Test, TimeTest};
use super::{FILTER_BYTES_MAX, FILTER_TERMS_MAX};
use crate::SECONDARY_KEY_PREFIX;

/// Maximum number of characters of the input that an error shows.
const FOUND_CHARACTERS_MAX: usize = 40;

/// The comparisons of times and bytes. A longer one precedes its own prefix, since the parser takes the first that fits.
const COMPARISONS: [(&str, Comparison); 4] = [
    ("<=", Comparison::BeforeOrAt),
    (">=", Comparison::AtOrAfter),
    ("<", Comparison::Before),
    (">", Comparison::After),
];

// Descriptions of the expected input, for errors.
const FIELD: &str = "key, value, time, or k. and the name of a secondary key";
const TEST: &str = "=, <, <=, >=, >, starts with, or contains";
const COMPARISON: &str = "<, <=, >= or >";
const TIME: &str = "milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z";
const WHOLE_MILLISECONDS: &str = "a time in whole milliseconds";
const TEXT: &str = "a text in double quotes";
const NAME: &str = "the name of a secondary key, in double quotes if it is not a word";
const CLOSING_QUOTE: &str = "the double quote that closes the text";
const ESCAPE: &str = r#"one of \" \\ \' \n \r \t and \xHH"#;

/// A text is not a filter. Columns are characters, counted from 1.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The text is too long.
    #[error("the filter has {bytes} bytes, but at most {FILTER_BYTES_MAX} are possible")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// There are too many terms.
    #[error("the filter's column {column}: more than {FILTER_TERMS_MAX} terms")]
    TooManyTerms {
        /// The start of the first term beyond the maximum.
        column: usize,
    },
    /// The text does not follow the grammar.
    #[error("the filter's column {column}: expected {expected}, found {found}")]
    Unexpected {
        /// The position of the fault.
        column: usize,
        /// The input at this position, in quotes, shortened; or a note that the input ends.
        found: String,
        /// The expected input.
        expected: &'static str,
    },
}

millstream_base::debug_as_display!(FilterError);

/// The terms of a filter.
pub(super) fn terms(text: &str) -> Result<Vec<Term>, FilterError> {
    if text.len() > FILTER_BYTES_MAX {
        return Err(FilterError::TooLong { bytes: text.len() });
    }
    let mut parser = Parser { text, rest: text };
    let mut terms = vec![parser.term()?];
    loop {
        parser.skip_spaces();
        if parser.rest.is_empty() {
            return Ok(terms);
        }
        parser.keyword("and")?;
        parser.skip_spaces();
        if terms.len() == FILTER_TERMS_MAX {
            let column = parser.column(parser.rest);
            return Err(FilterError::TooManyTerms { column });
        }
        terms.push(parser.term()?);
    }
}

/// Takes tokens off the front of a text.
struct Parser<'t> {
    text: &'t str,
    /// A suffix of `text`.
    rest: &'t str,
}

impl<'t> Parser<'t> {
    fn term(&mut self) -> Result<Term, FilterError> {
        self.skip_spaces();
        let at = self.rest;
        match self.word() {
            "key" => Ok(Term::Key(self.test()?)),
            "value" => Ok(Term::Value(self.test()?)),
            "time" => Ok(Term::Time(self.time_test()?)),
            word => match word.strip_prefix(SECONDARY_KEY_PREFIX) {
                Some("") => Ok(Term::SecondaryKey {
                    name: self.quoted(NAME)?,
                    test: self.test()?,
                }),
                Some(name) => Ok(Term::SecondaryKey {
                    name: name.into(),
                    test: self.test()?,
                }),
                None => Err(self.unexpected(at, FIELD)),
            },
        }
    }

    fn test(&mut self) -> Result<Test, FilterError> {
        self.skip_spaces();
        if self.skip("=") {
            return Ok(Test::Equals(self.text()?));
        }
        if let Some(comparison) = self.comparison() {
            return Ok(Test::Order(comparison, self.text()?));
        }
        let at = self.rest;
        match self.word() {
            "starts" => {
                self.skip_spaces();
                self.keyword("with")?;
                Ok(Test::StartsWith(self.text()?))
            }
            "contains" => {
                let finder = Finder::new(&self.text()?).into_owned();
                Ok(Test::Contains(Box::new(finder)))
            }
            _ => Err(self.unexpected(at, TEST)),
        }
    }

    fn time_test(&mut self) -> Result<TimeTest, FilterError> {
        self.skip_spaces();
        let Some(comparison) = self.comparison() else {
            return Err(self.unexpected(self.rest, COMPARISON));
        };
        self.skip_spaces();
        let at = self.rest;
        let time = time(self.word()).map_err(|expected| self.unexpected(at, expected))?;
        Ok(TimeTest { comparison, time })
    }

    /// Takes a comparison, if one comes next.
    fn comparison(&mut self) -> Option<Comparison> {
        let mut comparisons = COMPARISONS.into_iter();
        comparisons
            .find(|(sign, _)| self.skip(sign))
            .map(|(_, comparison)| comparison)
    }

    /// Takes a text in double quotes, behind spaces.
    fn text(&mut self) -> Result<Vec<u8>, FilterError> {
        self.skip_spaces();
        self.quoted(TEXT)
    }

    /// Takes bytes in double quotes.
    fn quoted(&mut self, expected: &'static str) -> Result<Vec<u8>, FilterError> {
        if !self.skip("\"") {
            return Err(self.unexpected(self.rest, expected));
        }
        let mut bytes = Vec::new();
        loop {
            let end = self.rest.find(['"', '\\']).unwrap_or(self.rest.len());
            bytes.extend_from_slice(self.take(end).as_bytes());
            if self.skip("\"") {
                return Ok(bytes);
            }
            if self.rest.is_empty() {
                return Err(self.unexpected(self.rest, CLOSING_QUOTE));
            }
            let (byte, length) =
                escaped(self.rest).ok_or_else(|| self.unexpected(self.rest, ESCAPE))?;
            bytes.push(byte);
            self.take(length);
        }
    }

    fn keyword(&mut self, keyword: &'static str) -> Result<(), FilterError> {
        let at = self.rest;
        if self.word() == keyword {
            Ok(())
        } else {
            Err(self.unexpected(at, keyword))
        }
    }

    /// Takes the text up to a space, a quote or a comparison; it may be empty.
    fn word(&mut self) -> &'t str {
        self.take(word_bytes(self.rest))
    }

    /// Takes this number of bytes, which must end at the end of a character.
    fn take(&mut self, bytes: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Takes this text if it comes next. Returns whether it did.
    fn skip(&mut self, prefix: &str) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn column(&self, at: &str) -> usize {
        self.text[..self.text.len() - at.len()].chars().count() + 1
    }

    fn unexpected(&self, at: &str, expected: &'static str) -> FilterError {
        FilterError::Unexpected {
            column: self.column(at),
            found: found(at),
            expected,
        }
    }
}

/// Returns the start of `at`: a word, or else a few characters.
fn found(at: &str) -> String {
    if at.is_empty() {
        return "the end".to_owned();
    }
    let word = match word_bytes(at) {
        0 => at.split_whitespace().next().unwrap_or(at),
        bytes => &at[..bytes],
    };
    match word.char_indices().nth(FOUND_CHARACTERS_MAX) {
        Some((end, _)) => format!("{:?}…", &word[..end]),
        None => format!("{word:?}"),
    }
}

fn word_bytes(text: &str) -> usize {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '=' | '<' | '>');
    text.find(is_end).unwrap_or(text.len())
}

/// The byte that an escape at the start of `text` means, and the length of the escape.
fn escaped(text: &str) -> Option<(u8, usize)> {
    match *text.as_bytes() {
        [b'\\', byte @ (b'"' | b'\\' | b'\''), ..] => Some((byte, 2)),
        [b'\\', b'n', ..] => Some((b'\n', 2)),
        [b'\\', b'r', ..] => Some((b'\r', 2)),
        [b'\\', b't', ..] => Some((b'\t', 2)),
        [b'\\', b'x', high, low, ..] => {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            Some(((digit(high)? << 4 | digit(low)?) as u8, 4))
        }
        _ => None,
    }
}

/// Takes the text of a time, valid or not.
fn time(word: &str) -> Result<Timestamp, &'static str> {
    if let Ok(milliseconds) = word.parse() {
        return Ok(Timestamp(milliseconds));
    }
    let since_1970 = humantime::parse_rfc3339(word)
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .ok_or(TIME)?;
    if since_1970.subsec_nanos() % 1_000_000 != 0 {
        return Err(WHOLE_MILLISECONDS);
    }
    let milliseconds = i64::try_from(since_1970.as_millis()).map_err(|_| TIME)?;
    Ok(Timestamp(milliseconds))
}
