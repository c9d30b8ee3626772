//! The settings of a run, rounds in turn, and the time, processor time and energy of work.

use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millstream_base::EnergyMeter;
use millstream_base::energy::ENERGY_FOLDER;
use millstream_flow::{Running, Summary};
use rustix::time::ClockId;

use crate::clock::cpu_s;
use crate::folder::Folder;
use crate::report::Case;
use crate::text::Text;
use crate::{soak, torture};

/// How often each contender has its turn.
pub const ROUNDS: usize = 5;

/// The settings of a run of benchmarks.
pub struct Bench {
    dir: PathBuf,
    out: PathBuf,
    quick: bool,
    pub soak: soak::Options,
    /// How long the search for the sustainable throughput of an application may take, with all of its rounds.
    pub budget: Option<Duration>,
    /// How long soak and torture last.
    pub lasts: Option<Duration>,
    pub torture: torture::Options,
    /// The cases of this benchmark that have run.
    pub ran: RefCell<Vec<Case>>,
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
            budget: None,
            lasts: None,
            torture: torture::Options::default(),
            ran: RefCell::default(),
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
        let bytes = self.size(2 << 30, 4 << 20);
        let text = Text::of_words(self.folder("text", bytes)?, bytes)?;
        self.settle_disk();
        Ok(self.text.get_or_init(|| text))
    }

    /// The size that this run takes.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Does `round` once to warm up and then once for each measurement. One round lets all contenders work in turn, so
    /// that other load of the machine affects all of them.
    pub fn rounds<T>(&self, mut round: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
        round()?;
        (0..self.size(ROUNDS, 2)).map(|_| round()).collect()
    }

    /// Lets contenders take turns, once to warm up and then as often as counts; returns the results of each in each
    /// round. The order changes from round to round, so that none comes always after the same one.
    pub fn turns<T>(
        &self,
        contenders: usize,
        run: impl FnMut(usize) -> Result<T>,
    ) -> Result<Vec<Vec<T>>> {
        let mut run = run;
        (0..contenders).try_for_each(|contender| run(contender).map(drop))?;
        self.warm_turns(contenders, run)
    }

    /// The same for contenders that are warm.
    pub fn warm_turns<T>(
        &self,
        contenders: usize,
        run: impl FnMut(usize) -> Result<T>,
    ) -> Result<Vec<Vec<T>>> {
        rounds_of(self.size(ROUNDS, 2), contenders, run)
    }

    /// Waits until nothing is left to be written to disk, so that no contender pays for another.
    pub fn settle_disk(&self) {
        if !self.quick {
            rustix::fs::sync();
        }
    }

    /// Where the folder of a case is.
    pub fn path(&self, case: &str) -> PathBuf {
        self.dir.join(case)
    }

    /// An empty folder for a case, on a disk with room for this number of bytes; a quick run needs less.
    ///
    /// # Errors
    /// When the disk has less room.
    pub fn folder(&self, case: &str, bytes_max: u64) -> Result<Folder> {
        let folder = Folder::create(self.path(case))?;
        let disk = rustix::fs::statvfs(folder.path())?;
        let free = disk.f_bavail * disk.f_frsize;
        // A disk that is nearly full is slow, and others want to write too.
        let wanted = self.size(bytes_max + bytes_max / 4, bytes_max / 16);
        ensure!(
            free >= wanted,
            "{case} stores up to {} MB in {}, where {} MB are free: make room, or name another \
             folder with --dir",
            wanted / 1_000_000,
            folder.path().display(),
            free / 1_000_000
        );
        Ok(folder)
    }
}

/// Runs `rounds` rounds in which each contender has its turn.
pub fn rounds_of<T>(
    rounds: usize,
    contenders: usize,
    mut run: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut ran: Vec<Vec<T>> = (0..contenders).map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for contender in order_of_turns(round, contenders) {
            ran[contender].push(run(contender)?);
        }
    }
    Ok(ran)
}

/// The order of contenders in a round: the first of one round comes later in the next, and after as many rounds as there
/// are contenders the order is reversed.
pub fn order_of_turns(round: usize, contenders: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contenders).collect();
    if contenders > 0 {
        order.rotate_left(round % contenders);
        if round / contenders % 2 == 1 {
            order.reverse();
        }
    }
    order
}

/// The time, processor time and energy of a piece of work.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    pub seconds: f64,
    /// Of all threads of this process.
    pub cpu_seconds: f64,
    /// Of all processors, where the machine counts them (RAPL).
    pub joules: Option<f64>,
}

impl Took {
    /// The energy of the work: joules, or where the machine does not count them CPU-seconds.
    pub fn energy(&self) -> f64 {
        self.joules.unwrap_or(self.cpu_seconds)
    }
}

/// Counts the joules that all processors of this machine take; `None` where it has no counter.
pub fn energy_meter() -> Option<EnergyMeter> {
    EnergyMeter::start(Path::new(ENERGY_FOLDER))
}

/// Returns the energy of the median round, in the unit that [`energy_suffix`] names.
pub fn energy_median(rounds: &[Took]) -> f64 {
    median(&rounds.iter().map(Took::energy).collect::<Vec<f64>>())
}

/// The end of a detail's name for [`energy_median`].
pub fn energy_suffix() -> &'static str {
    match energy_meter() {
        Some(_) => "joules",
        None => "cpu_s",
    }
}

/// Does a piece of work, and measures it.
pub fn time(work: impl FnOnce() -> Result<()>) -> Result<Took> {
    let mut energy = energy_meter();
    let cpu_before = cpu_s(ClockId::ProcessCPUTime);
    let before = Instant::now();
    work()?;
    Ok(Took {
        seconds: before.elapsed().as_secs_f64(),
        cpu_seconds: cpu_s(ClockId::ProcessCPUTime) - cpu_before,
        joules: energy.as_mut().and_then(EnergyMeter::joules),
    })
}

/// Waits for the end of a flow. A lost wake-up is an error: the figures would be those of a timer.
pub fn ended(flow: &Running) -> Result<Summary> {
    let summary = flow.join()?;
    ensure!(
        summary.lost_wakeups == 0,
        "the workers of the flow \"{}\" slept {} times until a timer woke them, although a stage had input and room: \
         this is a fault of the engine",
        summary.flow,
        summary.lost_wakeups
    );
    Ok(summary)
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

/// The value that this percentage of `values` is not above; NaN without any.
pub fn percentile(mut values: Vec<f64>, percent: f64) -> f64 {
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    let index = rank.clamp(1, values.len().max(1)) - 1;
    match values.is_empty() {
        true => f64::NAN,
        false => *values.select_nth_unstable_by(index, f64::total_cmp).1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_by_their_rank() {
        let values = || (1..=1_000).rev().map(f64::from).collect::<Vec<f64>>();
        let ranks = [(0.0, 1.0), (50.0, 500.0), (99.9, 999.0), (100.0, 1_000.0)];
        for (percent, expected) in ranks {
            assert_eq!(percentile(values(), percent), expected);
        }
        assert!(percentile(Vec::new(), 50.0).is_nan());
    }

    #[test]
    fn contenders_take_turns_in_an_order_that_changes() {
        let orders: Vec<Vec<usize>> = (0..4).map(|round| order_of_turns(round, 2)).collect();
        assert_eq!(orders, [[0, 1], [1, 0], [1, 0], [0, 1]]);
        let mut turns = Vec::new();
        let ran = rounds_of(3, 3, |contender| {
            turns.push(contender);
            Ok(turns.len())
        });
        assert_eq!(turns, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        assert_eq!(ran.unwrap(), [[1, 6, 8], [2, 4, 9], [3, 5, 7]]);
    }
}
