//! The figures of each stage: its counts so far, and its present speed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use millstream_pool::ACTIVATION_MAX;
use parking_lot::Mutex;
use serde::Serialize;

use crate::stage::activation::Activation;

/// The time that an activation should take, unless the pool's objectives are short: long against the cost of activating (a
/// microsecond), short against any latency that matters, and so short that its results are still in the processor's cache when the
/// next stage reads them.
pub const SLICE_NS: u64 = ACTIVATION_MAX.as_nanos() as u64;

/// Items of an activation before it is known how long one takes.
const BUDGET_FIRST: usize = 64;

/// Items of an activation at most, however short they take.
const BUDGET_MAX: usize = 1 << 16;

/// The weight that the earlier slices keep in the sums of the averages with each new slice. A slice counts by its
/// items: a slice of a single item, whose time is mostly the activation's own, says little about the time per item.
const KEPT: f64 = 0.8;

/// Sums below this are nothing: they would get smaller for ever without becoming 0.
const NEGLIGIBLE: f64 = 1e-9;

/// Written by the workers once per activation, read by any thread at any time. The averages are not
/// exact when two workers write them at once; nothing but speed depends on them.
pub struct Counters {
    items_in: AtomicU64,
    items_out: AtomicU64,
    activations: AtomicU64,
    blocked: AtomicU64,
    idle: AtomicU64,
    busy_ns: AtomicU64,
    dead_letters: AtomicU64,
    /// When a worker last tried it, in nanoseconds of the flow's clock. Written and read by workers.
    pub tried_at_ns: AtomicU64,
    /// Items, results and nanoseconds of the last slices, where each earlier slice counts less. Written by
    /// workers after each slice.
    recent_items: AtomicF64,
    recent_results: AtomicF64,
    recent_ns: AtomicF64,
    /// Items per second, over the last interval. Written by the worker that adjusts the flow.
    pub throughput: AtomicF64,
    /// Written and read by the scheduler.
    pub target: AtomicF64,
    pub priority: AtomicF64,
    /// From a record's entry into the flow to here, in nanoseconds, of one record in a hundred. Only recorded by
    /// stages at the end of a flow.
    latency: Mutex<Histogram<u64>>,
}

/// The latest figures of one stage, and its counts since the flow began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageMetrics {
    /// The stage.
    pub stage: String,
    /// Items read.
    pub items_in: u64,
    /// Items passed on to a ring or a sink.
    pub items_out: u64,
    /// Times that a worker activated the stage.
    pub activations: u64,
    /// Activations that found no room downstream.
    pub blocked: u64,
    /// Activations that found nothing to read.
    pub idle: u64,
    /// Time that workers spent in it.
    pub busy_seconds: f64,
    /// Items, or parts of items, that became dead letters.
    pub dead_letters: u64,
    /// Items that wait to be read now; for a source the number that it gave lately at a time.
    pub readable: usize,
    /// Free room now in the rings that the stage writes to; absent at the end of a flow.
    pub room: Option<usize>,
    /// Items for which the rings that it reads have memory now; absent for a source.
    pub capacity: Option<usize>,
    /// Items read per second, over the last interval of the scheduler.
    pub throughput: f64,
    /// Results per item, averaged over the last slices.
    pub selectivity: f64,
    /// Nanoseconds per item, averaged over the last slices; 0 before the first.
    pub item_ns: f64,
    /// How many results the scheduler would like to see from it.
    pub target: f64,
    /// How urgent the scheduler found it when it last looked.
    pub priority: f64,
    /// The watermark of the stage, in milliseconds since 1970: no item that is in time is earlier. Of a source with
    /// several instances it is the least. Absent before the first watermark.
    pub watermark_ms: Option<i64>,
    /// How far the clock is ahead of that, in seconds.
    pub watermark_lag_seconds: Option<f64>,
    /// How long a source that emits watermarks has given nothing, in seconds; absent while items come, and for other
    /// stages.
    pub silent_seconds: Option<f64>,
    /// Offsets that the sources of the stage could read and have not, of records and of markers of transactions; absent
    /// where they do not know.
    pub lag_records: Option<u64>,
}

/// How long records were on their way through a flow, from the source to a sink, a state or a window. One record in a
/// hundred is sampled: in a stage that reads the source, an item counts for all the records that it
/// [holds](crate::Source::records_of); behind a ring, an item is a record.
///
/// A percentile is absent while there are too few samples for it: it takes one sample above it, which are 2, 10,
/// 100 and 1,000 samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// Records that were sampled.
    pub samples: u64,
    /// Half of them took no longer, in microseconds.
    pub p50_us: Option<f64>,
    /// 90 % of them took no longer.
    pub p90_us: Option<f64>,
    /// 99 %.
    pub p99_us: Option<f64>,
    /// 99.9 %.
    pub p999_us: Option<f64>,
    /// The slowest.
    pub max_us: f64,
    /// The histogram: each entry is an upper bound in microseconds, and how many samples lie
    /// between the bound before and this one.
    pub histogram: Vec<(f64, u64)>,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            items_in: AtomicU64::default(),
            items_out: AtomicU64::default(),
            activations: AtomicU64::default(),
            blocked: AtomicU64::default(),
            idle: AtomicU64::default(),
            busy_ns: AtomicU64::default(),
            dead_letters: AtomicU64::default(),
            tried_at_ns: AtomicU64::default(),
            recent_items: AtomicF64::new(0.0),
            recent_results: AtomicF64::new(0.0),
            recent_ns: AtomicF64::new(0.0),
            throughput: AtomicF64::new(0.0),
            target: AtomicF64::new(1.0),
            priority: AtomicF64::new(0.0),
            latency: Mutex::new(new_histogram()),
        }
    }
}

impl Counters {
    /// A slice of `items_in` items gave `items_out` results and took `ns`.
    pub fn add_slice(&self, items_in: usize, items_out: usize, ns: u64) {
        self.items_in.fetch_add(items_in as u64, Ordering::Relaxed);
        self.items_out
            .fetch_add(items_out as u64, Ordering::Relaxed);
        self.busy_ns.fetch_add(ns, Ordering::Relaxed);
        if items_in > 0 {
            let add = |sum: &AtomicF64, newest: f64| {
                let sum_now = sum.get() * KEPT + newest;
                sum.set(if sum_now < NEGLIGIBLE { 0.0 } else { sum_now });
            };
            add(&self.recent_items, items_in as f64);
            add(&self.recent_results, items_out as f64);
            add(&self.recent_ns, ns as f64);
        }
    }

    /// Results that did not come with a slice.
    pub fn add_out(&self, count: usize) {
        self.items_out.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub fn add_dead_letters(&self, count: usize) {
        self.dead_letters.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub fn add_activation(&self, activation: Activation) {
        self.activations.fetch_add(1, Ordering::Relaxed);
        match activation {
            Activation::Blocked => self.blocked.fetch_add(1, Ordering::Relaxed),
            Activation::Idle => self.idle.fetch_add(1, Ordering::Relaxed),
            Activation::Done(_) | Activation::Ended => 0,
        };
    }

    /// Results per item; 1 before that is known.
    pub fn selectivity(&self) -> f64 {
        match self.recent_items.get() {
            0.0 => 1.0,
            items => self.recent_results.get() / items,
        }
    }

    /// Nanoseconds per item; 0 before that is known.
    pub fn item_ns(&self) -> f64 {
        match self.recent_items.get() {
            0.0 => 0.0,
            items => self.recent_ns.get() / items,
        }
    }

    pub fn items_in(&self) -> u64 {
        self.items_in.load(Ordering::Relaxed)
    }

    /// How many items an activation should process to take about this time.
    pub fn budget(&self, slice_ns: u64) -> usize {
        match self.item_ns() {
            0.0 => BUDGET_FIRST,
            item_ns => ((slice_ns as f64 / item_ns) as usize).clamp(1, BUDGET_MAX),
        }
    }

    /// Locked once per slice, and by readers.
    pub fn latency(&self) -> &Mutex<Histogram<u64>> {
        &self.latency
    }

    /// Returns the counts; the caller adds the figures of the rings, of event time and of the sources.
    pub fn read(&self, stage: &str) -> StageMetrics {
        StageMetrics {
            stage: stage.to_owned(),
            items_in: self.items_in(),
            items_out: self.items_out.load(Ordering::Relaxed),
            activations: self.activations.load(Ordering::Relaxed),
            blocked: self.blocked.load(Ordering::Relaxed),
            idle: self.idle.load(Ordering::Relaxed),
            busy_seconds: self.busy_ns.load(Ordering::Relaxed) as f64 / 1e9,
            dead_letters: self.dead_letters.load(Ordering::Relaxed),
            readable: 0,
            room: None,
            capacity: None,
            throughput: self.throughput.get(),
            selectivity: self.selectivity(),
            item_ns: self.item_ns(),
            target: self.target.get(),
            priority: self.priority.get(),
            watermark_ms: None,
            watermark_lag_seconds: None,
            silent_seconds: None,
            lag_records: None,
        }
    }
}

/// Two significant digits up to an hour.
pub fn new_histogram() -> Histogram<u64> {
    const NS_MAX: u64 = Duration::from_secs(3600).as_nanos() as u64;
    Histogram::new_with_bounds(1, NS_MAX, 2).expect("the bounds are in order")
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        // At least one of `samples` lies above it.
        let quantile = |quantile, samples_min| {
            (histogram.len() >= samples_min).then(|| us(histogram.value_at_quantile(quantile)))
        };
        Latency {
            samples: histogram.len(),
            p50_us: quantile(0.5, 2),
            p90_us: quantile(0.9, 10),
            p99_us: quantile(0.99, 100),
            p999_us: quantile(0.999, 1_000),
            max_us: us(histogram.max()),
            histogram: histogram
                .iter_recorded()
                .map(|step| {
                    (
                        us(step.value_iterated_to()),
                        step.count_since_last_iteration(),
                    )
                })
                .collect(),
        }
    }
}

/// A number that one writes and others read, as its bits.
pub struct AtomicF64(AtomicU64);

impl AtomicF64 {
    pub fn new(value: f64) -> Self {
        AtomicF64(AtomicU64::new(value.to_bits()))
    }

    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}
