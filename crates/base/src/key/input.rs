//! The bytes of a key that is being read.

use super::error::KeyError;
use super::format::{END, ESCAPE};

/// The bytes of a key, and how far they are read.
pub struct Input<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Input<'a> {
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], KeyError> {
        let ends = KeyError::Ends {
            at: self.bytes.len(),
        };
        let taken = self.rest().first_chunk().ok_or(ends)?;
        self.at += N;
        Ok(*taken)
    }

    pub fn byte(&mut self) -> Result<u8, KeyError> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// Returns the error of the byte that was read last.
    pub fn unexpected(&self, expected: &'static str) -> KeyError {
        KeyError::Unexpected {
            at: self.at.saturating_sub(1),
            expected,
        }
    }

    pub fn flag(&mut self) -> Result<bool, KeyError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.unexpected("0 or 1")),
        }
    }

    pub fn byte_of_text(&mut self, is_last: bool) -> Result<u8, KeyError> {
        let byte = self.byte()?;
        if byte == 0 && !is_last && self.byte()? != ESCAPE {
            return Err(self.unexpected("255, or 1 at the end of the text"));
        }
        Ok(byte)
    }

    /// Returns whether text or a sequence ends here, and passes its end.
    pub fn ends(&mut self, is_last: bool) -> bool {
        let rest = self.rest();
        if is_last {
            return rest.is_empty();
        }
        let ends = rest.starts_with(&END);
        if ends {
            self.at += END.len();
        }
        ends
    }
}
