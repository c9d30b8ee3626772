//! Joins of change streams by key, against nested loops over the rows that the changes leave.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use millstream_exchange::Ranks;
use millstream_flow::changes::RowSet;
use millstream_flow::{Flow, FlowError, FlowSettings, Order, RowChange, Running};

use super::{Results, SHAPES, count, entries, results, source, with_deaths};
use crate::changelogs::lifetimes::WallClock;
use crate::changes::Kept;
use crate::changes::model::{Row, random_changes};
use crate::support::{Collect, Hand, on_ranks, settings, wait_until};

/// Half of all rows have one key.
fn key(row: &Row) -> u64 {
    if row.id.is_multiple_of(2) {
        0
    } else {
        row.group
    }
}

/// A result of an outer join.
type Pair = (Option<Row>, Option<Row>);

/// The sources of one side.
type Sources = Vec<Vec<RowChange<Row>>>;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Inner,
    Left,
    Right,
    Full,
}

const KINDS: [Kind; 4] = [Kind::Inner, Kind::Left, Kind::Right, Kind::Full];

/// The rows that some changes leave, and the number of retractions that match none.
fn rows(sources: &Sources) -> (Vec<Row>, u64) {
    let mut weights: BTreeMap<Row, i64> = BTreeMap::new();
    for change in sources.iter().flatten() {
        *weights.entry(*change.row()).or_default() += change.weight();
    }
    let mut rows = Vec::new();
    let mut unmatched = 0;
    for (row, weight) in weights {
        rows.extend((0..weight).map(|_| row));
        // These rows are never inserted.
        unmatched += (-weight).max(0) as u64;
    }
    (rows, unmatched)
}

/// Nested loops. Returns the results, and the number of retractions that match no row.
fn model(kind: Kind, sides: &[Sources; 2]) -> (Vec<Pair>, u64) {
    let ((firsts, first_unmatched), (seconds, second_unmatched)) =
        (rows(&sides[0]), rows(&sides[1]));
    let mut pairs = Vec::new();
    for first in &firsts {
        let partners = seconds.iter().filter(|second| key(first) == key(second));
        let before = pairs.len();
        pairs.extend(partners.map(|second| (Some(*first), Some(*second))));
        if pairs.len() == before && matches!(kind, Kind::Left | Kind::Full) {
            pairs.push((Some(*first), None));
        }
    }
    for second in &seconds {
        let has_partner = firsts.iter().any(|first| key(first) == key(second));
        if !has_partner && matches!(kind, Kind::Right | Kind::Full) {
            pairs.push((None, Some(*second)));
        }
    }
    pairs.sort_unstable();
    (pairs, first_unmatched + second_unmatched)
}

/// The rows of a result, each as often as it is present, in order. Changes that cannot be applied fail.
pub fn applied<T: Ord + Copy + std::fmt::Debug>(results: &Results<RowChange<T>>) -> Vec<T> {
    let mut all = Vec::new();
    for of_rank in results {
        let mut rows = RowSet::default();
        for change in of_rank.lock().unwrap().iter() {
            rows.apply(*change).unwrap();
        }
        for (row, times) in rows.iter() {
            all.extend((0..times).map(|_| *row));
        }
    }
    all.sort_unstable();
    all
}

/// The sources of both sides on all ranks.
fn random_sides(seed: u64, sources: u64, count: usize) -> [Sources; 2] {
    [0, 1].map(|side| {
        let numbers = 0..sources;
        numbers
            .map(|number| random_changes(seed * 2 + side, number, count))
            .collect()
    })
}

/// Starts the join of the sources of a rank: each rank has as many.
fn start(
    settings: FlowSettings,
    kind: Kind,
    sides: &[Sources; 2],
    is_slow: bool,
    results: &Results<RowChange<Pair>>,
) -> Result<Running, FlowError> {
    let (rank, ranks) = (
        settings.ranks.rank() as usize,
        settings.ranks.count() as usize,
    );
    let flow = Flow::with_settings("joined", settings);
    let sources = |side: usize| {
        let own = sides[side].iter().skip(rank).step_by(ranks);
        own.map(|changes| source(changes.clone(), is_slow))
            .collect::<Vec<_>>()
    };
    let seconds = flow.sources("seconds", sources(1)).key_rows(key);
    let join = flow
        .sources("firsts", sources(0))
        .key_rows(key)
        .connect(seconds);
    let sink = Kept(Arc::clone(&results[rank]));
    match kind {
        Kind::Inner => join
            .inner("pairs")
            .map(|change| change.map(|(first, second)| (Some(first), Some(second))))
            .sink("results", sink),
        Kind::Left => join
            .left_outer("pairs")
            .map(|change| change.map(|(first, second)| (Some(first), second)))
            .sink("results", sink),
        Kind::Right => join
            .right_outer("pairs")
            .map(|change| change.map(|(first, second)| (first, Some(second))))
            .sink("results", sink),
        Kind::Full => join.full_outer("pairs").sink("results", sink),
    };
    flow.run()
}

#[test]
fn the_changes_of_each_prefix_of_the_input_give_the_join_of_the_rows() {
    for kind in KINDS {
        let sides = random_sides(1, 1, 40);
        for end in 0..=40 {
            let prefix = sides.clone().map(|mut sources| {
                sources[0].truncate(end);
                sources
            });
            let found = results(1);
            let running = start(settings(1, 16), kind, &prefix, false, &found).unwrap();
            running.join().unwrap();
            let (expected, unmatched) = model(kind, &prefix);
            assert_eq!(applied(&found), expected, "{kind:?} after {end} changes");
            assert_eq!(count(&running, "pairs.unmatched"), unmatched);
        }
    }
}

#[test]
fn joins_on_any_number_of_ranks_workers_and_sources_are_those_of_nested_loops() {
    for kind in KINDS {
        for (ranks, workers, sources, ring) in SHAPES {
            let all = sources * u64::from(ranks);
            let sides = random_sides(7, all, 600 / all as usize);
            let found = results(ranks);
            let unmatched = on_ranks(ranks, |ranks: &Ranks| {
                let settings = FlowSettings {
                    ranks: ranks.clone(),
                    ..settings(workers, ring)
                };
                let running = start(settings, kind, &sides, false, &found).unwrap();
                running.join().unwrap();
                count(&running, "pairs.unmatched")
            });
            let (expected, expected_unmatched) = model(kind, &sides);
            assert!(expected_unmatched > 0);
            assert_eq!(applied(&found), expected, "{kind:?} on {ranks} ranks");
            assert_eq!(unmatched.iter().sum::<u64>(), expected_unmatched);
        }
    }
}

#[test]
fn joins_whose_flows_die_and_resume_give_exact_changes() {
    with_deaths(|ranks, run| {
        let sides = random_sides(3, 2 * u64::from(ranks), 200);
        let found = results(ranks);
        let unmatched = Mutex::new(0);
        run(
            &|settings| start(settings, Kind::Full, &sides, true, &found),
            &|running| *unmatched.lock().unwrap() += count(running, "pairs.unmatched"),
        );
        let (expected, expected_unmatched) = model(Kind::Full, &sides);
        assert_eq!(applied(&found), expected, "{ranks} ranks");
        assert_eq!(unmatched.into_inner().unwrap(), expected_unmatched);
    });
}

#[test]
fn joins_in_a_row_join_three_streams() {
    for workers in [1, 3] {
        let [a, b, c] = [11, 12, 13].map(|seed| random_changes(seed, 0, 300));
        let found = results(1);
        let flow = Flow::with_settings("three", settings(workers, 16));
        let rows_of = |name: &str, changes: &[RowChange<Row>]| {
            flow.source(name, source(changes.to_vec(), false))
        };
        let of_b = rows_of("b", &b).key_rows(|row| row.group);
        let of_c = rows_of("c", &c).key_rows(|row| row.score);
        rows_of("a", &a)
            .key_rows(|row| row.group)
            .connect(of_b)
            .inner("two")
            .key_rows(|(_, b)| b.score)
            .connect(of_c)
            .left_outer("three")
            .sink("results", Kept(Arc::clone(&found[0])));
        flow.run().unwrap().join().unwrap();
        let [(a, _), (b, _), (c, _)] = [a, b, c].map(|changes| rows(&vec![changes]));
        let mut expected = Vec::new();
        for a in &a {
            for b in b.iter().filter(|b| b.group == a.group) {
                let before = expected.len();
                let of_c = c.iter().filter(|c| c.score == b.score);
                expected.extend(of_c.map(|c| ((*a, *b), Some(*c))));
                if expected.len() == before {
                    expected.push(((*a, *b), None));
                }
            }
        }
        expected.sort_unstable();
        assert!(!expected.is_empty());
        assert_eq!(applied(&found), expected);
    }
}

#[test]
fn a_row_alone_is_taken_back_when_its_first_partner_comes_and_comes_again_when_the_last_goes() {
    let flow = Flow::with_settings("orders", settings(1, 16));
    let [orders, payments] = [(); 2].map(|()| Hand::default());
    let (sink, changes) = Collect::new();
    // Even numbers insert a row, odd ones delete it.
    let change = |number: &u64| match number % 2 {
        0 => RowChange::Insert(number / 2),
        _ => RowChange::Delete(number / 2),
    };
    let seconds = flow
        .source("payments", payments.clone())
        .map(change)
        .key_rows(|_| 0);
    flow.source("orders", orders.clone())
        .map(change)
        .key_rows(|_| 0)
        .connect(seconds)
        .left_outer("pairs")
        .sink("results", sink);
    let running = flow.run().unwrap();
    let mut expected = Vec::new();
    let mut step = |hand: &Hand, number: u64, more: &[RowChange<(u64, Option<u64>)>]| {
        hand.give([number]);
        expected.extend_from_slice(more);
        wait_until("changes come", || {
            changes.lock().unwrap().len() == expected.len()
        });
        assert_eq!(*changes.lock().unwrap(), expected);
    };
    use RowChange::{Delete, Insert};
    step(&orders, 2, &[Insert((1, None))]);
    // The same row a second time.
    step(&orders, 2, &[Insert((1, None))]);
    let comes = [
        Delete((1, None)),
        Delete((1, None)),
        Insert((1, Some(5))),
        Insert((1, Some(5))),
    ];
    step(&payments, 10, &comes);
    step(&payments, 12, &[Insert((1, Some(6))), Insert((1, Some(6)))]);
    step(&payments, 11, &[Delete((1, Some(5))), Delete((1, Some(5)))]);
    step(&orders, 3, &[Delete((1, Some(6)))]);
    step(&payments, 13, &[Delete((1, Some(6))), Insert((1, None))]);
    // A payment that is not there.
    payments.give([13]);
    step(&orders, 3, &[Delete((1, None))]);
    orders.end();
    payments.end();
    running.join().unwrap();
    assert_eq!(count(&running, "pairs.unmatched"), 1);
    assert_eq!(
        entries(&running, "pairs.first") + entries(&running, "pairs.second"),
        0
    );
}

/// A clock goes on while rows come and go. A result that is taken back was always emitted, also where its rows or their partners
/// have ended.
#[test]
fn a_join_with_a_lifetime_forgets_rows_and_takes_back_only_results_that_were_emitted() {
    for (seed, kind) in [(1, 0), (2, 1), (3, 2), (4, 2)] {
        let clock = Arc::new(WallClock::default());
        let settings = FlowSettings {
            clock: Arc::clone(&clock) as _,
            ..settings(2, 16)
        };
        let flow = Flow::with_settings("orders", settings);
        let sides = [(); 2].map(|()| Hand::default());
        let (sink, changes) = Collect::new();
        let change = |number: &u64| match number % 2 {
            0 => RowChange::Insert(number / 2),
            _ => RowChange::Delete(number / 2),
        };
        let seconds = flow
            .source("seconds", sides[1].clone())
            .map(change)
            .key_rows(|row| row % 3);
        let join = flow
            .source("firsts", sides[0].clone())
            .map(change)
            .key_rows(|row| row % 3)
            .connect(seconds)
            .lifetime(Duration::from_secs(100));
        match kind {
            0 => join
                .inner("pairs")
                .map(|change| change.map(|(first, second)| (Some(first), Some(second))))
                .sink("results", sink),
            1 => join
                .left_outer("pairs")
                .map(|change| change.map(|(first, second)| (Some(first), second)))
                .sink("results", sink),
            _ => join.full_outer("pairs").sink("results", sink),
        };
        let running = flow.run().unwrap();
        let mut rng = Rng::with_seed(seed);
        for _ in 0..60 {
            for hand in &sides {
                hand.give((0..20).map(|_| rng.u64(..24)));
            }
            std::thread::sleep(Duration::from_millis(2));
            clock.advance(rng.i64(0..60));
        }
        // Each key has a row that both sides have last.
        let last = [600_000, 600_001, 600_002];
        for hand in &sides {
            hand.give(last.map(|row| 2 * row));
        }
        wait_until("all rows have come", || {
            assert!(!running.is_finished(), "the flow has failed");
            let changes = changes.lock().unwrap();
            let has = |row| changes.contains(&RowChange::Insert((Some(row), Some(row))));
            last.into_iter().all(has)
        });
        clock.advance(1_000);
        // Nothing is remembered, so this row has no partner.
        sides[0].give([1_000_000]);
        sides.iter().for_each(Hand::end);
        running.join().unwrap();
        let mut rows = RowSet::default();
        for change in changes.lock().unwrap().iter() {
            rows.apply(*change).unwrap();
        }
        assert!(!rows.is_empty());
        let is_alone = rows.iter().any(|(row, _)| *row == (Some(500_000), None));
        assert_eq!(is_alone, kind > 0);
    }
}

#[test]
fn joins_of_changes_are_refused_where_items_overtake_each_other() {
    let settings = FlowSettings {
        order: Order::Free,
        ..settings(2, 16)
    };
    let flow = Flow::with_settings("rows", settings);
    let numbers = |name: &str| {
        flow.source(name, Hand::default())
            .key_by(|it| *it)
            .inserts()
    };
    let results = numbers("first").connect(numbers("second")).inner("pairs");
    let _ = results.fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    let error = flow.run().map(drop).unwrap_err();
    assert!(
        matches!(error, FlowError::ChangesWithoutOrder { .. }),
        "{error}"
    );
}
