//! Filters select records of a stream.

mod parse;
mod select;
mod term;

use std::fmt;
use std::str::FromStr;

use millstream_base::KeyRange;

use crate::Record;
use term::{Comparison, Term};

pub use parse::FilterError;
pub use select::Selected;

/// The longest text of a filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 4 << 10;

/// The most terms of a filter.
pub const FILTER_TERMS_MAX: usize = 16;

/// Decides whether a record is selected. A filter is a text of terms, joined by `and`. All terms must hold; the
/// first one that does not ends the evaluation.
///
/// | term | holds for records |
/// |---|---|
/// | `key = "a"` | with this key |
/// | `key starts with "a"` | with a key that begins with this text |
/// | `key contains "a"` | with a key that contains this text |
/// | `key >= "a"`, `>`, `<`, `<=` | with a key that comes at or behind this text, behind, before, or before or at, in the order of bytes |
/// | `value …` | the same for the value |
/// | `k.NAME …` | the same for at least one secondary key of this name |
/// | `time >= N`, `>`, `<`, `<=` | with this time: milliseconds since 1970, or a time such as `2026-01-31T12:00:00Z` |
///
/// A missing field matches no term, so `key starts with ""` selects all records with a key. In quotes, `\"`, `\\`,
/// `\'`, `\n`, `\r` and `\t` mean the same as in Rust, and `\xHH` is any byte;
/// [`escape_ascii`](slice::escape_ascii) writes bytes in this form. A secondary key's name with spaces, quotes or one
/// of `=<>` needs quotes, too: `k."first name"`.
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
    /// The text of `terms`.
    text: Box<str>,
    /// At least one, and at most [`FILTER_TERMS_MAX`].
    terms: Vec<Term>,
}

impl Filter {
    /// Takes the text of a filter.
    ///
    /// # Errors
    /// When the text is not a filter, has more than [`FILTER_BYTES_MAX`] bytes or more than [`FILTER_TERMS_MAX`] terms.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        Ok(Filter {
            terms: parse::terms(text)?,
            text: text.into(),
        })
    }

    /// Returns a filter of the records whose keys are in a range.
    ///
    /// ```
    /// use millstream_base::KeyRange;
    /// use millstream_record::Filter;
    ///
    /// let filter = Filter::of_keys(&KeyRange::prefix("a"));
    /// assert_eq!(filter.to_string(), r#"key >= "a" and key < "b""#);
    /// ```
    pub fn of_keys(range: &KeyRange) -> Filter {
        let mut terms = vec![Term::of_key(Comparison::AtOrAfter, &range.from)];
        let mut text = format!("key >= \"{}\"", range.from.escape_ascii());
        if let Some(until) = &range.until {
            terms.push(Term::of_key(Comparison::Before, until));
            text += &format!(" and key < \"{}\"", until.escape_ascii());
        }
        let text = text.into();
        Filter { text, terms }
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

/// Shows the original text of the filter.
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

/// Filters are equal if their texts are equal.
impl PartialEq for Filter {
    fn eq(&self, other: &Filter) -> bool {
        self.text == other.text
    }
}

impl Eq for Filter {}
