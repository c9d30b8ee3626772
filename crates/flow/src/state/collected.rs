//! The state element of windows that have all of their events.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::error::BoxError;
use crate::state::late::{LateTally, LateTo};
use crate::state::partial::StateReader;
use crate::state::size::StateSize;
use crate::windows::Windows;

/// A state element: the figures of windows that have all of their events. A clone is another handle of the same
/// element.
#[derive(Clone)]
pub struct Collected {
    pub(crate) windows: Windows,
    pub(crate) state: Arc<CollectedState>,
}

#[derive(Default)]
pub struct CollectedState {
    /// Events that are in none of the windows since their time was over.
    pub late: LateTally,
    kept: Mutex<Retained>,
}

/// Retained items and events, of one operator or of several together.
#[derive(Clone, Copy, Default)]
pub struct Retained {
    pub items: u64,
    pub events: u64,
}

/// The memory that items refer to is gone with the process.
const NOT_KEPT: &str =
    "windows that have all of their events refer to items, which no checkpoint holds";

impl Collected {
    /// Events that are in none of the windows since their time was over.
    pub fn late_events(&self) -> u64 {
        self.state.late.events()
    }

    /// Items that are retained, each once, whatever the number of windows that it is in.
    pub fn kept_items(&self) -> u64 {
        self.state.kept.lock().items
    }

    /// Events of windows that are not closed.
    pub fn open_events(&self) -> u64 {
        self.state.kept.lock().events
    }
}

impl CollectedState {
    /// Replaces the figures of an operator.
    pub fn replace(&self, before: Retained, now: Retained) {
        let mut kept = self.kept.lock();
        kept.items = kept.items - before.items + now.items;
        kept.events = kept.events - before.events + now.events;
    }
}

/// Read under the keys `late_events`, `kept_items` and `open_events`.
impl StateReader for Collected {
    fn get(&self, key: &str) -> Option<Value> {
        match key {
            "late_events" => Some(json!(self.late_events())),
            "kept_items" => Some(json!(self.kept_items())),
            "open_events" => Some(json!(self.open_events())),
            _ => None,
        }
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let keys = ["late_events", "kept_items", "open_events"];
        keys.into_iter().take(limit).map(str::to_owned).collect()
    }

    fn late_events(&self) -> Option<u64> {
        Some(self.late_events())
    }

    fn late_to(&self) -> LateTo {
        self.state.late.to()
    }

    /// The items lie in memory of their source.
    fn size(&self) -> StateSize {
        StateSize::unknown("windows with all items")
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        Err(NOT_KEPT.into())
    }

    fn restore(&self, _: &[u8]) -> Result<(), BoxError> {
        Err(NOT_KEPT.into())
    }
}
