//! Compaction at full speed, beside reading and writing the same bytes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fastrand::Rng;
use millstream_log::{Background, COMPACTION_LAG_MIN, Durability, Log, LogConfig, PassReport};

use super::start::files;
use super::table::{STREAM, Table};
use crate::measure::{Bench, Took, time};
use crate::report::{Better, Case};

pub const COMPACTION: &str = "compaction";

/// The least ratio of its speed to reading and writing the same bytes.
const TARGET: f64 = 0.5;

/// How often it is measured: one round takes long.
const ROUNDS: usize = 3;

/// Longer than records have existed.
const NEVER: &str = "9000000000000";

/// The keys are put in random order, each this many times on average.
const VERSIONS: u64 = 2;

/// Compacts all closed groups at once, without the bound of the background's bytes per second.
pub fn compaction(bench: &Bench) -> Result<Vec<Case>> {
    let keys = bench.size(1_000_000, 400_000);
    let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
    let mut last = PassReport::default();
    let mut cpu_seconds = 0.0;
    for round in 0..bench.size(ROUNDS, 1) {
        let folder = bench.folder(COMPACTION, 2 << 30)?;
        fill(folder.path(), keys, round as u64)?;
        let mut groups = files(&folder.path().join("log"))?;
        groups.retain(|path| path.extension() == Some("log".as_ref()));
        let log = reopen(folder.path())?;
        bench.settle_disk();
        let took = time(|| {
            last = log.compact()?;
            Ok(())
        })?;
        ensure!(
            last.records_dropped > 0 && last.bytes_after < last.bytes_before,
            "the pass found nothing to drop: {last:?}"
        );
        bench.settle_disk();
        let bare = copy(&groups, &last, &folder.path().join("bare"))?;
        log.close()?;
        let rate = |took: &Took| last.bytes_before as f64 / 1e6 / took.seconds;
        ours.push(rate(&took));
        by_hand.push(rate(&bare));
        cpu_seconds = took.cpu_seconds;
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let case = Case::new(COMPACTION, "MB/s", Better::Higher, ours);
    Ok(vec![
        case.by_hand(by_hand)
            .target(TARGET)
            .detail("before_mib", mib(last.bytes_before))
            .detail("after_mib", mib(last.bytes_after))
            .detail("groups_before", last.groups_before as f64)
            .detail("groups_after", last.groups_after as f64)
            .detail("records_dropped", last.records_dropped as f64)
            .detail("cpu_s", cpu_seconds),
    ])
}

/// Fills a table that is not compacted yet.
fn fill(dir: &Path, keys: u64, round: u64) -> Result<()> {
    let never = [(COMPACTION_LAG_MIN, NEVER)];
    let table = Table::with_settings(dir, Durability::Async, &never)?;
    let mut rng = Rng::with_seed(round);
    table.put_all((0..VERSIONS * keys).map(|version| (rng.u64(..keys), version)))?;
    table.close()
}

/// Opens the log without threads of its own; all key files are made, and the table may be compacted.
pub fn reopen(dir: &Path) -> Result<Log> {
    let log = Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::new(dir.join("log"))
    })?;
    log.alter_stream(STREAM, |config| {
        config.settings.remove(COMPACTION_LAG_MIN);
    })?;
    while log.step() {}
    Ok(log)
}

/// Reads as many bytes of the same files as the pass has replaced, and writes as many as there are in their place.
fn copy(groups: &[PathBuf], pass: &PassReport, to: &Path) -> Result<Took> {
    time(|| {
        let mut buffer = vec![0; 1 << 20];
        let (mut to_read, mut to_write) = (pass.bytes_before, pass.bytes_after);
        let mut out = File::create(to)?;
        for group in groups {
            let mut file = File::open(group)?.take(to_read);
            loop {
                let read = file.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                to_read -= read as u64;
                let write = to_write.min(read as u64);
                out.write_all(&buffer[..write as usize])?;
                to_write -= write;
            }
        }
        ensure!(to_read == 0, "{to_read} bytes of the groups are not there");
        Ok(out.sync_data()?)
    })
}
