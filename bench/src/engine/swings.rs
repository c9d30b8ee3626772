//! Priority beside untuned round-robin, on input whose selectivity swings.

use anyhow::{Result, ensure};
use millstream_flow::sources::Generator;
use millstream_flow::{Emit, Flow, FlowSettings};

use super::ours::{self, WORKERS};
use super::schedulers::round_robin;
use super::seda::seda;
use crate::measure::{Bench, Took, cpu_median, ended, energy_median, energy_suffix, time};
use crate::report::{Better, Case};

pub const SWINGS: &str = "priority-swings";

/// Results of an item in the middle stage, in phases that alternate.
const RESULTS: [u64; 2] = [1, 100];

/// Of both kinds together.
const PHASES: u64 = 4;

/// Four stages: `items` gives numbers, `expand` makes 1 result of each or 100, `filter` keeps some,
/// `count` counts. A result takes about as long as a word of the log parser. The selectivity of
/// `expand` swings by 100 times, in phases of about a second.
pub fn swings(bench: &Bench) -> Result<Vec<Case>> {
    let phase_seconds = bench.size(1.0, 0.02);
    let mut phases = [0; 2];
    for (items, results) in phases.iter_mut().zip(RESULTS) {
        *items = items_in(phase_seconds, results)?;
    }
    let rounds = bench.turns(3, |contender| match contender {
        0 => run(ours::settings(WORKERS), phases, PHASES),
        1 => run(round_robin(&[]), phases, PHASES),
        _ => run(seda(), phases, PHASES),
    })?;
    let (priority, untuned, seda) = (&rounds[0], &rounds[1], &rounds[2]);
    let seconds = |took: &[Took]| took.iter().map(|took| took.seconds).collect();
    let energy = |whose: &str| format!("{whose}_{}", energy_suffix());
    Ok(vec![
        Case::new(SWINGS, "s", Better::Lower, seconds(priority))
            .by_hand(seconds(untuned))
            .target(1.2)
            .detail("cpu_s", cpu_median(priority))
            .detail("round_robin_cpu_s", cpu_median(untuned))
            .detail(&energy("energy"), energy_median(priority))
            .detail(&energy("energy_of_round_robin"), energy_median(untuned))
            .detail("items_of_1_result_million", phases[0] as f64 / 1e6)
            .detail("items_of_100_results_million", phases[1] as f64 / 1e6),
        Case::new(
            format!("{SWINGS}/beside-seda"),
            "s",
            Better::Lower,
            seconds(priority),
        )
        .by_hand(seconds(seda))
        .detail("seda_cpu_s", cpu_median(seda))
        .detail(&energy("energy_of_seda"), energy_median(seda)),
    ])
}

/// Returns how many items with `results` results each take about `seconds`.
fn items_in(seconds: f64, results: u64) -> Result<u64> {
    let mut items = 10_000;
    loop {
        let phases = RESULTS.map(|other| if other == results { items } else { 0 });
        let took = run(ours::settings(WORKERS), phases, 2)?;
        if took.seconds >= seconds / 2.0 {
            return Ok((items as f64 * seconds / took.seconds) as u64);
        }
        items *= 2;
    }
}

/// Sends `items[n]` items through that have `RESULTS[n]` results each, and so on in turn.
fn run(settings: FlowSettings, items: [u64; 2], phases: u64) -> Result<Took> {
    let period = items[0] + items[1];
    let total = period * phases / 2;
    let results_of = move |number: u64| RESULTS[usize::from(number % period >= items[0])];
    let results = (items[0] * RESULTS[0] + items[1] * RESULTS[1]) * phases / 2;
    time(|| {
        let flow = Flow::with_settings("swings", settings);
        let retained = flow.partial::<u64>("retained");
        flow.source("items", Generator::new(|number| number).limit(total))
            .boundary("expand")
            .flat_map(move |number: &u64, emit: &mut Emit<u64>| {
                for result in 0..results_of(*number) {
                    emit(&mix(number.wrapping_mul(RESULTS[1]).wrapping_add(result)));
                }
            })
            .boundary("filter")
            .filter(|result| !mix(*result).is_multiple_of(4))
            .boundary("count")
            .fold_local(&retained, |retained, _| *retained += 1);
        ended(&flow.run()?)?;
        let part = retained.merged() as f64 / results as f64;
        // A quarter is left out by chance.
        ensure!((part - 0.75).abs() < 0.05, "{part} of the results arrived");
        Ok(())
    })
}

/// A number that depends on all bits of another (Steele and others, "Fast splittable pseudorandom
/// number generators").
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
