//! Partitions that the consumer does not read for a while, at the user's request.

use std::collections::{BTreeMap, BTreeSet};

use millstream_base::Offset;

use super::Consumer;
use crate::offsets::TopicPartition;

impl Consumer {
    /// Pauses exactly these partitions, and resumes all others. The consumer may still return records that it has
    /// read ahead of a paused partition.
    ///
    /// A server that pushes cannot pause a partition: its subscription ends, and another one begins without the paused
    /// partitions. Records that the user still holds in the server's memory then become unreadable
    /// ([`DeliveryPath::Shared`](crate::DeliveryPath::Shared)), so drop or [detach](crate::Fetched::detach) them before
    /// you pause further partitions.
    pub fn set_paused(&mut self, paused: BTreeSet<TopicPartition>) {
        self.settle();
        let before = self.paused.send_replace(paused);
        if !self.is_pushed() || self.fetching.is_none() {
            return;
        }
        let paused = self.paused.borrow();
        if !paused.is_subset(&before) {
            drop(paused);
            self.stop_fetching();
            return;
        }
        // Like partitions that were added: beside the others.
        for place in before.difference(&paused) {
            if self.positions.contains_key(place) {
                self.unfetched.insert(place.clone());
            }
        }
    }

    /// Returns the partitions that fetchers begin with. A pulling fetcher passes over paused ones by itself.
    pub(super) fn wanted(&self) -> BTreeMap<TopicPartition, Offset> {
        let paused = self.paused.borrow();
        let positions = self.positions.iter();
        positions
            .filter(|(place, _)| !self.is_pushed() || !paused.contains(place))
            .map(|(place, position)| (place.clone(), *position))
            .collect()
    }
}
