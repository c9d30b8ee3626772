//! The watermarks of stages, for readers.

use std::sync::Arc;

use millstream_base::Timestamp;

use crate::stage::contract::Stage;
use crate::time::control_event::RingEvents;

/// Returns the watermark of a stage: the least of its sources or of its rings.
pub fn watermark(stage: &dyn Stage) -> Option<Timestamp> {
    let times: Vec<Option<Timestamp>> = match (stage.source_times(), stage.input()) {
        (Some((times, _)), _) => times.iter().map(|time| time.watermark).collect(),
        (None, Some(input)) => input.events.iter().map(RingEvents::time_if_any).collect(),
        (None, None) => return None,
    };
    times.into_iter().min().flatten()
}

/// Returns the least watermark of stages that have one.
pub fn watermark_of(stages: &[Arc<dyn Stage>]) -> Option<Timestamp> {
    let watermarks = stages.iter().filter_map(|stage| watermark(&**stage));
    // At the end of its input a stage is behind all times.
    watermarks.min().filter(|time| *time < Timestamp(i64::MAX))
}
