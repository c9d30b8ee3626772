//! Directories of format 2 are upgraded in place: a kill or a crash at any step loses nothing, and the next start goes on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::disk::Disk as _;
use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_log::{
    Background, FORMAT, InternalStore, Log, LogConfig, LogError, StreamConfig, salvage,
};
use millstream_record::{ChunkBuilder, Compression};
use millstream_sim::{Rng, SimClock, SimDisk, SimRandom};

use crate::world::{self, DIR, World, open_with};

const MARKER: &str = "/data/millstream.data";
const MANIFEST: &str = "/data/manifest";

fn config() -> LogConfig {
    LogConfig {
        journal: ByteSize(512 << 10),
        journal_file: ByteSize(256 << 10),
        background: Background::Manual,
        ..LogConfig::with_pool(DIR, ByteSize(16 << 20))
    }
}

/// Returns a disk with a data directory of format 2 that the log's tests have.
fn disk_of(name: &str, seed: u64) -> SimDisk {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../log/tests/data/format-2");
    let disk = SimDisk::new(seed);
    copy(&from.join(name), &disk, Path::new(DIR));
    // The journal folder of `clean` is empty, and git keeps no empty folders.
    disk.create_dir_all(Path::new("/data/journal"))
        .expect("no faults");
    disk.sync_tree(Path::new("/")).expect("no faults");
    disk.start_trace();
    disk
}

fn copy(from: &Path, disk: &SimDisk, to: &Path) {
    disk.create_dir_all(to).expect("no faults");
    for entry in std::fs::read_dir(from).expect("the test data") {
        let entry = entry.expect("the test data");
        let to = to.join(entry.file_name());
        match entry.file_type().expect("the test data").is_dir() {
            true => copy(&entry.path(), disk, &to),
            false => {
                let bytes = std::fs::read(entry.path()).expect("the test data");
                disk.write_file(&to, &bytes).expect("a folder");
            }
        }
    }
}

fn open(disk: &SimDisk) -> Result<Log, LogError> {
    open_with(config(), disk, &SimClock::new(Timestamp(2_000_000_000_000)))
}

/// The checksum of all bytes of each partition, and its offsets.
type Content = BTreeMap<(String, u32), (Offset, Offset, u32)>;

fn content(log: &Log) -> Content {
    assert!(log.find_damage().is_empty(), "{:?}", log.find_damage());
    let mut all = Content::new();
    for name in log.stream_names() {
        let stream = log.stream(&name).expect("listed");
        for partition in 0..stream.partition_count() {
            let lane = stream.partition(partition).expect("counted");
            let mut reader = lane.reader(lane.earliest());
            let mut bytes = Vec::new();
            while let Some(read) = reader.read(1 << 20).expect("nothing is damaged") {
                for chunk in read.chunks() {
                    bytes.extend_from_slice(chunk.expect("checked").bytes());
                }
            }
            let ends = (lane.earliest_offset(), lane.durable_offset());
            let crc = millstream_base::crc32c(&bytes);
            all.insert((name.clone(), partition), (ends.0, ends.1, crc));
        }
    }
    all
}

/// Leaves out streams that are only in memory.
fn on_disk(mut content: Content) -> Content {
    content.retain(|(name, _), _| name != "memory");
    content
}

fn expected(name: &str) -> Content {
    let content = content(&open(&disk_of(name, 0)).expect("no faults"));
    assert!(content.len() > 5);
    content
}

/// Appends a chunk to each partition, and waits for it.
fn append(log: &Log) {
    let mut builder = ChunkBuilder::new(Compression::None);
    let pushed = builder.push(Timestamp(1), None, Some(b"new"), &[]);
    pushed.expect("far below the format's bound");
    let chunk = builder.finish(None).expect("it has a record").to_vec();
    for name in log.stream_names() {
        let stream = log.stream(&name).expect("listed");
        for partition in 0..stream.partition_count() {
            let lane = stream.partition(partition).expect("counted");
            let appended = lane.append(&chunk).expect("no faults");
            lane.wait_durable(appended.next_offset).expect("no faults");
        }
    }
}

/// Checks that a directory opens with all of its content, and takes more.
fn check(disk: &SimDisk, expected: &Content) {
    let log = open(disk).expect("no damage");
    assert_eq!(content(&log), *expected);
    append(&log);
    let after = content(&log);
    drop(log);
    let log = open(&disk.kill()).expect("no damage");
    assert_eq!(on_disk(content(&log)), on_disk(after));
}

#[test]
fn the_next_start_continues_an_upgrade_that_a_kill_or_power_loss_interrupted() {
    for name in ["clean", "killed"] {
        let expected = expected(name);
        for at in 1.. {
            let disk = disk_of(name, at);
            disk.crash_at(at);
            drop(open(&disk));
            let is_over = !disk.has_crashed();
            let mut rng = Rng::with_seed(at);
            check(&disk.kill(), &expected);
            for _ in 0..3 {
                check(&disk.crash(&mut rng), &expected);
            }
            if is_over {
                println!("{name}: {at} operations");
                break;
            }
        }
    }
}

#[test]
fn an_upgraded_directory_lists_all_files_and_is_refused_by_earlier_programs() {
    for name in ["clean", "killed"] {
        let disk = disk_of(name, 1);
        open(&disk).expect("no faults").close().expect("no faults");
        let marker = disk.read_file(MARKER).expect("it exists");
        assert_eq!(
            marker,
            format!("millstream data, format {FORMAT}\n").as_bytes()
        );
        let logs: Vec<PathBuf> = group_files(&disk);
        assert!(logs.len() > 10);
        // Each is missed when it is gone.
        for path in logs {
            let missing = disk.kill();
            missing.remove(&path).expect("it exists");
            let at = path.display().to_string();
            match open(&missing) {
                Ok(log) => {
                    let places = log.find_damage();
                    assert!(places.iter().any(|place| place.what.contains(&at)), "{at}");
                }
                Err(error) => assert!(error.to_string().contains(&at), "{error}"),
            }
        }
    }
}

fn group_files(disk: &SimDisk) -> Vec<PathBuf> {
    let files = disk.files().into_iter().map(|(path, _)| path);
    let is_log = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "log");
    files.filter(is_log).collect()
}

#[test]
fn an_upgrade_without_room_changes_nothing_and_names_the_bytes_it_needs() {
    let disk = disk_of("killed", 1);
    let before = disk.files();
    let marker = disk.read_file(MARKER).expect("it exists");
    disk.set_capacity(disk.used_bytes() + (1 << 19));
    let error = open(&disk).expect_err("there is no room");
    let LogError::NoRoomToUpgrade { bytes, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(disk.files(), before);
    assert_eq!(disk.read_file(MARKER).expect("it exists"), marker);
    let disk = disk.kill();
    disk.set_capacity(disk.used_bytes() + bytes.0);
    let log = open(&disk).expect("there is room");
    assert_eq!(content(&log), expected("killed"));
}

#[test]
fn a_start_is_refused_until_a_damaged_or_missing_list_of_files_is_rebuilt() {
    for damage in 0..4 {
        let disk = disk_of("killed", 1);
        let log = open(&disk).expect("no faults");
        append(&log);
        let before = content(&log);
        log.close().expect("no faults");
        let directory = disk.read_file(MANIFEST).expect("it exists")[8..24].to_vec();
        match damage {
            0 => disk.remove(MANIFEST).expect("it exists"),
            1 => disk.truncate(MANIFEST, 5_000).expect("it exists"),
            2 => disk.flip_bit(MANIFEST, 8 * 5_000).expect("it exists"),
            _ => disk.flip_bit(MANIFEST, 8 * 30).expect("it exists"),
        }
        for _ in 0..2 {
            let files = disk.files();
            let error = open(&disk).expect_err("the list is damaged");
            let text = error.to_string();
            assert!(matches!(error, LogError::DamagedManifest { .. }), "{text}");
            assert!(
                text.contains(MANIFEST) && text.contains("--cut __manifest"),
                "{text}"
            );
            assert_eq!(disk.files(), files);
        }
        let salvaged = |disk: &SimDisk| {
            let random = Arc::new(SimRandom::new(7));
            salvage(
                &config(),
                Arc::new(disk.clone()),
                random,
                InternalStore::Manifest,
            )
        };
        // It can be killed at any step, and done again.
        for at in 1..12 {
            let disk = disk.kill();
            disk.crash_at(at);
            let _ = salvaged(&disk);
            let disk = disk.kill();
            if let Err(error) = open(&disk) {
                assert!(matches!(error, LogError::DamagedManifest { .. }), "{error}");
                salvaged(&disk).expect("no faults");
                open(&disk).expect("it is whole");
            }
        }
        let taken = salvaged(&disk).expect("no faults");
        let taken = taken.expect("it is written anew");
        assert_eq!(taken.files.len(), usize::from(damage > 0));
        let log = open(&disk).expect("it is whole");
        assert_eq!(on_disk(content(&log)), on_disk(before));
        log.close().expect("no faults");
        if damage == 1 || damage == 2 {
            assert_eq!(
                disk.read_file(MANIFEST).expect("it exists")[8..24],
                directory
            );
        }
    }
}

#[test]
fn a_rebuilt_list_of_files_has_the_identity_in_the_catalogs_file() {
    let mut world = World::new(1);
    assert!(world.open());
    world.create("a", StreamConfig::default());
    world.close();
    let directory = world.disk.read_file(MANIFEST).expect("it exists")[8..24].to_vec();
    world.disk.remove(MANIFEST).expect("it exists");
    let disk = Arc::new(world.disk.clone());
    let random = Arc::new(SimRandom::new(7));
    let taken = salvage(&world::config(), disk, random, InternalStore::Manifest);
    let taken = taken.expect("no faults").expect("it was missing");
    assert!(taken.files.is_empty());
    let made = world.disk.read_file(MANIFEST).expect("it exists");
    assert_eq!(made[8..24], directory);
    // The catalog is this directory's.
    world.finish();
}
