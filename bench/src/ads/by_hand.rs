//! The same by hand: in each of two threads a loop makes a block of events, reads it where it lies, and counts.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use millstream_ads::benchmark::{App, Order, Outcome, Released};
use millstream_ads::workload::{Block, CAMPAIGNS, Event, Fed, Feed, Kind, Made, campaign_of_ads};

use super::contender::{Contender, Counted, INSTANCES};
use crate::measure::time;

/// The loops for one application.
pub struct ByHand {
    app: App,
}

impl ByHand {
    pub fn new(app: App) -> ByHand {
        ByHand { app }
    }
}

impl Contender for ByHand {
    fn run(&mut self, order: &Order) -> Result<Counted> {
        let campaigns = campaign_of_ads();
        match self.app {
            App::Swa => run(self.app, order, |event| event.ad() as usize),
            // Other kinds of events are counted as well, so that no branch is mispredicted.
            App::Ysb | App::YsbStar => run(self.app, order, |event| {
                event.kind() as usize * CAMPAIGNS as usize + campaigns[event.ad() as usize] as usize
            }),
        }
    }
}

/// The result of a window for one key, or for one kind and one key.
#[derive(Debug, Clone, Copy)]
struct Slot {
    count: u64,
    /// The largest time of its events.
    time_ms: i64,
}

impl Slot {
    const EMPTY: Slot = Slot {
        count: 0,
        time_ms: i64::MIN,
    };

    fn merge(&mut self, other: &Slot) {
        self.count += other.count;
        self.time_ms = self.time_ms.max(other.time_ms);
    }
}

fn run(app: App, order: &Order, slot: impl Fn(&Event<'_>) -> usize + Sync) -> Result<Counted> {
    let windows = Windows {
        app,
        order,
        started: Instant::now(),
        open: Mutex::default(),
    };
    let mut made = Vec::new();
    let mut seconds = 0.0_f64;
    let took = time(|| {
        let threads: Vec<_> = thread::scope(|scope| {
            let work = |instance| windows.fill(instance, &slot);
            let threads: Vec<_> = (0..INSTANCES)
                .map(|instance| scope.spawn(move || work(instance)))
                .collect();
            threads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        for thread in threads {
            let (part, part_seconds) =
                thread.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            made.push(part);
            seconds = seconds.max(part_seconds);
        }
        Ok(())
    })?;
    let open = windows.open.into_inner();
    let open = open.unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(Counted {
        outcome: Outcome {
            seconds,
            made,
            released: open.released,
        },
        cpu_seconds: took.cpu_seconds,
    })
}

/// The windows, which the threads share.
struct Windows<'o> {
    app: App,
    order: &'o Order,
    started: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// By start: counts by key, and the number of threads that have added theirs.
    windows: BTreeMap<i64, (Vec<Slot>, u32)>,
    released: Vec<Released>,
}

impl Windows<'_> {
    /// Does the work of a thread; returns the events that it made, and the seconds that it took.
    fn fill(&self, instance: u32, slot: &impl Fn(&Event<'_>) -> usize) -> (Vec<Made>, f64) {
        let size_ms = self.order.window_ms;
        let mut feed = Feed::new(self.order.schedule(), instance);
        let mut block = Block::default();
        let mut slots = vec![Slot::EMPTY; self.slots()];
        let mut start_ms = self.order.start_ms - self.order.start_ms.rem_euclid(size_ms);
        loop {
            match feed.next(self.started.elapsed(), &mut block) {
                Fed::Events => {
                    for event in block.events() {
                        while event.time_ms() >= start_ms + size_ms {
                            self.merge(start_ms, &mut slots);
                            start_ms += size_ms;
                        }
                        let slot = &mut slots[slot(&event)];
                        slot.count += 1;
                        slot.time_ms = event.time_ms();
                    }
                }
                Fed::Wait(wait) => thread::sleep(wait),
                Fed::End => break,
            }
        }
        let seconds = self.started.elapsed().as_secs_f64();
        self.merge(start_ms, &mut slots);
        (feed.made().to_vec(), seconds)
    }

    /// Adds a thread's counts of a window for which it has no more events; the last thread releases the window.
    fn merge(&self, start_ms: i64, slots: &mut [Slot]) {
        let open = self.open.lock();
        let mut open = open.unwrap_or_else(std::sync::PoisonError::into_inner);
        let (sums, threads) = open
            .windows
            .entry(start_ms)
            .or_insert_with(|| (vec![Slot::EMPTY; slots.len()], 0));
        for (sum, slot) in sums.iter_mut().zip(slots) {
            sum.merge(slot);
            *slot = Slot::EMPTY;
        }
        *threads += 1;
        if *threads == INSTANCES
            && let Some((sums, _)) = open.windows.remove(&start_ms)
        {
            let released_ms =
                self.order.start_ms as f64 + self.started.elapsed().as_secs_f64() * 1e3;
            open.released
                .extend(self.results(start_ms, &sums, released_ms));
        }
    }

    /// Returns how many slots there are: one for each key, or for each kind of each key.
    fn slots(&self) -> usize {
        let keys = self.app.keys() as usize;
        match self.app {
            App::Swa => keys,
            App::Ysb | App::YsbStar => 3 * keys,
        }
    }

    fn results(&self, window_ms: i64, slots: &[Slot], released_ms: f64) -> Vec<Released> {
        let keys = self.app.keys() as usize;
        let result = |key: usize| {
            let count = slots[key];
            let clicks = match self.app {
                App::Swa | App::Ysb => Slot::EMPTY,
                App::YsbStar => slots[Kind::Click as usize * keys + key],
            };
            let is_result = count.count > 0 && (clicks.count > 0 || self.app != App::YsbStar);
            is_result.then(|| Released {
                window_ms,
                key: key as u32,
                count: count.count,
                clicks: clicks.count,
                ratio: clicks.count as f64 / count.count as f64,
                time_ms: count.time_ms.max(clicks.time_ms),
                released_ms,
            })
        };
        (0..keys).filter_map(result).collect()
    }
}
