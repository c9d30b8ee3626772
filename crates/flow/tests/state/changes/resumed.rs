//! Operators of changes whose flows die and resume, with checkpoints that are whole and with changelogs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_exchange::Ranks;
use millstream_flow::{Checkpointing, Checkpoints, FlowSettings, Resume, RowChange};

use super::model::{Answer, random_changes};
use super::{Results, Row, start, unmatched};
use crate::changelogs::log::LogStore;
use crate::support::{MemoryStore, settings};

const SOURCES: u64 = 2;
const CHANGES: usize = 4_000;

fn of_rank(rank: u32) -> Vec<Vec<RowChange<Row>>> {
    let sources = 0..SOURCES;
    sources
        .map(|source| random_changes(3, u64::from(rank) * SOURCES + source, CHANGES))
        .collect()
}

/// Slow enough to be stopped.
fn wait(number: u64) {
    if number.is_multiple_of(64) {
        thread::sleep(Duration::from_micros(300));
    }
}

/// Runs on all ranks until the end, or until one of them dies after `until`. Returns the retractions that each operator has
/// counted if all have ended.
fn run<S: Checkpoints>(
    store: &Arc<S>,
    results: &[Results],
    until: Option<(u32, Duration)>,
) -> Option<Vec<u64>> {
    let rank = |ranks: Ranks, results: &Results| {
        let settings = FlowSettings {
            ranks: ranks.clone(),
            checkpoints: Some(Checkpointing {
                store: Arc::clone(store) as _,
                interval: Some(Duration::from_millis(1)),
                resume: Resume::IfAny,
            }),
            ..settings(2, 16)
        };
        // Another rank may have died before this one began.
        let running = start(settings, of_rank(ranks.rank()), results, wait);
        let running = running.inspect_err(|error| println!("{error}")).ok()?;
        match until {
            Some((rank, after)) if rank == ranks.rank() => {
                thread::sleep(after);
                drop(running);
                None
            }
            _ => {
                let joined = running.join();
                joined.inspect_err(|error| println!("{error}")).ok()?;
                ranks.leave().ok()?;
                Some(unmatched(&running).into_values().collect::<Vec<u64>>())
            }
        }
    };
    let rank = &rank;
    thread::scope(|scope| {
        let ranks = Ranks::threads(results.len() as u32).into_iter();
        let threads: Vec<_> = ranks
            .zip(results)
            .map(|(ranks, results)| scope.spawn(move || rank(ranks, results)))
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap());
        let ends: Option<Vec<Vec<u64>>> = ends.collect::<Vec<_>>().into_iter().collect();
        ends?.into_iter().reduce(|mut sums, counts| {
            sums.iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
            sums
        })
    })
}

fn check<S: Checkpoints>(store: &Arc<S>, ranks: u32) {
    let results: Vec<Results> = (0..ranks).map(|_| Results::default()).collect();
    for (death, after_ms) in [(0, 25), (1, 40), (0, 10)] {
        run(
            store,
            &results,
            Some((death % ranks, Duration::from_millis(after_ms))),
        );
    }
    let counts = run(store, &results, None).expect("all ranks end");
    let all: Vec<_> = (0..ranks).flat_map(of_rank).collect();
    let (expected, retractions) = Answer::over(&all);
    assert_eq!(Results::answer(&results), expected);
    assert_eq!(counts, [retractions; 3]);
}

#[test]
fn operators_resume_from_whole_checkpoints_with_exact_changes() {
    for ranks in [1, 3] {
        check(&Arc::new(MemoryStore::default()), ranks);
    }
}

#[test]
fn operators_resume_from_changelogs_with_exact_changes() {
    for ranks in [1, 2] {
        check(&Arc::new(LogStore::default()), ranks);
    }
}
