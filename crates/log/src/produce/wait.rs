//! Waiting until a lane's chunks are durable, or readable.

use event_listener::Listener as _;
use millstream_base::Offset;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::lane::LaneState;
use crate::lane::unsynced::SyncLine;
use crate::settings::config::{Background, Durability};

/// Waits until a lane is durable up to `offset`.
pub(crate) fn wait_durable(core: &Core, lane: &LaneState, offset: Offset) -> Result<()> {
    core.hurry_durable(lane, offset);
    wait_for(core, lane, LaneState::durable_offset, offset)
}

/// Waits until one of a lane's heads has come to `offset`.
pub(crate) fn wait_for(
    core: &Core,
    lane: &LaneState,
    head: fn(&LaneState) -> Offset,
    offset: Offset,
) -> Result<()> {
    loop {
        if let Some(result) = poll(core, lane, head, offset) {
            return result;
        }
        if core.config.background == Background::Manual {
            if !(core.sync_step() | core.persist_step()) {
                return Err(LogError::Closed);
            }
            continue;
        }
        let moved = lane.durable_moved.listen();
        if let Some(result) = poll(core, lane, head, offset) {
            return result;
        }
        moved.wait();
    }
}

pub(crate) fn poll(
    core: &Core,
    lane: &LaneState,
    head: fn(&LaneState) -> Offset,
    offset: Offset,
) -> Option<Result<()>> {
    if head(lane) >= offset {
        return Some(Ok(()));
    }
    if let Some(fault) = lane.fault() {
        return Some(Err(fault.clone()));
    }
    if lane.is_removed() {
        return Some(Err(LogError::UnknownStream {
            name: lane.stream.name.clone(),
        }));
    }
    core.appends
        .disk
        .is_full()
        .then(|| Err(core.appends.disk.full_error()))
}

impl Core {
    /// Hurries a lane to become durable up to `offset`, since a caller waits for that.
    pub fn hurry_durable(&self, lane: &LaneState, offset: Offset) {
        if lane.stream.durability != Durability::Written {
            return;
        }
        let mut state = lane.unsynced.state.lock();
        state.wanted = state.wanted.max(offset);
        if state.line == SyncLine::Waiting {
            state.line = SyncLine::Due;
            self.appends.queue.hurry_unsynced_lane(lane);
        }
    }
}
