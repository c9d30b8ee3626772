//! Holds during passes: the records that they protect, the removal of these after a hold's end, and the cost of holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_base::{Offset, ProducerEpoch, ProducerId, partition_of_key};
use millstream_log::{
    DELETE_RETENTION, DIRTY_RATIO_MIN, FILE_DELETE_DELAY, HOLDS_MAX, Log, LogError, NewHold,
    PassReport, Stream,
};

use millstream_record::{Compression, EndMarker, TransactionEnd};

use super::{KEYS, ROUNDS, fill, filled, read_on};
use crate::machine::Machine;
use crate::{append, chunk, config, small_groups, sync};

fn hold(machine: &Machine, name: &str, life: Duration) {
    let new = NewHold {
        name,
        owner: "test",
        life: Some(life),
    };
    machine.log().create_hold("s", &new).unwrap();
}

const DAY: Duration = Duration::from_secs(86_400);

const ROUNDS_PER_PASS: u64 = 100;
const PASSES_WITHIN: Duration = Duration::from_secs(60);

/// The offset of each key at a hold.
fn at_hold(stream: &Stream, name: &str) -> BTreeMap<u64, u64> {
    let found = (0..KEYS).filter_map(|key| {
        let key_bytes = format!("key {key}").into_bytes();
        let found = stream.get_at_hold(&key_bytes, name).unwrap()?;
        Some((key, found.offset.0))
    });
    found.collect()
}

/// All offsets with records.
fn stored(machine: &Machine) -> Vec<u64> {
    let partition = machine.partition();
    read_on(&mut partition.reader(partition.earliest()))
}

/// How many records there are before the end of the last pass.
fn count(machine: &Machine) -> usize {
    let end = machine.partition().info().compaction.unwrap().compacted_to;
    let stored = stored(machine).into_iter();
    stored.filter(|offset| *offset < end.0).count()
}

fn is_due(machine: &Machine) -> bool {
    let before = machine.log().stats().compaction.passes;
    while machine.log().compact_step() | machine.log().step() {}
    machine.log().stats().compaction.passes > before
}

#[test]
fn records_that_a_hold_protected_are_removed_after_it_ends() {
    let mut machine = filled(&[(DIRTY_RATIO_MIN, "0"), (FILE_DELETE_DELAY, "0")]);
    let stream = machine.log().stream("s").unwrap();
    hold(&machine, "before", DAY);
    hold(&machine, "short", Duration::from_secs(60));
    let held = at_hold(&stream, "before");
    assert_eq!(held.len() as u64, KEYS);
    fill(&machine, ROUNDS..2 * ROUNDS);
    assert!(is_due(&machine));
    assert!(!is_due(&machine), "a pass has seen all");
    let check = |machine: &Machine| {
        let stream = machine.log().stream("s").unwrap();
        assert_eq!(at_hold(&stream, "before"), held);
        assert!(held.values().all(|offset| stored(machine).contains(offset)));
        // One more version of each key, and the ten that did not change.
        assert_eq!(count(machine), held.len() + KEYS as usize - 4);
    };
    check(&machine);
    machine.restart(|_| ());
    while machine.log().compact_step() | machine.log().step() {}
    check(&machine);

    // The end of one of two holds at a place changes nothing.
    machine.clock.advance(Duration::from_secs(61));
    is_due(&machine);
    let stream = machine.log().stream("s").unwrap();
    let unknown = stream.get_at_hold(b"key 0", "short");
    assert!(
        matches!(unknown, Err(LogError::UnknownHold { .. })),
        "{unknown:?}"
    );
    check(&machine);

    machine.log().delete_hold("s", "before").unwrap();
    assert!(
        is_due(&machine),
        "the end of the hold makes the records behind it dirty"
    );
    assert_eq!(count(&machine), KEYS as usize);
    assert!(machine.log().stream("s").unwrap().holds().is_empty());
}

#[test]
fn a_tombstone_stays_while_a_hold_protects_its_value_and_then_for_the_delete_retention() {
    let machine = filled(&[(DELETE_RETENTION, "1000"), (FILE_DELETE_DELAY, "0")]);
    let stream = machine.log().stream("s").unwrap();
    hold(&machine, "before", DAY);
    let value = stream.get(b"key 0").unwrap().unwrap().offset.0;
    append(&machine.partition(), &[(Some(b"key 0"), None)]);
    let tombstone = machine.partition().next_offset().0 - 1;
    fill(&machine, 1..ROUNDS);
    let pass = || {
        machine.clock.advance(Duration::from_millis(600));
        machine.log().compact().unwrap();
        sync(machine.log());
        let stored = stored(&machine);
        (stored.contains(&value), stored.contains(&tombstone))
    };
    for _ in 0..5 {
        assert_eq!(pass(), (true, true));
        let held = stream.get_at_hold(b"key 0", "before").unwrap().unwrap();
        assert_eq!(held.offset.0, value);
        assert_eq!(stream.get(b"key 0").unwrap(), None);
    }
    machine.log().delete_hold("s", "before").unwrap();
    // A reader that has read the value before this pass reads the tombstone within its time.
    assert_eq!(pass(), (false, true));
    assert_eq!(pass(), (false, true));
    assert_eq!(pass(), (false, false));
}

#[test]
fn holds_add_few_rewrites() {
    let machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    let (mut all, mut appended) = (PassReport::default(), machine.bytes("log"));
    let size = appended;
    let add = |all: &mut PassReport| {
        let report = machine.log().compact().unwrap();
        all.bytes_before += report.bytes_before;
        all.groups_before += report.groups_before;
        sync(machine.log());
    };
    for n in 0..HOLDS_MAX as u64 {
        hold(&machine, &format!("h{n}"), DAY);
        add(&mut all);
        fill(&machine, ROUNDS * (n + 1)..ROUNDS * (n + 2));
        appended += size;
        add(&mut all);
    }
    // Each record is rewritten once, and the few of the open stretch twice; a plain pass rewrites as much.
    assert!(all.bytes_before < 2 * appended, "{all:?} of {appended}");
    let full = NewHold {
        name: "one-more",
        owner: "test",
        life: None,
    };
    let refused = machine.log().create_hold("s", &full);
    assert!(
        matches!(refused, Err(LogError::TooManyHolds { .. })),
        "{refused:?}"
    );
    let mut idle = PassReport::default();
    (0..3).for_each(|_| add(&mut idle));
    assert_eq!(idle.groups_before, 0);

    let kept = machine.bytes("log");
    machine.clock.advance(2 * DAY);
    let mut ended = PassReport::default();
    add(&mut ended);
    assert!(machine.log().stream("s").unwrap().holds().is_empty());
    assert!(ended.bytes_before <= kept, "{ended:?} of {kept}");
    while machine.log().compact_step() | machine.log().step() {}
    assert_eq!(count(&machine), KEYS as usize);
}

#[test]
fn retention_removes_held_records_and_the_list_marks_the_hold_as_incomplete() {
    let machine = Machine::new();
    let mut stream = small_groups("compact,delete");
    stream.retention = Some(millstream_base::ByteSize(100_000));
    machine.log().create_stream("s", stream).unwrap();
    fill(&machine, 0..5);
    hold(&machine, "before", DAY);
    let stream = machine.log().stream("s").unwrap();
    let is_whole = || stream.holds()[0].is_whole;
    assert!(is_whole());
    fill(&machine, 5..ROUNDS);
    assert!(machine.log().apply_retention().unwrap() > 0);
    assert!(!is_whole());
    let gone = stream.get_at_hold(b"key 0", "before");
    assert!(
        matches!(gone, Err(LogError::VersionNotKept { .. })),
        "{gone:?}"
    );
}

#[test]
fn holds_end_with_their_stream_and_are_refused_by_name() {
    let mut machine = filled(&[]);
    let create = |machine: &Machine, stream: &str, name: &str, life| {
        let owner = "test";
        let new = NewHold { name, owner, life };
        machine.log().create_hold(stream, &new).map(drop)
    };
    assert!(matches!(
        create(&machine, "none", "a", None),
        Err(LogError::UnknownStream { .. })
    ));
    for name in ["", "a b", "..", &"x".repeat(250)] {
        let refused = create(&machine, "s", name, None);
        assert!(matches!(refused, Err(LogError::BadName { .. })), "{name}");
    }
    for life in [Duration::ZERO, 367 * DAY] {
        let refused = create(&machine, "s", "a", Some(life));
        assert!(matches!(refused, Err(LogError::BadSetting { .. })));
    }
    create(&machine, "s", "a/b", None).unwrap();
    let again = create(&machine, "s", "a/b", None);
    assert!(matches!(again, Err(LogError::Exists { .. })), "{again:?}");
    machine.restart(|_| ());
    assert_eq!(machine.log().stream("s").unwrap().hold_names(), ["a/b"]);
    machine.log().delete_stream("s").unwrap();
    super::create(&machine, &[]);
    assert!(machine.log().stream("s").unwrap().holds().is_empty());
    fill(&machine, 0..2);
    machine.restart(|_| ());
    assert!(machine.log().stream("s").unwrap().holds().is_empty());
    machine
        .log()
        .create_stream("plain", Default::default())
        .unwrap();
    let refused = create(&machine, "plain", "a", None);
    assert!(
        matches!(refused, Err(LogError::NotKeyed { .. })),
        "{refused:?}"
    );
}

/// Ends the other threads also when a check fails.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Passes, appends and holds on threads of their own: a hold sees the same records at its end as at first.
#[test]
fn holds_can_be_created_during_compaction_passes() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(millstream_log::LogConfig {
        background: millstream_log::Background::Threads,
        ..config(dir.path())
    })
    .unwrap();
    let mut stream = small_groups("compact");
    for (name, value) in [(DIRTY_RATIO_MIN, "0"), (FILE_DELETE_DELAY, "0")] {
        stream.settings.insert(name.to_owned(), value.to_owned());
    }
    let stream = log.create_stream("s", stream).unwrap();
    let passes = || log.stats().compaction.passes;
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let _ends = SetAtEnd(&is_over);
        scope.spawn(|| {
            let partition = stream.partition(0).unwrap();
            let mut round = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                // Passes have a low priority: on a machine under load, the dirty records would grow without end.
                if round / ROUNDS_PER_PASS > passes() {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let value = [round as u8; 500];
                let keys = (0..KEYS).map(|key| format!("key {key}").into_bytes());
                let keys: Vec<Vec<u8>> = keys.collect();
                let value = (!round.is_multiple_of(5)).then_some(&value[..]);
                let records: Vec<_> = keys.iter().map(|key| (Some(&key[..]), value)).collect();
                append(&partition, &records);
                round += 1;
            }
        });
        let mut seen: BTreeMap<String, BTreeMap<u64, u64>> = BTreeMap::new();
        let began = Instant::now();
        for n in 0_usize.. {
            let name = format!("h{n}");
            let new = NewHold {
                name: &name,
                owner: "test",
                life: None,
            };
            log.create_hold("s", &new).unwrap();
            seen.insert(name.clone(), at_hold(&stream, &name));
            for (name, first) in &seen {
                assert_eq!(at_hold(&stream, name), *first, "{name} of {n}");
            }
            if seen.len() == HOLDS_MAX {
                let name = format!("h{}", n + 1 - HOLDS_MAX + n % 3);
                if seen.remove(&name).is_none() {
                    let name = seen.keys().next().unwrap().clone();
                    seen.remove(&name);
                    log.delete_hold("s", &name).unwrap();
                } else {
                    log.delete_hold("s", &name).unwrap();
                }
            }
            let waited = began.elapsed();
            if waited > Duration::from_secs(4) && passes() > 3 || waited > PASSES_WITHIN {
                break;
            }
        }
        seen
    });
    for (name, first) in &seen {
        assert_eq!(at_hold(&stream, name), *first, "{name} at the end");
    }
    assert!(
        log.stats().compaction.passes > 3,
        "{:?}",
        log.stats().compaction
    );
    assert!(stream.partition(0).unwrap().earliest_offset() == Offset(0));
}

/// An open transaction hides all records behind its beginning, but only in its partition.
#[test]
fn a_hold_ends_before_open_transactions_of_its_partition() {
    let machine = Machine::new();
    let mut stream = small_groups("compact");
    stream.lanes = 2;
    machine.log().create_stream("s", stream).unwrap();
    let log = machine.log();
    let stream = log.stream("s").unwrap();
    let partitions = [0, 1].map(|n| stream.partition(n).unwrap());
    let keys: Vec<Vec<u8>> = (0..2)
        .map(|n| {
            let mut keys = (0..).map(|key| format!("key {key}").into_bytes());
            keys.find(|key| partition_of_key(key, 2) == n).unwrap()
        })
        .collect();
    let write = |n: usize, producer: i64| {
        let records = [(Some(&keys[n][..]), Some(&b"v"[..]))];
        let producer = Some((producer, 0));
        let chunk = chunk(&records, Compression::None, producer);
        partitions[n].append(&chunk).unwrap();
    };
    let commit = |n: usize, producer: i64| {
        let marker = EndMarker {
            producer_id: ProducerId(producer),
            producer_epoch: ProducerEpoch(0),
            end: TransactionEnd::Commit,
            coordinator_epoch: 0,
        };
        partitions[n].append_marker(&marker).unwrap();
        sync(log);
    };
    let create = |name| {
        let owner = "test";
        let life = None;
        log.create_hold("s", &NewHold { name, owner, life })
    };
    write(0, 1);
    write(1, 1);
    sync(log);
    create("open").unwrap();
    write(0, 2);
    write(1, 2);
    commit(0, 2);
    commit(1, 2);
    // The second transaction is behind the beginning of the first one in both partitions, and so in none of the hold; but that is
    // not known to each partition.
    let refused = create("split");
    assert!(
        matches!(refused, Err(LogError::HoldSplits { .. })),
        "{refused:?}"
    );
    assert_eq!(stream.hold_names(), ["open"]);
    commit(0, 1);
    commit(1, 1);
    create("all").unwrap();
    for key in &keys {
        assert_eq!(stream.get_at_hold(key, "open").unwrap(), None);
        let found = stream.get_at_hold(key, "all").unwrap().unwrap();
        assert_eq!(found.offset, Offset(1));
    }
}
