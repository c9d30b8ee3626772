//! Merges key files: the newest record of each key in several groups.

use super::read::{KeyCursor, ReadBytes};
use super::{KeyFileError, Version};

/// Walks over the keys of several cursors, in their order.
pub struct KeyMerge<'a, F: ReadBytes + ?Sized> {
    /// A heap of cursors that are not at their end: each comes before the two below it.
    cursors: Vec<KeyCursor<'a, F>>,
    key: Vec<u8>,
}

impl<'a, F: ReadBytes + ?Sized> KeyMerge<'a, F> {
    /// Merges the keys of cursors from where they are on.
    pub fn new(mut cursors: Vec<KeyCursor<'a, F>>) -> KeyMerge<'a, F> {
        cursors.retain(|cursor| cursor.version().is_some());
        let mut merge = KeyMerge {
            cursors,
            key: Vec::new(),
        };
        for place in (0..merge.cursors.len() / 2).rev() {
            merge.sift_down(place);
        }
        merge
    }

    /// Moves on to the next key. Returns its newest record; `None` behind the last key.
    ///
    /// # Errors
    /// When a block is damaged or cannot be read.
    pub fn advance(&mut self) -> Result<Option<Version>, KeyFileError> {
        let Some(first) = self.cursors.first() else {
            return Ok(None);
        };
        let newest = first.version();
        self.key.clear();
        self.key.extend_from_slice(first.key());
        // Passes over the older records of the key, too.
        while let Some(first) = self.cursors.first_mut()
            && first.key() == self.key
        {
            first.advance()?;
            if first.version().is_none() {
                self.cursors.swap_remove(0);
            }
            self.sift_down(0);
        }
        Ok(newest)
    }

    /// The file that the next keys come from: after an error, the one that cannot be read.
    pub fn file(&self) -> Option<&'a F> {
        self.cursors.first().map(KeyCursor::file)
    }

    /// The key of the last record that was returned.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Moves the cursor at a place down until it comes before those below it.
    fn sift_down(&mut self, mut place: usize) {
        loop {
            let below = 2 * place + 1..(2 * place + 3).min(self.cursors.len());
            let first = below.min_by(|a, b| self.order(*a).cmp(&self.order(*b)));
            match first {
                Some(first) if self.order(first) < self.order(place) => {
                    self.cursors.swap(place, first);
                    place = first;
                }
                _ => return,
            }
        }
    }

    /// Smaller keys come first, and of a key the newer records.
    fn order(&self, place: usize) -> (&[u8], std::cmp::Reverse<u64>) {
        let cursor = &self.cursors[place];
        let offset = cursor.version().map_or(0, |version| version.offset.0);
        (cursor.key(), std::cmp::Reverse(offset))
    }
}
