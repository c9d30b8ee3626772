//! Transactions that end during an append to them.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::{ByteSize, ProducerEpoch, ProducerId, Sequence, SystemRandom};
use millstream_log::{LogConfig, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use millstream_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use millstream_wire::messages::{self, AddPartitionsToTxnRequest};
use millstream_wire::{ResponseError, StrBytes};

use super::*;
use crate::groups::Partition;
use crate::security::SecurityConfig;
use crate::security::service::SecurityService;
use crate::transactions::{
    AddPartitions, EndTransaction, InitProducerId, Producer, State, TransactionError,
    VerifyPartitions,
};

/// A marker that does not wait is written in far less.
const SILENCE: Duration = Duration::from_millis(200);

/// The longest that a test waits for anything.
const TIME_MAX: Duration = Duration::from_secs(60);

struct World {
    service: Arc<TransactionService>,
    lane: StreamPartition,
    producer: Producer,
    _dir: tempfile::TempDir,
}

impl World {
    /// Begins a transaction of a producer with one partition.
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig::with_pool(dir.path(), ByteSize(16 << 20));
        let log = Log::open(config).unwrap();
        let stream = log.create_stream("t", StreamConfig::default()).unwrap();
        let clock = Arc::clone(log.clock());
        let settings = SecurityConfig::default();
        let random = Arc::new(SystemRandom);
        let security = SecurityService::open(&log, &settings, Arc::clone(&clock), random).unwrap();
        let groups = GroupService::open(
            &log,
            Default::default(),
            Arc::clone(&clock),
            Arc::new(security),
            |_, _| Ok(()),
        )
        .unwrap();
        let groups = Arc::new(groups);
        let shares = ShareService::open(
            &log,
            Arc::clone(&groups),
            BTreeMap::new(),
            Arc::clone(&clock),
        );
        let shares = Arc::new(shares.unwrap());
        let service = TransactionService::open(&log, groups, shares, clock).unwrap();
        let mut world = World {
            service: Arc::new(service),
            lane: stream.partition(0).unwrap(),
            producer: Producer {
                id: ProducerId(0),
                epoch: ProducerEpoch(0),
            },
            _dir: dir,
        };
        let init = Request::InitProducerId(InitProducerId {
            transactional_id: Some("tx".into()),
            timeout: Duration::from_secs(60),
            two_phase: false,
            expected: None,
            knows_fencing: true,
        });
        let Ok(Answer::InitProducerId(Ok(producer))) = world.service.ask(init).await else {
            panic!("there is one");
        };
        world.producer = producer;
        let add = Request::AddPartitions(AddPartitions {
            transactional_id: "tx".into(),
            producer,
            partitions: vec![place()],
            knows_fencing: true,
        });
        let added = world.service.ask(add).await;
        assert_eq!(added, Ok(Answer::AddPartitions(Ok(()))));
        world
    }

    fn verify(&self) -> Request {
        Request::VerifyPartitions(VerifyPartitions {
            transactional_id: "tx".into(),
            producer: self.producer,
            partitions: vec![place()],
        })
    }

    /// Aborts the transaction, as older producers do.
    async fn abort(service: Arc<TransactionService>, producer: Producer) {
        let end = Request::EndTransaction(EndTransaction {
            transactional_id: "tx".into(),
            producer,
            outcome: Outcome::Aborted,
            bumps_epoch: false,
            knows_fencing: true,
        });
        let ended = service.ask(end).await;
        assert_eq!(ended, Ok(Answer::EndTransaction(Ok(producer))));
    }

    async fn wait_until_ended(&self) {
        let ended = tokio::time::timeout(TIME_MAX, self.ended());
        ended.await.expect("the transaction ends");
    }

    async fn ended(&self) {
        loop {
            let describe = Request::DescribeTransactions(vec!["tx".into()]);
            let Ok(Answer::DescribeTransactions(found)) = self.service.ask(describe).await else {
                panic!("it is there");
            };
            match found[0].1.as_ref().unwrap().state {
                State::CompleteAbort => return,
                _ => tokio::task::yield_now().await,
            }
        }
    }
}

fn place() -> TopicPartition {
    TopicPartition {
        topic: "t".into(),
        partition: Partition(0),
    }
}

fn append(lane: &StreamPartition, producer: Producer) {
    let mut builder = ChunkBuilder::new(Compression::None);
    let now = millstream_base::Timestamp(0);
    builder.push(now, None, Some(b"value"), &[]).unwrap();
    builder.set_transactional(true);
    let producer = millstream_record::Producer {
        id: producer.id,
        epoch: producer.epoch,
        sequence: Sequence(0),
    };
    lane.append(builder.finish(Some(producer)).unwrap())
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_waits_for_the_chunk_that_is_being_appended() {
    let world = World::new().await;
    let runtime = tokio::runtime::Handle::current();
    let service = Arc::clone(&world.service);
    let (lane, producer) = (world.lane.clone(), world.producer);
    let appended = world.service.append(world.verify(), |verified| {
        assert_eq!(
            verified,
            Ok(Answer::VerifyPartitions(vec![(place(), Ok(()))]))
        );
        // The producer has the answer that its transaction is aborted before its last chunk is stored.
        tokio::task::block_in_place(|| runtime.block_on(World::abort(service, producer)));
        std::thread::sleep(SILENCE);
        assert_eq!(lane.next_offset(), Offset(0), "the marker does not wait");
        append(&lane, producer);
    });
    appended.await;
    world.wait_until_ended().await;
    assert_eq!(world.lane.next_offset(), Offset(2));
    assert_eq!(world.lane.producers()[0].transaction, None);
}

#[tokio::test]
async fn an_append_verified_before_the_marker_is_refused_after_it() {
    let world = World::new().await;
    let permitted = world.service.ask(world.verify()).await;
    assert_eq!(
        permitted,
        Ok(Answer::VerifyPartitions(vec![(place(), Ok(()))]))
    );
    World::abort(Arc::clone(&world.service), world.producer).await;
    world.wait_until_ended().await;
    let refused = Err(TransactionError::TransactionAbortable);
    let verified = world.service.append(world.verify(), |verified| verified);
    assert_eq!(
        verified.await,
        Ok(Answer::VerifyPartitions(vec![(place(), refused)]))
    );
}

#[tokio::test]
async fn a_fenced_producer_needs_no_marker_in_a_partition_without_its_transaction() {
    let world = World::new().await;
    // A transaction of a later epoch has begun and ended in the partition.
    let later = EndMarker {
        producer_id: world.producer.id,
        producer_epoch: ProducerEpoch(world.producer.epoch.0 + 1),
        end: TransactionEnd::Abort,
        coordinator_epoch: COORDINATOR_EPOCH,
    };
    world.lane.append_marker(&later).unwrap();
    World::abort(Arc::clone(&world.service), world.producer).await;
    world.wait_until_ended().await;
    assert_eq!(world.lane.next_offset(), Offset(1));
}

/// Returns the request of a broker that verifies partitions of topic "t".
fn verification(
    id: &'static str,
    producer: Producer,
    topics: &[&[i32]],
) -> AddPartitionsToTxnRequest {
    let topics = topics.iter().map(|partitions| {
        AddPartitionsToTxnTopic::default()
            .with_name(messages::TopicName(StrBytes::from_static_str("t")))
            .with_partitions(partitions.to_vec())
    });
    let transaction = AddPartitionsToTxnTransaction::default()
        .with_transactional_id(messages::TransactionalId(StrBytes::from_static_str(id)))
        .with_producer_id(producer.id.0.into())
        .with_producer_epoch(producer.epoch.0)
        .with_verify_only(true)
        .with_topics(topics.collect());
    AddPartitionsToTxnRequest::default().with_transactions(vec![transaction])
}

/// Verifies partitions; returns each with its error, in the order of the answer.
async fn verified(world: &World, request: &AddPartitionsToTxnRequest) -> Vec<(i32, i16)> {
    let answer = add(&world.service, 5, request).await.unwrap();
    let topics = answer.results_by_transaction[0].topic_results.iter();
    let partitions = topics.flat_map(|topic| &topic.results_by_partition);
    let results = partitions.map(|result| (result.partition_index, result.partition_error_code));
    results.collect()
}

#[tokio::test]
async fn each_verified_partition_has_its_own_error() {
    let world = World::new().await;
    let request = verification("tx", world.producer, &[&[2, 0], &[1], &[0, -1]]);
    let missing = ResponseError::TransactionAbortable.code();
    let expected = [(2, missing), (0, 0), (1, missing), (0, 0), (-1, missing)];
    assert_eq!(verified(&world, &request).await, expected);
}

#[tokio::test]
async fn the_time_of_a_verification_grows_with_its_partitions_and_not_faster() {
    const PARTITIONS: i32 = 300_000;
    let world = World::new().await;
    let partitions: Vec<i32> = (0..PARTITIONS).rev().collect();
    for (id, error) in [
        ("tx", ResponseError::TransactionAbortable),
        ("unknown", ResponseError::InvalidProducerIdMapping),
    ] {
        let request = verification(id, world.producer, &[&partitions]);
        let began = Instant::now();
        let results = verified(&world, &request).await;
        let taken = began.elapsed();
        // Comparing each partition with each takes minutes.
        assert!(taken < Duration::from_secs(10), "{taken:?}");
        assert_eq!(results.len(), partitions.len());
        assert_eq!(results[0], (PARTITIONS - 1, error.code()));
    }
}
