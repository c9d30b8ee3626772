//! The generator as a source of the engine.

use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use millstream_flow::{BoxError, Flatten, Output, Source, SourcePartitions, SourceStatus};
use serde::{Deserialize, Serialize};

use super::outcome::{Order, Released};
use crate::workload::{Block, Events, Fed, Feed, Head, Made, Position};

/// A run, with the reports of its sources and its sink.
pub struct Run {
    pub order: Order,
    /// The rank that collects the results.
    gather_at: u32,
    instances: Range<u32>,
    clock: Arc<dyn Clock>,
    /// The time of the first poll of a source, by that clock.
    started: OnceLock<Duration>,
    /// The duration of the run up to the checkpoint from which it resumes, in nanoseconds. Written
    /// before the run starts.
    before_ns: AtomicU64,
    pub reports: Mutex<Reports>,
}

#[derive(Default)]
pub struct Reports {
    /// The time from the start to the last event.
    pub seconds: f64,
    /// By instance of this rank.
    pub made: Vec<Vec<Made>>,
    pub released: Vec<Released>,
}

impl Run {
    /// Returns the share of the run on a rank with these instances.
    pub fn new(order: Order, gather_at: u32, instances: Range<u32>, clock: &Arc<dyn Clock>) -> Run {
        Run {
            order,
            gather_at,
            instances: instances.clone(),
            clock: Arc::clone(clock),
            started: OnceLock::new(),
            before_ns: AtomicU64::new(0),
            reports: Mutex::new(Reports {
                made: vec![Vec::new(); instances.len()],
                ..Reports::default()
            }),
        }
    }

    /// Returns the duration of the run, without the time between its end and a resume.
    fn elapsed(&self) -> Duration {
        let now = self.clock.monotonic();
        let since = now.saturating_sub(*self.started.get_or_init(|| now));
        Duration::from_nanos(self.before_ns.load(Ordering::Relaxed)) + since
    }

    /// Returns the time by the clock that gives events their times.
    pub fn now_ms(&self) -> f64 {
        self.order.start_ms as f64 + self.elapsed().as_secs_f64() * 1e3
    }

    pub fn release(&self, released: impl Iterator<Item = Released>) {
        self.report(|reports| reports.released.extend(released));
    }

    /// Returns the released results, for a checkpoint.
    pub fn save_released(&self) -> Result<Vec<u8>, BoxError> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(postcard::to_stdvec(&reports.released)?)
    }

    /// Discards the results after the checkpoint: they are released again.
    pub fn restore_released(&self, saved: &[u8]) -> Result<(), BoxError> {
        let released = postcard::from_bytes(saved)?;
        self.report(|reports| reports.released = released);
        Ok(())
    }

    fn report(&self, what: impl FnOnce(&mut Reports)) {
        what(&mut self.reports.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The events of one instance, in blocks that are reused when they are read.
pub struct Feeds {
    run: Arc<Run>,
    /// The position among the instances of the rank.
    place: usize,
    feed: Feed,
    read: Arc<Mutex<Vec<Block>>>,
}

impl Feeds {
    /// Returns one for each instance.
    pub fn of(run: &Arc<Run>) -> Vec<Feeds> {
        let instances = run.instances.clone().enumerate();
        let feeds = instances.map(|(place, instance)| Feeds {
            run: Arc::clone(run),
            place,
            feed: Feed::new(run.order.schedule(), instance),
            read: Arc::default(),
        });
        feeds.collect()
    }

    fn block(&self) -> Block {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.pop().unwrap_or_default()
    }
}

/// The state from which an instance resumes.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// The order of the run. Another order would have other windows, or other events.
    order: Order,
    gather_at: u32,
    elapsed: Duration,
    position: Position,
    /// The time from the start to the last event, over this rank's instances that have ended.
    seconds: f64,
}

impl Source for Feeds {
    type Item = Lent;

    fn partitions(&self) -> SourcePartitions<'_, Lent> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<Lent>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        // The instance fills one block at a time, which stays in a core's first cache until a reader takes it.
        let mut lent = Lent {
            block: self.block(),
            read: Arc::clone(&self.read),
        };
        let elapsed = self.run.elapsed();
        match self.feed.next(elapsed, &mut lent.block) {
            Fed::Events => out.push(lent),
            Fed::Wait(wait) => {
                return Ok(SourceStatus::IdleUntil(self.run.clock.monotonic() + wait));
            }
            Fed::End => {
                self.run.report(|reports| {
                    reports.made[self.place] = self.feed.made().to_vec();
                    reports.seconds = reports.seconds.max(elapsed.as_secs_f64());
                });
                return Ok(SourceStatus::End);
            }
        }
        Ok(SourceStatus::Ready)
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        let mut seconds = 0.0;
        self.run.report(|reports| seconds = reports.seconds);
        Ok(postcard::to_stdvec(&Saved {
            order: self.run.order,
            gather_at: self.run.gather_at,
            elapsed: self.run.elapsed(),
            position: self.feed.position().clone(),
            seconds,
        })?)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let saved: Saved = postcard::from_bytes(saved)?;
        let run = &*self.run;
        if (saved.order, saved.gather_at) != (run.order, run.gather_at) {
            let then = described(&saved.order, saved.gather_at);
            let now = described(&run.order, run.gather_at);
            return Err(format!("the checkpoint is of {then}, and this run has {now}").into());
        }
        let elapsed_ns = u64::try_from(saved.elapsed.as_nanos())?;
        run.before_ns.fetch_max(elapsed_ns, Ordering::Relaxed);
        run.report(|reports| {
            // The engine does not poll an instance again after its end.
            reports.made[self.place] = saved.position.made.clone();
            reports.seconds = reports.seconds.max(saved.seconds);
        });
        self.feed.go_on_from(saved.position);
        Ok(())
    }
}

fn described(order: &Order, gather_at: u32) -> String {
    let Order {
        instances,
        rate,
        duration_ms,
        window_ms,
        start_ms,
    } = order;
    format!(
        "{instances} instances, {rate} events per second (0: as many as can be) for {duration_ms} ms from {start_ms}, \
         in windows of {window_ms} ms, gathered on rank {gather_at}"
    )
}

/// A block of events, all of the same time.
#[derive(Debug)]
pub struct Lent {
    block: Block,
    read: Arc<Mutex<Vec<Block>>>,
}

impl Lent {
    pub fn events(&self) -> Events<'_> {
        self.block.events()
    }

    /// Returns the time of all its events.
    pub fn time(&self) -> Timestamp {
        let first = self.events().next();
        Timestamp(first.map_or(i64::MIN, |event| event.time_ms()))
    }
}

impl Flatten for Lent {
    type Item = Head;

    #[inline]
    fn for_each_item<'a>(&'a self, mut visit: impl FnMut(&'a Head)) {
        self.events().for_each(|event| visit(event.head()));
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let block = mem::replace(&mut self.block, Block::empty());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.push(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order = Order {
        instances: 1,
        rate: 100_000,
        duration_ms: 4_000,
        window_ms: 1_000,
        start_ms: 5_000,
    };

    /// A clock that is set by hand.
    #[derive(Default)]
    struct Set(AtomicU64);

    impl Set {
        fn at(seconds: u64) -> Arc<Set> {
            let clock = Set::default();
            clock.set(seconds);
            Arc::new(clock)
        }

        fn set(&self, seconds: u64) {
            self.0.store(seconds * 1_000_000_000, Ordering::Relaxed);
        }
    }

    impl Clock for Set {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_nanos(self.0.load(Ordering::Relaxed))
        }
    }

    fn feed(clock: &Arc<Set>, order: Order) -> Feeds {
        let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
        let run = Arc::new(Run::new(order, 0, 0..1, &clock));
        Feeds::of(&run).remove(0)
    }

    /// Times of all events that are due.
    fn poll(feed: &mut Feeds) -> Vec<i64> {
        let mut times = Vec::new();
        loop {
            let mut out = Output::default();
            let status = feed.poll(&mut out, 0, Waker::noop()).unwrap();
            let events = out.items().iter().flat_map(Lent::events);
            times.extend(events.map(|event| event.time_ms()));
            if status != SourceStatus::Ready {
                return times;
            }
        }
    }

    #[test]
    fn a_resumed_feed_generates_the_remaining_events_without_a_gap() {
        let clock = Set::at(10);
        let mut first = feed(&clock, ORDER);
        assert!(poll(&mut first).is_empty());
        clock.set(13);
        assert_eq!(poll(&mut first).len(), 300_000);
        let saved = first.save().unwrap();

        // The clock starts again, as after a reboot of the machine.
        let clock = Set::at(2);
        let mut second = feed(&clock, ORDER);
        second.restore(&saved).unwrap();
        assert!(poll(&mut second).is_empty());
        clock.set(3);
        let times = poll(&mut second);
        assert_eq!(times.len(), 100_000);
        assert!(times.iter().all(|time_ms| *time_ms > 8_000));
        clock.set(4);
        assert!(poll(&mut second).is_empty());
        let reports = second.run.reports.lock().unwrap();
        let events: u64 = reports.made[0].iter().map(|made| made.events).sum();
        assert_eq!((events, reports.seconds), (400_000, 5.0));
    }

    #[test]
    fn a_resumed_feed_that_had_ended_reports_its_counts_without_a_poll() {
        let clock = Set::at(0);
        let mut first = feed(&clock, ORDER);
        poll(&mut first);
        clock.set(4);
        poll(&mut first);
        let mut second = feed(&Set::at(0), ORDER);
        second.restore(&first.save().unwrap()).unwrap();
        let reports = |feed: &Feeds| {
            let reports = feed.run.reports.lock().unwrap();
            (reports.made.clone(), reports.seconds)
        };
        assert_eq!(reports(&second), reports(&first));
    }

    #[test]
    fn a_checkpoint_of_another_order_is_refused() {
        let mut first = feed(&Set::at(0), ORDER);
        let other = Order {
            window_ms: 2_000,
            ..ORDER
        };
        let mut second = feed(&Set::at(0), other);
        let error = second.restore(&first.save().unwrap()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("of 1000 ms"), "{error}");
        assert!(error.contains("of 2000 ms"), "{error}");
    }
}
