//! The kernel's figures of a process, from `/proc`.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context as _, Result, bail};

/// Reads a size from `/proc/<id>/status`, in MiB.
pub fn status_mib(id: u32, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = kib.with_context(|| format!("/proc has no {field} of process {id}"))?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// Returns the processor time of each thread of a process that runs now, in nanoseconds: for the whole process the
/// kernel reports hundredths of a second only.
pub fn cpu_by_thread(id: u32) -> Result<HashMap<u32, u64>> {
    let mut threads = HashMap::new();
    for entry in fs::read_dir(format!("/proc/{id}/task"))? {
        let entry = entry?;
        // A thread may have ended since.
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else {
            continue;
        };
        let id = entry.file_name().to_string_lossy().parse()?;
        let ns = text.split_whitespace().next().unwrap_or_default().parse()?;
        threads.insert(id, ns);
    }
    Ok(threads)
}

/// The processor time of each of the kernel's threads that write files to disk, and of others that work for all, in
/// nanoseconds.
pub fn cpu_of_write_back() -> Result<HashMap<u32, u64>> {
    const NAMES: [&str; 3] = ["kworker", "jbd2", "kswapd"];
    let mut threads = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(id) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let read = |name| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let name = read("comm");
        if NAMES.iter().any(|begin| name.starts_with(begin)) {
            let text = read("schedstat");
            let ns = text.split_whitespace().next().unwrap_or("0").parse()?;
            threads.insert(id, ns);
        }
    }
    Ok(threads)
}

/// Returns the processor time of each thread between two looks, in nanoseconds.
pub fn took(before: &HashMap<u32, u64>, after: &HashMap<u32, u64>) -> impl Iterator<Item = u64> {
    after
        .iter()
        .map(|(thread, ns)| ns - before.get(thread).unwrap_or(&0).min(ns))
}

/// Returns the thread of a process that has this name, of which the kernel keeps 15 characters.
pub fn thread_named(id: u32, name: &str) -> Result<u32> {
    let name: String = name.chars().take(15).collect();
    for entry in fs::read_dir(format!("/proc/{id}/task"))? {
        let thread = entry?.file_name().to_string_lossy().parse()?;
        if thread_name(id, thread).is_ok_and(|found| found == name) {
            return Ok(thread);
        }
    }
    bail!("process {id} has no thread {name}")
}

/// Returns how many bytes a thread of a process has read and written with system calls.
pub fn bytes_of_thread(id: u32, thread: u32) -> Result<u64> {
    let path = format!("/proc/{id}/task/{thread}/io");
    let io = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let fields = io.lines().filter_map(|line| line.split_once(": "));
    let bytes = fields.filter(|(name, _)| matches!(*name, "rchar" | "wchar"));
    let bytes: Result<Vec<u64>, _> = bytes.map(|(_, value)| value.parse()).collect();
    Ok(bytes?.into_iter().sum())
}

/// Returns the name of a thread of a process.
pub fn thread_name(id: u32, thread: u32) -> Result<String> {
    let name = fs::read_to_string(format!("/proc/{id}/task/{thread}/comm"))?;
    Ok(name.trim_end().to_owned())
}

/// Gives this thread the lowest priority: it runs where the others leave a processor idle, about.
pub fn lower_own_priority() -> Result<()> {
    let thread = rustix::thread::gettid();
    rustix::process::setpriority_process(Some(thread), 19)?;
    Ok(())
}

/// Gives this thread the highest priority, if the system lets it: it runs as soon as it wakes up.
pub fn raise_own_priority() {
    let thread = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(thread), -19);
}
