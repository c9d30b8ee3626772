//! Runs a count as every peer does: once on a sample, then on the file, and prints its time and memory.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::{Instant, SystemTime};
use std::{env, fs, process};

use rustix::time::{ClockId, clock_gettime};

#[derive(Clone, Copy)]
pub struct Counted {
    /// Words that start with the prefix.
    pub count: u64,
    /// All words.
    pub words: u64,
}

/// The arguments of the program: FILE PREFIX SAMPLE STARTED, the last in seconds since 1970.
pub fn run(peer: &str, version: &str, count: impl Fn(&Path, &[u8]) -> Result<Counted, String>) {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let [file, prefix, sample, started] = arguments.as_slice() else {
        fail(peer, "usage: FILE PREFIX SAMPLE STARTED");
    };
    let prefix = prefix.clone().into_vec();
    let started: f64 = started
        .to_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| fail(peer, "STARTED is no number of seconds"));
    let startup_seconds = seconds_since_1970() - started;
    let count = |file| count(Path::new(file), &prefix).unwrap_or_else(|error| fail(peer, &error));

    count(sample);
    let cpu_before = cpu_seconds();
    let before = Instant::now();
    let Counted { count, words } = count(file);
    let seconds = before.elapsed().as_secs_f64();
    let cpu_seconds = cpu_seconds() - cpu_before;
    println!(
        r#"{{"peer":"{peer}","version":"{version}","count":{count},"words":{words},"seconds":{seconds:.3},"startup_seconds":{startup_seconds:.3},"cpu_seconds":{cpu_seconds:.3},"peak_bytes":{}}}"#,
        peak_bytes().unwrap_or_else(|| fail(peer, "/proc/self/status has no VmHWM"))
    );
}

fn fail(peer: &str, what: &str) -> ! {
    eprintln!("{peer}: {what}");
    process::exit(1)
}

fn seconds_since_1970() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
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
