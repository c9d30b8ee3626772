//! Words, and references to many of them.

use std::sync::Arc;

use bytes::Bytes;
use millstream_flow::Emit;

/// Words of a run at most: enough that handing it on costs little per word, few enough that the
/// references lie in the first cache together with what they point to.
const RUN_WORDS_MAX: usize = 1024;

/// The words of a text: the longest runs of bytes that are not [`u8::is_ascii_whitespace`].
pub fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

/// Some words of a block, where they stand. A clone is another reference to the same memory.
#[derive(Debug, Clone)]
pub struct WordRun {
    block: Bytes,
    spans: Arc<[Span]>,
}

/// Where in a block a word stands. Blocks are a few megabytes at most.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u32,
    len: u32,
}

impl WordRun {
    /// Hands on all words of a block, run by run; returns how many there are.
    pub fn split(block: &Bytes, emit: &mut Emit<WordRun>) -> u64 {
        let mut spans = Vec::with_capacity(RUN_WORDS_MAX);
        let mut count = 0;
        let mut emit = |spans: &mut Vec<Span>| {
            count += spans.len() as u64;
            emit(&WordRun {
                block: block.clone(),
                spans: spans.as_slice().into(),
            });
            spans.clear();
        };
        for word in words(block) {
            spans.push(Span {
                start: (word.as_ptr().addr() - block.as_ptr().addr()) as u32,
                len: word.len() as u32,
            });
            if spans.len() == RUN_WORDS_MAX {
                emit(&mut spans);
            }
        }
        if !spans.is_empty() {
            emit(&mut spans);
        }
        count
    }

    /// The words for which `keep` holds; `None` if there are none.
    pub fn filter(&self, keep: impl Fn(&[u8]) -> bool) -> Option<WordRun> {
        let word = |span: &Span| &self.block[span.start as usize..][..span.len as usize];
        let kept = self.spans.iter().filter(|span| keep(word(span)));
        let spans: Vec<Span> = kept.copied().collect();
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
