//! The ring between stages, beside other queues.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use crossbeam_channel::{Receiver, Sender, bounded};
use millstream_ring::{Ring, RingConfig};
use parking_lot::Mutex;

use crate::measure::{Bench, median, time};
use crate::report::{Better, Case};

pub const RINGS: &str = "rings";

/// Room of each queue: four of the largest slices.
const CAPACITY: usize = 16 << 10;

/// Looks at a queue that is full or empty, before the processor is left to others.
const LOOKS: u32 = 32;

/// Items go from producers to consumers in slices, through each of the queues. No queue waits by itself: a producer
/// that finds no room, or a consumer that finds no item, looks again.
pub fn rings(bench: &Bench) -> Result<Vec<Case>> {
    let items = bench.size(8 << 20, 1 << 14);
    let mut cases = Vec::new();
    for threads in [0, 1, 2] {
        for slice in [1, 64, 4096] {
            // Slices of one item take many times as long.
            let items = if slice == 1 { items / 4 } else { items };
            let load = Load {
                threads,
                slice,
                items,
            };
            let rounds = bench.turns(3, |contender| match contender {
                0 => load.ns_per_item(&ring()),
                1 => load.ns_per_item(&bounded(CAPACITY)),
                _ => load.ns_per_item(&Mutex::new(VecDeque::with_capacity(CAPACITY))),
            })?;
            let [ours, channel, deque] = [0, 1, 2].map(|n| rounds[n].clone());
            let topology = match threads {
                0 => "alone".to_owned(),
                threads => format!("{threads}x{threads}"),
            };
            let name = format!("{RINGS}/{topology}/slices-of-{slice}");
            cases.push(
                Case::new(name, "ns/item", Better::Lower, ours)
                    .peer("a crossbeam channel", median(&channel))
                    .peer("a deque in a mutex", median(&deque))
                    .detail("crossbeam_ns", median(&channel))
                    .detail("deque_in_a_mutex_ns", median(&deque)),
            );
        }
    }
    Ok(cases)
}

fn ring() -> Arc<Ring<u64>> {
    let capacity = NonZeroUsize::new(CAPACITY).expect("not zero");
    Ring::new(RingConfig {
        capacity_min: capacity,
        capacity_max: capacity,
        lanes: NonZeroUsize::MIN,
    })
}

/// A bounded queue of numbers.
trait Queue: Sync {
    /// Writes some of the numbers from `next` on, up to `count`; returns how many.
    fn write(&self, next: u64, count: usize) -> usize;

    /// Reads up to `count` numbers, and adds them to `sum`; returns how many.
    fn read(&self, count: usize, sum: &mut u64) -> usize;
}

impl Queue for Arc<Ring<u64>> {
    fn write(&self, next: u64, count: usize) -> usize {
        let Some(mut slice) = self.try_write(count) else {
            return 0;
        };
        let room = slice.room();
        (next..).take(room).for_each(|number| slice.push(number));
        slice.commit();
        room
    }

    fn read(&self, count: usize, sum: &mut u64) -> usize {
        let Some(slice) = self.try_read(count) else {
            return 0;
        };
        let parts = slice.parts();
        *sum += parts
            .map(|part| part.iter().sum::<u64>())
            .iter()
            .sum::<u64>();
        let read = slice.len();
        slice.done();
        read
    }
}

/// Knows no slices: items go one by one.
impl Queue for (Sender<u64>, Receiver<u64>) {
    fn write(&self, next: u64, count: usize) -> usize {
        let numbers = (next..).take(count);
        numbers
            .take_while(|number| self.0.try_send(*number).is_ok())
            .count()
    }

    fn read(&self, count: usize, sum: &mut u64) -> usize {
        let numbers = self.1.try_iter().take(count);
        numbers.map(|number| *sum += number).count()
    }
}

impl Queue for Mutex<VecDeque<u64>> {
    fn write(&self, next: u64, count: usize) -> usize {
        let mut deque = self.lock();
        let count = count.min(CAPACITY - deque.len());
        deque.extend((next..).take(count));
        count
    }

    fn read(&self, count: usize, sum: &mut u64) -> usize {
        let mut deque = self.lock();
        let count = count.min(deque.len());
        *sum += deque.drain(..count).sum::<u64>();
        count
    }
}

/// The load of a queue.
struct Load {
    /// Producers, and as many consumers; 0 for one thread that is both, so that nothing goes from one
    /// core to another.
    threads: usize,
    slice: usize,
    /// Of all producers.
    items: usize,
}

impl Load {
    fn ns_per_item(&self, queue: &impl Queue) -> Result<f64> {
        match self.threads {
            0 => self.ns_alone(queue),
            _ => self.ns_between_threads(queue),
        }
    }

    fn ns_alone(&self, queue: &impl Queue) -> Result<f64> {
        let items = self.items as u64;
        let took = time(|| {
            let (mut next, mut sum) = (0, 0);
            while next < items {
                next += queue.write(next, self.slice.min((items - next) as usize)) as u64;
                while queue.read(self.slice, &mut sum) > 0 {}
            }
            let expected = items * (items - 1) / 2;
            ensure!(sum == expected, "read {sum} of {expected}");
            Ok(())
        })?;
        Ok(took.seconds * 1e9 / items as f64)
    }

    fn ns_between_threads(&self, queue: &impl Queue) -> Result<f64> {
        let each = (self.items / self.threads) as u64;
        let producing = AtomicUsize::new(self.threads);
        let producer = || {
            let (mut next, mut failed) = (0, 0);
            while next < each {
                let count = self.slice.min((each - next) as usize);
                match queue.write(next, count) {
                    0 => wait(&mut failed),
                    written => {
                        next += written as u64;
                        failed = 0;
                    }
                }
            }
            // Release, so that a consumer that sees it sees all that was written.
            producing.fetch_sub(1, Ordering::Release);
        };
        let consumer = || {
            let (mut sum, mut failed) = (0, 0);
            loop {
                let is_last_look = producing.load(Ordering::Acquire) == 0;
                match queue.read(self.slice, &mut sum) {
                    0 if is_last_look => return sum,
                    0 => wait(&mut failed),
                    _ => failed = 0,
                }
            }
        };
        let expected = self.threads as u64 * (each * (each - 1) / 2);
        let took = time(|| {
            let sum: u64 = thread::scope(|scope| {
                (0..self.threads).for_each(|_| drop(scope.spawn(producer)));
                let consumers: Vec<_> = (0..self.threads).map(|_| scope.spawn(consumer)).collect();
                let sums = consumers.into_iter().map(|consumer| {
                    let sum = consumer.join();
                    sum.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
                sums.sum()
            });
            ensure!(sum == expected, "read {sum} of {expected}");
            Ok(())
        })?;
        Ok(took.seconds * 1e9 / (each * self.threads as u64) as f64)
    }
}

/// Waits after `failed` looks in vain: a moment at first, later until other threads have had their turn.
fn wait(failed: &mut u32) {
    *failed += 1;
    match *failed < LOOKS {
        true => std::hint::spin_loop(),
        false => thread::yield_now(),
    }
}
