//! The part of a lane that is in the cache of the operating system, and not synced: of a [`Durability::Written`](crate::Durability::Written) stream.

use std::sync::Arc;

use millstream_base::{Offset, Position};
use parking_lot::Mutex;

use crate::group::Group;

/// The end of the bytes in the files of a lane that are not durable.
#[derive(Debug, Default)]
pub struct Unsynced {
    pub state: Mutex<UnsyncedState>,
}

#[derive(Debug, Default)]
pub struct UnsyncedState {
    /// The end of the written bytes. Moved by the syncer of the lane's virtual log.
    pub end: Option<WrittenEnd>,
    pub line: SyncLine,
    /// A caller waits until everything before this offset is durable.
    pub wanted: Offset,
}

/// Whether a lane is in line for a sync.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum SyncLine {
    #[default]
    Out,
    Waiting,
    /// It need not wait any longer.
    Due,
}

/// The end of the written bytes of a lane.
#[derive(Debug, Clone)]
pub struct WrittenEnd {
    pub group: Arc<Group>,
    pub position: Position,
    /// The lane's offset there.
    pub offset: Offset,
}

impl Unsynced {
    pub fn end(&self) -> Option<WrittenEnd> {
        self.state.lock().end.clone()
    }

    /// The lane is out of the line: bytes that are written from now on put it in line anew.
    pub fn take_turn(&self) -> Option<WrittenEnd> {
        let mut state = self.state.lock();
        state.line = SyncLine::Out;
        state.end.clone()
    }
}
