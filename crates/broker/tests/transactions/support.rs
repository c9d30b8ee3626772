//! A coordinator with its clock and its log, and helpers for requests.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{ProducerEpoch, ProducerId, Timestamp};
use millstream_broker::groups::{Moment, Partition, RequestId};
use millstream_broker::transactions::*;

pub const SECOND: Duration = Duration::from_secs(1);
pub const TIMEOUT: Duration = Duration::from_secs(60);
pub const ID: &str = "payments";
pub const GROUP: &str = "readers";

pub type Answered<T> = Result<T, TransactionError>;

/// A coordinator with the parts around it that are real to it. All persisted records are durable at
/// once.
pub struct World {
    pub config: Config,
    pub coordinator: Coordinator,
    pub now: Moment,
    /// Everything that was ever appended.
    pub records: Vec<Record>,
    /// Markers that are to be written, and were not reported yet.
    pub markers: Vec<(Ending, Vec<TopicPartition>)>,
    /// Groups that are to be notified, and were not reported yet.
    pub groups: Vec<(Ending, Vec<String>)>,
    log: BTreeMap<Bytes, Bytes>,
    requests: u64,
}

impl World {
    pub fn new() -> Self {
        World::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        let now = Moment {
            elapsed: Duration::from_secs(1000),
            timestamp: Timestamp(1_700_000_000_000),
        };
        World {
            coordinator: Coordinator::new(config.clone(), now),
            config,
            now,
            records: Vec::new(),
            markers: Vec::new(),
            groups: Vec::new(),
            log: BTreeMap::new(),
            requests: 0,
        }
    }

    pub fn ask(&mut self, request: Request) -> Answer {
        self.requests += 1;
        let id = RequestId(self.requests);
        let actions = self.coordinator.handle(self.now, id, request);
        let mut answers = self.apply(actions);
        assert_eq!(answers.len(), 1, "each request is answered once");
        let (answered, answer) = answers.remove(0);
        assert_eq!(answered, id);
        answer
    }

    pub fn report(&mut self, report: Report) {
        let actions = self.coordinator.report(self.now, report);
        assert!(self.apply(actions).is_empty());
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.elapsed + time;
        loop {
            let next = self.coordinator.next_deadline().max(self.now.elapsed);
            if next > end {
                break;
            }
            self.set_clock(next);
            let actions = self.coordinator.tick(self.now);
            assert!(self.apply(actions).is_empty());
        }
        self.set_clock(end);
    }

    fn set_clock(&mut self, elapsed: Duration) {
        let passed = elapsed - self.now.elapsed;
        self.now.elapsed = elapsed;
        self.now.timestamp.0 += passed.as_millis() as i64;
    }

    fn apply(&mut self, actions: Vec<Action>) -> Vec<(RequestId, Answer)> {
        let mut answers = Vec::new();
        let is_changed = actions
            .iter()
            .any(|action| matches!(action, Action::Persist(_)));
        for action in actions {
            match action {
                Action::Persist(record) => self.append(record),
                Action::Answer(id, answer) => answers.push((id, answer)),
                Action::WriteMarkers(ending, partitions) => self.markers.push((ending, partitions)),
                Action::EndGroupOffsets(ending, groups) => {
                    let groups = groups.iter().map(|group| group.to_string());
                    self.groups.push((ending, groups.collect()));
                }
            }
        }
        if is_changed {
            assert_eq!(
                self.snapshot(),
                self.log,
                "the snapshot equals the persisted records"
            );
        }
        answers
    }

    /// Notes a persisted record.
    pub fn append(&mut self, record: Record) {
        self.records.push(record.clone());
        match record.value {
            Some(value) => self.log.insert(record.key, value),
            None => self.log.remove(&record.key),
        };
    }

    /// Returns the records that the coordinator believes to be in the log.
    fn snapshot(&self) -> BTreeMap<Bytes, Bytes> {
        let records = self.coordinator.snapshot().into_iter();
        let entries = records.map(|record| (record.key, record.value.expect("no tombstones")));
        // The producer ids are in every snapshot, in the log from the first of them on.
        let log = &self.log;
        entries
            .filter(|(key, _)| key[..] != [1] || log.contains_key(key))
            .collect()
    }

    /// Starts again from the log. Markers that were not reported are lost.
    pub fn restart(&mut self) {
        let records: Vec<Record> = match self.records.len() % 2 {
            0 => self.records.clone(),
            _ => self.coordinator.snapshot(),
        };
        self.coordinator = Coordinator::restore(self.config.clone(), self.now, records).unwrap();
        assert_eq!(self.snapshot(), self.log, "a restart changes nothing");
        self.markers.clear();
        self.groups.clear();
    }

    /// Writes all markers, and notifies all groups.
    pub fn deliver_outcomes(&mut self) {
        for (ending, partitions) in std::mem::take(&mut self.markers) {
            self.report(Report::MarkersWritten(ending, partitions));
        }
        for (ending, groups) in std::mem::take(&mut self.groups) {
            let groups = groups.into_iter().map(|group| group.into());
            self.report(Report::GroupOffsetsEnded(ending, groups.collect()));
        }
    }

    /// Begins as a producer.
    pub fn init(&mut self) -> Answered<Producer> {
        self.init_with(init(None))
    }

    /// Continues as a producer.
    pub fn go_on(&mut self, expected: Producer) -> Answered<Producer> {
        self.init_with(init(Some(expected)))
    }

    pub fn init_with(&mut self, init: InitProducerId) -> Answered<Producer> {
        match self.ask(Request::InitProducerId(init)) {
            Answer::InitProducerId(result) => result,
            other => panic!("a producer, not {other:?}"),
        }
    }

    pub fn add(&mut self, producer: Producer, partitions: &[(&str, i32)]) -> Answered<()> {
        self.add_with(add(producer, partitions))
    }

    pub fn add_with(&mut self, add: AddPartitions) -> Answered<()> {
        match self.ask(Request::AddPartitions(add)) {
            Answer::AddPartitions(result) => result,
            other => panic!("added, not {other:?}"),
        }
    }

    pub fn add_offsets(&mut self, producer: Producer, group: &str) -> Answered<()> {
        let add = AddOffsets {
            transactional_id: ID.into(),
            producer,
            group: group.into(),
            knows_fencing: true,
        };
        match self.ask(Request::AddOffsets(add)) {
            Answer::AddOffsets(result) => result,
            other => panic!("added, not {other:?}"),
        }
    }

    /// Verifies one partition.
    pub fn verify(&mut self, producer: Producer, topic: &str, number: i32) -> Answered<()> {
        let verify = VerifyPartitions {
            transactional_id: ID.into(),
            producer,
            partitions: partitions(&[(topic, number)]),
        };
        match self.ask(Request::VerifyPartitions(verify)) {
            Answer::VerifyPartitions(results) => results[0].1,
            other => panic!("verified, not {other:?}"),
        }
    }

    pub fn verify_offsets(&mut self, producer: Producer, group: &str) -> Answered<()> {
        let verify = VerifyOffsets {
            transactional_id: ID.into(),
            producer,
            group: group.into(),
        };
        match self.ask(Request::VerifyOffsets(verify)) {
            Answer::VerifyOffsets(result) => result,
            other => panic!("verified, not {other:?}"),
        }
    }

    /// Ends a transaction as older clients do.
    pub fn end(&mut self, producer: Producer, outcome: Outcome) -> Answered<Producer> {
        self.end_with(end(producer, outcome))
    }

    /// Ends a transaction as newer clients do, which get a new epoch by it.
    pub fn end_and_bump(&mut self, producer: Producer, outcome: Outcome) -> Answered<Producer> {
        self.end_with(EndTransaction {
            bumps_epoch: true,
            ..end(producer, outcome)
        })
    }

    pub fn end_with(&mut self, end: EndTransaction) -> Answered<Producer> {
        match self.ask(Request::EndTransaction(end)) {
            Answer::EndTransaction(result) => result,
            other => panic!("ended, not {other:?}"),
        }
    }

    pub fn describe(&mut self, id: &str) -> Answered<Described> {
        match self.ask(Request::DescribeTransactions(vec![id.into()])) {
            Answer::DescribeTransactions(results) => results[0].1.clone(),
            other => panic!("described, not {other:?}"),
        }
    }

    pub fn state(&mut self) -> State {
        self.describe(ID).unwrap().state
    }

    pub fn list(&mut self, list: ListTransactions) -> Answered<Vec<ListedTransaction>> {
        match self.ask(Request::ListTransactions(list)) {
            Answer::ListTransactions(result) => result,
            other => panic!("listed, not {other:?}"),
        }
    }

    /// The transactional ids that a list has.
    pub fn listed(&mut self, list: ListTransactions) -> Vec<String> {
        let listed = self.list(list).unwrap().into_iter();
        listed
            .map(|listed| listed.transactional_id.to_string())
            .collect()
    }

    /// A producer with an open transaction on one partition.
    pub fn ongoing(&mut self) -> Producer {
        let producer = self.init().unwrap();
        self.add(producer, &[("orders", 0)]).unwrap();
        producer
    }
}

pub fn init(expected: Option<Producer>) -> InitProducerId {
    InitProducerId {
        transactional_id: Some(ID.into()),
        timeout: TIMEOUT,
        two_phase: false,
        expected,
        knows_fencing: true,
    }
}

pub fn add(producer: Producer, added: &[(&str, i32)]) -> AddPartitions {
    AddPartitions {
        transactional_id: ID.into(),
        producer,
        partitions: partitions(added),
        knows_fencing: true,
    }
}

pub fn end(producer: Producer, outcome: Outcome) -> EndTransaction {
    EndTransaction {
        transactional_id: ID.into(),
        producer,
        outcome,
        bumps_epoch: false,
        knows_fencing: true,
    }
}

pub fn partitions(partitions: &[(&str, i32)]) -> Vec<TopicPartition> {
    let partitions = partitions.iter().map(|(topic, number)| TopicPartition {
        topic: (*topic).into(),
        partition: Partition(*number),
    });
    partitions.collect()
}

pub fn producer(id: i64, epoch: i16) -> Producer {
    Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
    }
}
