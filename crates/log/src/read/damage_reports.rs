//! Reports of damage: a line in the program's own log now and then, a number in the statistics, and the lane's fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_base::{Clock, LineLimit};

use crate::error::LogError;
use crate::lane::LaneState;

/// No more than one line in this time: readers that try again find the same damage again and again.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Reports damage that the start and reads find.
#[derive(Debug)]
pub struct DamageReports {
    /// How often reads found damage. Added to by readers, loaded for the statistics.
    reads: AtomicU64,
    lines: LineLimit,
}

impl Default for DamageReports {
    fn default() -> DamageReports {
        DamageReports {
            reads: AtomicU64::new(0),
            lines: LineLimit::new(1, LINE_EVERY),
        }
    }
}

impl DamageReports {
    /// Returns how often reads found damage.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Reports damage that a read has found: the lane has a fault from then on that `describe` shows.
    pub fn report_read(&self, clock: &dyn Clock, lane: &LaneState, error: &LogError) {
        if !matches!(error, LogError::Corrupted { .. } | LogError::Io { .. }) {
            return;
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        lane.set_read_fault(error);
        self.write_line(clock, lane, error);
    }

    /// Reports the lanes that the start found damaged: the first, and how many others there are.
    pub fn report_start(&self, clock: &dyn Clock, lanes: &[Arc<LaneState>]) {
        let mut faulted = lanes.iter().filter_map(|lane| Some((lane, lane.fault()?)));
        let first = faulted.next();
        self.lines.leave_out(faulted.count() as u64);
        if let Some((lane, fault)) = first {
            self.write_line(clock, lane, fault);
        }
    }

    /// Writes a line about a damaged lane, unless there was one a moment ago.
    fn write_line(&self, clock: &dyn Clock, lane: &LaneState, error: &LogError) {
        let Some(left_out) = self.lines.take(clock.monotonic()) else {
            return;
        };
        let stream = &lane.stream.name;
        tracing::error!(stream, streamlet = %lane.id.streamlet, lane = %lane.id.lane, left_out, %error,
            "stored data is damaged; `millstream repair` lists all damage");
    }
}
