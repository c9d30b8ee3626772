//! The log compacts its own tables when most of their stream is outdated. A crash at any moment of a
//! compaction leaves the old table or the new one.

use std::sync::Arc;

use millstream_base::{ByteSize, Timestamp};
use millstream_log::{Log, LogError, StreamConfig};
use millstream_sim::{Rng, SimClock, SimDisk};

use crate::world;

const CATALOG: &str = "__catalog";

fn open(disk: &SimDisk) -> Result<Log, LogError> {
    world::open(disk, &SimClock::new(Timestamp(0)))
}

fn catalog_starts_at(log: &Log) -> u64 {
    let catalog = log.stream(CATALOG).expect("it is always there");
    catalog.info().partitions[0].earliest.0
}

fn retention(log: &Log) -> Option<u64> {
    let stream = log.stream("a").expect("it was created");
    stream.config().retention.map(|bytes| bytes.0)
}

#[test]
fn compaction_never_loses_the_catalog() {
    let disk = SimDisk::new(0);
    let log = open(&disk).expect("no faults");
    for name in ["a", "b"] {
        log.create_stream(name, StreamConfig::default())
            .expect("no faults");
    }

    // Changes the catalog until its compaction, and saves the disk from just before.
    let mut before = disk.kill();
    let mut changes = 0;
    while catalog_starts_at(&log) == 0 {
        if changes % 64 == 0 {
            before = disk.kill();
        }
        changes += 1;
        log.set_retention("a", None, Some(ByteSize(changes)))
            .expect("no faults");
        assert!(changes < 100_000, "it is never written anew");
    }
    let first = changes / 64 * 64;
    drop(log);

    // The same changes again, with a crash at each operation in turn.
    let mut rng = Rng::with_seed(0);
    for operation in 1.. {
        let disk = before.kill();
        let log = open(&disk).expect("no faults");
        disk.crash_at(operation * 7);
        let mut acknowledged = retention(&log);
        for change in first + 1..=changes + 1 {
            match log.set_retention("a", None, Some(ByteSize(change))) {
                Ok(()) => acknowledged = Some(change),
                Err(_) => break,
            }
        }
        let whole = !disk.has_crashed();
        let is_anew = catalog_starts_at(&log) > 0;
        drop(log);
        let image = disk.crash(&mut rng);
        for round in 0..2 {
            let log = open(&image).expect("the catalog is whole");
            assert_eq!(log.stream_names(), ["a", "b"]);
            let found = retention(&log);
            assert!(
                found >= acknowledged && found <= Some(changes + 1),
                "operation {operation}, start {round}: {found:?} after {acknowledged:?}"
            );
            let log = Arc::new(log);
            drop(log);
        }
        if whole {
            assert!(is_anew, "the last run reaches the end");
            break;
        }
    }
}
