//! Values whose ends are compared with the clock of their stream.

use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_log::{
    ChangeError, DELETE_RETENTION, FILE_DELETE_DELAY, KEYED_CLOCK, KEYED_CLOCK_MIN, KeyChange,
    KeyCondition, KeyRange, LogError, NewHold, NewValue, SECONDARY, StreamConfig, TTL, WALL_CLOCK,
};
use millstream_record::{Chunks, Compression, Decompressor};

use crate::lifetimes::{append_until, close_groups, create, keys, put_for, stored};
use crate::machine::Machine;
use crate::{append, get, sync, tagged_chunk_of, try_find};

/// A time of the wall clock behind all ends of these tests: it has no effect.
const WALL: Timestamp = Timestamp(1_000_000_000);

fn machine() -> Machine {
    let machine = Machine::new();
    machine.clock.set(WALL);
    machine
}

fn set_clock(machine: &Machine, clock: &str) {
    let setting = (KEYED_CLOCK.to_owned(), clock.to_owned());
    let alter = |config: &mut StreamConfig| config.settings.extend([setting]);
    machine.log().alter_stream("s", alter).unwrap();
}

/// Lets compaction do all work that is due.
fn work(machine: &Machine) {
    for _ in 0..5 {
        while machine.log().step() | machine.log().compact_step() {}
        machine.clock.advance(Duration::from_secs(2));
    }
}

fn found(machine: &Machine) -> String {
    keys(&machine.partition()).concat()
}

#[test]
fn a_value_ends_by_the_clock_of_its_stream() {
    let mut machine = machine();
    create(&machine, &[(KEYED_CLOCK, "0")]);
    append_until(&machine, &["a"], Some(1_000));
    append_until(&machine, &["b"], Some(2_000));
    append_until(&machine, &["c"], None);
    for is_in_files in [false, true] {
        for (clock, expected) in [
            ("999", "abc"),
            ("1000", "bc"),
            ("2000", "c"),
            ("1999", "bc"),
            (WALL_CLOCK, "c"),
            ("nonsense", "c"),
            ("-5", "abc"),
            ("1500", "bc"),
        ] {
            set_clock(&machine, clock);
            let partition = machine.partition();
            assert_eq!(found(&machine), expected, "clock {clock}");
            for key in ["a", "b", "c"] {
                let is_there = expected.contains(key);
                assert_eq!(get(&partition, key.as_bytes()).is_some(), is_there);
                let at = partition.get_at(key.as_bytes(), Offset(u64::MAX));
                assert_eq!(at.unwrap().is_some(), is_there, "clock {clock}");
            }
        }
        if !is_in_files {
            close_groups(&machine);
            append(&machine.partition(), &[(Some(b"filler"), None)]);
            sync(machine.log());
        }
        machine.restart(|_| ());
        assert_eq!(found(&machine), "bc", "the clock survives a restart");
    }
}

#[test]
fn values_that_name_no_end_follow_the_clock_of_their_stream() {
    let machine = Machine::new();
    create(&machine, &[(KEYED_CLOCK, "0"), (TTL, "1000")]);
    append_until(&machine, &["a"], None);
    machine.clock.set(WALL);
    assert_eq!(found(&machine), "a");
    set_clock(&machine, "1000");
    assert_eq!(found(&machine), "");
}

#[test]
fn conditions_and_lifetimes_follow_the_clock_of_their_stream() {
    let machine = machine();
    let partition = create(&machine, &[(KEYED_CLOCK, "5000")]);
    let change = |change| {
        let outcome = partition.change(&[change]).unwrap().outcomes.remove(0);
        sync(machine.log());
        outcome
    };
    let put = put_for("k", NewValue::Put(b"7"), Some(1_000));
    change(put).unwrap();
    let version = partition.get(b"k").unwrap().unwrap();
    assert_eq!(version.expires_at, Some(Timestamp(6_000)));
    assert_eq!(
        version.timestamp, WALL,
        "records have the wall clock's time"
    );
    let absent = KeyChange {
        condition: KeyCondition::Absent,
        ..put
    };
    let refused = change(absent).unwrap_err();
    assert!(matches!(refused, ChangeError::OtherVersion { .. }));
    set_clock(&machine, "6000");
    change(absent).unwrap();
    let version = partition.get(b"k").unwrap().unwrap();
    assert_eq!(version.expires_at, Some(Timestamp(7_000)));
}

#[test]
fn secondary_keys_and_watches_follow_the_clock_of_their_stream() {
    let machine = machine();
    let partition = create(&machine, &[(KEYED_CLOCK, "0"), (SECONDARY, "tag")]);
    let chunk = tagged_chunk_of(
        &[(Some(b"k"), Some(b"v"))],
        &[vec![("tag", b"t".to_vec())]],
        Compression::None,
        (None, false),
        WALL,
        Some(1_000),
    );
    partition.append(&chunk).unwrap();
    sync(machine.log());
    let chunk = Chunks::new(&chunk).next().unwrap().unwrap();
    let mut decompressor = Decompressor::default();
    let record = chunk.records(&mut decompressor).unwrap().next();
    let record = record.unwrap().unwrap();
    for (clock, is_there) in [("999", true), ("1000", false), ("0", true)] {
        set_clock(&machine, clock);
        let tagged = try_find(&partition, "tag", &KeyRange::key("t"), 10, 1 << 20);
        assert_eq!(tagged.unwrap().len(), usize::from(is_there));
        assert_eq!(partition.value_of(&record).is_some(), is_there);
    }
}

/// Its group is rewritten as soon as the clock has passed, although nothing is written and no time passes.
#[test]
fn compaction_drops_ended_values_without_tombstones() {
    for (ttl, end) in [("-1", Some(1_000)), ("1000", None)] {
        let mut machine = Machine::new();
        let settings = [(KEYED_CLOCK, "0"), (FILE_DELETE_DELAY, "0"), (TTL, ttl)];
        create(&machine, &settings);
        let names: Vec<String> = (0..300).map(|n| format!("window {n:0300}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        append_until(&machine, &["later"], Some(5_000));
        close_groups(&machine);
        append_until(&machine, &names, end);
        machine.clock.set(WALL);
        close_groups(&machine);
        let windows = |machine: &Machine| stored(&machine.partition(), b"window");
        let before = machine.partition().next_offset();
        machine
            .partition()
            .check_watch(Offset(0), machine.partition().watch_epoch())
            .unwrap();
        set_clock(&machine, "999");
        work(&machine);
        assert_eq!(windows(&machine), [true; 300]);
        // The group of the last ones has a record of the time 5.
        set_clock(&machine, "1005");
        work(&machine);
        assert!(windows(&machine).is_empty(), "no tombstone stays");
        assert!(found(&machine).contains("later"));
        // A watch from before has missed that the keys are absent.
        let partition = machine.partition();
        let watched = partition.check_watch(Offset(0), partition.watch_epoch());
        assert!(matches!(watched, Err(LogError::ChangesLost { .. })));
        partition
            .check_watch(before, partition.watch_epoch())
            .unwrap();
        let passes = machine.log().stats().compaction.passes;
        set_clock(&machine, "1006");
        work(&machine);
        assert_eq!(
            machine.log().stats().compaction.passes,
            passes,
            "nothing is due"
        );
        machine.restart(|_| ());
        assert!(windows(&machine).is_empty());
        set_clock(&machine, "0");
        assert_eq!(get(&machine.partition(), names[0].as_bytes()), None);
        assert!(found(&machine).contains("later"));
    }
}

/// Older values of the key, in other groups, have no end or a later one, and go in the same pass.
#[test]
fn older_values_do_not_come_back() {
    for end in [None, Some(9_000)] {
        let mut machine = machine();
        let settings = [(KEYED_CLOCK, "0"), (FILE_DELETE_DELAY, "0")];
        create(&machine, &settings);
        for end in [end, end, Some(1_000)] {
            append_until(&machine, &["k"], end);
            close_groups(&machine);
        }
        assert_eq!(stored(&machine.partition(), b"k").len(), 3);
        set_clock(&machine, "1000");
        for _ in 0..2 {
            machine.log().compact().unwrap();
            sync(machine.log());
            assert_eq!(get(&machine.partition(), b"k"), None);
        }
        assert!(stored(&machine.partition(), b"k").is_empty());
        // Nothing is found with an earlier clock, and after a start.
        set_clock(&machine, "0");
        assert_eq!(get(&machine.partition(), b"k"), None);
        machine.restart(|_| ());
        assert_eq!(get(&machine.partition(), b"k"), None);
    }
}

/// A hold keeps the older value, which the newer one must hide.
#[test]
fn an_ended_value_behind_a_hold_stays_until_the_hold_ends() {
    let mut machine = machine();
    let settings = [
        (KEYED_CLOCK, "0"),
        (FILE_DELETE_DELAY, "0"),
        (DELETE_RETENTION, "0"),
    ];
    create(&machine, &settings);
    append_until(&machine, &["k"], None);
    close_groups(&machine);
    let hold = NewHold {
        name: "before",
        owner: "test",
        life: Some(Duration::from_secs(3_600)),
    };
    machine.log().create_hold("s", &hold).unwrap();
    append_until(&machine, &["k"], Some(1_000));
    close_groups(&machine);
    set_clock(&machine, "1000");
    let passes = |machine: &Machine| machine.log().stats().compaction.passes;
    for is_restart in [false, true] {
        if is_restart {
            machine.restart(|_| ());
        }
        work(&machine);
        let done = passes(&machine);
        machine.log().compact().unwrap();
        work(&machine);
        assert_eq!(
            passes(&machine),
            done,
            "compaction does not look again and again"
        );
        assert_eq!(get(&machine.partition(), b"k"), None);
        let stream = machine.log().stream("s").unwrap();
        assert!(stream.get_at_hold(b"k", "before").unwrap().is_some());
        assert_eq!(stored(&machine.partition(), b"k"), [true, true]);
    }
    machine.log().delete_hold("s", "before").unwrap();
    work(&machine);
    assert!(stored(&machine.partition(), b"k").is_empty());
    set_clock(&machine, "0");
    assert_eq!(get(&machine.partition(), b"k"), None);
}

#[test]
fn values_end_at_the_least_and_the_largest_time() {
    let machine = machine();
    let least = KEYED_CLOCK_MIN.0;
    create(&machine, &[(KEYED_CLOCK, &least.to_string())]);
    append_until(&machine, &["a"], Some(least));
    append_until(&machine, &["b"], Some(least + 1));
    append_until(&machine, &["c"], Some(i64::MAX));
    assert_eq!(found(&machine), "bc");
    set_clock(&machine, &(i64::MAX - 1).to_string());
    assert_eq!(found(&machine), "c");
    set_clock(&machine, &i64::MAX.to_string());
    assert_eq!(found(&machine), "");
}
