//! The transactional producer against a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_client::{
    Client, ClientConfig, ClientError, Consumer, ConsumerConfig, Isolation, ProducerConfig,
    ProducerRecord, ResponseError, Start, TransactionConfig, TransactionalProducer,
};
use millstream_wire::ApiKey;
use tokio::time::timeout;

use crate::consuming::{place, values};
use crate::gate::node_behind_gate;
use crate::support::{Node, TIME_MAX, client_through, node_behind_proxy, produce};

const PARTITIONS: u32 = 3;

fn config(id: &str) -> TransactionConfig {
    TransactionConfig {
        id: id.to_owned(),
        timeout: Duration::from_secs(60),
        two_phase: false,
    }
}

async fn producer(client: &Client, config: TransactionConfig) -> TransactionalProducer {
    let producer = TransactionalProducer::new(client, ProducerConfig::default(), config);
    producer.await.unwrap()
}

async fn send(producer: &TransactionalProducer, value: &str) {
    let record = ProducerRecord {
        topic: "t",
        key: Some(value.as_bytes()),
        value: Some(value.as_bytes()),
        ..ProducerRecord::default()
    };
    producer.send(record).await.unwrap();
}

/// Returns the committed values, by partition, without the last one of each partition, which is sent outside of
/// transactions.
async fn committed(client: &Client) -> Vec<Vec<String>> {
    const END: &str = "end";
    let mut all = Vec::new();
    for partition in 0..PARTITIONS as i32 {
        let config = ConsumerConfig {
            isolation: Isolation::Committed,
            ..ConsumerConfig::default()
        };
        let ends = millstream_client::Producer::new(client, ProducerConfig::default());
        let record = ProducerRecord {
            topic: "t",
            partition: Some(partition),
            value: Some(END.as_bytes()),
            ..ProducerRecord::default()
        };
        ends.send(record).await.unwrap();
        ends.flush().await.unwrap();
        let places = [(place("t", partition), Start::Earliest)];
        let mut consumer = Consumer::assigned(client, config, &places).await.unwrap();
        let mut of_partition: Vec<String> = Vec::new();
        while of_partition.last().map(String::as_str) != Some(END) {
            let fetched = timeout(TIME_MAX, consumer.next()).await;
            of_partition.extend(values(&fetched.expect("records come").unwrap()));
        }
        of_partition.pop();
        all.push(of_partition);
    }
    all
}

async fn committed_sorted(client: &Client) -> Vec<String> {
    let mut all: Vec<String> = committed(client).await.concat();
    all.sort();
    all
}

#[tokio::test]
async fn consumers_read_committed_transactions_and_no_aborted_ones() {
    let node = Node::start();
    node.create("t", PARTITIONS);
    let client = node.client();
    let producer = producer(&client, config("tx")).await;
    let mut named = Vec::new();
    for number in 0..4 {
        producer.begin().unwrap();
        assert_eq!(producer.prepared().unwrap(), None, "it has no records");
        for record in 0..20 {
            send(&producer, &format!("{number}-{record:02}")).await;
        }
        producer.flush().await.unwrap();
        named.push(producer.prepared().unwrap().unwrap());
        match number % 2 {
            0 => producer.commit().await.unwrap(),
            _ => producer.abort().await.unwrap(),
        }
    }
    named.dedup();
    assert_eq!(named.len(), 4, "each has a name of its own");
    // A transaction without records does not exist for the server.
    producer.begin().unwrap();
    producer.commit().await.unwrap();
    let expected: Vec<String> = [0, 2]
        .iter()
        .flat_map(|number| (0..20).map(move |record| format!("{number}-{record:02}")))
        .collect();
    let by_partition = committed(&client).await;
    assert!(by_partition.iter().all(|values| !values.is_empty()));
    let mut all = by_partition.concat();
    all.sort();
    assert_eq!(all, expected);
}

#[tokio::test]
async fn records_outside_of_a_transaction_are_refused() {
    let node = Node::start();
    node.create("t", PARTITIONS);
    let client = node.client();
    let producer = producer(&client, config("tx")).await;
    let record = ProducerRecord {
        topic: "t",
        ..ProducerRecord::default()
    };
    let refused = producer.send(record).await;
    assert!(matches!(refused, Err(ClientError::NoTransaction)));
    producer.begin().unwrap();
    assert!(matches!(
        producer.begin(),
        Err(ClientError::TransactionOpen)
    ));
}

#[tokio::test]
async fn a_second_producer_fences_the_first_and_aborts_its_transaction() {
    let node = Node::start();
    node.create("t", PARTITIONS);
    let client = node.client();
    let first = producer(&client, config("tx")).await;
    first.begin().unwrap();
    send(&first, "lost").await;
    first.flush().await.unwrap();
    let second = producer(&client, config("tx")).await;
    second.begin().unwrap();
    send(&second, "kept").await;
    assert!(first.commit().await.unwrap_err().is_fenced());
    assert!(first.abort().await.unwrap_err().is_fenced());
    second.commit().await.unwrap();
    assert_eq!(committed_sorted(&client).await, ["kept"]);
}

#[tokio::test]
async fn a_transaction_that_takes_too_long_is_aborted_unless_it_has_two_phases() {
    let node = Node::start();
    node.create("t", PARTITIONS);
    let client = node.client();
    let short = Duration::from_millis(300);
    let one = TransactionConfig {
        timeout: short,
        ..config("one")
    };
    let two = TransactionConfig {
        timeout: short,
        two_phase: true,
        ..config("two")
    };
    let (one, two) = (producer(&client, one).await, producer(&client, two).await);
    for (producer, value) in [(&one, "lost"), (&two, "kept")] {
        producer.begin().unwrap();
        send(producer, value).await;
        producer.flush().await.unwrap();
    }
    let named = two.prepared().unwrap().unwrap();
    drop(two);
    // The server has aborted the transactions that took too long.
    loop {
        let found = client.transaction("one").await.unwrap().unwrap();
        if found.state == "CompleteAbort" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(one.commit().await.unwrap_err().is_fenced());
    let node = node.restart().await;
    let client = node.client();
    tokio::time::sleep(2 * short).await;
    let found = client.transaction("two").await.unwrap().unwrap();
    assert!(found.is_open() && found.timeout.is_none());
    assert_eq!(found.identity, named);
    assert!(!found.partitions.is_empty());
    // Repeats, as after a lost answer.
    for _ in 0..2 {
        client.end_transaction("two", named, true).await.unwrap();
    }
    let refused = client.end_transaction("two", named, false).await;
    let refused = refused.unwrap_err().response_error();
    assert_eq!(refused, Some(ResponseError::InvalidTxnState));
    assert_eq!(committed_sorted(&client).await, ["kept"]);
}

#[tokio::test]
async fn fencing_the_producers_of_an_id_aborts_the_open_transaction() {
    let node = Node::start();
    node.create("t", PARTITIONS);
    let client = node.client();
    let two = TransactionConfig {
        two_phase: true,
        ..config("two")
    };
    let two = producer(&client, two).await;
    two.begin().unwrap();
    send(&two, "lost").await;
    two.flush().await.unwrap();
    client.fence_producers("two").await.unwrap();
    let listed = client.transactions().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(!listed[0].is_open());
    assert!(two.commit().await.unwrap_err().is_fenced());
    assert!(committed_sorted(&client).await.is_empty());
}

/// The next transaction would have the identity of the one before.
#[tokio::test]
async fn no_transaction_begins_before_the_one_before_has_ended() {
    let swallows = Arc::new(AtomicBool::new(false));
    let is_on = Arc::clone(&swallows);
    let (node, address) = node_behind_gate(move |api| {
        std::future::ready(api != ApiKey::EndTxn || !is_on.load(Ordering::Relaxed))
    })
    .await;
    node.create("t", PARTITIONS);
    let mut client = ClientConfig::new(address.to_string());
    client.request_timeout = Duration::from_secs(2);
    let settings = ProducerConfig {
        delivery_timeout: Duration::from_secs(2),
        ..ProducerConfig::default()
    };
    let client = Client::new(client);
    let producer = TransactionalProducer::new(&client, settings, config("tx"));
    let producer = producer.await.unwrap();
    for is_committed in [false, true] {
        let end = async || match is_committed {
            true => producer.commit().await,
            false => producer.abort().await,
        };
        producer.begin().unwrap();
        send(&producer, if is_committed { "kept" } else { "lost" }).await;
        producer.flush().await.unwrap();
        swallows.store(true, Ordering::Relaxed);
        end().await.unwrap_err();
        let begun = producer.begin();
        assert!(matches!(begun, Err(ClientError::TransactionOpen)));
        swallows.store(false, Ordering::Relaxed);
        end().await.unwrap();
    }
    producer.begin().unwrap();
    producer.commit().await.unwrap();
    assert_eq!(committed_sorted(&node.client()).await, ["kept"]);
}

#[tokio::test]
async fn transactions_survive_connections_that_are_cut() {
    let (node, proxy) = node_behind_proxy(20_000, 11).await;
    node.create("t", PARTITIONS);
    let client = client_through(&proxy);
    let producer = producer(&client, config("tx")).await;
    let mut expected: BTreeMap<u32, String> = BTreeMap::new();
    for number in 0..60 {
        producer.begin().unwrap();
        for record in 0..20 {
            send(&producer, &format!("{number:03}-{record:02}")).await;
        }
        match number % 3 {
            0 => producer.abort().await.unwrap(),
            _ => {
                producer.commit().await.unwrap();
                for record in 0..20 {
                    expected.insert(number * 20 + record, format!("{number:03}-{record:02}"));
                }
            }
        }
    }
    assert!(proxy.cuts() > 0);
    proxy.behave();
    let expected: Vec<String> = expected.into_values().collect();
    assert_eq!(committed_sorted(&client).await, expected);
    produce(&client, "t", ["after".to_owned()]).await;
}
