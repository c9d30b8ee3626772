//! Older versions of keys, in groups of many chunks.

use millstream_base::Offset;
use millstream_log::{
    DELETE_RETENTION, FILE_DELETE_DELAY, HistoryVersion, LogError, StreamPartition,
};

use super::machine::Machine;
use super::{append, keyed, small_groups, sync};

const ROUNDS: u64 = 400;

fn offsets(versions: &[HistoryVersion]) -> Vec<u64> {
    versions
        .iter()
        .map(|found| found.version.offset.0)
        .collect()
}

/// All versions of a key, by pages of at most `limit` versions that read about `read_bytes_max` bytes. Returns the number of
/// pages, too.
fn history(partition: &StreamPartition, key: &[u8], limit: usize, read: u64) -> (Vec<u64>, u64) {
    let (mut found, mut pages) = (Vec::new(), 0);
    let mut before = Offset(u64::MAX);
    loop {
        let page = partition.key_history(key, before, limit, 1 << 20, read);
        let page = page.unwrap();
        found.extend(offsets(&page.versions));
        pages += 1;
        match page.next {
            Some(next) => before = next,
            None => return (found, pages),
        }
    }
}

/// A group of 4 MiB in which key "a" changes in each round, and key "b" only in the first one.
fn filled() -> Machine {
    let machine = Machine::new();
    machine.log().create_stream("s", keyed("compact")).unwrap();
    let partition = machine.partition();
    for round in 0..ROUNDS {
        let value = [round as u8; 10_000];
        let key: &[u8] = if round == 0 { b"b" } else { b"c" };
        append(&partition, &[(Some(b"a"), Some(&value[..10]))]);
        append(&partition, &[(Some(key), Some(&value))]);
        sync(machine.log());
    }
    machine
}

#[test]
fn a_page_of_a_keys_history_starts_at_its_end_and_reads_few_chunks() {
    let machine = filled();
    machine.log().persist();
    sync(machine.log());
    machine.log().evict();
    let partition = machine.partition();
    let all: Vec<u64> = (0..ROUNDS).rev().map(|round| 2 * round).collect();
    assert_eq!(history(&partition, b"a", 1_000, 1 << 30), (all.clone(), 1));
    let (found, pages) = history(&partition, b"a", 1_000, 100_000);
    assert_eq!(found, all);
    assert!((20..50).contains(&pages), "{pages} pages");
    assert_eq!(history(&partition, b"a", 7, 1 << 30), (all, ROUNDS / 7 + 1));
    assert_eq!(history(&partition, b"b", 7, 1 << 30), (vec![1], 1));
    assert_eq!(history(&partition, b"z", 7, 1 << 30), (Vec::new(), 1));
    // The newest versions are near the end.
    let before = machine.read.load(std::sync::atomic::Ordering::Relaxed);
    let page = partition.key_history(b"a", Offset(u64::MAX), 5, 1 << 20, 1 << 20);
    assert_eq!(offsets(&page.unwrap().versions).len(), 5);
    let read = machine.read.load(std::sync::atomic::Ordering::Relaxed) - before;
    assert!(read < 2 << 20, "{read} bytes");
}

#[test]
fn a_version_at_an_offset_is_found_in_the_open_group() {
    let machine = filled();
    let partition = machine.partition();
    for at in 0..2 * ROUNDS {
        let found = partition.get_at(b"a", Offset(at)).unwrap().unwrap();
        assert_eq!(found.offset.0, at / 2 * 2);
        assert_eq!(found.value[..], [(at / 2) as u8; 10]);
        let first = partition.get_at(b"b", Offset(at)).unwrap();
        assert_eq!(first.is_some(), at > 0);
        assert_eq!(partition.get_at(b"z", Offset(at)).unwrap(), None);
    }
}

/// Versions that compaction has dropped are reported, and those that it has kept stay exact, also after restarts.
#[test]
fn versions_that_compaction_dropped_stay_reported() {
    let mut machine = Machine::new();
    let mut config = small_groups("compact");
    let settings = [(DELETE_RETENTION, "0"), (FILE_DELETE_DELAY, "0")];
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    config.settings.extend(settings.map(owned));
    machine.log().create_stream("s", config).unwrap();
    let put = |machine: &Machine, key: &str, value: Option<&[u8]>| {
        let partition = machine.partition();
        let offset = partition.next_offset();
        append(&partition, &[(Some(key.as_bytes()), value)]);
        sync(machine.log());
        offset
    };
    let fill = |machine: &Machine| {
        for n in 0..20 {
            put(machine, &format!("fill {n}"), Some(&[0; 5_000]));
        }
        machine.log().persist();
        sync(machine.log());
    };
    let once = put(&machine, "once", Some(b"1"));
    let first = put(&machine, "twice", Some(b"1"));
    let deleted = put(&machine, "deleted", None);
    let second = put(&machine, "twice", Some(b"2"));
    fill(&machine);
    let partition = machine.partition();
    assert_eq!(
        partition.get_at(b"twice", first).unwrap().unwrap().offset,
        first
    );
    assert_eq!(partition.get_at(b"twice", Offset(0)).unwrap(), None);
    assert!(machine.log().compact().unwrap().groups_before > 0);
    for _ in 0..2 {
        machine.clock.advance(std::time::Duration::from_secs(1));
        fill(&machine);
        assert!(machine.log().compact().unwrap().groups_before > 0);
    }
    let third = put(&machine, "once", Some(b"2"));
    let stable = partition.last_stable_offset();
    drop(partition);
    for _ in 0..3 {
        let partition = machine.partition();
        let offset_at = |key: &[u8], at| {
            let found = partition.get_at(key, at);
            found.map(|found| found.map(|found| found.offset))
        };
        // Where no newer version made the pass drop others, and behind the passes, all is known.
        assert_eq!(offset_at(b"once", once).unwrap(), Some(once));
        assert_eq!(offset_at(b"once", Offset(third.0 - 1)).unwrap(), Some(once));
        assert_eq!(offset_at(b"once", third).unwrap(), Some(third));
        assert_eq!(offset_at(b"twice", second).unwrap(), Some(second));
        let lost = offset_at(b"twice", first).unwrap_err();
        assert!(matches!(lost, LogError::VersionNotKept { oldest, .. } if oldest == Some(second)));
        let text = lost.to_string();
        assert!(
            text.contains("its oldest version behind that offset is 3"),
            "{text}"
        );
        // Nothing is known of a key before its deletion, which is dropped, too.
        assert!(offset_at(b"deleted", Offset(deleted.0 - 1)).is_err());
        assert_eq!(offset_at(b"deleted", deleted).unwrap(), None);
        assert_eq!(offset_at(b"deleted", stable).unwrap(), None);
        let page = partition.key_history(b"twice", stable, 10, 1 << 20, 1 << 20);
        let page = page.unwrap();
        assert_eq!(
            (offsets(&page.versions), page.lacks_older),
            (vec![second.0], true)
        );
        drop(partition);
        machine.restart(|_| {});
    }
}
