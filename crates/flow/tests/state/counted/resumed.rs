//! Count windows of flows that die and resume, with checkpoints that are whole and with changelogs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_exchange::Ranks;
use millstream_flow::{Checkpoints, Resume};

use super::{Item, Results, check, items_of, no_results, start};
use crate::changelogs::log::LogStore;
use crate::changelogs::settings_of;
use crate::ranks::run_or_die;
use crate::support::MemoryStore;

const SOURCES: u64 = 2;
const ITEMS: usize = 2_000;

fn of_rank(rank: u32) -> Vec<Vec<Item>> {
    let sources = 0..SOURCES;
    sources
        .map(|source| items_of(u64::from(rank) * SOURCES + source, ITEMS))
        .collect()
}

/// Slow enough to be stopped.
fn wait(number: u64) {
    if number.is_multiple_of(64) {
        thread::sleep(Duration::from_micros(300));
    }
}

fn check_resumed<S: Checkpoints>(store: &Arc<S>, ranks: u32) {
    let results: Vec<Results> = (0..ranks).map(|_| no_results()).collect();
    let start = |ranks: &Ranks| {
        let results = &results[ranks.rank() as usize];
        let settings = settings_of(store, Resume::IfAny, ranks);
        start(settings, of_rank(ranks.rank()), results, wait)
    };
    for (death, after_ms) in [(0, 25), (1, 40), (0, 10)] {
        let until = (death % ranks, Duration::from_millis(after_ms));
        run_or_die(ranks, Some(until), start);
    }
    assert!(run_or_die(ranks, None, start), "not all ranks have ended");
    let all: Vec<_> = (0..ranks).flat_map(of_rank).collect();
    check(&results, &all);
}

#[test]
fn windows_resume_from_whole_checkpoints_with_exact_results() {
    for ranks in [1, 2] {
        check_resumed(&Arc::new(MemoryStore::default()), ranks);
    }
}

#[test]
fn windows_resume_from_changelogs_with_exact_results() {
    for ranks in [1, 4] {
        check_resumed(&Arc::new(LogStore::default()), ranks);
    }
}
