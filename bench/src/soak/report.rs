//! The progress of a run, and its report.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::probe::Times;
use super::run::Run;
use super::watch::Watch;
use crate::report::{Better, Case};
use crate::server::Sample;

/// The name of the only case.
pub const MIX: &str = "mix";

/// A line about the progress.
pub fn progress(run: &Run, sample: &Sample, times: &Times) -> String {
    let behind = (0..run.plan.partitions).map(|partition| run.books.behind(partition));
    let seconds = |time: Duration| time.as_secs();
    format!(
        "soak: {} of {} s, {} connections, {} records, {} not yet seen by all, {:.0} MiB (pool {:.0}), \
         probe p99 {:.1} ms",
        seconds(run.started_at.elapsed()),
        seconds(run.lasts),
        sample.sockets,
        run.books.sent(),
        behind.sum::<u64>(),
        sample.resident_mib,
        sample.pool_mib,
        Times::quantile(&times.stored_ms, 0.99),
    )
}

/// The figures of a run without faults.
pub struct Outcome<'a> {
    pub run: &'a Run,
    pub watch: &'a Watch,
    pub times: &'a Times,
    pub probe_ms_max: f64,
    pub restart_s: Option<f64>,
    pub audited: u64,
    pub log_lines: usize,
}

impl Outcome<'_> {
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = vec![
            self.records(),
            self.probe("produce", &self.times.stored_ms),
            self.probe("consume", &self.times.seen_ms),
            self.memory(),
        ];
        cases.extend(self.connections());
        cases.extend(self.restart_s.map(|seconds| {
            case("restart", "s", Better::Lower, seconds)
                .detail("longest_probe_through_it_ms", *self.times.outage_ms.lock())
        }));
        cases
    }

    fn connections(&self) -> Option<Case> {
        let counts = &self.run.counts;
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let fewest = self.watch.sockets_min? as f64;
        let connections = case("connections/fewest", "open", Better::Higher, fewest)
            .bound(self.run.plan.connections as f64)
            .detail("most_open", self.watch.sockets_max as f64)
            .detail("cut_off", number(&counts.cuts))
            .detail("members_left", number(&counts.members_left))
            .detail("members_killed", number(&counts.members_killed))
            .detail("garbled_requests", number(&counts.garbled))
            .detail("greedy_closed", number(&counts.greedy_closed))
            .detail("lines_of_log", self.log_lines as f64);
        Some(connections)
    }

    fn records(&self) -> Case {
        let seconds = self.run.lasts.as_secs_f64();
        let sent = self.run.books.sent() as f64;
        let bytes = self.run.counts.bytes.load(Ordering::Relaxed) as f64;
        case("records", "records/s", Better::Higher, sent / seconds)
            .detail("run_s", seconds)
            .detail("records", sent)
            .detail("mb", bytes / 1e6)
            .detail("read_again_at_the_end", self.audited as f64)
    }

    fn probe(&self, name: &str, times: &parking_lot::Mutex<Vec<f64>>) -> Case {
        let quantile = |part| Times::quantile(times, part);
        case(
            &format!("probe-{name}/p99"),
            "ms",
            Better::Lower,
            quantile(0.99),
        )
        .bound(self.probe_ms_max)
        .detail("p50_ms", quantile(0.5))
        .detail("longest_ms", quantile(1.0))
        .detail("records", times.lock().len() as f64)
    }

    fn memory(&self) -> Case {
        case(
            "memory-beside-pool",
            "MiB",
            Better::Lower,
            self.watch.beside_pool_mib,
        )
        .bound(self.watch.bound_mib(self.run))
        .detail("with_pool_mib", self.watch.resident_mib)
    }
}

fn case(name: &str, unit: &str, better: Better, value: f64) -> Case {
    Case::new(format!("{MIX}/{name}"), unit, better, vec![value])
}
