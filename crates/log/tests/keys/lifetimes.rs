//! Values that end at a time.

use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use millstream_log::{
    ChangeError, DELETE_RETENTION, FILE_DELETE_DELAY, KeyChange, KeyCondition, KeyRange, NewValue,
    StreamPartition, TTL,
};
use millstream_record::{Chunks, Compression, Decompressor};

use crate::machine::Machine;
use crate::{append, chunk_of, get, scan, small_groups, sync};

pub fn create(machine: &Machine, settings: &[(&str, &str)]) -> StreamPartition {
    let mut stream = small_groups("compact");
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    stream.settings.extend(settings.iter().map(owned));
    machine.log().create_stream("s", stream).unwrap();
    machine.partition()
}

/// Appends values that end at a time, each in a record of its own.
pub fn append_until(machine: &Machine, keys: &[&str], end: Option<i64>) {
    let now = machine.clock.now();
    for key in keys {
        let record = (Some(key.as_bytes()), Some(&b"value"[..]));
        let chunk = chunk_of(&[record], Compression::None, None, false, now, end);
        machine.partition().append(&chunk).unwrap();
        sync(machine.log());
    }
}

pub fn keys(partition: &StreamPartition) -> Vec<String> {
    let found = scan(partition, KeyRange::all(), 3, 1 << 20).into_iter();
    let text = |(key, ..): (Vec<u8>, u64, Vec<u8>)| String::from_utf8(key).unwrap();
    found.map(text).collect()
}

pub fn put_for<'a>(key: &'a str, value: NewValue<'a>, ttl: Option<u64>) -> KeyChange<'a> {
    KeyChange {
        key: key.as_bytes(),
        condition: KeyCondition::Any,
        value,
        ttl: ttl.map(Duration::from_millis),
        secondary: &[],
    }
}

/// Puts newer records until the groups of all earlier ones are closed and have key files.
pub fn close_groups(machine: &Machine) {
    let partition = machine.partition();
    for n in 0..8 {
        append(&partition, &[(Some(b"filler"), Some(&[n; 20_000]))]);
        sync(machine.log());
    }
    machine.log().persist();
    sync(machine.log());
}

#[test]
fn a_key_is_absent_when_its_value_has_expired() {
    let mut machine = Machine::new();
    create(&machine, &[]);
    append_until(&machine, &["a", "b"], Some(1_000));
    append_until(&machine, &["c"], Some(2_000));
    append_until(&machine, &["d"], None);
    for round in 0..2 {
        let partition = machine.partition();
        assert_eq!(
            keys(&partition).concat(),
            if round == 0 { "abcd" } else { "cd" }
        );
        if round == 0 {
            let version = partition.get(b"c").unwrap().unwrap();
            assert_eq!(version.expires_at, Some(Timestamp(2_000)));
            machine.clock.advance(Duration::from_millis(1_000));
        }
        assert_eq!(
            get(&partition, b"a").is_some(),
            round == 0 && machine.clock.now().0 < 1_000
        );
        assert_eq!(partition.get(b"d").unwrap().unwrap().expires_at, None);
        // The second round reads key files.
        close_groups(&machine);
        append(&machine.partition(), &[(Some(b"filler"), None)]);
        sync(machine.log());
        machine.restart(|_| ());
    }
    // A newer value takes the place of one that has ended, and ends itself.
    append_until(&machine, &["a"], Some(1_500));
    assert_eq!(keys(&machine.partition()).concat(), "acd");
    machine.clock.advance(Duration::from_millis(500));
    assert_eq!(keys(&machine.partition()).concat(), "cd");
}

#[test]
fn values_without_an_expiry_get_the_streams_lifetime() {
    let machine = Machine::new();
    let partition = create(&machine, &[(TTL, "1000")]);
    append_until(&machine, &["own"], Some(5_000));
    append_until(&machine, &["stream"], None);
    let version = partition.get(b"stream").unwrap().unwrap();
    assert_eq!(version.expires_at, Some(Timestamp(1_000)));
    machine.clock.advance(Duration::from_millis(1_000));
    assert_eq!(keys(&partition), ["own"]);
    // The setting counts at each look-up, for old values, too.
    let set = |ttl: &str| {
        let setting = (TTL.to_owned(), ttl.to_owned());
        let alter = |config: &mut millstream_log::StreamConfig| config.settings.extend([setting]);
        machine.log().alter_stream("s", alter).unwrap();
    };
    set("2000");
    assert_eq!(keys(&partition), ["own", "stream"]);
    set("-1");
    machine.clock.advance(Duration::from_secs(1_000));
    assert_eq!(keys(&partition), ["stream"]);
    assert_eq!(partition.get(b"stream").unwrap().unwrap().expires_at, None);
}

#[test]
fn conditions_and_additions_ignore_expired_values() {
    let machine = Machine::new();
    let partition = create(&machine, &[]);
    let change = |change| {
        let outcome = partition.change(&[change]).unwrap().outcomes.remove(0);
        sync(machine.log());
        outcome
    };
    for is_hot in [false, true] {
        let put = put_for("k", NewValue::Put(b"7"), Some(1_000));
        let version = change(put).unwrap().version;
        if is_hot {
            partition.get(b"k").unwrap();
        }
        let absent = KeyChange {
            condition: KeyCondition::Absent,
            ..put
        };
        let refused = change(absent).unwrap_err();
        assert!(matches!(
            refused,
            ChangeError::OtherVersion { newest: Some(_) }
        ));
        // A sum keeps the end of its value.
        let plus = put_for("k", NewValue::Add(1), Some(60_000));
        assert_eq!(change(plus).unwrap().sum, Some(8));
        machine.clock.advance(Duration::from_millis(1_000));
        let same = KeyChange {
            condition: KeyCondition::Version(version.plus(1)),
            ..put
        };
        let refused = change(same).unwrap_err();
        assert!(matches!(
            refused,
            ChangeError::OtherVersion { newest: None }
        ));
        // One that begins anew has the end of its change.
        assert_eq!(change(plus).unwrap().sum, Some(1));
        machine.clock.advance(Duration::from_millis(59_999));
        assert_eq!(change(plus).unwrap().sum, Some(2));
        machine.clock.advance(Duration::from_millis(1));
        assert_eq!(get(&partition, b"k"), None);
        assert!(change(absent).is_ok());
        change(put_for("k", NewValue::Delete, Some(5))).unwrap();
        assert_eq!(get(&partition, b"k"), None);
    }
}

#[test]
fn an_expiry_header_that_is_no_time_sets_no_expiry() {
    let machine = Machine::new();
    let partition = create(&machine, &[]);
    for (key, end) in [("a", i64::MAX), ("b", i64::MIN), ("c", -1)] {
        append_until(&machine, &[key], Some(end));
    }
    assert_eq!(keys(&partition), ["a"]);
    let text = |text: Option<&'static [u8]>| {
        let header = millstream_record::Header {
            name: millstream_record::EXPIRES.as_bytes(),
            value: text,
        };
        let mut builder = millstream_record::ChunkBuilder::new(Compression::None);
        builder
            .push(Timestamp(0), Some(b"odd"), Some(b"v"), &[header])
            .unwrap();
        partition.append(builder.finish(None).unwrap()).unwrap();
        sync(machine.log());
        partition
            .get(b"odd")
            .unwrap()
            .map(|version| version.expires_at)
    };
    for odd in [
        None,
        Some(&b""[..]),
        Some(b"soon"),
        Some(b"1e3"),
        Some(b"\xff"),
        Some(b" 5"),
    ] {
        assert_eq!(text(odd), Some(None), "{odd:?}");
    }
    assert_eq!(text(Some(b"0")), None);
}

/// The offsets of a partition's records, and whether each has a value.
pub fn stored(partition: &StreamPartition, key: &[u8]) -> Vec<bool> {
    let mut reader = partition.reader(partition.earliest());
    let (mut found, mut decompressor) = (Vec::new(), Decompressor::default());
    while let Some(chunks) = reader.read(100_000).unwrap() {
        for chunk in Chunks::new(&chunks.bytes) {
            let chunk = chunk.unwrap();
            for record in chunk.records(&mut decompressor).unwrap() {
                let record = record.unwrap();
                if record.key.is_some_and(|found| found.starts_with(key)) {
                    found.push(record.value.is_some());
                }
            }
        }
    }
    found
}

/// Compaction runs by itself when enough values have ended, although nothing is written.
#[test]
fn compaction_removes_expired_values() {
    for (ttl, end) in [("-1", Some(1_000)), ("1000", None)] {
        let mut machine = Machine::new();
        let settings = [
            (DELETE_RETENTION, "500"),
            (FILE_DELETE_DELAY, "0"),
            (TTL, ttl),
        ];
        create(&machine, &settings);
        let names: Vec<String> = (0..300).map(|n| format!("session {n:0300}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        append_until(&machine, &names, end);
        close_groups(&machine);
        let work = |machine: &Machine| {
            for _ in 0..20 {
                while machine.log().step() | machine.log().compact_step() {}
                machine.clock.advance(Duration::from_millis(10));
            }
        };
        let sessions = |machine: &Machine| stored(&machine.partition(), b"session");
        work(&machine);
        assert!(sessions(&machine).iter().all(|has_value| *has_value));
        machine.clock.advance(Duration::from_millis(900));
        assert_eq!(get(&machine.partition(), names[0].as_bytes()), None);
        work(&machine);
        assert_eq!(
            sessions(&machine),
            [true; 300],
            "a clock that jumps destroys nothing"
        );
        machine.clock.advance(Duration::from_secs(1));
        work(&machine);
        assert!(!sessions(&machine).contains(&true));
        machine.restart(|_| ());
        assert_eq!(get(&machine.partition(), names[0].as_bytes()), None);
        // The tombstones stay for their time, and go.
        for _ in 0..3 {
            machine.clock.advance(Duration::from_secs(2));
            work(&machine);
        }
        assert!(sessions(&machine).is_empty());
        let has_filler = !keys(&machine.partition()).is_empty();
        assert_eq!(has_filler, end.is_some(), "the stream ends the others");
    }
}

/// A value without a time never ends, and does not let compaction rewrite its group again and again.
#[test]
fn a_value_without_a_timestamp_stays_and_its_group_is_rewritten_once() {
    let machine = Machine::new();
    let settings = [
        (DELETE_RETENTION, "500"),
        (FILE_DELETE_DELAY, "0"),
        (TTL, "1000"),
    ];
    let partition = create(&machine, &settings);
    let record = (Some(&b"timeless"[..]), Some(&b"value"[..]));
    let chunk = chunk_of(
        &[record],
        Compression::None,
        None,
        false,
        Timestamp(-1),
        None,
    );
    partition.append(&chunk).unwrap();
    append_until(&machine, &["session"], None);
    close_groups(&machine);
    machine.clock.advance(Duration::from_secs(2));
    let mut rewritten = Vec::new();
    for _ in 0..3 {
        rewritten.push(machine.log().compact().unwrap().groups_before);
        sync(machine.log());
    }
    assert!(
        rewritten[0] > 0 && rewritten[1..] == [0, 0],
        "{rewritten:?}"
    );
    assert_eq!(keys(&partition), ["timeless"]);
    assert_eq!(stored(&partition, b"session"), [false]);
}

/// An older value of the key, in another group, does not come back when the newest has ended.
#[test]
fn an_older_value_does_not_return_when_the_newest_expires() {
    let machine = Machine::new();
    let settings = [(DELETE_RETENTION, "500"), (FILE_DELETE_DELAY, "0")];
    create(&machine, &settings);
    append_until(&machine, &["k"], None);
    close_groups(&machine);
    append_until(&machine, &["k"], Some(1_000));
    close_groups(&machine);
    for _ in 0..6 {
        machine.clock.advance(Duration::from_millis(700));
        assert_eq!(
            get(&machine.partition(), b"k").is_some(),
            machine.clock.now().0 < 1_000
        );
        machine.log().compact().unwrap();
        sync(machine.log());
    }
    assert!(stored(&machine.partition(), b"k").is_empty());
}

/// A scan goes on over ended values until it has found another one.
#[test]
fn a_scan_skips_many_expired_values() {
    let machine = Machine::new();
    let partition = create(&machine, &[]);
    let names: Vec<String> = (0..150).map(|n| format!("k{n:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    append_until(&machine, &names[..149], Some(100));
    append_until(&machine, &names[149..], None);
    machine.clock.advance(Duration::from_millis(100));
    let first = partition.scan(&KeyRange::all(), 2, 1 << 20).unwrap();
    assert_eq!(first.entries.len(), 1);
    // One key at a time takes more steps than a scan makes.
    let first = partition.scan(&KeyRange::all(), 1, 1 << 20).unwrap();
    assert_eq!(
        (first.entries.len(), first.next),
        (0, Some(b"k100".to_vec()))
    );
    assert_eq!(scan(&partition, KeyRange::all(), 1, 1 << 20).len(), 1);
}

/// A year, as a clock jumps that was set wrong.
const YEAR: i64 = 365 * 86_400_000;

fn compact_for(machine: &Machine, time: Duration) {
    let steps = 20;
    for _ in 0..steps {
        while machine.log().step() | machine.log().compact_step() {}
        machine.log().compact().unwrap();
        sync(machine.log());
        machine.clock.advance(time / steps);
    }
}

/// Lookups follow a wrong clock, but a value that has not expired by the right time is found again once the clock is right.
#[test]
fn a_clock_that_jumps_a_year_ahead_and_back_removes_no_value() {
    let mut machine = Machine::new();
    machine.clock.set(Timestamp(YEAR));
    let settings = [
        (DELETE_RETENTION, "500"),
        (FILE_DELETE_DELAY, "0"),
        (TTL, "86400000"),
    ];
    create(&machine, &settings);
    append_until(&machine, &["own"], Some(YEAR + 86_400_000));
    append_until(&machine, &["stream"], None);
    close_groups(&machine);
    let found = |machine: &Machine| keys(&machine.partition()).concat();
    compact_for(&machine, Duration::from_secs(1));
    assert_eq!(found(&machine), "ownstream");
    for is_restart in [false, true] {
        let right = machine.clock.now();
        let since = machine.clock.monotonic();
        machine.clock.set(Timestamp(right.0 + YEAR));
        if is_restart {
            machine.restart(|_| ());
        }
        assert_eq!(found(&machine), "", "restarted: {is_restart}");
        compact_for(&machine, Duration::from_secs(50 * 60));
        assert_eq!(found(&machine), "");
        let passed = machine.clock.monotonic() - since;
        machine
            .clock
            .set(Timestamp(right.0 + passed.as_millis() as i64));
        assert_eq!(found(&machine), "ownstream", "restarted: {is_restart}");
        compact_for(&machine, Duration::from_secs(60));
    }
    // One that stays ahead is followed.
    machine.clock.set(Timestamp(2 * YEAR));
    compact_for(&machine, Duration::from_secs(3 * 3_600));
    assert!(!stored(&machine.partition(), b"own").contains(&true));
}

#[test]
fn a_clock_that_jumps_a_year_back_keeps_values_until_it_is_corrected() {
    let mut machine = Machine::new();
    machine.clock.set(Timestamp(YEAR));
    let settings = [(DELETE_RETENTION, "500"), (FILE_DELETE_DELAY, "0")];
    create(&machine, &settings);
    append_until(&machine, &["gone"], Some(YEAR + 1_000));
    append_until(&machine, &["there"], Some(YEAR + 86_400_000));
    close_groups(&machine);
    append(&machine.partition(), &[(Some(b"filler"), None)]);
    sync(machine.log());
    for is_restart in [false, true] {
        machine.clock.set(Timestamp(YEAR + 2_000));
        assert_eq!(keys(&machine.partition()).concat(), "there");
        machine.clock.set(Timestamp(0));
        if is_restart {
            machine.restart(|_| ());
        }
        assert_eq!(keys(&machine.partition()).concat(), "gonethere");
        compact_for(&machine, Duration::from_secs(60));
        assert_eq!(keys(&machine.partition()).concat(), "gonethere");
        // A value that is put now ends after its time.
        let put = put_for("new", NewValue::Put(b"1"), Some(1_000));
        machine.partition().change(&[put]).unwrap();
        sync(machine.log());
        assert!(get(&machine.partition(), b"new").is_some());
        machine.clock.advance(Duration::from_secs(1));
        assert_eq!(get(&machine.partition(), b"new"), None);
        let delete = put_for("new", NewValue::Delete, None);
        machine.partition().change(&[delete]).unwrap();
        sync(machine.log());
    }
}
