//! Partitions that are not read for a while, since their user has enough of them.

use std::collections::{BTreeMap, BTreeSet};

use millstream_base::Offset;

use super::Consumer;
use crate::offsets::TopicPartition;

impl Consumer {
    /// Reads none of these partitions from now on, and goes on with those that were paused before and are not among them.
    /// What was read ahead of a paused partition may still be handed out.
    ///
    /// A server that pushes does not know of pauses: its subscription ends, and another one begins without the paused
    /// partitions. Records that the user still has in the server's memory cannot be read any more then
    /// ([`DeliveryPath::Shared`](crate::DeliveryPath::Shared)), so drop or [detach](crate::Fetched::detach) them before
    /// partitions are paused that were not.
    pub fn set_paused(&mut self, paused: BTreeSet<TopicPartition>) {
        self.settle();
        let before = self.paused.send_replace(paused);
        if !self.is_pushed() || self.fetching.is_none() {
            return;
        }
        let paused = self.paused.borrow();
        if !paused.is_subset(&before) {
            drop(paused);
            self.fetching = None;
            return;
        }
        // As partitions that were added: beside the others.
        for place in before.difference(&paused) {
            if let Some(position) = self.positions.get(place) {
                self.unfetched.insert(place.clone(), *position);
            }
        }
    }

    /// The partitions that fetchers begin with. Those that fetch pass over paused ones by themselves.
    pub(super) fn wanted(&self) -> BTreeMap<TopicPartition, Offset> {
        let paused = self.paused.borrow();
        let positions = self.positions.iter();
        positions
            .filter(|(place, _)| !self.is_pushed() || !paused.contains(place))
            .map(|(place, position)| (place.clone(), *position))
            .collect()
    }
}
