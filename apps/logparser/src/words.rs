//! References to many words.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use millstream_flow::Emit;

use crate::split::for_each_word;

/// Words of a run at most: enough that handing it on costs little per word, few enough that the
/// references lie in the first cache together with what they point to.
const RUN_WORDS_MAX: usize = 1024;

/// Some words of a block, where they stand. A clone is another reference to the same memory.
#[derive(Debug, Clone)]
pub struct WordRun {
    block: Bytes,
    spans: Arc<Vec<Span>>,
}

/// Where in a block a word starts and ends. Blocks are a few megabytes at most.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

impl WordRun {
    /// Hands on all words of a block, run by run; returns how many there are.
    pub fn split(block: &Bytes, emit: &mut Emit<WordRun>) -> u64 {
        let mut spans = Vec::with_capacity(RUN_WORDS_MAX);
        let mut count = 0;
        let mut emit = |spans: &mut Vec<Span>| {
            count += spans.len() as u64;
            let next = Vec::with_capacity(RUN_WORDS_MAX);
            emit(&WordRun {
                block: block.clone(),
                spans: mem::replace(spans, next).into(),
            });
        };
        for_each_word(block, |word| {
            let start = (word.as_ptr().addr() - block.as_ptr().addr()) as u32;
            spans.push(Span {
                start,
                end: start + word.len() as u32,
            });
            if spans.len() == RUN_WORDS_MAX {
                emit(&mut spans);
            }
        });
        if !spans.is_empty() {
            emit(&mut spans);
        }
        count
    }

    /// The words for which `keep` holds; `None` if there are none.
    pub fn filter(&self, keep: impl Fn(&[u8]) -> bool) -> Option<WordRun> {
        let block = &self.block[..];
        let mut spans = Vec::with_capacity(RUN_WORDS_MAX / 8);
        for span in self.spans.iter() {
            let (start, end) = (span.start as usize, span.end as usize);
            if keep(&block[start..end]) {
                spans.push(*span);
            }
        }
        (!spans.is_empty()).then(|| WordRun {
            block: self.block.clone(),
            spans: spans.into(),
        })
    }

    /// How many words there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }
}
