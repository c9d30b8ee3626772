//! The order between the pages of a snapshot of keys and the changes that arrive meanwhile.

use std::collections::HashMap;

use crate::ids::Offset;

/// Decides which changes a watch passes on while it reads a snapshot of one partition, page by page. So the watch shows the
/// versions of each key in their order, with the memory of one page:
///
/// - The watch begins before the first page is read, and each page has the newest versions of a moment behind that.
/// - A change of a key that was not read yet is dropped: the page with its key has this version, or a newer one.
/// - A change of a key in the last page is dropped if the page has this version, or a newer one.
/// - Before it reads the next page, the watch takes all changes up to the newest version of the last page. So for the keys of
///   earlier pages all further changes are news.
///
/// ```
/// use millstream_base::{KeySnapshot, Offset};
///
/// let mut snapshot = KeySnapshot::new();
/// assert!(!snapshot.passes(b"a", Offset(5)), "its page comes");
/// let page = [(&b"a"[..], Offset(7)), (b"b", Offset(2))];
/// // The watch is at offset 5, and takes all changes before offset 8 before it reads the page that begins with `c`.
/// assert_eq!(snapshot.add_page(Offset(5), page, Some(b"c".to_vec())), Offset(8));
/// assert!(!snapshot.passes(b"a", Offset(7)) && snapshot.passes(b"b", Offset(6)));
/// assert!(!snapshot.passes(b"c", Offset(6)));
/// ```
#[derive(Debug)]
pub struct KeySnapshot {
    /// The first key that was not read; `None` once all were read.
    next: Option<Vec<u8>>,
    /// The versions in the last page that the watch has not passed.
    newest: HashMap<Vec<u8>, Offset>,
}

impl KeySnapshot {
    /// A snapshot before its first page.
    pub fn new() -> KeySnapshot {
        KeySnapshot {
            next: Some(Vec::new()),
            newest: HashMap::new(),
        }
    }

    /// Takes note of a page, behind which the key `next` comes. The watch is at `position`. Returns the position that it must
    /// have reached before the next page is read, or before the snapshot counts as complete.
    pub fn add_page<'k>(
        &mut self,
        position: Offset,
        page: impl IntoIterator<Item = (&'k [u8], Offset)>,
        next: Option<Vec<u8>>,
    ) -> Offset {
        let ahead = page
            .into_iter()
            .filter(|(_, version)| *version >= position)
            .map(|(key, version)| (key.to_vec(), version));
        self.newest = ahead.collect();
        self.next = next;
        let newest = self.newest.values().max();
        newest.map_or(position, |newest| newest.plus(1))
    }

    /// Returns whether a change is passed on.
    pub fn passes(&self, key: &[u8], version: Offset) -> bool {
        let is_read = self.next.as_deref().is_none_or(|next| key < next);
        is_read && self.newest.get(key).is_none_or(|newest| version > *newest)
    }

    /// Returns whether all pages were read.
    pub fn is_read(&self) -> bool {
        self.next.is_none()
    }

    /// Returns the first key of the next page; `None` once all pages were read.
    pub fn next(&self) -> Option<&[u8]> {
        self.next.as_deref()
    }
}

impl Default for KeySnapshot {
    fn default() -> Self {
        KeySnapshot::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A key, and whether it gets a value.
    type Change = (u8, bool);

    /// The newest version of each key before an offset.
    fn table(log: &[Change], until: usize) -> BTreeMap<u8, Option<u64>> {
        let mut table = BTreeMap::new();
        for (offset, (key, is_put)) in (0..).zip(&log[..until]) {
            table.insert(*key, is_put.then_some(offset));
        }
        table
    }

    /// Reads pages of two keys while the log grows, and folds the changes that pass.
    fn run(log: &[Change], begin: usize, grows: &[usize]) {
        let mut grows = grows.iter().copied();
        let (mut snapshot, mut position, mut end) = (KeySnapshot::new(), begin, begin);
        let mut folded: BTreeMap<u8, u64> = BTreeMap::new();
        let mut seen: BTreeMap<u8, u64> = BTreeMap::new();
        let mut take = |snapshot: &KeySnapshot, folded: &mut BTreeMap<u8, u64>, offset: usize| {
            let ((key, is_put), version) = (log[offset], offset as u64);
            if !snapshot.passes(&[key], Offset(version)) {
                return;
            }
            assert!(seen.insert(key, version).is_none_or(|last| last < version));
            assert!(folded.get(&key).is_none_or(|last| *last < version));
            match is_put {
                true => folded.insert(key, version),
                false => folded.remove(&key),
            };
        };
        while let Some(from) = snapshot.next().map(<[u8]>::to_vec) {
            end = (end + grows.next().unwrap_or(0)).min(log.len());
            let from = from.first().copied().unwrap_or(0);
            let now = table(log, end);
            let mut live = now
                .range(from..)
                .filter_map(|(key, version)| Some((*key, (*version)?)));
            let page: Vec<(u8, u64)> = live.by_ref().take(2).collect();
            let next = live.next().map(|(key, _)| vec![key]);
            let keys: Vec<[u8; 1]> = page.iter().map(|(key, _)| [*key]).collect();
            let entries = keys.iter().zip(&page);
            let entries = entries.map(|(key, (_, version))| (&key[..], Offset(*version)));
            let until = snapshot.add_page(Offset(position as u64), entries, next);
            for (key, version) in page {
                assert!(folded.insert(key, version).is_none());
            }
            // More may be delivered than must be.
            let until = (until.0 as usize).max(position + grows.next().unwrap_or(0));
            while position < until.min(end) {
                take(&snapshot, &mut folded, position);
                position += 1;
            }
        }
        for offset in position..log.len() {
            take(&snapshot, &mut folded, offset);
        }
        let expected = table(log, log.len()).into_iter();
        let expected: BTreeMap<u8, u64> = expected
            .filter_map(|(key, version)| Some((key, version?)))
            .collect();
        assert_eq!(folded, expected);
    }

    proptest! {
        #[test]
        fn a_snapshot_and_its_changes_fold_to_the_table_in_order(
            log in prop::collection::vec((0_u8..8, any::<bool>()), 0..80),
            begin in any::<prop::sample::Index>(),
            grows in prop::collection::vec(0_usize..12, 0..12),
        ) {
            run(&log, begin.index(log.len() + 1), &grows);
        }
    }
}
