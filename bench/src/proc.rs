//! What the kernel tells of a process.

use anyhow::{Context as _, Result};

/// A size that `/proc/<id>/status` tells, in MiB.
pub fn status_mib(id: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = kib.with_context(|| format!("/proc has no {field} of process {id}"))?;
    Ok(kib.parse::<f64>()? / 1024.0)
}
