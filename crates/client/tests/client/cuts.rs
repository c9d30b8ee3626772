//! Connections are cut at random, in the middle of requests and of answers.

use std::time::Duration;

use millstream_client::{Compression, Producer, ProducerConfig, ProducerRecord};

use crate::support::{client_through, node_behind_proxy};

const PARTITIONS: u32 = 3;
const RECORDS: usize = 6_000;

/// Checks that no record is lost or stored twice, and that the order holds, with five requests in
/// flight.
async fn check_cuts(seed: u64) {
    let (node, proxy) = node_behind_proxy(4_000, seed).await;
    node.create("t", PARTITIONS);
    let client = client_through(&proxy);
    let config = ProducerConfig {
        // Many small requests, so that several are in flight.
        linger: Duration::ZERO,
        batch_bytes: 500,
        compression: Compression::ALL[seed as usize % Compression::ALL.len()],
        ..ProducerConfig::default()
    };
    let producer = Producer::new(&client, config);
    let mut deliveries = Vec::new();
    for number in 0..RECORDS {
        let value = number.to_string();
        let delivery = loop {
            // The first look-up may be cut off, too.
            let sent = producer.send(ProducerRecord {
                topic: "t",
                partition: Some(number as i32 % PARTITIONS as i32),
                value: Some(value.as_bytes()),
                ..ProducerRecord::default()
            });
            match sent.await {
                Ok(delivery) => break delivery,
                Err(error) => assert!(error.is_retriable(), "{error}"),
            }
        };
        deliveries.push(delivery);
        if number % 50 == 0 {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    }
    for delivery in deliveries {
        delivery.wait().await.unwrap();
    }
    assert!(proxy.cuts() > 3, "{} cuts, seed {seed}", proxy.cuts());
    proxy.behave();
    for partition in 0..PARTITIONS {
        let expected = (0..RECORDS)
            .skip(partition as usize)
            .step_by(PARTITIONS as usize);
        let expected: Vec<String> = expected.map(|number| number.to_string()).collect();
        assert!(node.values("t", partition) == expected, "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_stored_once_and_in_order_however_connections_are_cut() {
    for seed in 0..8 {
        check_cuts(seed).await;
    }
}
