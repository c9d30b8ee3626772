//! Producers.

use std::time::{Duration, Instant};

use millstream_base::{Offset, Timestamp};
use millstream_client::{
    Client, ClientConfig, ClientError, Compression, Delivery, Header, Producer, ProducerConfig,
    ProducerRecord, ResponseError, Stored,
};
use millstream_record::Decompressor;
use rustix::time::{ClockId, clock_gettime};

use crate::support::{Node, produce};

fn record<'a>(value: &'a str) -> ProducerRecord<'a> {
    ProducerRecord {
        topic: "t",
        value: Some(value.as_bytes()),
        ..ProducerRecord::default()
    }
}

#[tokio::test]
async fn every_delivery_has_the_partition_and_offset_of_its_record() {
    let node = Node::start();
    node.create("t", 1);
    let producer = Producer::new(&node.client(), ProducerConfig::default());
    let mut deliveries: Vec<Delivery> = Vec::new();
    for number in 0..5000 {
        deliveries.push(producer.send(record(&number.to_string())).await.unwrap());
    }
    for (number, delivery) in deliveries.into_iter().enumerate() {
        let stored = Stored {
            partition: 0,
            offset: Some(Offset(number as u64)),
        };
        assert_eq!(delivery.wait().await.unwrap(), stored);
    }
    let expected: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    assert_eq!(node.values("t", 0), expected);
}

#[tokio::test]
async fn keys_headers_and_times_arrive_in_every_compression() {
    let node = Node::start();
    for compression in Compression::ALL {
        let name = format!("t-{compression}");
        node.create(&name, 1);
        let config = ProducerConfig {
            compression,
            ..ProducerConfig::default()
        };
        let producer = Producer::new(&node.client(), config);
        for number in 0..1000 {
            let value = format!("value {number}");
            let headers = [
                Header {
                    name: b"k.city",
                    value: Some(b"Namur"),
                },
                Header {
                    name: b"none",
                    value: None,
                },
            ];
            let sent = producer.send(ProducerRecord {
                topic: &name,
                partition: None,
                timestamp: Some(Timestamp(number)),
                key: (number % 2 == 0).then_some(b"key"),
                value: Some(value.as_bytes()),
                headers: &headers,
            });
            sent.await.unwrap();
        }
        producer.flush().await.unwrap();
        let lane = node.log().stream(&name).unwrap().partition(0).unwrap();
        let mut reader = lane.reader(lane.earliest());
        let mut decompressor = Decompressor::default();
        let mut number = 0;
        while let Some(chunks) = reader.read(1 << 20).unwrap() {
            for chunk in chunks.chunks() {
                let chunk = chunk.unwrap();
                assert_eq!(chunk.header().attributes.compression(), compression);
                for record in chunk.records(&mut decompressor).unwrap() {
                    let record = record.unwrap();
                    assert_eq!(record.timestamp, Timestamp(number));
                    assert_eq!(record.key, (number % 2 == 0).then_some(&b"key"[..]));
                    assert_eq!(record.value, Some(format!("value {number}").as_bytes()));
                    assert_eq!(record.headers().count(), 2);
                    number += 1;
                }
            }
        }
        assert_eq!(number, 1000, "{compression}");
    }
}

#[tokio::test]
async fn a_key_stays_in_its_partition_and_records_without_keys_are_spread() {
    let node = Node::start();
    node.create("t", 4);
    let producer = Producer::new(&node.client(), ProducerConfig::default());
    let mut places = std::collections::HashMap::new();
    for number in 0..400 {
        let key = (number % 20).to_string();
        let sent = producer.send(ProducerRecord {
            key: Some(key.as_bytes()),
            ..record("keyed")
        });
        let stored = sent.await.unwrap();
        let partition = stored.wait().await.unwrap().partition;
        assert_eq!(*places.entry(key).or_insert(partition), partition);
        if number == 40 {
            break;
        }
    }
    let value = "x".repeat(1000);
    for _ in 0..200 {
        producer.send(record(&value)).await.unwrap();
    }
    producer.flush().await.unwrap();
    for partition in 0..4 {
        let stored = node.values("t", partition);
        assert!(stored.iter().filter(|found| **found == value).count() > 30);
    }
}

#[tokio::test]
async fn records_that_cannot_be_sent_are_refused() {
    let node = Node::start();
    node.create("t", 1);
    let producer = Producer::new(&node.client(), ProducerConfig::default());
    let unknown = producer
        .send(ProducerRecord {
            topic: "u",
            ..record("value")
        })
        .await
        .unwrap_err();
    assert!(unknown.to_string().contains("topic u"), "{unknown}");
    let partition = producer
        .send(ProducerRecord {
            partition: Some(7),
            ..record("value")
        })
        .await
        .unwrap_err();
    assert!(partition.to_string().contains("partition 7"), "{partition}");
    let unreachable = Client::new(ClientConfig::new("127.0.0.1:1"));
    let producer = Producer::new(&unreachable, ProducerConfig::default());
    let error = producer.send(record("value")).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
}

#[tokio::test]
async fn a_refused_record_does_not_fail_others() {
    let node = Node::start();
    node.create("t", 1);
    let config = ProducerConfig {
        linger: Duration::ZERO,
        ..ProducerConfig::default()
    };
    let producer = Producer::new(&node.client(), config);
    let huge = "x".repeat(9 << 20);
    let mut deliveries = Vec::new();
    for number in 0..300 {
        let value = match number {
            100 | 200 => huge.clone(),
            _ => number.to_string(),
        };
        deliveries.push(producer.send(record(&value)).await.unwrap());
    }
    for (number, delivery) in deliveries.into_iter().enumerate() {
        let is_huge = number == 100 || number == 200;
        assert_eq!(delivery.wait().await.is_err(), is_huge, "record {number}");
    }
    assert!(producer.flush().await.is_err());
    producer.flush().await.unwrap();
    let expected = (0..300).filter(|number| ![100, 200].contains(number));
    let expected: Vec<String> = expected.map(|number| number.to_string()).collect();
    assert_eq!(node.values("t", 0), expected);
}

#[tokio::test]
async fn memory_is_bounded_and_further_sends_wait() {
    let node = Node::start();
    node.create("t", 1);
    let config = ProducerConfig {
        buffer_bytes: 64 << 10,
        ..ProducerConfig::default()
    };
    let producer = Producer::new(&node.client(), config);
    let value = "x".repeat(10_000);
    for _ in 0..300 {
        producer.send(record(&value)).await.unwrap();
    }
    producer.flush().await.unwrap();
    assert_eq!(node.values("t", 0).len(), 300);
    let error = producer
        .send(record(&"x".repeat(100_000)))
        .await
        .unwrap_err();
    assert!(
        matches!(error, ClientError::RecordTooLarge { .. }),
        "{error}"
    );
}

#[tokio::test]
async fn records_not_stored_in_time_fail() {
    let node = Node::start();
    node.create("t", 1);
    let config = ProducerConfig {
        delivery_timeout: Duration::from_millis(200),
        ..ProducerConfig::default()
    };
    let producer = Producer::new(&node.client(), config);
    producer.send(record("first")).await.unwrap();
    producer.flush().await.unwrap();
    drop(node);
    let delivery = producer.send(record("lost")).await.unwrap();
    let error = delivery.wait().await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    assert!(producer.flush().await.is_err());
    // The producer does not retry the connection while it has nothing to send, and sleeps.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let before = used();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let spent = used() - before;
    assert!(spent < Duration::from_millis(100), "{spent:?}");
}

/// A client that does not wait long for a stream that is gone.
fn impatient(node: &Node) -> Client {
    let mut config = ClientConfig::new(node.address().to_string());
    config.unknown_timeout = Duration::from_millis(300);
    Client::new(config)
}

#[tokio::test]
async fn a_deleted_stream_is_reported_long_before_the_delivery_timeout() {
    let node = Node::start();
    node.create("t", 1);
    let producer = Producer::new(&impatient(&node), ProducerConfig::default());
    producer.send(record("stored")).await.unwrap();
    producer.flush().await.unwrap();
    assert!(producer.error().is_none());
    node.log().delete_stream("t").unwrap();
    let started_at = Instant::now();
    for _ in 0..2 {
        let delivery = producer.send(record("lost")).await.unwrap();
        let error = delivery.wait().await.unwrap_err();
        assert_eq!(
            error.response_error(),
            Some(ResponseError::UnknownTopicOrPartition)
        );
        let noted = producer.error().expect("it is noted");
        assert_eq!(noted.to_string(), error.to_string());
        assert!(producer.flush().await.is_err());
    }
    assert!(started_at.elapsed() < Duration::from_secs(20));
    node.create("t", 1);
    producer.send(record("again")).await.unwrap();
    producer.flush().await.unwrap();
    assert_eq!(node.values("t", 0), ["again"]);
}

#[tokio::test]
async fn a_producer_waits_for_a_stream_that_is_recreated() {
    let node = Node::start();
    node.create("t", 1);
    let producer = Producer::new(&node.client(), ProducerConfig::default());
    producer.send(record("stored")).await.unwrap();
    producer.flush().await.unwrap();
    node.log().delete_stream("t").unwrap();
    let delivery = producer.send(record("again")).await.unwrap();
    let delivered = tokio::spawn(delivery.wait());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!delivered.is_finished());
    node.create("t", 1);
    delivered.await.unwrap().unwrap();
    assert_eq!(node.values("t", 0), ["again"]);
}

#[tokio::test]
async fn a_producer_continues_after_an_outage_of_the_server() {
    let node = Node::start();
    node.create("t", 2);
    let client = node.client();
    produce(&client, "t", ["before".to_owned()]).await;
    let producer = Producer::new(&client, ProducerConfig::default());
    let mut deliveries = Vec::new();
    deliveries.push(producer.send(record("first")).await.unwrap());
    producer.flush().await.unwrap();
    let restarting = tokio::spawn(node.restart());
    for number in 0..100 {
        let value = number.to_string();
        let sent = producer.send(ProducerRecord {
            key: Some(value.as_bytes()),
            ..record(&value)
        });
        deliveries.push(sent.await.unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for delivery in deliveries {
        delivery.wait().await.unwrap();
    }
    let node = restarting.await.unwrap();
    let stored = node.values("t", 0).len() + node.values("t", 1).len();
    assert_eq!(stored, 102);
}
