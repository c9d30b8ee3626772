//! Crashes and kills at any step.

use std::path::Path;
use std::sync::Arc;

use millstream_sim::{Rng, SimDisk, SimRandom};

use super::*;

#[test]
fn a_crash_keeps_all_synced_records_and_the_next_run_appends_behind_them() {
    let all = history(300);
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let mut disk = SimDisk::new(seed);
        let mut manifest = create(&disk);
        let mut count = 0;
        for _ in 0..4 {
            let mut synced = count;
            for _ in 0..rng.usize(1..12) {
                let records = &all[count..count + rng.usize(1..8)];
                let appended = manifest.append(records).unwrap();
                count += records.len();
                if rng.u8(..3) == 0 {
                    manifest.sync_to(appended).unwrap();
                    synced = count;
                }
            }
            let is_crash = rng.bool();
            disk = match is_crash {
                true => disk.crash(&mut rng),
                false => disk.kill(),
            };
            manifest = open(&disk);
            let least = if is_crash { synced } else { count };
            count = assert_prefix(&manifest, &all, least, count);
            // A start makes the records durable that it has found.
            let again = open(&disk.crash(&mut rng));
            assert_eq!(listed(&again), list_of(&all[..count]), "seed {seed}");
        }
    }
}

/// Runs `work` on disks that crash at its first operation, at its second, and so on, and gives each crashed disk to
/// `check`, with the number of the crash.
fn crash_at_each_step(
    before: impl Fn(&SimDisk) -> Option<Manifest>,
    work: impl Fn(&SimDisk, Option<Manifest>),
    check: impl Fn(&SimDisk),
) {
    for at in 0..100 {
        let mut is_over = false;
        for seed in 0..20 {
            let disk = SimDisk::new(seed);
            let manifest = before(&disk);
            disk.crash_at(at);
            work(&disk, manifest);
            is_over = !disk.has_crashed();
            check(&disk.crash(&mut Rng::with_seed(seed)));
            check(&disk.kill());
        }
        if is_over {
            assert!(at > 5, "all steps were met");
            return;
        }
    }
    panic!("the work has no end");
}

#[test]
fn a_crash_at_any_step_of_a_rewrite_leaves_the_same_list() {
    let all = history(40);
    crash_at_each_step(
        |disk| {
            let manifest = create(disk);
            append_synced(&manifest, &all[..20]);
            Some(manifest)
        },
        |_, manifest| {
            let manifest = manifest.unwrap();
            let _ = manifest.rewrite(|_| true);
            let _ = manifest.append(&all[20..]);
        },
        |disk| {
            let manifest = open(disk);
            assert_prefix(&manifest, &all, 20, all.len());
            append_synced(&manifest, &[Record::Group(group(9, 1, 0))]);
            let left = open(&disk.crash(&mut Rng::with_seed(1)));
            assert_eq!(listed(&left), listed(&manifest));
            // A torn next manifest is no obstacle.
            manifest.rewrite(|_| true).unwrap();
            assert_eq!(listed(&open(&disk.kill())), listed(&manifest));
        },
    );
}

#[test]
fn a_crash_at_any_step_of_the_first_write_leaves_no_manifest_or_an_empty_one() {
    let create = |disk: &SimDisk, _| {
        let (random, root) = (Arc::new(SimRandom::new(1)), Path::new("/"));
        let _ = Manifest::create(
            Arc::new(disk.clone()),
            random,
            root,
            None,
            Listed::default(),
        );
    };
    crash_at_each_step(
        |_| None,
        create,
        |disk| {
            if let Some(manifest) = try_open(disk).unwrap() {
                assert_eq!(listed(&manifest), Listed::default());
            }
        },
    );
}
