//! The generator as a source of the engine.

use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use millstream_flow::{BoxError, Flatten, Output, Source, SourceStatus};

use super::outcome::{Order, Released};
use crate::workload::{Block, Events, Fed, Feed, Head, Made};

/// How many blocks are given at a time: they stay in a core's cache until they are read.
const BLOCKS: usize = 2;

/// A run, and what its sources and its sink tell of it.
pub struct Run {
    pub order: Order,
    instances: Range<u32>,
    clock: Arc<dyn Clock>,
    /// When the first source was asked for events, by that clock.
    started: OnceLock<Duration>,
    pub told: Mutex<Told>,
}

#[derive(Default)]
pub struct Told {
    /// From the start until the last event was made.
    pub seconds: f64,
    /// By instance of this rank.
    pub made: Vec<Vec<Made>>,
    pub released: Vec<Released>,
}

impl Run {
    /// The part of a rank that has these instances.
    pub fn new(order: Order, instances: Range<u32>, clock: &Arc<dyn Clock>) -> Run {
        Run {
            order,
            instances: instances.clone(),
            clock: Arc::clone(clock),
            started: OnceLock::new(),
            told: Mutex::new(Told {
                made: vec![Vec::new(); instances.len()],
                ..Told::default()
            }),
        }
    }

    fn elapsed(&self) -> Duration {
        let now = self.clock.monotonic();
        now.saturating_sub(*self.started.get_or_init(|| now))
    }

    /// By the clock that gives events their times.
    pub fn now_ms(&self) -> f64 {
        self.order.start_ms as f64 + self.elapsed().as_secs_f64() * 1e3
    }

    pub fn release(&self, released: impl Iterator<Item = Released>) {
        self.tell(|told| told.released.extend(released));
    }

    fn tell(&self, what: impl FnOnce(&mut Told)) {
        what(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The events of one instance, in blocks that come back when they are read.
pub struct Feeds {
    run: Arc<Run>,
    /// Among the instances of the rank.
    place: usize,
    feed: Feed,
    read: Arc<Mutex<Vec<Block>>>,
}

impl Feeds {
    /// One for each instance.
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

impl Source for Feeds {
    type Item = Lent;

    fn poll(
        &mut self,
        out: &mut Output<Lent>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        for _ in 0..BLOCKS {
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
                    self.run.tell(|told| {
                        told.made[self.place] = self.feed.made().to_vec();
                        told.seconds = told.seconds.max(elapsed.as_secs_f64());
                    });
                    return Ok(SourceStatus::End);
                }
            }
        }
        Ok(SourceStatus::Ready)
    }
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

    /// Of all of its events.
    pub fn time(&self) -> Timestamp {
        let first = self.events().next();
        Timestamp(first.map_or(i64::MIN, |event| event.time_ms()))
    }
}

impl Flatten for Lent {
    type Item = Head;

    #[inline]
    fn for_each_item(&self, mut visit: impl FnMut(&Head)) {
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
