//! Bugs of the past, each in a test of its own.

mod catalog;
mod full_disk;
mod groups;
mod journal;
mod removal;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::ByteSize;
use millstream_log::{InternalStore, StreamConfig, salvage};
use millstream_sim::SimRandom;

use crate::world::{World, config};

fn small_groups() -> StreamConfig {
    StreamConfig {
        group_segments: 1,
        segment: ByteSize(64 << 10),
        ..StreamConfig::default()
    }
}

/// As [`small_groups`]; each closed group may be removed at once.
fn unretained() -> StreamConfig {
    StreamConfig {
        retention: Some(ByteSize(0)),
        ..small_groups()
    }
}

fn append(world: &mut World, name: &str, bytes: usize, producer: Option<(i64, i16, i32)>) {
    let chunk = world.make_chunk(1, bytes, producer);
    let (lane, appended) = world.append(name, 0, chunk).expect("no faults");
    world.acknowledge(name, &lane, &appended);
}

fn opened() -> World {
    let mut world = World::new(0);
    assert!(world.open());
    world
}

/// Puts a group of one chunk behind the groups of a stream's only lane, with a file as format 2 has it.
fn put_group(world: &World, name: &str, group: u32, first_offset: u64, chunk: &[u8]) -> PathBuf {
    let id = world.model.streams[name].id;
    let path = PathBuf::from(format!(
        "/data/streams/{id}/0-0-{group:010}-{first_offset:020}.log"
    ));
    let mut bytes = chunk.to_vec();
    // A chunk begins with its base offset, which its checksum does not cover.
    bytes[..8].copy_from_slice(&first_offset.to_be_bytes());
    world.disk.write_file(&path, &bytes).expect("a folder");
    path
}

/// Makes the list of files anew, from those that are there.
fn list_anew(world: &World) {
    let disk = Arc::new(world.disk.clone());
    let random = Arc::new(SimRandom::new(1));
    salvage(&config(), disk, random, InternalStore::Manifest).expect("no faults");
}

/// Fills the disk.
fn fill_up(world: &mut World) {
    world.disk.set_capacity(world.disk.used_bytes());
    world.faults.full = true;
}

fn write_until_full(world: &mut World, name: &str) {
    fill_up(world);
    loop {
        let chunk = world.make_chunk(1, 60_000, None);
        let appended = world.append(name, 0, chunk);
        if !appended.is_some_and(|(lane, appended)| world.acknowledge(name, &lane, &appended)) {
            break;
        }
    }
}

/// Opens the log with a stream `name` that cannot be persisted, so that the old journal stays for this life.
fn keep_old_journal(world: &mut World, name: &str) {
    fill_up(world);
    assert!(world.open());
    world.disk.set_capacity(u64::MAX);
    let folder = format!("/data/streams/{}/", world.model.streams[name].id);
    let is_of_it = move |path: &Path| path.starts_with(&folder);
    world.disk.fail_next_sync(is_of_it);
    world.faults.failing = true;
    while world.log().step() {}
}
