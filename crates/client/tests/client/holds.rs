//! Holds of keyed streams.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_client::{ClientError, KeyChange, KeyedStream, NewValue, ResponseError};
use millstream_log::{CLEANUP_POLICY, COMPACT, StreamConfig};
use tokio::time::{Instant, timeout};

use crate::support::{Node, TIME_MAX};

const PARTITIONS: u32 = 3;

fn create(node: &Node) -> KeyedStream {
    let policy = (CLEANUP_POLICY.to_owned(), COMPACT.to_owned());
    let config = StreamConfig {
        streamlets: PARTITIONS,
        settings: [policy].into(),
        ..StreamConfig::default()
    };
    node.log().create_stream("t", config).unwrap();
    node.client().keyed("t")
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, ClientError>, error: ResponseError) {
    let found = outcome.unwrap_err();
    assert_eq!(found.response_error(), Some(error), "{found}");
}

#[tokio::test]
async fn look_ups_in_a_hold_find_keys_as_of_its_creation() {
    let node = Node::start();
    let table = create(&node);
    table.put("ann", "1").await.unwrap();
    table.put("bob", "1").await.unwrap();
    let hour = Duration::from_secs(3_600);
    let made = table.create_hold("a/b", Some(hour)).await.unwrap();
    assert_eq!(
        (&*made.name, &*made.owner, made.is_whole),
        ("a/b", "User:ANONYMOUS", true)
    );
    assert_eq!(made.until.0 - made.created.0, 3_600_000);
    assert_eq!(made.ends.len(), PARTITIONS as usize);
    assert_eq!(made.ends.iter().map(|end| end.0).sum::<u64>(), 2);
    table.put("ann", "2").await.unwrap();
    table.delete("bob").await.unwrap();
    table.put("carl", "3").await.unwrap();
    let found = table.get_many_at_hold(&["ann", "bob", "carl"], "a/b");
    let found = found.await.unwrap().into_iter();
    let values = found.map(|found| found.map(|found| String::from_utf8(found.value.to_vec())));
    let values: Vec<_> = values.map(|value| value.map(Result::unwrap)).collect();
    assert_eq!(values, [Some("1".to_owned()), Some("1".to_owned()), None]);
    assert_eq!(table.holds().await.unwrap(), [made]);
    let described = node.client().stream("t").await.unwrap();
    assert_eq!(described.holds.len(), 1);
    assert_eq!(described.holds[0].as_str(), "a/b");

    let again = table.create_hold("a/b", None).await;
    refused(again, ResponseError::DuplicateResource);
    for name in ["", "two words"] {
        let wrong = table.create_hold(name, None).await;
        refused(wrong, ResponseError::InvalidRequest);
    }
    let long = table.create_hold("long", Some(400 * 24 * hour)).await;
    refused(long, ResponseError::InvalidRequest);
    let none = table.get_at_hold("ann", "none").await;
    refused(none, ResponseError::ResourceNotFound);
    let none = table.delete_hold("none").await;
    refused(none, ResponseError::ResourceNotFound);
    let unknown = node.client().keyed("none").holds().await;
    refused(unknown, ResponseError::UnknownTopicOrPartition);

    table.delete_hold("a/b").await.unwrap();
    assert!(table.holds().await.unwrap().is_empty());
    for n in 0..16 {
        table.create_hold(&n.to_string(), None).await.unwrap();
    }
    let many = table.create_hold("many", None).await;
    refused(many, ResponseError::PolicyViolation);
}

/// Keys of all partitions get the same value together, so a hold must have the same value of all.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_has_all_changes_of_a_batch_or_none() {
    let node = Node::start();
    let table = create(&node);
    let keys: Vec<String> = (0..12).map(|n| format!("key {n}")).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (table, keys, is_over) = (table.clone(), keys.clone(), Arc::clone(&is_over));
        async move {
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                let changes = keys.iter().map(|key| KeyChange {
                    key: key.clone().into(),
                    expected: None,
                    change: NewValue::Put(round.to_string().into()),
                    ttl: None,
                    secondary: Vec::new(),
                });
                let changes: Vec<KeyChange> = changes.collect();
                table.change_together(&changes).await.unwrap();
            }
            round
        }
    });
    let (mut seen, mut made) = (BTreeSet::new(), 0);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        // The writer may leave no moment between two commits.
        match table.create_hold("h", None).await {
            Err(error) => refused::<()>(Err(error), ResponseError::ConcurrentTransactions),
            Ok(_) => {
                let found = table.get_many_at_hold(&keys, "h").await.unwrap();
                let values: BTreeSet<_> = found
                    .into_iter()
                    .map(|found| found.map(|found| found.value))
                    .collect();
                assert_eq!(values.len(), 1, "{values:?}");
                seen.extend(values);
                made += 1;
                table.delete_hold("h").await.unwrap();
            }
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let rounds = timeout(TIME_MAX, writer).await.unwrap().unwrap();
    assert!(
        made > 5 && seen.len() > 5,
        "{made} holds in {rounds} rounds"
    );
}
