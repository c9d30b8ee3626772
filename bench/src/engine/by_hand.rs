//! The log parser by hand: a loop in each of some threads.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};

use crate::measure::{Took, time};
use crate::text::{Counted, PREFIX, Text};

/// As much as the flow reads at a time: it stays in a core's cache.
const RANGE_BYTES: u64 = 128 << 10;

/// Read behind a range at first, to reach the end of its last word.
const OVERHANG_BYTES: u64 = 256;

/// Counts the words of the text, rightly.
pub fn run(text: &Text, threads: usize) -> Result<Took> {
    time(|| {
        let progress = AtomicU64::new(0);
        text.check(count(text.paths(1), threads, &progress)?, 1)
    })
}

/// Counts words in some files; `progress` has the bytes that are done.
pub fn count<'p>(
    paths: impl Iterator<Item = &'p Path>,
    threads: usize,
    progress: &AtomicU64,
) -> Result<Counted> {
    let files = paths.map(Ranges::open).collect::<io::Result<Vec<_>>>()?;
    let work = || {
        let mut buffer = Vec::new();
        let mut counted = Counted::default();
        for file in &files {
            while let Some(range) = file.next() {
                let found = count_in(file.words_of(range, &mut buffer)?);
                counted = counted.plus(found);
                progress.fetch_add(file.range_bytes(range), Ordering::Relaxed);
            }
        }
        anyhow::Ok(counted)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut counted = Counted::default();
        for thread in threads {
            let part = thread.join();
            let part = part.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            counted = counted.plus(part?);
        }
        Ok(counted)
    })
}

fn count_in(text: &[u8]) -> Counted {
    // As for the flow, the prefix could be any.
    let prefix = black_box(PREFIX);
    let mut counted = Counted::default();
    for_each_word(text, |word| {
        counted.words += 1;
        // To compare slices of any length takes a call: most words need none.
        let may_start = word.first() == prefix.first() || prefix.is_empty();
        counted.count += u64::from(may_start && word.starts_with(prefix));
    });
    counted
}

/// Hands on the words of a text. White space is looked for in 64 bytes at once, which compilers turn
/// into few instructions, and then only the places where it is are gone through.
fn for_each_word(text: &[u8], mut each: impl FnMut(&[u8])) {
    let mut start = 0;
    let (blocks, rest) = text.as_chunks::<64>();
    for (number, block) in blocks.iter().enumerate() {
        let mut gaps = white_space_in(block);
        while gaps != 0 {
            let end = 64 * number + gaps.trailing_zeros() as usize;
            if start < end {
                each(&text[start..end]);
            }
            start = end + 1;
            gaps &= gaps - 1;
        }
    }
    let rest_at = text.len() - rest.len();
    for (at, byte) in rest.iter().enumerate() {
        if byte.is_ascii_whitespace() {
            if start < rest_at + at {
                each(&text[start..rest_at + at]);
            }
            start = rest_at + at + 1;
        }
    }
    if start < text.len() {
        each(&text[start..]);
    }
}

/// A bit for each byte, from the lowest on: whether it is white space.
fn white_space_in(block: &[u8; 64]) -> u64 {
    /// Multiplied with eight bytes of which each is 0 or 1, it gathers them in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let is_white_space = block.map(|byte| u8::from(byte.is_ascii_whitespace()));
    let (eights, _) = is_white_space.as_chunks::<8>();
    let bytes = eights.iter().map(|eight| {
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(GATHER);
        (gathered >> 56) as u8
    });
    let mut mask = [0; 8];
    for (to, byte) in mask.iter_mut().zip(bytes) {
        *to = byte;
    }
    u64::from_le_bytes(mask)
}

/// A file in ranges, of which each is taken once.
struct Ranges {
    file: File,
    len: u64,
    next: AtomicUsize,
}

impl Ranges {
    fn open(path: &Path) -> io::Result<Ranges> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Ranges {
            file,
            len,
            next: AtomicUsize::new(0),
        })
    }

    fn next(&self) -> Option<u64> {
        let range = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        (range * RANGE_BYTES < self.len).then_some(range)
    }

    fn range_bytes(&self, range: u64) -> u64 {
        RANGE_BYTES.min(self.len - range * RANGE_BYTES)
    }

    /// The words that begin in a range.
    fn words_of<'b>(&self, range: u64, buffer: &'b mut Vec<u8>) -> Result<&'b [u8]> {
        let start = range * RANGE_BYTES;
        let end = start + self.range_bytes(range);
        // The byte before shows whether a word begins with the range.
        let read_from = start.saturating_sub(1);
        let in_range = (end - read_from) as usize;
        let gap = |bytes: &[u8]| bytes.iter().position(u8::is_ascii_whitespace);
        let mut overhang = OVERHANG_BYTES;
        loop {
            let read_to = self.len.min(end + overhang);
            let read = (read_to - read_from) as usize;
            buffer.resize(buffer.len().max(read), 0);
            self.file.read_exact_at(&mut buffer[..read], read_from)?;
            // The range ends with the word that its last byte belongs to.
            let words_end = match gap(&buffer[in_range - 1..read]) {
                Some(at) => in_range - 1 + at,
                None if read_to == self.len => read,
                None => {
                    overhang *= 2;
                    continue;
                }
            };
            let words_start = match range {
                0 => 0,
                // A word that is longer than the range belongs to an earlier one.
                _ => gap(&buffer[..words_end]).unwrap_or(words_end),
            };
            ensure!(words_start <= words_end, "a range without an end");
            return Ok(&buffer[words_start..words_end]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loop against the dumbest count, where ranges cut words, gaps, and words longer than they
    /// are.
    #[test]
    fn words_are_counted_once_wherever_ranges_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let range = RANGE_BYTES as usize;
        let texts = [
            Vec::new(),
            b" \n a".to_vec(),
            b"an apple\r\n\tand a pear ".repeat(30_000),
            [b"b ".repeat(range / 2), b"a a".to_vec()].concat(),
            [b"a".repeat(range), b" a ".to_vec(), b"a".repeat(3 * range)].concat(),
            [b" ".repeat(range - 1), b"ab".repeat(range), b" a".to_vec()].concat(),
        ];
        for (number, text) in texts.iter().enumerate() {
            std::fs::write(&path, text).unwrap();
            let text = [b" ", &text[..]].concat();
            let starts = text
                .windows(2)
                .filter(|pair| pair[0].is_ascii_whitespace() && !pair[1].is_ascii_whitespace());
            let expected = Counted {
                count: starts.clone().filter(|pair| pair[1] == b'a').count() as u64,
                words: starts.count() as u64,
            };
            for threads in [1, 2] {
                let progress = AtomicU64::new(0);
                let paths = std::iter::once(path.as_path());
                let found = count(paths, threads, &progress).unwrap();
                assert_eq!(found, expected, "text {number}, {threads} threads");
                assert_eq!(progress.into_inner(), text.len() as u64 - 1);
            }
        }
    }
}
