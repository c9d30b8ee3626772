//! Compares the log with the model.

use std::collections::BTreeMap;

use millstream_base::{Offset, ProducerId, partition_of_key};
use millstream_log::{AtLeast, Durability, KeyRange, LogError, StreamPartition};
use millstream_record::{Chunks, Decompressor, EndMarker, TransactionEnd};

use super::partition::{ModelPartition, ModelRecord, Table};
use super::{World, add};
use crate::{get_many, try_get, try_scan};

/// A record or a marker that a reader gets.
#[derive(Default)]
struct Found {
    /// Key and value of each committed record.
    records: BTreeMap<u64, (Vec<u8>, Option<Vec<u8>>)>,
    markers: BTreeMap<u64, EndMarker>,
    /// Offset and producer of each chunk of a transaction.
    transactional: Vec<(u64, ProducerId)>,
}

impl World<'_> {
    /// Returns the values that lookups must find, after it has checked the state that they depend on.
    pub fn expected(&self, n: usize) -> Result<Table, LogError> {
        let partition = self.partition(n)?;
        let (model, earliest) = (&self.partitions[n], partition.earliest_offset().0);
        let stable = partition.last_stable_offset().0;
        let all_stable = model.stable().max(earliest);
        assert!(stable <= all_stable, "{stable} of {all_stable}");
        // Other markers and records become durable later.
        let is_durable = !self.is_disk_full && !self.machine.disk.has_crashed();
        assert!(stable == all_stable || !is_durable || self.durability == Durability::Sync);
        let (now, partitions) = (self.keyed_now_ms(), self.partitions.len());
        let ended = |record: &&ModelRecord| record.has_ended(self.ttl, now);
        let ended = model.committed(stable).filter(ended).count();
        add(&self.seen.ended_values, ended as u64);
        Ok(model.table(earliest..stable, n, partitions, (self.ttl, now)))
    }

    /// Looks up some keys, and scans a range.
    pub fn check_some(&mut self, n: usize) -> Result<(), LogError> {
        let (expected, partition) = (self.expected(n)?, self.partition(n)?);
        for _ in 0..5 {
            let key = self.rng.choice(&self.keys).unwrap();
            let found = try_get(&partition, key)?;
            assert_eq!(found.as_ref(), expected.get(key), "key {key:?}");
        }
        self.check_many(&partition, &expected)?;
        let limit = self.rng.usize(1..40);
        let bytes_max = self.rng.usize(..5_000);
        let range = match self.rng.u8(..3) {
            0 => KeyRange::all(),
            1 => KeyRange::prefix(vec![b'k'; self.rng.usize(1..4)]),
            _ => {
                let mut key = || self.rng.choice(&self.keys).unwrap().clone();
                KeyRange::new(key(), Some(key()))
            }
        };
        let found = try_scan(&partition, range.clone(), limit, bytes_max)?;
        let wanted = expected.into_iter().filter(|(key, _)| range.contains(key));
        let wanted: Vec<_> = wanted
            .map(|(key, (offset, value))| (key, offset, value))
            .collect();
        assert_eq!(found, wanted, "{range:?}, {limit} keys, {bytes_max} bytes");
        add(&self.seen.lookups, found.len() as u64);
        Ok(())
    }

    /// Looks up any number of keys at once, also the same ones several times.
    fn check_many(
        &mut self,
        partition: &StreamPartition,
        expected: &Table,
    ) -> Result<(), LogError> {
        let count = self.rng.usize(..2 * self.keys.len());
        let keys = (0..count).map(|_| self.rng.choice(&self.keys).unwrap().clone());
        let keys: Vec<Vec<u8>> = keys.collect();
        for (key, found) in keys.iter().zip(get_many(partition, &keys)?) {
            assert_eq!(found.as_ref(), expected.get(key), "key {key:?}");
        }
        Ok(())
    }

    /// Compares all keys of all partitions.
    pub fn check(&mut self) -> Result<(), LogError> {
        for n in 0..self.partitions.len() {
            let (expected, partition) = (self.expected(n)?, self.partition(n)?);
            for key in &self.keys {
                let found = try_get(&partition, key)?;
                assert_eq!(found.as_ref(), expected.get(key), "key {key:?}");
                let owner = partition_of_key(key, self.partitions.len());
                if owner == n {
                    let version = self.stream()?.get(key)?;
                    let found = version.map(|version| (version.offset.0, version.value.to_vec()));
                    assert_eq!(found.as_ref(), expected.get(key), "key {key:?}");
                }
            }
            let stats = partition.key_stats();
            assert!(stats.keys >= expected.len() as u64);
            assert_eq!(stats.indexed_to, partition.last_stable_offset());
            add(&self.seen.lookups, expected.len() as u64);
            self.check_all_tags(n)?;
        }
        Ok(())
    }

    /// Reads a partition by offset, and checks that nothing is missing that must be there, and nothing was changed.
    pub fn check_log(&self, n: usize) -> Result<(), LogError> {
        self.rest();
        let partition = self.partition(n)?;
        let (earliest, stable) = (partition.earliest_offset(), partition.last_stable_offset());
        let found = self.read(n, earliest..stable)?;
        let model = &self.partitions[n];
        let mut stored = BTreeMap::new();
        let mut newest = BTreeMap::new();
        for record in model.committed(stable.0) {
            stored.insert(record.offset, record);
            if record.offset >= earliest.0 {
                newest.insert(&record.key, record);
            }
        }
        for (offset, record) in found.records.range(earliest.0..stable.0) {
            let right = stored[offset];
            let has_lost_value = record.1.is_none() && self.may_lose_value(right);
            let value = right.value.clone().filter(|_| !has_lost_value);
            assert_eq!(record, &(right.key.clone(), value), "offset {offset}");
            let lost = right.value.is_some() && has_lost_value;
            add(&self.seen.dropped_values, u64::from(lost));
        }
        for record in newest.into_values() {
            let is_there = found.records.contains_key(&record.offset);
            assert!(
                is_there || self.may_be_dropped(model, record),
                "the newest record of its key is missing at {}: {record:?}, tombstones stay for {:?}, values for {:?}",
                self.now_ms(),
                self.delete_retention,
                self.ttl
            );
            let dropped = match record.value {
                Some(_) => &self.seen.values_dropped_by_clock,
                None => &self.seen.dropped_tombstones,
            };
            add(dropped, u64::from(!is_there));
        }
        self.check_markers(model, &found, earliest.0..stable.0);
        Ok(())
    }

    /// Whether the newest record of a key may be gone.
    fn may_be_dropped(&self, model: &ModelPartition, record: &ModelRecord) -> bool {
        match (&record.value, self.keyed_clock) {
            (Some(_), Some(clock)) => record.has_ended(self.ttl, clock),
            (Some(_), None) => self.may_lose_value(record),
            (None, _) => self.may_be_gone(model, record.offset),
        }
    }

    /// Whether a value expired long enough ago that a pass may have made a tombstone of its record. It does not where the
    /// stream has its own clock.
    pub fn may_lose_value(&self, record: &ModelRecord) -> bool {
        let retention = self.delete_retention.as_millis() as i64;
        self.keyed_clock.is_none() && record.has_ended(self.ttl, self.now_ms() - retention)
    }

    /// Whether a tombstone or a marker has stayed for its time.
    fn may_be_gone(&self, model: &ModelPartition, offset: u64) -> bool {
        let at = model.may_go_at.get(&offset);
        at.is_some_and(|at| *at <= self.now_ms())
    }

    fn check_markers(&self, model: &ModelPartition, found: &Found, offsets: std::ops::Range<u64>) {
        let right: BTreeMap<_, _> = model
            .markers
            .iter()
            .map(|marker| (marker.offset, marker))
            .collect();
        for (offset, marker) in found.markers.range(offsets.clone()) {
            let is_abort = marker.end == TransactionEnd::Abort;
            let found = (marker.producer_id.0, marker.producer_epoch.0, is_abort);
            let right = right[offset];
            assert_eq!(
                found,
                (right.producer, right.epoch, right.is_abort),
                "marker {offset}"
            );
        }
        for offset in right.into_keys().filter(|offset| offsets.contains(offset)) {
            let is_there = found.markers.contains_key(&offset);
            assert!(
                is_there || self.may_be_gone(model, offset),
                "marker {offset} is missing"
            );
            add(&self.seen.dropped_markers, u64::from(!is_there));
        }
        // While a record is marked as part of a transaction, readers need its end.
        let transactions = model.transactions();
        for (offset, producer) in &found.transactional {
            let ended = transactions.of(producer.0, *offset);
            let marker = ended
                .expect("it is before the last stable offset")
                .marker
                .offset;
            let is_behind = marker >= offsets.end;
            assert!(
                is_behind || found.markers.contains_key(&marker),
                "{offset} without {marker}"
            );
        }
    }

    fn read(&self, n: usize, offsets: std::ops::Range<Offset>) -> Result<Found, LogError> {
        let partition = self.partition(n)?;
        let (mut next, end) = (offsets.start, offsets.end);
        let mut found = Found::default();
        let mut decompressor = Decompressor::default();
        while next < end {
            let fetched = partition.fetch(next, end, 100_000, AtLeast::OneChunk)?;
            let aborted = partition.aborted_transactions(next, fetched.next)?;
            for piece in &fetched.pieces {
                for chunk in Chunks::new(piece) {
                    let chunk = chunk.unwrap();
                    let header = chunk.header();
                    assert!(
                        header.base_offset <= next && next < header.next_offset(),
                        "a gap"
                    );
                    next = header.next_offset();
                    if header.attributes.is_control() {
                        let marker = EndMarker::of(&chunk).expect("the model appends no others");
                        found.markers.insert(header.base_offset.0, marker);
                        continue;
                    }
                    if header.attributes.is_transactional() {
                        found
                            .transactional
                            .push((header.base_offset.0, header.producer_id));
                    }
                    let is_aborted = aborted.iter().any(|aborted| {
                        header.producer_id == aborted.producer
                            && header.attributes.is_transactional()
                            && (aborted.first_offset..=aborted.last_offset)
                                .contains(&header.base_offset)
                    });
                    if is_aborted {
                        continue;
                    }
                    for record in chunk.records(&mut decompressor).unwrap() {
                        let record = record.unwrap();
                        let key = record.key.expect("the stream is keyed").to_vec();
                        let value = record.value.map(<[u8]>::to_vec);
                        found.records.insert(record.offset.0, (key, value));
                    }
                }
            }
            assert_eq!(next, fetched.next);
        }
        Ok(found)
    }

    /// Checks the end of a history: after some passes without faults only the newest values are left.
    pub fn finish(&mut self) {
        self.calm_down();
        for n in 0..self.partitions.len() {
            for id in self.partitions[n].transactions().open.into_keys() {
                self.append_marker(n, id, false, false).unwrap();
            }
        }
        self.check().unwrap();
        for _ in 0..3 {
            self.machine.clock.advance(self.delete_retention);
            self.machine
                .clock
                .advance(std::time::Duration::from_secs(60));
            self.log().persist();
            self.rest();
            let compacted = self.log().compact().unwrap();
            self.note(format!("compacted at the end: {compacted:?}"));
            self.note_pass();
            while self.log().step() | self.log().compact_step() {}
        }
        for n in 0..self.partitions.len() {
            self.check_log(n).unwrap();
            self.check_compacted(n);
        }
        self.calm_down();
        self.check().unwrap();
    }

    /// Whether a compacted range has no record and no marker that need not stay.
    fn check_compacted(&self, n: usize) {
        let partition = self.partition(n).unwrap();
        let stats = partition.info().compaction.unwrap_or_default();
        let from = partition.earliest_offset();
        let to = stats.compacted_to.max(from);
        assert_eq!(stats.fault, None);
        let found = self.read(n, from..to).unwrap();
        let mut markers = found.markers.range(from.0..to.0);
        assert_eq!(markers.next(), None, "it is over");
        let records = found.records.range(from.0..to.0);
        let mut newest = BTreeMap::new();
        for (offset, (key, value)) in records {
            assert!(value.is_some(), "the tombstone at {offset} is over");
            let other = newest.insert(key, offset);
            assert_eq!(other, None, "{key:?} is at {offset}, too");
        }
    }
}
