//! Durable ingestion, beside plain `write` and `fdatasync` of the same bytes in groups of the same
//! size.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use millstream_base::{ByteSize, Offset};
use millstream_log::{Log, LogConfig, StreamConfig, StreamPartition};
use rustix::fs::{FallocateFlags, fallocate};

use super::data::Chunks;
use crate::measure::{Bench, Took, cpu_per_million, median, megabytes_per_second, time};
use crate::report::{Better, Case};

pub const ONE_LANE: &str = "durable-one-lane";
pub const THOUSAND_LANES: &str = "durable-1000-lanes";
pub const VIRTUAL_LOGS: &str = "virtual-logs";

const POOL_BYTES: u64 = 256 << 20;

/// The bytes that a producer may have unanswered.
const UNANSWERED_BYTES_MAX: usize = 8 << 20;

/// One busy lane, one producer.
pub fn one_lane(bench: &Bench) -> Result<Vec<Case>> {
    let set_up = |log: &Log| {
        let stream = log.create_stream("stream", StreamConfig::default())?;
        Ok(vec![vec![stream.partition(0)?]])
    };
    let bytes = bench.size(512 << 20, 4 << 20);
    let ingestion = Ingestion::measure(bench, ONE_LANE, bytes, set_up)?;
    Ok(vec![ingestion.case(ONE_LANE).target(0.8)])
}

/// A thousand lanes: of one stream with one virtual log, and of as many streams.
pub fn thousand_lanes(bench: &Bench) -> Result<Vec<Case>> {
    let lanes = bench.size(1000, 50);
    // The journal is filled and emptied twice in each round, so that the second write is paid for.
    let bytes = bench.size(1 << 30, 4 << 20);
    let one_stream = |log: &Log| {
        let config = StreamConfig {
            lanes,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("stream", config)?;
        let lanes = (0..lanes).map(|n| Ok(stream.partition(n)?));
        Ok(vec![lanes.collect::<Result<_>>()?])
    };
    let many_streams = |log: &Log| {
        let lanes = (0..lanes).map(|n| {
            let stream = log.create_stream(&format!("stream-{n}"), StreamConfig::default())?;
            Ok(stream.partition(0)?)
        });
        Ok(vec![lanes.collect::<Result<_>>()?])
    };
    let one = Ingestion::measure(bench, THOUSAND_LANES, bytes, one_stream)?;
    let many = Ingestion::measure(bench, THOUSAND_LANES, bytes, many_streams)?;
    Ok(vec![
        one.case(&format!("{THOUSAND_LANES}/one-stream"))
            .target(0.45),
        many.case(&format!("{THOUSAND_LANES}/many-streams"))
            .target(0.45),
    ])
}

/// Four producers on four lanes that share fewer or more virtual logs.
pub fn virtual_logs(bench: &Bench) -> Result<Vec<Case>> {
    let bytes = bench.size(512 << 20, 4 << 20);
    let mut cases: Vec<Case> = Vec::new();
    for virtual_logs in [1, 2, 4] {
        let set_up = |log: &Log| {
            let config = StreamConfig {
                lanes: 4,
                virtual_logs,
                ..StreamConfig::default()
            };
            let stream = log.create_stream("stream", config)?;
            let producers = (0..4).map(|n| Ok(vec![stream.partition(n)?]));
            producers.collect()
        };
        let ingestion = Ingestion::measure(bench, VIRTUAL_LOGS, bytes, set_up)?;
        let case = ingestion.case(&format!("{VIRTUAL_LOGS}/{virtual_logs}"));
        cases.push(match cases.first() {
            Some(one) => case.peer("one virtual log", one.ours),
            None => case,
        });
    }
    Ok(cases)
}

/// The rounds of a durable ingestion.
struct Ingestion {
    bytes: f64,
    records: f64,
    rounds: Vec<Round>,
}

struct Round {
    ours: Took,
    /// Into a file that grows.
    plain: Took,
    /// Into a file whose blocks are there before.
    preallocated: Took,
    /// Bytes that one commit makes durable, on average.
    commit_bytes: f64,
    commits: f64,
    /// The part of the bytes that was written once, straight into the groups' files.
    direct_part: f64,
}

impl Ingestion {
    /// Measures `bytes` a round, from producers that `set_up` makes: each with its lanes.
    fn measure(
        bench: &Bench,
        case: &str,
        bytes: u64,
        set_up: impl FnOnce(&Log) -> Result<Vec<Vec<StreamPartition>>>,
    ) -> Result<Ingestion> {
        // All rounds' data, the journal, and the plain file.
        let folder = bench.folder(case, 8 * bytes + (1 << 30))?;
        let log = Log::open(LogConfig::with_pool(
            folder.path().join("log"),
            ByteSize(POOL_BYTES),
        ))?;
        let producers = set_up(&log)?;
        let chunks = Chunks::of_usual_size()?;
        let count = chunks.count_of(bytes) / producers.len();
        let plain_path = folder.path().join("plain");
        let sent = count * producers.len();
        let bytes = sent * chunks.chunk_bytes();
        let rounds = bench.rounds(|| {
            bench.settle_disk();
            let before = log.stats();
            let ours = time(|| produce(&producers, &chunks, count))?;
            let after = log.stats();
            wait_for_quiet(&log, bench.size(500, 20));
            let direct_bytes = (after.direct_bytes - before.direct_bytes) as f64;
            let all_bytes = direct_bytes + (after.journal_bytes - before.journal_bytes) as f64;
            let commits = (after.direct_commits - before.direct_commits + after.journal_blocks
                - before.journal_blocks) as f64;
            let commit_bytes = all_bytes / commits;
            let by_hand = |reserve| {
                bench.settle_disk();
                write_plain(&plain_path, bytes, commit_bytes as usize, reserve)
            };
            Ok(Round {
                ours,
                plain: by_hand(Reserve::No)?,
                preallocated: by_hand(Reserve::Yes)?,
                commit_bytes,
                commits,
                direct_part: direct_bytes / all_bytes,
            })
        })?;
        drop(producers);
        log.close()?;
        Ok(Ingestion {
            bytes: bytes as f64,
            records: sent as f64 * f64::from(chunks.records_per_chunk),
            rounds,
        })
    }

    fn case(&self, name: &str) -> Case {
        let took = |pick: fn(&Round) -> Took| self.rounds.iter().map(pick).collect::<Vec<Took>>();
        let middle = |pick: fn(&Round) -> f64| {
            let values: Vec<f64> = self.rounds.iter().map(pick).collect();
            median(&values)
        };
        let rates = |took: &[Took]| megabytes_per_second(self.bytes, took);
        let (ours, plain) = (took(|round| round.ours), took(|round| round.plain));
        let preallocated = rates(&took(|round| round.preallocated));
        Case::new(name, "MB/s", Better::Higher, rates(&ours))
            .by_hand(rates(&plain))
            .peer("plain writes, preallocated", median(&preallocated))
            .detail("preallocated_mb_per_s", median(&preallocated))
            .detail("commit_kib", middle(|round| round.commit_bytes) / 1024.0)
            .detail("commits", middle(|round| round.commits))
            .detail("written_once_part", middle(|round| round.direct_part))
            .detail(
                "cpu_s_per_million_records",
                cpu_per_million(self.records, &ours),
            )
            .detail(
                "by_hand_cpu_s_per_million_records",
                cpu_per_million(self.records, &plain),
            )
    }
}

/// Lets every producer append `count` chunks, round its lanes, until all is durable.
fn produce(producers: &[Vec<StreamPartition>], chunks: &Chunks, count: usize) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = producers
            .iter()
            .map(|lanes| scope.spawn(|| produce_one(lanes, chunks, count)))
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })
}

fn produce_one(lanes: &[StreamPartition], chunks: &Chunks, count: usize) -> Result<()> {
    let mut unanswered: VecDeque<(&StreamPartition, Offset)> = VecDeque::new();
    let unanswered_max = UNANSWERED_BYTES_MAX / chunks.chunk_bytes();
    for (chunk, lane) in chunks.cycle().zip(lanes.iter().cycle()).take(count) {
        if unanswered.len() >= unanswered_max
            && let Some((lane, offset)) = unanswered.pop_front()
        {
            lane.wait_durable(offset)?;
        }
        unanswered.push_back((lane, lane.append(chunk)?.next_offset));
    }
    for (lane, offset) in unanswered {
        lane.wait_durable(offset)?;
    }
    Ok(())
}

/// Waits until the persistence manager has nothing more to do by itself.
fn wait_for_quiet(log: &Log, for_ms: u64) {
    let done = || {
        let stats = log.stats();
        (stats.persisted_groups, stats.evicted_segments)
    };
    let mut before = done();
    loop {
        std::thread::sleep(Duration::from_millis(for_ms));
        let now = done();
        if now == before {
            return;
        }
        before = now;
    }
}

/// Whether a file gets its blocks before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    Yes,
    No,
}

/// Writes a new file of `bytes`, syncing it after every `group_bytes`, and removes it.
pub fn write_plain(
    path: &Path,
    bytes: usize,
    group_bytes: usize,
    reserve: Reserve,
) -> Result<Took> {
    let mut file = File::create_new(path)?;
    if reserve == Reserve::Yes {
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        file.sync_all()?;
    }
    let chunks = Chunks::of_usual_size()?;
    let mut group = Vec::with_capacity(group_bytes + chunks.chunk_bytes());
    for chunk in chunks.cycle() {
        if group.len() >= group_bytes {
            break;
        }
        group.extend_from_slice(chunk);
    }
    group.truncate(group_bytes);
    let took = time(|| {
        let mut left = bytes;
        while left > 0 {
            let len = left.min(group.len());
            file.write_all(&group[..len])?;
            file.sync_data()?;
            left -= len;
        }
        Ok(())
    })?;
    std::fs::remove_file(path)?;
    Ok(took)
}
