//! Failed writes and syncs, and full disks.

use super::super::record::{HEAD_BYTES, RECORD_BYTES};
use super::*;

const NEW_PATH: &str = "/manifest.new";

#[test]
fn records_whose_sync_failed_become_durable_in_a_new_file() {
    let all = history(30);
    for seed in 0..SEEDS {
        let (disk, manifest) = create_and_open(seed);
        append_synced(&manifest, &all[..10]);
        let appended = manifest.append(&all[10..20]).unwrap();
        disk.fail_next_sync(|path| path == Path::new(PATH));
        manifest.sync_to(appended).unwrap();
        assert_eq!(number(&disk), 2);
        append_synced(&manifest, &all[20..]);
        let left = open(&disk.crash(&mut Rng::with_seed(seed)));
        assert_eq!(listed(&left), list_of(&all), "seed {seed}");
    }
}

#[test]
fn records_whose_write_failed_become_durable_in_a_new_file() {
    let (disk, manifest) = create_and_open(1);
    let all = history(30);
    append_synced(&manifest, &all[..10]);
    disk.fail_writes(|path| path == Path::new(PATH));
    append_synced(&manifest, &all[10..20]);
    disk.fail_writes(|_| false);
    append_synced(&manifest, &all[20..]);
    assert_eq!(number(&disk), 2);
    let left = open(&disk.crash(&mut Rng::with_seed(1)));
    assert_eq!(listed(&left), list_of(&all));
}

#[test]
fn a_manifest_that_cannot_be_rewritten_takes_no_more_records() {
    let all = history(30);
    for seed in 0..SEEDS {
        let (disk, manifest) = create_and_open(seed);
        let before = manifest.append(&all[..10]).unwrap();
        manifest.sync_to(before).unwrap();
        let appended = manifest.append(&all[10..20]).unwrap();
        disk.fail_next_sync(|path| path == Path::new(PATH));
        disk.fail_writes(|path| path == Path::new(NEW_PATH));
        let is_fault = |error| matches!(error, LogError::PartitionFault { .. });
        assert!(is_fault(manifest.sync_to(appended).unwrap_err()));
        // Not even once the disk works again.
        disk.fail_writes(|_| false);
        assert!(is_fault(manifest.sync_to(appended).unwrap_err()));
        assert!(is_fault(manifest.append(&all[20..]).unwrap_err()));
        assert!(is_fault(manifest.rewrite(|_| true).unwrap_err()));
        manifest.sync_to(before).unwrap();
        let left = open(&disk.crash(&mut Rng::with_seed(seed)));
        assert_prefix(&left, &all, 10, 20);
        // The start reads them from the system's cache, and writes them again.
        let disk = disk.kill();
        assert_eq!(listed(&open(&disk)), list_of(&all[..20]));
        let left = open(&disk.crash(&mut Rng::with_seed(seed)));
        assert_eq!(listed(&left), list_of(&all[..20]), "seed {seed}");
    }
}

/// Fills a disk except for reserved space.
fn fill(disk: &SimDisk) {
    let reserved = (1 << 20) + HEAD_BYTES + RECORD_BYTES as u64;
    disk.set_capacity(reserved);
}

/// Lists groups until there is no room, and returns their number.
fn list_until_full(manifest: &Manifest) -> u64 {
    for id in 0..100_000 {
        let before = listed(manifest);
        if let Err(error) = manifest.append(&[Record::Group(group(0, id, 0))]) {
            assert!(error.is_disk_full(), "{error}");
            assert_eq!(listed(manifest), before);
            return id;
        }
        if id == 0 {
            continue;
        }
        // So that the list stays short.
        let first = Record::First {
            lane: lane(0),
            group: GroupId(id),
            offset: Offset(0),
        };
        manifest.append(&[first]).unwrap();
    }
    panic!("the disk is never full");
}

#[test]
fn a_full_disk_refuses_new_files_and_lets_files_be_removed() {
    const REMOVALS: u64 = 1000;
    let disk = SimDisk::new(1);
    let manifest = create(&disk);
    fill(&disk);
    let groups = list_until_full(&manifest);
    assert!(groups > 5_000);
    let remove = |manifest: &Manifest, numbers: std::ops::Range<u64>| {
        for n in numbers {
            let first = Record::First {
                lane: lane(1),
                group: GroupId(n),
                offset: Offset(n),
            };
            append_synced(manifest, &[first]);
        }
    };
    remove(&manifest, 0..REMOVALS / 2);

    // The room outlasts the process.
    let found = listed(&manifest);
    let disk = disk.kill();
    let manifest = open(&disk);
    assert_eq!(listed(&manifest), found);
    let next = [Record::Group(group(0, groups, 0))];
    assert!(manifest.append(&next).unwrap_err().is_disk_full());
    remove(&manifest, REMOVALS / 2..REMOVALS);
    assert!(manifest.append(&next).unwrap_err().is_disk_full());

    disk.set_capacity(u64::MAX);
    append_synced(&manifest, &next);
    let left = open(&disk.crash(&mut Rng::with_seed(1)));
    assert_eq!(listed(&left), listed(&manifest));
}

#[test]
fn a_refused_record_leaves_no_trace_on_a_full_disk_without_reserved_space() {
    let all = history(20);
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let manifest = create(&disk);
        append_synced(&manifest, &all[..10]);
        // The disk forgets the reservation.
        let len = disk.read_file(PATH).unwrap().len();
        disk.truncate(PATH, len).unwrap();
        disk.set_capacity((len + 4 * RECORD_BYTES) as u64);
        let error = manifest.append(&all[10..]).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        let left = open(&disk.crash(&mut Rng::with_seed(seed)));
        assert_eq!(listed(&left), list_of(&all[..10]), "seed {seed}");
        disk.set_capacity(u64::MAX);
        append_synced(&manifest, &all[10..]);
        assert_eq!(listed(&open(&disk.kill())), list_of(&all));
    }
}

#[test]
fn a_rewrite_on_a_full_disk_keeps_the_former_manifest_in_use() {
    let disk = SimDisk::new(1);
    let manifest = create(&disk);
    let all = history(20);
    append_synced(&manifest, &all[..10]);
    fill(&disk);
    manifest.rewrite(|_| true).unwrap();
    assert_eq!(number(&disk), 1);
    assert!(disk.read_file(NEW_PATH).is_err());
    append_synced(&manifest, &all[10..]);
    let left = open(&disk.crash(&mut Rng::with_seed(1)));
    assert_eq!(listed(&left), list_of(&all));
}
