//! Ranges of keys in their order, beside an ordered map behind a lock.

use anyhow::{Result, ensure};
use fastrand::Rng;
use millstream_log::{Durability, KeyRange};

use super::by_hand::OrderedMap;
use super::data::key;
use super::in_process::keys;
use super::table::Table;
use crate::measure::{Bench, Took, cpu_median, time};
use crate::report::{Better, Case};

pub const SCAN: &str = "scan";

/// How many keys a scan returns.
const KEYS_OF_SCAN: [usize; 2] = [10, 1000];

const BYTES_MAX: usize = 1 << 20;

/// Scans from random keys on. Neighbours in the order of the keys were put far apart from each other, so a scan reads its
/// records from as many chunks.
pub fn scan(bench: &Bench) -> Result<Vec<Case>> {
    let keys = keys(bench);
    let folder = bench.folder(SCAN, 1 << 30)?;
    let table = Table::open(folder.path(), Durability::Async)?;
    table.fill(keys)?;
    let map = OrderedMap::filled(keys);
    bench.settle_disk();
    let mut rng = Rng::with_seed(0);
    let mut cases = Vec::new();
    for keys_of_scan in KEYS_OF_SCAN {
        let scans = bench.size(200_000, 2_000) / keys_of_scan;
        let rounds = bench.turns(2, |place| {
            time(|| {
                (0..scans).try_for_each(|_| {
                    let from = key(rng.u64(..keys));
                    let first = match place {
                        0 => {
                            let range = KeyRange::new(from, None);
                            let scan = table.partition.scan(&range, keys_of_scan, BYTES_MAX)?;
                            scan.entries.into_iter().next().map(|entry| entry.key)
                        }
                        _ => {
                            let entries = map.scan(&from, keys_of_scan);
                            entries.into_iter().next().map(|(key, _)| key)
                        }
                    };
                    ensure!(first.as_deref() == Some(&from), "a scan begins elsewhere");
                    Ok(())
                })
            })
        })?;
        let all = (scans * keys_of_scan) as f64;
        let rates = |rounds: &[Took]| {
            let rate = |took: &Took| all / 1e6 / took.seconds;
            rounds.iter().map(rate).collect()
        };
        let name = format!("{SCAN}/{keys_of_scan}-keys");
        let case = Case::new(name, "M keys/s", Better::Higher, rates(&rounds[0]));
        cases.push(
            case.by_hand(rates(&rounds[1]))
                .detail("cpu_us_per_key", cpu_median(&rounds[0]) * 1e6 / all),
        );
    }
    table.close()?;
    Ok(cases)
}
