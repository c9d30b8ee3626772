//! Items that came too late for their windows: their number and their destination.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use serde::Serialize;

/// The destination of items that arrive too late for their windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LateTo {
    /// Nowhere: they are counted and left out, since the flow keeps no dead letters, or asks for it with
    /// [`drop_late`](crate::Keyed::drop_late).
    Dropped,
    /// To a channel of the flow, by [`late_to`](crate::Keyed::late_to).
    Channel,
    /// To the flow's [dead letters](crate::FlowSettings::dead_letters).
    DeadLetters,
}

/// The late items of a state element.
pub struct LateTally {
    /// Added to by the workers that find late items.
    events: AtomicU64,
    /// Where they go. Of several streams into the same windows, the least of theirs; [`UNSET`] without any. Written while
    /// the flow is built.
    to: AtomicU8,
    /// The first one was reported.
    has_warned: AtomicBool,
}

const UNSET: u8 = u8::MAX;

impl Default for LateTally {
    fn default() -> Self {
        LateTally {
            events: AtomicU64::new(0),
            to: AtomicU8::new(UNSET),
            has_warned: AtomicBool::new(false),
        }
    }
}

impl LateTally {
    pub fn add(&self, events: u64) {
        self.events.fetch_add(events, Ordering::Relaxed);
    }

    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Goes on from the count of a checkpoint.
    pub fn restore(&self, events: u64) {
        self.events.store(events, Ordering::Relaxed);
    }

    /// Notes where the items of a stream go.
    pub fn lead(&self, to: LateTo) {
        self.to.fetch_min(to as u8, Ordering::Relaxed);
    }

    pub fn to(&self) -> LateTo {
        const CHANNEL: u8 = LateTo::Channel as u8;
        const DEAD_LETTERS: u8 = LateTo::DeadLetters as u8;
        match self.to.load(Ordering::Relaxed) {
            CHANNEL => LateTo::Channel,
            DEAD_LETTERS => LateTo::DeadLetters,
            _ => LateTo::Dropped,
        }
    }

    /// Logs a warning about the first late item that `operator` finds; further ones are only counted.
    #[cold]
    pub fn warn_once(&self, operator: &str, item: impl Display, to: LateTo) {
        if self.has_warned.load(Ordering::Relaxed) || self.has_warned.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let fate = match to {
            LateTo::Dropped => "left out, since the flow keeps no dead letters",
            LateTo::Channel => "sent to a channel",
            LateTo::DeadLetters => "stored as dead letters",
        };
        tracing::warn!(
            "{operator}: {item}. Late items are counted and {fate}. If they are to be in the windows, raise the disorder \
             that Watermarks::bounded allows or Windows::allowed_lateness, or, for sources that pause, \
             Watermarks::idle_after"
        );
    }
}
