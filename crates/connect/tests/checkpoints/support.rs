//! Shared helpers of the tests of checkpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_flow::{Checkpointing, Checkpoints, FlowSettings, Resume, Running};

/// Takes checkpoints as often as it can.
pub fn settings(place: &Arc<impl Checkpoints>, resume: bool) -> FlowSettings {
    FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(place) as Arc<dyn Checkpoints>,
            interval: Some(Duration::from_millis(1)),
            resume: match resume {
                true => Resume::Always,
                false => Resume::Never,
            },
        }),
        ..FlowSettings::default()
    }
}

/// Waits until `condition` holds, for up to a minute.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until everything that the flow did before is in a checkpoint.
pub fn wait_for_checkpoint(running: &Running) {
    let kept = || running.checkpoints().unwrap().kept;
    let before = kept();
    wait_until("a checkpoint is kept", || kept() > before);
}
