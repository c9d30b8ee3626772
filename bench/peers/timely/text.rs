//! Reads a part of a file in pieces that cut no word.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process;

use crate::Place;
use crate::split::for_each_word;

/// Fits into the cache of a core together with the places of its words.
const PIECE_BYTES: usize = 128 << 10;

/// A part of a file that starts and ends where no word is cut.
pub struct Text {
    file: File,
    position: u64,
    end: u64,
}

impl Text {
    /// One of `parts` parts of about the same size.
    pub fn part(path: &Path, index: usize, parts: usize) -> io::Result<Text> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let border = |index: usize| gap_at_or_after(&file, len * index as u64 / parts as u64, len);
        let (position, end) = (border(index)?, border(index + 1)?);
        Ok(Text {
            file,
            position,
            end,
        })
    }

    /// Whole words; nothing at the end. Ends the program when the file cannot be read, since an
    /// operator has no way to report it.
    pub fn next_piece(&mut self) -> Option<Vec<u8>> {
        self.read_piece().unwrap_or_else(|error| {
            eprintln!("timely: cannot read the file: {error}");
            process::exit(1);
        })
    }

    fn read_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        let left = (self.end - self.position) as usize;
        if left == 0 {
            return Ok(None);
        }
        // A piece without a gap is part of a very long word: then a larger one is read.
        let mut size = PIECE_BYTES;
        loop {
            let mut piece = vec![0; size.min(left)];
            self.file.read_exact_at(&mut piece, self.position)?;
            if piece.len() < left {
                let gap = piece.iter().rposition(u8::is_ascii_whitespace);
                piece.truncate(gap.map_or(0, |gap| gap + 1));
            }
            if !piece.is_empty() {
                self.position += piece.len() as u64;
                return Ok(Some(piece));
            }
            size *= 2;
        }
    }
}

/// The first position from `position` on where no word can be cut: the file's start, its end, or
/// that of white space.
fn gap_at_or_after(file: &File, mut position: u64, len: u64) -> io::Result<u64> {
    if position == 0 {
        return Ok(0);
    }
    let mut buffer = [0; 4096];
    while position < len {
        let read = file.read_at(&mut buffer, position)?;
        match buffer[..read].iter().position(u8::is_ascii_whitespace) {
            Some(gap) => return Ok(position + gap as u64),
            None if read == 0 => break,
            None => position += read as u64,
        }
    }
    Ok(len)
}

/// The place of every word; a piece is shorter than 4 GiB unless a word is not.
pub fn places_of_words(text: &[u8]) -> Vec<Place> {
    // English has a word in 6 bytes.
    let mut places = Vec::with_capacity(text.len() / 5);
    for_each_word(text, |word| {
        let start = (word.as_ptr().addr() - text.as_ptr().addr()) as u32;
        places.push((start, start + word.len() as u32));
    });
    places
}
