//! The figures of a source's instances that can be seen while workers are in them.

use std::sync::Arc;
use std::time::Duration;

use crate::sources::positions::Positions;
use crate::stage::input::Input;
use crate::time::gauge::TimeGauge;
use crate::time::stage_time::StageTime;

/// The figures of a source's instances that can be read while workers are in them.
#[derive(Default)]
pub struct WatchedSource {
    /// The gauge of each instance; empty where the stage emits no watermarks.
    pub times: Vec<Arc<TimeGauge>>,
    pub idle_after: Duration,
    /// The positions of each instance that knows them.
    pub positions: Vec<Arc<dyn Positions>>,
}

impl WatchedSource {
    /// Adds an instance.
    pub fn add(&mut self, input: &impl Input, time: &StageTime) {
        if let Some(idle_after) = time.idle_after_if_emitting() {
            self.idle_after = idle_after;
            self.times.push(Arc::clone(time.gauge()));
        }
        self.positions.extend(input.positions());
    }
}
