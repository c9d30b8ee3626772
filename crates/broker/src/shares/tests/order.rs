//! Groups that are ordered by key, against a model that has a state for each record.

use super::super::partition::StoredState;
use super::*;

/// Offsets of a chunk of the log.
const CHUNK: u64 = 8;

/// A record of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Open(u16),
    Out(usize, Duration, u16),
    /// In the transaction of a producer; deliveries, and whether it is accepted.
    Prepared(i64, u16, bool),
    Dead,
    Finished,
}

struct World {
    rng: Rng,
    settings: ShareSettings,
    shares: SharePartition,
    now: Duration,
    /// The key of each record. Chunks without any are markers.
    keys: Vec<Option<u64>>,
    markers: Vec<bool>,
    model: Vec<Known>,
    /// How often each record was delivered.
    delivered: Vec<u32>,
    /// Records that retention has removed.
    removed: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let keys_max = rng.u64(1..12);
        let has_key = rng.u8(1..10);
        let key = |rng: &mut Rng| (rng.u8(..10) < has_key).then(|| rng.u64(..keys_max));
        World {
            settings: ShareSettings {
                deliveries_max: rng.u16(2..5),
                record_locks_max: rng.u64(1..30),
                order: Order::Key,
                dead_letter_topic: rng.bool().then(|| "dlq.t".to_owned()),
                ..ShareSettings::default()
            },
            shares: SharePartition::new(Offset(0)),
            now: SECOND,
            keys: (0..RECORDS).map(|_| key(&mut rng)).collect(),
            markers: (0..RECORDS / CHUNK + 1)
                .map(|_| rng.u8(..10) == 0)
                .collect(),
            model: vec![Known::Open(0); RECORDS as usize],
            delivered: vec![0; RECORDS as usize],
            removed: 0,
            rng,
        }
    }

    /// The records of a chunk that have a key.
    fn keys_of(&self, chunk: u64) -> Vec<(Offset, KeyHash)> {
        let records = chunk * CHUNK..((chunk + 1) * CHUNK).min(RECORDS);
        let keys = records.filter_map(|at| Some((Offset(at), KeyHash(self.keys[at as usize]?))));
        keys.collect()
    }

    fn given_back(&self, deliveries: u16) -> Known {
        match deliveries < self.settings.deliveries_max {
            true => Known::Open(deliveries),
            false => self.dead(),
        }
    }

    fn dead(&self) -> Known {
        match self.settings.dead_letter_topic {
            Some(_) => Known::Dead,
            None => Known::Finished,
        }
    }

    /// Writes some dead letters.
    fn bury(&mut self, letters_max: usize) {
        let dead: Vec<Offset> = self.shares.dead().map(|dead| dead.offset).collect();
        let of_model = (0..RECORDS).filter(|at| self.model[*at as usize] == Known::Dead);
        assert!(of_model.eq(dead.iter().map(|offset| offset.0)));
        for record in dead.into_iter().take(letters_max) {
            self.shares.bury(record);
            self.model[record.0 as usize] = Known::Finished;
        }
    }

    fn expire(&mut self) {
        self.shares.expire(self.now, &self.settings);
        for at in 0..self.model.len() {
            if let Known::Out(_, until, deliveries) = self.model[at]
                && until <= self.now
            {
                self.model[at] = self.given_back(deliveries);
            }
        }
    }

    /// Acquires records for a member as a fetch does; returns whether all keys are known.
    fn look(&mut self, number: usize, mut left: u64) -> bool {
        self.expire();
        self.shares.set_order(self.settings.order);
        while !self.shares.knows_keys() {
            let chunk = self.shares.unknown().map(|range| range.start.0 / CHUNK);
            match chunk {
                Some(chunk) => {
                    let keys = self.keys_of(chunk);
                    self.shares.learn(Offset((chunk + 1) * CHUNK), &keys);
                }
                None => self.shares.learn(self.shares.end(), &[]),
            }
            if self.rng.u8(..4) == 0 && !self.shares.knows_keys() {
                return false;
            }
        }
        for chunk in self.shares.start().0 / CHUNK..RECORDS.div_ceil(CHUNK) {
            let range = Offset(chunk * CHUNK)..Offset(((chunk + 1) * CHUNK).min(RECORDS));
            let end = self.shares.end();
            if self.markers[chunk as usize] {
                self.shares
                    .skip(range.start.max(self.shares.start())..range.end);
                let skipped = range.start.0..range.end.0.min(self.shares.end().0);
                for at in skipped {
                    if matches!(self.model[at as usize], Known::Open(_)) {
                        self.model[at as usize] = Known::Finished;
                    }
                }
                continue;
            }
            if self.settings.order == Order::Key && range.start <= end && end < range.end {
                let keys = self.keys_of(chunk);
                self.shares.enter(range.end, &keys, &self.settings);
            }
            let settings = self.settings.clone();
            let acquired = self
                .shares
                .acquire(range, left, &member(number), self.now, &settings);
            for run in acquired {
                for at in run.first.0..=run.last.0 {
                    left -= 1;
                    self.deliver(at, number, run.deliveries);
                }
            }
            // Records whose last delivery ended with the process are archived on the way.
            self.archive_exhausted();
        }
        true
    }

    fn archive_exhausted(&mut self) {
        let stored = self.shares.to_store();
        let mut at = self.shares.start().0;
        for state in &mut self.model[..at as usize] {
            *state = Known::Finished;
        }
        for run in stored {
            for _ in 0..run.records {
                let state = &mut self.model[at as usize];
                let is_dead = matches!(run.state, StoredState::Dead { .. });
                let is_out = is_dead || run.state == StoredState::Finished;
                if is_out && matches!(state, Known::Open(_)) {
                    let Known::Open(deliveries) = *state else {
                        unreachable!()
                    };
                    assert!(
                        deliveries >= self.settings.deliveries_max,
                        "{at} was finished"
                    );
                    *state = match is_dead {
                        true => Known::Dead,
                        false => Known::Finished,
                    };
                }
                at += 1;
            }
        }
    }

    /// A member gets a record: no other one of its key is out, and all earlier ones are finished.
    fn deliver(&mut self, at: u64, number: usize, deliveries: u16) {
        let Known::Open(before) = self.model[at as usize] else {
            panic!(
                "{at} is not there to be delivered: {:?}",
                self.model[at as usize]
            );
        };
        assert_eq!(deliveries, before + 1);
        if self.settings.order == Order::Key {
            self.archive_exhausted();
            assert_eq!(self.predecessor(at), None, "of {at}");
        }
        let until = self.now + self.settings.record_lock;
        self.model[at as usize] = Known::Out(number, until, deliveries);
        self.delivered[at as usize] += 1;
    }

    /// A record that has to be finished before this one is delivered.
    fn predecessor(&self, at: u64) -> Option<usize> {
        let key = self.keys[at as usize]?;
        let mut others = (0..self.model.len())
            .filter(|other| *other != at as usize && self.keys[*other] == Some(key));
        others.find(|other| match self.model[*other] {
            Known::Open(_) => *other < at as usize && !self.markers[*other / CHUNK as usize],
            Known::Out(..) | Known::Prepared(..) => true,
            Known::Dead => *other < at as usize,
            Known::Finished => false,
        })
    }

    fn held_by(&self, number: usize) -> Vec<u64> {
        let held = (0..RECORDS).filter(
            |at| matches!(self.model[*at as usize], Known::Out(holder, ..) if holder == number),
        );
        held.collect()
    }

    fn acknowledge(&mut self, number: usize, at: u64, kind: i8) {
        let batch = checked([(at as i64, at as i64, vec![kind])], true).unwrap();
        let done = self
            .shares
            .acknowledge(&member(number), &batch, self.now, &self.settings);
        assert_eq!(done, Ok(()));
        let Known::Out(_, _, deliveries) = self.model[at as usize] else {
            panic!("{at} is not held");
        };
        self.model[at as usize] = match kind {
            2 => self.given_back(deliveries),
            3 => self.dead(),
            4 => Known::Out(number, self.now + self.settings.record_lock, deliveries),
            _ => Known::Finished,
        };
    }

    fn prepare(&mut self, producer: i64, at: u64, is_accepted: bool) {
        let Known::Out(_, _, deliveries) = self.model[at as usize] else {
            panic!("{at} is not held");
        };
        let receipt = Receipt {
            first: Offset(at),
            last: Offset(at),
            deliveries,
            is_accepted,
        };
        let producer_id = ProducerId(producer);
        let checked = self.shares.check_receipts(producer_id, None, &[receipt]);
        assert_eq!(checked, Ok(()));
        self.shares.prepare(producer_id, &[receipt]);
        self.model[at as usize] = Known::Prepared(producer, deliveries, is_accepted);
    }

    fn end_transaction(&mut self, producer: i64, is_committed: bool) {
        self.shares
            .end_transaction(ProducerId(producer), is_committed, &self.settings);
        for at in 0..self.model.len() {
            if let Known::Prepared(of, deliveries, is_accepted) = self.model[at]
                && of == producer
            {
                self.model[at] = match (is_committed, is_accepted) {
                    (true, true) => Known::Finished,
                    (true, false) => self.dead(),
                    (false, _) => self.given_back(deliveries),
                };
            }
        }
    }

    fn restart(&mut self) {
        self.shares = SharePartition::restore(self.shares.start(), self.shares.to_store());
        for state in &mut self.model {
            if let Known::Out(_, _, deliveries) = *state {
                *state = Known::Open(deliveries);
            }
        }
    }

    fn step(&mut self) {
        let number = self.rng.usize(..3);
        match self.rng.u8(..28) {
            24..=26 => {
                self.expire();
                let producer = self.rng.i64(0..2);
                for at in self.held_by(number) {
                    if self.rng.bool() {
                        let is_accepted = self.rng.bool();
                        self.prepare(producer, at, is_accepted);
                    }
                }
            }
            27 => {
                let (producer, is_committed) = (self.rng.i64(0..2), self.rng.bool());
                self.end_transaction(producer, is_committed);
            }
            0..=7 => {
                let left = self.rng.u64(..10);
                self.look(number, left);
            }
            8..=15 => {
                self.expire();
                for at in self.held_by(number) {
                    if self.rng.bool() {
                        let kind = self.rng.i8(1..5);
                        self.acknowledge(number, at, kind);
                    }
                }
            }
            16 => {
                self.shares.release(&member(number), &self.settings);
                for at in self.held_by(number) {
                    if let Known::Out(_, _, deliveries) = self.model[at as usize] {
                        self.model[at as usize] = self.given_back(deliveries);
                    }
                }
            }
            17 => {
                self.removed = self.rng.u64(self.removed..=(self.removed + 4).min(RECORDS));
                self.shares.advance(Offset(self.removed));
                self.model[..self.removed as usize].fill(Known::Finished);
            }
            18 => self.restart(),
            19 => {
                self.settings.order = match self.rng.bool() {
                    true => Order::Key,
                    false => Order::None,
                };
            }
            20 => self.settings.deliveries_max = self.rng.u16(2..5),
            21 => {
                let letters_max = self.rng.usize(..5);
                self.bury(letters_max);
            }
            _ => self.now += self.rng.u32(..20) * SECOND,
        }
    }

    /// All records get to members, in the order of their keys.
    fn drain(&mut self) {
        self.settings.order = Order::Key;
        for producer in 0..2 {
            let is_committed = self.rng.bool();
            self.end_transaction(producer, is_committed);
        }
        for _ in 0..RECORDS * 20 {
            self.expire();
            let mut is_known = self.look(0, u64::MAX);
            // A look that archives records makes room, and others of their keys available.
            loop {
                let before = (self.shares.end(), self.shares.unfinished());
                is_known |= self.look(0, u64::MAX);
                if before == (self.shares.end(), self.shares.unfinished()) {
                    break;
                }
            }
            if is_known {
                self.check_reach();
            }
            for number in 0..3 {
                if let Some(at) = self.held_by(number).first() {
                    self.acknowledge(number, *at, 1);
                }
            }
            self.bury(usize::MAX);
            if self.shares.start().0 == RECORDS {
                return;
            }
        }
        panic!("records are left: {:?}", self.model);
    }

    /// After a look without a bound, each record in flight is out, or waits for another one of its key.
    fn check_reach(&self) {
        let end = self.shares.end().0;
        assert!(end == RECORDS || self.shares.room(&self.settings) == 0);
        for at in 0..end {
            if matches!(self.model[at as usize], Known::Open(_)) {
                let has_turn = self.predecessor(at).is_none();
                let is_last = self
                    .shares
                    .available(Offset(at), Offset(at + 1), &self.settings);
                assert!(!has_turn || is_last.is_some(), "{at} waits for none");
            }
        }
    }
}

#[test]
fn at_most_one_record_of_a_key_is_in_flight_and_random_events_keep_their_order() {
    for seed in 0..1_000 {
        let mut world = World::new(seed);
        for _ in 0..world.rng.usize(1..150) {
            world.step();
            world.expire();
            world.shares.check_invariants(&world.settings);
            let unfinished =
                (0..world.shares.end().0).filter(|at| world.model[*at as usize] != Known::Finished);
            assert_eq!(
                unfinished.count() as u64,
                world.shares.unfinished(),
                "seed {seed}"
            );
        }
        world.drain();
        for at in world.removed..RECORDS {
            let is_marker = world.markers[(at / CHUNK) as usize];
            assert!(
                is_marker || world.delivered[at as usize] > 0,
                "seed {seed}: {at}"
            );
        }
    }
}

fn keyed(keys: &[u64]) -> Vec<(Offset, KeyHash)> {
    let keys = keys.iter().enumerate();
    keys.map(|(at, key)| (Offset(at as u64), KeyHash(*key)))
        .collect()
}

/// Acquires all that a member may get; returns the offsets.
fn acquire(shares: &mut SharePartition, of: usize, settings: &ShareSettings) -> Vec<u64> {
    let all = Offset(0)..shares.end();
    let acquired = shares.acquire(all, u64::MAX, &member(of), SECOND, settings);
    acquired
        .iter()
        .flat_map(|run| run.first.0..=run.last.0)
        .collect()
}

fn by_key() -> ShareSettings {
    ShareSettings {
        order: Order::Key,
        ..ShareSettings::default()
    }
}

#[test]
fn records_of_a_key_in_flight_at_the_switch_end_before_the_next_is_delivered() {
    let mut shares = SharePartition::new(Offset(0));
    let settings = by_key();
    let unordered = ShareSettings::default();
    shares.acquire(Offset(0)..Offset(4), 4, &member(0), SECOND, &unordered);
    let release = checked([(0, 0, vec![2])], false).unwrap();
    shares
        .acknowledge(&member(0), &release, SECOND, &unordered)
        .unwrap();
    shares.set_order(Order::Key);
    assert!(!shares.knows_keys());
    shares.learn(Offset(4), &keyed(&[7, 7, 7, 8]));
    assert!(shares.knows_keys());
    // The first record is free, and two later ones of its key are out.
    assert!(acquire(&mut shares, 1, &settings).is_empty());
    for at in [1, 2] {
        assert!(acquire(&mut shares, 1, &settings).is_empty());
        let accept = checked([(at, at, vec![1])], false).unwrap();
        shares
            .acknowledge(&member(0), &accept, SECOND, &settings)
            .unwrap();
    }
    assert_eq!(acquire(&mut shares, 1, &settings), [0]);
    shares.set_order(Order::None);
    shares.check_invariants(&unordered);
}

#[test]
fn the_queue_of_a_hot_key_stays_within_the_limit_and_the_first_record_of_each_key_is_delivered() {
    let settings = ShareSettings {
        record_locks_max: 4,
        ..by_key()
    };
    let mut shares = SharePartition::new(Offset(0));
    shares.set_order(Order::Key);
    let keys = keyed(&[1, 2, 1, 1, 3, 1]);
    shares.enter(Offset(6), &keys, &settings);
    assert_eq!(shares.end(), Offset(4));
    assert_eq!(acquire(&mut shares, 0, &settings), [0, 1]);
    // Records that were never delivered are not stored: they come back from the log.
    let stored = shares.to_store();
    let stored: Vec<u64> = stored.iter().map(|run| run.records).collect();
    assert_eq!(stored, [2]);
    let accept = checked([(0, 0, vec![1])], false).unwrap();
    shares
        .acknowledge(&member(0), &accept, SECOND, &settings)
        .unwrap();
    shares.enter(Offset(6), &keys, &settings);
    assert_eq!(acquire(&mut shares, 1, &settings), [2, 4]);
    shares.check_invariants(&settings);
}
