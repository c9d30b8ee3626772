//! Transactions by the clock, and the operators over them.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use millstream_flow::windows::{Max, Min, Sum};
use millstream_flow::{
    BoxError, Emit, Flow, FlowSettings, Output, Source, SourcePartitions, SourceStatus,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::BURST;
use crate::clock::monotonic_ns;
use crate::measure::ended;

/// The bytes of a transaction's text.
const TEXT_BYTES: usize = 100;

/// How long operators may take to fill their windows.
const FILLING_MAX: Duration = Duration::from_secs(60);

/// The work of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Events in a window.
    pub size: u64,
    /// Events in a second, of all keys together.
    pub rate: u64,
    pub keys: u64,
    pub workers: u64,
    pub operators: u64,
}

/// The latencies of events.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    pub p50_ms: f64,
    pub p99_ms: f64,
}

impl Measured {
    fn of(mut latencies_ns: Vec<u64>, expected: u64) -> Result<Measured> {
        let count = latencies_ns.len() as u64;
        ensure!(
            count == expected,
            "{count} events were measured of {expected}"
        );
        latencies_ns.sort_unstable();
        let at = |part: f64| {
            let place = (count as f64 * part) as usize;
            latencies_ns[place.min(latencies_ns.len() - 1)] as f64 / 1e6
        };
        Ok(Measured {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
        })
    }
}

/// A transaction as it is streamed: when it was created, and its text.
type Line = (u64, String);

/// The attributes of a transaction that the operators use.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Transaction {
    customer: u64,
    amount: i64,
    created_ns: u64,
}

/// Returns a transaction's text: type, date, merchant, value, card, customer.
fn text(number: u64, keys: u64) -> String {
    let amount = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
    let (merchant, customer) = (number % 977, number % keys);
    let text = format!("purchase;2026-01-31;merchant {merchant};{amount};credit;{customer};");
    format!("{text:.<TEXT_BYTES$}")
}

fn parse((created_ns, text): &Line) -> Option<Transaction> {
    let mut attributes = text.split(';').skip(3);
    let amount = attributes.next()?.parse().ok()?;
    let customer = attributes.nth(1)?.parse().ok()?;
    Some(Transaction {
        customer,
        amount,
        created_ns: *created_ns,
    })
}

/// Transactions on their way to a flow.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<PipeState>>);

#[derive(Default)]
struct PipeState {
    lines: VecDeque<Line>,
    has_ended: bool,
    waker: Option<Waker>,
}

impl Pipe {
    fn change(&self, change: impl FnOnce(&mut PipeState)) {
        let mut state = self.0.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Source for Pipe {
    type Item = Line;

    fn partitions(&self) -> SourcePartitions<'_, Line> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<Line>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let mut state = self.0.lock();
        if state.lines.is_empty() {
            if state.has_ended {
                return Ok(SourceStatus::End);
            }
            state.waker = Some(waker.clone());
            return Ok(SourceStatus::Idle);
        }
        let count = state.lines.len().min(budget);
        out.extend(state.lines.drain(..count));
        Ok(SourceStatus::Ready)
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
}

impl Load {
    /// The events that fill all windows.
    fn filling(&self) -> u64 {
        self.size * self.keys
    }

    /// Sends the events that fill the windows, waits until the windows are full, and then sends bursts by the clock.
    fn send(
        &self,
        bursts: u64,
        are_full: impl Fn() -> bool,
        mut send: impl FnMut(Line),
    ) -> Result<()> {
        let filling = self.filling();
        for number in 0..filling {
            send((monotonic_ns(), text(number, self.keys)));
        }
        let began_at = Instant::now();
        while !are_full() {
            ensure!(
                began_at.elapsed() < FILLING_MAX,
                "windows of {} events are not full after {FILLING_MAX:?}: the machine is too slow, or a worker has ended",
                self.size
            );
            thread::sleep(Duration::from_millis(1));
        }
        let every = Duration::from_secs_f64(BURST as f64 / self.rate as f64);
        let began_at = Instant::now();
        for burst in 0..bursts {
            let due = every * u32::try_from(burst).unwrap_or(u32::MAX);
            thread::sleep(due.saturating_sub(began_at.elapsed()));
            for number in 0..BURST {
                let number = filling + burst * BURST + number;
                let text = text(number, self.keys);
                send((monotonic_ns(), text));
            }
        }
        Ok(())
    }

    /// The latencies of the events in the bursts.
    fn measured(&self, latencies_ns: Vec<u64>, bursts: u64) -> Result<Measured> {
        Measured::of(latencies_ns, bursts * BURST * self.operators)
    }

    /// Runs operators with count windows.
    pub fn flow(&self, bursts: u64) -> Result<Measured> {
        let settings = FlowSettings {
            workers: NonZeroUsize::new(self.workers as usize).context("no workers")?,
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings("transactions", settings);
        let pipe = Pipe::default();
        let latencies = Arc::new(Mutex::new(Vec::new()));
        let channels: Vec<_> = (0..self.operators)
            .map(|operator| flow.channel::<Transaction>(&format!("transactions {operator}")))
            .collect();
        flow.source("lines", pipe.clone())
            .flat_map(|line: &Line, emit: &mut Emit<'_, Transaction>| {
                parse(line).iter().for_each(emit);
            })
            .to_all(&channels);
        for (operator, channel) in channels.iter().enumerate() {
            let latencies = Arc::clone(&latencies);
            let nothing = flow.partial::<u64>(&format!("windows {operator}"));
            flow.stage(&format!("operator {operator}"), channel)
                .key_by(|transaction| transaction.customer)
                .count_windows(
                    &format!("recent {operator}"),
                    self.size,
                    1,
                    (
                        Sum::of(|it: &Transaction| it.amount),
                        Min::of(|it: &Transaction| it.amount),
                        Max::of(|it: &Transaction| it.created_ns),
                    ),
                )
                .fold_local(&nothing, move |count, window| {
                    let (.., created_ns) = window.value;
                    let latency = monotonic_ns() - created_ns.unwrap_or_default();
                    latencies.lock().push((window.last, latency));
                    *count += 1;
                });
        }
        let running = flow.run()?;
        let filling = self.filling() * self.operators;
        let sent = self.send(
            bursts,
            || latencies.lock().len() as u64 >= filling,
            |line| pipe.change(|state| state.lines.push_back(line)),
        );
        pipe.change(|state| state.has_ended = true);
        ended(&running)?;
        sent?;
        let latencies = std::mem::take(&mut *latencies.lock());
        let latencies = latencies.into_iter();
        let of_bursts = latencies.filter(|(last, _)| *last > self.size);
        self.measured(of_bursts.map(|(_, latency)| latency).collect(), bursts)
    }

    /// Runs a loop for each worker, which looks at all events of a full window whenever one comes.
    pub fn by_hand(&self, bursts: u64) -> Result<Measured> {
        let work = |lines: crossbeam_channel::Receiver<Line>| {
            let mut windows = vec![VecDeque::new(); self.operators as usize];
            let mut latencies = Vec::new();
            for transaction in lines.iter().filter_map(|line| parse(&line)) {
                for window in &mut windows {
                    window.push_back(transaction);
                    // The events that fill the windows are not measured. Looks at them would take time that grows with the
                    // square of the size.
                    if window.len() as u64 <= self.size {
                        continue;
                    }
                    window.pop_front();
                    let amounts = || window.iter().map(|it: &Transaction| it.amount);
                    let sum: i64 = amounts().sum();
                    std::hint::black_box((sum, amounts().min()));
                    latencies.push(monotonic_ns() - transaction.created_ns);
                }
            }
            latencies
        };
        let latencies = thread::scope(|scope| {
            let loops = (0..self.keys).map(|_| {
                let (sender, receiver) = crossbeam_channel::unbounded();
                (sender, scope.spawn(move || work(receiver)))
            });
            let (senders, loops): (Vec<_>, Vec<_>) = loops.unzip();
            let mut number = 0;
            let sent = self.send(
                bursts,
                || senders.iter().all(crossbeam_channel::Sender::is_empty),
                |line| {
                    // The receiver waits until the senders are gone.
                    let _ = senders[(number % self.keys) as usize].send(line);
                    number += 1;
                },
            );
            drop(senders);
            let ends = loops.into_iter().map(|it| it.join().ok());
            let latencies = ends.collect::<Option<Vec<_>>>();
            sent.and(latencies.context("a loop panicked"))
        })?;
        self.measured(latencies.into_iter().flatten().collect(), bursts)
    }
}
