//! A made-up text whose words programs count.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

use crate::folder::Folder;

/// Words that start with this are counted.
pub const PREFIX: &[u8] = b"a";

/// Different words.
const WORDS: usize = 20_000;

const LINE_WORDS_MAX: usize = 64;

/// How often in English text a word begins with each letter from `a` on, and how often each letter
/// occurs, in thousandths.
const FIRST_LETTERS: [u16; 26] = [
    117, 44, 52, 32, 28, 40, 16, 42, 73, 5, 9, 24, 38, 23, 76, 43, 2, 28, 67, 160, 12, 8, 55, 1,
    16, 1,
];
const LETTERS: [u16; 26] = [
    82, 15, 28, 43, 127, 22, 20, 61, 70, 2, 8, 40, 24, 67, 75, 19, 1, 60, 63, 91, 28, 10, 24, 2,
    20, 1,
];

/// The counts of a text.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Words that start with the prefix.
    pub count: u64,
    /// All words.
    pub words: u64,
}

impl Counted {
    /// Returns the counts in `passes` passes.
    pub fn times(self, passes: u64) -> Counted {
        Counted {
            count: self.count * passes,
            words: self.words * passes,
        }
    }

    /// Adds both.
    pub fn plus(self, other: Counted) -> Counted {
        Counted {
            count: self.count + other.count,
            words: self.words + other.words,
        }
    }
}

/// A file of words, and their counts.
pub struct Text {
    pub path: PathBuf,
    pub bytes: u64,
    pub expected: Counted,
    _folder: Folder,
}

impl Text {
    /// Writes lines of made-up words, which are as long and as frequent as those of a language: the word with rank r
    /// occurs about 1/r as often as the first. The text is always the same.
    pub fn of_words(folder: Folder, bytes: u64) -> Result<Text> {
        let mut random = Rng::with_seed(1);
        let words = Words::new(&mut random);
        Text::write(folder, bytes, |line| {
            let count = random.usize(1..=LINE_WORDS_MAX);
            for n in 0..count {
                line.extend_from_slice(words.any(&mut random));
                match random.u8(..16) {
                    0 => line.push(b','),
                    1 => line.push(b'.'),
                    _ => {}
                }
                line.push(if n + 1 < count { b' ' } else { b'\n' });
            }
        })
    }

    /// Writes the same line again and again.
    pub fn of_one_line(folder: Folder, bytes: u64) -> Result<Text> {
        Text::write(folder, bytes, |line| {
            line.extend_from_slice(
                b"all that the mill asks of a stream is that it runs and runs\n",
            );
        })
    }

    /// Writes lines that `add` makes, until there are `bytes_min` bytes.
    fn write(folder: Folder, bytes_min: u64, mut add: impl FnMut(&mut Vec<u8>)) -> Result<Text> {
        let path = folder.path().join("text");
        let file = File::create(&path).with_context(|| format!("cannot create {path:?}"))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let mut line = Vec::new();
        let mut bytes = 0;
        let mut expected = Counted::default();
        while bytes < bytes_min {
            line.clear();
            add(&mut line);
            bytes += line.len() as u64;
            // White space stands only behind a word here.
            let starts = [&b" "[..], &line[..line.len() - 1]].concat();
            for pair in starts.windows(2).filter(|pair| pair[0] == b' ') {
                expected.words += 1;
                expected.count += u64::from(pair[1..] == *PREFIX);
            }
            file.write_all(&line)?;
        }
        file.flush()?;
        Ok(Text {
            path,
            bytes,
            expected,
            _folder: folder,
        })
    }

    /// Checks that the words were counted right, in `passes` passes over the text.
    pub fn check(&self, counted: Counted, passes: usize) -> Result<()> {
        let expected = self.expected.times(passes as u64);
        ensure!(counted == expected, "counted {counted:?} of {expected:?}");
        Ok(())
    }

    /// Returns the file's path `passes` times.
    pub fn paths(&self, passes: usize) -> impl Iterator<Item = &Path> {
        std::iter::repeat_n(self.path.as_path(), passes)
    }
}

/// Made-up words.
pub struct Words {
    words: Vec<Vec<u8>>,
    ranks: Vec<usize>,
}

impl Words {
    pub fn new(random: &mut Rng) -> Words {
        let words = (0..WORDS).map(|rank| word(rank, random)).collect();
        // A rank whose logarithm is anything with the same chance occurs as often as its inverse.
        let ranks = (0..1 << 16)
            .map(|n| (WORDS as f64).powf(f64::from(n) / f64::from(1 << 16)) as usize - 1)
            .collect();
        Words { words, ranks }
    }

    /// Some word, the frequent ones more often.
    pub fn any(&self, random: &mut Rng) -> &[u8] {
        &self.words[self.ranks[random.usize(..self.ranks.len())]]
    }
}

/// Frequent words are short.
fn word(rank: usize, random: &mut Rng) -> Vec<u8> {
    let len = 1 + ((rank + 1) as f64).ln().div_euclid(2.0) as usize + random.usize(..4);
    let first = letter(&FIRST_LETTERS, random);
    let others = (1..len).map(|_| letter(&LETTERS, random));
    std::iter::once(first).chain(others).collect()
}

fn letter(frequencies: &[u16; 26], random: &mut Rng) -> u8 {
    let mut at = random.u16(..frequencies.iter().sum::<u16>());
    for (letter, frequency) in (b'a'..=b'z').zip(frequencies) {
        match at.checked_sub(*frequency) {
            Some(rest) => at = rest,
            None => return letter,
        }
    }
    b'z'
}
