//! After a clean stop a start truncates nothing: bytes that do not fit are damage. After a crash it truncates torn ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::ByteSize;
use millstream_log::{Durability, InternalStore, LogError, StreamConfig, salvage};
use millstream_sim::{SimDisk, SimRandom};

use crate::world::{World, config, lane_of, open};

const RECORD: &str = "/data/clean-stop";
const JUNK: [u8; 1000] = [7; 1000];

fn opened_with(streams: &[(&str, &[usize])]) -> World {
    let mut world = World::new(0);
    assert!(world.open());
    for (name, chunks) in streams {
        world.create(name, StreamConfig::default());
        for bytes in *chunks {
            append(&mut world, name, *bytes);
        }
    }
    world
}

fn append(world: &mut World, name: &str, bytes: usize) {
    let chunk = world.make_chunk(1, bytes, None);
    let (lane, appended) = world.append(name, 0, chunk).expect("no faults");
    assert!(world.acknowledge(name, &lane, &appended));
}

/// The only file of a stream's groups.
fn group_file(world: &World, name: &str) -> PathBuf {
    let id = world.model.streams[name].id;
    only_log(&world.disk, format!("/data/streams/{id}"))
}

fn only_log(disk: &SimDisk, folder: impl AsRef<Path>) -> PathBuf {
    let files = disk.files().into_iter().map(|(path, _)| path);
    let is_log = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "log");
    let mut logs = files.filter(|path| path.starts_with(&folder) && is_log(path));
    let found = logs.next().expect("a file");
    assert_eq!(logs.next(), None);
    found
}

fn read(world: &World, path: &Path) -> Vec<u8> {
    world.disk.read_file(path).expect("it exists")
}

fn write(world: &World, path: &Path, bytes: &[u8]) {
    world.disk.write_file(path, bytes).expect("a folder");
}

/// Adds bytes behind a stream's last chunk, which a write might have left.
fn add_junk(world: &World, name: &str) -> PathBuf {
    let path = group_file(world, name);
    let bytes = [&read(world, &path)[..], &JUNK].concat();
    write(world, &path, &bytes);
    path
}

fn has_aside(world: &World) -> bool {
    let files = world.disk.files();
    files
        .iter()
        .any(|(path, _)| path.starts_with("/data/aside"))
}

/// Opens the log; `damaged` streams, and no others, refuse writes with an error that names their folder.
fn open_damaged(world: &mut World, damaged: &[&str]) {
    let log = open(&world.disk, &world.clock).expect("only users' streams are damaged");
    for name in world.model.streams.keys() {
        let stream = log.stream(name).expect("the catalog is whole");
        let lane = lane_of(&stream, (0, 0));
        let Some(fault) = lane.info().fault else {
            assert!(!damaged.contains(&name.as_str()), "{name} is not reported");
            continue;
        };
        assert!(damaged.contains(&name.as_str()), "{name}: {fault}");
        assert!(
            fault.contains(&format!("/data/streams/{}/", stream.id())),
            "{fault}"
        );
        let chunk = world.model.streams[name].lanes[&(0, 0)].chunks[0].clone();
        let refused = lane.append(&chunk.bytes).expect_err("it is damaged");
        assert!(matches!(refused, LogError::Corrupted { .. }), "{refused}");
    }
    world.log = Some(log);
}

#[test]
fn files_swapped_after_a_clean_stop_stay_until_they_are_swapped_back() {
    // The first chunk of one file reaches beyond the end of the other file.
    let mut world = opened_with(&[("large", &[60_000, 60_000, 60_000]), ("small", &[100])]);
    world.close();
    let paths = ["large", "small"].map(|name| group_file(&world, name));
    let [large, small] = [0, 1].map(|n| read(&world, &paths[n]));
    write(&world, &paths[0], &small);
    write(&world, &paths[1], &large);
    for round in 0..6 {
        open_damaged(&mut world, &["large", "small"]);
        assert!(read(&world, &paths[0]) == small && read(&world, &paths[1]) == large);
        match round {
            1 | 4 => world.kill(),
            2 => world.crash(),
            _ => world.close(),
        }
        assert!(read(&world, &paths[0]) == small && read(&world, &paths[1]) == large);
    }
    assert!(!has_aside(&world));
    write(&world, &paths[0], &large);
    write(&world, &paths[1], &small);
    world.finish();
}

#[test]
fn bytes_behind_the_last_chunk_are_damage_after_a_clean_stop() {
    let mut world = opened_with(&[("a", &[100, 200]), ("b", &[100])]);
    world.close();
    let path = add_junk(&world, "a");
    let bytes = read(&world, &path);
    for round in 0..6 {
        open_damaged(&mut world, &["a"]);
        // A torn write of another stream does not matter.
        append(&mut world, "b", 300);
        match round {
            1 | 4 => world.kill(),
            2 => world.crash(),
            _ => world.close(),
        }
        assert!(read(&world, &path) == bytes, "round {round}");
    }
    assert!(!has_aside(&world));
    let log = open(&world.disk, &world.clock).expect("only a user's stream is damaged");
    let taken = log.truncate_stream("a").expect("no faults");
    let taken = taken.expect("it is damaged");
    assert_eq!(
        taken.bytes,
        JUNK.len() as u64 + taken_index_bytes(&world, &taken.files)
    );
    world.finish();
}

fn taken_index_bytes(world: &World, files: &[PathBuf]) -> u64 {
    let indexes = files
        .iter()
        .filter(|path| path.to_string_lossy().ends_with(".index"));
    indexes.map(|path| read(world, path).len() as u64).sum()
}

#[test]
fn a_damaged_last_chunk_without_its_index_entry_is_damage_after_a_clean_stop() {
    let mut world = opened_with(&[("a", &[100, 200])]);
    world.close();
    let path = group_file(&world, "a");
    let bits = 8 * read(&world, &path).len() as u64;
    world.disk.flip_bit(&path, bits - 1).expect("it exists");
    world
        .disk
        .remove(path.with_extension("index"))
        .expect("it exists");
    let bytes = read(&world, &path);
    open_damaged(&mut world, &["a"]);
    world.kill();
    open_damaged(&mut world, &["a"]);
    world.kill();
    assert!(read(&world, &path) == bytes && !has_aside(&world));
}

#[test]
fn the_catalog_is_not_truncated_after_a_clean_stop() {
    let mut world = opened_with(&[("a", &[100])]);
    world.close();
    let path = only_log(&world.disk, "/data/streams/0");
    let bytes = [&read(&world, &path)[..], &JUNK].concat();
    write(&world, &path, &bytes);
    for _ in 0..3 {
        let error = open(&world.disk, &world.clock).expect_err("the catalog is damaged");
        assert!(matches!(error, LogError::DamagedTable { .. }), "{error}");
        assert!(read(&world, &path) == bytes);
        world.kill();
    }
    salvage(
        &config(),
        Arc::new(world.disk.clone()),
        Arc::new(SimRandom::new(1)),
        InternalStore::Catalog,
    )
    .expect("no faults");
    world.kill();
    world.finish();
}

/// Ends a run after a clean stop in each way that must count as a crash, and then adds junk: the next start truncates it.
#[test]
fn a_lost_torn_or_outdated_clean_stop_record_counts_as_a_crash() {
    let ends: [fn(&mut World); 6] = [
        |world| world.disk.remove(RECORD).expect("it exists"),
        |world| world.disk.truncate(RECORD, 0).expect("it exists"),
        |world| world.disk.truncate(RECORD, 20).expect("it exists"),
        |world| world.disk.flip_bit(RECORD, 300).expect("it exists"),
        |world| {
            assert!(world.open());
            world.kill();
        },
        |world| {
            assert!(world.open());
            append(world, "a", 500);
            world.log().persist();
            world.crash();
        },
    ];
    for end in ends {
        let mut world = opened_with(&[("a", &[100, 200])]);
        world.close();
        assert!(world.disk.read_file(RECORD).is_ok());
        end(&mut world);
        let path = group_file(&world, "a");
        let whole = read(&world, &path);
        add_junk(&world, "a");
        assert!(world.open());
        assert!(read(&world, &path) == whole && has_aside(&world));
        world.kill();
        world.finish();
    }
}

#[test]
fn a_stop_that_leaves_chunks_in_the_journal_is_not_clean() {
    let mut world = opened_with(&[("a", &[100]), ("b", &[100])]);
    let used = world.disk.files().iter().map(|(_, len)| len).sum();
    world.disk.set_capacity(used);
    world.faults.full = true;
    world.close();
    assert!(world.disk.read_file(RECORD).is_err());
    world.finish();
}

#[test]
fn a_stop_with_a_failed_partition_is_not_clean_for_it() {
    let mut world = opened_with(&[("a", &[100]), ("b", &[100])]);
    world.log().persist();
    let folder = format!("/data/streams/{}/", world.model.streams["a"].id);
    let is_of_a = move |path: &Path| path.starts_with(&folder);
    append(&mut world, "a", 200);
    world.disk.fail_next_sync(is_of_a);
    world.faults.failing = true;
    world.log().persist();
    world.close();
    // The journal holds the chunk that the file may lack.
    assert!(world.disk.read_file(RECORD).is_err());
    add_junk(&world, "a");
    world.finish();
}

/// Runs the log once after a clean stop. A crash of this run tears groups' files, since large commits go straight to them.
fn run(world: &mut World) {
    if !world.open() {
        return;
    }
    for n in 0..6 {
        if world.disk.has_crashed() {
            break;
        }
        let chunk = world.make_chunk(1, if n == 0 { 100 } else { 100_000 }, None);
        world.append("a", 0, chunk);
        world.log().sync_step();
    }
    let log = world.log.take().expect("it is open");
    if let Err(error) = log.close() {
        world.excuse(&error);
    }
}

#[test]
fn a_crash_during_a_start_a_run_or_a_stop_is_not_taken_for_damage() {
    let mut records = [0, 0];
    for crash_at in 1.. {
        let mut world = World::new(crash_at);
        assert!(world.open());
        let durability = Durability::Async;
        let group_segments = 1;
        let segment = ByteSize(128 << 10);
        let config = StreamConfig {
            durability,
            group_segments,
            segment,
            ..StreamConfig::default()
        };
        world.create("a", config);
        append(&mut world, "a", 100);
        world.close();
        world.disk.crash_at(crash_at);
        run(&mut world);
        let is_over = !world.disk.has_crashed();
        match crash_at % 4 {
            0 => world.kill(),
            _ => world.crash(),
        }
        let has_record = world.disk.read_file(RECORD).is_ok();
        records[usize::from(has_record)] += 1;
        // Neither the start after the crash nor the one after that finds damage.
        world.finish();
        if is_over {
            assert!(has_record);
            break;
        }
    }
    assert!(records[0] > 10 && records[1] > 1, "{records:?}");
}

const MANIFEST: &str = "/data/manifest";

/// Makes a damaged list of an older one and the last one.
type Damage = fn(&[u8], &[u8]) -> Vec<u8>;

/// The end of the manifest's last record.
fn end_of_manifest(bytes: &[u8]) -> usize {
    let last = bytes.iter().rposition(|byte| *byte != 0).expect("a head");
    last / 64 * 64 + 64
}

#[test]
fn a_truncated_or_older_list_of_files_is_reported_after_a_clean_stop() {
    let lists: [Damage; 5] = [
        // An older state of the same list, without the files of the last run.
        |older, _| older.to_vec(),
        |_, list| list[..end_of_manifest(list) - 64].to_vec(),
        |_, list| {
            let mut list = list.to_vec();
            let end = end_of_manifest(&list);
            list[end - 64..end].fill(0);
            list
        },
        |_, list| {
            let mut list = list.to_vec();
            let end = end_of_manifest(&list);
            list[end - 30] ^= 1;
            list
        },
        |_, list| list[..end_of_manifest(list) - 20].to_vec(),
    ];
    for (n, damaged) in lists.into_iter().enumerate() {
        let mut world = opened_with(&[("a", &[100])]);
        world.close();
        assert!(world.open());
        let older = read(&world, Path::new(MANIFEST));
        // Its file is the last one that is listed.
        world.create("b", StreamConfig::default());
        append(&mut world, "b", 60_000);
        world.close();
        let list = read(&world, Path::new(MANIFEST));
        let damaged = damaged(&older, &list);
        write(&world, Path::new(MANIFEST), &damaged);
        for _ in 0..2 {
            let before = world.disk.files();
            let error = open(&world.disk, &world.clock).expect_err("the list is damaged");
            assert!(matches!(error, LogError::DamagedManifest { .. }), "{error}");
            assert!(
                error.to_string().contains("stopped cleanly"),
                "{n}: {error}"
            );
            assert_eq!(world.disk.files(), before);
            assert!(read(&world, Path::new(MANIFEST)) == damaged);
            world.kill();
        }
        let random = Arc::new(SimRandom::new(1));
        let disk = Arc::new(world.disk.clone());
        salvage(&config(), disk, random, InternalStore::Manifest).expect("no faults");
        world.kill();
        world.finish();
    }
}

#[test]
fn an_older_list_of_files_of_the_previous_run_is_reported_after_a_clean_stop() {
    let mut world = opened_with(&[("a", &[100])]);
    world.close();
    let older = read(&world, Path::new(MANIFEST));
    // The start writes the list anew.
    assert!(world.open());
    append(&mut world, "a", 100);
    world.close();
    let list = read(&world, Path::new(MANIFEST));
    assert_ne!(older[24..32], list[24..32]);
    write(&world, Path::new(MANIFEST), &older);
    let error = open(&world.disk, &world.clock).expect_err("the list is an older one");
    assert!(error.to_string().contains("an older one"), "{error}");
    write(&world, Path::new(MANIFEST), &list);
    world.kill();
    world.finish();
}

#[test]
fn a_clean_stop_record_of_the_first_format_counts() {
    let mut world = opened_with(&[("a", &[100, 200])]);
    world.close();
    let text = String::from_utf8(read(&world, Path::new(RECORD))).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let mut former = format!("millstream clean stop, format 1\n{}\n", lines[2]);
    let crc = millstream_base::crc32c(former.as_bytes());
    former.push_str(&format!("crc {crc:08x}\n"));
    write(&world, Path::new(RECORD), former.as_bytes());
    add_junk(&world, "a");
    open_damaged(&mut world, &["a"]);
}
