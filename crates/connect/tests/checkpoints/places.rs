//! Places for shards store each whole or not at all, even if the machine crashes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::sync::Arc;

use millstream_base::{ByteSize, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::ClientConfig;
use millstream_connect::{CheckpointDir, LogCheckpoints, SHARD_BYTES_MAX, ServerCheckpoints};
use millstream_flow::sources::Generator;
use millstream_flow::{Checkpoints, Counts, Flow, ShardKey};
use millstream_log::{Log, LogConfig};
use millstream_sim::{Rng, SimDisk, SimRandom};
use tempfile::tempdir;

use crate::support::{settings, wait_for_checkpoint};

const DIR: &str = "/flows/ads";

fn key(checkpoint: u64, rank: u32) -> ShardKey {
    ShardKey {
        checkpoint,
        rank,
        run: 0,
    }
}

fn part(key: ShardKey) -> Vec<u8> {
    let number = key.checkpoint * 10 + u64::from(key.rank);
    (0..3000).map(|n| (number * 31 + n) as u8).collect()
}

fn open(disk: &SimDisk) -> Result<CheckpointDir, String> {
    let random = Arc::new(SimRandom::new(0));
    let dir = CheckpointDir::open_on(Arc::new(disk.clone()), random, DIR);
    dir.map_err(|error| error.to_string())
}

/// Two ranks store three checkpoints and remove earlier ones, until the machine crashes. Returns for each shard whether it
/// must exist, or `None` if the crash left that open.
fn keep(disk: &SimDisk) -> BTreeMap<ShardKey, Option<bool>> {
    let mut known = BTreeMap::new();
    let Ok(dir) = open(disk) else {
        return known;
    };
    for checkpoint in 1..=3 {
        for rank in 0..2 {
            let key = key(checkpoint, rank);
            known.insert(key, None);
            if dir.put(key, &part(key)).is_err() {
                return known;
            }
            known.insert(key, Some(true));
        }
        for rank in 0..2 {
            let old = key(checkpoint - 1, rank);
            if checkpoint > 1 {
                known.insert(old, None);
                if dir.remove(old).is_err() {
                    return known;
                }
                known.insert(old, Some(false));
            }
        }
    }
    known
}

#[test]
fn a_crash_at_any_operation_leaves_a_shard_whole_or_absent() {
    let disk = SimDisk::new(0);
    keep(&disk);
    let operations = disk.operations();
    assert!(operations > 30);
    for operation in 1..=operations {
        for seed in 0..20 {
            let disk = SimDisk::new(seed);
            disk.crash_at(operation);
            let known = keep(&disk);
            let left = disk.crash(&mut Rng::with_seed(seed));
            let dir = open(&left).unwrap();
            let parts = dir.list().unwrap();
            for found in &parts {
                assert!(known.contains_key(found), "{found:?} was never kept");
                assert_eq!(dir.get(*found).unwrap(), part(*found));
            }
            for (key, is_there) in known {
                assert!(
                    is_there.is_none_or(|is_there| is_there == parts.contains(&key)),
                    "{key:?} after operation {operation}, seed {seed}"
                );
            }
            // It goes on as if nothing had been.
            dir.put(key(3, 1), &part(key(3, 1))).unwrap();
            assert_eq!(dir.get(key(3, 1)).unwrap(), part(key(3, 1)));
        }
    }
}

#[test]
fn a_full_disk_refuses_a_shard_and_keeps_no_bytes_of_it() {
    let disk = SimDisk::new(1);
    let dir = open(&disk).unwrap();
    dir.put(key(1, 0), &part(key(1, 0))).unwrap();
    disk.set_capacity(5000);
    let error = dir.put(key(2, 0), &part(key(2, 0))).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot write /flows/ads/unfinished.0: "),
        "{error}"
    );
    assert_eq!(dir.list().unwrap(), [key(1, 0)]);
    assert_eq!(disk.files().len(), 1);
    dir.remove(key(1, 0)).unwrap();
    dir.put(key(3, 0), &part(key(3, 0))).unwrap();
    assert_eq!(dir.get(key(3, 0)).unwrap(), part(key(3, 0)));
}

#[test]
fn opening_a_checkpoint_folder_names_a_file_that_is_no_shard() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "").unwrap();
    let error = CheckpointDir::open(dir.path()).err().unwrap().to_string();
    assert!(
        error.contains("notes.txt is not a file of a checkpoint"),
        "{error}"
    );
}

#[test]
fn a_file_too_large_for_a_shard_is_not_read_into_memory() {
    let dir = tempdir().unwrap();
    let file = File::create(dir.path().join("checkpoint.1.0")).unwrap();
    file.set_len(SHARD_BYTES_MAX + 1).unwrap();
    let place = CheckpointDir::open(dir.path()).unwrap();
    let error = place.get(key(1, 0)).unwrap_err().to_string();
    assert!(
        error.contains("checkpoint.1.0 has 4294967297 bytes"),
        "{error}"
    );
}

/// A flow that has kept a checkpoint.
fn run_once(place: &Arc<impl Checkpoints>, resume: bool) -> Result<(), String> {
    let flow = Flow::with_settings("numbers", settings(place, resume));
    let counts = flow.partial::<Counts>("counts");
    flow.source("numbers", Generator::new(|number| number))
        .fold_local(&counts, |counts, number| {
            counts.add(&number.to_le_bytes()[..1], 1);
        });
    let running = flow.run().map_err(|error| error.to_string())?;
    wait_for_checkpoint(&running);
    Ok(())
}

#[test]
fn a_flow_does_not_resume_from_a_damaged_shard_and_names_it() {
    let dir = tempdir().unwrap();
    let place = Arc::new(CheckpointDir::open(dir.path()).unwrap());
    run_once(&place, false).unwrap();
    run_once(&place, true).unwrap();
    let part = place.describe(place.list().unwrap()[0]);
    let mut bytes = fs::read(&part).unwrap();
    let len = bytes.len();
    bytes[len / 2] ^= 1;
    fs::write(&part, &bytes).unwrap();
    let error = run_once(&place, true).unwrap_err();
    let expected = format!("{part}: its checksum is wrong");
    assert!(error.contains(&expected), "{error}");
    fs::write(&part, &bytes[..3]).unwrap();
    let error = run_once(&place, true).unwrap_err();
    let expected = format!("{part}: it is cut short");
    assert!(error.contains(&expected), "{error}");
}

/// Any place keeps parts by their keys.
fn check_place(place: &impl Checkpoints) {
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
    assert_eq!(place.list().unwrap(), []);
    place.put(key(1, 0), b"first").unwrap();
    place.put(key(1, 10), b"other").unwrap();
    place.put(key(1, 1), &large).unwrap();
    place.put(key(1, 0), b"again").unwrap();
    let mut parts = place.list().unwrap();
    parts.sort_unstable();
    assert_eq!(parts, [key(1, 0), key(1, 1), key(1, 10)]);
    assert_eq!(place.get(key(1, 0)).unwrap(), b"again");
    assert_eq!(place.get(key(1, 10)).unwrap(), b"other");
    assert!(place.get(key(1, 1)).unwrap() == large);
    place.put(key(2, 0), b"").unwrap();
    assert_eq!(place.get(key(2, 0)).unwrap(), b"");
    assert!(place.get(key(7, 0)).is_err());
    place.remove(key(1, 0)).unwrap();
    assert!(!place.list().unwrap().contains(&key(1, 0)));
}

#[test]
fn shards_are_stored_in_a_directory_a_log_and_a_server() {
    let dir = tempdir().unwrap();
    check_place(&CheckpointDir::open(dir.path().join("a/b")).unwrap());

    let path = dir.path().join("log");
    let log = Log::open(LogConfig::with_pool(&path, ByteSize(64 << 20))).unwrap();
    check_place(&LogCheckpoints::new(&log, "ads"));

    let config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
    let clock = Arc::clone(log.clock());
    let random = Arc::new(SystemRandom);
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
    let client = ClientConfig::new(server.local_address().to_string());
    check_place(&ServerCheckpoints::new(&client, "others").unwrap());
    // They are the same objects.
    let both = ServerCheckpoints::new(&client, "ads").unwrap();
    assert_eq!(both.get(key(1, 10)).unwrap(), b"other");

    for flow in ["a/b", "a:b", "", ".."] {
        let stores: [&dyn Checkpoints; 2] = [
            &LogCheckpoints::new(&log, flow),
            &ServerCheckpoints::new(&client, flow).unwrap(),
        ];
        for store in stores {
            let error = store.lock().err().expect("it is no name").to_string();
            let told = format!("a flow cannot be called {flow:?}");
            assert!(error.contains(&told), "{error}");
        }
    }
    assert!(log.stream_names().is_empty(), "nothing is made for them");

    log.put_object("ads.checkpoint.notes", &mut &b""[..])
        .unwrap();
    let error = both.list().unwrap_err().to_string();
    assert!(
        error.contains("object ads.checkpoint.notes is not a shard"),
        "{error}"
    );
}
