//! Appends into memory, beside `memcpy` and CRC-32C of the same bytes.

use std::hint::black_box;

use anyhow::Result;
use millstream_base::{ByteSize, crc32c};
use millstream_log::{Durability, Log, LogConfig, StreamConfig, StreamPartition};
use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::data::Chunks;
use crate::folder::Folder;
use crate::measure::{Bench, Took, cpu_per_million, median, megabytes_per_second, time};
use crate::report::{Better, Case};

pub const MEMORY: &str = "append-memory";
pub const COST: &str = "append-cost";

/// In the comparison with one record, differences of a smaller part of a chunk's cost are noise.
const NOISE: f64 = 0.01;

/// Keeps this thread, and those that it starts, on one core: background work is paid for where it is
/// caused.
pub struct OneCore {
    before: CpuSet,
}

impl OneCore {
    pub fn take() -> Result<OneCore> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu));
        one.set(first.unwrap_or(0));
        sched_setaffinity(None, &one)?;
        Ok(OneCore { before })
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        // Without it later cases run on one core, too: on both sides of each ratio.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// A lane that is never written to disk.
pub struct Ours {
    pub lane: StreamPartition,
    log: Log,
    _folder: Folder,
}

impl Ours {
    fn new(bench: &Bench, case: &str, pool_bytes: u64) -> Result<Ours> {
        let folder = bench.folder(case, 1 << 20)?;
        let config = LogConfig::with_pool(folder.path(), ByteSize(pool_bytes));
        Ours::open(folder, config)
    }

    /// Opens a log in this folder.
    pub fn open(folder: Folder, config: LogConfig) -> Result<Ours> {
        let log = Log::open(config)?;
        let config = StreamConfig {
            durability: Durability::Memory,
            ..StreamConfig::default()
        };
        let lane = log.create_stream("bench", config)?.partition(0)?;
        Ok(Ours {
            lane,
            log,
            _folder: folder,
        })
    }

    /// Appends `count` chunks.
    fn append(&self, chunks: &Chunks, count: usize) -> Result<()> {
        for chunk in chunks.cycle().take(count) {
            self.lane.append(chunk)?;
        }
        Ok(())
    }

    /// Returns how much of the pool appends go through: filled until eviction has set in.
    fn warm_up(&self, chunks: &Chunks) -> Result<usize> {
        let stats = self.log.stats();
        let mut used_bytes_max = 0;
        for _ in 0..2 * chunks.count_of(stats.pool_bytes) {
            self.append(chunks, 1)?;
            used_bytes_max = used_bytes_max.max(self.log.stats().pool_used_bytes);
        }
        Ok(used_bytes_max as usize)
    }
}

/// The same by hand: a region of memory that chunks are copied into, round and round.
struct ByHand {
    region: Mutex<Region>,
}

struct Region {
    bytes: Vec<u8>,
    at: usize,
}

impl ByHand {
    fn new(region_bytes: usize) -> ByHand {
        ByHand {
            region: Mutex::new(Region {
                // Written once, so that every page is there.
                bytes: vec![1; region_bytes],
                at: 0,
            }),
        }
    }

    fn append(&mut self, chunks: &Chunks, count: usize) {
        let region = self.region.get_mut();
        for chunk in chunks.cycle().take(count) {
            black_box(crc32c(black_box(chunk)));
            region.copy(chunk);
        }
    }

    /// Copies each chunk under an uncontended lock. To release it the processor waits until the copy has left its store
    /// buffer; without a lock that overlaps with the next chunk's checksum.
    fn append_locked(&self, chunks: &Chunks, count: usize) {
        for chunk in chunks.cycle().take(count) {
            black_box(crc32c(black_box(chunk)));
            self.region.lock().copy(chunk);
        }
    }
}

impl Region {
    fn copy(&mut self, chunk: &[u8]) {
        if self.at + chunk.len() > self.bytes.len() {
            self.at = 0;
        }
        self.bytes[self.at..][..chunk.len()].copy_from_slice(chunk);
        self.at += chunk.len();
    }
}

/// Records of 100 bytes in chunks of 16 KiB, on one core.
pub fn memory(bench: &Bench) -> Result<Vec<Case>> {
    let _one_core = OneCore::take()?;
    let chunks = Chunks::of_usual_size()?;
    let ours = Ours::new(bench, MEMORY, bench.size(256 << 20, 4 << 20))?;
    let mut by_hand = ByHand::new(ours.warm_up(&chunks)?);
    let count = chunks.count_of(bench.size(2 << 30, 16 << 20));
    let rounds = bench.rounds(|| {
        let ours = time(|| ours.append(&chunks, count))?;
        let limit = time(|| {
            by_hand.append(&chunks, count);
            Ok(())
        })?;
        Ok((ours, limit))
    })?;

    let bytes = (count * chunks.chunk_bytes()) as f64;
    let records = count as f64 * f64::from(chunks.records_per_chunk);
    let (ours, limit): (Vec<Took>, Vec<Took>) = rounds.into_iter().unzip();
    Ok(vec![
        Case::new(
            MEMORY,
            "MB/s",
            Better::Higher,
            megabytes_per_second(bytes, &ours),
        )
        .by_hand(megabytes_per_second(bytes, &limit))
        .target(0.7)
        .detail("cpu_s_per_million_records", cpu_per_million(records, &ours))
        .detail(
            "by_hand_cpu_s_per_million_records",
            cpu_per_million(records, &limit),
        ),
    ])
}

/// The cost of a chunk beyond copying and checking its bytes by hand must not depend on its number of records.
///
/// The unit is processor time, since the difference is a few hundred nanoseconds of a chunk. Chunks of different sizes
/// also differ by the cost of their segments. To separate this from a walk over the records, each size is also compared
/// with a chunk of as many bytes with one record; and to separate it from the cost of any lock, with copying by hand
/// under a lock.
pub fn cost(bench: &Bench) -> Result<Vec<Case>> {
    let _one_core = OneCore::take()?;
    let mut cases = Vec::new();
    let mut beyond_all_ns = Vec::new();
    let mut to_one_record = Vec::new();
    for (records, different) in [(1, 4096), (100, 256), (10_000, 8)] {
        let chunks = Chunks::of_records(records, different)?;
        let one_record = Chunks::of_one_record(chunks.chunk_bytes(), different)?;
        let ours = Ours::new(bench, COST, bench.size(256 << 20, 64 << 20))?;
        let mut by_hand = ByHand::new(ours.warm_up(&chunks)?);
        // All take turns of one segment, so each turn has its share of the cost of a segment.
        let count = chunks.count_of(bench.size(8 << 20, 2 << 20));
        let ns_each = |took: Took| took.cpu_seconds * 1e9 / count as f64;
        let rounds = bench.rounds(|| {
            let mut turns: [Vec<f64>; 5] = Default::default();
            for turn in 0..bench.size(64, 2) {
                // Each comes first as often as last, since the first one warms the caches.
                for n in 0..5 {
                    let contender = if turn % 2 == 0 { n } else { 4 - n };
                    let took = time(|| {
                        match contender {
                            0 => ours.append(&chunks, count)?,
                            1 => by_hand.append(&chunks, count),
                            2 => ours.append(&one_record, count)?,
                            3 => by_hand.append(&one_record, count),
                            _ => by_hand.append_locked(&chunks, count),
                        }
                        Ok(())
                    })?;
                    turns[contender].push(ns_each(took));
                }
            }
            let [many, by_hand, one, one_by_hand, by_hand_locked] = turns;
            let beyond = |ours: &[f64], by_hand: &[f64]| {
                let pairs = ours.iter().zip(by_hand);
                median(
                    &pairs
                        .map(|(ours, by_hand)| ours - by_hand)
                        .collect::<Vec<f64>>(),
                )
            };
            Ok([
                median(&many),
                median(&by_hand),
                beyond(&many, &by_hand),
                beyond(&one, &one_by_hand),
                beyond(&by_hand_locked, &by_hand),
            ])
        })?;
        let [many, limit, beyond_ns, one_beyond_ns, lock_ns] =
            [0, 1, 2, 3, 4].map(|n| rounds.iter().map(|round| round[n]).collect::<Vec<f64>>());
        let (beyond_ns, one_beyond_ns) = (median(&beyond_ns), median(&one_beyond_ns));
        let noise_ns = median(&limit) * NOISE;
        beyond_all_ns.push(beyond_ns);
        to_one_record.push(beyond_ns.max(noise_ns) / one_beyond_ns.max(noise_ns));
        let name = format!("{COST}/{records}-records");
        cases.push(
            Case::new(name, "ns/chunk", Better::Lower, many)
                .by_hand(limit)
                .detail("chunk_bytes", chunks.chunk_bytes() as f64)
                .detail("beyond_by_hand_ns", beyond_ns)
                .detail("with_one_record_beyond_by_hand_ns", one_beyond_ns)
                .detail("by_hand_under_a_lock_beyond_by_hand_ns", median(&lock_ns)),
        );
    }
    let highest = |values: &[f64]| values.iter().copied().fold(f64::MIN, f64::max);
    let lowest_ns = beyond_all_ns.iter().copied().fold(f64::MAX, f64::min);
    let across_sizes = highest(&beyond_all_ns) / lowest_ns.max(1.0);
    cases.push(
        Case::new(COST, "highest/lowest", Better::Lower, vec![across_sizes])
            .bound(1.3)
            .detail("to_one_record_of_the_same_bytes", highest(&to_one_record)),
    );
    Ok(cases)
}
