//! A server that is away for longer than a source may be idle makes no record late.

use std::iter::once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{Clock, Timestamp};
use millstream_client::{ConsumerConfig, DeliveryMode};
use millstream_connect::{ServerEnd, ServerSource, StreamSource};
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{BoxError, Channel, Emit, Flow, FlowSettings, Parts, Source, Watermarks};
use millstream_log::StreamConfig;
use millstream_record::Record;

use crate::orders::{Counts, PATIENCE, Setting, WINDOW_MS, key_of, plain, produce, time_of};

/// A clock that moves by hand.
#[derive(Default)]
struct HandClock(Mutex<Duration>);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.monotonic().as_millis() as i64)
    }

    fn monotonic(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

#[track_caller]
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn order(record: &Record<'_>) -> Result<u64, BoxError> {
    Ok(u64::from_le_bytes(
        record.value.unwrap_or_default().try_into()?,
    ))
}

/// Reads the orders of a source into `orders`.
fn read<S>(flow: &Flow, name: &str, source: S, orders: &Channel<u64>, seen: &Arc<AtomicU64>)
where
    S: Source<Item: std::fmt::Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let seen = Arc::clone(seen);
    flow.source(name, source)
        .each(move |record, emit: &mut Emit<u64>| {
            seen.fetch_add(1, Ordering::Relaxed);
            emit(&order(record)?);
            Ok(())
        })
        .watermarks(
            |number| Timestamp(time_of(*number)),
            Watermarks::bounded(Duration::ZERO).ahead_max(None),
        )
        .to(orders);
}

fn a_server_that_is_away_makes_no_order_late(delivery: DeliveryMode) {
    const BEFORE: u64 = 100;
    // A minute and a bit.
    const END: u64 = 6_600;
    let mut setting = Setting::new(1);
    let near = setting
        .log
        .create_stream("near", StreamConfig::default())
        .unwrap();
    let consumer = ConsumerConfig {
        delivery,
        ..ConsumerConfig::default()
    };
    let far = ServerSource::of_stream(&setting.client(), &consumer, "s", 1, ServerEnd::Never);
    let far = far.unwrap().remove(0);

    let clock = Arc::new(HandClock::default());
    let flow = Flow::with_settings(
        "late",
        FlowSettings {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            ..FlowSettings::default()
        },
    );
    let (counts, seen) = (Counts::default(), Arc::new(AtomicU64::new(0)));
    let state = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
    let orders = flow.channel("orders");
    read(&flow, "near", StreamSource::new(&near), &orders, &seen);
    read(&flow, "far", far, &orders, &seen);
    flow.stage("orders", &orders)
        .key_by(|number| key_of(*number))
        .aggregate("count", &state, |number| Timestamp(time_of(*number)))
        .sink("results", counts.clone());
    let running = flow.run().unwrap();
    let wait_until_seen = |orders| {
        wait_until("orders are read", || seen.load(Ordering::Relaxed) >= orders);
    };

    produce(&near, 0, 0..BEFORE);
    produce(&setting.stream, 0, 0..BEFORE);
    wait_until_seen(2 * BEFORE);
    setting.stop_server();
    let is_unknown = || {
        let waits = running.waits();
        waits
            .iter()
            .any(|wait| wait.reason.contains("does not answer"))
    };
    wait_until("the flow finds that the server is away", is_unknown);
    // Orders go on in both streams for longer than a source may be idle.
    for number in (BEFORE..END).step_by(100) {
        *clock.0.lock().unwrap() += Duration::from_secs(1);
        produce(&near, 0, number..number + 100);
        produce(&setting.stream, 0, number..number + 100);
        wait_until_seen(BEFORE + number + 100);
    }
    setting.start_server();
    wait_until_seen(2 * END);
    produce(&near, 0, [END]);
    produce(&setting.stream, 0, [END]);
    wait_until("windows come out", || {
        counts.get().len() >= plain(once(0..END)).len()
    });
    assert_eq!(counts.get(), plain([0..END, 0..END]));
    assert_eq!(state.late_events(), 0);
}

#[test]
fn an_unreachable_server_makes_no_pulled_order_late() {
    a_server_that_is_away_makes_no_order_late(DeliveryMode::Pull);
}

#[test]
fn an_unreachable_server_makes_no_pushed_order_late() {
    a_server_that_is_away_makes_no_order_late(DeliveryMode::Push);
}
