//! A start with many keys: the time until the first get.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use millstream_log::Durability;
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};

use super::table::{self, Table};
use crate::child::{self, Working, report};
use crate::measure::{Bench, median, time};
use crate::proc::status_mib;
use crate::report::{Better, Case};

pub const START: &str = "start";

/// How often each start is measured: one takes long.
const ROUNDS: usize = 3;

/// How the previous process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Stopped,
    /// By `kill -9`, just after puts.
    Killed,
}

/// The child process that fills the table.
#[derive(Debug, Serialize, Deserialize)]
pub struct Fill {
    dir: PathBuf,
    /// It puts the keys below this number.
    keys: u64,
    end: End,
}

impl child::Task for Fill {
    const NAME: &'static str = "keys/fill";

    fn run(self) -> Result<()> {
        let table = Table::open(&self.dir, Durability::Async)?;
        table.fill(self.keys)?;
        match self.end {
            End::Stopped => table.close()?,
            End::Killed => {}
        }
        report(&self.keys)?;
        loop {
            // Until it is killed.
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

/// The child process that starts.
#[derive(Debug, Serialize, Deserialize)]
pub struct FirstGet {
    dir: PathBuf,
    number: u64,
}

/// The figures of a start.
#[derive(Debug, Serialize, Deserialize)]
struct Started {
    opened_s: f64,
    first_get_s: f64,
    second_get_s: f64,
    /// Read from files, also from the system's cache.
    read_mib: f64,
    /// Read from the disk.
    disk_mib: f64,
    resident_mib: f64,
}

impl child::Task for FirstGet {
    const NAME: &'static str = "keys/first-get";

    fn run(self) -> Result<()> {
        let before = Io::now()?;
        let mut table = None;
        let opened = time(|| {
            table = Some(Table::open(&self.dir, Durability::Async)?);
            Ok(())
        })?;
        let table = table.context("it is open")?;
        let first = time(|| table::get(&table.partition, self.number))?;
        let after = Io::now()?;
        let second = time(|| table::get(&table.partition, self.number + 1))?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let started = Started {
            opened_s: opened.seconds,
            first_get_s: first.seconds,
            second_get_s: second.seconds,
            read_mib: mib(after.read - before.read),
            disk_mib: mib(after.disk - before.disk),
            resident_mib: status_mib(std::process::id(), "VmRSS")?,
        };
        table.close()?;
        report(&started)
    }
}

/// The bytes that this process has read so far.
struct Io {
    read: u64,
    disk: u64,
}

impl Io {
    fn now() -> Result<Io> {
        let io = fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
        let field = |name: &str| -> Result<u64> {
            let line = io.lines().find_map(|line| line.strip_prefix(name));
            let value = line.with_context(|| format!("no {name} in /proc/self/io"))?;
            Ok(value.trim().parse()?)
        };
        Ok(Io {
            read: field("rchar:")?,
            disk: field("read_bytes:")?,
        })
    }
}

/// Opens the log and gets one key, in a process of its own, with cold files. By hand, all files of the records are read.
pub fn start(bench: &Bench) -> Result<Vec<Case>> {
    let keys = bench.size(10_000_000, 20_000);
    let more = bench.size(200_000, 1_000);
    let folder = bench.folder(START, 4 << 30)?;
    let dir = folder.path();
    fill(dir, keys, End::Stopped)?;
    let mut cases = Vec::new();
    for (name, end) in [("stopped", End::Stopped), ("killed", End::Killed)] {
        let (mut started, mut by_hand) = (Vec::new(), Vec::new());
        for round in 0..bench.size(ROUNDS as u64, 1) {
            if end == End::Killed {
                fill(dir, more, End::Killed)?;
            }
            bench.settle_disk();
            make_cold(&files(&dir.join("log"))?)?;
            let task = FirstGet {
                dir: dir.to_owned(),
                number: keys / 2 + round,
            };
            let measured: Started = Working::start(&task)?.hear()?;
            started.push(measured);
            // The start has changed some.
            let files = files(&dir.join("log"))?;
            make_cold(&files)?;
            by_hand.push(time(|| files.iter().try_for_each(|file| read(file)))?.seconds);
        }
        let pick = |of: fn(&Started) -> f64| started.iter().map(of).collect::<Vec<f64>>();
        let middle = |of| median(&pick(of));
        let case = Case::new(
            format!("{START}/{name}"),
            "s",
            Better::Lower,
            pick(|it| it.opened_s + it.first_get_s),
        );
        cases.push(
            case.by_hand(by_hand)
                .detail("opened_s", middle(|it| it.opened_s))
                .detail("second_get_us", middle(|it| it.second_get_s) * 1e6)
                .detail("read_mib", middle(|it| it.read_mib))
                .detail("read_from_disk_mib", middle(|it| it.disk_mib))
                .detail("stored_mib", stored_mib(&files(&dir.join("log"))?)?)
                .detail("resident_mib", middle(|it| it.resident_mib)),
        );
    }
    Ok(cases)
}

/// Fills the table in a process of its own.
pub fn fill(dir: &Path, keys: u64, end: End) -> Result<()> {
    let task = Fill {
        dir: dir.to_owned(),
        keys,
        end,
    };
    let mut child = Working::start(&task)?;
    let _keys: u64 = child.hear()?;
    child.kill()
}

/// All files in a folder and those below it, in the order of their names.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {folder:?}"))? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn stored_mib(files: &[PathBuf]) -> Result<f64> {
    let sizes = files.iter().map(|file| Ok(fs::metadata(file)?.len()));
    let bytes: u64 = sizes.sum::<Result<u64>>()?;
    Ok(bytes as f64 / f64::from(1 << 20))
}

/// Drops the system's cache of files.
pub fn make_cold(files: &[PathBuf]) -> Result<()> {
    files.iter().try_for_each(|file| {
        let file = File::open(file)?;
        Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
    })
}

fn read(file: &Path) -> Result<()> {
    let mut file = File::open(file)?;
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}
