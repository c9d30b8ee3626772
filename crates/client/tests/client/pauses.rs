//! Partitions that are paused for a while.

use std::collections::BTreeSet;

use millstream_client::{
    Client, Consumer, ConsumerConfig, DeliveryMode, Producer, ProducerConfig, Start,
};

use crate::consuming::place;
use crate::growth::{due, read, send};
use crate::push::remote;
use crate::support::Node;

async fn paused_partitions_are_not_read(node: &Node, client: &Client, delivery: DeliveryMode) {
    node.create("t", 2);
    let config = ConsumerConfig {
        delivery,
        ..ConsumerConfig::default()
    };
    let starts = [0, 1].map(|partition| (place("t", partition), Start::Earliest));
    let mut consumer = Consumer::assigned(client, config, &starts).await.unwrap();
    let producer = Producer::new(client, ProducerConfig::default());
    send(&producer, 0, "one").await;
    read(&mut consumer, due(&["one"])).await;
    for round in 0..2 {
        consumer.set_paused(BTreeSet::from([place("t", 1)]));
        // An answer in flight at the time of the pause holds nothing of the partition.
        for number in 0..3 {
            let paused = format!("paused {round}.{number}");
            if number > 0 {
                send(&producer, 1, &paused).await;
            }
            let value = format!("two {round}.{number}");
            send(&producer, 0, &value).await;
            read(&mut consumer, due(&[&value])).await;
        }
        consumer.set_paused(BTreeSet::new());
        let values = [1, 2].map(|number| format!("paused {round}.{number}"));
        read(&mut consumer, due(&values.each_ref().map(String::as_str))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_pulls_does_not_read_paused_partitions() {
    let node = Node::start();
    paused_partitions_are_not_read(&node, &node.client(), DeliveryMode::Pull).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_pushed_to_does_not_read_paused_partitions() {
    let node = Node::local();
    paused_partitions_are_not_read(&node, &remote(&node).await, DeliveryMode::Push).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_shares_memory_does_not_read_paused_partitions() {
    let node = Node::local();
    paused_partitions_are_not_read(&node, &node.client(), DeliveryMode::Push).await;
}
