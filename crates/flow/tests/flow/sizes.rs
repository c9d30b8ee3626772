//! The sizes of state elements, as a flow shows them.

use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::windows::{Count, Trigger, Windows, fold};
use millstream_flow::{ElementStorage, Flow, StateElement, Watermarks};

use crate::support::{Hand, settings, wait_until};

const KEYS: u64 = 1_000;

fn element(
    name: &str,
    kind: &str,
    entries: Option<u64>,
    memory_bytes: Option<u64>,
) -> StateElement {
    StateElement {
        name: name.to_owned(),
        kind: kind.to_owned(),
        entries,
        memory_bytes,
        stored: ElementStorage::Nowhere,
    }
}

/// The memory that a thousand entries may be shown with: a table has up to four places for each entry.
#[track_caller]
fn check(found: &StateElement, kind: &str, bytes_min: u64) {
    let bytes = found.memory_bytes.unwrap_or_default();
    assert!((bytes_min..8 * bytes_min).contains(&bytes), "{found:?}");
    let expected = element(&found.name, kind, Some(KEYS), Some(bytes));
    assert_eq!(*found, expected);
}

#[test]
fn elements_show_their_entries_and_the_memory_of_their_keys_and_values() {
    let hand = Hand::default();
    let flow = Flow::with_settings("sized", settings(2, 64));
    let numbers = flow.values::<u64, u64>("numbers");
    let texts = flow.values::<String, String>("texts");
    let sum = flow.partial::<u64>("sum");
    let channels = ["numbers", "texts", "sum"].map(|name| flow.channel::<u64>(name));
    flow.source("source", hand.clone()).to_all(&channels);
    flow.stage("of numbers", &channels[0])
        .key_by(|number| *number)
        .count("count", &numbers);
    flow.stage("of texts", &channels[1])
        .key_by(|number| format!("key {number:096}"))
        .update(
            "text",
            &texts,
            |_, text, _, _: &mut millstream_flow::Emit<'_, u64>| {
                *text = Some("x".repeat(200));
            },
        )
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    flow.stage("of the sum", &channels[2])
        .fold_local(&sum, |sum, number| *sum += number);
    let running = flow.run().unwrap();
    hand.give(0..KEYS);
    let all = || running.elements();
    let entries = || all().iter().filter_map(|it| it.entries).collect::<Vec<_>>();
    wait_until("all keys", || entries()[..2] == [KEYS; 2]);
    let elements = all();
    // A key, its value, and where it was changed.
    check(&elements[0], "values", KEYS * 24);
    check(&elements[1], "values", KEYS * (100 + 200));
    let names: Vec<&str> = elements.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["numbers", "texts", "sum", "nothing"]);
    let parts = elements[2].entries.unwrap();
    assert_eq!(
        elements[2],
        element("sum", "partial", Some(parts), Some(8 * parts))
    );
    hand.end();
    running.join().unwrap();
}

#[test]
fn windows_of_each_kind_show_their_keys_and_memory() {
    let kinds = [
        Windows::tumbling(1_000),
        Windows::sliding(1_000, 500),
        Windows::session(1_000),
        Windows::global(Trigger::every_ms(1_000)),
        Windows::global(Trigger::every_events(1_000_000)),
    ];
    for windows in kinds {
        let hand = Hand::default();
        let flow = Flow::with_settings("sized", settings(2, 64));
        let count = flow.windowed("count", windows, Count);
        let texts = fold(
            String::new,
            |text: &mut String, _: &u64| *text = "x".repeat(200),
            |text, other| text.clone_from(other),
        );
        let texts = flow.windowed("texts", windows, texts);
        let channels = ["count", "texts"].map(|name| flow.channel::<u64>(name));
        let time = |_: &u64| Timestamp(100);
        flow.source("source", hand.clone())
            .watermarks(time, Watermarks::bounded(Duration::ZERO))
            .to_all(&channels);
        let nothing = flow.partial::<u64>("nothing");
        flow.stage("of count", &channels[0])
            .key_by(|number| *number)
            .aggregate("count", &count, time)
            .fold_local(&nothing, |_, _| ());
        flow.stage("of texts", &channels[1])
            .key_by(|number| *number)
            .aggregate("texts", &texts, time)
            .fold_local(&nothing, |_, _| ());
        let running = flow.run().unwrap();
        hand.give(0..KEYS);
        let all = || running.elements();
        wait_until("all windows", || {
            let entries = all().into_iter().filter_map(|it| it.entries);
            entries.take(2).eq([KEYS; 2])
        });
        let elements = all();
        check(&elements[0], "windows", KEYS * 32);
        check(&elements[1], "windows", KEYS * (32 + 200));
        hand.end();
        running.join().unwrap();
    }
}
