//! Telling of damage: a line on stderr now and then, a number in the statistics, and the lane's fault.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_base::LineLimit;

use crate::core::Core;
use crate::error::LogError;
use crate::ids::LaneId;

/// No more than one line in this time: readers that try again find the same damage again and again.
const LINE_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct DamageTold {
    /// How often reads met damage. Added to by readers, loaded for the statistics.
    reads: AtomicU64,
    lines: LineLimit,
}

impl Default for DamageTold {
    fn default() -> DamageTold {
        DamageTold {
            reads: AtomicU64::new(0),
            lines: LineLimit::new(1, LINE_EVERY),
        }
    }
}

impl DamageTold {
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Core {
    /// Tells of what a read met: the lane has a fault from then on that `describe` shows.
    pub fn tell_damaged_read(&self, lane: LaneId, error: &LogError) {
        if !matches!(error, LogError::Corrupted { .. } | LogError::Io { .. }) {
            return;
        }
        self.damage_told.reads.fetch_add(1, Ordering::Relaxed);
        let state = self.stream(lane.stream);
        let state = state.and_then(|stream| stream.lane(lane.streamlet, lane.lane));
        let mut stream = lane.stream.to_string();
        if let Some(state) = state {
            state.set_read_fault(error);
            stream.clone_from(&state.stream.name);
        }
        self.tell_damage(&stream, lane, error);
    }

    /// Tells of the lanes that the start found damaged: of the first, and how many others there are.
    pub fn tell_faults(&self) {
        let lanes = self.made_lanes();
        let mut faulted = lanes.iter().filter_map(|lane| Some((lane, lane.fault()?)));
        let first = faulted.next();
        self.damage_told.lines.leave_out(faulted.count() as u64);
        if let Some((lane, fault)) = first {
            self.tell_damage(&lane.stream.name, lane.id, fault);
        }
    }

    /// How many lanes refuse writes, or have damage that a read has met.
    pub fn faulted_lanes(&self) -> u64 {
        let lanes = self.made_lanes();
        let faulted = lanes
            .iter()
            .filter(|lane| lane.fault().or(lane.read_fault()).is_some());
        faulted.count() as u64
    }

    /// Writes a line about a damaged lane, unless there was one a moment ago.
    pub fn tell_damage(&self, stream: &str, lane: LaneId, error: &LogError) {
        let Some(left_out) = self.damage_told.lines.take(self.clock.monotonic()) else {
            return;
        };
        tracing::error!(stream, streamlet = %lane.streamlet, lane = %lane.lane, left_out, %error,
            "stored data is damaged; `millstream repair` lists all damage");
    }
}
