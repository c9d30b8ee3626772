//! The records that were returned, and whether they could be read.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use millstream_base::Offset;

use super::fetched::Fetched;
use crate::offsets::TopicPartition;
use crate::push::Torn;

/// The records returned last, and earlier ones that the user still holds in the server's memory.
#[derive(Debug, Default)]
pub(super) struct DeliveredRecords {
    /// The partition and the offset behind the last records; they count as done at the next call.
    last: Option<(TopicPartition, Offset)>,
    pinned: Vec<Pinned>,
}

#[derive(Debug)]
struct Pinned {
    place: TopicPartition,
    from: Offset,
    /// Set when a read finds that the server has taken the memory back. Shared with the records returned.
    torn: Arc<OnceLock<Torn>>,
}

impl Pinned {
    fn is_torn(&self) -> bool {
        self.torn.get().is_some()
    }

    fn is_done(&self) -> bool {
        Arc::strong_count(&self.torn) == 1
    }
}

impl DeliveredRecords {
    pub fn add(&mut self, fetched: &Fetched) {
        self.last = Some((fetched.place.clone(), fetched.next));
        if let Some(torn) = fetched.torn() {
            self.pinned.push(Pinned {
                place: fetched.place.clone(),
                from: fetched.from,
                torn,
            });
        }
    }

    /// Moves positions past the records returned last, and back to records that could not be read. Returns the reason
    /// if there were any: the consumer has to return these again.
    pub fn settle(&mut self, positions: &mut BTreeMap<TopicPartition, Offset>) -> Option<Torn> {
        if let Some((place, next)) = self.last.take()
            && let Some(position) = positions.get_mut(&place)
        {
            *position = next;
        }
        self.move_back(positions)
    }

    /// Moves positions as [`settle`](Self::settle) would.
    pub fn seen_from(&self, positions: &mut BTreeMap<TopicPartition, Offset>) {
        positions.extend(self.last.clone());
        for pinned in self.pinned.iter().filter(|pinned| pinned.is_torn()) {
            lower(positions, pinned);
        }
    }

    /// Drops the notes on a partition that the user repositions; returns whether its records must be read again from
    /// there.
    pub fn forget(&mut self, place: &TopicPartition) -> bool {
        self.last.take_if(|(last, _)| last == place);
        let mut has_torn = false;
        self.pinned.retain(|pinned| {
            let is_of_place = pinned.place == *place;
            has_torn |= is_of_place && pinned.is_torn();
            !is_of_place
        });
        has_torn
    }

    fn move_back(&mut self, positions: &mut BTreeMap<TopicPartition, Offset>) -> Option<Torn> {
        let mut why = None;
        self.pinned.retain(|pinned| {
            let torn = pinned.torn.get().copied();
            if torn.is_some() {
                lower(positions, pinned);
            }
            why = why.max(torn);
            torn.is_none() && !pinned.is_done()
        });
        why
    }
}

fn lower(positions: &mut BTreeMap<TopicPartition, Offset>, pinned: &Pinned) {
    if let Some(position) = positions.get_mut(&pinned.place) {
        *position = (*position).min(pinned.from);
    }
}
