//! Conditional changes of keys: they compare with the newest appended version, durable or not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use millstream_base::{ByteSize, Offset, ProducerEpoch, ProducerId};
use millstream_log::{
    ChangeError, Changed, Durability, FILE_DELETE_DELAY, KeyChange, KeyChanges, KeyCondition, Log,
    LogConfig, LogError, NewValue, StreamConfig, StreamPartition,
};
use millstream_record::{Compression, EndMarker, TransactionEnd};
use parking_lot::Mutex;

use super::{append, chunk, config, get, keyed, small_groups, sync};

use KeyCondition::{Absent, Any, Present, Version};

type Outcome = Result<Changed, ChangeError>;

fn synced() -> StreamConfig {
    StreamConfig {
        durability: Durability::Sync,
        ..keyed("compact")
    }
}

/// Creates a stream, and returns its first partition.
fn create(log: &Log, config: StreamConfig) -> StreamPartition {
    let stream = log.create_stream("s", config).unwrap();
    stream.partition(0).unwrap()
}

fn put<'a>(key: &'a str, value: &'a str, condition: KeyCondition) -> KeyChange<'a> {
    KeyChange {
        key: key.as_bytes(),
        condition,
        value: NewValue::Put(value.as_bytes()),
        ttl: None,
        secondary: &[],
    }
}

fn delete(key: &str, condition: KeyCondition) -> KeyChange<'_> {
    KeyChange {
        value: NewValue::Delete,
        ..put(key, "", condition)
    }
}

fn plus(key: &str, number: i64) -> KeyChange<'_> {
    KeyChange {
        value: NewValue::Add(number),
        ..put(key, "", Any)
    }
}

fn change(partition: &StreamPartition, change: KeyChange<'_>) -> Outcome {
    let changes = partition.change(&[change]).unwrap();
    changes.outcomes.into_iter().next().unwrap()
}

#[track_caller]
fn stored(outcome: Outcome) -> u64 {
    outcome.unwrap().version.0
}

/// The newest version that a refused change has met.
#[track_caller]
fn other(outcome: Outcome) -> Option<u64> {
    match outcome {
        Err(ChangeError::OtherVersion { newest }) => newest.map(|newest| newest.0),
        outcome => panic!("{outcome:?}"),
    }
}

#[track_caller]
fn sum(outcome: Outcome) -> i64 {
    outcome.unwrap().sum.unwrap()
}

#[test]
fn a_condition_is_compared_with_records_that_are_not_durable() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let partition = create(&log, synced());
    append(
        &partition,
        &[(Some(b"a"), Some(b"1")), (Some(b"b"), Some(b"1"))],
    );
    assert_eq!(get(&partition, b"a"), None, "it is not durable");

    let refused = partition.change(&[put("a", "2", Absent)]).unwrap();
    let KeyChanges {
        outcomes,
        answer_at,
    } = refused;
    assert_eq!(other(outcomes.into_iter().next().unwrap()), Some(0));
    // The version may be lost.
    assert_eq!(answer_at, Offset(1));

    assert_eq!(
        stored(change(&partition, put("a", "2", Version(Offset(0))))),
        2
    );
    let again = change(&partition, put("a", "3", Version(Offset(0))));
    assert_eq!(other(again), Some(2));
    assert_eq!(stored(change(&partition, delete("b", Present))), 3);
    assert_eq!(other(change(&partition, delete("b", Present))), None);
    assert_eq!(stored(change(&partition, put("b", "", Absent))), 4);
    assert_eq!(stored(change(&partition, put("c", "1", Absent))), 5);

    sync(&log);
    assert_eq!(get(&partition, b"a"), Some((2, b"2".to_vec())));
    assert_eq!(get(&partition, b"b"), Some((4, Vec::new())));
    let durable = partition.change(&[put("a", "4", Absent)]).unwrap();
    assert_eq!(other(durable.outcomes.into_iter().next().unwrap()), Some(2));
    assert!(durable.answer_at <= partition.durable_offset());

    // An earlier version, and one that never was.
    for version in [0, 7, u64::MAX] {
        let wrong = change(&partition, put("a", "4", Version(Offset(version))));
        assert_eq!(other(wrong), Some(2));
    }
}

#[test]
fn changes_of_one_call_apply_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let partition = create(&log, synced());
    let changes = [
        plus("n", 2),
        put("a", "1", Absent),
        put("a", "2", Absent),
        plus("n", -5),
        put("a", "3", Version(Offset(1))),
        plus("a", 1),
        delete("a", Any),
        put("a", "4", Present),
        put("a", "5", Absent),
    ];
    let KeyChanges {
        outcomes,
        answer_at,
    } = partition.change(&changes).unwrap();
    let shown: Vec<String> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(Changed { version, sum: None }) => format!("{version}"),
            Ok(Changed {
                version,
                sum: Some(sum),
            }) => format!("{version} = {sum}"),
            Err(error) => error.to_string(),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "0 = 2",
            "1",
            "the condition does not hold: the newest version of the key is 1",
            "2 = -3",
            "3",
            "4 = 4",
            "5",
            "the condition does not hold: the key has no value",
            "6",
        ]
    );
    assert_eq!(answer_at, Offset(7));
    assert_eq!(partition.change(&[]).unwrap().outcomes.len(), 0);
}

#[test]
fn adding_to_a_value_needs_an_integer_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let partition = create(&log, synced());
    for is_durable in [false, true] {
        change(&partition, delete("n", Any)).unwrap();
        assert_eq!(sum(change(&partition, plus("n", i64::MAX))), i64::MAX);
        if is_durable {
            sync(&log);
        }
        let over = change(&partition, plus("n", 1));
        assert!(matches!(
            over,
            Err(ChangeError::Overflow { value: i64::MAX })
        ));
        assert_eq!(sum(change(&partition, plus("n", i64::MIN))), -1);
        let version = stored(change(&partition, put("n", "1.5", Any)));
        if is_durable {
            sync(&log);
        }
        let error = change(&partition, plus("n", 1)).unwrap_err();
        let ChangeError::NotANumber { newest } = error else {
            panic!("{error}");
        };
        assert_eq!(newest.0, version);
    }
    sync(&log);
    assert_eq!(get(&partition, b"n").unwrap().1, b"1.5");
}

#[test]
fn a_key_of_an_open_transaction_is_refused_until_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(config(dir.path())).unwrap();
    let mut partition = create(&log, synced());
    let first = stored(change(&partition, put("a", "0", Any)));
    for (n, end) in [TransactionEnd::Abort, TransactionEnd::Commit]
        .into_iter()
        .enumerate()
    {
        let records: [super::Record<'_>; 2] = [(Some(b"a"), Some(b"5")), (Some(b"gone"), None)];
        let written = chunk(&records, Compression::Zstd, Some((1, 2 * n as i32)));
        let version = partition.append(&written).unwrap().base_offset.0;
        for _ in 0..2 {
            for refused in [put("a", "1", Absent), plus("a", 1), delete("gone", Present)] {
                let outcome = change(&partition, refused);
                assert!(
                    matches!(outcome, Err(ChangeError::Undecided)),
                    "{outcome:?}"
                );
            }
            // Other keys go on, and unconditional changes of the same key come behind the transaction's.
            change(&partition, plus("other", 1)).unwrap();
            change(&partition, put("free", "x", Any)).unwrap();
            // It is the same after a start.
            sync(&log);
            drop(partition);
            log.close().unwrap();
            log = Log::open(config(dir.path())).unwrap();
            partition = log.stream("s").unwrap().partition(0).unwrap();
        }
        let marker = EndMarker {
            producer_id: ProducerId(1),
            producer_epoch: ProducerEpoch(0),
            end,
            coordinator_epoch: 0,
        };
        let marker = partition.append_marker(&marker).unwrap().base_offset;
        let refused = partition.change(&[put("a", "1", Absent)]).unwrap();
        let newest = other(refused.outcomes.into_iter().next().unwrap());
        match end {
            TransactionEnd::Abort => assert_eq!(newest, Some(first)),
            TransactionEnd::Commit => {
                assert_eq!(newest, Some(version));
                // The version counts when its marker does.
                assert_eq!(refused.answer_at, marker.plus(1));
            }
        }
    }
    assert_eq!(sum(change(&partition, plus("a", 1))), 6);
    assert_eq!(sum(change(&partition, plus("other", 0))), 4);
    sync(&log);
    assert_eq!(get(&partition, b"a").unwrap().1, b"6");
}

#[test]
fn deleted_records_count_as_absent_keys() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let partition = create(&log, synced());
    for n in 0..3 {
        let key = n.to_string();
        change(&partition, put(&key, "1", Absent)).unwrap();
    }
    sync(&log);
    log.delete_before(&[(partition.clone(), Offset(2))])[0]
        .clone()
        .unwrap();
    assert_eq!(stored(change(&partition, put("0", "2", Absent))), 3);
    assert_eq!(other(change(&partition, put("1", "2", Present))), None);
    assert_eq!(other(change(&partition, put("2", "2", Absent))), Some(2));
}

/// The group that the last change was in is gone then.
#[test]
fn a_condition_on_absence_holds_after_all_records_were_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let partition = create(&log, synced());
    for round in 0..3 {
        stored(change(&partition, put("k", "v", Absent)));
        stored(change(&partition, put("k", "w", Present)));
        sync(&log);
        let end = partition.durable_offset();
        let deleted = log.delete_before(&[(partition.clone(), end)]);
        assert_eq!(deleted[0].clone().unwrap(), end, "{round}");
    }
}

#[test]
fn keys_of_other_partitions_and_long_ones_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let settings = StreamConfig {
        lanes: 2,
        ..synced()
    };
    let stream = log.create_stream("s", settings).unwrap();
    let (mut owned, mut foreign) = (0, 0);
    for n in 0..20 {
        let key = n.to_string();
        match stream
            .partition(0)
            .unwrap()
            .change(&[put(&key, "1", Absent)])
        {
            Ok(_) => owned += 1,
            Err(error) => {
                assert!(
                    matches!(error, LogError::NotTheOwner { owner: 1, .. }),
                    "{error}"
                );
                foreign += 1;
            }
        }
    }
    assert!(owned > 0 && foreign > 0);
    let long = "k".repeat((1 << 20) + 1);
    let error = stream.partition(0).unwrap().change(&[plus(&long, 1)]);
    assert!(matches!(error, Err(LogError::NoKey { .. })));
    let plain = log.create_stream("p", StreamConfig::default()).unwrap();
    let error = plain.partition(0).unwrap().change(&[plus("a", 1)]);
    assert!(matches!(error, Err(LogError::NotKeyed { .. })));
}

#[test]
fn changes_of_one_call_fill_several_chunks_when_the_stream_takes_only_small_ones() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let small_chunks = StreamConfig {
        chunk_bytes_max: Some(ByteSize(1_000)),
        ..synced()
    };
    let partition = create(&log, small_chunks);
    let keys: Vec<String> = (0..40).map(|n| format!("key {n}")).collect();
    let (value, large) = ("v".repeat(300), "v".repeat(2_000));
    for condition in [Absent, Present, Any] {
        let changes = keys.iter().map(|key| put(key, &value, condition));
        let mut changes: Vec<KeyChange<'_>> = changes.collect();
        changes.insert(5, put("large", &large, Absent));
        let outcomes = partition.change(&changes).unwrap().outcomes;
        for (n, outcome) in outcomes.into_iter().enumerate() {
            match (n, outcome) {
                (5, Err(ChangeError::Log(LogError::ChunkTooLarge { .. }))) => {}
                (5, outcome) => panic!("{outcome:?}"),
                (_, outcome) => {
                    stored(outcome);
                }
            }
        }
    }
    let numbers: Vec<String> = (0..40).map(|n| format!("number {n}")).collect();
    let sums = numbers.iter().map(|key| plus(key, i64::MIN));
    let sums: Vec<KeyChange<'_>> = sums.collect();
    for outcome in partition.change(&sums).unwrap().outcomes {
        assert_eq!(sum(outcome), i64::MIN);
    }
}

#[test]
fn conditional_changes_are_refused_while_open_transactions_have_too_many_keys() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig::with_pool(dir.path(), ByteSize(64 << 20));
    let log = Log::open(config).unwrap();
    let partition = create(&log, keyed("compact"));
    change(&partition, put("a", "1", Absent)).unwrap();
    for n in 0..20 {
        let key = format!("{n}{}", "k".repeat((1 << 20) - 2));
        let chunk = chunk(
            &[(Some(key.as_bytes()), None)],
            Compression::Lz4,
            Some((1, n)),
        );
        partition.append(&chunk).unwrap();
    }
    for _ in 0..3 {
        let error = change(&partition, put("b", "1", Absent)).unwrap_err();
        let ChangeError::Log(LogError::TooManyUndecided { .. }) = error else {
            panic!("{error}");
        };
    }
    change(&partition, put("b", "1", Any)).unwrap();
    let marker = EndMarker {
        producer_id: ProducerId(1),
        producer_epoch: ProducerEpoch(0),
        end: TransactionEnd::Abort,
        coordinator_epoch: 0,
    };
    let marker = partition.append_marker(&marker).unwrap();
    partition.wait_durable(marker.next_offset).unwrap();
    assert_eq!(sum(change(&partition, plus("b", 1))), 2);
}

/// Threads that add to one key, and that replace versions of another one, beside producers of these and of other keys,
/// compaction, and transactions.
fn race(durability: Durability) {
    const THREADS: i64 = 4;
    const CHANGES: i64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig {
        journal: ByteSize(4 << 20),
        journal_file: ByteSize(1 << 20),
        ..LogConfig::with_pool(dir.path(), ByteSize(8 << 20))
    })
    .unwrap();
    let mut settings = StreamConfig {
        durability,
        ..small_groups("compact")
    };
    settings
        .settings
        .extend([(FILE_DELETE_DELAY.to_owned(), "0".to_owned())]);
    let partition = create(&log, settings);
    let is_over = AtomicBool::new(false);
    let losses = AtomicI64::new(0);
    // The versions of the key "turn", each with the one that its change demanded.
    let turns: Mutex<BTreeMap<u64, KeyCondition>> = Mutex::default();
    // The versions of the key "count", each with its value, and whether a change has added one.
    let counts: Mutex<BTreeMap<u64, (i64, bool)>> = Mutex::default();
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (partition, is_over, counts) = (&partition, &is_over, &counts);
            scope.spawn(move || {
                let mut sent = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let counted = 1_000_000 * i64::from(sent);
                    let (key, value) = match n {
                        0 => (format!("other {}", sent % 50), "v".repeat(500)),
                        _ => ("count".to_owned(), counted.to_string()),
                    };
                    let records: [super::Record<'_>; 1] =
                        [(Some(key.as_bytes()), Some(value.as_bytes()))];
                    let producer = (n == 0).then_some((9, sent));
                    let codec = [Compression::Lz4, Compression::None][n];
                    let appended = partition.append(&chunk(&records, codec, producer)).unwrap();
                    sent += 1;
                    if n == 1 {
                        let offset = appended.base_offset.0;
                        counts.lock().insert(offset, (counted, false));
                    }
                    if n == 0 && sent % 5 == 0 {
                        let marker = EndMarker {
                            producer_id: ProducerId(9),
                            producer_epoch: ProducerEpoch(0),
                            end: TransactionEnd::Commit,
                            coordinator_epoch: 0,
                        };
                        partition.append_marker(&marker).unwrap();
                    }
                    if n == 0 || sent % 10 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                log.persist();
                log.evict();
                log.compact().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let changers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = None;
                    for _ in 0..CHANGES {
                        change(&partition, plus("sum", 1)).unwrap();
                        let condition = seen.map_or(Absent, |seen| Version(Offset(seen)));
                        match change(&partition, put("turn", "x", condition)) {
                            Ok(changed) => {
                                turns.lock().insert(changed.version.0, condition);
                                seen = Some(changed.version.0);
                            }
                            lost => {
                                losses.fetch_add(1, Ordering::Relaxed);
                                let newest = other(lost).unwrap();
                                assert!(seen.is_none_or(|seen| seen < newest));
                                seen = Some(newest);
                            }
                        }
                        let changed = change(&partition, plus("count", 1)).unwrap();
                        let count = (changed.sum.unwrap(), true);
                        counts.lock().insert(changed.version.0, count);
                    }
                })
            })
            .collect();
        let ended = changers.into_iter().map(|changer| changer.join().is_ok());
        let ended = ended.collect::<Vec<_>>();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.into_iter().all(|is_ok| is_ok));
    });
    let turns = turns.into_inner();
    assert_eq!(turns.len() as i64 + losses.into_inner(), THREADS * CHANGES);
    let mut newest = None;
    for (version, condition) in turns {
        assert_eq!(condition, newest.map_or(Absent, Version), "of {version}");
        newest = Some(Offset(version));
    }
    let mut count = 0;
    for (version, (value, is_sum)) in counts.into_inner() {
        assert!(
            !is_sum || value == count + 1,
            "{count}, then {value} of {version}"
        );
        count = value;
    }
    assert_eq!(sum(change(&partition, plus("sum", 0))), THREADS * CHANGES);
}

#[test]
fn concurrent_changes_lose_no_update() {
    race(Durability::Async);
}

#[test]
fn concurrent_synced_changes_lose_no_update() {
    race(Durability::Sync);
}
