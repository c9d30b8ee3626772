//! Changes that end: the flow tells the changelog how far event time is, and compaction drops those that have ended.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use millstream_log::{
    COMPACTION_LAG_MAX, DELETE_RETENTION, DIRTY_RATIO_MIN, FILE_DELETE_DELAY, KEYED_CLOCK,
};
use millstream_record::Decompressor;

use crate::support::{World, for_both, table};

const WAIT_MAX: Duration = Duration::from_secs(120);

pub const CLOCK_MIN: &str = "-9223372036854775807";

/// The setting with which compaction takes every record as soon as it can.
pub const AT_ONCE: [(&str, Option<&str>); 4] = [
    (COMPACTION_LAG_MAX, Some("1")),
    (DIRTY_RATIO_MIN, Some("0")),
    (DELETE_RETENTION, Some("0")),
    (FILE_DELETE_DELAY, Some("0")),
];

/// The keys of the records that the changelog has, in the order of its partitions.
pub fn stored(world: &World) -> Vec<Vec<u8>> {
    let (mut keys, mut decompressor) = (Vec::new(), Decompressor::default());
    for partition in 0..4 {
        let partition = world.partition(partition);
        let mut reader = partition.reader(partition.earliest());
        while let Some(chunks) = reader.read(1 << 20).unwrap() {
            for chunk in chunks.chunks() {
                let chunk = chunk.unwrap();
                if chunk.header().attributes.is_control() {
                    continue;
                }
                for record in chunk.records(&mut decompressor).unwrap() {
                    keys.push(record.unwrap().key.unwrap().to_vec());
                }
            }
        }
    }
    keys
}

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < WAIT_MAX, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a pass has taken all records.
pub fn wait_until_compacted(world: &World) {
    let is_compacted = |partition| {
        let partition = world.partition(partition);
        let compacted = partition.info().compaction.unwrap_or_default().compacted_to;
        compacted == partition.next_offset()
    };
    wait_until("compaction takes all", || (0..4).all(is_compacted));
}

#[test]
fn a_change_that_has_ended_is_dropped_and_the_others_stay() {
    for_both(|world| {
        let mut run = world.begin(None);
        world.set(&AT_ONCE);
        run.store_until(
            1,
            &[(b"ada", Some(1_000)), (b"bob", Some(2_000)), (b"cid", None)],
        );
        // A newer change of a key has a later end, or none.
        let newer = [(&b"dan"[..], Some(1_000)), (b"eve", Some(1_000))];
        run.store_until(2, &newer);
        let newer = [(&b"dan"[..], Some(5_000)), (b"eve", None)];
        let prepared = run.store_until(3, &newer);
        wait_until_compacted(world);
        let all: BTreeSet<&[u8]> = [&b"ada"[..], b"bob", b"cid", b"dan", b"eve"].into();
        let found = stored(world);
        let found: BTreeSet<&[u8]> = found.iter().map(Vec::as_slice).collect();
        assert_eq!(found, all, "nothing has ended");
        run.0.passed(1_000).unwrap();
        assert_eq!(world.clock().as_deref(), Some("1000"));
        wait_until("the change that has ended goes", || {
            stored(world).iter().all(|key| key != b"ada")
        });
        wait_until_compacted(world);
        drop(run);
        let mut run = world.begin(Some(&prepared));
        let expected = [
            (&b"bob"[..], &b"1"[..]),
            (b"cid", b"1"),
            (b"dan", b"1"),
            (b"eve", b"1"),
        ];
        assert_eq!(run.restore().unwrap(), table(&expected));
        assert_eq!(
            world.clock().as_deref(),
            Some("1000"),
            "a run that resumes keeps it"
        );
        // The next run raises it at once.
        run.0.passed(5_000).unwrap();
        wait_until("those that have ended go", || stored(world).len() == 2);
        drop(run);
        let restored = world.begin(Some(&prepared)).restore().unwrap();
        assert_eq!(restored, table(&[(b"cid", b"1"), (b"eve", b"1")]));
    });
}

#[test]
fn a_change_that_has_ended_is_restored_while_it_is_there() {
    for_both(|world| {
        let mut run = world.begin(None);
        let prepared = run.store_until(1, &[(b"ada", Some(1_000))]);
        run.0.passed(1_000).unwrap();
        drop(run);
        let restored = world.begin(Some(&prepared)).restore().unwrap();
        assert_eq!(restored, table(&[(b"ada", b"1")]));
    });
}

#[test]
fn the_clock_is_raised_once_in_a_while_and_never_lowered() {
    for_both(|world| {
        let (mut run, mut other) = (world.begin_as(0, 2, None), world.begin_as(1, 2, None));
        assert_eq!(world.clock().as_deref(), Some(CLOCK_MIN));
        run.0.passed(i64::MIN).unwrap();
        assert_eq!(world.clock().as_deref(), Some(CLOCK_MIN));
        drop(run);
        let mut run = world.begin_as(0, 2, None);
        run.0.passed(1_000).unwrap();
        assert_eq!(world.clock().as_deref(), Some("1000"));
        run.0.passed(2_000).unwrap();
        assert_eq!(
            world.clock().as_deref(),
            Some("1000"),
            "it was raised a moment ago"
        );
        other.0.passed(500).unwrap();
        assert_eq!(world.clock().as_deref(), Some("1000"));
    });
}

/// Its event time begins anew, too: its changes may end before the time of the earlier run.
#[test]
fn a_flow_that_begins_anew_begins_with_the_smallest_clock() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.store_until(1, &[(b"ada", Some(1_000))]);
        run.0.passed(9_000).unwrap();
        drop(run);
        let mut run = world.begin(None);
        run.0.restore(None, &mut |_, _| Ok(())).unwrap();
        assert_eq!(world.clock().as_deref(), Some(CLOCK_MIN));
        world.set(&AT_ONCE);
        let prepared = run.store_until(1, &[(b"bob", Some(2_000))]);
        wait_until_compacted(world);
        drop(run);
        let restored = world.begin(Some(&prepared)).restore().unwrap();
        assert!(restored.contains_key(&b"bob"[..]), "{restored:?}");
    });
}

/// By the wall clock, changes would have ended that a run still needs.
#[test]
fn a_changelog_of_an_earlier_version_gets_a_clock_when_it_is_opened() {
    for_both(|world| {
        drop(world.open().unwrap());
        for clock in [None, Some("wall")] {
            world.set(&[(KEYED_CLOCK, clock)]);
            drop(world.open().unwrap());
            assert_eq!(world.clock().as_deref(), Some(CLOCK_MIN));
        }
    });
}

#[test]
fn a_raise_that_fails_is_tried_again_and_fails_no_checkpoint() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.store(1, &[(b"ada", Some(b"1"))]);
        world.wait_until_decided();
        // Without the stream, its setting cannot be changed.
        world.log.delete_stream("shop.state.users").unwrap();
        run.0.passed(1_000).unwrap();
        drop(world.open().unwrap());
        run.0.passed(2_000).unwrap();
        assert_eq!(world.clock().as_deref(), Some("2000"));
    });
}
