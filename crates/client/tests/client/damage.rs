//! Records that cannot be read, and consumers that skip them.

use std::sync::{Arc, Mutex};

use millstream_base::{Offset, Timestamp, crc32c};
use millstream_client::{
    ClientError, Consumer, ConsumerConfig, DeliveryMode, DeliveryPath, OnDamage, SkippedRecords,
    Start,
};
use millstream_record::{ChunkBuilder, Compression, Filter};
use tokio::time::timeout;

use crate::consuming::{place, try_values};
use crate::support::{Node, TIME_MAX};

/// Returns two records, of which the second declares a length beyond its own.
fn poison() -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Compression::None);
    for value in [b"a", b"b"] {
        builder.push(Timestamp(1), None, Some(value), &[]).unwrap();
    }
    let mut chunk = builder.finish(None).unwrap().to_vec();
    chunk[69] = 0x7e;
    let crc = crc32c(&chunk[21..]);
    chunk[17..21].copy_from_slice(&crc.to_be_bytes());
    chunk
}

fn good(value: &str) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Compression::None);
    let value = Some(value.as_bytes());
    builder.push(Timestamp(1), None, value, &[]).unwrap();
    builder.finish(None).unwrap().to_vec()
}

/// Makes a node with a stream `t` of one partition, which holds `chunks`.
fn node_with(chunks: &[Vec<u8>]) -> Node {
    let node = Node::local();
    node.create("t", 1);
    let lane = node.log().stream("t").unwrap().partition(0).unwrap();
    for chunk in chunks {
        let appended = lane.append(chunk).unwrap();
        lane.acknowledge(&appended).unwrap();
    }
    node
}

/// Lets a consumer skip damaged records; the list grows by each skip that the consumer reports.
fn skip_and_collect() -> (OnDamage, Arc<Mutex<Vec<SkippedRecords>>>) {
    let skips = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&skips);
    let report = move |skipped: &SkippedRecords| reported.lock().unwrap().push(skipped.clone());
    (OnDamage::Skip(Arc::new(report)), skips)
}

/// A filtered subscription ended at a chunk that the server's filter cannot look through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filtered_consumer_skips_records_that_contradict_their_chunk() {
    let node = node_with(&[good("before"), poison(), good("not"), good("behind")]);
    let places = [(place("t", 0), Start::Earliest)];
    for delivery in [DeliveryMode::Pull, DeliveryMode::Push] {
        let (on_damage, skips) = skip_and_collect();
        let config = ConsumerConfig {
            delivery,
            filter: Some(Filter::parse(r#"value contains "be""#).unwrap()),
            on_damage,
            ..ConsumerConfig::default()
        };
        let client = node.client();
        let mut consumer = Consumer::assigned(&client, config, &places).await.unwrap();
        let mut values = Vec::new();
        while values.len() < 2 {
            let fetched = timeout(TIME_MAX, consumer.next()).await;
            let fetched = fetched.expect("records come").unwrap();
            values.extend(try_values(&fetched).unwrap());
        }
        assert_eq!(values, ["before", "behind"], "{delivery:?}");
        let skips = std::mem::take(&mut *skips.lock().unwrap());
        assert_eq!(skips.len(), 1, "{skips:?}");
        assert_eq!(skips[0].offsets.end, Offset(3));
    }
}

/// A chunk that was stored before servers refused it ended each consumer, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_contradict_their_chunk_are_skipped_and_reported() {
    let node = node_with(&[good("before"), poison(), good("behind")]);
    let places = [(place("t", 0), Start::Earliest)];
    for delivery in [DeliveryMode::Pull, DeliveryMode::Push] {
        let (on_damage, skips) = skip_and_collect();
        let config = ConsumerConfig {
            delivery,
            on_damage,
            ..ConsumerConfig::default()
        };
        let client = node.client();
        let mut consumer = Consumer::assigned(&client, config, &places).await.unwrap();
        let mut values = Vec::new();
        let mut path = DeliveryPath::Pulled;
        while values.len() < 3 {
            let fetched = timeout(TIME_MAX, consumer.next()).await;
            let fetched = fetched.expect("records come").unwrap();
            values.extend(try_values(&fetched).unwrap());
            path = fetched.path();
        }
        assert_eq!(values, ["before", "a", "behind"], "{path:?}");
        let skips = std::mem::take(&mut *skips.lock().unwrap());
        let [skipped] = skips.as_slice() else {
            panic!("{skips:?}");
        };
        assert_eq!(skipped.place, place("t", 0));
        assert_eq!(skipped.offsets, Offset(2)..Offset(3));
        assert!(skipped.reason.contains("record 1"), "{skipped:?}");

        // Without the setting to skip it, the consumer fails.
        let config = ConsumerConfig {
            delivery,
            ..ConsumerConfig::default()
        };
        let mut consumer = Consumer::assigned(&client, config, &places).await.unwrap();
        let failed = loop {
            let fetched = timeout(TIME_MAX, consumer.next()).await;
            let fetched = fetched.expect("records come").unwrap();
            if let Err(failed) = try_values(&fetched) {
                break failed;
            }
        };
        let ClientError::Damaged { offsets, .. } = &failed else {
            panic!("{failed}");
        };
        assert_eq!(*offsets, Offset(2)..Offset(3));
        assert!(
            failed
                .to_string()
                .starts_with("partition 0 of t, offset 2: "),
            "{failed}"
        );
    }
}
