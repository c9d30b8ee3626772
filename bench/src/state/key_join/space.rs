//! The bytes of the index beside those of the streams.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use millstream_base::ByteSize;
use millstream_log::{Background, Durability, Log, LogConfig, StreamConfig};

use super::{KEY_JOIN, USER, Writer, create};
use crate::measure::Bench;
use crate::report::{Better, Case};

/// The most bytes of both streams and the index, for each byte of the streams.
const BYTES_MAX: f64 = 1.05;

/// The orders of a user.
const ORDERS_OF_USER: u64 = 20;

/// The bytes of the text of an order and of a user.
const TEXT_BYTES: usize = 496;

/// The bytes of files.
#[derive(Debug, Default)]
struct Sizes {
    /// Of the streams, with the files of their keys.
    streams: u64,
    /// Of the index of the orders by their users.
    index: u64,
}

/// Orders of random users, in closed groups: the open ones have no index yet.
pub fn space(bench: &Bench) -> Result<Vec<Case>> {
    let orders = bench.size(2_000_000, 50_000);
    let name = format!("{KEY_JOIN}/space");
    let folder = bench.folder(KEY_JOIN, 3 << 30)?;
    let log = Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::new(folder.path().join("log"))
    })?;
    let config = StreamConfig {
        durability: Durability::Async,
        segment: ByteSize(1 << 20),
        group_segments: bench.size(16, 1),
        ..StreamConfig::default()
    };
    let users = orders / ORDERS_OF_USER;
    let streams = [
        create(&log, "orders", true, config.clone())?,
        create(&log, "users", false, config)?,
    ];
    let [mut order, mut user] = [Writer::new(&streams[0])?, Writer::new(&streams[1])?];
    let (mut rng, mut text) = (Rng::with_seed(1), String::new());
    for number in 0..users {
        write_text(&mut text, &mut rng);
        user.put(number, None, text.as_bytes())?;
    }
    for number in 0..orders {
        write_text(&mut text, &mut rng);
        order.put(number, Some(rng.u64(..users)), text.as_bytes())?;
        if number % 1000 == 0 {
            while log.sync_step() | log.step() {}
        }
    }
    order.flush()?;
    user.flush()?;
    while log.sync_step() | log.step() | log.compact_step() {}
    drop((order, user, streams));
    log.close()?;
    let sizes = sizes_of(&folder.path().join("log"))?;
    ensure!(sizes.index > 0, "no group has an index");
    let [streams, index] = [sizes.streams, sizes.index].map(|bytes| bytes as f64);
    let ratio = (streams + index) / streams;
    let case = Case::new(name, "bytes per byte", Better::Lower, vec![ratio]);
    Ok(vec![
        case.bound(BYTES_MAX)
            .detail("index_mib", index / f64::from(1 << 20))
            .detail("streams_mib", streams / f64::from(1 << 20)),
    ])
}

fn write_text(text: &mut String, rng: &mut Rng) {
    text.clear();
    while text.len() < TEXT_BYTES {
        // Writing into a string does not fail.
        let _ = write!(text, "{:016x}", rng.u64(..));
    }
}

/// Returns the sizes of the files of a data directory. Groups of orders that have no index yet do not count.
fn sizes_of(log: &Path) -> Result<Sizes> {
    let mut sizes = Sizes::default();
    for stream in fs::read_dir(log.join("streams"))? {
        let mut files = Vec::new();
        for file in fs::read_dir(stream?.path())? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            let (group, ending) = name.split_once('.').context("a file has an ending")?;
            files.push((group.to_owned(), ending.to_owned(), file.metadata()?.len()));
        }
        let is_index = |ending: &str| ending.strip_prefix("by-") == Some(USER);
        let indexed = files.iter().filter(|(_, ending, _)| is_index(ending));
        let indexed: BTreeSet<&str> = indexed.map(|(group, ..)| &**group).collect();
        for (group, ending, bytes) in &files {
            match is_index(ending) {
                true => sizes.index += bytes,
                false if indexed.is_empty() || indexed.contains(&**group) => {
                    sizes.streams += bytes;
                }
                false => {}
            }
        }
    }
    Ok(sizes)
}
