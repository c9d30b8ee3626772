//! The records that were handed out, and whether they could be read.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use millstream_base::Offset;

use super::fetched::Fetched;
use crate::offsets::TopicPartition;
use crate::push::Torn;

/// The records handed out last, and earlier ones that the user still keeps in the server's memory.
#[derive(Debug, Default)]
pub(super) struct HandedOut {
    /// The partition and the offset behind the last records; they count as done at the next call.
    last: Option<(TopicPartition, Offset)>,
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    place: TopicPartition,
    from: Offset,
    /// Set when a read finds that the server has taken the memory back. Shared with the records handed out.
    torn: Arc<OnceLock<Torn>>,
}

impl Kept {
    fn is_torn(&self) -> bool {
        self.torn.get().is_some()
    }

    fn is_done(&self) -> bool {
        Arc::strong_count(&self.torn) == 1
    }
}

impl HandedOut {
    pub fn add(&mut self, fetched: &Fetched) {
        self.last = Some((fetched.place.clone(), fetched.next));
        if let Some(torn) = fetched.torn() {
            self.kept.push(Kept {
                place: fetched.place.clone(),
                from: fetched.from,
                torn,
            });
        }
    }

    /// Moves positions past the records handed out last, and back to records that could not be read. Returns the reason
    /// if there were any: the consumer has to hand these out again.
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
        for kept in self.kept.iter().filter(|kept| kept.is_torn()) {
            lower(positions, kept);
        }
    }

    /// Drops the notes on a partition that the user repositions; returns whether its records must be read again from
    /// there.
    pub fn forget(&mut self, place: &TopicPartition) -> bool {
        self.last.take_if(|(last, _)| last == place);
        let mut has_torn = false;
        self.kept.retain(|kept| {
            let is_of_place = kept.place == *place;
            has_torn |= is_of_place && kept.is_torn();
            !is_of_place
        });
        has_torn
    }

    fn move_back(&mut self, positions: &mut BTreeMap<TopicPartition, Offset>) -> Option<Torn> {
        let mut why = None;
        self.kept.retain(|kept| {
            let torn = kept.torn.get().copied();
            if torn.is_some() {
                lower(positions, kept);
            }
            why = why.max(torn);
            torn.is_none() && !kept.is_done()
        });
        why
    }
}

fn lower(positions: &mut BTreeMap<TopicPartition, Offset>, kept: &Kept) {
    if let Some(position) = positions.get_mut(&kept.place) {
        *position = (*position).min(kept.from);
    }
}
