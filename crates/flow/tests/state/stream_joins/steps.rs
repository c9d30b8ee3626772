//! Changes of rows that have very many partners.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::{Flow, FlowSettings, RowChange};
use serde::{Deserialize, Serialize};

use super::{disorder, entries, results, source, with_deaths};
use crate::changelogs::lifetimes::WallClock;
use crate::changes::Kept;
use crate::support::{Hand, settings, wait_until};

/// A row whose copies are counted.
#[derive(Debug, Serialize, Deserialize)]
struct Counted(u64);

static COPIES: AtomicU64 = AtomicU64::new(0);

impl Clone for Counted {
    fn clone(&self) -> Self {
        COPIES.fetch_add(1, Ordering::Relaxed);
        Counted(self.0)
    }
}

/// Lets one item meet very many partners, and holds the results up for a while.
fn check(by_time: bool, name: &str) {
    const PARTNERS: u64 = 20_000;
    let flow = Flow::with_settings("many", settings(2, 256));
    let [rows, others, end] = [(); 3].map(|()| Hand::default());
    let sums = flow.values::<u64, u64>("sums");
    let partners = flow
        .source("partners", source((0..PARTNERS).collect::<Vec<_>>(), false))
        .watermarks(|_| Timestamp(0), disorder(0))
        .key_by(|_| 0);
    let rows_by_key = flow
        .source("rows", rows.clone())
        .watermarks(|_| Timestamp(0), disorder(0))
        .map(|row| Counted(*row))
        .key_by(|_| 0);
    match by_time {
        true => rows_by_key
            .connect(partners)
            .interval_join(
                "pairs",
                0..=0,
                |_| Timestamp(0),
                |_| Timestamp(0),
                |first, second| (first.clone(), *second),
            )
            .map(|(_, second)| *second)
            .sink("end", end.clone()),
        false => rows_by_key
            .inserts()
            .connect(partners.inserts())
            .inner("pairs")
            .map(|change| change.row().1)
            .sink("end", end.clone()),
    };
    flow.source("others", others.clone())
        .key_by(|number| *number)
        .count("count", &sums);
    let running = flow.run().unwrap();
    let seconds = || {
        let state = running.state("pairs.second").unwrap();
        state.size().tables.unwrap().entries
    };
    wait_until("all partners are there", || seconds() == PARTNERS);
    let before = COPIES.load(Ordering::Relaxed);
    rows.give([7]);
    // The sink takes nothing: results fill the rings, and the rest of them is not made.
    let copies = wait_until_still() - before;
    assert!((1..PARTNERS / 3).contains(&copies), "{name}: {copies}");
    // Other stages go on.
    others.give(0..10);
    wait_until("others are counted", || sums.get(&9).is_some());
    end.open();
    wait_until("all pairs come", || end.taken().len() as u64 == PARTNERS);
    let mut taken = end.taken();
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..PARTNERS));
    rows.end();
    others.end();
    let summary = running.join().unwrap();
    assert_eq!(summary.lost_wakeups, 0, "{name}");
}

/// Waits until no copy is made any more. Returns their number.
fn wait_until_still() -> u64 {
    let (mut copies, mut still) = (0, 0);
    while still < 5 {
        thread::sleep(Duration::from_millis(100));
        let now = COPIES.load(Ordering::Relaxed);
        still = if now == copies && now > 0 {
            still + 1
        } else {
            0
        };
        copies = now;
    }
    copies
}

/// One test, since copies are counted for the whole program.
#[test]
fn an_item_with_very_many_partners_waits_for_room_in_bounded_memory() {
    check(false, "a row");
    check(true, "an item");
}

#[test]
fn partners_that_end_by_their_lifetime_before_their_results_have_room_get_none() {
    const PARTNERS: u64 = 1_000;
    let clock = Arc::new(WallClock::default());
    let settings = FlowSettings {
        clock: Arc::clone(&clock) as _,
        ..settings(2, 16)
    };
    let flow = Flow::with_settings("many", settings);
    let [rows, end] = [(); 2].map(|()| Hand::default());
    let partners = flow
        .source("partners", source((0..PARTNERS).collect::<Vec<_>>(), false))
        .key_by(|_| 0)
        .inserts();
    flow.source("rows", rows.clone())
        .key_by(|_| 0)
        .inserts()
        .connect(partners)
        .lifetime(Duration::from_secs(100))
        .inner("pairs")
        .map(|change| change.row().1)
        .sink("end", end.clone());
    let running = flow.run().unwrap();
    let entries = |name| entries(&running, name);
    wait_until("all partners are there", || {
        entries("pairs.second") == PARTNERS
    });
    rows.give([7]);
    wait_until("the row is there", || entries("pairs.first") == 1);
    clock.advance(1_000);
    end.open();
    rows.end();
    wait_until("the flow ends", || running.is_finished());
    running.join().unwrap();
    assert!((1..PARTNERS as usize).contains(&end.taken().len()));
}

/// Each change of the first side has thousands of partners, and all of them are alone in between.
#[test]
fn a_flow_that_dies_among_the_results_of_a_row_gives_each_of_them_once() {
    const PARTNERS: u64 = 3_000;
    with_deaths(|ranks, run| {
        let found = results(ranks);
        run(
            &|settings| {
                let rank = settings.ranks.rank();
                let flow = Flow::with_settings("many", settings);
                let own = |count: u64| -> Vec<u64> {
                    let all = (0..count).filter(|it| (it % u64::from(ranks)) as u32 == rank);
                    all.collect()
                };
                let partners = flow
                    .source("partners", source(own(PARTNERS), true))
                    .key_by(|_| 0)
                    .inserts();
                let changes = own(10).into_iter().flat_map(|row| {
                    let stays = row == 9;
                    let ends = (!stays).then_some(RowChange::Delete(row));
                    [RowChange::Insert(row)].into_iter().chain(ends)
                });
                flow.source("rows", source(changes.collect(), true))
                    .key_rows(|_| 0)
                    .connect(partners)
                    .full_outer("pairs")
                    .sink("results", Kept(Arc::clone(&found[rank as usize])));
                flow.run()
            },
            &|running| assert!(entries(running, "pairs.first") <= 1),
        );
        let all: Vec<_> = super::rows::applied(&found);
        let expected: Vec<_> = (0..PARTNERS).map(|it| (Some(9), Some(it))).collect();
        assert_eq!(all, expected, "{ranks} ranks");
    });
}
