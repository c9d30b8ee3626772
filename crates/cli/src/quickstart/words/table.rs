//! How often each word occurs.
//!
//! Text is mostly short words, and few different ones. A word of up to 15 bytes is a number: its
//! bytes and, in the highest byte, its length. It is cut out of 16 bytes that are loaded at once,
//! hashed and compared in registers, where a table of byte strings follows a pointer for each word.

use hashbrown::HashMap;
use millstream_base::text::is_white_space;
use millstream_flow::{BoxError, Counts, PartialState};
use serde_json::Value;

/// Bytes that are examined together.
const WINDOW_BYTES: usize = 16;

/// The longest word that is a number.
const SHORT_BYTES_MAX: usize = WINDOW_BYTES - 1;

/// Counts of words: runs of bytes that are not [`is_white_space`].
#[derive(Debug, Default)]
pub struct WordCounts {
    short: HashMap<u128, u64>,
    long: Counts,
}

impl WordCounts {
    /// Counts the words of a line.
    #[inline]
    pub fn add_line(&mut self, line: &[u8]) {
        let rest = self.add_windows(line);
        if !rest.is_empty() {
            // White space after the line ends its last word, so that the loop sees the whole line.
            let mut padded = [b' '; 2 * WINDOW_BYTES];
            padded[..rest.len()].copy_from_slice(rest);
            self.add_windows(&padded);
        }
    }

    /// Counts words while there is a whole window; returns the rest.
    #[inline]
    fn add_windows<'a>(&mut self, mut rest: &'a [u8]) -> &'a [u8] {
        while let Some(window) = rest.first_chunk::<WINDOW_BYTES>() {
            let window = u128::from_le_bytes(*window);
            let white = white_space(window);
            // The first byte is the lowest.
            match (white.trailing_zeros() / 8) as usize {
                0 => {
                    let blanks = (white ^ HIGH_BITS).trailing_zeros() / 8;
                    rest = &rest[blanks as usize..];
                }
                WINDOW_BYTES => {
                    let end = rest.iter().position(is_white_space);
                    let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
                    self.long.add(word, 1);
                    rest = behind;
                }
                length => {
                    *self.short.entry(short(window, length)).or_default() += 1;
                    rest = &rest[length + 1..];
                }
            }
        }
        rest
    }

    /// The same counts, by the words' bytes.
    pub fn into_counts(self) -> Counts {
        let mut counts = self.long;
        for (key, count) in self.short {
            let bytes = key.to_le_bytes();
            counts.add(&bytes[..bytes[SHORT_BYTES_MAX].into()], count);
        }
        counts
    }

    fn get(&self, word: &[u8]) -> u64 {
        match short_word(word) {
            Some(key) => self.short.get(&key).copied().unwrap_or(0),
            None => self.long.get(word),
        }
    }
}

impl PartialState for WordCounts {
    fn merge(&mut self, part: &Self) {
        for (key, count) in &part.short {
            *self.short.entry(*key).or_default() += count;
        }
        self.long.merge(&part.long);
    }

    fn get(parts: &[&Self], word: &str) -> Option<Value> {
        let count: u64 = parts.iter().map(|part| part.get(word.as_bytes())).sum();
        (count > 0).then(|| count.into())
    }

    fn keys(parts: &[&Self], limit: usize) -> Vec<String> {
        let mut sum = WordCounts::default();
        for part in parts {
            sum.merge(part);
        }
        let counts = sum.into_counts();
        let words = counts.iter().take(limit);
        words
            .map(|(word, _)| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        let short: Vec<(u128, u64)> = self
            .short
            .iter()
            .map(|(word, count)| (*word, *count))
            .collect();
        Ok(postcard::to_stdvec(&(short, self.long.save()?))?)
    }

    fn restored(saved: &[u8]) -> Result<Self, BoxError> {
        let (short, long): (Vec<(u128, u64)>, Vec<u8>) = postcard::from_bytes(saved)?;
        Ok(WordCounts {
            short: short.into_iter().collect(),
            long: Counts::restored(&long)?,
        })
    }
}

/// The number of the word in the first `length` bytes of a window; at most [`SHORT_BYTES_MAX`].
#[inline]
fn short(window: u128, length: usize) -> u128 {
    let bytes = window & ((1 << (8 * length)) - 1);
    bytes | (length as u128) << (8 * SHORT_BYTES_MAX)
}

fn short_word(word: &[u8]) -> Option<u128> {
    let mut window = [0; WINDOW_BYTES];
    window[..SHORT_BYTES_MAX]
        .get_mut(..word.len())?
        .copy_from_slice(word);
    Some(short(u128::from_le_bytes(window), word.len()))
}

const fn repeated(byte: u8) -> u128 {
    u128::from_ne_bytes([byte; WINDOW_BYTES])
}

const HIGH_BITS: u128 = repeated(0x80);

/// The high bit of every byte that [`is_white_space`].
#[inline]
fn white_space(window: u128) -> u128 {
    // Of each byte the lower 7 bits, so that no sum carries over into the next byte.
    let low = window & !HIGH_BITS;
    let from_tab = low + repeated(0x80 - b'\t');
    let behind_return = low + repeated(0x80 - (b'\r' + 1));
    let no_space = (low ^ repeated(b' ')) + repeated(0x7f);
    ((from_tab & !behind_return) | !no_space) & !window & HIGH_BITS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(lines: &[Vec<u8>]) {
        let mut table = WordCounts::default();
        let mut expected = Counts::default();
        for line in lines {
            table.add_line(line);
            for word in line.split(is_white_space) {
                if !word.is_empty() {
                    expected.add(word, 1);
                }
            }
        }
        for (word, count) in expected.iter() {
            assert_eq!(table.get(word), count);
        }
        assert_eq!(table.into_counts(), expected);
    }

    proptest! {
        #[test]
        fn words_are_counted_as_a_simple_splitter_does(
            lines in prop::collection::vec(
                prop::collection::vec(
                    prop_oneof![Just(b' '), Just(b'a'), Just(0), 8u8..15, any::<u8>()],
                    0..100,
                ),
                0..10,
            ),
        ) {
            check(&lines);
        }
    }

    #[test]
    fn words_of_every_length_at_every_place() {
        for length in 0..40 {
            for before in 0..20 {
                let word = vec![b'x'; length];
                let blanks = vec![b'\t'; before];
                check(&[
                    [&blanks[..], &word].concat(),
                    [&blanks[..], &word, b"  y"].concat(),
                ]);
            }
        }
    }

    #[test]
    fn zero_bytes_are_part_of_words() {
        check(&[b"a a\0 a\0\0".to_vec()]);
    }
}
