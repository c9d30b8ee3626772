//! Bytes that are usually text, and the white space in them.

use std::fmt::{self, Debug, Write};
use std::ops::Deref;

/// Whether a byte is ASCII white space: space, tab, line feed, vertical tab, form feed or carriage return. These
/// separate words wherever Millstream counts words. The set equals the one of C's `isspace`;
/// [`u8::is_ascii_whitespace`] lacks the vertical tab.
///
/// ```
/// use millstream_base::text::is_white_space;
///
/// let words = b"an\x0bapple\tand".split(is_white_space);
/// assert!(words.eq([&b"an"[..], b"apple", b"and"]));
/// ```
#[inline]
pub fn is_white_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Bytes that are usually text. `Debug` prints UTF-8 as text and all other bytes as `\xff`.
///
/// ```
/// use millstream_base::Text;
///
/// let text = Text("\"Dvořák\"\n".as_bytes());
/// assert_eq!(format!("{text:?}"), r#"b"\"Dvořák\"\n""#);
/// assert_eq!(format!("{:?}", Text(b"PK\x03\xff")), r#"b"PK\u{3}\xff""#);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub &'a [u8]);

impl Deref for Text<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("b\"")?;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    // A single quote needs no escape between double quotes.
                    '\'' => f.write_char(character)?,
                    _ => write!(f, "{}", character.escape_debug())?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        f.write_char('"')
    }
}
