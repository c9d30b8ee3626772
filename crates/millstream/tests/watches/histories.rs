//! Histories of clients that write and then read with `?at-least=`, while the job is killed: a read has each write that was
//! acknowledged before it, no event twice, and committed values do not go back.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use millstream::log::Log;
use millstream::{Json, Node, Topic};

use crate::killed::{KEYS, LIMIT, Over, put, start, wait_until};
use crate::servers;

const CLIENTS: u64 = 3;

/// Reads are compared with the writes before and beside them by this many times a kill, and once more.
const KILLS: u64 = 4;
const READS_OF_A_RUN: u64 = 60;

/// Events of one key.
#[derive(Default)]
struct Events {
    /// Those whose write has begun.
    begun: AtomicU64,
    /// Those whose write was acknowledged.
    acknowledged: AtomicU64,
    /// The greatest committed count that a read has shown.
    committed: AtomicU64,
}

#[derive(Default)]
struct History {
    of_keys: [Events; KEYS as usize],
    reads: AtomicU64,
    is_over: AtomicBool,
}

/// Returns the position behind all events of the topic: `numbers/0=12,numbers/1=9`.
fn position(log: &Log) -> String {
    let stream = log.stream("numbers").unwrap();
    let ends = (0..stream.partition_count()).map(|number| {
        let end = stream.partition(number).unwrap().next_offset();
        format!("numbers/{number}={}", end.0)
    });
    ends.collect::<Vec<_>>().join(",")
}

/// Returns the count that the job answers with; `None` if it does not answer, or cannot in time.
fn read(dir: &Path, path: &str) -> Option<u64> {
    let address: SocketAddr = fs::read_to_string(dir.join("address")).ok()?.parse().ok()?;
    let mut connection = TcpStream::connect(address).ok()?;
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    match &head[9..12] {
        "200" => Some(body.parse().expect("a count")),
        // The flow begins, ends, or waits for its server.
        "404" | "503" | "504" => None,
        _ => panic!("{answer}"),
    }
}

/// Writes events and reads their counts.
fn act(number: u64, dir: &Path, log: &Log, topic: &Topic<Json<u64>>, history: &History) {
    let mut rng = Rng::with_seed(number);
    while !history.is_over.load(Ordering::SeqCst) {
        let key = rng.u64(..KEYS);
        let events = &history.of_keys[key as usize];
        if rng.bool() {
            let count = rng.u64(1..5);
            events.begun.fetch_add(count, Ordering::SeqCst);
            topic.send((0..count).map(|_| key)).unwrap();
            events.acknowledged.fetch_add(count, Ordering::SeqCst);
        }
        let level = ["", "&committed"][rng.usize(..2)];
        let least = events.acknowledged.load(Ordering::SeqCst);
        let committed = events.committed.load(Ordering::SeqCst);
        let path = format!("/state/job/counts/{key}?at-least={}{level}", position(log));
        let Some(count) = read(dir, &path) else {
            continue;
        };
        let most = events.begun.load(Ordering::SeqCst);
        assert!(
            (least..=most).contains(&count),
            "{path}: {count}, of {least} to {most} events"
        );
        if !level.is_empty() {
            assert!(count >= committed, "{path}: {count} after {committed}");
            events.committed.fetch_max(count, Ordering::SeqCst);
        }
        history.reads.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn reads_of_a_killed_job_have_all_writes_before_them_once() {
    let dir = tempfile::tempdir().unwrap();
    let (log, server) = servers::start(&dir.path().join("data"), |_, _| {});
    let address = server.local_address().to_string();
    let node = Node::connect(&address).unwrap();
    let topic = node.topic("numbers").partitions(3).json::<u64>();
    let topic = topic.create().unwrap();
    let (dir, history) = (dir.path(), History::default());
    let mut rng = Rng::with_seed(9);
    let mut job = start(dir, Some(&address));
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (log, topic, history) = (&log, &topic, &history);
            scope.spawn(move || {
                // Also when this client fails.
                let _over = Over(&history.is_over);
                act(number, dir, log, topic, history);
            });
        }
        let _over = Over(&history.is_over);
        let reads = || history.reads.load(Ordering::SeqCst);
        for kill in 0..=KILLS {
            let before = reads();
            wait_until("clients read", || {
                reads() > before + READS_OF_A_RUN || history.is_over.load(Ordering::SeqCst)
            });
            if kill < KILLS {
                thread::sleep(Duration::from_millis(rng.u64(0..30)));
                job.kill().unwrap();
                job.wait().unwrap();
                job = start(dir, Some(&address));
            }
        }
    });
    // The job itself writes nothing.
    for file in ["stop", "leave", "begin"] {
        put(dir, file, "").unwrap();
    }
    assert!(job.wait().unwrap().success());
}
