//! Other programs that count the same words.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use millstream_base::EnergyMeter;
use serde::Deserialize;

use super::ours::WORKERS;
use crate::measure::{Bench, ROUNDS, energy_meter, median, order_of_turns};
use crate::project::{self, build_peers, is_built, our_program};
use crate::report::{Better, Case};
use crate::text::{PREFIX, Text};

pub const PEERS: &str = "peers";

/// The interval between looks at our program's memory.
const LOOK_EVERY: Duration = Duration::from_millis(5);

struct Peer {
    name: &'static str,
    /// A file in the folder of the peers that exists once the peer is built.
    built: &'static str,
    /// The least ratio of our throughput to the peer's.
    faster: f64,
    /// The least ratio of the peer's processor time, and of its memory, to ours.
    thriftier: Option<(f64, f64)>,
}

const ALL: [Peer; 5] = [
    Peer {
        name: "flink",
        built: "flink/built",
        faster: 4.0,
        thriftier: Some((5.0, 10.0)),
    },
    Peer {
        name: "spark",
        built: "spark/built",
        faster: 8.0,
        thriftier: Some((5.0, 10.0)),
    },
    Peer {
        name: "timely",
        built: "timely/release/timely-peer",
        faster: 1.0,
        thriftier: None,
    },
    Peer {
        name: "duckdb",
        built: "duckdb/built",
        faster: 1.0,
        thriftier: None,
    },
    Peer {
        name: "polars",
        built: "polars/built",
        faster: 1.0,
        thriftier: None,
    },
];

/// The line that a program prints about its count.
#[derive(Debug, Deserialize)]
struct Printed {
    count: u64,
    /// Without the start-up time.
    seconds: f64,
    cpu_seconds: f64,
    /// Ours does not print it: then it is measured from outside.
    #[serde(default)]
    peak_bytes: u64,
    /// The time until it could count. Ours does not print it: then it is all the time beside the count.
    startup_seconds: Option<f64>,
}

/// The figures of one count.
#[derive(Debug, Clone, Copy)]
struct Count {
    mb_per_s: f64,
    cpu_seconds: f64,
    peak_mib: f64,
    /// Of all processors during the count, where the machine counts them.
    joules: Option<f64>,
    startup_seconds: f64,
}

/// The program `millstream`, fused, and each peer in turn; each in a process of its own.
pub fn peers(bench: &Bench) -> Result<Vec<Case>> {
    let Some(program) = our_program() else {
        eprintln!("bench: {PEERS} left out: no program millstream beside this one; build it first");
        return Ok(Vec::new());
    };
    if !bench.is_quick() {
        build_peers(ALL.iter().map(|peer| peer.name));
    }
    let is_built = |peer: &&Peer| is_built(peer.built, &format!("{PEERS}/{}", peer.name));
    let peers: Vec<&Peer> = ALL.iter().filter(is_built).collect();
    if peers.is_empty() {
        return Ok(Vec::new());
    }

    let text = bench.text()?;
    let mut ours = Vec::new();
    let mut theirs: Vec<Vec<Count>> = vec![Vec::new(); ALL.len()];
    let mut failed = vec![false; ALL.len()];
    // Each warms itself up. The first is ours, the others are the peers.
    for round in 0..bench.size(ROUNDS, 1) {
        for turn in order_of_turns(round, 1 + peers.len()) {
            let Some(peer) = turn.checked_sub(1).map(|turn| peers[turn]) else {
                ours.push(run_ours(&program, text)?);
                continue;
            };
            let place = index(peer);
            if failed[place] {
                continue;
            }
            match run_peer(peer.name, text) {
                Ok(count) => theirs[place].push(count),
                Err(error) => {
                    eprintln!("bench: {PEERS}/{} left out: {error:#}", peer.name);
                    failed[place] = true;
                }
            }
        }
    }
    let cases = peers.iter().filter(|peer| !failed[index(peer)]);
    let cases = cases.flat_map(|peer| beside(peer, &ours, &theirs[index(peer)]));
    Ok(cases.collect())
}

fn index(peer: &Peer) -> usize {
    let index = ALL.iter().position(|other| other.name == peer.name);
    index.expect("one of all")
}

/// The limit is the peer.
fn beside(peer: &Peer, ours: &[Count], theirs: &[Count]) -> Vec<Case> {
    let case = |what: &str, unit, better, pick: fn(&Count) -> f64| {
        let name = format!("{PEERS}/{}/{what}", peer.name);
        let ours = ours.iter().map(pick).collect();
        Case::new(name, unit, better, ours).by_hand(theirs.iter().map(pick).collect())
    };
    let throughput = case("throughput", "MB/s", Better::Higher, |c| c.mb_per_s);
    let cpu = case("cpu", "s", Better::Lower, |c| c.cpu_seconds);
    let memory = case("memory", "MiB", Better::Lower, |c| c.peak_mib);
    let startup = |counts: &[Count]| {
        let seconds: Vec<f64> = counts.iter().map(|count| count.startup_seconds).collect();
        median(&seconds)
    };
    let throughput = throughput
        .target(peer.faster)
        .detail("startup_s", startup(ours))
        .detail("startup_of_the_peer_s", startup(theirs));
    let mut cases = match peer.thriftier {
        Some((less_cpu, less_memory)) => {
            vec![throughput, cpu.target(less_cpu), memory.target(less_memory)]
        }
        None => vec![throughput, cpu, memory],
    };
    // Where the machine does not count joules, the processor time stands for them.
    if [ours, theirs]
        .iter()
        .all(|counts| counts.iter().all(|count| count.joules.is_some()))
    {
        cases.push(case("energy", "J", Better::Lower, |c| {
            c.joules.unwrap_or(f64::NAN)
        }));
    }
    cases
}

fn run_peer(name: &str, text: &Text) -> Result<Count> {
    let mut command = millstream_testing::command(project::root().join("bench/peers/run.sh"));
    let prefix = str::from_utf8(PREFIX)?;
    command.args([name]).arg(&text.path).arg(prefix);
    run(&mut command, text, |_| 0)
}

fn run_ours(program: &Path, text: &Text) -> Result<Count> {
    let mut command = millstream_testing::command(program);
    command
        .env("MILLSTREAM_WORKERS", WORKERS.to_string())
        .args(["flow", "run", "logparser", "--json", "--stages", "fused"])
        .args(["--prefix", str::from_utf8(PREFIX)?, "--file"])
        .arg(&text.path);
    run(&mut command, text, peak_bytes).context("millstream flow run logparser")
}

/// Runs a program that prints its count and its costs as its last line. Samples the memory of its process and the
/// energy of all processors meanwhile.
fn run(command: &mut Command, text: &Text, peak_bytes: fn(u32) -> u64) -> Result<Count> {
    let started_at = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start it")?;
    let stdout = child.stdout.take().context("it has no output")?;
    let id = child.id();
    let has_ended = AtomicBool::new(false);
    let (read, (seen_bytes, energy)) = thread::scope(|scope| {
        let look = scope.spawn(|| {
            let mut peak = 0;
            let mut meter = energy_meter();
            let mut energy = Vec::new();
            while !has_ended.load(Ordering::Relaxed) {
                peak = peak.max(peak_bytes(id));
                if let Some(joules) = meter.as_mut().and_then(EnergyMeter::joules) {
                    energy.push((started_at.elapsed().as_secs_f64(), joules));
                }
                thread::sleep(LOOK_EVERY);
            }
            (peak, energy)
        });
        let read = last_line(BufReader::new(stdout), started_at);
        has_ended.store(true, Ordering::Relaxed);
        (read, look.join().unwrap_or_default())
    });
    let status = child.wait()?;
    let wall_seconds = started_at.elapsed().as_secs_f64();
    let (line, printed_at) = read?;
    ensure!(status.success(), "it failed: {status} (see above)");
    let printed: Printed =
        serde_json::from_str(&line).with_context(|| format!("it printed {line:?}"))?;
    let expected = text.expected.count;
    ensure!(
        printed.count == expected,
        "it counted {} words of {expected}",
        printed.count
    );
    Ok(Count {
        mb_per_s: text.bytes as f64 / 1e6 / printed.seconds,
        cpu_seconds: printed.cpu_seconds,
        peak_mib: printed.peak_bytes.max(seen_bytes) as f64 / f64::from(1 << 20),
        // A count is the last thing that a program does before it prints.
        joules: joules_between(&energy, printed_at - printed.seconds, printed_at),
        startup_seconds: printed
            .startup_seconds
            .unwrap_or(wall_seconds - printed.seconds),
    })
}

/// The last line of an output that ends, and when it came, in seconds.
fn last_line(lines: impl BufRead, started_at: Instant) -> Result<(String, f64)> {
    let mut last = (String::new(), 0.0);
    for line in lines.lines() {
        last = (line?, started_at.elapsed().as_secs_f64());
    }
    Ok(last)
}

/// The joules between two times, in seconds, from looks at a meter at others; `None` without looks.
fn joules_between(looks: &[(f64, f64)], from: f64, to: f64) -> Option<f64> {
    let at = |time: f64| {
        let behind = looks.partition_point(|(at, _)| *at < time);
        let (after, before) = (looks.get(behind), behind.checked_sub(1).map(|n| looks[n]));
        match (before, after) {
            (Some((t0, j0)), Some((t1, j1))) => Some(j0 + (j1 - j0) * (time - t0) / (t1 - t0)),
            (Some((_, joules)), None) => Some(joules),
            (None, Some((_, joules))) => Some(*joules),
            (None, None) => None,
        }
    };
    Some(at(to)? - at(from)?)
}

/// Returns the most memory that a process ever had resident; 0 when it has ended. The kernel keeps the highest value,
/// so only memory that the process takes after the last look is missed.
fn peak_bytes(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    peak.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joules_are_measured_between_start_and_end_of_the_count() {
        let looks = [(0.0, 0.0), (1.0, 10.0), (2.0, 40.0), (3.0, 50.0)];
        assert_eq!(joules_between(&looks, 1.0, 2.0), Some(30.0));
        assert_eq!(joules_between(&looks, 0.5, 2.5), Some(40.0));
        // The last look was before the end.
        assert_eq!(joules_between(&looks, 2.0, 3.1), Some(10.0));
        assert_eq!(joules_between(&[], 0.0, 1.0), None);
    }
}
