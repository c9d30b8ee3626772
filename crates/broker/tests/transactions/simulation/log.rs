//! The log that a coordinator leaves behind.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use millstream_base::ProducerEpoch;
use millstream_broker::groups::{Moment, RequestId};
use millstream_broker::transactions::*;

use crate::support;

/// The result of one call.
pub struct Call {
    pub records: Vec<Record>,
    /// The actions that have to wait for the records.
    pub gated: Vec<Action>,
}

impl Call {
    pub fn new(actions: Vec<Action>) -> Self {
        let mut call = Call {
            records: Vec::new(),
            gated: Vec::new(),
        };
        for action in actions {
            match action {
                Action::Persist(record) => call.records.push(record),
                other => call.gated.push(other),
            }
        }
        call
    }
}

/// The durable records.
#[derive(Default)]
pub struct Log {
    records: Vec<Record>,
    compacted: BTreeMap<Bytes, Bytes>,
    /// The state of each transactional id.
    ids: BTreeMap<String, (State, Producer)>,
    /// The highest producer of each transactional id so far.
    highest: BTreeMap<String, Producer>,
    /// How often a transactional id got another producer id.
    pub rotated_ids: u32,
}

impl Log {
    pub fn append(&mut self, record: Record, now: Moment) {
        if let Some(id) = id_of(&record) {
            let after = described(&record, &id, now);
            self.check_outcome_is_final(&id, after.as_ref().map(|after| after.0));
            match after {
                Some(after) => {
                    self.check_epochs_never_go_back(&id, after.1);
                    let before = self.ids.insert(id, after);
                    let is_rotated = before.is_some_and(|before| before.1.id != after.1.id);
                    self.rotated_ids += u32::from(is_rotated);
                }
                None => {
                    self.ids.remove(&id);
                }
            }
        }
        match record.value.clone() {
            Some(value) => self.compacted.insert(record.key.clone(), value),
            None => self.compacted.remove(&record.key),
        };
        self.records.push(record);
    }

    /// A transaction that is to be committed is only ever committed; the same for aborts.
    fn check_outcome_is_final(&self, id: &str, after: Option<State>) {
        let before = self.ids.get(id).map(|(state, _)| *state);
        let is_fine = match before {
            None => after == Some(State::Empty),
            Some(State::Empty | State::CompleteCommit | State::CompleteAbort) => matches!(
                after,
                None | Some(State::Empty | State::Ongoing | State::PrepareAbort)
            ),
            Some(State::Ongoing) => matches!(
                after,
                Some(State::Ongoing | State::PrepareCommit | State::PrepareAbort)
            ),
            Some(State::PrepareCommit) => after == Some(State::CompleteCommit),
            Some(State::PrepareAbort) => after == Some(State::CompleteAbort),
        };
        assert!(is_fine, "{before:?} is followed by {after:?}");
    }

    fn check_epochs_never_go_back(&mut self, id: &str, producer: Producer) {
        let highest = self.highest.entry(id.to_owned()).or_insert(producer);
        assert!(*highest <= producer, "{highest} is followed by {producer}");
        *highest = producer;
    }

    pub fn state(&self, id: &str) -> Option<State> {
        self.ids.get(id).map(|(state, _)| *state)
    }

    /// Returns a coordinator that resumes here.
    pub fn restore(&self, config: &Config, now: Moment) -> Coordinator {
        let records = self.records.clone();
        let coordinator = Coordinator::restore(config.clone(), now, records).unwrap();
        let mut snapshot = BTreeMap::new();
        for record in coordinator.snapshot() {
            snapshot.insert(record.key, record.value.unwrap());
        }
        for (key, value) in &self.compacted {
            assert_eq!(
                snapshot.get(key),
                Some(value),
                "all that is durable is known"
            );
        }
        coordinator
    }

    /// Adds a transactional id that has almost no epochs left.
    pub fn append_used_up(&mut self, id: &'static str, now: Moment) {
        static RECORDS: OnceLock<Vec<Record>> = OnceLock::new();
        let records = RECORDS.get_or_init(|| used_up(id, now));
        records
            .iter()
            .for_each(|record| self.append(record.clone(), now));
    }
}

fn used_up(id: &str, now: Moment) -> Vec<Record> {
    let mut coordinator = Coordinator::new(Config::default(), now);
    let mut epoch = ProducerEpoch(0);
    while epoch < ProducerEpoch(i16::MAX - 4) {
        let init = Request::InitProducerId(InitProducerId {
            transactional_id: Some(id.into()),
            ..support::init(None)
        });
        let actions = coordinator.handle(now, RequestId(0), init);
        if let Some(Action::Answer(_, Answer::InitProducerId(Ok(producer)))) = actions.last() {
            epoch = producer.epoch;
        }
    }
    coordinator.snapshot()
}

/// Returns the transactional id of a record.
fn id_of(record: &Record) -> Option<String> {
    match record.key[0] {
        2 => Some(String::from_utf8(record.key[5..].to_vec()).unwrap()),
        _ => None,
    }
}

/// Returns the state and the producer of a record.
fn described(record: &Record, id: &str, now: Moment) -> Option<(State, Producer)> {
    let restored = Coordinator::restore(Config::default(), now, [record.clone()]);
    describe(&mut restored.unwrap(), id, now)
}

/// Returns the state and the producer that a coordinator describes.
pub fn describe(coordinator: &mut Coordinator, id: &str, now: Moment) -> Option<(State, Producer)> {
    let request = Request::DescribeTransactions(vec![id.into()]);
    let actions = coordinator.handle(now, RequestId(0), request);
    match actions.into_iter().next() {
        Some(Action::Answer(_, Answer::DescribeTransactions(mut all))) => {
            let described = all.remove(0).1.ok()?;
            Some((described.state, described.producer))
        }
        other => panic!("not {other:?}"),
    }
}
