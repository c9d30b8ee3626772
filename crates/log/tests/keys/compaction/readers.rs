//! Compaction beside readers.

use millstream_base::Offset;
use millstream_log::{AtLeast, FILE_DELETE_DELAY, Next, Subscription};
use millstream_record::Chunks;

use super::{ROUNDS, check_rest, fill, filled, newest, offsets_in, read_on, rises, table};
use crate::sync;

#[test]
fn readers_continue_across_a_swap_of_groups_and_miss_no_record() {
    let machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    machine.log().evict();
    let (partition, log) = (machine.partition(), machine.log());
    let before = table(&machine);
    let groups = partition.info().groups;
    assert!(groups > 4, "{groups} groups");

    // Readers that stand all over the groups.
    let mut readers = Vec::new();
    let mut feeds = Vec::new();
    for reads in 0..170 {
        let mut reader = partition.reader(partition.earliest());
        let mut feed = Subscription::of_partitions([(partition.clone(), Offset(0))]);
        let (mut by_cursor, mut by_offset) = (Vec::new(), Vec::new());
        for _ in 0..reads {
            if let Some(chunks) = reader.read(3_000).unwrap() {
                by_cursor.extend(offsets_in(&chunks.bytes));
            }
            if let Next::Handed(handed) = feed.next(3_000).unwrap() {
                by_offset.extend(offsets_in(&handed.chunks.bytes));
            }
        }
        readers.push((reader, by_cursor));
        feeds.push((feed, by_offset));
    }
    let files_before = machine.files("log").len();
    let report = log.compact().unwrap();
    assert!(
        report.groups_before > 3 && report.groups_after == 1,
        "{report:?}"
    );
    assert_eq!(report.compacted_to.is_some(), !report.is_left);
    assert!(report.bytes_after < report.bytes_before / 4, "{report:?}");
    sync(log);
    assert_eq!(
        machine.files("log").len(),
        files_before + 1,
        "readers have the old ones"
    );

    let newest = newest(&before);
    let end = partition.next_offset();
    for (reader, before) in &mut readers {
        // A cursor begins the new group again, a reader goes on where it is.
        let mut of_cursor = partition.reader(reader.cursor());
        check_rest(before, &read_on(&mut of_cursor), &newest);
        let rest = read_on(reader);
        check_rest(before, &rest, &newest);
        // The chunk of the new group in which it goes on may begin before.
        let goes_back = rest.windows(2).filter(|pair| pair[0] >= pair[1]);
        assert!(goes_back.count() <= 1);
    }
    for (feed, before) in &mut feeds {
        let mut rest = Vec::new();
        while let Next::Handed(handed) = feed.next(3_000).unwrap() {
            let offsets = offsets_in(&handed.chunks.bytes).into_iter();
            rest.extend(offsets.filter(|offset| *offset >= handed.from.0));
        }
        check_rest(before, &rest, &newest);
        before.extend(rest);
        assert!(rises(before), "each offset comes once");
    }
    for from in 0..end.0 {
        let fetched = partition
            .fetch(Offset(from), end, 1, AtLeast::OneChunk)
            .unwrap();
        let first = Chunks::new(&fetched.pieces[0]).next().unwrap().unwrap();
        let header = *first.header();
        assert!((header.base_offset..header.next_offset()).contains(&Offset(from)));
    }
    assert_eq!(table(&machine), before);

    drop((readers, feeds));
    sync(log);
    assert_eq!(machine.files("log").len(), partition.info().groups);
    assert_eq!(table(&machine), before);
}

#[test]
fn deleted_records_stay_deleted_in_a_rewritten_group() {
    let mut machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    for round in 0..3 {
        let partition = machine.partition();
        let to = Offset(partition.earliest_offset().0 + 333);
        let deleted = machine.log().delete_before(&[(partition.clone(), to)]);
        assert_eq!(deleted[0].clone().unwrap(), to);
        let before = table(&machine);
        assert!(newest(&before).iter().all(|offset| *offset >= to.0));
        machine.log().compact().unwrap();
        assert_eq!(partition.earliest_offset(), to);
        assert_eq!(table(&machine), before);
        let mut reader = partition.reader(partition.earliest());
        check_rest(&[to.0 - 1], &read_on(&mut reader), &newest(&before));
        if round == 1 {
            machine.restart(|_| ());
            assert_eq!(machine.partition().earliest_offset(), to);
            assert_eq!(table(&machine), before);
        }
        fill(&machine, ROUNDS..ROUNDS + 8);
    }
}

#[test]
fn groups_of_a_shared_group_are_not_joined_and_consumed_groups_stay_consumed() {
    let machine = filled(&[(FILE_DELETE_DELAY, "0")]);
    let (log, before) = (machine.log(), table(&machine));
    let stream = log.stream("s").unwrap();
    let subscribe =
        || Subscription::of_shared_group(log, &stream, "app", "one".to_owned()).unwrap();
    let mut seen = Vec::new();
    let mut subscriber = subscribe();
    for _ in 0..70 {
        if let Next::Handed(handed) = subscriber.next(3_000).unwrap() {
            seen.extend(offsets_in(&handed.chunks.bytes));
        }
    }
    subscriber.commit().unwrap();
    sync(log);
    let report = log.compact().unwrap();
    assert!(report.groups_before > 3, "{report:?}");
    assert_eq!(report.groups_before, report.groups_after, "none is joined");
    let committed = seen.len();
    while let Next::Handed(handed) = subscriber.next(3_000).unwrap() {
        seen.extend(offsets_in(&handed.chunks.bytes));
        subscriber.commit().unwrap();
        sync(log);
    }
    let first_group_end = seen[..committed]
        .iter()
        .filter(|offset| **offset < 200)
        .count();
    assert_eq!(first_group_end, 200);
    assert!(
        !seen[committed..].iter().any(|offset| *offset < 200),
        "the first group was done"
    );
    check_rest(&[], &seen, &newest(&before));
    drop(subscriber);
    assert!(
        matches!(subscribe().next(3_000), Ok(Next::Nothing)),
        "all is done"
    );
}
