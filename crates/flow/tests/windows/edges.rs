//! Edge cases, one by one.

use millstream_base::Timestamp;
use millstream_flow::windows::{
    Arrival, Count, LocalPanes, Partial, Trigger, WindowStore, WindowTotals, Windows,
};

const START: Timestamp = Timestamp(i64::MIN);
const END: Timestamp = Timestamp(i64::MAX);

/// Start, end and number of items of each result.
fn advanced(store: &mut WindowStore<u8, ()>, watermark: Timestamp) -> Vec<(i64, i64, u64)> {
    let mut results = Vec::new();
    store.advance(&Count, watermark, &mut |result| {
        assert_eq!(result.value, result.events);
        results.push((result.start.0, result.end.0, result.value));
    });
    results
}

fn store_of(windows: Windows, times: &[i64]) -> WindowStore<u8, ()> {
    let mut store = WindowStore::new(windows, 10);
    for time in times {
        let arrival = store.add(&Count, &1, Timestamp(*time), &());
        assert_eq!(arrival, Arrival::OnTime);
    }
    store
}

#[test]
fn a_time_before_1970_is_in_the_window_that_starts_before_it() {
    let windows = Windows::tumbling(10);
    let pane = |time| {
        let pane = windows.pane_of(Timestamp(time));
        (pane.start.0, pane.end.0)
    };
    assert_eq!(pane(-1), (-10, 0));
    assert_eq!(pane(-10), (-10, 0));
    assert_eq!(pane(-11), (-20, -10));
    assert_eq!(pane(0), (0, 10));
}

#[test]
fn the_first_and_last_windows_are_bounded_by_the_range_of_timestamps() {
    let windows = Windows::tumbling(1_000);
    assert_eq!(windows.pane_of(START).start, START);
    assert_eq!(windows.pane_of(END).end, END);
    for windows in [
        windows,
        Windows::sliding(1_000, 500),
        Windows::sliding(i64::MAX, 1 << 62),
        Windows::sliding(i64::MAX, i64::MAX),
        Windows::session(i64::MAX),
        Windows::global(Trigger::every_ms(i64::MAX).purging()),
    ] {
        let mut store = store_of(windows, &[i64::MIN, -1, 0, i64::MAX]);
        let results = advanced(&mut store, END);
        assert!(results.iter().is_sorted_by_key(|result| result.1));
        assert_eq!(results.last().map(|result| result.1), Some(i64::MAX));
        assert_eq!(store.totals().open_events, 0);
        assert_eq!(store.totals().closed_events, 4);
        assert_eq!(store.add(&Count, &1, END, &()), Arrival::Late);
    }
}

#[test]
fn empty_windows_cost_nothing_when_the_watermark_jumps_far() {
    for windows in [
        Windows::sliding(10, 1),
        Windows::sliding(1, 1),
        Windows::tumbling(1),
    ] {
        let mut store = store_of(windows, &[i64::MIN, 0, 1 << 60]);
        let results = advanced(&mut store, Timestamp(i64::MAX - 1));
        assert!((3..=21).contains(&results.len()), "{results:?}");
        assert_eq!(store.totals().open_windows, 0);
    }
}

#[test]
fn the_slide_need_not_divide_the_size() {
    let mut store = store_of(Windows::sliding(10, 4), &[0, 9, 11]);
    let expected = [(-8, 2, 1), (-4, 6, 1), (0, 10, 2), (4, 14, 2), (8, 18, 2)];
    assert_eq!(advanced(&mut store, END), expected);
}

#[test]
fn items_of_a_session_are_less_than_the_gap_apart() {
    let mut store = store_of(Windows::session(10), &[0, 10, 19, 40]);
    assert_eq!(advanced(&mut store, Timestamp(9)), []);
    assert_eq!(advanced(&mut store, Timestamp(28)), [(0, 10, 1)]);
    assert_eq!(advanced(&mut store, END), [(10, 29, 2), (40, 50, 1)]);
}

#[test]
fn an_item_between_two_sessions_merges_them() {
    let mut store = store_of(Windows::session(10), &[0, 15, 30, 8, 24]);
    assert_eq!(advanced(&mut store, END), [(0, 40, 5)]);
    assert_eq!(store.keys(10), [1]);
}

#[test]
fn an_item_before_the_watermark_joins_an_open_session() {
    let mut store = store_of(Windows::session(10), &[0]);
    assert_eq!(advanced(&mut store, Timestamp(6)), []);
    assert_eq!(store.add(&Count, &1, Timestamp(-4), &()), Arrival::Late);
    assert_eq!(store.add(&Count, &1, Timestamp(-3), &()), Arrival::OnTime);
    assert_eq!(store.add(&Count, &1, Timestamp(5), &()), Arrival::OnTime);
    assert_eq!(advanced(&mut store, Timestamp(14)), []);
    assert_eq!(advanced(&mut store, Timestamp(15)), [(-3, 15, 3)]);
}

/// A session may be released before or after the item comes: the last results are the same.
#[test]
fn an_item_in_time_joins_a_released_session() {
    let mut store = store_of(Windows::session(10), &[0]);
    assert_eq!(advanced(&mut store, Timestamp(14)), [(0, 10, 1)]);
    assert_eq!(store.totals().kept_windows, 1);
    assert_eq!(store.add(&Count, &1, Timestamp(5), &()), Arrival::OnTime);
    let mut updates = Vec::new();
    store.advance(&Count, Timestamp(15), &mut |result| {
        updates.push((result.start.0, result.end.0, result.value, result.is_update));
    });
    assert_eq!(updates, [(0, 15, 2, true)]);
    assert_eq!(advanced(&mut store, Timestamp(25)), []);
    assert_eq!(store.totals().kept_windows, 0, "nothing joins it any more");
    assert_eq!(store.totals().closed_events, 2);
}

/// Start, end, number of items of each result, and whether it is an update.
fn given(store: &mut WindowStore<u8, ()>, watermark: i64) -> Vec<(i64, i64, u64, bool)> {
    let mut results = Vec::new();
    store.advance(&Count, Timestamp(watermark), &mut |result| {
        assert_eq!(result.value, result.events);
        results.push((result.start.0, result.end.0, result.value, result.is_update));
    });
    results
}

fn add(store: &mut WindowStore<u8, ()>, time: i64) -> Arrival {
    store.add(&Count, &1, Timestamp(time), &())
}

#[test]
fn an_item_of_sliding_windows_is_late_when_its_last_window_is_closed() {
    let mut store = store_of(Windows::sliding(30, 10), &[25]);
    assert_eq!(given(&mut store, 30), [(0, 30, 1, false)]);
    // First one of its windows is closed, then two.
    assert_eq!(add(&mut store, 2), Arrival::Late);
    assert_eq!(add(&mut store, 12), Arrival::OnTime);
    assert_eq!(given(&mut store, 40), [(10, 40, 2, false)]);
    assert_eq!(add(&mut store, 19), Arrival::Late);
    assert_eq!(add(&mut store, 21), Arrival::OnTime);
    assert_eq!(given(&mut store, 50), [(20, 50, 2, false)]);
    let totals = store.totals();
    assert_eq!((totals.late_events, totals.open_events), (2, 0));
}

#[test]
fn a_late_item_within_the_allowed_lateness_emits_the_window_again() {
    let windows = Windows::tumbling(10).allowed_lateness(5);
    let mut store = store_of(windows, &[1]);
    assert_eq!(given(&mut store, 10), [(0, 10, 1, false)]);
    assert_eq!(store.totals().kept_windows, 1);
    assert_eq!(add(&mut store, 2), Arrival::OnTime);
    assert_eq!(add(&mut store, 3), Arrival::OnTime);
    assert_eq!(given(&mut store, 10), [(0, 10, 3, true)], "once for both");
    assert_eq!(given(&mut store, 14), []);
    assert_eq!(add(&mut store, 4), Arrival::OnTime);
    assert_eq!(given(&mut store, 20), [(0, 10, 4, true)]);
    assert_eq!(add(&mut store, 5), Arrival::Late);
    // There was no result of this window: the late one is the first.
    assert_eq!(add(&mut store, 15), Arrival::OnTime);
    assert_eq!(given(&mut store, 20), [(10, 20, 1, false)]);
    assert_eq!(given(&mut store, 25), []);
    let totals = store.totals();
    assert_eq!((totals.kept_windows, totals.late_events), (0, 1));
    assert_eq!((totals.open_events, totals.closed_events), (0, 5));
}

#[test]
fn a_late_item_emits_each_of_its_sliding_windows_again() {
    let windows = Windows::sliding(20, 10).allowed_lateness(10);
    let mut store = store_of(windows, &[5, 15]);
    assert_eq!(
        given(&mut store, 20),
        [(-10, 10, 1, false), (0, 20, 2, false)]
    );
    // The window from -10 is closed.
    assert_eq!(add(&mut store, 6), Arrival::OnTime);
    assert_eq!(add(&mut store, 11), Arrival::OnTime);
    assert_eq!(given(&mut store, 20), [(0, 20, 4, true)]);
    assert_eq!(given(&mut store, 30), [(10, 30, 2, false)]);
    assert_eq!(add(&mut store, 7), Arrival::Late);
    assert_eq!(add(&mut store, 12), Arrival::OnTime);
    assert_eq!(given(&mut store, 40), [(10, 30, 3, true)]);
    assert_eq!(store.totals().kept_windows, 0);
}

#[test]
fn a_late_item_merges_two_released_sessions() {
    let windows = Windows::session(10).allowed_lateness(100);
    let mut store = store_of(windows, &[0, 15]);
    assert_eq!(
        given(&mut store, 30),
        [(0, 10, 1, false), (15, 25, 1, false)]
    );
    assert_eq!(add(&mut store, 7), Arrival::OnTime);
    assert_eq!(given(&mut store, 30), [(0, 25, 3, true)]);
    assert_eq!(add(&mut store, 40), Arrival::OnTime);
    assert_eq!(add(&mut store, 33), Arrival::OnTime);
    assert_eq!(given(&mut store, 49), []);
    assert_eq!(given(&mut store, 50), [(33, 50, 2, false)]);
    // 25 joins none of them, 26 would join the one from 33.
    assert_eq!(add(&mut store, 24), Arrival::OnTime);
    assert_eq!(given(&mut store, 50), [(0, 50, 6, true)]);
    assert_eq!(given(&mut store, 159), []);
    assert_eq!(store.totals().kept_windows, 1);
    assert_eq!(given(&mut store, 160), []);
    assert_eq!(store.totals().kept_windows, 0);
}

#[test]
fn an_update_of_an_older_window_does_not_make_it_the_newest() {
    let windows = Windows::tumbling(10).allowed_lateness(100);
    let mut store = store_of(windows, &[1, 11]);
    assert_eq!(given(&mut store, 20).len(), 2);
    assert_eq!(add(&mut store, 2), Arrival::OnTime);
    assert_eq!(given(&mut store, 20), [(0, 10, 2, true)]);
    let newest = store.newest(&Count, &1).unwrap();
    assert_eq!((newest.start.0, newest.value), (10, 1));
}

#[test]
fn a_negative_allowed_lateness_is_refused() {
    let windows = Windows::tumbling(10);
    assert!(std::panic::catch_unwind(|| windows.allowed_lateness(-1)).is_err());
    let forever = windows.allowed_lateness(i64::MAX);
    assert!(!forever.is_late(Timestamp(0), Timestamp(i64::MAX - 1)));
    assert!(forever.is_late(START, END));
}

#[test]
fn a_session_is_flushed_before_a_watermark_that_could_release_its_neighbours() {
    let mut local: LocalPanes<u8, ()> = LocalPanes::new(Windows::session(10));
    let arrival = local.add(&Count, 1, Timestamp(5), START, &());
    assert_eq!(arrival, Arrival::OnTime);
    let mut given = Vec::new();
    local.flush(Timestamp(5), &mut |partial| given.push(partial));
    assert_eq!(given, []);
    local.flush(Timestamp(6), &mut |partial| given.push(partial));
    assert_eq!(given.len(), 1);
    assert!(local.is_empty());
}

#[test]
fn a_count_trigger_emits_a_result_for_every_nth_item() {
    let windows = Windows::global(Trigger::every_events(2));
    let mut store = store_of(windows, &[5, 3, 9, 1, 7]);
    assert_eq!(store.totals().open_windows, 3);
    let results = advanced(&mut store, START);
    assert_eq!(results, [(i64::MIN, i64::MAX, 2), (i64::MIN, i64::MAX, 4)]);
    let mut rest = Vec::new();
    store.close_all(&Count, &mut |result| {
        rest.push((result.value, result.time_max.0))
    });
    assert_eq!(rest, [(5, 9)]);
}

#[test]
fn a_purging_count_trigger_starts_anew() {
    let windows = Windows::global(Trigger::every_events(2).purging());
    let mut store = store_of(windows, &[5, 3, 9, 1, 7]);
    let before = store.totals();
    assert_eq!((before.open_events, before.closed_events), (5, 0));
    let results = advanced(&mut store, START);
    assert_eq!(results, [(i64::MIN, i64::MAX, 2), (i64::MIN, i64::MAX, 2)]);
    let after = store.totals();
    assert_eq!((after.open_events, after.closed_events), (1, 4));
    let mut rest = Vec::new();
    store.close_all(&Count, &mut |result| rest.push(result.value));
    assert_eq!(rest, [1]);
    assert_eq!(store.totals().open_events, 0);
}

#[test]
fn items_of_count_triggers_are_not_preaggregated() {
    let mut local: LocalPanes<u8, ()> = LocalPanes::new(Windows::global(Trigger::every_events(2)));
    for time in [7, 3] {
        let arrival = local.add(&Count, 1, Timestamp(time), Timestamp(i64::MAX), &());
        assert_eq!(arrival, Arrival::OnTime);
    }
    let mut given = Vec::new();
    local.flush(START, &mut |partial| {
        given.push((partial.events, partial.time_max.0));
    });
    assert_eq!(given, [(1, 7), (1, 3)]);
    assert!(local.is_empty());
}

#[test]
fn impossible_windows_are_refused() {
    for make in [
        (|| Windows::tumbling(0)) as fn() -> Windows,
        || Windows::tumbling(-1),
        || Windows::sliding(0, 0),
        || Windows::sliding(10, 0),
        || Windows::sliding(10, 11),
        || Windows::session(0),
        || Windows::global(Trigger::every_events(0)),
        || Windows::global(Trigger::every_ms(0)),
    ] {
        assert!(std::panic::catch_unwind(make).is_err());
    }
    let sound = serde_json::to_string(&Windows::sliding(10, 5)).unwrap();
    assert!(serde_json::from_str::<Windows>(&sound).is_ok());
    let unsound = sound.replace("10", "1");
    assert!(serde_json::from_str::<Windows>(&unsound).is_err());
}

#[test]
fn the_newest_window_of_a_key_is_the_last_with_items_open_or_released() {
    for windows in [
        Windows::tumbling(10),
        Windows::sliding(20, 10),
        Windows::session(5),
    ] {
        let mut store = store_of(windows, &[1, 12, 13]);
        let newest = |store: &WindowStore<u8, ()>| {
            let newest = store.newest(&Count, &1).unwrap();
            (newest.events, newest.time_max.0)
        };
        assert_eq!(newest(&store), (2, 13));
        assert_eq!(store.newest(&Count, &2), None);
        advanced(&mut store, Timestamp(15));
        assert_eq!(newest(&store), (2, 13));
        advanced(&mut store, Timestamp(100));
        assert_eq!(newest(&store), (2, 13));
        assert_eq!(store.keys(10), [1]);
        assert!(store.keys(0).is_empty());
        assert_eq!(store.add(&Count, &1, Timestamp(101), &()), Arrival::OnTime);
        assert_eq!(newest(&store), (1, 101));
    }
}

#[test]
fn the_newest_sliding_window_leaves_out_items_of_older_ones() {
    let mut store = store_of(Windows::sliding(30, 10), &[1, 11, 21, 22]);
    // The panes from 0 and 10 are in windows that are released next, and not in the newest.
    advanced(&mut store, Timestamp(20));
    let newest = store.newest(&Count, &1).unwrap();
    assert_eq!((newest.start.0, newest.end.0, newest.value), (20, 50, 2));
    advanced(&mut store, Timestamp(40));
    let newest = store.newest(&Count, &1).unwrap();
    assert_eq!((newest.start.0, newest.end.0, newest.value), (20, 50, 2));
}

#[test]
fn the_number_of_remembered_keys_is_bounded() {
    for remembered in [0, 1, 2, 5, 100] {
        let mut store: WindowStore<u32, ()> = WindowStore::new(Windows::tumbling(10), remembered);
        for key in 0..1_000 {
            let time = Timestamp(i64::from(key) * 10);
            assert_eq!(store.add(&Count, &key, time, &()), Arrival::OnTime);
            store.advance(&Count, Timestamp(time.0 + 10), &mut |_| {});
        }
        let keys = store.keys(usize::MAX);
        assert!(
            keys.len() <= remembered.next_multiple_of(2),
            "{}",
            keys.len()
        );
        assert!(keys.len() >= remembered / 2, "{}", keys.len());
        assert_eq!(keys.contains(&999), remembered > 0);
    }
}

#[test]
fn keys_without_panes_are_forgotten() {
    let mut store: WindowStore<u32, ()> = WindowStore::new(Windows::sliding(100, 10), 0);
    for key in 0..10_000 {
        let time = Timestamp(i64::from(key));
        assert_eq!(store.add(&Count, &key, time, &()), Arrival::OnTime);
        store.advance(&Count, time, &mut |_| {});
        assert!(store.totals().open_windows <= 120);
        assert!(store.keys(usize::MAX).len() <= 120);
    }
    let totals = store.totals();
    assert_eq!(totals.open_events + totals.closed_events, 10_000);
}

#[test]
fn a_contradictory_partial_aggregate_does_not_panic() {
    for windows in [
        Windows::tumbling(10),
        Windows::sliding(20, 10),
        Windows::session(5),
        Windows::global(Trigger::every_ms(10)),
        Windows::global(Trigger::every_events(3)),
    ] {
        let mut store: WindowStore<u8, ()> = WindowStore::new(windows, 10);
        for (pane, time_max) in [(END, START), (START, END), (Timestamp(3), Timestamp(-3))] {
            let partial = Partial {
                key: 1,
                pane,
                skipped_windows: 0,
                state: (),
                events: u64::MAX,
                time_max,
            };
            let _ = store.merge(&Count, partial);
        }
        store.close_all(&Count, &mut |_| {});
        assert_eq!(store.totals().open_windows, 0);
    }
}

#[test]
fn totals_count_every_item_once() {
    let mut store = store_of(Windows::sliding(30, 10), &[1, 2, 11, 45]);
    advanced(&mut store, Timestamp(20));
    assert_eq!(store.add(&Count, &1, Timestamp(-1), &()), Arrival::Late);
    let totals = store.totals();
    assert_eq!(
        totals,
        WindowTotals {
            open_windows: 3,
            open_events: 4,
            kept_windows: 0,
            closed_windows: 2,
            closed_events: 0,
            late_events: 1,
        }
    );
    advanced(&mut store, Timestamp(40));
    let totals = store.totals();
    assert_eq!((totals.open_events, totals.closed_events), (1, 3));
}

#[test]
fn the_newest_result_of_a_purging_trigger_is_of_its_period_alone() {
    let trigger = Trigger::every_ms(10);
    let newest = |trigger| {
        let store = store_of(Windows::global(trigger), &[1, 12, 13]);
        store.newest(&Count, &1).map(|newest| newest.value)
    };
    assert_eq!(newest(trigger), Some(3));
    assert_eq!(newest(trigger.purging()), Some(2));
}

#[test]
fn a_partition_that_was_ahead_does_not_hide_windows_of_one_that_was_behind() {
    let windows = Windows::sliding(30, 10);
    let mut ahead = store_of(windows, &[100, 119]);
    assert_eq!(
        advanced(&mut ahead, Timestamp(120)),
        [(80, 110, 1), (90, 120, 2)]
    );
    ahead.absorb(WindowStore::new(windows, 10));
    // Another key's item, for which the least watermark of both is early enough.
    assert_eq!(ahead.add(&Count, &2, Timestamp(5), &()), Arrival::OnTime);
    let of_behind = [(-20, 10, 1), (-10, 20, 1), (0, 30, 1)];
    assert_eq!(advanced(&mut ahead, Timestamp(90)), of_behind);
    assert_eq!(advanced(&mut ahead, Timestamp(130)), [(100, 130, 2)]);
    assert_eq!(advanced(&mut ahead, END), [(110, 140, 1)]);
}

#[test]
#[should_panic(expected = "a key of windows is in two partitions")]
fn a_key_is_in_one_partition_only() {
    let windows = Windows::sliding(30, 10);
    store_of(windows, &[1]).absorb(store_of(windows, &[2]));
}

#[test]
fn a_snapshot_of_impossible_windows_is_refused() {
    let snapshot = serde_json::to_string(&store_of(Windows::sliding(30, 10), &[1])).unwrap();
    assert!(serde_json::from_str::<WindowStore<u8, ()>>(&snapshot).is_ok());
    for (sound, unsound) in [("[30,10]", "[30,0]"), ("[30,10]", "[10,30]")] {
        assert!(snapshot.contains(sound));
        let snapshot = snapshot.replace(sound, unsound);
        assert!(serde_json::from_str::<WindowStore<u8, ()>>(&snapshot).is_err());
    }
}
