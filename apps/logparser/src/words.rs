//! References to many words.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::split::white_space_in;

/// Bytes whose white space is found in one step.
const STEP: usize = u64::BITS as usize;

/// All words of a block: the block, and the positions of its white space. The positions take an eighth of the
/// block, much less than a reference to each word. A clone is another reference to the same memory.
#[derive(Debug, Clone)]
pub struct BlockWords {
    block: Bytes,
    /// One bit for each byte of the block, 64 to a number, from the lowest on: whether it is white
    /// space. The bytes behind the end of the block count as white space.
    white_space: Arc<Vec<u64>>,
}

/// Some words of a block, in place. A clone is another reference to the same memory.
#[derive(Debug, Clone)]
pub struct SomeWords {
    block: Bytes,
    /// Blocks are a few megabytes at most.
    spans: Arc<Vec<Range<u32>>>,
}

impl BlockWords {
    /// Finds the words of a block.
    pub fn find(block: &Bytes) -> Self {
        let (steps, rest) = block.as_chunks::<STEP>();
        let mut white_space = Vec::with_capacity(block.len().div_ceil(STEP));
        white_space.extend(steps.iter().map(white_space_in));
        if !rest.is_empty() {
            let mut last = [b' '; STEP];
            last[..rest.len()].copy_from_slice(rest);
            white_space.push(white_space_in(&last));
        }
        BlockWords {
            block: block.clone(),
            white_space: white_space.into(),
        }
    }

    /// Returns the number of words.
    pub fn len(&self) -> u64 {
        let mut is_after_gap = 1;
        let starts = self.white_space.iter().map(|gaps| {
            let starts = !gaps & (gaps << 1 | is_after_gap);
            is_after_gap = gaps >> (STEP - 1);
            u64::from(starts.count_ones())
        });
        starts.sum()
    }

    /// Returns the words for which `keep` holds; `None` if there are none.
    pub fn filter(&self, keep: impl Fn(&[u8]) -> bool) -> Option<SomeWords> {
        let block = &self.block[..];
        let mut spans = Vec::new();
        let mut start = 0;
        let mut end_at = |end: usize| {
            if start < end && keep(&block[start..end]) {
                spans.push(start as u32..end as u32);
            }
            start = end + 1;
        };
        for (number, gaps) in self.white_space.iter().enumerate() {
            let mut gaps = *gaps;
            while gaps != 0 {
                end_at(STEP * number + gaps.trailing_zeros() as usize);
                gaps &= gaps - 1;
            }
        }
        end_at(block.len());
        (!spans.is_empty()).then(|| SomeWords {
            block: self.block.clone(),
            spans: spans.into(),
        })
    }
}

impl SomeWords {
    /// Returns the words, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let spans = self.spans.iter();
        spans.map(|span| &self.block[span.start as usize..span.end as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::for_each_word;

    #[test]
    fn white_space_separates_the_words_of_a_block() {
        let pieces: [&[u8]; 7] = [b"", b"a", b" ", b"bc\r\n", b"\tdef", b"x y", &[b'w'; 64]];
        for first in pieces {
            for second in pieces {
                for filler in [0, 1, 57, 60, 62, 63, 64, 128] {
                    let text = [first, &vec![b'-'; filler], second, first].concat();
                    let gaps = text.split(u8::is_ascii_whitespace);
                    let expected: Vec<&[u8]> = gaps.filter(|word| !word.is_empty()).collect();
                    let mut found = Vec::new();
                    for_each_word(&text, |word| found.push(word));
                    assert_eq!(found, expected, "{text:?}");
                    let words = BlockWords::find(&Bytes::copy_from_slice(&text));
                    assert_eq!(words.len(), expected.len() as u64, "{text:?}");
                    let all = words.filter(|_| true);
                    let all: Vec<&[u8]> = all.iter().flat_map(SomeWords::iter).collect();
                    assert_eq!(all, expected, "{text:?}");
                    assert!(words.filter(|_| false).is_none());
                }
            }
        }
    }
}
