//! Windows with all of their events: ten operators over the same sliding window, which share the log's
//! chunks, beside operators of which each keeps copies of its own (kera, chapter 4); windows by size and slide, and by few
//! and many keys; and count windows.

mod copies;
mod counted;
mod figures;
mod keys;
mod load;
mod operators;
mod sliding;

use anyhow::{Result, ensure};

use self::operators::{Keep, Measured, Task};
use crate::benchmark::Benchmark;
use crate::child::{Entry, Working};
use crate::measure::{Bench, median};
use crate::report::{Better, Case};

pub const BENCHMARK: Benchmark = Benchmark {
    name: "windows",
    measures: "Measures ten operators that share a window's events against operators that copy them, sliding windows against tumbling ones, windowed counts by few and many keys and count windows against loops by hand, and the latency of events in count windows.",
    cases: &[
        (SHARED, shared),
        (sliding::SLIDING, sliding::sliding),
        (keys::KEYS, keys::keys),
        (counted::COUNT, counted::count),
        figures::FIGURES[0],
        figures::FIGURES[1],
        figures::FIGURES[2],
        figures::FIGURES[3],
        figures::FIGURES[4],
    ],
};

/// The work of child processes.
pub const TASKS: [Entry; 1] = [Entry::of::<Task>()];

const SHARED: &str = "shared";

const OPERATORS: usize = 10;

/// The most memory of ten operators, as a multiple of that of one.
const MEMORY_MAX: f64 = 1.3;

/// The highest latency, as a multiple of that with copies.
const LATENCY_MAX: f64 = 1.2;

/// Operators, and their state. They take turns, each in a process of its own.
const CONTENDERS: [(usize, Keep); 4] = [
    (0, Keep::Shared),
    (1, Keep::Shared),
    (OPERATORS, Keep::Shared),
    (OPERATORS, Keep::Copies),
];

/// The figures of all contenders in one round.
struct Round {
    none: Measured,
    one: Measured,
    ten: Measured,
    copies: Measured,
}

impl Round {
    fn all(bench: &Bench) -> Result<Vec<Round>> {
        let turns = bench.turns(CONTENDERS.len(), |place| {
            let (operators, keep) = CONTENDERS[place];
            let measured = measure(bench, operators, keep)?;
            ensure!(
                measured.windows > 0 || operators == 0,
                "no window had all of its events: the machine does not keep up"
            );
            Ok(measured)
        })?;
        let mut turns = turns.into_iter().map(Vec::into_iter);
        let mut next = || turns.next().expect("a list for each contender");
        let (none, one, ten, copies) = (next(), next(), next(), next());
        let rounds = none.zip(one).zip(ten.zip(copies));
        Ok(rounds
            .map(|((none, one), (ten, copies))| Round {
                none,
                one,
                ten,
                copies,
            })
            .collect())
    }

    /// Returns the memory of a process for its windows, in MiB: its allocations beyond those of one without operators,
    /// and the events that are pinned in the log's memory.
    fn window_mib(&self, measured: &Measured) -> f64 {
        measured.allocated_mib - self.none.allocated_mib + measured.in_place_mib
    }
}

fn measure(bench: &Bench, operators: usize, keep: Keep) -> Result<Measured> {
    let folder = bench.folder("windows", 1 << 30)?;
    let task = Task {
        dir: folder.path().to_owned(),
        operators,
        keep,
        events_per_second: bench.size(100_000, 10_000),
        windows: bench.size(30, 3),
    };
    Working::start(&task)?.hear()
}

/// Ten operators that share their state, beside one, and beside ten that do not.
fn shared(bench: &Bench) -> Result<Vec<Case>> {
    let rounds = Round::all(bench)?;
    let of = |value: fn(&Round) -> f64| rounds.iter().map(value).collect::<Vec<f64>>();
    let middle = |value: fn(&Round) -> f64| median(&of(value));
    let memory = Case::new(
        format!("{SHARED}/memory"),
        "MiB",
        Better::Lower,
        of(|round| round.window_mib(&round.ten)),
    );
    let copies = of(|round| round.window_mib(&round.copies));
    let memory = memory
        .by_hand(of(|round| round.window_mib(&round.one)))
        .target(1.0 / MEMORY_MAX)
        .peer("copies", median(&copies))
        .detail("copies_mib", median(&copies))
        .detail("resident_mib", middle(|round| round.ten.resident_mib))
        .detail(
            "resident_of_one_mib",
            middle(|round| round.one.resident_mib),
        )
        .detail(
            "resident_with_copies_mib",
            middle(|round| round.copies.resident_mib),
        )
        .detail(
            "resident_without_operators_mib",
            middle(|round| round.none.resident_mib),
        );
    let latency = Case::new(
        format!("{SHARED}/latency"),
        "ms",
        Better::Lower,
        of(|round| round.ten.latency_ms.mean),
    );
    let latency = latency
        .by_hand(of(|round| round.copies.latency_ms.mean))
        .target(1.0 / LATENCY_MAX)
        .detail("p50_ms", middle(|round| round.ten.latency_ms.p50))
        .detail("p99_ms", middle(|round| round.ten.latency_ms.p99))
        .detail(
            "p50_with_copies_ms",
            middle(|round| round.copies.latency_ms.p50),
        )
        .detail(
            "p99_with_copies_ms",
            middle(|round| round.copies.latency_ms.p99),
        )
        .detail(
            "mean_of_one_operator_ms",
            middle(|round| round.one.latency_ms.mean),
        )
        .detail("cpu_s", middle(|round| round.ten.cpu_s))
        .detail("cpu_with_copies_s", middle(|round| round.copies.cpu_s))
        .detail("windows", middle(|round| round.ten.windows as f64));
    Ok(vec![memory, latency])
}
