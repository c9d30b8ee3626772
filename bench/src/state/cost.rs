//! The cost of a changed key, and of a checkpoint.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use millstream_base::Timestamp;
use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};

use super::counting::{INTERVAL, Load, Order, Ran};
use crate::measure::{Bench, cpu_median, median, time};
use crate::report::{Better, Case};

pub const COST: &str = "cost";

/// The events of a second, each of another key than the one before.
const EVENTS_PER_SECOND: u64 = 500_000;

/// The size of a chunk by hand.
const CHUNK_BYTES: usize = 16 << 10;

/// The interval of many checkpoints with few changed keys.
const SHORT_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of a bare write.
const PAGE_BYTES: usize = 4096;

pub fn cost(bench: &Bench) -> Result<Vec<Case>> {
    Ok(vec![changed_key(bench)?, checkpoint(bench)?])
}

/// The processor time of a flow that keeps its state beyond that of one that does not, for each changed key of each
/// checkpoint. By hand, the same keys and values are encoded and appended to a stream.
fn changed_key(bench: &Bench) -> Result<Case> {
    let seconds = bench.size(5, 1);
    let load = Load {
        keys: bench.size(1_000_000, 10_000),
        order: Order::Round,
        events: bench.size(EVENTS_PER_SECOND, 20_000) * seconds,
        events_per_second: Some(bench.size(EVENTS_PER_SECOND, 20_000) as f64),
    };
    let folder = bench.folder(COST, 2 << 30)?;
    let rounds = bench.turns(2, |place| match place {
        0 => load.run_kept(bench, &folder, INTERVAL),
        _ => load.run_unkept(),
    })?;
    let by_hand = bench.turns(1, |_| {
        folder.empty()?;
        append_by_hand(&folder.path().join("log"), load.events)
    })?;
    let pairs = rounds[0].iter().zip(&rounds[1]);
    let each = pairs.map(|(kept, unkept)| {
        (kept.took.cpu_seconds - unkept.took.cpu_seconds) * 1e6 / kept.changed_keys
    });
    let name = format!("{COST}/changed-key");
    let case = Case::new(name, "CPU-us", Better::Lower, each.collect());
    let middle = |pick: fn(&Ran) -> f64| median(&rounds[0].iter().map(pick).collect::<Vec<_>>());
    Ok(case
        .by_hand(by_hand[0].clone())
        .detail("changed_keys", middle(|ran| ran.changed_keys))
        .detail("checkpoints", middle(|ran| ran.checkpoints))
        .detail("last_checkpoint_ms", middle(|ran| ran.last_s * 1e3)))
}

/// Returns the processor time for each key, in microseconds.
fn append_by_hand(dir: &Path, keys: u64) -> Result<f64> {
    let log = Log::open(LogConfig::new(dir))?;
    let settings = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())];
    let config = StreamConfig {
        settings: settings.into(),
        ..StreamConfig::default()
    };
    let partition = log.create_stream("by-hand", config)?.partition(0)?;
    let took = time(|| {
        let mut chunk = ChunkBuilder::new(Compression::None);
        let mut value = Vec::new();
        let mut end = partition.next_offset();
        for key in 0..keys {
            value.clear();
            serde_json::to_writer(&mut value, &(key % 10))?;
            let time = Timestamp(1_700_000_000_000);
            chunk.push(time, Some(&key.to_be_bytes()), Some(&value), &[])?;
            if chunk.len() >= CHUNK_BYTES || key + 1 == keys {
                end = partition.append(chunk.finish(None)?)?.next_offset;
                chunk.clear();
            }
        }
        Ok(partition.wait_durable(end)?)
    })?;
    drop(partition);
    log.close()?;
    Ok(took.cpu_seconds * 1e6 / keys as f64)
}

/// The time to write a checkpoint of ten changed keys, beside one bare write and sync.
fn checkpoint(bench: &Bench) -> Result<Case> {
    let seconds = bench.size(2, 1);
    let load = Load {
        keys: 10,
        order: Order::Round,
        events: 2_000 * seconds,
        events_per_second: Some(2_000.0),
    };
    let folder = bench.folder(COST, 1 << 30)?;
    let bare = folder.path().join("bare");
    let mut checkpoints = Vec::new();
    let rounds = bench.rounds(|| {
        let kept = load.run_kept(bench, &folder, SHORT_INTERVAL)?;
        let unkept = load.run_unkept()?;
        checkpoints.push(kept.checkpoints);
        bench.settle_disk();
        let by_hand_ms = write_bare(&bare, 50)?;
        let cpu_ms = (kept.took.cpu_seconds - unkept.took.cpu_seconds) * 1e3 / kept.checkpoints;
        Ok((kept, by_hand_ms, cpu_ms, unkept))
    })?;
    let ours = rounds.iter().map(|(kept, ..)| kept.last_s * 1e3).collect();
    let name = format!("{COST}/checkpoint");
    let cpu: Vec<f64> = rounds.iter().map(|(_, _, cpu_ms, _)| *cpu_ms).collect();
    let unkept: Vec<_> = rounds.iter().map(|(.., unkept)| unkept.took).collect();
    Ok(Case::new(name, "ms", Better::Lower, ours)
        .by_hand(
            rounds
                .iter()
                .map(|(_, by_hand_ms, ..)| *by_hand_ms)
                .collect(),
        )
        .detail("cpu_ms", median(&cpu))
        .detail(
            "checkpoints_per_second",
            median(&checkpoints) / seconds as f64,
        )
        .detail("cpu_s_without_kept_state", cpu_median(&unkept)))
}

/// Returns the median time of a write and a sync, in milliseconds.
fn write_bare(path: &Path, count: usize) -> Result<f64> {
    let mut file = File::create(path)?;
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        let started_at = Instant::now();
        file.write_all(&[7; PAGE_BYTES])?;
        file.sync_data()?;
        took.push(started_at.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&took))
}
