//! Puts that wait for the disk, in the process, beside bare writes and syncs.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use millstream_log::Durability;

use super::data::{key, value};
use super::in_process::{keys, on_threads};
use super::table::{Table, Writer};
use crate::measure::{Bench, Took, time};
use crate::report::{Better, Case};

pub const DURABLE_PUT: &str = "durable-put";

/// How many threads put at once, each one key after another.
const WRITERS: [usize; 2] = [1, 64];

/// The bytes of a chunk around the key and the value of its one record, about.
const CHUNK_OVERHEAD_BYTES: usize = 70;

/// Each put is its own chunk, and waits until that is on disk.
pub fn durable_put(bench: &Bench) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for writers in WRITERS {
        let puts_each = match writers {
            1 => bench.size(1_000, 20),
            _ => bench.size(300, 2),
        };
        let folder = bench.folder(DURABLE_PUT, 2 << 30)?;
        let table = Table::open(folder.path(), Durability::Sync)?;
        let keys = keys(bench);
        let bare = folder.path().join("bare");
        let puts = puts_each * writers as u64;
        let rounds = bench.turns(2, |place| {
            bench.settle_disk();
            match place {
                0 => time(|| {
                    on_threads(writers, |thread| {
                        let mut writer = Writer::new(&table.partition);
                        (0..puts_each).try_for_each(|n| {
                            writer.push((thread * puts_each + n) % keys, 1)?;
                            let end = writer.append()?;
                            Ok(table.partition.wait_durable(end)?)
                        })
                    })
                }),
                _ => write_bare(&bare, puts_each, writers as u64),
            }
        })?;
        table.close()?;
        let rates = |rounds: &[Took]| {
            let rate = |took: &Took| puts as f64 / 1e3 / took.seconds;
            rounds.iter().map(rate).collect()
        };
        let name = format!("{DURABLE_PUT}/{writers}-writers");
        let case = Case::new(name, "k/s", Better::Higher, rates(&rounds[0]));
        cases.push(case.by_hand(rates(&rounds[1])));
    }
    Ok(cases)
}

/// Writes as many bytes by hand: one write and one sync for a put of each writer.
fn write_bare(path: &Path, puts_each: u64, writers: u64) -> Result<Took> {
    let mut file = File::create(path)?;
    let mut group = Vec::new();
    for number in 0..writers {
        group.extend_from_slice(&[0; CHUNK_OVERHEAD_BYTES]);
        group.extend_from_slice(&key(number));
        group.extend_from_slice(&value(number, 1));
    }
    time(|| {
        (0..puts_each).try_for_each(|_| {
            file.write_all(&group)?;
            Ok(file.sync_data()?)
        })
    })
}
