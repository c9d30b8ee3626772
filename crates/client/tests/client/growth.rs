//! Streams that get more partitions, or are made again, while they are read and written.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_base::Offset;
use millstream_client::{
    Client, ClientError, Consumer, ConsumerConfig, DeliveryMode, DeliveryPath, Isolation, Producer,
    ProducerConfig, ProducerRecord, Start,
};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::consuming::{place, values_there};
use crate::push::{next, pushed, remote};
use crate::support::{Node, TIME_MAX, produce};
use crate::watch::create;

/// Sends a value to a partition.
pub async fn send(producer: &Producer, partition: i32, value: &str) {
    let record = ProducerRecord {
        topic: "t",
        partition: Some(partition),
        value: Some(value.as_bytes()),
        ..ProducerRecord::default()
    };
    producer.send(record).await.unwrap();
    producer.flush().await.unwrap();
}

/// Reads until all of these values were read.
pub async fn read(consumer: &mut Consumer, mut due: BTreeSet<String>) -> Vec<DeliveryPath> {
    let mut paths = Vec::new();
    while !due.is_empty() {
        let fetched = next(consumer).await.unwrap();
        paths.push(fetched.path());
        for value in values_there(&fetched) {
            assert!(due.remove(&value), "{value} was not due, or came before");
        }
    }
    paths
}

pub fn due(values: &[&str]) -> BTreeSet<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

/// Returns a consumer of a stream's present and future partitions.
async fn follower(client: &Client, config: ConsumerConfig) -> Consumer {
    let topic = client.topic("t").await.unwrap();
    let starts: Vec<_> = topic
        .partitions()
        .map(|place| (place, Start::Earliest))
        .collect();
    let mut consumer = Consumer::assigned(client, config, &starts).await.unwrap();
    consumer.follow(&topic, |_, _| true);
    consumer
}

/// Checks that added partitions are read from the beginning, with records at the time of the
/// addition or later.
async fn added_partitions_are_read(
    node: &Node,
    client: &Client,
    delivery: DeliveryMode,
) -> Vec<DeliveryPath> {
    node.create("t", 1);
    let config = ConsumerConfig {
        delivery,
        ..ConsumerConfig::default()
    };
    let mut consumer = follower(client, config).await;
    let producer = Producer::new(client, ProducerConfig::default());
    send(&producer, 0, "first").await;
    let mut paths = read(&mut consumer, due(&["first"])).await;
    // Partition 1 is in the first streamlet, and partitions 2 and 3 are of another one.
    node.log().grow_stream("t", 1, 2).unwrap();
    send(&producer, 1, "lane").await;
    node.log().grow_stream("t", 2, 2).unwrap();
    send(&producer, 3, "streamlet").await;
    paths.extend(read(&mut consumer, due(&["lane", "streamlet"])).await);
    send(&producer, 2, "later").await;
    send(&producer, 0, "old").await;
    paths.extend(read(&mut consumer, due(&["later", "old"])).await);
    paths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_pulls_reads_added_partitions() {
    let node = Node::start();
    let paths = added_partitions_are_read(&node, &node.client(), DeliveryMode::Pull).await;
    assert!(paths.iter().all(|path| *path == DeliveryPath::Pulled));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_pushed_to_reads_added_partitions() {
    let node = Node::local();
    let client = remote(&node).await;
    let paths = added_partitions_are_read(&node, &client, DeliveryMode::Push).await;
    assert!(paths.iter().all(|path| *path == DeliveryPath::Pushed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_shares_memory_reads_added_partitions() {
    let node = Node::local();
    let paths = added_partitions_are_read(&node, &node.client(), DeliveryMode::Push).await;
    assert!(paths.iter().all(|path| *path == DeliveryPath::Shared));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_learns_the_offsets_of_an_added_partition_and_may_decline_it() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    let topic = client.topic("t").await.unwrap();
    let starts = [(place("t", 0), Start::Earliest)];
    let config = ConsumerConfig::default();
    let mut consumer = Consumer::assigned(&client, config, &starts).await.unwrap();
    let added = Arc::new(Mutex::new(Vec::new()));
    let adding = Arc::clone(&added);
    node.log().grow_stream("t", 3, 1).unwrap();
    let producer = Producer::new(&client, ProducerConfig::default());
    for partition in [1, 2, 2] {
        send(&producer, partition, &format!("of {partition}")).await;
    }
    consumer.follow(&topic, move |place, held| {
        adding
            .lock()
            .push((place.partition, held.start.0, held.end.0));
        place.partition == 1
    });
    read(&mut consumer, due(&["of 1"])).await;
    assert_eq!(*added.lock(), [(1, 0, 1), (2, 0, 2)]);
    let positions = consumer.positions();
    assert_eq!(positions.len(), 2);
    assert!(!positions.contains_key(&place("t", 2)));
}

/// It ended with "partition 1 of t: there are only 1".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_a_group_outlives_the_growth_of_its_stream() {
    for config in [ConsumerConfig::default(), pushed()] {
        let node = Node::local();
        node.create("t", 1);
        let client = node.client();
        let mut member = Consumer::in_group(&client, config, "g", &["t"]).unwrap();
        let producer = Producer::new(&client, ProducerConfig::default());
        send(&producer, 0, "first").await;
        read(&mut member, due(&["first"])).await;
        node.log().grow_stream("t", 2, 2).unwrap();
        let partitions = ["0", "1", "2", "3"];
        for (partition, value) in (0..).zip(partitions) {
            send(&producer, partition, value).await;
        }
        read(&mut member, due(&partitions)).await;
        member.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_asks_again_for_partitions_that_it_does_not_know() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    client.topic("t").await.unwrap();
    let producer = Producer::new(&client, ProducerConfig::default());
    send(&producer, 0, "known").await;
    node.log().grow_stream("t", 1, 2).unwrap();
    send(&producer, 1, "added").await;
    let starts = [(place("t", 1), Start::Latest)];
    let ends = client.offsets(&starts, Default::default()).await.unwrap();
    assert_eq!(ends[&place("t", 1)].0, 1);
    // A partition that does not exist is still an error.
    let none = [(place("t", 2), Start::Latest)];
    let error = client.offsets(&none, Default::default()).await.unwrap_err();
    assert!(error.to_string().contains("there are only 2"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_reports_a_stream_that_was_created_again() {
    let node = Node::start();
    for follows in [true, false] {
        node.create("t", 1);
        let client = node.client();
        produce(&client, "t", (0..10).map(|number| number.to_string())).await;
        let mut consumer = match follows {
            true => follower(&client, ConsumerConfig::default()).await,
            false => {
                let starts = [(place("t", 0), Start::Earliest)];
                let config = ConsumerConfig {
                    reset: None,
                    ..ConsumerConfig::default()
                };
                Consumer::assigned(&client, config, &starts).await.unwrap()
            }
        };
        let values: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        read(&mut consumer, values.into_iter().collect()).await;
        node.log().delete_stream("t").unwrap();
        if !follows {
            // This call finds out that the stream is gone.
            let call = timeout(client.config().backoff * 10, consumer.next()).await;
            assert!(call.is_err());
        }
        node.create("t", 1);
        for _ in 0..2 {
            let error = next(&mut consumer).await.unwrap_err();
            let is_expected = matches!(&error, ClientError::MadeAgain { stream } if stream == "t");
            assert!(is_expected, "{error}");
        }
        node.log().delete_stream("t").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_reads_a_stream_that_is_made_again_from_its_beginning() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    let mut member = Consumer::in_group(&client, ConsumerConfig::default(), "g", &["t"]).unwrap();
    let producer = Producer::new(&client, ProducerConfig::default());
    for value in ["a", "b", "c"] {
        send(&producer, 0, value).await;
    }
    read(&mut member, due(&["a", "b", "c"])).await;
    member.commit().await.unwrap();
    node.log().delete_stream("t").unwrap();
    node.create("t", 1);
    let producer = Producer::new(&client, ProducerConfig::default());
    let others: Vec<String> = (0..6).map(|number| number.to_string()).collect();
    for value in &others {
        send(&producer, 0, value).await;
    }
    // Until the group updates the member, it may read on from its position in the deleted stream.
    let mut due: BTreeSet<String> = others.into_iter().collect();
    while !due.is_empty() {
        let fetched = next(&mut member).await.unwrap();
        values_there(&fetched).iter().for_each(|value| {
            due.remove(value);
        });
    }
    member.close().await.unwrap();
}

/// It sent records by the old number of partitions: to wrong ones, and to ones that the stream lacked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_notices_that_a_stream_was_made_again_with_fewer_partitions() {
    let node = Node::start();
    create(node.log(), 8);
    let client = node.client();
    let producer = Producer::new(&client, ProducerConfig::default());
    let keys: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let put = async |key: &str| {
        let record = ProducerRecord {
            topic: "t",
            key: Some(key.as_bytes()),
            value: Some(b"value"),
            ..ProducerRecord::default()
        };
        producer.send(record).await?.wait().await
    };
    for key in &keys {
        put(key).await.unwrap();
    }
    node.log().delete_stream("t").unwrap();
    create(node.log(), 3);
    let table = node.client().keyed("t");
    for key in &keys {
        let stored = async {
            while let Err(error) = put(key).await {
                assert!(error.is_unknown_stream(), "{error}");
            }
        };
        timeout(TIME_MAX / 3, stored).await.expect("in time");
        assert!(table.get(key).await.unwrap().is_some(), "{key}");
    }
    let absent = ProducerRecord {
        topic: "t",
        partition: Some(3),
        ..ProducerRecord::default()
    };
    let error = producer.send(absent).await.unwrap_err().to_string();
    assert!(error.contains("partition 3 of t, which has 3"), "{error}");
}

/// It ended with "partition 1 of t, which has 1".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_non_blocking_producer_offers_records_to_added_partitions() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    let producer = Producer::new(&client, ProducerConfig::default());
    let offer = |partition| {
        producer.offer(&ProducerRecord {
            topic: "t",
            partition: Some(partition),
            value: Some(b"value"),
            ..ProducerRecord::default()
        })
    };
    producer.room("t").await.unwrap();
    assert!(offer(0).unwrap());
    node.log().grow_stream("t", 3, 1).unwrap();
    assert!(!offer(1).unwrap());
    producer.room("t").await.unwrap();
    assert!(offer(1).unwrap());
    assert!(offer(2).unwrap());
    // The stream lacks this partition.
    for _ in 0..2 {
        assert!(!offer(3).unwrap());
        let error = producer.room("t").await.unwrap_err().to_string();
        assert!(error.contains("partition 3 of t, which has 3"), "{error}");
    }
    producer.room("t").await.unwrap();
    node.log().grow_stream("t", 4, 1).unwrap();
    assert!(!offer(3).unwrap());
    producer.room("t").await.unwrap();
    assert!(offer(3).unwrap());
    producer.flush().await.unwrap();
    for partition in 0..4 {
        assert_eq!(node.values("t", partition), ["value"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_a_group_are_set_in_added_partitions() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    let set = async |partition| {
        let offsets = [(place("t", partition), Offset(1))].into();
        client.set_offsets("g", &offsets).await
    };
    set(0).await.unwrap();
    set(1).await.unwrap_err();
    node.log().grow_stream("t", 2, 1).unwrap();
    let producer = Producer::new(&client, ProducerConfig::default());
    for value in ["one", "two"] {
        send(&producer, 1, value).await;
    }
    let latest = [(place("t", 1), Start::Latest)];
    let ends = client.offsets(&latest, Isolation::Committed).await.unwrap();
    assert_eq!(ends[&place("t", 1)], Offset(2));
    set(1).await.unwrap();
    let mut member = Consumer::in_group(&client, ConsumerConfig::default(), "g", &["t"]).unwrap();
    read(&mut member, due(&["two"])).await;
    member.close().await.unwrap();
}
