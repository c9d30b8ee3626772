//! The model of a partition: all that was appended to it.

use std::collections::BTreeMap;

use millstream_base::partition_of_key;
use millstream_record::SECONDARY_KEYS_MAX;

use crate::Tag;

/// Each key with a value: the offset and the value.
pub type Table = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// Each secondary key and the key that has it: the offset and the value.
pub type Tagged = BTreeMap<(Vec<u8>, Vec<u8>), (u64, Vec<u8>)>;

#[derive(Debug)]
pub struct ModelRecord {
    pub offset: u64,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    /// The secondary keys.
    pub tags: Vec<Tag>,
    /// The producer, if the record is part of a transaction.
    pub producer: Option<i64>,
    pub timestamp: i64,
    /// The end of the value that the record names.
    pub expires: Option<i64>,
}

impl ModelRecord {
    /// Whether the value has expired at time `now`, by its own expiry or else after `ttl`.
    pub fn has_ended(&self, ttl: Option<i64>, now: i64) -> bool {
        let end = self.expires.or(ttl.map(|ttl| self.timestamp + ttl));
        self.value.is_some() && end.is_some_and(|end| end <= now)
    }
}

/// A chunk of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    pub producer: i64,
    pub epoch: i16,
    pub sequence: i32,
    pub base: u64,
    pub count: u64,
    pub is_transactional: bool,
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    pub offset: u64,
    pub producer: i64,
    pub epoch: i16,
    pub is_abort: bool,
}

/// A transaction that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub first: u64,
    pub marker: Marker,
}

#[derive(Debug, Default)]
pub struct Transactions {
    /// The first offset of each producer's open transaction.
    pub open: BTreeMap<i64, u64>,
    /// In the order of their markers.
    pub ended: Vec<Ended>,
}

impl Transactions {
    /// The ended transaction that has a record of a producer at an offset.
    pub fn of(&self, producer: i64, offset: u64) -> Option<&Ended> {
        self.ended.iter().find(|ended| {
            ended.marker.producer == producer
                && (ended.first..ended.marker.offset).contains(&offset)
        })
    }

    pub fn has_aborted(&self, record: &ModelRecord) -> bool {
        let producer = record.producer;
        let ended = producer.and_then(|producer| self.of(producer, record.offset));
        ended.is_some_and(|ended| ended.marker.is_abort)
    }
}

/// The right answer to a chunk of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Append,
    Duplicate(u64),
    Fenced,
    OutOfOrder,
}

#[derive(Debug, Default)]
pub struct ModelPartition {
    pub next: u64,
    pub records: Vec<ModelRecord>,
    pub batches: Vec<Batch>,
    pub markers: Vec<Marker>,
    /// All records before it were durable.
    pub durable: u64,
    /// All records before it were deleted for good.
    pub deleted_to: u64,
    /// The end of a deletion that has failed, and may have taken effect.
    pub maybe_deleted_to: u64,
    /// Whether a start may have forgotten the producers of deleted records.
    pub has_restarted: bool,
    /// No pass has taken a record from here on.
    pub passed_to: u64,
    /// From when on a pass may drop the tombstone or the marker at an offset. One that no pass has seen stays.
    pub may_go_at: BTreeMap<u64, i64>,
}

impl ModelPartition {
    pub fn transactions(&self) -> Transactions {
        let mut transactions = Transactions::default();
        let mut batches = self
            .batches
            .iter()
            .filter(|batch| batch.is_transactional)
            .peekable();
        for marker in &self.markers {
            while let Some(batch) = batches.next_if(|batch| batch.base < marker.offset) {
                transactions
                    .open
                    .entry(batch.producer)
                    .or_insert(batch.base);
            }
            if let Some(first) = transactions.open.remove(&marker.producer) {
                transactions.ended.push(Ended {
                    first,
                    marker: *marker,
                });
            }
        }
        for batch in batches {
            transactions
                .open
                .entry(batch.producer)
                .or_insert(batch.base);
        }
        transactions
    }

    /// The last stable offset once all is durable.
    pub fn stable(&self) -> u64 {
        let open = self.transactions().open;
        open.into_values().min().unwrap_or(self.next)
    }

    /// The records before the last stable offset that count.
    pub fn committed(&self, stable: u64) -> impl Iterator<Item = &ModelRecord> {
        let transactions = self.transactions();
        let before = self
            .records
            .iter()
            .take_while(move |record| record.offset < stable);
        before.filter(move |record| !transactions.has_aborted(record))
    }

    /// Key, offset and value of all keys that have one and belong to this partition.
    pub fn table(
        &self,
        records: std::ops::Range<u64>,
        partition: usize,
        partitions: usize,
        (ttl, now): (Option<i64>, i64),
    ) -> Table {
        let mut table = Table::new();
        for record in self.committed(records.end) {
            let is_owned = partition_of_key(&record.key, partitions) == partition;
            if !is_owned || record.offset < records.start {
                continue;
            }
            match record.value.clone() {
                Some(_) if record.has_ended(ttl, now) => drop(table.remove(&record.key)),
                Some(value) => drop(table.insert(record.key.clone(), (record.offset, value))),
                None => drop(table.remove(&record.key)),
            }
        }
        table
    }

    /// Offset and value of each secondary key of this name, with the key that has it and belongs to this partition.
    pub fn tagged(
        &self,
        name: &str,
        records: std::ops::Range<u64>,
        partition: usize,
        partitions: usize,
        (ttl, now): (Option<i64>, i64),
    ) -> Tagged {
        let mut newest = BTreeMap::new();
        for record in self.committed(records.end) {
            let is_owned = partition_of_key(&record.key, partitions) == partition;
            if is_owned && record.offset >= records.start {
                newest.insert(&record.key, record);
            }
        }
        let mut tagged = Tagged::new();
        for record in newest.into_values() {
            let Some(value) = record
                .value
                .as_ref()
                .filter(|_| !record.has_ended(ttl, now))
            else {
                continue;
            };
            let tags = record.tags.iter().take(SECONDARY_KEYS_MAX);
            for (_, tag) in tags.filter(|(other, _)| *other == name) {
                let found = (record.offset, value.clone());
                tagged.insert((tag.clone(), record.key.clone()), found);
            }
        }
        tagged
    }

    /// The epoch and the next sequence of a producer.
    pub fn next_of(&self, producer: i64) -> (i16, i32) {
        let mut batches = self
            .batches
            .iter()
            .filter(|batch| batch.producer == producer);
        let next = batches
            .next_back()
            .map(|batch| (batch.epoch, batch.sequence + batch.count as i32));
        let (epoch, sequence) = next.unwrap_or_default();
        match self.epoch_of(producer) {
            Some(current) if current > epoch => (current, 0),
            _ => (epoch, sequence),
        }
    }

    /// The last epoch of a producer's chunks and markers.
    fn epoch_of(&self, producer: i64) -> Option<i16> {
        let batches = self.batches.iter();
        let batches = batches.map(|batch| (batch.producer, batch.epoch));
        let markers = self.markers.iter();
        let markers = markers.map(|marker| (marker.producer, marker.epoch));
        let mine = batches
            .chain(markers)
            .filter(|(other, _)| *other == producer);
        mine.map(|(_, epoch)| epoch).max()
    }

    /// The last chunks of a producer that a retry may repeat, newest first.
    pub fn remembered(&self, producer: i64) -> impl Iterator<Item = &Batch> {
        const REMEMBERED: usize = 5;
        let mine = move |batch: &&Batch| batch.producer == producer;
        let mut batches = self.batches.iter().rev().filter(mine).peekable();
        let epoch = batches.peek().map(|batch| batch.epoch);
        batches
            .take_while(move |batch| Some(batch.epoch) == epoch)
            .take(REMEMBERED)
    }

    /// The right answer to a chunk.
    pub fn verdict(&self, batch: &Batch) -> Verdict {
        let Some(current) = self.epoch_of(batch.producer) else {
            return Verdict::Append;
        };
        if batch.epoch < current {
            return Verdict::Fenced;
        }
        let is_same = |known: &&Batch| {
            (known.epoch, known.sequence, known.count) == (batch.epoch, batch.sequence, batch.count)
        };
        let mut remembered = self.remembered(batch.producer).peekable();
        let last = remembered.peek().filter(|last| last.epoch == batch.epoch);
        let next = last.map_or(0, |last| last.sequence + last.count as i32);
        match remembered.find(is_same) {
            Some(known) => Verdict::Duplicate(known.base),
            None if batch.sequence == next => Verdict::Append,
            None => Verdict::OutOfOrder,
        }
    }

    /// Takes note of a pass: it may have stamped each tombstone and marker with the end of its time.
    pub fn note_pass(&mut self, may_go_at: i64) {
        let tombstones = self.records.iter().filter(|record| record.value.is_none());
        let markers = self.markers.iter().map(|marker| marker.offset);
        for offset in tombstones.map(|record| record.offset).chain(markers) {
            self.may_go_at.entry(offset).or_insert(may_go_at);
        }
    }

    /// Forgets all from an offset on, which was not durable.
    pub fn lose_from(&mut self, end: u64) {
        self.next = end;
        self.records.retain(|record| record.offset < end);
        self.batches.retain(|batch| batch.base < end);
        self.markers.retain(|marker| marker.offset < end);
        self.may_go_at.split_off(&end);
        let batches = self
            .batches
            .last()
            .map_or(0, |batch| batch.base + batch.count);
        assert!(batches <= end, "half a chunk is left: up to {end}");
    }
}
