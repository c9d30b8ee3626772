//! Pushed records equal pulled ones.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use millstream_base::{Offset, Timestamp};
use millstream_client::{
    Client, ClientConfig, ClientError, Compression, Consumer, ConsumerConfig, Decompressor,
    DeliveryMode, DeliveryPath, Fetched, Filter, ResponseError, Start, TopicPartition,
};
use millstream_record::ChunkBuilder;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::consuming::{place, values};
use crate::support::{Node, TIME_MAX, limit_reading, produce};
use crate::transactions::Transactions;

/// Records by partition: offset, key and value.
type Read = BTreeMap<i32, Vec<(Offset, Option<Vec<u8>>, Vec<u8>)>>;

/// The ends of the partitions.
type Ends = BTreeMap<TopicPartition, Offset>;

pub fn pushed() -> ConsumerConfig {
    ConsumerConfig {
        delivery: DeliveryMode::Push,
        ..ConsumerConfig::default()
    }
}

/// Returns a client that cannot share memory, since it has a quota for reading.
pub async fn remote(node: &Node) -> Client {
    let mut config = ClientConfig::new(node.address().to_string());
    config.client_id = "remote".to_owned();
    limit_reading(&node.client(), "remote").await;
    Client::new(config)
}

pub async fn next(consumer: &mut Consumer) -> Result<Fetched, ClientError> {
    let fetched = timeout(TIME_MAX, consumer.next()).await;
    fetched.expect("records come")
}

/// Reads to the ends, once these arrive, and again the records that the server took back. Returns
/// the paths.
async fn read_to(
    mut consumer: Consumer,
    ends: watch::Receiver<Option<Ends>>,
) -> (Read, Vec<DeliveryPath>) {
    let mut read = Read::new();
    let mut paths = Vec::new();
    let has_ended = |consumer: &Consumer| {
        let ends = ends.borrow();
        let positions = consumer.positions();
        let is_at = |ends: &Ends| positions.iter().all(|(place, next)| *next >= ends[place]);
        ends.as_ref().is_some_and(is_at)
    };
    let started_at = Instant::now();
    while !has_ended(&consumer) {
        assert!(started_at.elapsed() < TIME_MAX, "it gets to the end");
        // Dropping a call loses nothing.
        let Ok(fetched) = timeout(Duration::from_millis(10), consumer.next()).await else {
            continue;
        };
        let fetched = fetched.unwrap();
        paths.push(fetched.path());
        let mut records = Vec::new();
        let each = fetched.each(&mut Decompressor::default(), |record| {
            let key = record.key.map(<[u8]>::to_vec);
            records.push((
                record.offset,
                key,
                record.value.unwrap_or_default().to_vec(),
            ));
            ControlFlow::Continue(())
        });
        match each {
            Ok(()) => read.entry(fetched.partition()).or_default().extend(records),
            Err(ClientError::TakenBack { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    paths.dedup();
    (read, paths)
}

/// Appends chunks of a few records, in any compression, to any partition of `t`.
fn append(node: &Node, random: &mut fastrand::Rng, chunks: usize) {
    let stream = node.log().stream("t").unwrap();
    for _ in 0..chunks {
        let compression = random.choice(Compression::ALL).unwrap();
        let mut builder = ChunkBuilder::new(compression);
        for _ in 0..random.usize(1..30) {
            let key = random.u8(0..4).to_string();
            let value = "v".repeat(random.usize(1..300)) + &random.u32(..).to_string();
            let key = random.bool().then_some(key.as_bytes());
            let pushed = builder.push(Timestamp(7), key, Some(value.as_bytes()), &[]);
            pushed.unwrap();
        }
        let lane = stream.partition(random.u32(0..3)).unwrap();
        let appended = lane.append(builder.finish(None).unwrap()).unwrap();
        lane.acknowledge(&appended).unwrap();
    }
}

async fn pushed_and_pulled_are_the_same(seed: u64, filter: Option<&str>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let node = Node::local();
    node.create("t", 3);
    let client = node.client();
    let remote = remote(&node).await;
    let filter = filter.map(|filter| filter.parse::<Filter>().unwrap());
    let places = [0, 1, 2].map(|partition| (place("t", partition), Start::Earliest));
    let start = async |client: &Client, delivery| {
        let config = ConsumerConfig {
            delivery,
            filter: filter.clone(),
            partition_bytes_max: 4000,
            ..ConsumerConfig::default()
        };
        Consumer::assigned(client, config, &places).await.unwrap()
    };
    append(&node, &mut random, 50);
    // One consumer shares memory, one is pushed records over the network, one fetches: all while
    // more records arrive.
    let (all_ends, ends) = watch::channel(None);
    let mut reading = Vec::new();
    for (client, delivery) in [
        (&client, DeliveryMode::Push),
        (&remote, DeliveryMode::Push),
        (&client, DeliveryMode::Pull),
    ] {
        let consumer = start(client, delivery).await;
        reading.push(tokio::spawn(read_to(consumer, ends.clone())));
    }
    let mut transactions = Transactions::begin(&client).await;
    let written = async {
        for number in 0..20 {
            transactions.send(&format!("{number}a")).await;
            append(&node, &mut random, 10);
            transactions.send(&format!("{number}b")).await;
            transactions.end(random.bool()).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Every partition ends with a record.
        (0..3).for_each(|_| append(&node, &mut random, 10));
        let latest = places.clone().map(|(place, _)| (place, Start::Latest));
        let ends = client.offsets(&latest, ConsumerConfig::default().isolation);
        ends.await.unwrap().into_iter().collect::<Ends>()
    };
    all_ends.send_replace(Some(written.await));
    let mut all = Vec::new();
    for read in reading {
        all.push(read.await.unwrap());
    }
    let paths: Vec<_> = all.iter().map(|(_, paths)| paths.as_slice()).collect();
    let expected = [
        [DeliveryPath::Shared],
        [DeliveryPath::Pushed],
        [DeliveryPath::Pulled],
    ];
    assert_eq!(paths, expected);
    let (pulled, _) = all.pop().unwrap();
    assert!(pulled.values().map(Vec::len).sum::<usize>() > 100);
    for (read, paths) in all {
        assert_eq!(read, pulled, "{paths:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_and_pulled_records_are_the_same() {
    for seed in 0..3 {
        pushed_and_pulled_are_the_same(seed, None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_and_pulled_records_are_the_same_behind_a_filter() {
    let filter = r#"key = "1" and value contains "7""#;
    for seed in 3..6 {
        pushed_and_pulled_are_the_same(seed, Some(filter)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_offset_is_reported_with_the_earliest_or_reset() {
    let node = Node::local();
    node.create("t", 1);
    let client = node.client();
    let numbers: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    produce(&client, "t", numbers.clone()).await;
    let places = [(place("t", 0), Start::At(Offset(100)))];
    for client in [client, remote(&node).await] {
        let mut resets = Consumer::assigned(&client, pushed(), &places)
            .await
            .unwrap();
        let mut read = Vec::new();
        while read.len() < 10 {
            read.extend(values(&next(&mut resets).await.unwrap()));
        }
        assert_eq!(read, numbers);
        let config = ConsumerConfig {
            reset: None,
            ..pushed()
        };
        let fails = Consumer::assigned(&client, config, &places).await;
        let error = next(&mut fails.unwrap()).await.unwrap_err();
        let expected = "partition 0 of t: offset 100 is not there; the earliest is 0";
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_deleted_under_a_push_is_reported() {
    let node = Node::local();
    let remote = remote(&node).await;
    for client in [node.client(), remote] {
        node.create("t", 1);
        let mut config = client.config().clone();
        config.unknown_timeout = Duration::from_millis(300);
        let client = Client::new(config);
        produce(&client, "t", ["here".to_owned()]).await;
        let places = [(place("t", 0), Start::Earliest)];
        let consumer = Consumer::assigned(&client, pushed(), &places);
        let mut consumer = consumer.await.unwrap();
        assert_eq!(values(&next(&mut consumer).await.unwrap()), ["here"]);
        node.log().delete_stream("t").unwrap();
        let error = next(&mut consumer).await.unwrap_err();
        assert_eq!(
            error.response_error(),
            Some(ResponseError::UnknownTopicOrPartition)
        );
    }
}
