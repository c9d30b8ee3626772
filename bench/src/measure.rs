//! What all benchmarks share: rounds, times, folders.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::engine::Text;
use crate::soak;

/// How a run of benchmarks is set.
pub struct Bench {
    dir: PathBuf,
    out: PathBuf,
    quick: bool,
    pub soak: soak::Options,
    text: OnceCell<Text>,
}

impl Bench {
    /// Data goes to `dir` while it is needed, results to `out`.
    pub fn new(dir: PathBuf, out: PathBuf, quick: bool, soak: soak::Options) -> Bench {
        Bench {
            dir,
            out,
            quick,
            soak,
            text: OnceCell::new(),
        }
    }

    pub fn out(&self) -> &Path {
        &self.out
    }

    pub fn is_quick(&self) -> bool {
        self.quick
    }

    /// A text that cases share; written by the first that asks, removed at the end.
    pub fn text(&self) -> Result<&Text> {
        if let Some(text) = self.text.get() {
            return Ok(text);
        }
        let text = Text::of_words(self, self.size(2 << 30, 4 << 20))?;
        Ok(self.text.get_or_init(|| text))
    }

    /// The size that this run takes.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Does `round` once to warm up and then as often as counts. One round lets all contenders work
    /// in turn, so that what else the machine does meets all of them.
    pub fn rounds<T>(&self, mut round: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
        round()?;
        (0..self.size(5, 2)).map(|_| round()).collect()
    }

    /// Waits until nothing is left to be written to disk, so that no contender pays for another.
    pub fn settle_disk(&self) {
        if !self.quick {
            rustix::fs::sync();
        }
    }

    /// An empty folder for a case, on a disk with room for what the case stores at most.
    ///
    /// # Errors
    /// When the disk has less room.
    pub fn folder(&self, case: &str, bytes_max: u64) -> Result<Folder> {
        let path = self.dir.join(case);
        let folder = Folder { path };
        folder.empty()?;
        let disk = rustix::fs::statvfs(&folder.path)?;
        let free = disk.f_bavail * disk.f_frsize;
        // A disk that is nearly full is slow, and others want to write too.
        let wanted = bytes_max + bytes_max / 4;
        ensure!(
            free >= wanted,
            "{case} stores up to {} MB in {}, where {} MB are free: make room, or name another \
             folder with --dir",
            wanted / 1_000_000,
            folder.path.display(),
            free / 1_000_000
        );
        Ok(folder)
    }
}

/// A folder that is removed with all that it holds when it is no longer needed.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it with what it holds, for the next one who asks for it to empty it.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Removes what it holds.
    pub fn empty(&self) -> Result<()> {
        let path = &self.path;
        if path.exists() {
            fs::remove_dir_all(path).with_context(|| format!("cannot remove {path:?}"))?;
        }
        fs::create_dir_all(path).with_context(|| format!("cannot create {path:?}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// What a piece of work took.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    pub seconds: f64,
    /// Of all threads of this process.
    pub cpu_seconds: f64,
}

/// Does a piece of work and tells what it took.
pub fn time(work: impl FnOnce() -> Result<()>) -> Result<Took> {
    let cpu_before = cpu_seconds();
    let before = Instant::now();
    work()?;
    Ok(Took {
        seconds: before.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds() - cpu_before,
    })
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The rate of each round.
pub fn megabytes_per_second(bytes: f64, rounds: &[Took]) -> Vec<f64> {
    let rate = |took: &Took| bytes / 1e6 / took.seconds;
    rounds.iter().map(rate).collect()
}

/// Processor time in the median round, in seconds.
pub fn cpu_median(rounds: &[Took]) -> f64 {
    let cpu: Vec<f64> = rounds.iter().map(|took| took.cpu_seconds).collect();
    median(&cpu)
}

/// Processor time for a million records, in the median round.
pub fn cpu_per_million(records: f64, rounds: &[Took]) -> f64 {
    cpu_median(rounds) / (records / 1e6)
}

/// The middle one of `values`, or the mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
