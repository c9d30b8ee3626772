//! A share-partition against a model that has a state for each record.

mod order;

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use millstream_base::{Offset, ProducerId};
use proptest::prelude::*;

use super::*;
use crate::groups::{GroupName, MemberId, Partition, TopicId};
use crate::ledger::{Record, RecordError};

const SECOND: Duration = Duration::from_secs(1);
/// The model has no more records.
const RECORDS: u64 = 60;

/// A record of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordState {
    Fresh,
    Available(u16),
    Acquired(usize, Duration, u16),
    /// The member that holds it, the producer of the transaction, deliveries, whether it is accepted.
    Prepared(Option<usize>, i64, u16, bool),
    Finished,
}

struct Model {
    records: Vec<RecordState>,
    settings: ShareSettings,
}

impl Model {
    fn given_back(&self, deliveries: u16) -> RecordState {
        match deliveries < self.settings.deliveries_max {
            true => RecordState::Available(deliveries),
            false => RecordState::Finished,
        }
    }

    fn start(&self) -> u64 {
        let unfinished = |state: &RecordState| *state != RecordState::Finished;
        self.records
            .iter()
            .position(unfinished)
            .unwrap_or(self.records.len()) as u64
    }

    fn end(&self) -> u64 {
        let known = |state: &RecordState| *state != RecordState::Fresh;
        self.records
            .iter()
            .rposition(known)
            .map_or(0, |last| last as u64 + 1)
    }

    fn unfinished(&self) -> u64 {
        let window = self.records[..self.end() as usize].iter();
        window
            .filter(|state| **state != RecordState::Finished)
            .count() as u64
    }

    fn expire(&mut self, now: Duration) {
        for at in 0..self.records.len() {
            if let RecordState::Acquired(_, until, deliveries) = self.records[at]
                && until <= now
            {
                self.records[at] = self.given_back(deliveries);
            }
        }
    }

    fn release(&mut self, member: usize) {
        for at in 0..self.records.len() {
            if let RecordState::Acquired(holder, _, deliveries) = self.records[at]
                && holder == member
            {
                self.records[at] = self.given_back(deliveries);
            }
        }
    }

    /// Acquires records; returns their offsets and delivery counts.
    fn acquire(
        &mut self,
        (from, to): (u64, u64),
        max: u64,
        member: usize,
        now: Duration,
    ) -> Vec<(u64, u16)> {
        let mut acquired = Vec::new();
        let until = now + self.settings.record_lock;
        let end = self.end();
        for at in from..to {
            let deliveries = match self.records[at as usize] {
                // The process ended during its last delivery.
                RecordState::Available(deliveries)
                    if deliveries >= self.settings.deliveries_max =>
                {
                    self.records[at as usize] = RecordState::Finished;
                    continue;
                }
                _ if acquired.len() as u64 >= max => continue,
                RecordState::Available(deliveries) => deliveries + 1,
                RecordState::Fresh
                    if from <= end && self.unfinished() < self.settings.record_locks_max =>
                {
                    1
                }
                _ => continue,
            };
            self.records[at as usize] = RecordState::Acquired(member, until, deliveries);
            acquired.push((at, deliveries));
        }
        acquired
    }

    fn skip(&mut self, (from, to): (u64, u64)) {
        let end = self.end();
        for at in from..to {
            let state = &mut self.records[at as usize];
            let is_skipped = match state {
                RecordState::Available(_) => true,
                RecordState::Fresh => from <= end,
                _ => false,
            };
            if is_skipped {
                *state = RecordState::Finished;
            }
        }
    }

    fn acknowledge(
        &mut self,
        member: usize,
        batches: &[(i64, i64, Vec<i8>)],
        now: Duration,
    ) -> Result<(), Refused> {
        self.expire(now);
        let mut records = self.records.clone();
        let start = self.start();
        let end = self.end();
        let mut acknowledged = BTreeSet::new();
        for (first, last, types) in batches {
            if (*last as u64) < start {
                continue;
            }
            if *last as u64 >= end {
                return Err(Refused::PastAcquired);
            }
            for at in *first..=*last {
                if (at as u64) < start {
                    continue;
                }
                // A renewed record is still acquired, and still must not be named again.
                if !acknowledged.insert(at) {
                    return Err(Refused::InvalidRecordState);
                }
                let kind = match types[..] {
                    [kind] => kind,
                    _ => types[(at - first) as usize],
                };
                match records[at as usize] {
                    RecordState::Acquired(holder, _, deliveries) if holder == member => {
                        records[at as usize] = match kind {
                            2 => self.given_back(deliveries),
                            4 => RecordState::Acquired(
                                member,
                                now + self.settings.record_lock,
                                deliveries,
                            ),
                            _ => RecordState::Finished,
                        };
                    }
                    RecordState::Prepared(Some(holder), ..)
                        if holder == member && types.iter().all(|kind| *kind < 2) => {}
                    _ => return Err(Refused::InvalidRecordState),
                }
            }
        }
        self.records = records;
        Ok(())
    }

    /// Makes an acknowledgement part of a transaction, of a member if it is named; returns whether that is allowed.
    fn prepare(&mut self, producer: i64, named: Option<usize>, receipt: &Receipt) -> bool {
        let range = receipt.first.0 as usize..receipt.last.0 as usize + 1;
        let prepared = |holder: Option<usize>| {
            RecordState::Prepared(holder, producer, receipt.deliveries, receipt.is_accepted)
        };
        let is_held = self.records[range.clone()]
            .iter()
            .all(|state| match *state {
                RecordState::Acquired(holder, _, deliveries) => {
                    deliveries == receipt.deliveries && named.is_none_or(|named| named == holder)
                }
                RecordState::Prepared(holder, ..) => *state == prepared(holder),
                _ => false,
            });
        for state in &mut self.records[range] {
            if let (true, RecordState::Acquired(holder, ..)) = (is_held, *state) {
                *state = prepared(Some(holder));
            }
        }
        is_held
    }

    fn end_transaction(&mut self, producer: i64, is_committed: bool) {
        for at in 0..self.records.len() {
            if let RecordState::Prepared(_, of, deliveries, _) = self.records[at]
                && of == producer
            {
                self.records[at] = match is_committed {
                    true => RecordState::Finished,
                    false => self.given_back(deliveries),
                };
            }
        }
    }

    fn advance(&mut self, start: u64) {
        self.records[..start as usize].fill(RecordState::Finished);
    }

    /// Restarts the model: locks do not survive.
    fn restart(&mut self) {
        for state in &mut self.records {
            match state {
                RecordState::Acquired(_, _, deliveries) => {
                    *state = RecordState::Available(*deliveries);
                }
                RecordState::Prepared(holder, ..) => *holder = None,
                _ => {}
            }
        }
    }

    /// The log has lost the records from an offset on: new ones take their offsets.
    fn truncate(&mut self, end: u64) {
        self.records[end as usize..].fill(RecordState::Fresh);
    }
}

fn member(number: usize) -> MemberId {
    MemberId::from(format!("member {number}"))
}

/// A receipt that mostly fits a record that a member holds.
fn receipt(rng: &mut Rng, model: &Model) -> Receipt {
    let first = rng.u64(..RECORDS);
    let held = (first..RECORDS).find_map(|at| match model.records[at as usize] {
        RecordState::Acquired(_, _, deliveries) | RecordState::Prepared(_, _, deliveries, _) => {
            Some((at, deliveries))
        }
        _ => None,
    });
    let (first, deliveries) = match rng.u8(..10) {
        0 => (first, rng.u16(1..4)),
        _ => held.unwrap_or((first, 1)),
    };
    Receipt {
        first: Offset(first),
        last: Offset((first + rng.u64(..3)).min(RECORDS - 1)),
        deliveries,
        is_accepted: rng.bool(),
    }
}

fn range(rng: &mut Rng) -> (u64, u64) {
    let from = rng.u64(..RECORDS);
    (from, rng.u64(from..=RECORDS))
}

/// Batches that are mostly in order, often of records that one member holds.
fn batches(rng: &mut Rng, model: &Model, of: usize) -> Vec<(i64, i64, Vec<i8>)> {
    let held: Vec<u64> = (0..RECORDS)
        .filter(
            |at| matches!(model.records[*at as usize], RecordState::Acquired(holder, ..) if holder == of),
        )
        .collect();
    let mut batches = Vec::new();
    let mut from = 0;
    for _ in 0..rng.usize(1..4) {
        let first = match rng.u8(..10) {
            0 => rng.u64(..RECORDS),
            _ => match held.iter().find(|at| **at >= from) {
                Some(at) => *at,
                None => break,
            },
        };
        let count = match rng.bool() {
            true => 1,
            false => rng.u64(1..6),
        };
        let last = (first + count - 1).min(RECORDS - 1);
        let types = match rng.bool() {
            true => vec![rng.i8(0..5)],
            false => (first..=last).map(|_| rng.i8(0..5)).collect(),
        };
        batches.push((first as i64, last as i64, types));
        from = last + 1;
    }
    batches
}

proptest! {
    #[test]
    fn a_share_partition_agrees_with_a_model_that_has_a_state_for_each_record(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let settings = ShareSettings {
            deliveries_max: 3,
            record_locks_max: rng.u64(1..20),
            ..ShareSettings::default()
        };
        let mut model = Model {
            records: vec![RecordState::Fresh; RECORDS as usize],
            settings: settings.clone(),
        };
        let mut shares = SharePartition::new(Offset(0));
        let mut now = SECOND;
        for _ in 0..rng.usize(1..200) {
            let number = rng.usize(..3);
            match rng.u8(..23) {
                20..=21 => {
                    let receipt = receipt(&mut rng, &model);
                    let producer = rng.i64(0..2);
                    model.expire(now);
                    shares.expire(now, &settings);
                    let named = (rng.u8(..3) == 0).then_some(number);
                    let id = named.map(member);
                    let result =
                        shares.check_receipts(ProducerId(producer), id.as_ref(), &[receipt]);
                    if result.is_ok() {
                        shares.prepare(ProducerId(producer), &[receipt]);
                        prop_assert!(shares.has_prepared(ProducerId(producer)));
                    }
                    prop_assert_eq!(result.is_ok(), model.prepare(producer, named, &receipt));
                }
                22 => {
                    let (producer, is_committed) = (rng.i64(0..2), rng.bool());
                    model.end_transaction(producer, is_committed);
                    shares.end_transaction(ProducerId(producer), is_committed, &settings);
                    prop_assert!(!shares.has_prepared(ProducerId(producer)));
                }
                0..=7 => {
                    let (from, to) = range(&mut rng);
                    let from = if rng.bool() { from } else { model.start() };
                    let to = to.max(from);
                    let max = rng.u64(..12);
                    model.expire(now);
                    shares.expire(now, &settings);
                    let expected = model.acquire((from, to), max, number, now);
                    let acquired = shares.acquire(
                        Offset(from)..Offset(to),
                        max,
                        &member(number),
                        now,
                        &settings,
                    );
                    let acquired: Vec<(u64, u16)> = acquired
                        .iter()
                        .flat_map(|run| (run.first.0..=run.last.0).map(|at| (at, run.deliveries)))
                        .collect();
                    prop_assert_eq!(acquired, expected);
                }
                8..=13 => {
                    let batches = batches(&mut rng, &model, number);
                    if let Ok(acknowledgements) = checked(batches.clone(), true) {
                        let expected = model.acknowledge(number, &batches, now);
                        let result =
                            shares.acknowledge(&member(number), &acknowledgements, now, &settings);
                        // If several errors apply, either may be returned.
                        prop_assert_eq!(result.is_ok(), expected.is_ok(), "{:?}", batches);
                    }
                }
                14 => {
                    let (from, to) = range(&mut rng);
                    model.skip((from, to));
                    shares.skip(Offset(from)..Offset(to));
                }
                15 => {
                    model.release(number);
                    shares.release(&member(number), &settings);
                }
                16 => {
                    let start = rng.u64(..RECORDS / 4);
                    model.advance(start);
                    shares.advance(Offset(start));
                }
                17 => {
                    model.restart();
                    shares = SharePartition::restore(shares.start(), shares.to_store());
                    if rng.bool() {
                        let end = rng.u64(..RECORDS);
                        prop_assert_eq!(shares.truncate(Offset(end)), end < model.end());
                        model.truncate(end);
                    }
                }
                _ => now += rng.u32(..20) * SECOND,
            }
            model.expire(now);
            shares.expire(now, &settings);
            shares.check_invariants(&settings);
            prop_assert_eq!(shares.start().0, model.start());
            let available = |state: &RecordState| matches!(state, RecordState::Available(_));
            let first = model.records.iter().position(available);
            let found = shares.available(Offset(0), Offset(RECORDS), &settings);
            let has_room = model.unfinished() < settings.record_locks_max && model.end() < RECORDS;
            match (first, found) {
                (Some(first), Some(found)) => prop_assert_eq!(found.start.0, first as u64),
                (None, Some(found)) => {
                    prop_assert!(has_room);
                    prop_assert_eq!(found.start.0, model.end());
                }
                (first, None) => prop_assert!(first.is_none() && !has_room),
            }
        }
    }
}

#[test]
fn a_million_records_in_the_same_state_take_the_memory_of_one() {
    let settings = ShareSettings {
        record_locks_max: u64::MAX,
        ..ShareSettings::default()
    };
    let mut shares = SharePartition::new(Offset(0));
    let all = Offset(0)..Offset(1_000_000);
    let acquired = shares.acquire(all, u64::MAX, &member(0), SECOND, &settings);
    assert_eq!(acquired.len(), 1);
    for at in (0..1_000_000).rev().step_by(1000).take(500) {
        let batch = checked([(at - 999, at, vec![1])], false).unwrap();
        shares
            .acknowledge(&member(0), &batch, SECOND, &settings)
            .unwrap();
    }
    assert_eq!(shares.run_count(), 2);
}

#[test]
fn a_hostile_acknowledgement_gets_kafkas_error_and_changes_nothing() {
    let settings = ShareSettings::default();
    let mut shares = SharePartition::new(Offset(10));
    shares.acquire(Offset(10)..Offset(20), 10, &member(0), SECOND, &settings);
    shares.acquire(Offset(20)..Offset(30), 10, &member(1), SECOND, &settings);
    let before = shares.to_store();
    for (batches, error) in [
        // Another member's, in part.
        (vec![(15, 24, vec![1])], Refused::InvalidRecordState),
        // Twice.
        (
            vec![(10, 12, vec![1]), (12, 13, vec![1])],
            Refused::InvalidRecordState,
        ),
        // Never acquired.
        (vec![(30, 30, vec![1])], Refused::PastAcquired),
        (vec![(10, i64::MAX, vec![1])], Refused::PastAcquired),
    ] {
        let batches = checked(batches, false).unwrap();
        let refused = shares.acknowledge(&member(0), &batches, SECOND, &settings);
        assert_eq!(refused, Err(error));
        assert_eq!(shares.to_store(), before);
    }
    for batches in [
        vec![(12, 11, vec![1])],
        vec![(12, 13, vec![1]), (10, 11, vec![1])],
        vec![(10, 12, vec![1]), (11, 13, vec![1])],
        vec![(10, 12, vec![])],
        vec![(10, 12, vec![1, 1])],
        vec![(10, 10, vec![4])],
        vec![(10, 10, vec![-1])],
        vec![(-2, 10, vec![1])],
        vec![(i64::MIN, i64::MAX, vec![1, 1])],
    ] {
        assert_eq!(checked(batches, false), Err(Refused::InvalidRequest));
    }
    // Records before the start are finished, and need no further acknowledgement.
    let past = checked([(0, 12, vec![1])], false).unwrap();
    shares
        .acknowledge(&member(0), &past, SECOND, &settings)
        .unwrap();
    assert_eq!(shares.start(), Offset(13));
    // The lock has timed out.
    let late = checked([(13, 14, vec![1])], false).unwrap();
    let refused = shares.acknowledge(&member(0), &late, 31 * SECOND, &settings);
    assert_eq!(refused, Err(Refused::InvalidRecordState));
}

#[test]
fn a_record_is_archived_after_its_last_delivery() {
    let settings = ShareSettings::default();
    let mut shares = SharePartition::new(Offset(0));
    let one = || Offset(0)..Offset(1);
    for delivery in 1..=5 {
        let acquired = shares.acquire(one(), 1, &member(0), SECOND, &settings);
        assert_eq!(acquired[0].deliveries, delivery);
        let release = checked([(0, 0, vec![2])], false).unwrap();
        shares
            .acknowledge(&member(0), &release, SECOND, &settings)
            .unwrap();
    }
    assert_eq!(shares.start(), Offset(1));
    assert!(
        shares
            .acquire(one(), 1, &member(0), SECOND, &settings)
            .is_empty()
    );
}

fn key() -> record::Key {
    record::Key {
        group: GroupName::from("g"),
        topic: TopicId(7),
        partition: Partition(3),
    }
}

#[test]
fn a_stored_state_round_trips() {
    let settings = ShareSettings::default();
    let key = key();
    let mut shares = SharePartition::new(Offset(5));
    shares.acquire(Offset(5)..Offset(25), 20, &member(0), SECOND, &settings);
    let batches = checked([(7, 9, vec![1]), (11, 12, vec![2, 3])], false).unwrap();
    shares
        .acknowledge(&member(0), &batches, SECOND, &settings)
        .unwrap();
    for (at, is_accepted) in [(14, true), (15, false)] {
        let receipt = Receipt {
            first: Offset(at),
            last: Offset(at),
            deliveries: 1,
            is_accepted,
        };
        shares.prepare(ProducerId(1 << 40), &[receipt]);
    }
    let (read, stored) = record::decode(record::record(&key, Some(&shares))).unwrap();
    let stored = stored.unwrap();
    assert_eq!(read, key);
    assert_eq!(stored.start(), shares.start());
    assert_eq!(stored.to_store(), shares.to_store());
    assert!(stored.has_prepared(ProducerId(1 << 40)));
    let (read, stored) = record::decode(record::record(&key, None)).unwrap();
    assert_eq!((read, stored.is_none()), (key, true));
}

#[test]
fn a_state_takes_two_bytes_for_most_runs_and_the_first_version_is_still_read() {
    let settings = ShareSettings::default();
    let key = key();
    let mut shares = SharePartition::new(Offset(5));
    shares.acquire(Offset(5)..Offset(205), 200, &member(0), SECOND, &settings);
    let batches = checked([(6, 6, vec![1]), (9, 9, vec![2])], false).unwrap();
    shares
        .acknowledge(&member(0), &batches, SECOND, &settings)
        .unwrap();
    let record = record::record(&key, Some(&shares));
    let start = [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 3];
    let runs = [1, 2, 1, 0, 0xc6, 1, 2];
    assert_eq!(
        record.value.as_deref(),
        Some(&[&[2][..], &start, &runs].concat()[..])
    );
    let of_first_version = |records: u8, deliveries: u8| {
        let records = [0, 0, 0, 0, 0, 0, 0, records];
        [&records[..], &[0, deliveries]].concat()
    };
    let runs = [(1, 1), (1, 0), (198, 1)].map(|(records, of)| of_first_version(records, of));
    let first = Record {
        value: Some([&[1][..], &start, &runs.concat()].concat().into()),
        ..record.clone()
    };
    for record in [record.clone(), first] {
        let stored = record::decode(record).unwrap().1.unwrap();
        assert_eq!(stored.to_store(), shares.to_store());
    }
    for (runs, field) in [
        (&[0xff; 12][..], "records"),
        (&[1, 0x80, 0x80, 4], "deliveries"),
    ] {
        let bad = Record {
            value: Some([&[2][..], &start, runs].concat().into()),
            ..record.clone()
        };
        let error = record::decode(bad).unwrap_err();
        assert_eq!(error, RecordError::Invalid { field });
    }
}
