//! A reader goes on behind its last event when the job is killed: it sees each change of the changelog once.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use millstream::log::{Log, LogConfig, Next, Subscription};
use millstream::record::{Chunks, Decompressor};
use millstream::{Flow, Node};
use millstream_base::key::decode_key;
use millstream_base::{ByteSize, Offset};
use serde_json::Value;

use crate::events::Events;
use crate::servers;

/// The folder of the job's files.
const DIR: &str = "MILLSTREAM_TEST_WATCHES";
/// The address of its server; without one it opens a data directory.
const SERVER: &str = "MILLSTREAM_TEST_WATCHES_SERVER";

/// Each step takes less.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The keys of the job's state.
pub const KEYS: u64 = 7;

const KILLS: u64 = 4;

pub type JobResult = Result<(), Box<dyn std::error::Error>>;

/// The job: counts numbers by key until the file `stop` is there, and serves the counts until the file `leave` is.
fn run(dir: &Path, server: Option<&str>) -> JobResult {
    let node = match server {
        Some(server) => Node::connect(server)?,
        None => Node::embedded(dir.join("data"))?,
    };
    let numbers = node.topic("numbers").json::<u64>().create()?;
    let flow = Flow::new("job")
        .checkpoint_interval(Duration::from_millis(15))
        .http(SocketAddr::from(([127, 0, 0, 1], 0)));
    flow.read(numbers.clone())
        .key_by(|number| number % KEYS)
        .state::<u64>("counts")
        .count();
    let running = flow.start()?;
    let address = running.http_address().ok_or("it serves HTTP")?;
    put(dir, "address", &address.to_string())?;
    while !dir.join("begin").exists() {
        thread::sleep(Duration::from_millis(2));
    }
    let mut next = 0;
    while !dir.join("stop").exists() {
        numbers.send(next..next + 20)?;
        next += 20;
        thread::sleep(Duration::from_millis(2));
    }
    running.stop();
    running.join()?;
    let last = running.last_complete_checkpoint();
    put(dir, "stopped", &last.to_string())?;
    while !dir.join("leave").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Writes a file that is whole when it has its name.
pub fn put(dir: &Path, name: &str, text: &str) -> JobResult {
    let unfinished = dir.join("unfinished");
    fs::write(&unfinished, text)?;
    Ok(fs::rename(unfinished, dir.join(name))?)
}

/// Runs the job: no test of its own.
#[test]
#[ignore = "started by the tests of killed jobs"]
fn job_that_the_test_kills() {
    if let Ok(dir) = env::var(DIR) {
        let server = env::var(SERVER).ok();
        run(&PathBuf::from(dir), server.as_deref()).unwrap();
    }
}

pub fn start(dir: &Path, server: Option<&str>) -> Child {
    let _ = fs::remove_file(dir.join("address"));
    let mut command = millstream_testing::command(env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "killed::job_that_the_test_kills"])
        .args(["--nocapture", "--quiet"])
        .env(DIR, dir)
        .stdout(Stdio::null());
    if let Some(server) = server {
        command.env(SERVER, server);
    }
    millstream_testing::start(&mut command, LIMIT).unwrap()
}

/// A change: its key and value, by its partition and offset.
type Changes = BTreeMap<(u32, u64), (String, u64)>;

/// The events that a reader has seen.
#[derive(Default)]
struct Seen {
    changes: Changes,
    /// The offset of the last change of each partition.
    last: BTreeMap<u32, u64>,
    /// The checkpoint of the last progress.
    checkpoint: u64,
    /// The id of the last event.
    id: String,
    /// Connections that were made.
    connections: u32,
}

impl Seen {
    fn add(&mut self, name: &str, data: &Value) {
        match name {
            "change" => {
                let number = |name: &str| data[name].as_u64().unwrap();
                let (partition, version) = (number("partition") as u32, number("version"));
                let last = self.last.insert(partition, version);
                assert!(last < Some(version), "{data} comes behind {last:?}");
                let key = data["key"].as_str().unwrap().to_owned();
                let change = (key, number("value"));
                self.changes.insert((partition, version), change);
            }
            "progress" => self.checkpoint = data["checkpoint"].as_u64().unwrap(),
            "end" => {}
            name => panic!("{name}: {data}"),
        }
    }
}

/// Reads changes until `is_over`, wherever the job is.
fn follow(dir: &Path, seen: &Mutex<Seen>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
        let Ok(address) = fs::read_to_string(dir.join("address")) else {
            continue;
        };
        let id = seen.lock().unwrap().id.clone();
        let address = address.parse().unwrap();
        let Some(mut events) = Events::try_open(address, "/state/job/counts?watch", &id) else {
            continue;
        };
        seen.lock().unwrap().connections += 1;
        while let Some(frame) = events.try_frame() {
            let mut seen = seen.lock().unwrap();
            if let Some((name, data)) = frame {
                seen.add(&name, &data);
            }
            seen.id.clone_from(&events.id);
        }
    }
}

/// Returns the committed changes in the changelog.
fn changelog(log: &Log) -> Changes {
    let stream = log.stream("job.state.counts").unwrap();
    let partitions = (0..stream.partition_count()).map(|it| stream.partition(it).unwrap());
    let partitions = partitions.map(|it| {
        assert_eq!(it.earliest_offset().0, 0, "nothing is compacted");
        (it, Offset(0))
    });
    let mut subscription = Subscription::of_partitions(partitions);
    subscription.end_at_head();
    let mut changes = Changes::new();
    let mut decompressor = Decompressor::default();
    loop {
        let handed = match subscription.next(1 << 20).unwrap() {
            Next::Handed(handed) => handed,
            Next::End => return changes,
            Next::Busy | Next::Nothing => continue,
        };
        for chunk in Chunks::trusted(&handed.chunks.bytes) {
            let chunk = chunk.unwrap();
            if chunk.header().attributes.is_control() {
                continue;
            }
            for record in chunk.records(&mut decompressor).unwrap() {
                let record = record.unwrap();
                let key: u64 = decode_key(record.key.unwrap()).unwrap();
                let value = serde_json::from_slice(record.value.unwrap()).unwrap();
                let place = (handed.place, record.offset.0);
                changes.insert(place, (key.to_string(), value));
            }
        }
    }
}

pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Kills the job, and compares the history of a reader with the changelog.
fn check(server: Option<&str>, dir: &Path, log: impl FnOnce() -> Log) {
    let mut rng = Rng::with_seed(7);
    let (seen, is_over) = (Mutex::new(Seen::default()), AtomicBool::new(false));
    let mut job = start(dir, server);
    thread::scope(|scope| {
        scope.spawn(|| follow(dir, &seen, &is_over));
        // Also when the test fails.
        let _over = Over(&is_over);
        wait_until("the reader has a position", || {
            !seen.lock().unwrap().id.is_empty()
        });
        put(dir, "begin", "").unwrap();
        for _ in 0..KILLS {
            let before = seen.lock().unwrap().changes.len();
            wait_until("changes come", || {
                seen.lock().unwrap().changes.len() > before + 20
            });
            thread::sleep(Duration::from_millis(rng.u64(0..60)));
            job.kill().unwrap();
            job.wait().unwrap();
            job = start(dir, server);
        }
        let before = seen.lock().unwrap().changes.len();
        wait_until("changes come", || {
            seen.lock().unwrap().changes.len() > before
        });
        put(dir, "stop", "").unwrap();
        let stopped = dir.join("stopped");
        wait_until("the job stops", || stopped.exists());
        let last: u64 = fs::read_to_string(stopped).unwrap().parse().unwrap();
        wait_until("the progress of the last checkpoint comes", || {
            seen.lock().unwrap().checkpoint == last
        });
        put(dir, "leave", "").unwrap();
        assert!(job.wait().unwrap().success());
    });
    let seen = seen.into_inner().unwrap();
    assert!(u64::from(seen.connections) > KILLS);
    let expected = changelog(&log());
    assert!(expected.len() > 20 * KILLS as usize);
    assert_eq!(seen.changes, expected);
}

/// Ends the reader.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_reader_of_a_killed_job_in_a_data_directory_sees_each_change_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    check(None, dir.path(), || {
        Log::open(LogConfig::with_pool(&data, ByteSize(64 << 20))).unwrap()
    });
}

#[test]
fn a_reader_of_a_killed_job_on_a_server_sees_each_change_once() {
    let dir = tempfile::tempdir().unwrap();
    let (log, server) = servers::start(&dir.path().join("data"), |_, _| {});
    let address = server.local_address().to_string();
    check(Some(&address), dir.path(), || log);
}
