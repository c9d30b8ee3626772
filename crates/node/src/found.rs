//! Keys by their secondary keys, over all partitions.

use millstream_log::{KeyRange, LogError, SecondaryPosition, StreamPartition};
use millstream_serve::{FoundPage, FoundPlace, KeyedValue};

use crate::keyed::{PAGE_BYTES, keyed_value};

/// Returns the first keys that have secondary keys of these ranges, over all partitions.
pub fn found(
    partitions: &[StreamPartition],
    index: &str,
    ranges: &[KeyRange],
    from: Option<FoundPlace>,
    limit: usize,
) -> Result<FoundPage, LogError> {
    let bytes_max = PAGE_BYTES / partitions.len().max(1);
    let from = from.map(|from| SecondaryPosition {
        secondary: from.secondary,
        key: from.key,
    });
    let mut page = FoundPage {
        entries: Vec::new(),
        next: None,
    };
    for partition in partitions {
        let scan = partition.find_in(index, ranges, from.as_ref(), limit, bytes_max)?;
        let entries = scan.entries.into_iter().map(|entry| {
            let place = place(entry.secondary, entry.key);
            (place, keyed_value(partition.index(), entry.version))
        });
        page.entries.extend(entries);
        let next = scan.next.map(|next| place(next.secondary, next.key));
        page.next = page.next.take().into_iter().chain(next).min();
        shorten(&mut page, limit);
    }
    Ok(page)
}

fn place(secondary: Vec<u8>, key: Vec<u8>) -> FoundPlace {
    FoundPlace { secondary, key }
}

/// Leaves out keys from the next page's first one on, then more until there are at most `limit` and about [`PAGE_BYTES`], but at
/// least one. Another partition may have keys between those that it leaves out.
fn shorten(page: &mut FoundPage, limit: usize) {
    page.entries
        .sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let is_before = |place: &FoundPlace| page.next.as_ref().is_none_or(|next| place < next);
    let before = page.entries.partition_point(|(place, _)| is_before(place));
    page.entries.truncate(before);
    let mut bytes = 0;
    let fitting = page
        .entries
        .iter()
        .take(limit)
        .take_while(|(place, value)| {
            bytes += bytes_of(place, value);
            bytes <= PAGE_BYTES
        });
    let count = fitting.count().max(1);
    if count < page.entries.len() {
        page.next = Some(page.entries[count].0.clone());
        page.entries.truncate(count);
    }
}

fn bytes_of(place: &FoundPlace, value: &KeyedValue) -> usize {
    place.secondary.len() + place.key.len() + value.value.len()
}
