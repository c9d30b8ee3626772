//! Change streams that cannot be.

use std::collections::BTreeMap;

use millstream_flow::changes::{RankedRow, RowPlace, RowSet, top_rows};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, RetractableMin};
use millstream_flow::{Element, Flow, FlowSettings, Lockable, Order, RowChange};

use super::model::{Answer, GROUPS, Row, random_changes};
use crate::support::{Collect, settings};

#[test]
fn operators_of_changes_are_refused_where_items_overtake_each_other() {
    let settings = FlowSettings {
        order: Order::Free,
        ..settings(2, 16)
    };
    let (sink, _) = Collect::new();
    let flow = Flow::with_settings("numbers", settings);
    flow.source("numbers", Generator::new(|number| number).limit(1))
        .key_by(|number| *number)
        .running("counts", Count)
        .sink("changes", sink);
    let error = flow.run().map(drop).unwrap_err().to_string();
    let expected = "flow \"numbers\": \"counts\" emits changes of rows, and their order counts, which needs Order::Kept";
    assert_eq!(error, expected);
}

#[test]
fn a_retraction_of_a_value_that_a_key_does_not_have_changes_nothing() {
    let (sink, changes) = Collect::new();
    let flow = Flow::with_settings("numbers", settings(1, 16));
    let input = [
        RowChange::Insert(5),
        RowChange::Delete(4),
        RowChange::Delete(5),
        RowChange::Delete(5),
    ];
    flow.source(
        "changes",
        Generator::new(move |number| input[number as usize]).limit(4),
    )
    .key_rows(|_| 1)
    .running("least", (Count, RetractableMin::of(|number: &i64| *number)))
    .sink("results", sink);
    let running = flow.run().unwrap();
    running.join().unwrap();
    let row = (1, (1, Some(5)));
    let expected = [RowChange::Insert(row), RowChange::Delete(row)];
    assert_eq!(*changes.lock().unwrap(), expected);
    let unmatched = running.state("least.unmatched").unwrap();
    assert_eq!(unmatched.get("count").unwrap(), 2);
}

#[test]
fn a_top_whose_size_has_changed_is_exact_after_a_change_of_each_key() {
    let changes = random_changes(5, 0, 900);
    let flow = Flow::with_settings("rows", settings(1, 16));
    let rows = flow.ordered_maps::<u64, RowPlace, RankedRow<Row>>("rows");
    let mut found = RowSet::default();
    for (end, top) in [(300, 5), (600, 2), (900, 0), (900, 4)] {
        let step = top_rows(top, |row: &Row| row.score);
        let apply = |change: &RowChange<Row>, found: &mut RowSet<Row>| {
            let partition = rows.partition(0);
            let group = change.row().group;
            let changed = rows.change(&mut partition.lock_all(), &group, |mut rows| {
                step.apply(&mut rows, change.as_ref(), None, &mut |change| {
                    found.apply(*change).unwrap();
                });
            });
            changed.expect("all rows are in memory");
        };
        let begin = if end == 900 { 600 } else { end - 300 };
        // The last size meets no changes but one that is taken back at once.
        let is_last = top == 4;
        for change in changes[begin..end].iter().filter(|_| !is_last) {
            apply(change, &mut found);
        }
        for group in (0..GROUPS).filter(|_| is_last) {
            let (id, score) = (0, -100);
            let row = Row { group, id, score };
            apply(&RowChange::Insert(row), &mut found);
            apply(&RowChange::Delete(row), &mut found);
        }
        let (expected, _) = Answer::with_top(top, [&changes[..end].to_vec()]);
        let found: BTreeMap<_, _> = found.iter().map(|(row, times)| (*row, times)).collect();
        assert_eq!(expected.top, found, "of {top} rows");
    }
}
