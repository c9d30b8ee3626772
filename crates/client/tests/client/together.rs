//! Changes of several keys that are made together, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use millstream_base::{ByteSize, Offset};
use millstream_client::{
    ChangedKey, ClientError, Expected, KeyChange, KeyRange, KeyedStream, NewValue, ProducerConfig,
    ProducerRecord, ResponseError, TransactionConfig, TransactionalProducer,
};
use millstream_log::{CLEANUP_POLICY, COMPACT, Durability, StreamConfig};
use tokio::time::timeout;

use crate::support::{Node, TIME_MAX};

const PARTITIONS: u32 = 3;

fn create(node: &Node, durability: Durability) -> KeyedStream {
    let policy = (CLEANUP_POLICY.to_owned(), COMPACT.to_owned());
    let config = StreamConfig {
        streamlets: PARTITIONS,
        durability,
        settings: [policy].into(),
        chunk_bytes_max: Some(ByteSize(1 << 20)),
        ..StreamConfig::default()
    };
    node.log().create_stream("t", config).unwrap();
    node.client().keyed("t")
}

fn change(key: &str, change: NewValue, expected: Option<Expected>) -> KeyChange {
    KeyChange {
        key: key.to_owned().into(),
        expected,
        change,
        ttl: None,
        secondary: Vec::new(),
    }
}

fn put(key: &str, value: &str) -> KeyChange {
    change(key, NewValue::Put(value.to_owned().into()), None)
}

fn add(key: &str, number: i64) -> KeyChange {
    change(key, NewValue::Add(number), None)
}

async fn value(table: &KeyedStream, key: &str) -> Option<String> {
    let found = table.get(key).await.unwrap();
    found.map(|found| String::from_utf8(found.value.to_vec()).unwrap())
}

/// The key and the reason of a change that is refused, and all others with it.
#[track_caller]
fn refused(outcome: Result<Vec<ChangedKey>, ClientError>) -> (String, ClientError) {
    match outcome {
        Err(ClientError::NotTogether { key, why }) => {
            (String::from_utf8(key.to_vec()).unwrap(), *why)
        }
        outcome => panic!("{outcome:?}"),
    }
}

/// Keys of each partition, so that a list of several has all partitions.
fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("key {n}")).collect()
}

#[tokio::test]
async fn changes_of_all_partitions_are_made_together_and_seen_at_once() {
    for durability in [Durability::Sync, Durability::Written, Durability::Async] {
        let node = Node::start();
        let table = create(&node, durability);
        let keys = keys(20);
        let changes: Vec<KeyChange> = keys.iter().map(|key| put(key, key)).collect();
        let stored = table.change_together(&changes).await.unwrap();
        let partitions: Vec<u32> = stored.iter().map(|it| it.stored.partition).collect();
        assert!((0..PARTITIONS).all(|partition| partitions.contains(&partition)));
        for (key, stored) in keys.iter().zip(&stored) {
            let found = table.get(key).await.unwrap().unwrap();
            assert_eq!(
                (&found.value[..], found.version),
                (key.as_bytes(), stored.stored.version)
            );
        }
        // Other kinds of changes.
        let version = stored[1].stored.version;
        let changes = [
            change(&keys[0], NewValue::Delete, Some(Expected::Present)),
            change(
                &keys[1],
                NewValue::Put("7".into()),
                Some(Expected::Version(version)),
            ),
            change("new", NewValue::Add(3), Some(Expected::Absent)),
            put(&keys[2], "x"),
        ];
        let stored = table.change_together(&changes).await.unwrap();
        assert_eq!(stored[2].sum, Some(3));
        for (key, expected) in [
            (&keys[0][..], None),
            (&keys[1], Some("7")),
            ("new", Some("3")),
        ] {
            assert_eq!(value(&table, key).await.as_deref(), expected, "{key}");
        }
        assert_eq!(table.change_together(&[]).await.unwrap(), []);
        // They are durable even if the stream's setting requires less, also in one partition.
        let alone = table.change_together(&[put("alone", "1")]).await.unwrap();
        for changed in stored.iter().chain(&alone) {
            let partition = node.log().stream("t").unwrap();
            let partition = partition.partition(changed.stored.partition).unwrap();
            assert!(partition.durable_offset() > changed.stored.version);
        }
        let node = node.restart().await;
        assert_eq!(
            value(&node.client().keyed("t"), "new").await.as_deref(),
            Some("3")
        );
    }
}

#[tokio::test]
async fn one_condition_that_does_not_hold_refuses_all_changes() {
    let node = Node::start();
    let table = create(&node, Durability::Sync);
    let keys = keys(6);
    table.put(&keys[5], "old").await.unwrap();
    let mut changes: Vec<KeyChange> = keys.iter().map(|key| put(key, "new")).collect();
    changes[5].expected = Some(Expected::Absent);
    let (key, why) = refused(table.change_together(&changes).await);
    assert_eq!(key, keys[5]);
    assert!(
        matches!(
            why,
            ClientError::OtherVersion {
                newest: Some(Offset(_)),
                ..
            }
        ),
        "{why}"
    );
    for key in &keys[..5] {
        assert_eq!(value(&table, key).await, None);
    }
    assert_eq!(value(&table, &keys[5]).await.as_deref(), Some("old"));

    // In one partition, too.
    let of_one = |n: usize| format!("{}{n}", keys[0]);
    let partition =
        |key: &str| millstream_base::partition_of_key(key.as_bytes(), PARTITIONS as usize);
    let same: Vec<String> = (0..100).map(of_one).collect();
    let same = same
        .iter()
        .filter(|key| partition(key) == partition(&keys[0]));
    let mut changes: Vec<KeyChange> = same.map(|key| put(key, "1")).collect();
    changes.push(change(&keys[0], NewValue::Delete, Some(Expected::Present)));
    let (key, _) = refused(table.change_together(&changes).await);
    assert_eq!(key, keys[0]);
    let mut scan = table.scan(KeyRange::all());
    let mut found = 0;
    while scan.next().await.unwrap().is_some() {
        found += 1;
    }
    assert_eq!(found, 1);

    // A sum that cannot be made.
    table.put("text", "x").await.unwrap();
    let (key, why) = refused(table.change_together(&[add("n", 1), add("text", 1)]).await);
    assert!(
        key == "text" && why.to_string().contains("not a whole number"),
        "{why}"
    );
}

#[tokio::test]
async fn invalid_batches_of_changes_are_refused_with_the_reason() {
    let node = Node::start();
    let table = create(&node, Durability::Sync);
    let twice = [&keys(20)[..], &keys(1)].concat();
    let twice: Vec<KeyChange> = twice.iter().map(|key| put(key, "1")).collect();
    let error = table.change_together(&twice).await.unwrap_err();
    let named = "changes 0 and 20 for stream t are of the same key";
    assert!(error.to_string().contains(named), "{error}");
    let many: Vec<KeyChange> = (0..1025).map(|n| put(&n.to_string(), "")).collect();
    let error = table.change_together(&many).await.unwrap_err();
    assert!(error.to_string().contains("at most 1024"), "{error}");
    let long = "k".repeat((1 << 20) + 1);
    let error = table
        .change_together(&[put("a", "1"), put(&long, "")])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("entry 1"), "{error}");
    let large = "v".repeat(2 << 20);
    let changes = [
        put("a", "1"),
        put("b", "1"),
        put("c", "1"),
        put("d", &large),
    ];
    let error = table.change_together(&changes).await.unwrap_err();
    assert_eq!(
        error.response_error(),
        Some(ResponseError::MessageTooLarge),
        "{error}"
    );
    for key in ["a", "b", "c", "d"] {
        assert_eq!(value(&table, key).await, None, "{key}");
    }
    // Nothing holds back later writes.
    table.put("a", "2").await.unwrap();
    assert_eq!(value(&table, "a").await.as_deref(), Some("2"));
    // The ids of the broker's transactions are its own.
    let config = TransactionConfig {
        id: "__millstream.keys.0".to_owned(),
        timeout: Duration::from_secs(10),
        two_phase: false,
    };
    let client = node.client();
    let stolen = TransactionalProducer::new(&client, ProducerConfig::default(), config);
    assert!(stolen.await.is_err());
}

/// Writes a key in a transaction of a client.
async fn open_transaction(node: &Node, key: &str) -> TransactionalProducer {
    let config = TransactionConfig {
        id: "open".to_owned(),
        timeout: Duration::from_secs(60),
        two_phase: false,
    };
    let client = node.client();
    let producer = TransactionalProducer::new(&client, ProducerConfig::default(), config);
    let producer = producer.await.unwrap();
    producer.begin().unwrap();
    let record = ProducerRecord {
        topic: "t",
        key: Some(key.as_bytes()),
        value: Some(b"client"),
        ..ProducerRecord::default()
    };
    producer.send(record).await.unwrap();
    producer.flush().await.unwrap();
    producer
}

#[tokio::test]
async fn an_open_transaction_of_a_client_blocks_only_its_own_keys() {
    let node = Node::start();
    let table = create(&node, Durability::Sync);
    let producer = open_transaction(&node, "key 0").await;
    let changes: Vec<KeyChange> = keys(6).iter().map(|key| put(key, "1")).collect();
    let (key, why) = refused(table.change_together(&changes).await);
    assert_eq!(key, "key 0");
    assert_eq!(
        why.response_error(),
        Some(ResponseError::ConcurrentTransactions),
        "{why}"
    );
    let stored = timeout(TIME_MAX, table.change_together(&changes[1..])).await;
    stored.unwrap().unwrap();
    producer.commit().await.unwrap();
    table.change_together(&changes).await.unwrap();
    assert_eq!(value(&table, "key 0").await.as_deref(), Some("1"));
}

/// A transaction that has begun earlier holds back the last stable offset of a partition, and with it later ones that end first.
#[tokio::test]
async fn changes_are_answered_once_look_ups_see_them_despite_open_transactions() {
    let node = Node::start();
    let table = create(&node, Durability::Sync);
    let partition =
        |key: &String| millstream_base::partition_of_key(key.as_bytes(), PARTITIONS as usize);
    let of = |wanted: usize| {
        let keys = keys(50).into_iter();
        keys.filter(move |key| partition(key) == wanted)
    };
    let (first, last) = (of(0).collect::<Vec<_>>(), of(2).next().unwrap());
    // Changes of a key of an open transaction wait for its end.
    let producer = open_transaction(&node, &last).await;
    let waiting = [put(&first[0], "1"), put(&last, "1")];
    let waiting = tokio::spawn({
        let table = node.client().keyed("t");
        async move { table.change_together(&waiting).await }
    });
    let log = node.log().stream("t").unwrap().partition(0).unwrap();
    let until = tokio::time::Instant::now() + TIME_MAX;
    while log.durable_offset() == Offset(0) {
        assert!(tokio::time::Instant::now() < until, "no change is made");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(value(&table, &first[0]).await, None);
    // These have another last partition.
    let other = of(1).next().unwrap();
    table
        .change_together(&[put(&first[1], "2"), put(&other, "2")])
        .await
        .unwrap();
    assert_eq!(value(&table, &first[1]).await.as_deref(), Some("2"));
    let (key, _) = refused(timeout(TIME_MAX, waiting).await.unwrap().unwrap());
    assert_eq!(key, last);
    producer.commit().await.unwrap();
    assert_eq!(value(&table, &first[0]).await, None);
}

/// Clients move amounts between accounts, while others write and read single keys of the same partitions.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_transfers_preserve_the_sum_and_show_single_writes() {
    const ACCOUNTS: usize = 8;
    const MOVES: usize = 60;
    let node = Node::start();
    let table = create(&node, Durability::Written);
    let begin: Vec<KeyChange> = keys(ACCOUNTS).iter().map(|key| put(key, "100")).collect();
    table.change_together(&begin).await.unwrap();
    let conflicts = Arc::new(AtomicUsize::new(0));
    let movers = (0..4).map(|seed| {
        let (table, conflicts) = (node.client().keyed("t"), Arc::clone(&conflicts));
        tokio::spawn(async move {
            let mut rng = Rng::with_seed(seed);
            let mut moved = 0;
            while moved < MOVES {
                let accounts = rng.choose_multiple(keys(ACCOUNTS), 2);
                let changes = [add(&accounts[0], -1), add(&accounts[1], 1)];
                match table.change_together(&changes).await {
                    Ok(_) => moved += 1,
                    outcome => {
                        let (_, why) = refused(outcome);
                        assert_eq!(
                            why.response_error(),
                            Some(ResponseError::ConcurrentTransactions),
                            "{why}"
                        );
                        conflicts.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        })
    });
    let movers: Vec<_> = movers.collect();
    let is_done = Arc::new(AtomicBool::new(false));
    let writers = (0..2).map(|writer| {
        let (table, is_done) = (node.client().keyed("t"), Arc::clone(&is_done));
        tokio::spawn(async move {
            let mut number = 0_u64;
            while !is_done.load(Ordering::Relaxed) {
                let key = format!("own {writer} {}", number % 5);
                let stored = table.put(&key, number.to_string()).await.unwrap();
                let found = table.get(&key).await.unwrap().expect("it was put");
                assert_eq!(
                    found.version, stored.version,
                    "a write is answered when it is seen"
                );
                let (stored, sum) = table.add(format!("sum {writer}"), 1).await.unwrap();
                let found = table.get(format!("sum {writer}")).await.unwrap().unwrap();
                assert_eq!((found.version, sum), (stored.version, number as i64 + 1));
                number += 1;
            }
            number
        })
    });
    let writers: Vec<_> = writers.collect();
    for mover in movers {
        timeout(TIME_MAX, mover).await.expect("moves end").unwrap();
    }
    is_done.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 10);
    }
    let mut sum = 0;
    for key in keys(ACCOUNTS) {
        sum += value(&table, &key).await.unwrap().parse::<i64>().unwrap();
    }
    assert_eq!(sum, 100 * ACCOUNTS as i64);
    println!(
        "{} moves met another one",
        conflicts.load(Ordering::Relaxed)
    );
}
