//! Compaction beside readers, deletions, crashes and full disks.

mod expiry;
mod faults;
mod holds;
mod joins;
mod readers;

use std::collections::BTreeSet;

use millstream_log::{KeyRange, PartitionReader};
use millstream_record::{Chunks, Decompressor};

use super::machine::Machine;
use super::{Entries, append, scan, small_groups, sync};

/// The keys that are put again and again.
const KEYS: u64 = 40;

/// A round takes about 9 KiB, a group 64 KiB.
const ROUNDS: u64 = 40;

/// A machine whose stream has these records, and these settings.
fn filled(settings: &[(&str, &str)]) -> Machine {
    let machine = Machine::new();
    create(&machine, settings);
    fill(&machine, 0..ROUNDS);
    machine
}

/// Creates the stream with these settings.
fn create(machine: &Machine, settings: &[(&str, &str)]) {
    let mut stream = small_groups("compact");
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    stream.settings.extend(settings.iter().map(owned));
    machine.log().create_stream("s", stream).unwrap();
}

/// Puts all keys in each round. A tenth of them get a new value only in the first round.
fn fill(machine: &Machine, rounds: std::ops::Range<u64>) {
    let partition = machine.partition();
    for round in rounds {
        let value = [round as u8; 200];
        let keys: Vec<Vec<u8>> = (0..KEYS)
            .filter(|key| round == 0 || key % 10 > 0)
            .map(|key| format!("key {key}").into_bytes())
            .collect();
        for keys in keys.chunks(5) {
            let records = keys.iter().map(|key| (Some(&key[..]), Some(&value[..])));
            append(&partition, &records.collect::<Vec<_>>());
        }
        sync(machine.log());
    }
    machine.log().persist();
    sync(machine.log());
}

fn table(machine: &Machine) -> Entries {
    scan(&machine.partition(), KeyRange::all(), 1_000, 1 << 20)
}

/// The offsets of the newest record of each key.
fn newest(table: &Entries) -> BTreeSet<u64> {
    table.iter().map(|(_, offset, _)| *offset).collect()
}

fn offsets_in(chunks: &[u8]) -> Vec<u64> {
    let mut decompressor = Decompressor::default();
    let mut offsets = Vec::new();
    for chunk in Chunks::new(chunks) {
        let chunk = chunk.unwrap();
        if !chunk.header().attributes.is_control() {
            let records = chunk.records(&mut decompressor).unwrap();
            offsets.extend(records.map(|record| record.unwrap().offset.0));
        }
    }
    offsets
}

fn read_on(reader: &mut PartitionReader) -> Vec<u64> {
    let mut offsets = Vec::new();
    while let Some(chunks) = reader.read(3_000).unwrap() {
        offsets.extend(offsets_in(&chunks.bytes));
    }
    offsets
}

fn check_rest(before: &[u64], rest: &[u64], newest: &BTreeSet<u64>) {
    let from = before.last().map_or(0, |last| last + 1);
    let rest: BTreeSet<u64> = rest.iter().copied().collect();
    let missed: Vec<_> = newest
        .range(from..)
        .filter(|offset| !rest.contains(offset))
        .collect();
    assert!(missed.is_empty(), "{missed:?} behind {from}");
}

fn rises(offsets: &[u64]) -> bool {
    offsets.windows(2).all(|pair| pair[0] < pair[1])
}
