//! The places of rows in an ordered map: a row is known by its serialized bytes, and lies at a place that has their hash, and a
//! number among the rows with this hash.

use millstream_base::murmur2;
use serde::Serialize;

use crate::state::ordered_maps::OrderedMapOf;
use crate::state::values::Value;
use crate::windows::Key;

/// The bytes of a row, and their hash.
pub struct RowBytes {
    bytes: Vec<u8>,
    pub hash: u32,
}

/// An entry that may have a row.
pub trait HasRow {
    type Row: Serialize;

    fn row(&self) -> Option<&Self::Row>;
}

impl RowBytes {
    pub fn of<T: Serialize>(row: &T) -> RowBytes {
        let bytes = bytes_of(row);
        let hash = murmur2(&bytes);
        RowBytes { bytes, hash }
    }

    fn are_of<V: HasRow>(&self, entry: &V) -> bool {
        entry.row().is_some_and(|row| bytes_of(row) == self.bytes)
    }

    /// Returns the place of the row, or a free one for it. `place` makes the place of a number. Equal rows may lie at two places,
    /// if there was another row with their hash in between: they count at both.
    pub fn place_for<K: Key, F: Key, V: Value + HasRow>(
        &self,
        rows: &OrderedMapOf<'_, K, F, V>,
        place: impl Fn(u32) -> F,
    ) -> F {
        let places = (0..).map(place);
        let is_taken = |place: &F| rows.get(place).is_some_and(|entry| !self.are_of(entry));
        let mut free = places.skip_while(is_taken);
        free.next().expect("there are fewer rows than numbers")
    }

    /// Returns a place at which the row is.
    pub fn find<K: Key, F: Key, V: Value + HasRow>(
        &self,
        rows: &OrderedMapOf<'_, K, F, V>,
        place: impl Fn(u32) -> F,
    ) -> Option<F> {
        let mut same = rows.range(place(0)..=place(u32::MAX));
        let found = same.find(|(_, entry)| self.are_of(*entry));
        found.map(|(place, _)| place.clone())
    }
}

fn bytes_of<T: Serialize>(row: &T) -> Vec<u8> {
    // A row that cannot be serialized could not have come here.
    postcard::to_stdvec(row).expect("the row was serialized before")
}
