//! The records that were sent, and those that every reader of a partition and every group has seen.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use millstream_base::Offset;
use millstream_client::Record;
use parking_lot::Mutex;

use super::plan::Plan;
use crate::stamp::Stamp;

/// All that must hold of records.
pub struct Books {
    /// How many records each writer has sent, answered or not. Raised before they are.
    sent: Vec<AtomicU64>,
    partitions: Vec<Partition>,
}

struct Partition {
    sent: AtomicU64,
    /// Behind the last record that each reader has seen.
    readers: Vec<AtomicU64>,
    groups: Vec<Mutex<Coverage>>,
}

impl Books {
    pub fn new(plan: &Plan) -> Books {
        let counters = |number| (0..number).map(|_| AtomicU64::new(0)).collect();
        let partition = |_| Partition {
            sent: AtomicU64::new(0),
            readers: counters(plan.readers_per_partition),
            groups: (0..plan.groups).map(|_| Mutex::default()).collect(),
        };
        Books {
            sent: counters(plan.writers + plan.cutters),
            partitions: (0..plan.partitions).map(partition).collect(),
        }
    }

    /// A writer has one partition.
    pub fn partition_of(&self, writer: usize) -> usize {
        writer % self.partitions.len()
    }

    /// The stamp of a record that is about to be sent.
    pub fn stamp(&self, writer: usize) -> Stamp {
        let partition = &self.partitions[self.partition_of(writer)];
        partition.sent.fetch_add(1, Ordering::SeqCst);
        Stamp {
            writer,
            sequence: self.sent[writer].fetch_add(1, Ordering::SeqCst),
        }
    }

    /// Returns how many records were sent to a partition.
    pub fn sent_to(&self, partition: usize) -> u64 {
        self.partitions[partition].sent.load(Ordering::SeqCst)
    }

    /// Returns how many records a writer has sent.
    pub fn sent_by(&self, writer: usize) -> u64 {
        self.sent[writer].load(Ordering::SeqCst)
    }

    /// Returns how many records were sent.
    pub fn sent(&self) -> u64 {
        (0..self.partitions.len()).map(|n| self.sent_to(n)).sum()
    }

    /// Returns how many records of a partition the slowest reader or group has yet to see.
    pub fn behind(&self, partition: usize) -> u64 {
        let seen = self.seen(partition).map(|(_, seen)| seen).min();
        let sent = self.sent_to(partition);
        sent.saturating_sub(seen.unwrap_or(sent))
    }

    /// Returns how many records of a partition each reader and group has seen.
    fn seen(&self, partition: usize) -> impl Iterator<Item = (String, u64)> {
        let partition = &self.partitions[partition];
        let readers = partition.readers.iter().enumerate();
        let readers = readers.map(|(n, seen)| (format!("reader {n}"), seen.load(Ordering::SeqCst)));
        let groups = partition.groups.iter().enumerate();
        let groups = groups.map(|(n, seen)| (format!("group {n}"), seen.lock().through));
        readers.chain(groups)
    }

    /// Returns a line for each reader and group that has not seen all records.
    pub fn lacking(&self) -> Vec<String> {
        let lacking = (0..self.partitions.len()).flat_map(|partition| {
            let sent = self.sent_to(partition);
            let behind = self.seen(partition).filter(move |(_, seen)| *seen != sent);
            behind.map(move |(reader, seen)| {
                format!("{reader} has seen {seen} of the {sent} records of partition {partition}")
            })
        });
        lacking.collect()
    }

    /// A reader has seen all records of a partition before this offset.
    pub fn read_to(&self, partition: usize, reader: usize, next: Offset) {
        self.partitions[partition].readers[reader].store(next.0, Ordering::SeqCst);
    }

    /// A member of a group has seen these records.
    pub fn cover(&self, partition: usize, group: usize, offsets: Range<u64>) {
        self.partitions[partition].groups[group].lock().add(offsets);
    }

    /// A record that was read is one that was sent to this partition.
    pub fn check(
        &self,
        partition: usize,
        record: &Record<'_>,
        room: &mut Vec<u8>,
    ) -> Result<Stamp> {
        let stamp = Stamp::read(record.value.unwrap_or_default(), room)?;
        let sent = self
            .sent
            .get(stamp.writer)
            .map(|sent| sent.load(Ordering::SeqCst));
        ensure!(
            sent.is_some_and(|sent| stamp.sequence < sent),
            "{stamp:?} was never sent"
        );
        let its_own = self.partition_of(stamp.writer);
        ensure!(
            its_own == partition,
            "{stamp:?} was sent to partition {its_own}"
        );
        Ok(stamp)
    }
}

/// Which offsets were seen at least once.
#[derive(Default)]
struct Coverage {
    /// All before this one.
    through: u64,
    /// Ranges behind, by their starts; none touches another.
    ahead: BTreeMap<u64, u64>,
}

impl Coverage {
    fn add(&mut self, offsets: Range<u64>) {
        let (mut start, mut end) = (offsets.start.max(self.through), offsets.end);
        if start >= end {
            return;
        }
        let touching = self.ahead.range(..=end).rev();
        let touching: Vec<u64> = touching
            .take_while(|(_, its_end)| **its_end >= start)
            .map(|(its_start, _)| *its_start)
            .collect();
        for other in touching {
            start = start.min(other);
            end = end.max(self.ahead.remove(&other).unwrap_or(end));
        }
        match start == self.through {
            true => self.through = end,
            false => drop(self.ahead.insert(start, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_agrees_with_a_set_of_offsets() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let mut coverage = Coverage::default();
            let mut seen = [false; 40];
            for _ in 0..30 {
                let start = random.usize(0..40);
                let end = random.usize(start..=(start + 6).min(40));
                coverage.add(start as u64..end as u64);
                seen[start..end].fill(true);
                let through = seen.iter().position(|seen| !seen).unwrap_or(40);
                assert_eq!(coverage.through, through as u64);
                let ahead: u64 = coverage.ahead.iter().map(|(start, end)| end - start).sum();
                let expected = seen[through..].iter().filter(|seen| **seen).count();
                assert_eq!(ahead, expected as u64);
            }
        }
    }
}
