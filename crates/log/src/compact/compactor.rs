//! The state of a node's compaction, which the steps in [`step`](crate::compact::step) change.

use millstream_base::{Clock, Timestamp};
use parking_lot::Mutex;

use crate::compact::limits::Pace;
use crate::compact::schedule::Schedule;
use crate::compact::stats::CompactionCounters;
use crate::compact::time::SteadyTime;
use crate::lane::persist_signal::PersistSignal;
use crate::settings::config::LogConfig;

/// The state of the thread that compacts.
#[derive(Debug)]
pub struct Compactor {
    /// Wakes the thread; closed when the log closes.
    pub signal: PersistSignal,
    pub counters: CompactionCounters,
    /// Held during a pass: there is one at a time.
    pub schedule: Mutex<Schedule>,
    pub pace: Pace,
    /// The time by which tombstones, ended values and markers are dropped, and holds end.
    pub time: SteadyTime,
}

impl Compactor {
    /// Returns the state at a start. `last` is when an earlier run has compacted.
    pub fn new(config: &LogConfig, clock: &dyn Clock, last: Option<Timestamp>) -> Compactor {
        Compactor {
            signal: PersistSignal::default(),
            counters: CompactionCounters::default(),
            schedule: Mutex::default(),
            pace: Pace::new(config.compaction_rate, config.background, clock.monotonic()),
            time: SteadyTime::new(clock, last),
        }
    }
}
