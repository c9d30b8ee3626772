//! Operators of other flows that read values which are not in memory.

use std::sync::Arc;

use millstream_exchange::Ranks;
use millstream_flow::{DeadLetters, Flow, FlowError, FlowSettings, Resume, Running, Values};

use super::count;
use super::lazy::counted;
use super::log::{LogStore, Scan};
use crate::support::{Hand, Letters, settings, wait_until};

/// A flow on one worker that reads counts, and passes other numbers on.
struct Reader {
    running: Running,
    letters: Arc<Letters>,
    /// The keys to read.
    keys: Hand,
    /// A thousand times the key, and its count.
    found: Hand,
    others: Hand,
    passed: Hand,
}

impl Reader {
    fn start(values: &Values<u64, u64>) -> Reader {
        let letters = Arc::new(Letters::default());
        let settings = FlowSettings {
            dead_letters: Some(Arc::clone(&letters) as Arc<dyn DeadLetters>),
            ..settings(1, 64)
        };
        let flow = Flow::with_settings("reader", settings);
        let [keys, found, others, passed] = [(); 4].map(|()| Hand::default());
        found.open();
        passed.open();
        flow.source("keys", keys.clone())
            .key_by(|key| *key)
            .read("find", values, |key, count: Option<&u64>, _| {
                key * 1000 + count.copied().unwrap_or(0)
            })
            .sink("found", found.clone());
        flow.source("others", others.clone())
            .sink("passed", passed.clone());
        Reader {
            running: flow.run().unwrap(),
            letters,
            keys,
            found,
            others,
            passed,
        }
    }

    /// Checks that the worker does other work.
    fn check_worker(&self, number: u64) {
        self.others.give([number]);
        wait_until("the worker has time", || {
            self.passed.taken().contains(&number)
        });
    }

    fn wait_for(&self, found: &[u64]) {
        wait_until("the counts are found", || {
            let mut all = self.found.taken();
            all.sort_unstable();
            all == found
        });
    }
}

/// Starts a flow whose counts, 1 for each key, are read when they are asked for.
fn resumed() -> (Arc<LogStore>, Hand, Running, Values<u64, u64>) {
    let store = counted();
    store.scan(Scan::Held);
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    (store, hand, running, values)
}

#[test]
fn a_reader_goes_on_with_other_work_while_a_value_is_read() {
    let (store, hand, _running, values) = resumed();
    let reader = Reader::start(&values);
    store.scan(Scan::Deaf);
    reader.keys.give([5, 6, 500]);
    for number in 0..20 {
        reader.check_worker(number);
    }
    assert!(reader.found.taken().is_empty());
    store.scan(Scan::Held);
    reader.wait_for(&[5001, 6001, 500_000]);
    // They are in memory now, and change there.
    store.scan(Scan::Deaf);
    hand.give([5]);
    wait_until("it is counted", || values.get(&5) == Some(2));
    reader.keys.give([5]);
    reader.wait_for(&[5001, 5002, 6001, 500_000]);
    store.scan(Scan::Slow);
    assert_eq!(reader.running.lost_wakeups(), 0);
}

#[test]
fn a_reader_reads_the_values_of_a_flow_that_has_ended() {
    let (store, _hand, running, values) = resumed();
    let reader = Reader::start(&values);
    store.scan(Scan::Deaf);
    reader.keys.give([5]);
    reader.check_worker(0);
    drop(running);
    store.scan(Scan::Held);
    reader.keys.give([6]);
    reader.wait_for(&[5001, 6001]);
}

#[test]
fn an_item_whose_value_cannot_be_read_becomes_a_dead_letter() {
    let (store, _hand, running, values) = resumed();
    let reader = Reader::start(&values);
    store.scan(Scan::Broken);
    reader.keys.give([5]);
    wait_until("there is a letter", || {
        !reader.letters.0.lock().unwrap().is_empty()
    });
    assert!(running.join().is_err());
    let letters = reader.letters.0.lock().unwrap().clone();
    let error = "its value cannot be read: it is broken";
    assert!(letters[0].error.contains(error), "{}", letters[0].error);
    store.scan(Scan::Held);
    reader.keys.give([6]);
    reader.wait_for(&[6001]);
}

#[test]
fn a_flow_on_other_ranks_cannot_read_the_values() {
    let values = Flow::new("numbers").values::<u64, u64>("counts");
    for ranks in Ranks::threads(2) {
        let settings = FlowSettings {
            ranks,
            ..settings(1, 64)
        };
        let flow = Flow::with_settings("reader", settings);
        let found = Hand::default();
        flow.source("keys", Hand::default())
            .key_by(|key| *key)
            .read("find", &values, |key, _, _| *key)
            .sink("found", found);
        let error = flow.run().err().expect("it does not start");
        assert!(matches!(error, FlowError::Elements { .. }), "{error}");
        assert!(error.to_string().contains("the same ranks"), "{error}");
    }
}
