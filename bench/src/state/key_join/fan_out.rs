//! One change of a user with very many orders, while orders of other users change.

use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use millstream_base::{ByteSize, KeyRange};
use millstream_connect::{
    EncodedRecord, JoinInput, JoinedRow, KeyJoin, KeyJoinSource, LogCheckpoints, LogKeys,
    StreamSink, StreamSource,
};
use millstream_flow::{
    Checkpointing, Emit, Flow, FlowSettings, Output, Resume, Running, Source as _, SourceStatus,
};
use millstream_log::{Log, LogConfig, Share, Stream, StreamConfig};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{KEY_JOIN, PARTITIONS, USER, Writer, create};
use crate::child::{self, Working, report};
use crate::clock::monotonic_ns;
use crate::measure::Bench;
use crate::proc::status_mib;
use crate::report::{Better, Case};
use crate::state::recovery::wait_until;

/// The least ratio of the 99th percentile before the change to that of the same changes during the fan-out.
const LATENCY_TARGET: f64 = 1.0 / 1.2;

/// The most memory of the process, of which the log's pool is a part.
const MEMORY_MIB_MAX: f64 = 1024.0;
const POOL: ByteSize = ByteSize(128 << 20);

/// The user with very many orders. The others follow, each with one order.
const HOT_USER: u64 = 0;
const OTHER_USERS: u64 = 1_000;

/// How often an order of another user changes, and how soon the first row and the last one are there.
const CHANGE_EVERY: Duration = Duration::from_millis(2);
const ROW_MAX: Duration = Duration::from_secs(60);

/// The changes of this time at the beginning do not count.
const WARM_UP: Duration = Duration::from_secs(2);

/// All rows of the user are written within this time.
const FAN_OUT_MAX: Duration = Duration::from_secs(3600);

/// The most bytes of an order that is looked up.
const ORDER_BYTES_MAX: usize = 1 << 10;

const FLOW: &str = "join";

/// The child process that joins.
#[derive(Debug, Serialize, Deserialize)]
pub struct FanOut {
    dir: PathBuf,
    /// The orders of the user.
    orders: u64,
    /// How long other orders change before the user does.
    before: Duration,
}

/// The figures of a run.
#[derive(Debug, Serialize, Deserialize)]
struct Ran {
    before: Latencies,
    during: Latencies,
    seconds: f64,
    memory_mib_before: f64,
    memory_mib_max: f64,
    checkpoints: u64,
}

/// Percentiles from a change to its row, in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
struct Latencies {
    changes: usize,
    /// Until the join gives the row.
    joined_p99: f64,
    /// Until readers of committed records have the row.
    read_p50: f64,
    read_p99: f64,
}

/// The rows so far.
#[derive(Debug, Default)]
struct Rows {
    /// The rows of the user with very many orders.
    hot: AtomicU64,
    /// Rows of other users: the time when the change was due, and the latency, in nanoseconds.
    others: Mutex<Vec<(u64, u64)>>,
}

pub fn fan_out(bench: &Bench) -> Result<Vec<Case>> {
    let orders = bench.size(20_000_000, 20_000);
    let folder = bench.folder(KEY_JOIN, 8 << 30)?;
    let dir = folder.path().join("log");
    fill(&dir, orders)?;
    bench.settle_disk();
    let mut child = Working::start(&FanOut {
        dir,
        orders,
        before: bench.size(Duration::from_secs(30), Duration::from_millis(500)),
    })?;
    let ran: Ran = child.hear()?;
    child.kill()?;
    let name = |figure| format!("{KEY_JOIN}/fan-out/{figure}");
    let memory = vec![ran.memory_mib_max];
    let memory = Case::new(name("memory"), "MiB", Better::Lower, memory)
        .bound(MEMORY_MIB_MAX)
        .detail("before_mib", ran.memory_mib_before);
    let latency = vec![ran.during.read_p99];
    let latency = Case::new(name("p99"), "ms", Better::Lower, latency)
        .by_hand(vec![ran.before.read_p99])
        .target(LATENCY_TARGET)
        .detail("rows", orders as f64)
        .detail("other_changes", ran.during.changes as f64)
        .detail("fan_out_s", ran.seconds)
        .detail("checkpoints", ran.checkpoints as f64)
        .detail("p50_ms", ran.during.read_p50)
        .detail("p50_before_ms", ran.before.read_p50)
        .detail("joined_p99_ms", ran.during.joined_p99)
        .detail("joined_p99_before_ms", ran.before.joined_p99);
    Ok(vec![memory, latency])
}

/// Stores the users, and the orders of one of them.
fn fill(dir: &Path, orders: u64) -> Result<()> {
    let log = Log::open(LogConfig::with_pool(dir, POOL))?;
    let create = |name, has_index| create(&log, name, has_index, StreamConfig::default());
    create("rows", false)?;
    let mut user = Writer::new(&create("users", false)?)?;
    for number in HOT_USER..=OTHER_USERS {
        user.put(number, None, b"old")?;
    }
    user.flush()?;
    let mut order = Writer::new(&create("orders", true)?)?;
    for number in 0..orders {
        order.put(number, Some(HOT_USER), &[0; 8])?;
    }
    order.flush()?;
    drop((user, order));
    Ok(log.close()?)
}

impl child::Task for FanOut {
    const NAME: &'static str = "state/key-join";

    fn run(self) -> Result<()> {
        let log = Log::open(LogConfig::with_pool(&self.dir, POOL))?;
        let [joined, read] = [(); 2].map(|()| Arc::<Rows>::default());
        let joining = self.join(&log, &joined)?;
        let reading = self.read(&log, &read)?;
        let memory_mib_before = status_mib(process::id(), "VmRSS")?;
        // The kernel counts the peak of the memory anew.
        fs::write("/proc/self/clear_refs", "5")?;
        let span = self.change(&log, &joining, &read)?;
        let memory_mib_max = status_mib(process::id(), "VmHWM")?;
        ensure!(!reading.is_finished(), "the reader has failed");
        let warm = span.started + ns(WARM_UP.min(self.before / 2));
        let latencies = |time: Range<u64>| Latencies::of(&joined, &read, &time);
        report(&Ran {
            before: latencies(warm..span.hot),
            during: latencies(span.hot..span.ended),
            seconds: (span.ended - span.hot) as f64 / 1e9,
            memory_mib_before,
            memory_mib_max,
            checkpoints: joining.checkpoints().unwrap_or_default().kept,
        })?;
        // Then it is killed.
        loop {
            sleep(FAN_OUT_MAX);
        }
    }
}

/// Moments of the monotonic clock, in nanoseconds.
struct Span {
    started: u64,
    /// The user with very many orders changes.
    hot: u64,
    /// Its last row is read.
    ended: u64,
}

impl FanOut {
    /// Changes orders of other users, then the user, and goes on until all rows are read.
    fn change(&self, log: &Log, joining: &Running, read: &Rows) -> Result<Span> {
        let mut order = Writer::new(&log.stream("orders")?)?;
        let mut user = Writer::new(&log.stream("users")?)?;
        self.warm_up(log, &mut order, read)?;
        let started = monotonic_ns();
        let hot_due = started + ns(self.before);
        let mut hot = None;
        let mut ended = None;
        let mut sent = 0;
        while ended.is_none() {
            // A change that is late counts from the time when it was due.
            let due = started + sent * ns(CHANGE_EVERY);
            sleep(Duration::from_nanos(due.saturating_sub(monotonic_ns())));
            if hot.is_none() && due >= hot_due {
                user.put(HOT_USER, None, b"new")?;
                user.send()?;
                hot = Some(due);
            }
            let other = HOT_USER + 1 + sent % OTHER_USERS;
            order.put(self.orders + other, Some(other), &due.to_be_bytes())?;
            order.send()?;
            sent += 1;
            ensure!(
                !joining.is_finished(),
                "the join has failed: {:?}",
                joining.join()
            );
            ensure!(
                due - started < ns(FAN_OUT_MAX),
                "the rows are not written in time"
            );
            let is_done = read.hot.load(Ordering::Relaxed) >= self.orders;
            ended = is_done.then(monotonic_ns);
        }
        let last = started + (sent - 1) * ns(CHANGE_EVERY);
        wait_until("the last row is read", ROW_MAX, || {
            let rows = read.others.lock();
            rows.iter().rev().any(|(due, _)| *due == last)
        })?;
        Ok(Span {
            started,
            hot: hot.context("the rows have come before the change")?,
            ended: ended.unwrap_or_default(),
        })
    }

    /// Looks up an order, so that the log has made the files of all keys, and waits for the first row.
    fn warm_up(&self, log: &Log, order: &mut Writer, read: &Rows) -> Result<()> {
        let orders = log.stream("orders")?;
        let user = KeyRange::key(HOT_USER.to_be_bytes());
        for partition in 0..PARTITIONS {
            let partition = orders.partition(partition)?;
            partition.find_by(USER, &user, None, 1, ORDER_BYTES_MAX)?;
        }
        let other = OTHER_USERS;
        order.put(
            self.orders + other,
            Some(other),
            &monotonic_ns().to_be_bytes(),
        )?;
        order.send()?;
        wait_until("the first row is read", ROW_MAX, || {
            !read.others.lock().is_empty()
        })
    }

    /// Starts the flow that joins the changes from now on.
    fn join(&self, log: &Log, joined: &Arc<Rows>) -> Result<Running> {
        let input = |name: &str| -> Result<JoinInput> {
            let stream = log.stream(name)?;
            Ok(JoinInput {
                changes: from_now(&stream)?.into(),
                keys: LogKeys::new(&stream)?.into(),
            })
        };
        let join = KeyJoin {
            index: USER.to_owned(),
            is_left_outer: false,
            share: Share::ALL,
        };
        let source = KeyJoinSource::new(input("orders")?, input("users")?, join);
        let settings = FlowSettings {
            checkpoints: Some(Checkpointing {
                store: Arc::new(LogCheckpoints::new(log, FLOW)),
                interval: None,
                resume: Resume::Never,
            }),
            ..FlowSettings::default()
        };
        let encode = |row: &JoinedRow, record: &mut EncodedRecord| {
            record.timestamp = row.time;
            record.key.extend_from_slice(&row.key);
            match &row.values {
                Some((order, _)) => record.value.extend_from_slice(order),
                None => record.is_deletion = true,
            }
        };
        let sink = StreamSink::new(&log.stream("rows")?, encode)?;
        let (joined, orders) = (Arc::clone(joined), self.orders);
        let flow = Flow::with_settings(FLOW, settings);
        flow.source("join", source.map_err(|error| anyhow!("{error}"))?)
            .map(move |row: &JoinedRow| {
                let order = row.values.as_ref().map(|(order, _)| &**order);
                joined.add(&row.key, order, orders);
                row.clone()
            })
            .sink("rows", sink);
        Ok(flow.run()?)
    }

    /// Starts a flow that reads the rows.
    fn read(&self, log: &Log, read: &Arc<Rows>) -> Result<Running> {
        let settings = FlowSettings {
            workers: NonZeroUsize::MIN,
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings("read", settings);
        let (read, orders) = (Arc::clone(read), self.orders);
        let nothing = flow.partial::<u64>("nothing");
        flow.source("rows", StreamSource::new(&log.stream("rows")?))
            .each(move |row, _: &mut Emit<'_, ()>| {
                read.add(row.key.unwrap_or_default(), row.value, orders);
                Ok(())
            })
            .fold_local(&nothing, |_, ()| ());
        Ok(flow.run()?)
    }
}

impl Rows {
    /// Adds a row. The order of another user names the time when its change was due.
    fn add(&self, key: &[u8], order: Option<&[u8]>, hot_orders: u64) {
        let number = |bytes: &[u8]| bytes.first_chunk().copied().map(u64::from_be_bytes);
        match number(key).zip(order.and_then(number)) {
            Some((key, _)) if key < hot_orders => {
                self.hot.fetch_add(1, Ordering::Relaxed);
            }
            Some((_, due)) => {
                let latency = monotonic_ns().saturating_sub(due);
                self.others.lock().push((due, latency));
            }
            None => {}
        }
    }

    /// Returns the latencies of the changes that were due in a time, in milliseconds and in their order.
    fn latencies(&self, time: &Range<u64>) -> Vec<f64> {
        let rows = self.others.lock();
        let rows = rows.iter().filter(|(due, _)| time.contains(due));
        let mut latencies: Vec<f64> = rows.map(|(_, ns)| *ns as f64 / 1e6).collect();
        latencies.sort_unstable_by(f64::total_cmp);
        latencies
    }
}

impl Latencies {
    fn of(joined: &Rows, read: &Rows, time: &Range<u64>) -> Latencies {
        let [joined, read] = [joined, read].map(|rows| rows.latencies(time));
        let at = |latencies: &[f64], part: f64| {
            let place = (latencies.len() as f64 * part) as usize;
            latencies.get(place).copied().unwrap_or(f64::NAN)
        };
        Latencies {
            changes: read.len(),
            joined_p99: at(&joined, 0.99),
            read_p50: at(&read, 0.5),
            read_p99: at(&read, 0.99),
        }
    }
}

/// Returns a source of the changes from now on.
fn from_now(stream: &Stream) -> Result<StreamSource> {
    let fail = |error| anyhow!("{error}");
    let mut past = StreamSource::bounded(stream);
    let mut read = Output::default();
    while past.poll(&mut read, 1, Waker::noop()).map_err(fail)? != SourceStatus::End {
        drop(read.drain());
    }
    let mut source = StreamSource::new(stream);
    let position = past.save().map_err(fail)?;
    source.restore(&position).map_err(fail)?;
    Ok(source)
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}
