//! Items that consist of parts, and dead letters of parts that cannot be processed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{Offset, Timestamp};
use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, DeadLetter, DeadLetters, Emit, Flatten, Flow, FlowError, Origin, Parts,
};

use crate::support::{Collect, Letters, settings};

const PARTS: u64 = 100;

/// An item whose parts are this many numbers, counted from 1.
#[derive(Debug, Clone)]
struct Numbers(u64);

impl Parts for Numbers {
    type Part<'a> = u64;

    fn for_each_part(&self, mut visit: impl FnMut(&u64)) {
        (self.0..self.0 + PARTS).for_each(|number| visit(&number));
    }
}

/// The results of a flow whose operator `each` is `function`, and its dead letters.
fn flow_of(
    items: u64,
    function: impl Fn(&u64, &mut Emit<u64>) -> Result<(), BoxError> + Send + Sync + 'static,
) -> (Vec<u64>, Vec<DeadLetter>) {
    let letters = Arc::new(Letters::default());
    let mut settings = settings(2, 8);
    settings.dead_letters = Some(Arc::clone(&letters) as Arc<dyn DeadLetters>);
    let (sink, collected) = Collect::new();
    let flow = Flow::with_settings("parts", settings);
    let numbers = Generator::new(|item| Numbers(item * PARTS)).limit(items);
    flow.source("numbers", numbers)
        .each(function)
        .boundary("pass")
        .sink("collect", sink);
    flow.run().unwrap().join().unwrap();
    let collected = collected.lock().unwrap().clone();
    let letters = letters.0.lock().unwrap().clone();
    (collected, letters)
}

fn letter(item: &str, error: &str) -> DeadLetter {
    DeadLetter {
        origin: None,
        operator: "numbers/1.each".into(),
        item: item.to_owned(),
        error: error.to_owned(),
    }
}

#[test]
fn only_a_part_that_panics_twice_becomes_a_dead_letter() {
    let (collected, letters) = flow_of(50, |number, emit| {
        emit(&(2 * number));
        assert!(number % 1000 != 13, "unlucky {number}");
        emit(&(2 * number + 1));
        Ok(())
    });
    let lost = |number: &u64| number % 2000 == 27;
    assert!(collected.into_iter().eq((0..10_000).filter(|n| !lost(n))));
    let expected: Vec<_> = (0..5)
        .map(|n| 1000 * n + 13)
        .map(|number| letter(&number.to_string(), &format!("unlucky {number}")))
        .collect();
    assert_eq!(letters, expected);
}

#[test]
fn a_part_that_panics_once_is_processed_on_the_second_try() {
    let panics = AtomicU64::new(0);
    let (collected, letters) = flow_of(50, move |number, emit| {
        if number % 1000 == 13 && panics.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            panic!("unlucky");
        }
        emit(number);
        Ok(())
    });
    assert!(collected.into_iter().eq(0..5000));
    assert_eq!(letters, []);
}

#[test]
fn a_part_for_which_an_operator_returns_an_error_is_not_retried() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let (collected, letters) = flow_of(50, move |number, emit| {
        counted.fetch_add(1, Ordering::Relaxed);
        if number % 2500 == 99 {
            return Err("unlucky".into());
        }
        emit(number);
        Ok(())
    });
    assert!(
        collected
            .into_iter()
            .eq((0..5000).filter(|number| number % 2500 != 99))
    );
    let expected = ["99", "2599"].map(|item| letter(item, "unlucky"));
    assert_eq!(letters, expected);
    assert_eq!(calls.load(Ordering::Relaxed), 5000);
}

/// Numbers that are records of a stream.
#[derive(Debug, Clone)]
struct Records(Numbers);

fn record(number: u64) -> Origin {
    Origin {
        stream: "numbers".to_owned(),
        partition: 3,
        offset: Offset(number),
        timestamp: Timestamp(5),
        key: None,
        value: Some(number.to_string().into_bytes()),
        headers: Vec::new(),
    }
}

impl Parts for Records {
    type Part<'a> = u64;

    fn for_each_part(&self, visit: impl FnMut(&u64)) {
        self.0.for_each_part(visit);
    }

    fn origin(&self, part: &u64) -> Option<Origin> {
        Some(record(*part))
    }
}

#[test]
fn a_dead_letter_names_the_record_of_its_item() {
    let letters = Arc::new(Letters::default());
    let mut settings = settings(2, 8);
    settings.dead_letters = Some(Arc::clone(&letters) as Arc<dyn DeadLetters>);
    let (sink, collected) = Collect::new();
    let flow = Flow::with_settings("parts", settings);
    let source = Generator::new(|item| Records(Numbers(item * PARTS))).limit(3);
    flow.source("numbers", source)
        .each(|number, emit: &mut Emit<u64>| {
            assert!(*number != 110, "each");
            if *number == 20 {
                return Err("error".into());
            }
            emit(&(2 * number));
            Ok(())
        })
        .map(|double| {
            assert!(*double != 2 * 130, "map");
            *double
        })
        .boundary("pass")
        .map(|double| {
            assert!(*double != 2 * 140, "behind the ring");
            *double
        })
        .sink("collect", sink);
    flow.run().unwrap().join().unwrap();
    assert_eq!(collected.lock().unwrap().len(), 3 * PARTS as usize - 4);
    let letters = letters.0.lock().unwrap();
    let mut found: Vec<_> = letters
        .iter()
        .map(|letter| (letter.error.as_str(), letter.origin.as_deref().cloned()))
        .collect();
    found.sort_by_key(|(error, _)| *error);
    for letter in &*letters {
        // The value of the record, where the flow knows it; otherwise the argument.
        let item = match letter.error.as_str() {
            "behind the ring" => "280",
            "each" => "110",
            "error" => "20",
            _ => "130",
        };
        assert_eq!(letter.item, item, "{}", letter.error);
    }
    let expected = [
        ("behind the ring", None),
        ("each", Some(record(110))),
        ("error", Some(record(20))),
        ("map", Some(record(130))),
    ];
    assert_eq!(found, expected);
}

#[test]
fn without_dead_letters_an_error_fails_the_flow() {
    let flow = Flow::with_settings("parts", settings(2, 8));
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", Generator::new(Numbers))
        .each(|_, _: &mut Emit<u64>| Err("no good".into()))
        .fold_local(&sum, |sum, number| *sum += number);
    let error = flow.run().unwrap().join().unwrap_err();
    assert!(matches!(error, FlowError::Operator { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "flow \"parts\": \"numbers/1.each\" failed: no good; it was given 0"
    );
}

/// Numbers in memory.
#[derive(Debug, Clone)]
struct Held(Vec<u64>);

impl Flatten for Held {
    type Item = u64;

    fn for_each_item<'a>(&'a self, visit: impl FnMut(&'a u64)) {
        self.0.iter().for_each(visit);
    }
}

/// The parts of `items` that `keep` lets pass, and the dead letters.
fn kept_of(
    items: &[Vec<u64>],
    keep: impl Fn(&u64) -> bool + Send + Sync + 'static,
) -> (Vec<u64>, Vec<DeadLetter>) {
    let letters = Arc::new(Letters::default());
    let mut settings = settings(2, 8);
    settings.dead_letters = Some(Arc::clone(&letters) as Arc<dyn DeadLetters>);
    let (sink, collected) = Collect::new();
    let flow = Flow::with_settings("kept", settings);
    let (count, items) = (items.len() as u64, items.to_vec());
    let held = Generator::new(move |number| Held(items[number as usize].clone())).limit(count);
    flow.source("held", held)
        .flatten()
        .filter(keep)
        .boundary("pass")
        .sink("collect", sink);
    flow.run().unwrap().join().unwrap();
    let collected = collected.lock().unwrap().clone();
    let letters = letters.0.lock().unwrap().clone();
    (collected, letters)
}

#[test]
fn a_filter_keeps_the_order_of_items_with_any_number_of_parts() {
    let mut number = 0..;
    let items: Vec<Vec<u64>> = (0..300_usize)
        .map(|item| number.by_ref().take(item * 37 % 199).collect())
        .collect();
    for part in [1, 2, 3, 64, 1000] {
        let keep = move |number: &u64| number.is_multiple_of(part);
        let (kept, letters) = kept_of(&items, keep);
        let expected = items.iter().flatten().copied();
        assert!(kept.into_iter().eq(expected.filter(keep)), "one of {part}");
        assert_eq!(letters, []);
    }
}

#[test]
fn a_filter_that_panics_on_one_part_loses_only_that_part() {
    let items: Vec<Vec<u64>> = (0..40)
        .map(|item| (100 * item..100 * (item + 1)).collect())
        .collect();
    let (kept, letters) = kept_of(&items, |number| {
        assert!(number % 1000 != 97, "unlucky {number}");
        !number.is_multiple_of(3)
    });
    let passes = |number: &u64| number % 1000 != 97 && !number.is_multiple_of(3);
    assert!(kept.into_iter().eq((0..4000).filter(passes)));
    let lost: Vec<_> = letters.iter().map(|letter| letter.item.clone()).collect();
    assert_eq!(lost, ["97", "1097", "2097", "3097"]);
}
