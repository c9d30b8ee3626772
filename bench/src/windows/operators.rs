//! The process of one contender: a log, a producer by the clock, and operators over its events.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use millstream_base::{ByteSize, Clock, SystemClock};
use millstream_connect::{StoredChunks, StreamSource};
use millstream_flow::windows::{WindowEvents, Windows};
use millstream_flow::{Channel, Collected, Flow, FlowSettings, Parts, Watermarks};
use millstream_log::{Durability, Log, LogConfig, Stream, StreamConfig};
use millstream_record::{ChunkBuilder, Compression, Record};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::copies::{Copies, Event};
use crate::child::{self, report};
use crate::measure::{ended, median, time};
use crate::proc::status_mib;

/// A window lasts a second: at full size it has 100,000 events.
const WINDOW_MS: i64 = 1000;
const SLIDE_MS: i64 = 100;

/// Room for the window in the quarter of the pool that pinned slices may cover.
const POOL: ByteSize = ByteSize(128 << 20);

const VALUE_BYTES: usize = 100;

/// How often a chunk is appended.
const CHUNK_EVERY: Duration = Duration::from_millis(1);
const CHUNKS_PER_SECOND: u64 = 1000;

/// Windows that pass before the measurement: then the first is full, and memory has its final size.
const WARM_UP_WINDOWS: u64 = 20;

/// The work of the child process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    pub dir: PathBuf,
    pub operators: usize,
    pub keep: Keep,
    pub events_per_second: u64,
    /// How many windows are measured.
    pub windows: u64,
}

impl child::Task for Task {
    const NAME: &'static str = "windows/operators";

    fn run(self) -> Result<()> {
        run(&self)
    }
}

/// The form in which operators keep events of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keep {
    /// Handles of the log's chunks, all of the same chunk.
    Shared,
    /// Copies of the events, each its own.
    Copies,
}

/// The figures of the child process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// From the end of a window to the end of the function over it.
    pub latency_ms: Latency,
    /// Windows of all operators together that were measured.
    pub windows: usize,
    /// Memory of the process's own that is resident, without the log's pool.
    pub allocated_mib: f64,
    /// All that is resident.
    pub resident_mib: f64,
    /// The events, pinned where the log has them.
    pub in_place_mib: f64,
    pub cpu_s: f64,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

/// The result of one operator for one window.
struct WindowResult {
    start: i64,
    events: u64,
    sum: u64,
    latency_us: f64,
}

/// The results of all operators.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<Vec<WindowResult>>>);

fn run(task: &Task) -> Result<()> {
    let log = Log::open(LogConfig::with_pool(&task.dir, POOL))?;
    let config = StreamConfig {
        durability: Durability::Memory,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("events", config)?;
    let source = StreamSource::new(&stream);
    let ending = source.ending();
    let (book, mut recent) = (Book::default(), Vec::new());
    let flow = Flow::with_settings("windows", FlowSettings::default());
    let read = Arc::new(AtomicU64::new(0));
    let in_place = Arc::new(AtomicBool::new(true));
    let (counted, is_in_place) = (Arc::clone(&read), Arc::clone(&in_place));
    let channels: Vec<Channel<StoredChunks>> = (0..task.operators.max(1))
        .map(|number| flow.channel(&format!("events {number}")))
        .collect();
    flow.source("read", source)
        .watermarks(StoredChunks::latest, Watermarks::bounded(Duration::ZERO))
        .filter(move |chunks| {
            counted.fetch_add(1, Ordering::Relaxed);
            is_in_place.fetch_and(chunks.is_in_place(), Ordering::Relaxed);
            true
        })
        .to_all(&channels);
    for (number, channel) in channels.iter().enumerate() {
        let name = format!("operator {number}");
        match (task.operators, task.keep) {
            (0, _) => {
                let nothing = flow.partial::<u64>("nothing");
                let stage = flow.stage(&name, channel);
                stage.fold_local(&nothing, |count, _| *count += 1);
            }
            (_, Keep::Shared) => recent.push(shared(&flow, &name, channel, &book)),
            (_, Keep::Copies) => recent.push(copying(&flow, &name, channel, &book)),
        }
    }
    let running = flow.run()?;
    let is_over = AtomicBool::new(false);
    let mut measured = thread::scope(|scope| -> Result<Measured> {
        let producer = scope.spawn(|| produce(&stream, task.events_per_second, &is_over));
        let measured = measure(task, &recent);
        is_over.store(true, Ordering::Relaxed);
        let produced = producer.join().ok().context("the producer panicked")?;
        produced?;
        measured
    })?;
    ending.end_at_durable_head();
    ended(&running)?;
    ensure!(read.load(Ordering::Relaxed) > 0, "nothing was read");
    if task.keep == Keep::Copies || task.operators == 0 || !in_place.load(Ordering::Relaxed) {
        // Events that are not in place were allocated.
        measured.in_place_mib = 0.0;
    }
    book.check(task)?;
    let windows = book.latencies(task);
    measured.windows = windows.len();
    measured.latency_ms = latency(windows);
    report(&measured)
}

fn shared(flow: &Flow, name: &str, channel: &Channel<StoredChunks>, book: &Book) -> Collected {
    let windows = Windows::sliding(WINDOW_MS, SLIDE_MS);
    let recent = flow.collected(&format!("recent of {name}"), windows);
    let book = book.clone();
    let nothing = flow.partial::<u64>(&format!("windows of {name}"));
    flow.stage(name, channel)
        .over(&recent)
        .collect(&format!("{name}/windows"), |record| record.timestamp)
        .fold_local(&nothing, move |count, window| {
            book.evaluate(window, |record: &Record<'_>| {
                number(record.value.unwrap_or_default())
            });
            *count += 1;
        });
    recent
}

fn copying(flow: &Flow, name: &str, channel: &Channel<StoredChunks>, book: &Book) -> Collected {
    let windows = Windows::sliding(WINDOW_MS, SLIDE_MS);
    let recent = flow.collected(&format!("recent of {name}"), windows);
    let book = book.clone();
    let nothing = flow.partial::<u64>(&format!("windows of {name}"));
    flow.stage(name, channel)
        .map(Copies::of)
        .over(&recent)
        .collect(&format!("{name}/windows"), |event| event.time)
        .fold_local(&nothing, move |count, window| {
            book.evaluate(window, |event: &Event| number(&event.value));
            *count += 1;
        });
    recent
}

fn number(value: &[u8]) -> u64 {
    value
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Book {
    /// The function over a window: it looks at each event.
    fn evaluate<T, F>(&self, window: &WindowEvents<T>, number: F)
    where
        T: Parts,
        F: Fn(&T::Part<'_>) -> u64,
    {
        let (mut events, mut sum) = (0, 0u64);
        window.for_each_part(|event: &T::Part<'_>| {
            events += 1;
            sum = sum.wrapping_mul(31).wrapping_add(number(event));
        });
        let end_us = window.end.0 as f64 * 1e3;
        self.0.lock().push(WindowResult {
            start: window.start.0,
            events,
            sum,
            latency_us: now_us() - end_us,
        });
    }

    /// All operators have seen the same, and nothing was left out.
    fn check(&self, task: &Task) -> Result<()> {
        let mut book = self.0.lock();
        book.sort_by_key(|result| result.start);
        for result in book.chunk_by(|a, b| a.start == b.start) {
            let is_same = |other: &WindowResult| {
                (other.events, other.sum) == (result[0].events, result[0].sum)
            };
            ensure!(
                result.len() == task.operators && result.iter().all(is_same),
                "operators saw different events of the window from {} on",
                result[0].start
            );
        }
        Ok(())
    }

    /// Of the windows after those that warm up and before those that the end closes, in microseconds.
    fn latencies(&self, task: &Task) -> Vec<f64> {
        let book = self.0.lock();
        let Some(first) = book.iter().map(|result| result.start).min() else {
            return Vec::new();
        };
        let from = first + WARM_UP_WINDOWS as i64 * SLIDE_MS;
        let to = from + task.windows as i64 * SLIDE_MS;
        let is_measured = |result: &&WindowResult| (from..to).contains(&result.start);
        let measured = book.iter().filter(is_measured);
        measured.map(|result| result.latency_us).collect()
    }
}

/// Waits until all windows that are measured are over, and looks at the memory.
fn measure(task: &Task, recent: &[Collected]) -> Result<Measured> {
    let slide = Duration::from_millis(SLIDE_MS as u64);
    let window = Duration::from_millis(WINDOW_MS as u64);
    thread::sleep(slide * WARM_UP_WINDOWS as u32 + window);
    let id = std::process::id();
    let (mut allocated, mut resident, mut in_place) = (Vec::new(), Vec::new(), Vec::new());
    let took = time(|| {
        for _ in 0..=task.windows {
            thread::sleep(slide);
            allocated.push(status_mib(id, "RssAnon")?);
            resident.push(status_mib(id, "VmRSS")?);
            let events = recent.iter().map(Collected::open_events).max();
            in_place.push(events.unwrap_or(0) as f64 * VALUE_BYTES as f64 / f64::from(1 << 20));
        }
        Ok(())
    })?;
    Ok(Measured {
        latency_ms: Latency::default(),
        windows: 0,
        allocated_mib: median(&allocated),
        resident_mib: median(&resident),
        in_place_mib: median(&in_place),
        cpu_s: took.cpu_seconds,
    })
}

/// Appends events by the clock, a chunk at a time.
fn produce(stream: &Stream, events_per_second: u64, is_over: &AtomicBool) -> Result<()> {
    let lane = stream.partition(0)?;
    let mut builder = ChunkBuilder::new(Compression::None);
    let mut value = [0; VALUE_BYTES];
    let (mut number, started_at) = (0u64, Instant::now());
    for chunk in 1.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        for _ in 0..events_per_second / CHUNKS_PER_SECOND {
            value[..8].copy_from_slice(&number.to_le_bytes());
            number += 1;
            let now = SystemClock::default().now();
            builder.push(now, None, Some(&value), &[])?;
        }
        lane.append(builder.finish(None)?)?;
        builder.clear();
        thread::sleep((CHUNK_EVERY * chunk).saturating_sub(started_at.elapsed()));
    }
    Ok(())
}

fn now_us() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0.0, |since| since.as_secs_f64() * 1e6)
}

fn latency(mut latencies_us: Vec<f64>) -> Latency {
    latencies_us.sort_unstable_by(f64::total_cmp);
    let count = latencies_us.len();
    let at = |part: f64| latencies_us.get((count as f64 * part) as usize).copied();
    Latency {
        mean: latencies_us.iter().sum::<f64>() / count.max(1) as f64 / 1e3,
        p50: at(0.5).unwrap_or_default() / 1e3,
        p99: at(0.99).unwrap_or_default() / 1e3,
    }
}
