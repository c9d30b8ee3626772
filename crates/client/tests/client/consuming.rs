//! Consumers of chosen partitions.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_client::{
    Client, ClientConfig, ClientError, Compression, Consumer, ConsumerConfig, Decompressor,
    Fetched, Isolation, Producer, ProducerConfig, ProducerRecord, ResponseError, Start,
    TopicPartition,
};
use millstream_wire::ApiKey;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::gate::node_behind_gate;
use crate::push::pushed;
use crate::support::{Node, TIME_MAX, client_through, node_behind_proxy, produce, wait_until};

pub fn place(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition {
        topic: topic.into(),
        partition,
    }
}

pub fn values(fetched: &Fetched) -> Vec<String> {
    try_values(fetched).unwrap()
}

/// Returns the values; none if the server took the memory back: then they come again.
pub fn values_there(fetched: &Fetched) -> Vec<String> {
    match try_values(fetched) {
        Err(ClientError::TakenBack { .. }) => Vec::new(),
        values => values.unwrap(),
    }
}

pub fn try_values(fetched: &Fetched) -> Result<Vec<String>, ClientError> {
    let mut values = Vec::new();
    fetched.each(&mut Decompressor::default(), |record| {
        let value = record.value.unwrap_or_default();
        values.push(String::from_utf8_lossy(value).into_owned());
        ControlFlow::Continue(())
    })?;
    Ok(values)
}

/// Reads `count` values, in their order of arrival.
async fn read(consumer: &mut Consumer, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    while all.len() < count {
        let fetched = timeout(TIME_MAX, consumer.next()).await;
        all.extend(values(&fetched.expect("records come").unwrap()));
    }
    all
}

async fn consumer(client: &Client, places: &[(TopicPartition, Start)]) -> Consumer {
    let consumer = Consumer::assigned(client, ConsumerConfig::default(), places);
    consumer.await.unwrap()
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn records_of_every_compression_are_consumed_in_order() {
    let node = Node::start();
    let client = node.client();
    for compression in Compression::ALL {
        let topic = format!("t-{compression}");
        node.create(&topic, 1);
        let config = ProducerConfig {
            compression,
            ..ProducerConfig::default()
        };
        let producer = Producer::new(&client, config);
        for value in numbers(20_000) {
            let record = ProducerRecord {
                topic: &topic,
                value: Some(value.as_bytes()),
                ..ProducerRecord::default()
            };
            producer.send(record).await.unwrap();
        }
        producer.flush().await.unwrap();
        let mut consumer = consumer(&client, &[(place(&topic, 0), Start::Earliest)]).await;
        assert_eq!(read(&mut consumer, 20_000).await, numbers(20_000));
    }
}

#[tokio::test]
async fn a_consumer_begins_at_the_given_position() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    let producer = Producer::new(&client, ProducerConfig::default());
    for (number, value) in numbers(100).iter().enumerate() {
        let record = ProducerRecord {
            topic: "t",
            timestamp: Some(Timestamp(1000 + number as i64)),
            value: Some(value.as_bytes()),
            ..ProducerRecord::default()
        };
        producer.send(record).await.unwrap();
    }
    producer.flush().await.unwrap();
    for (start, first) in [
        (Start::Earliest, 0),
        (Start::At(Offset(7)), 7),
        (Start::Since(Timestamp(1042)), 42),
        (Start::Since(Timestamp(-5)), 0),
    ] {
        let mut consumer = consumer(&client, &[(place("t", 0), start)]).await;
        let read = read(&mut consumer, 1).await;
        assert_eq!(read[0], first.to_string(), "{start:?}");
    }
    for start in [Start::Latest, Start::Since(Timestamp(1 << 50))] {
        let mut consumer = consumer(&client, &[(place("t", 0), start)]).await;
        produce(&client, "t", ["new".to_owned()]).await;
        assert_eq!(read(&mut consumer, 1).await, ["new"]);
    }
}

#[tokio::test]
async fn a_position_by_time_is_before_records_that_are_appended_during_the_look_up() {
    let (asked, permits) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(1)));
    let (counted, passing) = (Arc::clone(&asked), Arc::clone(&permits));
    let (node, address) = node_behind_gate(move |api| {
        let (counted, passing) = (Arc::clone(&counted), Arc::clone(&passing));
        async move {
            if api == ApiKey::ListOffsets {
                counted.fetch_add(1, Ordering::Relaxed);
                passing.acquire().await.unwrap().forget();
            }
            true
        }
    })
    .await;
    node.create("t", 1);
    let client = Client::new(ClientConfig::new(address.to_string()));
    let looked_up = tokio::spawn(async move {
        let starts = [(place("t", 0), Start::Since(Timestamp(0)))];
        client.offsets(&starts, Isolation::Committed).await
    });
    let is_asked_again = || asked.load(Ordering::Relaxed) == 2;
    wait_until("the client asks twice", is_asked_again).await;
    produce(&node.client(), "t", ["new".to_owned()]).await;
    permits.add_permits(1);
    let found = looked_up.await.unwrap().unwrap();
    assert_eq!(found[&place("t", 0)], Offset(0));
}

#[tokio::test]
async fn new_records_wake_a_waiting_consumer() {
    let node = Node::start();
    node.create("t", 2);
    let client = node.client();
    let places = [0, 1].map(|partition| (place("t", partition), Start::Latest));
    let mut consumer = consumer(&client, &places).await;
    let nothing = timeout(Duration::from_millis(100), consumer.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    for value in numbers(20) {
        produce(&client, "t", [value.clone()]).await;
        assert_eq!(read(&mut consumer, 1).await, [value]);
    }
}

#[tokio::test]
async fn fetching_ahead_is_bounded() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    let value = "x".repeat(10_000);
    produce(&client, "t", (0..400).map(|_| value.clone())).await;
    let config = ConsumerConfig {
        prefetch_bytes: 64 << 10,
        partition_bytes_max: 32 << 10,
        ..ConsumerConfig::default()
    };
    let places = [(place("t", 0), Start::Earliest)];
    let mut consumer = Consumer::assigned(&client, config, &places).await.unwrap();
    let mut held = vec![consumer.next().await.unwrap()];
    // A consumer whose user keeps the fetched records receives nothing beyond the bound.
    while let Ok(fetched) = timeout(Duration::from_millis(300), consumer.next()).await {
        held.push(fetched.unwrap());
    }
    let bytes: usize = held.iter().map(Fetched::bytes).sum();
    assert!((32 << 10..=128 << 10).contains(&bytes), "{bytes}");
    let mut count: usize = held.iter().map(|fetched| values(fetched).len()).sum();
    drop(held);
    while count < 400 {
        count += values(&consumer.next().await.unwrap()).len();
    }
    assert_eq!(count, 400);
}

#[tokio::test]
async fn a_missing_offset_is_reported_or_reset() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    produce(&client, "t", numbers(10)).await;
    let places = [(place("t", 0), Start::At(Offset(100)))];
    let mut resets = consumer(&client, &places).await;
    assert_eq!(read(&mut resets, 10).await, numbers(10));
    let config = ConsumerConfig {
        reset: None,
        ..ConsumerConfig::default()
    };
    let mut fails = Consumer::assigned(&client, config, &places).await.unwrap();
    let error = fails.next().await.unwrap_err();
    assert!(error.to_string().contains("offset 100"), "{error}");
    let missing = [(place("u", 0), Start::Earliest)];
    let error = Consumer::assigned(&client, ConsumerConfig::default(), &missing).await;
    assert!(matches!(error, Err(ClientError::Refused { .. })));
}

#[tokio::test]
async fn a_deleted_stream_is_reported_while_the_server_answers() {
    let node = Node::start();
    node.create("t", 1);
    let mut config = ClientConfig::new(node.address().to_string());
    config.unknown_timeout = Duration::from_millis(300);
    let client = Client::new(config);
    produce(&client, "t", numbers(3)).await;
    let mut consumer = consumer(&client, &[(place("t", 0), Start::Earliest)]).await;
    assert_eq!(read(&mut consumer, 3).await, numbers(3));
    node.log().delete_stream("t").unwrap();
    // Far shorter than the timeout for a server that does not answer.
    let ended = timeout(Duration::from_secs(20), consumer.next()).await;
    let error = ended.expect("it ends").unwrap_err();
    assert_eq!(
        error.response_error(),
        Some(ResponseError::UnknownTopicOrPartition)
    );
    node.create("t", 1);
    produce(&client, "t", numbers(2)).await;
    assert_eq!(read(&mut consumer, 2).await, numbers(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_comes_once_and_in_order_however_connections_are_cut() {
    every_record_comes_once_and_in_order(ConsumerConfig::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_is_pushed_once_and_in_order_however_connections_are_cut() {
    every_record_comes_once_and_in_order(pushed()).await;
}

async fn every_record_comes_once_and_in_order(config: ConsumerConfig) {
    let (node, proxy) = node_behind_proxy(30_000, 7).await;
    node.create("t", 2);
    let lane = node.log().stream("t").unwrap();
    for partition in 0..2 {
        let direct = lane.partition(partition).unwrap();
        let mut builder = millstream_record::ChunkBuilder::new(Compression::None);
        for value in numbers(5000) {
            let pushed = builder.push(Timestamp(0), None, Some(value.as_bytes()), &[]);
            pushed.unwrap();
            if builder.len() > 500 {
                direct.append(builder.finish(None).unwrap()).unwrap();
                builder.clear();
            }
        }
        if !builder.is_empty() {
            direct.append(builder.finish(None).unwrap()).unwrap();
        }
    }
    let client = client_through(&proxy);
    let config = ConsumerConfig {
        answer_bytes_max: 8000,
        partition_bytes_max: 2000,
        prefetch_bytes: 8000,
        ..config
    };
    let places = [0, 1].map(|partition| (place("t", partition), Start::At(Offset(0))));
    let mut consumer = Consumer::assigned(&client, config, &places).await.unwrap();
    let mut read: HashMap<i32, Vec<String>> = HashMap::new();
    while read.values().map(Vec::len).sum::<usize>() < 10_000 {
        let fetched = timeout(TIME_MAX, consumer.next()).await;
        let fetched = fetched.expect("records come").unwrap();
        let partition = read.entry(fetched.partition()).or_default();
        partition.extend(values(&fetched));
    }
    assert!(proxy.cuts() > 3, "{} cuts", proxy.cuts());
    assert!(read.values().all(|values| *values == numbers(5000)));
}
