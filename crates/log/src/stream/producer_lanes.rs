//! The lanes that producers with duplicate detection have used: they stay there when the stream grows.

use hashbrown::{HashMap, HashSet};
use millstream_base::{LaneIndex, ProducerId, StreamletIndex};

/// The number of producers at which a sweep removes producers that their lanes have forgotten.
const PRODUCERS_SWEPT: usize = 100_000;

#[derive(Debug)]
pub struct ProducerLanes {
    pub lanes: HashMap<(StreamletIndex, ProducerId), LaneIndex>,
    /// How many there may be before the next sweep.
    pub swept_at: usize,
}

impl Default for ProducerLanes {
    fn default() -> Self {
        ProducerLanes {
            lanes: HashMap::new(),
            swept_at: PRODUCERS_SWEPT,
        }
    }
}

impl ProducerLanes {
    /// The lane that the producer has used before, or from now on `new`. `known` gives the producers
    /// that the lanes remember; its cost is spread over at least as many new producers.
    pub fn lane_of(
        &mut self,
        producer: (StreamletIndex, ProducerId),
        new: LaneIndex,
        known: impl FnOnce() -> HashSet<(StreamletIndex, ProducerId)>,
    ) -> LaneIndex {
        if let Some(lane) = self.lanes.get(&producer) {
            return *lane;
        }
        if self.lanes.len() >= self.swept_at {
            let known = known();
            self.lanes.retain(|producer, _| known.contains(producer));
            self.swept_at = PRODUCERS_SWEPT.max(2 * self.lanes.len());
        }
        self.lanes.insert(producer, new);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appending_a_chunk_does_not_search_all_known_producers() {
        let mut producers = ProducerLanes::default();
        let id = |n: usize| (StreamletIndex(0), ProducerId(n as i64));
        let mut sweeps = 0;
        for n in 0..3 * PRODUCERS_SWEPT {
            for _ in 0..2 {
                // The lanes remember all of them.
                let known = || {
                    sweeps += 1;
                    (0..n).map(id).collect()
                };
                producers.lane_of(id(n), LaneIndex(1), known);
            }
        }
        assert_eq!(sweeps, 2);
        assert_eq!(producers.lanes.len(), 3 * PRODUCERS_SWEPT);

        // A producer stays on its lane.
        let lane = producers.lane_of(id(7), LaneIndex(2), HashSet::new);
        assert_eq!(lane, LaneIndex(1));

        // The lanes have forgotten all but one.
        for n in 3 * PRODUCERS_SWEPT..=4 * PRODUCERS_SWEPT {
            producers.lane_of(id(n), LaneIndex(1), || HashSet::from_iter([id(7)]));
        }
        assert_eq!(producers.lanes.len(), 2);
        assert_eq!(producers.swept_at, PRODUCERS_SWEPT);
    }
}
