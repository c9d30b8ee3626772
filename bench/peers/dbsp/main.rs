//! Queries of Nexmark as circuits of dbsp, with the state in memory. The results are those of the application nexmark.
//!
//! ```text
//! dbsp-peer run QUERY FILE STEP      drops the results; prints seconds, CPU-seconds, changes and the most memory
//! dbsp-peer check QUERY FILE STEP    prints the number of rows that the changes leave, and the sum of their hashes
//! ```
//!
//! STEP is the number of events that all workers read together before the circuit computes its results.

mod events;
mod input;
mod queries;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{env, fs, process};

use dbsp::Runtime;
use dbsp::circuit::CircuitConfig;
use dbsp::mimalloc::MiMalloc;
use rustix::time::{ClockId, clock_gettime};

use events::Share;
use input::{Input, Results};
use queries::{Build, QUERIES};

/// As in Cargo.toml.
const VERSION: &str = "0.349.0";

const WORKERS: usize = 2;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [work, query, file, step] = arguments.as_slice() else {
        fail("usage: run|check QUERY FILE STEP");
    };
    let checks = match work.as_str() {
        "run" => false,
        "check" => true,
        _ => fail("the first argument is run or check"),
    };
    let build = QUERIES.iter().find(|(name, _)| name == query);
    let Some((_, build)) = build else {
        fail(&format!("there is no query {query}"));
    };
    let Some(step) = step.parse().ok().filter(|step| *step > 0) else {
        fail("STEP is a number of events");
    };
    let results = Results {
        checks,
        ..Results::default()
    };
    let cpu_before = cpu_seconds();
    let before = Instant::now();
    run(*build, PathBuf::from(file), step, results.clone())
        .unwrap_or_else(|error| fail(&error.to_string()));
    let seconds = before.elapsed().as_secs_f64();
    let cpu_seconds = cpu_seconds() - cpu_before;
    if checks {
        let rows = results.rows.load(Ordering::Relaxed);
        let hashes = results.hashes.load(Ordering::Relaxed);
        println!(r#"{{"rows":{rows},"hashes":"{hashes:016x}"}}"#);
    } else {
        let changes = results.changes.load(Ordering::Relaxed);
        let peak_bytes = peak_bytes().unwrap_or_else(|| fail("/proc/self/status has no VmHWM"));
        println!(
            r#"{{"peer":"dbsp","version":"{VERSION}","changes":{changes},"seconds":{seconds:.3},"cpu_seconds":{cpu_seconds:.3},"peak_bytes":{peak_bytes}}}"#
        );
    }
    // No time goes into freeing the state.
    process::exit(0)
}

/// Builds the circuit, and runs it until all events are read.
fn run(build: Build, file: PathBuf, step: usize, results: Results) -> Result<(), dbsp::Error> {
    let ended = Arc::new(AtomicUsize::new(0));
    let ended_too = ended.clone();
    let config = CircuitConfig::with_workers(WORKERS);
    let (mut circuit, ()) = Runtime::init_circuit(config, move |circuit| {
        let share = Share::open(&file, Runtime::worker_index(), WORKERS)?;
        let input = Input {
            circuit,
            share,
            step_events: step.div_ceil(WORKERS),
            ended: ended_too,
        };
        build(input, &results);
        Ok(())
    })?;
    while ended.load(Ordering::Relaxed) < WORKERS {
        circuit.transaction()?;
    }
    // Dropped, it would free its state.
    std::mem::forget(circuit);
    Ok(())
}

fn fail(what: &str) -> ! {
    eprintln!("dbsp: {what}");
    process::exit(1)
}

/// Of all threads of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most memory that this process ever had resident.
fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}
