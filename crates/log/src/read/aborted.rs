//! The aborted transactions of a lane, from the indexes of its groups.

use millstream_base::Offset;
use millstream_record::ChunkHeader;

use crate::error::Result;
use crate::lane::LaneState;
use crate::producers::transactions::AbortedTransaction;
use crate::read::context::ReadContext;

/// Finds the aborted transactions of a lane by chunks and offsets, without a look at all of them.
#[derive(Debug)]
pub struct AbortedIndex {
    /// In the order of their ends.
    by_end: Vec<AbortedTransaction>,
    /// For each of these, the smallest first offset of it and all later ones.
    earliest: Vec<Offset>,
    /// In the order of producers, then ends. Transactions of one producer do not overlap.
    by_producer: Vec<AbortedTransaction>,
}

impl AbortedIndex {
    /// Returns the aborted transactions that have records from `from` up to `to`.
    pub fn read(
        reads: &ReadContext,
        lane: &LaneState,
        from: Offset,
        to: Offset,
    ) -> Result<AbortedIndex> {
        aborted_transactions(reads, lane, from, to).map(AbortedIndex::new)
    }

    fn new(by_end: Vec<AbortedTransaction>) -> AbortedIndex {
        let mut earliest: Vec<Offset> = by_end.iter().map(|known| known.first_offset).collect();
        for n in (1..earliest.len()).rev() {
            earliest[n - 1] = earliest[n - 1].min(earliest[n]);
        }
        let mut by_producer = by_end.clone();
        by_producer.sort_unstable_by_key(|known| (known.producer, known.last_offset));
        AbortedIndex {
            by_end,
            earliest,
            by_producer,
        }
    }

    /// Returns whether a chunk is part of an aborted transaction.
    pub fn holds(&self, header: &ChunkHeader) -> bool {
        let chunk = (header.producer_id, header.base_offset);
        let ended = |known: &AbortedTransaction| (known.producer, known.last_offset) <= chunk;
        let n = self.by_producer.partition_point(ended);
        self.by_producer
            .get(n)
            .is_some_and(|known| known.holds(header))
    }

    /// Returns the transaction whose marker is at an offset.
    pub fn ended_at(&self, marker: Offset) -> Option<AbortedTransaction> {
        let n = self
            .by_end
            .binary_search_by_key(&marker, |known| known.last_offset);
        Some(self.by_end[n.ok()?])
    }

    /// Returns the first offset of the earliest transaction that spans `offset`, or `offset` without one.
    pub fn stable_at(&self, offset: Offset) -> Offset {
        let n = self
            .by_end
            .partition_point(|known| known.last_offset < offset);
        self.earliest
            .get(n)
            .map_or(offset, |earliest| offset.min(*earliest))
    }
}

/// Returns the aborted transactions that have records from `from` up to `to`, in the order of their ends.
pub fn aborted_transactions(
    reads: &ReadContext,
    lane: &LaneState,
    from: Offset,
    to: Offset,
) -> Result<Vec<AbortedTransaction>> {
    loop {
        let swaps = lane.swaps();
        let aborted = in_groups(reads, lane, from, to)?;
        // The search may have missed groups that were replaced meanwhile, or visited them twice.
        if lane.swaps() == swaps {
            return Ok(aborted);
        }
    }
}

fn in_groups(
    reads: &ReadContext,
    lane: &LaneState,
    from: Offset,
    to: Offset,
) -> Result<Vec<AbortedTransaction>> {
    let mut aborted = Vec::new();
    let mut next = lane.group_of_offset(from).or_else(|| lane.first_group());
    while let Some(group) = next {
        aborted.extend(
            reads
                .indexes
                .look_at(lane, &group, |index| index.aborted(from, to))??,
        );
        // A transaction that ends behind a group begins behind the last stable offset at its end.
        let is_last = group.end().is_none_or(|end| end.stable >= to);
        next = match is_last {
            true => None,
            false => lane.group_after(group.id),
        };
    }
    Ok(aborted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use fastrand::Rng;
    use millstream_base::{ProducerEpoch, ProducerId, Sequence, Timestamp};
    use millstream_record::{ChunkBuilder, Compression, Producer, check};

    use super::*;

    /// Transactions of some producers up to an offset, all of them aborted, in the order of their ends.
    fn transactions(rng: &mut Rng, end: u64, producers: i64) -> Vec<AbortedTransaction> {
        let mut open: BTreeMap<i64, u64> = BTreeMap::new();
        let mut ended = Vec::new();
        for offset in 0..end {
            let producer = rng.i64(0..producers);
            match open.remove(&producer) {
                None => drop(open.insert(producer, offset)),
                Some(first) => ended.push(AbortedTransaction {
                    producer: ProducerId(producer),
                    first_offset: Offset(first),
                    last_offset: Offset(offset),
                }),
            }
        }
        ended
    }

    fn chunk(producer: i64, is_transactional: bool) -> ChunkHeader {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(is_transactional);
        builder.push(Timestamp(0), None, None, &[]).unwrap();
        let producer = Producer {
            id: ProducerId(producer),
            epoch: ProducerEpoch(0),
            sequence: Sequence(0),
        };
        check(builder.finish(Some(producer)).unwrap()).unwrap()
    }

    #[test]
    fn aborted_transactions_are_found_by_chunks_and_offsets() {
        const PRODUCERS: i64 = 4;
        let rng = &mut Rng::with_seed(1);
        for _ in 0..20 {
            let all = transactions(rng, 60, PRODUCERS);
            let index = AbortedIndex::new(all.clone());
            for offset in (0..62).map(Offset) {
                for producer in 0..=PRODUCERS {
                    let mut header = chunk(producer, true);
                    header.base_offset = offset;
                    let is_aborted = all.iter().any(|known| known.holds(&header));
                    assert_eq!(index.holds(&header), is_aborted);
                    let mut other = chunk(producer, false);
                    other.base_offset = offset;
                    assert!(!index.holds(&other));
                }
                let ended = all.iter().find(|known| known.last_offset == offset);
                assert_eq!(index.ended_at(offset), ended.copied());
                let spanning = all
                    .iter()
                    .filter(|known| (known.first_offset..=known.last_offset).contains(&offset));
                let stable = spanning.map(|known| known.first_offset).min();
                assert_eq!(index.stable_at(offset), stable.unwrap_or(offset));
            }
        }
    }

    #[test]
    fn a_search_does_not_visit_all_aborted_transactions() {
        const END: u64 = 200_000;
        let all = transactions(&mut Rng::with_seed(1), END, 100);
        let started = Instant::now();
        let index = AbortedIndex::new(all);
        let mut header = chunk(7, true);
        for offset in (0..END).map(Offset) {
            header.base_offset = offset;
            index.holds(&header);
            index.ended_at(offset);
            index.stable_at(offset);
        }
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
