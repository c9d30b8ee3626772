//! A subscription to lanes, each from an offset on.

use std::collections::VecDeque;
use std::sync::Arc;

use millstream_base::Offset;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::handle::stream::Stream;
use crate::handle::watch::{Watch, Watched};
use crate::subscription::feed::Feed;
use crate::subscription::filter::ChunkFilter;
use crate::subscription::handed::{Next, SubscriptionError};

/// Reads lanes from offsets on.
#[derive(Debug)]
pub struct LanesReader {
    /// The stream, if the reader reads its share of all lanes from the beginning, also those that are added later.
    pub stream: Option<(Stream, Share)>,
    pub watch: Watch,
    /// The lanes by place. `None` for those that failed.
    pub lanes: Vec<Option<WatchedFeed>>,
    /// Places of lanes that may have chunks. Any other lane is in `waiting` or `unwanted`, or armed in `watch`.
    pub queue: VecDeque<u32>,
    /// Places of lanes that have chunks, for which there was no memory. They do not delay the others.
    pub waiting: VecDeque<u32>,
    /// Places of lanes that may have chunks, and that the last caller did not want.
    pub unwanted: VecDeque<u32>,
    /// Whether it ends at the ends of its lanes, and ignores lanes that are added later.
    pub has_ends: bool,
}

/// Every `of`th partition of a stream, from number `index` on: one reader's share among `of` readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The first partition; less than `of`.
    pub index: u32,
    /// The number of readers; at least 1.
    pub of: u32,
}

impl Share {
    /// All partitions.
    pub const ALL: Share = Share { index: 0, of: 1 };

    /// Returns whether a partition is part of it.
    pub fn has(self, partition: u32) -> bool {
        partition % self.of.max(1) == self.index
    }

    /// Returns the number in the stream of the share's partition at a [place](super::handed::Handed::place).
    pub fn partition(self, place: u32) -> u32 {
        place.saturating_mul(self.of).saturating_add(self.index)
    }
}

#[derive(Debug)]
pub struct WatchedFeed {
    pub feed: Feed,
    pub watched: Watched,
}

impl LanesReader {
    pub fn new(stream: Option<(Stream, Share)>) -> LanesReader {
        let mut reader = LanesReader {
            stream,
            watch: Watch::default(),
            lanes: Vec::new(),
            queue: VecDeque::new(),
            waiting: VecDeque::new(),
            unwanted: VecDeque::new(),
            has_ends: false,
        };
        reader.add_new_lanes();
        reader
    }

    pub fn add(&mut self, feed: Feed) {
        let place = self.lanes.len() as u32;
        let watched = self.watch.add_high_watermark(feed.lane(), u64::from(place));
        self.lanes.push(Some(WatchedFeed { feed, watched }));
        self.queue.push_back(place);
    }

    fn add_new_lanes(&mut self) {
        let Some((stream, share)) = self.stream.clone() else {
            return;
        };
        let places = (self.lanes.len() as u32..).map(|place| share.partition(place));
        for partition in places.take_while(|partition| *partition < stream.partition_count()) {
            if let Ok(lane) = stream.partition(partition) {
                let earliest = lane.earliest_offset();
                self.add(Feed::new(lane, earliest));
            }
        }
    }

    pub fn positions(&self) -> Option<Vec<Offset>> {
        let lanes = self.lanes.iter();
        lanes
            .map(|lane| lane.as_ref().map(|lane| lane.feed.next()))
            .collect()
    }

    pub fn seek(&mut self, positions: &[Offset]) -> Result<(), SubscriptionError> {
        self.add_new_lanes();
        for (place, position) in (0..).zip(positions) {
            let sought = match self.lanes.get_mut(place as usize) {
                Some(Some(lane)) => lane.feed.seek(*position),
                _ => Err(LogError::UnknownPartition {
                    stream: (self.stream.as_ref())
                        .map_or("", |(stream, _)| stream.name())
                        .to_owned(),
                    what: format!("lane {place}"),
                }),
            };
            sought.map_err(|error| SubscriptionError {
                place: Some(place),
                error,
            })?;
        }
        Ok(())
    }

    pub fn end_at_head(&mut self) {
        self.add_new_lanes();
        for lane in self.lanes.iter_mut().flatten() {
            lane.feed.end_at_head();
        }
        self.has_ends = true;
    }

    pub fn next(
        &mut self,
        bytes_max: usize,
        mut filter: Option<&mut ChunkFilter>,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Result<Next, SubscriptionError> {
        if !self.has_ends {
            self.add_new_lanes();
        }
        self.queue.extend(
            self.watch
                .take_ready()
                .into_iter()
                .map(|place| place as u32),
        );
        // They come before all others in the queue: they have waited for longer.
        while let Some(place) = self.unwanted.pop_back() {
            self.queue.push_front(place);
        }
        // One of them finds out whether there is memory now.
        if let Some(place) = self.waiting.pop_front() {
            self.queue.push_front(place);
        }
        while let Some(place) = self.queue.pop_front() {
            if !is_wanted(place) {
                self.unwanted.push_back(place);
                continue;
            }
            let slot = &mut self.lanes[place as usize];
            let Some(WatchedFeed { feed, watched }) = slot else {
                continue;
            };
            let seen = feed.lane().high_watermark();
            match feed.read(place, bytes_max, filter.as_deref_mut()) {
                Ok(Some(handed)) => {
                    self.queue.push_back(place);
                    return Ok(Next::Handed(handed));
                }
                Ok(None) => watched.arm(seen),
                Err(LogError::ReadBudget) => self.waiting.push_back(place),
                Err(error) => {
                    *slot = None;
                    let place = Some(place);
                    return Err(SubscriptionError { place, error });
                }
            }
        }
        if !self.waiting.is_empty() {
            return Ok(Next::Busy);
        }
        let mut lanes = self.lanes.iter().flatten();
        Ok(
            match self.has_ends && lanes.all(|lane| lane.feed.is_at_end()) {
                true => Next::End,
                false => Next::Nothing,
            },
        )
    }

    pub fn core(&self) -> Option<&Arc<Core>> {
        let lane = self.lanes.iter().flatten().next()?;
        Some(&lane.feed.lane().core)
    }
}
