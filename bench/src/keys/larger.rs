//! Gets from data that is eight times as large as memory, beside RocksDB.
//!
//! Each side is a process whose memory the kernel limits, including the system's cache of its files.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::iter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use fastrand::Rng;
use millstream_base::ByteSize;
use millstream_log::{Durability, LogConfig};
use serde::{Deserialize, Serialize};

use super::compaction::reopen;
use super::data::{KEY_BYTES, VALUE_BYTES, Zipf};
use super::in_process::on_threads;
use super::start::{End, files, fill, make_cold};
use super::table::{self, Table};
use crate::child::{self, Working, report};
use crate::measure::{Bench, median, rounds_of};
use crate::memory_group::MemoryGroup;
use crate::report::{Better, Case};
use crate::rocksdb::RocksDb;

pub const LARGER: &str = "larger-than-memory";

/// How many times the keys and values are as large as the memory.
const TIMES: u64 = 8;

/// The least memory: a quick run has few keys.
const MEMORY_MIN: u64 = 128 << 20;

/// Threads that get keys at once.
const THREADS: u64 = 8;

/// The least part of RocksDB's rate.
const TARGET: f64 = 1.0;

/// How often each side is measured: a round takes long.
const ROUNDS: usize = 3;

/// The child process that gets keys.
#[derive(Debug, Serialize, Deserialize)]
pub struct Get {
    dir: PathBuf,
    /// A file with the numbers of the keys; the first half warms up.
    numbers: PathBuf,
    pool: u64,
    /// `None` in a quick run.
    group: Option<PathBuf>,
}

/// The figures of a run, as both sides print them.
#[derive(Debug, Deserialize, Serialize)]
struct Ran {
    seconds: f64,
    p99_us: f64,
}

impl child::Task for Get {
    const NAME: &'static str = "keys/larger-than-memory";

    fn run(self) -> Result<()> {
        self.group.as_deref().map_or(Ok(()), MemoryGroup::join)?;
        let config = LogConfig::with_pool(self.dir.join("log"), ByteSize(self.pool));
        let table = Table::with_config(config, Durability::Async, &[])?;
        let numbers = read_numbers(&self.numbers)?;
        let (warm_up, measured) = numbers.split_at(numbers.len() / 2);
        get_all(&table, warm_up)?;
        let begin = Instant::now();
        let mut micros = get_all(&table, measured)?;
        let seconds = begin.elapsed().as_secs_f64();
        micros.sort_unstable_by(f64::total_cmp);
        table.close()?;
        report(&Ran {
            seconds,
            p99_us: micros[micros.len() * 99 / 100],
        })
    }
}

/// Gets keys on some threads. Returns the microseconds of each get.
fn get_all(table: &Table, numbers: &[u64]) -> Result<Vec<f64>> {
    let micros = parking_lot::Mutex::new(Vec::with_capacity(numbers.len()));
    on_threads(THREADS as usize, |thread| {
        let mine = numbers.iter().skip(thread as usize);
        let each = mine.step_by(THREADS as usize).map(|number| {
            let begin = Instant::now();
            table::get(&table.partition, *number)?;
            Ok(begin.elapsed().as_secs_f64() * 1e6)
        });
        let each = each.collect::<Result<Vec<f64>>>()?;
        micros.lock().extend(each);
        Ok(())
    })?;
    Ok(micros.into_inner())
}

pub fn larger(bench: &Bench) -> Result<Vec<Case>> {
    let keys = bench.size(10_000_000, 2_000);
    let gets = bench.size(100_000, 1_000);
    let memory = (keys * (KEY_BYTES + VALUE_BYTES) as u64 / TIMES).max(MEMORY_MIN);
    // A quick run changes nothing outside of its folder.
    let group = match bench.is_quick() {
        true => None,
        false => match MemoryGroup::create(ByteSize(memory)) {
            Ok(group) => Some(group),
            Err(error) => {
                eprintln!("bench: {LARGER} left out: memory cannot be limited: {error:#}");
                return Ok(Vec::new());
            }
        },
    };
    let entry = group.as_ref().map(MemoryGroup::entry);
    let ours = bench.folder(LARGER, 4 << 30)?;
    fill(ours.path(), keys, End::Stopped)?;
    compact(ours.path())?;
    let rocksdb = RocksDb::filled(bench, keys)?;
    let mut cases = Vec::new();
    for (name, draw) in [
        ("uniform", None),
        ("zipf-0.99", Some(Zipf::new(keys, 0.99))),
    ] {
        let numbers = ours.path().join("numbers");
        write_numbers(&numbers, keys, 2 * gets, draw.as_ref())?;
        let sides = 1 + usize::from(rocksdb.is_some());
        let rounds = rounds_of(bench.size(ROUNDS, 1), sides, |side| match &rocksdb {
            Some(rocksdb) if side == 1 => {
                get_of_rocksdb(rocksdb, &numbers, memory, entry.as_deref())
            }
            _ => get(ours.path(), &numbers, memory, entry.clone()),
        })?;
        let rates = |ran: &[Ran]| -> Vec<f64> {
            ran.iter()
                .map(|ran| gets as f64 / 1e3 / ran.seconds)
                .collect()
        };
        let p99 = |ran: &[Ran]| median(&ran.iter().map(|ran| ran.p99_us).collect::<Vec<f64>>());
        let mut case = Case::new(
            format!("{LARGER}/{name}"),
            "k/s",
            Better::Higher,
            rates(&rounds[0]),
        );
        case = case
            .detail("memory_mib", memory as f64 / f64::from(1 << 20))
            .detail("p99_us", p99(&rounds[0]));
        if let Some(rocksdb) = rounds.get(1) {
            case = case
                .by_hand(rates(rocksdb))
                .target(TARGET)
                .detail("p99_us_rocksdb", p99(rocksdb));
        }
        cases.push(case);
    }
    Ok(cases)
}

/// Compacts the table whole, as RocksDB's is: a pass beside the gets would have memory of its own.
fn compact(dir: &Path) -> Result<()> {
    let log = reopen(dir)?;
    log.compact()?;
    Ok(log.close()?)
}

/// Gets keys of our table, with cold files.
fn get(dir: &Path, numbers: &Path, memory: u64, group: Option<PathBuf>) -> Result<Ran> {
    make_cold(&files(&dir.join("log"))?)?;
    let task = Get {
        dir: dir.to_owned(),
        numbers: numbers.to_owned(),
        // The rest is for the system's cache of the files.
        pool: memory / 4,
        group,
    };
    Working::start(&task)?.hear()
}

/// Gets keys of RocksDB, with cold files.
fn get_of_rocksdb(
    rocksdb: &RocksDb,
    numbers: &Path,
    memory: u64,
    group: Option<&Path>,
) -> Result<Ran> {
    make_cold(&files(rocksdb.folder().path())?)?;
    let settings = [THREADS, memory / 2].map(|number| number.to_string());
    let settings = settings.iter().map(AsRef::as_ref);
    let words = iter::once(numbers.as_os_str()).chain(settings);
    rocksdb.run("get", words.chain(group.map(Path::as_os_str)))
}

fn write_numbers(path: &Path, keys: u64, count: u64, draw: Option<&Zipf>) -> Result<()> {
    let mut rng = Rng::with_seed(1);
    let mut file = BufWriter::new(File::create(path)?);
    for _ in 0..count {
        let number = match draw {
            Some(zipf) => zipf.draw(&mut rng),
            None => rng.u64(..keys),
        };
        file.write_all(&number.to_le_bytes())?;
    }
    Ok(file.flush()?)
}

fn read_numbers(path: &Path) -> Result<Vec<u64>> {
    let bytes = fs::read(path)?;
    let (numbers, _) = bytes.as_chunks();
    Ok(numbers
        .iter()
        .map(|number| u64::from_le_bytes(*number))
        .collect())
}
