//! Tests of transactions on servers before KIP-890: the producer adds partitions explicitly, and transactions share an
//! epoch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ByteSize, Offset, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server};
use millstream_log::{Log, LogConfig, StreamConfig};

use super::{ProducerConfig, ProducerRecord, TransactionConfig, TransactionalProducer};
use crate::client::Client;
use crate::config::ClientConfig;
use crate::handshake::TRANSACTIONS_MAX;
use crate::offsets::TopicPartition;

const PARTITIONS: u32 = 2;

#[test]
fn transactions_use_the_older_protocol_with_older_servers() {
    TRANSACTIONS_MAX.set(1);
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
    let config = StreamConfig {
        streamlets: PARTITIONS,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("t", config).unwrap();
    let client = Client::new(ClientConfig::new(server.local_address().to_string()));
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let named = runtime.block_on(async {
        let config = TransactionConfig {
            id: "tx".to_owned(),
            timeout: Duration::from_secs(60),
            two_phase: false,
        };
        let producer = TransactionalProducer::new(&client, ProducerConfig::default(), config);
        let producer = producer.await.unwrap();
        let mut named = Vec::new();
        for number in 0..6 {
            producer.begin().unwrap();
            for partition in 0..PARTITIONS {
                let record = ProducerRecord {
                    topic: "t",
                    partition: Some(partition as i32),
                    value: Some(b"value"),
                    ..ProducerRecord::default()
                };
                producer.send(record).await.unwrap();
            }
            producer.flush().await.unwrap();
            let place = TopicPartition {
                topic: "t".into(),
                partition: 0,
            };
            let offsets = BTreeMap::from([(place.clone(), Offset(number))]);
            let committed = producer.commit_offsets("g", &offsets, "note").await;
            committed.unwrap();
            let found = client.group_offsets("g").await.unwrap();
            assert!(!found.offsets.values().any(|at| *at == Offset(number)));
            named.push(producer.prepared().unwrap().unwrap());
            match number % 3 {
                0 => producer.abort().await.unwrap(),
                _ => producer.commit().await.unwrap(),
            }
        }
        // Wait until the group has seen the end of the last committed transaction.
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let found = client.group_offsets("g").await.unwrap();
            let offsets: Vec<Offset> = found.offsets.into_values().collect();
            if offsets == [Offset(5)] {
                assert!(found.metadata.values().eq(["note"]));
                break;
            }
            assert!(tokio::time::Instant::now() < until, "{offsets:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        named
    });
    for (one, next) in named.iter().zip(&named[1..]) {
        assert!(one.epoch < next.epoch, "each has an epoch of its own");
    }
    for partition in 0..PARTITIONS {
        let lane = stream.partition(partition).unwrap();
        let stable = lane.last_stable_offset();
        assert_eq!(stable, lane.next_offset(), "nothing is open");
        let aborted = lane.aborted_transactions(lane.earliest_offset(), stable);
        assert_eq!(aborted.unwrap().len(), 2);
    }
    drop(runtime);
    drop(server);
}
