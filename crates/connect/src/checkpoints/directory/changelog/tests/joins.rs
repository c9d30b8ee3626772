//! Joins: how much they write and leave, and that they can fail.

use super::*;

#[test]
fn a_checkpoint_writes_as_much_as_has_changed_and_joins_at_most_twice_that() {
    let disk = SimDisk::new(1);
    let mut run = Run::begin(&disk, 1, 1).unwrap();
    let written = || -> u64 {
        let len = |kind| match kind {
            OperationKind::Write { len, .. } => len,
            _ => 0,
        };
        let trace = disk.trace().into_iter();
        let of_state = trace.filter(|it| {
            let path = it.path.to_str().unwrap();
            path.contains("/changes.") || path.contains("/base.")
        });
        of_state.map(|it| len(it.kind)).sum()
    };
    disk.start_trace();
    run.checkpoint(20_000, 5000).unwrap();
    run.checkpoint(0, 1).unwrap();
    let before = written();
    run.checkpoint(0, 1).unwrap();
    assert_eq!(written(), before, "nothing has changed");
    run.checkpoint(1, 5000).unwrap();
    assert!(written() - before < 150, "{}", written() - before);
    let mut files_max = 0;
    for _ in 0..400 {
        run.checkpoint(50, 5000).unwrap();
        let live: usize = run.ranks[0]
            .table
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        let shards = disk
            .files()
            .into_iter()
            .filter(|(path, _)| path.to_str().unwrap().contains("checkpoint."));
        let shards: u64 = shards.map(|(_, bytes)| bytes).sum();
        let state = disk.used_bytes() - shards;
        assert!(
            state < 5 * live as u64 + 2 * JOIN_AT_LEAST,
            "{state} for {live}"
        );
        files_max = files_max.max(disk.files().len());
    }
    // A shard, the lock, a base, two files of changes, and the joined ones until a checkpoint is complete.
    assert!(files_max <= 8, "{files_max}");
    let pushed = run.ranks[0].pushed;
    // A change has a few bytes more than its key and value; a block has a header.
    let bound = 3 * (pushed * 5 / 4) + JOIN_AT_LEAST;
    assert!(written() < bound, "{} for {pushed}", written());
    assert!(written() > pushed * 3 / 2, "joins are among them");
}

#[test]
fn each_run_adds_a_file_and_few_are_left() {
    let disk = SimDisk::new(1);
    for seed in 0..40 {
        let mut run = Run::begin(&disk, 1, seed).unwrap();
        run.checkpoint(1, 10).unwrap();
        run.checkpoint(1, 10).unwrap();
        assert!(disk.files().len() < FILES_MAX + 6, "{:?}", disk.files());
    }
}

#[test]
fn a_join_drops_what_no_run_needs() {
    let disk = SimDisk::new(1);
    let mut run = Run::begin(&disk, 1, 1).unwrap();
    let rank = &mut run.ranks[0];
    let change = |key: u8, value: Option<usize>, expires| Change {
        key: vec![key],
        value: value.map(|len| vec![key; len]),
        checkpoint: 1,
        expires,
    };
    let changes = [
        change(1, Some(JOIN_AT_LEAST as usize), Some(10)),
        change(2, Some(5), Some(11)),
        change(3, Some(5), None),
        change(4, Some(5), None),
        change(4, None, None),
    ];
    rank.changelog.passed(10).unwrap();
    rank.prepare(&changes, 1).unwrap();
    let prepared = rank.prepare(&[], 2).unwrap();
    let begun = Rank::begin(&run.dir, &start(0, 1, Some(&prepared)), 2).unwrap();
    assert_eq!(
        begun.table,
        Table::from([(vec![2], vec![2; 5]), (vec![3], vec![3; 5])])
    );
    assert!(begun.changelog.sealed[0].is_base);
    assert_eq!(begun.changelog.sealed.len(), 1);
}

#[test]
fn a_failed_join_is_tried_again_when_there_are_twice_the_changes() {
    let disk = SimDisk::new(1);
    let mut run = Run::begin(&disk, 1, 1).unwrap();
    disk.fail_writes(|path| path.to_str().unwrap().contains("/base."));
    for _ in 0..40 {
        run.checkpoint(25, 40).unwrap();
    }
    let files = disk.files();
    assert!(
        files
            .iter()
            .all(|(path, _)| !path.to_str().unwrap().contains("/base."))
    );
    // One for each attempt.
    assert!(files.len() < 12, "{files:?}");
    disk.fail_writes(|_| false);
    for _ in 0..60 {
        run.checkpoint(25, 40).unwrap();
    }
    assert!(run.ranks[0].changelog.sealed[0].is_base);
    run.check_files(&disk);
    drop(run);
    Run::begin(&disk, 1, 2).unwrap();
}
