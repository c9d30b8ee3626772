//! Gets and puts in the process, beside a hash map behind a lock.

use std::path::Path;
use std::thread;

use anyhow::{Result, anyhow};
use fastrand::Rng;
use millstream_base::ByteSize;
use millstream_log::{Durability, LogConfig};

use super::by_hand::Map;
use super::data::Zipf;
use super::table::{self, Table, Writer};
use crate::measure::{Bench, Took, cpu_median, time};
use crate::report::{Better, Case};

pub const GET: &str = "get";
pub const PUT: &str = "put";
pub const PUT_AND_GET: &str = "put-and-get";

/// How many threads get keys at once, how they draw these, and from which table.
const GETS: [(&str, usize, Draw, Hot); 5] = [
    ("1-threads", 1, Draw::Uniform, Hot::Some),
    ("2-threads", 2, Draw::Uniform, Hot::Some),
    ("2-threads-zipf-0.99", 2, Draw::Zipf, Hot::Some),
    ("1-threads/all-hot", 1, Draw::Uniform, Hot::All),
    ("2-threads/all-hot", 2, Draw::Uniform, Hot::All),
];

/// The least ratio of our gets to those of the map.
const GET_TARGET: f64 = 0.5;

/// The memory for hot keys that holds all keys.
const ALL_HOT: ByteSize = ByteSize(1 << 30);

/// Whether a table has the default memory for hot keys, or all its keys are hot: then both sides have all in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hot {
    Some,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Draw {
    Uniform,
    Zipf,
}

/// How many puts share a chunk.
const PUTS_PER_CHUNK: [u32; 2] = [1, 100];

/// Gets of random keys.
pub fn get(bench: &Bench) -> Result<Vec<Case>> {
    let keys = keys(bench);
    let gets = bench.size(300_000, 1_000);
    let folder = bench.folder(GET, 1 << 30)?;
    let table = Table::open(folder.path(), Durability::Async)?;
    table.fill(keys)?;
    let hot_folder = bench.folder("all-hot", 1 << 30)?;
    let hot = hot_table(hot_folder.path(), keys)?;
    let map = Map::filled(keys);
    let zipf = Zipf::new(keys, 0.99);
    bench.settle_disk();
    let rounds = bench.turns(2 * GETS.len(), |place| {
        let (_, threads, draw, of) = GETS[place / 2];
        let table = match of {
            Hot::Some => &table,
            Hot::All => &hot,
        };
        time(|| {
            on_threads(threads, |thread| {
                let mut rng = Rng::with_seed(thread);
                (0..gets / threads as u64).try_for_each(|_| {
                    let number = match draw {
                        Draw::Uniform => rng.u64(..keys),
                        Draw::Zipf => zipf.draw(&mut rng),
                    };
                    match place % 2 {
                        0 => table::get(&table.partition, number),
                        _ => map.get(number),
                    }
                })
            })
        })
    })?;
    let index_bytes = table.partition.key_stats().bytes as f64;
    hot.close()?;
    table.close()?;
    let cases = GETS.iter().zip(rounds.chunks(2)).map(|((name, ..), both)| {
        let case = beside(&format!("{GET}/{name}"), gets, both).target(GET_TARGET);
        case.detail("index_bytes_per_key", index_bytes / keys as f64)
    });
    Ok(cases.collect())
}

/// A table whose keys are all hot.
fn hot_table(dir: &Path, keys: u64) -> Result<Table> {
    let config = LogConfig {
        hot_keys: ALL_HOT,
        ..LogConfig::new(dir.join("log"))
    };
    let table = Table::with_config(config, Durability::Async, &[])?;
    table.fill(keys)?;
    (0..keys).try_for_each(|number| table::get(&table.partition, number))?;
    Ok(table)
}

/// New versions of random keys, until the last one is found: a get adds all records before it to the index.
pub fn put(bench: &Bench) -> Result<Vec<Case>> {
    let keys = keys(bench);
    let puts = bench.size(1_000_000, 1_000);
    let mut cases = Vec::new();
    for per_chunk in PUTS_PER_CHUNK {
        let folder = bench.folder(PUT, 3 << 30)?;
        let table = Table::open(folder.path(), Durability::Async)?;
        table.fill(keys)?;
        let map = Map::filled(keys);
        let mut rng = Rng::with_seed(0);
        let rounds = bench.turns(2, |place| {
            bench.settle_disk();
            let numbers: Vec<u64> = (0..puts).map(|_| rng.u64(..keys)).collect();
            let last = numbers.last().copied().unwrap_or_default();
            match place {
                0 => time(|| {
                    put_all(&table, &numbers, per_chunk)?;
                    table::get(&table.partition, last)
                }),
                _ => time(|| {
                    numbers.iter().for_each(|number| map.put(*number, 1));
                    map.get(last)
                }),
            }
        })?;
        table.close()?;
        cases.push(beside(
            &format!("{PUT}/{per_chunk}-per-chunk"),
            puts,
            &rounds,
        ));
    }
    Ok(cases)
}

/// A put, and then a get of the same key, again and again: each get adds one record to the index.
pub fn put_and_get(bench: &Bench) -> Result<Vec<Case>> {
    let keys = keys(bench);
    let pairs = bench.size(300_000, 1_000);
    let folder = bench.folder(PUT_AND_GET, 2 << 30)?;
    let table = Table::open(folder.path(), Durability::Async)?;
    table.fill(keys)?;
    let map = Map::filled(keys);
    let mut rng = Rng::with_seed(0);
    let rounds = bench.turns(2, |place| {
        bench.settle_disk();
        time(|| {
            let mut writer = Writer::new(&table.partition);
            (0..pairs).try_for_each(|_| {
                let number = rng.u64(..keys);
                match place {
                    0 => {
                        writer.push(number, 1)?;
                        writer.append()?;
                        table::get(&table.partition, number)
                    }
                    _ => {
                        map.put(number, 1);
                        map.get(number)
                    }
                }
            })
        })
    })?;
    table.close()?;
    Ok(vec![beside(PUT_AND_GET, pairs, &rounds)])
}

/// How many keys a table has.
pub fn keys(bench: &Bench) -> u64 {
    bench.size(1_000_000, 2_000)
}

fn put_all(table: &Table, numbers: &[u64], per_chunk: u32) -> Result<()> {
    let mut writer = Writer::new(&table.partition);
    for number in numbers {
        writer.push(*number, 1)?;
        if writer.records() == per_chunk {
            writer.append()?;
        }
    }
    if writer.records() > 0 {
        writer.append()?;
    }
    Ok(())
}

/// A case of ours beside the map.
fn beside(name: &str, operations: u64, both: &[Vec<Took>]) -> Case {
    let rates = |rounds: &[Took]| {
        let rate = |took: &Took| operations as f64 / 1e6 / took.seconds;
        rounds.iter().map(rate).collect()
    };
    let (ours, map) = (&both[0], &both[1]);
    let us_each = |rounds: &[Took]| cpu_median(rounds) * 1e6 / operations as f64;
    Case::new(name, "M/s", Better::Higher, rates(ours))
        .by_hand(rates(map))
        .detail("cpu_us_each", us_each(ours))
        .detail("cpu_us_each_by_hand", us_each(map))
}

/// Runs `work` on some threads, each with its number.
pub fn on_threads(threads: usize, work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as u64)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let mut threads = threads.into_iter();
        threads.try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}
