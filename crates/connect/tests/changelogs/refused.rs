//! Stores that take no shards for a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_connect::{EncodedRecord, StreamSink};
use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, Changelog, Checkpointing, Checkpoints, Flow, FlowSettings, Resume, Running, ShardKey,
    StoreLock,
};
use millstream_log::StreamConfig;

use crate::support::{World, for_both};

/// More than the transactions that a changelog has open at once.
const FAILED: u64 = 10;

const TIME_MAX: Duration = Duration::from_secs(60);

/// Forwards all calls, and refuses shards while `refuses` is set.
struct Refusing {
    store: Arc<dyn Checkpoints>,
    refuses: AtomicBool,
}

impl Checkpoints for Refusing {
    fn lock(&self) -> Result<Option<StoreLock>, BoxError> {
        self.store.lock()
    }

    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        match self.refuses.load(Ordering::SeqCst) {
            true => Err("it takes no shards".into()),
            false => self.store.put(key, shard),
        }
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        self.store.get(key)
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        self.store.list()
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.store.remove(key)
    }

    fn changelog(&self, flow: &str, element: &str) -> Result<Option<Box<dyn Changelog>>, BoxError> {
        self.store.changelog(flow, element)
    }
}

/// Counts numbers by key without an end.
fn start(store: &Arc<Refusing>) -> Running {
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(store) as _,
            interval: Some(Duration::from_millis(5)),
            resume: Resume::Never,
        }),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("shop", settings);
    let counts = flow.values::<u64, u64>("users");
    let numbers = Generator::new(|number| {
        thread::sleep(Duration::from_micros(500));
        number
    });
    flow.source("numbers", numbers)
        .key_by(|number| number % 10)
        .count("count", &counts);
    flow.run().unwrap()
}

/// Returns whether it came to that in time.
fn comes(is_so: impl Fn() -> bool) -> bool {
    let started_at = Instant::now();
    while !is_so() {
        if started_at.elapsed() > TIME_MAX {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

fn check_resumes_checkpoints(world: &World) {
    let store = Arc::new(Refusing {
        store: Arc::clone(&world.store),
        refuses: AtomicBool::new(false),
    });
    let running = start(&store);
    let counts = || running.checkpoints().unwrap();
    assert!(comes(|| counts().kept >= 2));
    store.refuses.store(true, Ordering::SeqCst);
    let has_failed = comes(|| counts().failed >= FAILED);
    store.refuses.store(false, Ordering::SeqCst);
    let kept = counts().kept;
    let goes_on = comes(|| counts().kept > kept);
    let (failed, error) = (counts().failed, counts().error);
    assert!(
        has_failed && goes_on,
        "{failed} of {FAILED} checkpoints failed ({error:?}); kept one since: {goes_on}"
    );
    running.stop();
    assert!(comes(|| running.is_finished()));
    running.join().unwrap();
}

#[test]
fn checkpoints_continue_once_a_store_that_refused_shards_accepts_them_again() {
    for_both(check_resumes_checkpoints);
}

/// The same trouble by a state element: one cannot be written, and each checkpoint prepares the other one's changes.
#[test]
fn checkpoints_continue_once_a_value_that_cannot_be_written_is_removed() {
    let world = World::start(false);
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(&world.store),
            interval: Some(Duration::from_millis(5)),
            resume: Resume::Never,
        }),
        ..FlowSettings::default()
    };
    let is_bad = Arc::new(AtomicBool::new(false));
    let flow = Flow::with_settings("shop", settings);
    let counts = flow.values::<u64, u64>("a");
    let shares = flow.values::<u64, f64>("b");
    let numbers = || {
        Generator::new(|number| {
            thread::sleep(Duration::from_micros(500));
            number
        })
    };
    flow.source("numbers", numbers())
        .key_by(|number| number % 10)
        .count("count", &counts);
    let bad = Arc::clone(&is_bad);
    flow.source("others", numbers())
        .key_by(|_| 0_u64)
        .fold("share", &shares, move |share, _| {
            *share = if bad.load(Ordering::SeqCst) {
                f64::NAN
            } else {
                1.0
            };
        });
    let running = flow.run().unwrap();
    let counts = || running.checkpoints().unwrap();
    assert!(comes(|| counts().kept >= 2));
    is_bad.store(true, Ordering::SeqCst);
    let has_failed = comes(|| counts().failed >= FAILED);
    is_bad.store(false, Ordering::SeqCst);
    let kept = counts().kept;
    let goes_on = comes(|| counts().kept > kept);
    let (failed, error) = (counts().failed, counts().error);
    assert!(
        has_failed && goes_on,
        "{failed} of {FAILED} checkpoints failed ({error:?}); kept one since: {goes_on}"
    );
}

/// A sink has room for the results of few checkpoints.
#[test]
fn a_flow_with_a_sink_fails_at_an_unwritable_value_and_names_its_key() {
    let world = World::start(false);
    let stream = world.log.create_stream("results", StreamConfig::default());
    let encode = |number: &u64, record: &mut EncodedRecord| {
        record.value.extend(number.to_le_bytes());
    };
    let sink = StreamSink::new(&stream.unwrap(), encode).unwrap();
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(&world.store),
            interval: Some(Duration::from_millis(5)),
            resume: Resume::Never,
        }),
        ..FlowSettings::default()
    };
    let numbers = || {
        Generator::new(|number| {
            thread::sleep(Duration::from_micros(500));
            number
        })
    };
    let flow = Flow::with_settings("shop", settings);
    let shares = flow.values::<u64, f64>("users");
    flow.source("numbers", numbers()).sink("results", sink);
    flow.source("others", numbers())
        .key_by(|number| number % 2 + 7)
        .fold("share", &shares, |share, number| {
            *share = match *number {
                ..100 => 1.0,
                _ => f64::NAN,
            };
        });
    let running = flow.run().unwrap();
    assert!(comes(|| running.is_finished()), "it stands still");
    let error = running.join().unwrap_err().to_string();
    for expected in [
        "the changelog of state \"users\": key \"",
        "\": its value changes on the way through JSON: ",
        "; results since the last complete checkpoint wait for this one",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(running.checkpoints().unwrap().failed > 3);
}

#[test]
fn a_stopped_flow_ends_although_its_store_refuses_shards() {
    let world = World::start(false);
    let store = Arc::new(Refusing {
        store: Arc::clone(&world.store),
        refuses: AtomicBool::new(false),
    });
    let running = start(&store);
    let counts = || running.checkpoints().unwrap();
    assert!(comes(|| counts().kept >= 2));
    store.refuses.store(true, Ordering::SeqCst);
    comes(|| counts().failed >= FAILED);
    running.stop();
    assert!(comes(|| running.is_finished()), "it never ends");
    running.join().unwrap_err();
}
