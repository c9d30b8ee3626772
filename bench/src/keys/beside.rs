//! Work on old data beside produce and fetch at the head: scans, index building, compaction.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use fastrand::Rng;

use super::data::{KEY_BYTES, VALUE_BYTES, chunk_of};
use crate::connection::{Connection, TOPIC, check_produced, chunk, produce_frame};
use crate::fetcher::Fetcher;
use crate::measure::{Bench, order_of_turns};
use crate::proc::{bytes_of_thread, lower_own_priority, thread_named};
use crate::project::our_program;
use crate::report::{Better, Case};
use crate::server::Server;

pub const BESIDE: &str = "beside";

/// How often it is measured: one round takes long.
const ROUNDS: usize = 3;

/// Smaller than the old data.
const POOL: &str = "256MiB";

const HEAD: &str = "head";
const OLD: &str = "old";

/// A chunk of 20 records each millisecond, in a request of its own.
const SENT_EVERY: Duration = Duration::from_millis(1);
const CHUNK_RECORDS: usize = 20;

/// Chunks at the start whose times do not count.
const WARM_UP: usize = 200;

/// Records of a chunk of old data, of about 16 KB.
const OLD_CHUNK_RECORDS: usize = 125;

/// The bytes of a closed part of a table: only these are compacted.
const CLOSED_AT: &str = "16777216";

/// Longer than records have existed.
const NEVER: &str = "9000000000000";

/// How often a thread of the server is looked at, how long it rests when its work is over, and how soon it begins.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const RESTS_FOR: Duration = Duration::from_millis(1500);
const BEGINS_WITHIN: Duration = Duration::from_secs(60);

/// The least ratio of the 99th percentiles without work on old data to those beside it, and of the speeds of that work
/// beside the head to those of the work alone (requirement K15).
const LATENCY_TARGET: f64 = 1.0 / 1.5;
const SPEED_TARGET: f64 = 0.3;

/// Work on old data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Scan,
    IndexBuilding,
    Compaction,
}

const ALL: [Work; 3] = [Work::Scan, Work::IndexBuilding, Work::Compaction];

/// 99th percentiles, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Latencies {
    produce: f64,
    fetch: f64,
}

/// The figures of a round: without the other side, and with it.
#[derive(Debug)]
struct Figures {
    latencies: [Latencies; 2],
    /// In MB/s.
    speeds: [f64; 2],
}

pub fn beside(bench: &Bench) -> Result<Vec<Case>> {
    if our_program().is_none() {
        eprintln!(
            "bench: {BESIDE} left out: no program millstream beside this one; build it first"
        );
        return Ok(Vec::new());
    }
    let folder = bench.folder(BESIDE, 8 << 30)?;
    let log = bench.out().join("server.log");
    let settings = vec![("MILLSTREAM_POOL", POOL.to_owned())];
    let mut server = Server::start(folder.path(), &log, settings)?;
    let world = World {
        address: server.address(),
        process: server.id(),
        lasts: bench.size(Duration::from_secs(3), Duration::from_millis(300)),
        scanned_chunks: bench.size(64_000, 8_000),
        table_chunks: bench.size(20_000, 3_200),
    };
    let mut connection = Connection::to(world.address)?;
    connection.create_topic(OLD, 1, &[])?;
    world.fill(OLD, world.scanned_chunks, 0)?;
    world.head(&world.for_a_while())?;
    let mut rounds: [Vec<Figures>; 3] = Default::default();
    for round in 0..bench.size(ROUNDS, 1) {
        for (figures, found) in rounds.iter_mut().zip(world.round(bench, round)?) {
            figures.push(found);
        }
    }
    server.stop()?;
    let mut cases = Vec::new();
    for (work, rounds) in ALL.into_iter().zip(&rounds) {
        cases.extend(work.cases(rounds));
    }
    Ok(cases)
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Scan => "scan",
            Work::IndexBuilding => "index-building",
            Work::Compaction => "compaction",
        }
    }

    fn cases(self, rounds: &[Figures]) -> [Case; 3] {
        let latency = |name, pick: fn(&Latencies) -> f64| {
            let of = |side: usize| rounds.iter().map(move |round| pick(&round.latencies[side]));
            let name = format!("{BESIDE}/{}/{name}-p99", self.name());
            Case::new(name, "ms", Better::Lower, of(1).collect())
                .by_hand(of(0).collect())
                .target(LATENCY_TARGET)
        };
        let speed = |side: usize| rounds.iter().map(move |round| round.speeds[side]);
        let name = format!("{BESIDE}/{}/speed", self.name());
        [
            latency("produce", |of| of.produce),
            latency("fetch", |of| of.fetch),
            Case::new(name, "MB/s", Better::Higher, speed(1).collect())
                .by_hand(speed(0).collect())
                .target(SPEED_TARGET),
        ]
    }
}

struct World {
    address: SocketAddr,
    process: u32,
    /// How long a measurement without an end of its own lasts.
    lasts: Duration,
    /// Chunks of the topic that is scanned, and of each table.
    scanned_chunks: u64,
    table_chunks: u64,
}

impl World {
    /// Measures each kind of work alone and beside the head.
    fn round(&self, bench: &Bench, round: usize) -> Result<[Figures; 3]> {
        let tables = ["alone", "beside"].map(|side| format!("{side}-{round}"));
        let mut connection = Connection::to(self.address)?;
        for table in &tables {
            let settings = [
                ("min.compaction.lag.ms", NEVER),
                ("segment.bytes", CLOSED_AT),
            ];
            connection.create_topic(table, 1, &settings)?;
            self.fill(table, self.table_chunks, round as u64)?;
        }
        bench.settle_disk();
        let scan = self.scan()?;
        // The first change builds the index of each table, the second one compacts it.
        let mut work = |thread, setting| {
            bench.settle_disk();
            let quiet = self.head(&self.for_a_while())?;
            let mut loud = quiet;
            let mut speeds = [0.0; 2];
            for side in order_of_turns(round, 2) {
                bench.settle_disk();
                let mut begin = || connection.alter(TOPIC, &tables[side], &[setting]);
                let took = match side {
                    0 => {
                        begin()?;
                        self.wait_for(thread)?
                    }
                    _ => {
                        let ends = AtomicBool::new(false);
                        thread::scope(|scope| {
                            let head = scope.spawn(|| self.head(&|| ends.load(Ordering::Relaxed)));
                            let took = begin().and_then(|()| self.wait_for(thread));
                            ends.store(true, Ordering::Relaxed);
                            loud = joined(head.join())?;
                            took
                        })?
                    }
                };
                speeds[side] = megabytes(self.table_chunks) / took.as_secs_f64();
            }
            Ok::<_, anyhow::Error>(Figures {
                latencies: [quiet, loud],
                speeds,
            })
        };
        let index = work("millstream-keys", ("cleanup.policy", "compact"))?;
        let compaction = work("millstream-compact", ("min.compaction.lag.ms", "0"))?;
        for table in &tables {
            connection.delete_topic(table)?;
        }
        Ok([scan, index, compaction])
    }

    /// Appends old data: records of random keys.
    fn fill(&self, topic: &str, chunks: u64, seed: u64) -> Result<()> {
        const IN_FLIGHT: u64 = 16;
        let mut rng = Rng::with_seed(seed);
        let mut connection = Connection::to(self.address)?;
        let keys = chunks * OLD_CHUNK_RECORDS as u64 / 2;
        for number in 0..chunks {
            let chunk = chunk_of(&mut rng, OLD_CHUNK_RECORDS, keys, number)?;
            connection.send(&produce_frame(topic, &[0], &chunk)?)?;
            if number >= IN_FLIGHT {
                check_produced(connection.receive()?)?;
            }
        }
        for _ in 0..IN_FLIGHT.min(chunks) {
            check_produced(connection.receive()?)?;
        }
        Ok(())
    }

    /// Measures a client that reads the old data again and again.
    fn scan(&self) -> Result<Figures> {
        let quiet = self.head(&self.for_a_while())?;
        let (ends, chunks) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let scanning = scope.spawn(|| self.read_again_and_again(&ends, &chunks));
            let measure = |work: &dyn Fn() -> Result<Latencies>| {
                let (begin, started_at) = (chunks.load(Ordering::Relaxed), Instant::now());
                let latencies = work()?;
                // Beside other programs a short measurement may end before the scan has had a processor.
                let read = loop {
                    let read = chunks.load(Ordering::Relaxed) - begin;
                    if read > 0 {
                        break read;
                    }
                    ensure!(
                        started_at.elapsed() < BEGINS_WITHIN,
                        "the scan reads nothing"
                    );
                    thread::sleep(LOOK_EVERY);
                };
                let speed = megabytes(read) / started_at.elapsed().as_secs_f64();
                Ok((latencies, speed))
            };
            let alone = measure(&|| {
                thread::sleep(self.lasts);
                Ok(quiet)
            });
            let beside = measure(&|| self.head(&self.for_a_while()));
            ends.store(true, Ordering::Relaxed);
            joined(scanning.join())?;
            let ((_, alone), (loud, beside)) = (alone?, beside?);
            Ok(Figures {
                latencies: [quiet, loud],
                speeds: [alone, beside],
            })
        })
    }

    /// The client gets the processors that the clients at the head leave free, since it stands for one on another
    /// machine.
    fn read_again_and_again(&self, ends: &AtomicBool, chunks: &AtomicU64) -> Result<()> {
        lower_own_priority()?;
        let end = (self.scanned_chunks * OLD_CHUNK_RECORDS as u64) as i64;
        let mut next = end;
        let mut fetcher = Fetcher::new(self.address, OLD, 0)?;
        while !ends.load(Ordering::Relaxed) {
            if next == end {
                next = 0;
                fetcher = Fetcher::new(self.address, OLD, 0)?;
            }
            let before = next;
            next = fetcher.fetch()?;
            let read = (next - before) as u64 / OLD_CHUNK_RECORDS as u64;
            chunks.fetch_add(read, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for work of a thread of the server that is about to begin. Returns how long it took, from the look before
    /// its first read or write to the look after its last one, so short work takes some time, too: the thread looks for
    /// work each second.
    fn wait_for(&self, name: &str) -> Result<Duration> {
        let thread = thread_named(self.process, name)?;
        let bytes = || bytes_of_thread(self.process, thread);
        let (asked_at, before) = (Instant::now(), bytes()?);
        let mut began = asked_at;
        let mut last = loop {
            let looked_at = Instant::now();
            let now = bytes()?;
            if now != before {
                break now;
            }
            ensure!(asked_at.elapsed() < BEGINS_WITHIN, "{name} does nothing");
            began = looked_at;
            thread::sleep(LOOK_EVERY);
        };
        let mut last_at = Instant::now();
        while last_at.elapsed() < RESTS_FOR {
            let now = bytes()?;
            if now != last {
                (last, last_at) = (now, Instant::now());
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(last_at - began)
    }

    /// An end of [`head`](Self::head) after the time that a measurement lasts.
    fn for_a_while(&self) -> impl Fn() -> bool + Sync {
        let until = Instant::now() + self.lasts;
        move || Instant::now() >= until
    }

    /// Produces to a topic, and fetches at its head, until it ends.
    fn head(&self, ends: &(impl Fn() -> bool + Sync)) -> Result<Latencies> {
        let frame = produce_frame(HEAD, &[0], &chunk(CHUNK_RECORDS)?)?;
        let mut producer = Connection::to(self.address)?;
        // The disk's time for a sync would hide that of all else.
        producer.create_topic(HEAD, 1, &[("millstream.durability", "async")])?;
        let mut consumer = Fetcher::new(self.address, HEAD, 0)?;
        let started_at = Instant::now();
        let due = |number: usize| started_at + SENT_EVERY * number as u32;
        // Of chunks; unknown while they are produced.
        let count = AtomicU64::new(u64::MAX);
        let latencies = thread::scope(|scope| {
            let producing = scope.spawn(|| {
                let mut latencies = Vec::new();
                let produced = loop {
                    let number = latencies.len();
                    if number > 2 * WARM_UP && ends() {
                        break Ok(());
                    }
                    thread::sleep(due(number).saturating_duration_since(Instant::now()));
                    let sent = producer.send(&frame);
                    let answered = sent.and_then(|()| check_produced(producer.receive()?));
                    if answered.is_err() {
                        break answered;
                    }
                    latencies.push(due(number).elapsed());
                };
                count.store(latencies.len() as u64, Ordering::Relaxed);
                produced.map(|()| latencies)
            });
            let mut latencies = Vec::new();
            while (latencies.len() as u64) < count.load(Ordering::Relaxed) {
                let arrived = consumer.fetch()? as usize / CHUNK_RECORDS;
                let chunks = latencies.len()..arrived;
                latencies.extend(chunks.map(|number| due(number).elapsed()));
            }
            Ok::<_, anyhow::Error>(Latencies {
                produce: p99(joined(producing.join())?)?,
                fetch: p99(latencies)?,
            })
        })?;
        Connection::to(self.address)?.delete_topic(HEAD)?;
        Ok(latencies)
    }
}

fn joined<T>(ended: thread::Result<Result<T>>) -> Result<T> {
    ended.map_err(|_| anyhow!("a client panicked"))?
}

/// The size of the keys and values of chunks of old data.
fn megabytes(chunks: u64) -> f64 {
    (chunks * (OLD_CHUNK_RECORDS * (KEY_BYTES + VALUE_BYTES)) as u64) as f64 / 1e6
}

fn p99(all: Vec<Duration>) -> Result<f64> {
    let mut all = all.get(WARM_UP..).context("too few chunks")?.to_vec();
    all.sort_unstable();
    let at = all.get(all.len() * 99 / 100).context("too few chunks")?;
    Ok(at.as_secs_f64() * 1e3)
}
