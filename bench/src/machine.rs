//! Where and when a benchmark ran.

use std::fs;
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::thread;

use millstream_base::{Clock as _, SystemClock};

use crate::measure::energy_meter;
use crate::project;

/// The pages and files with the results; they are no part of the program.
const RESULTS: &str = ":!docs/benchmarks*";

/// The commit of the project's sources, with `-dirty` behind it if they differ from it; `None` without a repository.
pub fn commit() -> Option<String> {
    let git = |words: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(project::root())
            .args(words)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        output.status.success().then_some(())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--", ".", RESULTS])?;
    Some(match changes.is_empty() {
        true => commit,
        false => commit + "-dirty",
    })
}

/// The processors that this process may use.
pub fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Processor, cores, memory, kernel, and whether there are joules.
pub fn describe() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = cores();
    let memory = rustix::system::sysinfo();
    let memory_bytes = memory.totalram.saturating_mul(memory.mem_unit.into());
    let kernel = rustix::system::uname();
    let release = kernel.release().to_string_lossy();
    let version = release.split('-').next().unwrap_or_default();
    let energy = match energy_meter() {
        Some(_) => "energy in joules (RAPL)",
        None => "no RAPL, so energy in CPU-seconds",
    };
    format!(
        "{model}, {cores} cores, {:.0} GiB, Linux {version}, {energy}",
        memory_bytes as f64 / f64::from(1 << 30)
    )
}

/// Today in UTC, as `2026-01-31`.
pub fn today() -> String {
    let now_ms = SystemClock::default().now().0;
    date(now_ms.div_euclid(24 * 60 * 60 * 1000))
}

/// Returns the date `days` days after 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms").
fn date(days: i64) -> String {
    // Days since 0000-03-01: a year that starts in March has its leap day at its end.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn days_since_1970_are_formatted_as_dates() {
        for (days, text) in [
            (0, "1970-01-01"),
            (19_782, "2024-02-29"),
            (19_783, "2024-03-01"),
            (20_453, "2025-12-31"),
        ] {
            assert_eq!(super::date(days), text);
        }
    }
}
