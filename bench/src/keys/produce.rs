//! Produce requests to a keyed topic, beside the same requests to a plain one.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use fastrand::Rng;

use super::data::chunk_of;
use crate::connection::{Connection, check_produced, produce_frame};
use crate::measure::{Bench, median};
use crate::proc::{cpu_by_thread, took};
use crate::project::our_program;
use crate::report::{Better, Case};
use crate::server::Server;

pub const PRODUCE: &str = "produce";

/// The least ratio of the cost of a plain topic to that of a keyed one.
const TARGET: f64 = 1.0 / 1.3;

const TOPIC: &str = "produced";

/// Of about 16 KB.
const CHUNK_RECORDS: usize = 120;

/// Requests that are not answered yet.
const IN_FLIGHT: usize = 5;

/// The keyed topic is not compacted meanwhile.
const KEYED: [(&str, &str); 2] = [
    ("cleanup.policy", "compact"),
    ("min.compaction.lag.ms", "9000000000000"),
];

/// The server has done all work on the records when it takes less than this part of a processor for this long.
const IDLE: f64 = 0.02;
const IDLE_FOR: Duration = Duration::from_millis(1500);

struct Ran {
    /// Of the server, for a million records.
    cpu_s: f64,
    records_per_second: f64,
}

/// Compares the processor time of the server, with that of the key files.
pub fn produce(bench: &Bench) -> Result<Vec<Case>> {
    if our_program().is_none() {
        eprintln!(
            "bench: {PRODUCE} left out: no program millstream beside this one; build it first"
        );
        return Ok(Vec::new());
    }
    let folder = bench.folder(PRODUCE, 4 << 30)?;
    let log = bench.out().join("server.log");
    let mut server = Server::start(folder.path(), &log, Vec::new())?;
    let frames = frames(bench.size(1_000_000, 20_000))?;
    let rounds = bench.turns(2, |place| {
        let settings: &[(&str, &str)] = match place {
            0 => &KEYED,
            _ => &[],
        };
        bench.settle_disk();
        run(&server, settings, &frames)
    })?;
    server.stop()?;
    let pick = |side: usize, pick: fn(&Ran) -> f64| -> Vec<f64> {
        rounds[side].iter().map(pick).collect()
    };
    let rate = |side| median(&pick(side, |ran| ran.records_per_second)) / 1e3;
    let ours = pick(0, |ran| ran.cpu_s);
    let name = format!("{PRODUCE}/keyed");
    let case = Case::new(name, "CPU-s/M records", Better::Lower, ours);
    Ok(vec![
        case.by_hand(pick(1, |ran| ran.cpu_s))
            .target(TARGET)
            .detail("k_records_per_s", rate(0))
            .detail("plain_k_records_per_s", rate(1)),
    ])
}

/// Requests with records of random keys.
fn frames(records: usize) -> Result<Vec<Bytes>> {
    let mut rng = Rng::with_seed(1);
    let chunks = 0..records / CHUNK_RECORDS;
    let frame = |number| {
        let chunk = chunk_of(&mut rng, CHUNK_RECORDS, records as u64, number as u64)?;
        produce_frame(TOPIC, &[0], &chunk)
    };
    chunks.map(frame).collect()
}

fn run(server: &Server, settings: &[(&str, &str)], frames: &[Bytes]) -> Result<Ran> {
    let mut connection = Connection::to(server.address())?;
    // The disk's time for a sync would add the same to both.
    let durability = [("millstream.durability", "async")];
    connection.create_topic(TOPIC, 1, &[&durability, settings].concat())?;
    let before = cpu_by_thread(server.id())?;
    let records = (frames.len() * CHUNK_RECORDS) as f64;
    let started_at = Instant::now();
    for (number, frame) in frames.iter().enumerate() {
        connection.send(frame)?;
        if number >= IN_FLIGHT {
            check_produced(connection.receive()?)?;
        }
    }
    for _ in 0..IN_FLIGHT.min(frames.len()) {
        check_produced(connection.receive()?)?;
    }
    let seconds = started_at.elapsed().as_secs_f64();
    let spent = || -> Result<f64> {
        let now = cpu_by_thread(server.id())?;
        Ok(took(&before, &now).sum::<u64>() as f64 / 1e9)
    };
    let mut cpu_s = spent()?;
    loop {
        thread::sleep(IDLE_FOR);
        let last = std::mem::replace(&mut cpu_s, spent()?);
        if cpu_s - last < IDLE * IDLE_FOR.as_secs_f64() {
            break;
        }
    }
    connection.delete_topic(TOPIC)?;
    Ok(Ran {
        cpu_s: cpu_s / (records / 1e6),
        records_per_second: records / seconds,
    })
}
