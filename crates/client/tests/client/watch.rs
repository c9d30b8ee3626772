//! Watches of keys.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use millstream_base::{ByteSize, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_client::{
    Client, ClientConfig, ClientError, KeyRange, KeyWatch, KeyedStream, ResponseError, WatchEvent,
    WatchFrom, WatchedChange, partition_of_key,
};
use millstream_log::{
    CLEANUP_POLICY, COMPACT, DELETE_RETENTION, Durability, FILE_DELETE_DELAY, Log, Stream,
    StreamConfig,
};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Producer, TransactionEnd};
use millstream_wire::ApiKey;
use tokio::time::timeout;

use crate::gate::node_behind_gate;
use crate::support::{Node, TIME_MAX, client_through, node_behind_proxy};

pub fn create(log: &Log, partitions: u32) -> Stream {
    let policy = (CLEANUP_POLICY.to_owned(), COMPACT.to_owned());
    let config = StreamConfig {
        streamlets: partitions,
        durability: Durability::Async,
        settings: [policy].into(),
        ..StreamConfig::default()
    };
    log.create_stream("t", config).unwrap()
}

async fn event(watch: &mut KeyWatch) -> Result<WatchEvent, ClientError> {
    timeout(TIME_MAX, watch.next()).await.expect("in time")
}

async fn change(watch: &mut KeyWatch) -> WatchedChange {
    match event(watch).await.unwrap() {
        WatchEvent::Change(change) => change,
        other => panic!("{other:?}"),
    }
}

async fn check(watch: &mut KeyWatch, key: &str, value: Option<&str>) {
    let change = change(watch).await;
    let expected = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    assert_eq!((&change.key[..], change.value), (key.as_bytes(), expected));
}

/// Returns that no event comes soon.
async fn is_silent(watch: &mut KeyWatch) -> bool {
    let soon = Duration::from_millis(300);
    timeout(soon, watch.next()).await.is_err()
}

/// The way of the changes to the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Network,
    SharedMemory,
}

impl Way {
    const BOTH: [Way; 2] = [Way::Network, Way::SharedMemory];

    fn node(self) -> Node {
        match self {
            Way::Network => Node::start(),
            Way::SharedMemory => Node::local(),
        }
    }

    fn watch(self, table: &KeyedStream, range: KeyRange, from: WatchFrom) -> KeyWatch {
        match self {
            Way::Network => table.watch(range, from),
            Way::SharedMemory => table.watch(range, from).through_shared_memory(),
        }
    }

    async fn begun(self, table: &KeyedStream, range: KeyRange, from: WatchFrom) -> KeyWatch {
        let mut watch = self.watch(table, range, from);
        watch.begin().await.unwrap();
        assert_eq!(watch.is_shared(), self == Way::SharedMemory);
        watch
    }
}

async fn begun(table: &KeyedStream, range: KeyRange, from: WatchFrom) -> KeyWatch {
    let mut watch = table.watch(range, from);
    watch.begin().await.unwrap();
    watch
}

#[tokio::test]
async fn a_watch_sees_the_changes_of_its_keys_alone() {
    for way in Way::BOTH {
        let node = way.node();
        create(node.log(), 3);
        let client = node.client();
        let table = client.keyed("t");
        table.put("a1", "before").await.unwrap();
        let ranges = [
            KeyRange::key("a1"),
            KeyRange::prefix("a"),
            KeyRange::new("a2", Some(b"b".to_vec())),
            KeyRange::all(),
        ];
        let mut watches = Vec::new();
        for range in ranges {
            watches.push(way.begun(&table, range, WatchFrom::Now).await);
        }
        // One after the other, since partitions have no order.
        let changes = [
            ("a1", Some("x")),
            ("a2", Some("")),
            ("b", Some("y")),
            ("a1", None),
            ("a", Some("z")),
        ];
        for (key, value) in changes {
            match value {
                Some(value) => table.put(key, value).await.unwrap(),
                None => table.delete(key).await.unwrap(),
            };
            let is_seen = [key == "a1", key.starts_with('a'), key == "a2", true];
            for (watch, is_seen) in watches.iter_mut().zip(is_seen) {
                if is_seen {
                    check(watch, key, value).await;
                }
            }
        }
        for watch in &mut watches {
            assert!(is_silent(watch).await);
        }
        // A single key needs one partition.
        assert_eq!(watches[0].positions().unwrap().partitions.len(), 1);
        assert_eq!(watches[1].positions().unwrap().partitions.len(), 3);
        let stored = table.put("a1", "last").await.unwrap();
        let seen = change(&mut watches[0]).await;
        assert_eq!(
            (seen.partition, seen.version),
            (stored.partition, stored.version)
        );
        assert!(seen.timestamp > Timestamp(0));
    }
}

#[tokio::test]
async fn a_watched_change_has_the_expiry_of_its_value() {
    let node = Node::start();
    create(node.log(), 1);
    let table = node.client().keyed("t");
    let mut watch = begun(&table, KeyRange::all(), WatchFrom::Now).await;
    let ttl = Duration::from_secs(1_000);
    table.put_for("k", "v", ttl).await.unwrap();
    let of_change = change(&mut watch).await.expires_at;
    assert!(of_change.is_some());
    assert_eq!(table.get("k").await.unwrap().unwrap().expires_at, of_change);
    table.put("k", "v").await.unwrap();
    assert_eq!(change(&mut watch).await.expires_at, None);

    let set = |config: &mut StreamConfig| {
        let ttl = (millstream_log::TTL.to_owned(), "500000".to_owned());
        config.settings.extend([ttl]);
    };
    node.log().alter_stream("t", set).unwrap();
    for from in [WatchFrom::Now, WatchFrom::Snapshot] {
        let is_snapshot = from == WatchFrom::Snapshot;
        let mut watch = begun(&table, KeyRange::all(), from).await;
        match is_snapshot {
            true => assert_eq!(event(&mut watch).await.unwrap(), WatchEvent::SnapshotBegins),
            false => drop(table.put("k", "v").await.unwrap()),
        }
        let seen = change(&mut watch).await;
        let end = Timestamp(seen.timestamp.0 + 500_000);
        assert_eq!(seen.expires_at, Some(end));
    }
    let mut watch = begun(&table, KeyRange::all(), WatchFrom::Now).await;
    table.delete("k").await.unwrap();
    assert_eq!(change(&mut watch).await.expires_at, None);
}

#[tokio::test]
async fn a_position_resumes_after_the_last_event_across_a_restart() {
    for way in Way::BOTH {
        let node = way.node();
        create(node.log(), 2);
        let table = node.client().keyed("t");
        let mut watch = way.begun(&table, KeyRange::all(), WatchFrom::Now).await;
        for number in 0..20 {
            table.put(format!("{number}"), "v").await.unwrap();
        }
        // They come in one answer.
        let first = change(&mut watch).await;
        let position = watch.positions().unwrap().clone();
        assert_eq!(position.to_string().parse(), Ok(position.clone()));
        let mut keys = vec![first.key];
        let node = node.restart().await;
        let table = node.client().keyed("t");
        let mut again = way.watch(&table, KeyRange::all(), WatchFrom::Position(position));
        for watch in [&mut watch, &mut again] {
            keys.truncate(1);
            while keys.len() < 20 {
                keys.push(change(watch).await.key);
            }
            let mut sorted = keys.clone();
            sorted.sort();
            sorted.dedup();
            assert_eq!(sorted.len(), 20);
            assert!(is_silent(watch).await);
        }
    }
}

#[tokio::test]
async fn aborted_open_and_misplaced_records_are_not_seen() {
    for way in Way::BOTH {
        let node = way.node();
        let stream = create(node.log(), 2);
        let table = node.client().keyed("t");
        let mut watch = way.begun(&table, KeyRange::all(), WatchFrom::Now).await;
        transaction(&stream, 1, &[("aborted", Some("v"))], TransactionEnd::Abort);
        let wrong = 1 - partition_of_key(b"misplaced", 2) as u32;
        let misplaced = chunk(&[("misplaced", Some("v"))], None);
        stream.partition(wrong).unwrap().append(&misplaced).unwrap();
        transaction(
            &stream,
            2,
            &[("committed", Some("v"))],
            TransactionEnd::Commit,
        );
        check(&mut watch, "committed", Some("v")).await;
        assert!(is_silent(&mut watch).await);
        let owner = partition_of_key(b"open", 2) as u32;
        let open = chunk(&[("open", Some("v"))], Some(3));
        let owner = stream.partition(owner).unwrap();
        owner.append(&open).unwrap();
        assert!(is_silent(&mut watch).await);
        owner
            .append_marker(&marker(3, TransactionEnd::Commit))
            .unwrap();
        check(&mut watch, "open", Some("v")).await;
    }
}

fn chunk(records: &[(&str, Option<&str>)], producer: Option<i64>) -> Bytes {
    let mut builder = ChunkBuilder::new(Compression::Lz4);
    builder.set_transactional(producer.is_some());
    for (key, value) in records {
        let value = value.map(str::as_bytes);
        builder
            .push(Timestamp(1), Some(key.as_bytes()), value, &[])
            .unwrap();
    }
    let producer = producer.map(|id| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(0),
        sequence: Sequence(0),
    });
    Bytes::copy_from_slice(builder.finish(producer).unwrap())
}

fn marker(producer: i64, end: TransactionEnd) -> EndMarker {
    EndMarker {
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(0),
        end,
        coordinator_epoch: 0,
    }
}

/// Appends records of one partition in a transaction.
fn transaction(
    stream: &Stream,
    producer: i64,
    records: &[(&str, Option<&str>)],
    end: TransactionEnd,
) {
    let owner = partition_of_key(records[0].0.as_bytes(), stream.partition_count() as usize);
    let partition = stream.partition(owner as u32).unwrap();
    partition.append(&chunk(records, Some(producer))).unwrap();
    partition.append_marker(&marker(producer, end)).unwrap();
}

/// The table that follows from the events of a watch.
#[derive(Debug, Default)]
struct Fold {
    table: BTreeMap<Bytes, (Offset, Bytes)>,
    /// The newest version of each key since the last snapshot began.
    newest: BTreeMap<Bytes, Offset>,
    snapshots: u64,
    is_in_snapshot: bool,
}

impl Fold {
    fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::SnapshotBegins => {
                *self = Fold {
                    snapshots: self.snapshots + 1,
                    is_in_snapshot: true,
                    ..Fold::default()
                };
            }
            WatchEvent::SnapshotEnds => {
                assert!(std::mem::take(&mut self.is_in_snapshot));
            }
            WatchEvent::Change(change) => {
                let last = self.newest.insert(change.key.clone(), change.version);
                assert!(last.is_none_or(|last| last < change.version), "{change:?}");
                match change.value {
                    Some(value) => self.table.insert(change.key, (change.version, value)),
                    None => self.table.remove(&change.key),
                };
            }
        }
    }

    async fn take_until(&mut self, watch: &mut KeyWatch, is_done: impl Fn(&Fold) -> bool) {
        while !is_done(self) {
            let event = event(watch).await.unwrap();
            self.take(event);
        }
    }

    /// Takes events until the watch has seen a last change of each partition, and compares it with a scan.
    async fn finish(&mut self, watch: &mut KeyWatch, table: &KeyedStream, partitions: usize) {
        let mut ends = Vec::new();
        for partition in 0..partitions {
            let mut keys = (0..).map(|number| format!("end/{number}"));
            let key = keys.find(|key| partition_of_key(key.as_bytes(), partitions) == partition);
            ends.push(Bytes::from(key.unwrap()));
        }
        for end in &ends {
            table.put(end, "end").await.unwrap();
        }
        let is_done = |fold: &Fold| {
            !fold.is_in_snapshot && ends.iter().all(|end| fold.table.contains_key(end))
        };
        self.take_until(watch, is_done).await;
        let mut scan = table.scan(KeyRange::all());
        let mut stored = BTreeMap::new();
        while let Some(entry) = scan.next().await.unwrap() {
            stored.insert(entry.key, (entry.newest.version, entry.newest.value));
        }
        assert_eq!(self.table, stored);
        for end in &ends {
            table.delete(end).await.unwrap();
        }
    }
}

/// Changes random keys, some in transactions, some of which are aborted.
fn change_some(log: &Log, rng: &mut Rng, changes: usize) {
    let stream = log.stream("t").unwrap();
    for _ in 0..changes {
        let key = format!("{:04}", rng.u32(..3_000));
        let value = format!("{:0100}", rng.u64(..));
        let value = (rng.u8(..4) > 0).then_some(&value[..]);
        let owner = partition_of_key(key.as_bytes(), stream.partition_count() as usize);
        let partition = stream.partition(owner as u32).unwrap();
        match rng.u8(..8) {
            0 => {
                let end = match rng.bool() {
                    true => TransactionEnd::Commit,
                    false => TransactionEnd::Abort,
                };
                transaction(&stream, rng.i64(1..1 << 40), &[(&key, value)], end);
            }
            _ => drop(partition.append(&chunk(&[(&key, value)], None)).unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_beside_writers_goes_on_without_a_gap() {
    for way in Way::BOTH {
        let node = way.node();
        create(node.log(), 2);
        change_some(node.log(), &mut Rng::with_seed(1), 6_000);
        let table = node.client().keyed("t");
        for seed in 0..5 {
            let log = node.log().clone();
            let writer = tokio::task::spawn_blocking(move || {
                for _ in 0..10 {
                    change_some(&log, &mut Rng::with_seed(seed), 200);
                }
            });
            let mut watch = way.watch(&table, KeyRange::all(), WatchFrom::Snapshot);
            let mut fold = Fold::default();
            fold.take_until(&mut watch, |fold| fold.snapshots > 0).await;
            assert_eq!(watch.positions(), None, "none within a snapshot");
            fold.take_until(&mut watch, |fold| !fold.is_in_snapshot)
                .await;
            assert!(watch.positions().is_some());
            writer.await.unwrap();
            fold.finish(&mut watch, &table, 2).await;
            assert_eq!(fold.snapshots, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_with_cut_connections_folds_to_the_table() {
    let mut cuts = 0;
    for seed in 0..3 {
        let (node, proxy) = node_behind_proxy(6_000, seed).await;
        create(node.log(), 3);
        change_some(node.log(), &mut Rng::with_seed(seed), 60);
        let direct = Client::new(millstream_client::ClientConfig::new(
            node.address().to_string(),
        ));
        let table = direct.keyed("t");
        let through = client_through(&proxy).keyed("t");
        let mut watch = through.watch(KeyRange::all(), WatchFrom::Snapshot);
        let mut fold = Fold::default();
        fold.take_until(&mut watch, |fold| {
            fold.snapshots > 0 && !fold.is_in_snapshot
        })
        .await;
        let mut rng = Rng::with_seed(seed);
        for _ in 0..20 {
            change_some(node.log(), &mut rng, 100);
            node.log().compact().unwrap();
            for _ in 0..rng.usize(..150) {
                match timeout(Duration::from_millis(20), watch.next()).await {
                    Ok(event) => fold.take(event.unwrap()),
                    // A future that is dropped loses nothing.
                    Err(_) => break,
                }
            }
            if rng.u8(..4) == 0
                && let Some(position) = watch.positions().cloned()
            {
                watch = through.watch(KeyRange::all(), WatchFrom::Position(position));
            }
        }
        proxy.behave();
        fold.finish(&mut watch, &table, 3).await;
        cuts += proxy.cuts();
    }
    assert!(cuts > 4, "{cuts} cuts");
}

/// Waits for an event, and drops the future of each call soon.
async fn take_until(watch: &mut KeyWatch, is_last: impl Fn(&WatchEvent) -> bool) {
    let next = async {
        loop {
            match timeout(Duration::from_millis(50), watch.next()).await {
                Ok(event) if is_last(event.as_ref().unwrap()) => return,
                _ => {}
            }
        }
    };
    timeout(TIME_MAX / 3, next).await.expect("in time");
}

/// The watch began each connection and each page of a snapshot anew.
#[tokio::test]
async fn a_watch_of_a_slow_server_goes_on_though_its_futures_are_dropped() {
    let (node, address) = node_behind_gate(async |_| {
        tokio::time::sleep(Duration::from_millis(80)).await;
        true
    })
    .await;
    create(node.log(), 2);
    let direct = node.client().keyed("t");
    direct.put("a", "1").await.unwrap();
    let through = Client::new(ClientConfig::new(address.to_string()));
    let mut watch = through
        .keyed("t")
        .watch(KeyRange::all(), WatchFrom::Snapshot);
    take_until(&mut watch, |event| *event == WatchEvent::SnapshotEnds).await;
    let node = node.restart().await;
    let direct = node.client().keyed("t");
    direct.put("b", "2").await.unwrap();
    take_until(
        &mut watch,
        |event| matches!(event, WatchEvent::Change(change) if change.key == "b"),
    )
    .await;
}

/// The watch counted a short failure from a failure before its beginning on, and reported it at once.
#[tokio::test]
async fn a_failure_before_the_beginning_does_not_count_for_later_ones() {
    let is_swallowed = AtomicBool::new(false);
    let (node, address) = node_behind_gate(move |api| {
        let passes = api != ApiKey::WatchKeys || is_swallowed.swap(true, Ordering::Relaxed);
        async move { passes }
    })
    .await;
    create(node.log(), 1);
    let mut config = ClientConfig::new(address.to_string());
    config.request_timeout = Duration::from_secs(2);
    let after = config.request_timeout;
    let table = Client::new(config).keyed("t");
    let mut watch = table.watch(KeyRange::all(), WatchFrom::Now);
    let begun = timeout(TIME_MAX, watch.begin()).await;
    begun.expect("in time").unwrap();
    tokio::time::sleep(after).await;
    let node = node.restart().await;
    node.client().keyed("t").put("k", "v").await.unwrap();
    check(&mut watch, "k", Some("v")).await;
}

#[tokio::test]
async fn a_watch_that_never_reads_does_not_delay_writers() {
    for way in Way::BOTH {
        let node = way.node();
        create(node.log(), 1);
        let table = node.client().keyed("t");
        let mut watch = way.begun(&table, KeyRange::all(), WatchFrom::Now).await;
        table.put("k", "first").await.unwrap();
        check(&mut watch, "k", Some("first")).await;
        // More than the pool of the node has, each value with its own key, so that compaction drops none.
        for number in 0..100 {
            let value = vec![number; 900_000];
            table.put(vec![number], value).await.unwrap();
        }
        for number in 0..100 {
            let seen = change(&mut watch).await.value.unwrap();
            assert_eq!((seen.len(), seen[0]), (900_000, number));
        }
    }
}

/// The server takes back memory that a watch leaves unread, and the watch goes on where it was.
#[tokio::test]
async fn a_stalled_watch_in_shared_memory_misses_nothing() {
    let node = Node::local_with(|config| config.push_stall_max = Duration::from_millis(200));
    create(node.log(), 1);
    let table = node.client().keyed("t");
    let way = Way::SharedMemory;
    let mut watch = way.begun(&table, KeyRange::all(), WatchFrom::Now).await;
    // Each value has its own key, so that compaction drops none.
    for number in 0..40 {
        table
            .put(vec![number], vec![number; 900_000])
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for number in 0..40 {
        let seen = change(&mut watch).await.value.unwrap();
        assert_eq!((seen.len(), seen[0]), (900_000, number));
    }
    assert!(is_silent(&mut watch).await && watch.is_shared());
}

#[tokio::test]
async fn a_watch_goes_over_the_network_where_no_memory_is_shared() {
    let node = Node::start();
    create(node.log(), 1);
    let table = node.client().keyed("t");
    let watch = table.watch(KeyRange::all(), WatchFrom::Now);
    let mut watch = watch.through_shared_memory();
    watch.begin().await.unwrap();
    assert!(!watch.is_shared());
    table.put("k", "v").await.unwrap();
    check(&mut watch, "k", Some("v")).await;
}

#[tokio::test]
async fn compaction_and_deletion_go_on_beside_a_watch_that_never_reads() {
    let node = Node::start();
    create(node.log(), 1);
    let table = node.client().keyed("t");
    let mut watch = begun(&table, KeyRange::all(), WatchFrom::Now).await;
    table.put("k", "first").await.unwrap();
    check(&mut watch, "k", Some("first")).await;
    for number in 0..100 {
        table.put("k", vec![number; 900_000]).await.unwrap();
    }
    let dropped = async {
        // The server's own compaction may come first.
        let dropped_before = || node.log().stats().compaction.records_dropped;
        while node.log().compact().unwrap().records_dropped + dropped_before() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), dropped).await.unwrap();
    // Compaction leaves out older changes, but not the newest.
    while change(&mut watch).await.value.unwrap()[0] != 99 {}
    node.log().delete_stream("t").unwrap();
    let ended = timeout(Duration::from_secs(60), watch.next())
        .await
        .unwrap();
    let error = ended.unwrap_err();
    assert!(error.is_unknown_stream(), "{error}");
}

#[tokio::test]
async fn a_deleted_stream_ends_the_watch_and_its_positions() {
    let node = Node::start();
    create(node.log(), 1);
    let table = node.client().keyed("t");
    let mut watch = begun(&table, KeyRange::all(), WatchFrom::Snapshot).await;
    let mut fold = Fold::default();
    fold.finish(&mut watch, &table, 1).await;
    let position = watch.positions().unwrap().clone();
    node.log().delete_stream("t").unwrap();
    let error = loop {
        match event(&mut watch).await {
            Ok(event) => fold.take(event),
            Err(error) => break error,
        }
    };
    assert!(error.is_unknown_stream(), "{error}");

    create(node.log(), 1);
    for from in [
        WatchFrom::Position(position.clone()),
        WatchFrom::PositionOrSnapshot(position),
    ] {
        let mut again = table.watch(KeyRange::all(), from);
        let error = event(&mut again).await.unwrap_err();
        assert!(matches!(error, ClientError::MadeAgain { .. }), "{error}");
    }
    let error = event(&mut watch).await.unwrap_err();
    assert!(matches!(error, ClientError::MadeAgain { .. }), "{error}");
}

#[tokio::test]
async fn a_watch_behind_removed_changes_fails_or_takes_a_snapshot() {
    for way in Way::BOTH {
        let node = way.node();
        let stream = create(node.log(), 1);
        let table = node.client().keyed("t");
        table.put("a", "1").await.unwrap();
        let mut watch = way.begun(&table, KeyRange::all(), WatchFrom::Now).await;
        let position = watch.positions().unwrap().clone();
        for value in ["1", "2", "3"] {
            table.put("b", value).await.unwrap();
        }
        check(&mut watch, "b", Some("1")).await;
        let partition = stream.partition(0).unwrap();
        partition.wait_durable(partition.next_offset()).unwrap();
        let deleted = node.log().delete_before(&[(partition, Offset(3))]);
        assert!(deleted[0].is_ok());

        let mut again = way.watch(
            &table,
            KeyRange::all(),
            WatchFrom::Position(position.clone()),
        );
        for _ in 0..2 {
            let error = event(&mut again).await.unwrap_err();
            assert!(matches!(error, ClientError::ChangesLost { .. }), "{error}");
            assert!(error.to_string().contains("snapshot"), "{error}");
        }
        // Nor has it the changes of other keys.
        let mut one = way.begun(&table, KeyRange::key("a"), WatchFrom::Now).await;
        one.begin().await.unwrap();
        let of_one = one.positions().unwrap().clone();
        let of_key = WatchFrom::Position(of_one.clone());
        way.watch(&table, KeyRange::key("a"), of_key)
            .begin()
            .await
            .unwrap();
        let position_of_none = millstream_client::WatchPositions {
            partitions: vec![millstream_client::WatchPosition {
                partition: 1,
                ..of_one.partitions[0]
            }],
            ..of_one
        };
        let mut other = way.watch(
            &table,
            KeyRange::all(),
            WatchFrom::Position(position_of_none),
        );
        let error = event(&mut other).await.unwrap_err();
        assert!(error.to_string().contains("other keys"), "{error}");

        let mut again = way.watch(
            &table,
            KeyRange::all(),
            WatchFrom::PositionOrSnapshot(position),
        );
        let mut fold = Fold::default();
        fold.take_until(&mut again, |fold| {
            !fold.table.is_empty() && !fold.is_in_snapshot
        })
        .await;
        assert_eq!((fold.snapshots, fold.table.len()), (1, 1));
        table.put("c", "1").await.unwrap();
        check(&mut again, "c", Some("1")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_deletion_is_not_missed() {
    for way in Way::BOTH {
        let node = way.node();
        let settings = [
            (CLEANUP_POLICY, COMPACT),
            (DELETE_RETENTION, "0"),
            (FILE_DELETE_DELAY, "0"),
        ];
        let owned = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = StreamConfig {
            segment: ByteSize(64 << 10),
            group_segments: 1,
            settings: owned.into(),
            ..StreamConfig::default()
        };
        let stream = node.log().create_stream("t", config).unwrap();
        let table = node.client().keyed("t");
        table.put("gone", "v").await.unwrap();
        table.put("stays", "v").await.unwrap();
        let watch = way.begun(&table, KeyRange::all(), WatchFrom::Now).await;
        let position = watch.positions().unwrap().clone();
        drop(watch);
        table.delete("gone").await.unwrap();
        let partition = stream.partition(0).unwrap();
        let (next, epoch) = (position.partitions[0].next, position.partitions[0].epoch);
        let mut rounds = 0;
        while partition.check_watch(next, epoch).is_ok() {
            rounds += 1;
            assert!(rounds < 500, "the deletion stays");
            for _ in 0..20 {
                table.put("filler", vec![0; 4_000]).await.unwrap();
            }
            node.log().compact().unwrap();
        }
        let from = WatchFrom::Position(position.clone());
        let mut watch = way.watch(&table, KeyRange::all(), from);
        let error = event(&mut watch).await.unwrap_err();
        assert!(error.to_string().contains(DELETE_RETENTION), "{error}");
        let mut watch = way.watch(
            &table,
            KeyRange::all(),
            WatchFrom::PositionOrSnapshot(position),
        );
        let mut fold = Fold::default();
        fold.finish(&mut watch, &table, 1).await;
        assert_eq!(
            (fold.snapshots, fold.table.contains_key(&b"gone"[..])),
            (1, false)
        );
        assert!(fold.table.contains_key(&b"stays"[..]));
    }
}

#[tokio::test]
async fn watches_of_plain_and_missing_streams_are_refused() {
    let node = Node::start();
    node.create("plain", 1);
    let client = node.client();
    let mut watch = client.keyed("plain").watch(KeyRange::all(), WatchFrom::Now);
    let error = event(&mut watch).await.unwrap_err();
    assert_eq!(error.response_error(), Some(ResponseError::InvalidConfig));
    let mut watch = client
        .keyed("none")
        .watch(KeyRange::all(), WatchFrom::Snapshot);
    assert!(event(&mut watch).await.unwrap_err().is_unknown_stream());
    create(node.log(), 1);
    let long = KeyRange::key(vec![b'k'; 20_000]);
    let mut watch = client.keyed("t").watch(long, WatchFrom::Now);
    let error = event(&mut watch).await.unwrap_err();
    assert!(error.to_string().contains("20001 bytes"), "{error}");
}
