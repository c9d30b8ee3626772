//! The latency of events in count windows that slide by one: figures 4.3 to 4.7 of kera, section 4.3.2.
//!
//! Transactions come in bursts of twelve, as many each second as the figure says, when the windows are full already. The latency
//! of an event is the time from its creation to the end of the aggregation of its window. Figure 4.3 varies the heap of a Java
//! machine, which has no counterpart here: it has one case.

mod load;

use anyhow::Result;

use self::load::{Load, Measured};
use crate::measure::{Bench, median, rounds_of};
use crate::report::{Better, Case};

pub const FIGURES: [(&str, crate::benchmark::Run); 5] = [
    ("figure-4.3", figure_4_3),
    ("figure-4.4", figure_4_4),
    ("figure-4.5", figure_4_5),
    ("figure-4.6", figure_4_6),
    ("figure-4.7", figure_4_7),
];

/// Events in a burst.
const BURST: u64 = 12;

fn figure_4_3(bench: &Bench) -> Result<Vec<Case>> {
    let load = Load {
        size: 10_240,
        rate: 480,
        keys: 2,
        workers: 1,
        operators: 1,
    };
    cases(bench, vec![("figure-4.3/2-keys".to_owned(), load)])
}

/// One operator over one key, with windows of several sizes.
fn by_size(bench: &Bench, figure: &str, rate: u64, sizes: &[u64]) -> Result<Vec<Case>> {
    let loads = sizes.iter().map(|size| {
        let load = Load {
            size: *size,
            rate,
            keys: 1,
            workers: 1,
            operators: 1,
        };
        (format!("{figure}/{size}-by-1"), load)
    });
    cases(bench, loads.collect())
}

fn figure_4_4(bench: &Bench) -> Result<Vec<Case>> {
    by_size(bench, "figure-4.4", 60, &[1024, 2048, 4096, 8192, 10_240])
}

fn figure_4_5(bench: &Bench) -> Result<Vec<Case>> {
    by_size(bench, "figure-4.5", 36, &[256, 512, 1024, 2048])
}

/// One and two operators on one to four workers, each with a key. `rate` returns the events in a second.
fn by_workers(
    bench: &Bench,
    figure: &str,
    size: u64,
    rate: impl Fn(u64) -> u64,
) -> Result<Vec<Case>> {
    let loads = (1..=4).flat_map(|workers| [1, 2].map(|operators| (workers, operators)));
    let loads = loads.map(|(workers, operators)| {
        let load = Load {
            size,
            rate: rate(workers),
            keys: workers,
            workers,
            operators,
        };
        (
            format!("{figure}/{workers}-workers/{operators}-operators"),
            load,
        )
    });
    cases(bench, loads.collect())
}

fn figure_4_6(bench: &Bench) -> Result<Vec<Case>> {
    by_workers(bench, "figure-4.6", 2048, |workers| 60 * workers)
}

fn figure_4_7(bench: &Bench) -> Result<Vec<Case>> {
    by_workers(bench, "figure-4.7", 4096, |_| 120)
}

/// Measures the loads with flows, and with loops by hand that look at each event of a window, as the operators of the thesis do.
fn cases(bench: &Bench, loads: Vec<(String, Load)>) -> Result<Vec<Case>> {
    let seconds = bench.size(3, 0);
    let rounds = rounds_of(bench.size(3, 2), 2 * loads.len(), |place| {
        let (_, load) = &loads[place / 2];
        let bursts = (load.rate * seconds / BURST).max(1);
        match place % 2 {
            0 => load.flow(bursts),
            _ => load.by_hand(bursts),
        }
    })?;
    let cases = loads.into_iter().enumerate().map(|(place, (name, load))| {
        let of = |rounds: &[Measured], value: fn(&Measured) -> f64| {
            rounds.iter().map(value).collect::<Vec<f64>>()
        };
        let (ours, by_hand) = (&rounds[2 * place], &rounds[2 * place + 1]);
        Case::new(name, "ms", Better::Lower, of(ours, |it| it.p99_ms))
            .by_hand(of(by_hand, |it| it.p99_ms))
            .detail("p50_ms", median(&of(ours, |it| it.p50_ms)))
            .detail("p50_by_hand_ms", median(&of(by_hand, |it| it.p50_ms)))
            .detail("events_per_second", load.rate as f64)
            .detail("events_in_a_window", load.size as f64)
    });
    Ok(cases.collect())
}
