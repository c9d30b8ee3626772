//! The files of the journal: a start after a kill misses those that are gone, and blocks at the end of the last one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::{ByteSize, crc32c};
use millstream_log::{FilesAside, InternalStore, Log, LogConfig, LogError, StreamConfig, salvage};
use millstream_sim::{Operation, OperationKind, SimRandom};

use crate::world::{World, config, lane_of, open_with};

const FOLDER: &str = "/data/journal";
const NOTE: &str = "/data/journal/end";
const MANIFEST: &str = "/data/manifest";

/// The fixed part of the manifest before its records, and the size of a record.
const HEAD: usize = 4096;
const RECORD: usize = 64;

/// A journal of several files at a time.
fn large() -> LogConfig {
    LogConfig {
        journal: ByteSize(2 << 20),
        ..config()
    }
}

fn try_open(world: &World) -> Result<Log, LogError> {
    open_with(large(), &world.disk, &world.clock)
}

fn opened() -> World {
    let mut world = World::new(1);
    world.pool = ByteSize(4 << 20);
    let config = LogConfig {
        pool: world.pool,
        ..large()
    };
    world.log = Some(open_with(config, &world.disk, &world.clock).expect("no faults"));
    world.create("a", StreamConfig::default());
    world
}

fn append(world: &mut World, bytes: usize) {
    let chunk = world.make_chunk(1, bytes, None);
    let (lane, appended) = world.append("a", 0, chunk).expect("no faults");
    assert!(world.acknowledge("a", &lane, &appended));
}

/// Fills four files of the journal, and kills the process.
fn killed() -> World {
    let mut world = opened();
    for _ in 0..14 {
        append(&mut world, 60_000);
    }
    append(&mut world, 100);
    world.kill();
    assert_eq!(files(&world).len(), 4);
    world
}

/// The files of the journal, oldest first.
fn files(world: &World) -> Vec<PathBuf> {
    let files = world.disk.files().into_iter().map(|(path, _)| path);
    let is_file = |path: &PathBuf| path.starts_with(FOLDER) && *path != Path::new(NOTE);
    files.filter(is_file).collect()
}

/// The end of the last block, as the note has it.
fn end_of_blocks(world: &World) -> usize {
    let note = world.disk.read_file(NOTE).expect("it exists");
    u64::from_le_bytes(note[32..40].try_into().expect("8 bytes")) as usize
}

fn salvaged(world: &World) -> Result<Option<FilesAside>, LogError> {
    let disk = Arc::new(world.disk.clone());
    let random = Arc::new(SimRandom::new(world.disk.operations()));
    salvage(&large(), disk, random, InternalStore::Journal)
}

/// A start refuses a damage with a sentence that names the file and the repair, and changes nothing.
fn assert_reported(world: &World, path: &Path, what: &str) {
    for _ in 0..2 {
        let before = world.disk.files();
        let error = try_open(world).expect_err(what).to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(error.contains("--cut __journal"), "{error}");
        assert_eq!(world.disk.files(), before, "{what}");
    }
}

#[test]
fn a_missing_journal_file_is_reported_at_any_place_and_a_repair_unlists_it() {
    for n in 0..4 {
        let mut world = killed();
        let path = files(&world).remove(n);
        world.disk.remove(&path).expect("it exists");
        assert_reported(&world, &path, "a file is missing");
        // It can be killed at any step, and done again.
        for at in 1..20 {
            let disk = world.disk.kill();
            world.disk.crash_at(at);
            let _ = salvaged(&world);
            world.disk = world.disk.kill();
            if try_open(&world).is_err() {
                salvaged(&world).expect("no faults");
            }
            world.disk = disk;
        }
        salvaged(&world).expect("no faults");
        for _ in 0..2 {
            match try_open(&world) {
                Ok(log) => {
                    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
                    // The files before and behind it are read: only the end may be lost unseen.
                    let is_last = n == 3;
                    assert_eq!(lane.info().fault.is_none(), is_last, "file {n}");
                }
                // The first one had the catalog.
                Err(error) => {
                    assert_eq!(n, 0, "{error}");
                    assert!(
                        error.to_string().contains("the catalog is missing"),
                        "{error}"
                    );
                }
            }
            world.disk = world.disk.kill();
        }
    }
}

#[test]
fn damage_to_the_last_block_is_reported_after_a_kill() {
    let world = killed();
    let end = end_of_blocks(&world);
    let path = files(&world).pop().expect("counted");
    let whole = world.disk.read_file(&path).expect("it exists");
    assert!(whole[end..].iter().all(|byte| *byte == 0));
    let start = whole[..end].windows(4).rposition(|at| at == b"MSBK");
    let start = start.expect("it is a block");
    assert!(end - start < 1_000, "the last chunk is small");
    for byte in (start..end).step_by(7).chain([end - 1]) {
        let bit = byte as u64 * 8 + 3;
        world.disk.flip_bit(&path, bit).expect("it exists");
        assert_reported(&world, &path, "the last block is damaged");
        world.disk.flip_bit(&path, bit).expect("it exists");
    }
    for len in [end - 1, start + 50, start, start - 1, HEAD, 10, 0] {
        world.disk.truncate(&path, len).expect("it exists");
        assert_reported(&world, &path, "the last file is too short");
        world.disk.write_file(&path, &whole).expect("it exists");
    }
    // Whole, it opens with all that was acknowledged.
    let log = try_open(&world).expect("nothing is damaged");
    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
    assert_eq!(lane.durable_offset().0, 15);
}

#[test]
fn a_repair_of_the_last_blocks_loses_no_earlier_block() {
    let cuts: [fn(usize, usize) -> usize; 3] = [|_, end| end - 1, |start, _| start, |_, _| HEAD];
    for (n, cut) in cuts.into_iter().enumerate() {
        let mut world = killed();
        let end = end_of_blocks(&world);
        let path = files(&world).pop().expect("counted");
        let whole = world.disk.read_file(&path).expect("it exists");
        let blocks = |bytes: &[u8]| bytes.windows(4).filter(|at| at == b"MSBK").count() as u64;
        let start = whole[..end].windows(4).rposition(|at| at == b"MSBK");
        let len = cut(start.expect("it is a block"), end);
        world.disk.truncate(&path, len).expect("it exists");
        salvaged(&world).expect("no faults");
        let log = try_open(&world).expect("the damage is taken out");
        let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
        let lost = if n == 2 { blocks(&whole[..end]) } else { 1 };
        assert_eq!(lane.durable_offset().0, 15 - lost);
        world.log = Some(log);
        world.kill();
        try_open(&world).expect("the damage is taken out");
    }
}

#[test]
fn a_lost_torn_or_foreign_note_of_the_journals_end_is_ignored() {
    let world = killed();
    let note = world.disk.read_file(NOTE).expect("it exists");
    let mut of_another = note.clone();
    of_another[8..16].copy_from_slice(&7_u64.to_le_bytes());
    of_another[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    let crc = crc32c(&of_another[..40]);
    of_another[40..44].copy_from_slice(&crc.to_le_bytes());
    for bytes in [None, Some(&note[..20]), Some(&[0; 64]), Some(&of_another)] {
        let world = killed();
        match bytes {
            None => world.disk.remove(NOTE).expect("it exists"),
            Some(bytes) => world.disk.write_file(NOTE, bytes).expect("it exists"),
        }
        let log = try_open(&world).expect("nothing is damaged");
        let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
        assert_eq!(lane.durable_offset().0, 15);
    }
}

/// Opens the log with a disk that takes nothing for the group of "a", so that the old journal stays for this life.
fn keep_old_journal(world: &mut World) {
    let folder = format!("/data/streams/{}/", world.model.streams["a"].id);
    let is_of_it = move |path: &Path| path.starts_with(&folder);
    world.disk.fail_writes(is_of_it);
    world.faults.failing = true;
}

#[test]
fn a_missing_journal_file_of_the_run_before_the_last_is_reported() {
    for damage in 0..3 {
        let mut world = killed();
        let before = files(&world);
        let end = end_of_blocks(&world);
        world.disk.set_capacity(world.disk.used_bytes());
        let log = try_open(&world).expect("it needs no room");
        world.disk.set_capacity(u64::MAX);
        keep_old_journal(&mut world);
        while log.step() {}
        let other = log.create_stream("b", StreamConfig::default());
        other.expect("the journal takes its catalog entry");
        world.log = Some(log);
        world.kill();
        let all = files(&world);
        assert!(before.iter().all(|path| all.contains(path)) && all.len() == before.len() + 1);
        // The note names a file of the last run.
        let path = before[before.len() - 1].clone();
        match damage {
            0 => world.disk.remove(&path),
            1 => world.disk.truncate(&path, end - 1),
            _ => world.disk.flip_bit(&path, end as u64 * 8 - 1),
        }
        .expect("it exists");
        assert_reported(&world, &path, "a file of the run before is damaged");
    }
}

/// Takes the records of the journal's files out of the manifest, as a program left it that listed none.
fn unlist_journal(world: &World) {
    let bytes = world.disk.read_file(MANIFEST).expect("it exists");
    let (head, records) = bytes.split_at(HEAD);
    let mut unlisted = head.to_vec();
    let mut index = 0_u64;
    for record in records.chunks_exact(RECORD) {
        if matches!(record[4], 0 | 6 | 7) {
            continue;
        }
        let mut record = record.to_vec();
        if record[4] == 8 {
            record[48..56].copy_from_slice(&index.to_le_bytes());
        }
        // The number of durable records before it.
        record[56..].copy_from_slice(&index.to_le_bytes());
        let covered = [&head[32..40], &index.to_le_bytes()[..], &record[4..]].concat();
        record[..4].copy_from_slice(&crc32c(&covered).to_le_bytes());
        unlisted.extend_from_slice(&record);
        index += 1;
    }
    unlisted.resize(bytes.len(), 0);
    world
        .disk
        .write_file(MANIFEST, &unlisted)
        .expect("it exists");
}

#[test]
fn the_journal_of_an_older_program_without_a_list_is_read_and_listed() {
    let mut world = killed();
    unlist_journal(&world);
    world.disk.remove(NOTE).expect("it exists");
    let before = files(&world);
    // There is room for the list, and none for the streams' files.
    let used = world.disk.used_bytes();
    world.disk.set_capacity(used + (200 << 10));
    let log = try_open(&world).expect("the journal stays");
    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
    assert_eq!(lane.durable_offset().0, 15);
    world.log = Some(log);
    world.kill();
    assert_eq!(files(&world), before);
    for path in &before {
        let bytes = world.disk.read_file(path).expect("it exists");
        world.disk.remove(path).expect("it exists");
        assert_reported(&world, path, "the start has listed it");
        world.disk.write_file(path, &bytes).expect("a folder");
    }
    world.disk.set_capacity(u64::MAX);
    let log = try_open(&world).expect("it is whole");
    let lane = lane_of(&log.stream("a").expect("it is there"), (0, 0));
    assert_eq!(lane.durable_offset().0, 15);
    log.close().expect("no faults");
    assert!(
        !world
            .disk
            .files()
            .iter()
            .any(|(path, _)| path.starts_with(FOLDER))
    );
}

/// A short form of an operation.
fn short(operation: &Operation) -> String {
    let name = operation
        .path
        .strip_prefix("/data")
        .unwrap_or(&operation.path);
    let name = match name.extension() {
        Some(kind) if kind == "journal" => "file".into(),
        // It keeps the name under which it was opened.
        _ => name.display().to_string().replace(".new", ""),
    };
    match operation.kind {
        OperationKind::Write { .. } => format!("write {name}"),
        OperationKind::Sync => format!("sync {name}"),
        OperationKind::SyncDir => format!("sync {name}"),
        OperationKind::Reserve { .. } => format!("reserve {name}"),
        OperationKind::Rename { .. } => format!("rename {name}"),
        OperationKind::Create => format!("create {name}"),
        OperationKind::RemoveFile => format!("remove {name}"),
        _ => format!("{:?} {name}", operation.kind),
    }
}

#[test]
fn a_commit_adds_one_write_and_no_sync_and_lists_a_file_before_its_first_block() {
    let mut world = opened();
    append(&mut world, 60_000);
    let trace = |world: &World| -> Vec<String> {
        let operations = world.disk.trace();
        world.disk.start_trace();
        operations.iter().map(short).collect()
    };
    trace(&world);
    let commit = ["write file", "sync file", "write journal/end"];
    append(&mut world, 60_000);
    append(&mut world, 60_000);
    assert_eq!(trace(&world), [commit, commit].concat());
    // The next one begins a file.
    while files(&world).len() == 1 {
        trace(&world);
        append(&mut world, 60_000);
    }
    let begin = [
        "create file",
        "reserve file",
        "sync journal",
        "write file",
        "sync file",
        "write manifest",
        "sync manifest",
    ];
    assert_eq!(trace(&world), [&begin[..], &commit].concat());
    // And one behind that uses a file again.
    world.log().persist();
    let used: Vec<PathBuf> = files(&world);
    loop {
        trace(&world);
        append(&mut world, 60_000);
        if files(&world) != used {
            break;
        }
    }
    let reuse = [
        "write manifest",
        "sync manifest",
        "rename file",
        "reserve file",
        "sync journal",
    ];
    assert_eq!(trace(&world), [&reuse[..], &begin[3..], &commit].concat());
}
