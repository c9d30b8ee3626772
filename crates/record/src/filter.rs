//! Filters, which select records of a stream.

mod parse;
mod select;
mod term;

use std::fmt;
use std::str::FromStr;

use crate::Record;
use term::Term;

pub use parse::FilterError;
pub use select::Selected;

/// The longest text of a filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 4 << 10;

/// The most terms of a filter.
pub const FILTER_TERMS_MAX: usize = 16;

/// Says of a record whether it is wanted. A filter is a text: terms, joined by `and`, all of which must
/// hold; the first that does not ends the evaluation.
///
/// | term | holds for records |
/// |---|---|
/// | `key = "a"` | that have this key |
/// | `key starts with "a"` | whose key begins like this |
/// | `key contains "a"` | whose key has this somewhere |
/// | `value …` | the same of the value |
/// | `k.NAME …` | one of whose secondary keys of this name is so |
/// | `time >= N`, `>`, `<`, `<=` | made then: milliseconds since 1970, or a time such as `2026-01-31T12:00:00Z` |
///
/// What a record does not have matches nothing; so `key starts with ""` wants the records that have a
/// key. In quotes, `\"`, `\\`, `\'`, `\n`, `\r` and `\t` mean what they do in Rust, and `\xHH` is any
/// byte: bytes are written by [`escape_ascii`](slice::escape_ascii). A name of a secondary key in which
/// there are spaces, quotes or one of `=<>` stands in quotes too: `k."first name"`.
///
/// ```
/// use millstream_base::Timestamp;
/// use millstream_record::{Chunk, ChunkBuilder, Compression, Filter, Selected, Decompressor};
///
/// let mut builder = ChunkBuilder::new(Compression::Zstd);
/// for (key, value) in [("ann", "home"), ("bob", "cart"), ("ann", "cart")] {
///     builder.push(Timestamp(1000), Some(key.as_bytes()), Some(value.as_bytes()), &[])?;
/// }
/// let bytes = builder.finish(None)?;
///
/// let filter: Filter = r#"key = "ann" and value contains "art" and time >= 1000"#.parse()?;
/// let (mut decompressor, mut out) = (Decompressor::default(), Vec::new());
/// let selected = filter.select(&Chunk::parse(bytes)?, &mut decompressor, &mut out)?;
/// assert_eq!(selected, Selected::Some(1));
/// for record in Chunk::parse(&out)?.records(&mut decompressor)? {
///     assert_eq!(record?.offset.0, 2);
/// }
///
/// let key = b"\xffany\"bytes";
/// let filter = Filter::parse(&format!("key = \"{}\"", key.escape_ascii()))?;
/// assert_eq!(filter.to_string(), r#"key = "\xffany\"bytes""#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Filter {
    /// The text from which `terms` were parsed.
    text: Box<str>,
    /// At least one, and at most [`FILTER_TERMS_MAX`].
    terms: Vec<Term>,
}

impl Filter {
    /// Takes the text of a filter.
    ///
    /// # Errors
    /// When the text is none, has more than [`FILTER_BYTES_MAX`] bytes or more than [`FILTER_TERMS_MAX`] terms.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        Ok(Filter {
            terms: parse::terms(text)?,
            text: text.into(),
        })
    }

    /// Whether all terms hold for the record.
    pub fn matches(&self, record: &Record<'_>) -> bool {
        self.terms.iter().all(|term| term.matches(record))
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Filter::parse(text)
    }
}

/// The text that the filter was made of.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Filter").field(&self.text).finish()
    }
}

/// Of the same text.
impl PartialEq for Filter {
    fn eq(&self, other: &Filter) -> bool {
        self.text == other.text
    }
}

impl Eq for Filter {}
