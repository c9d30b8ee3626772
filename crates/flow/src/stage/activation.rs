//! One activation of a stage: its outcome, and the worker's context.

use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_base::Clock;

use crate::sinks::dead_letter::DeadLetters;

/// The outcome of an activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// The stage processed this many items, passed on earlier results, or ended. Other stages may have work now.
    Done(usize),
    /// There is no room downstream.
    Blocked,
    /// There is nothing to read.
    Idle,
    /// There will never be anything to read again.
    Ended,
}

/// The worker's side of an activation.
pub struct Context<'a> {
    pub clock: &'a dyn Clock,
    /// Items to process, instead of as many as take a slice's time.
    pub items: Option<usize>,
    /// The time of a slice, in nanoseconds.
    pub slice_ns: u64,
    /// How often the doorbell had been rung before the worker looked for work.
    pub rings: u64,
    /// The number of workers that must die; see [`Running::kill_workers`](crate::Running::kill_workers).
    pub condemned: &'a AtomicUsize,
    pub dead_letters: Option<&'a dyn DeadLetters>,
}

/// The panic by which a condemned worker dies.
pub struct Killed;

impl Context<'_> {
    pub fn die_if_condemned(&self) {
        if self.condemned.load(Ordering::Relaxed) > 0 {
            self.die();
        }
    }

    #[cold]
    fn die(&self) {
        let take_one = |count: usize| count.checked_sub(1);
        let condemned = self.condemned;
        if condemned
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one)
            .is_ok()
        {
            panic::resume_unwind(Box::new(Killed));
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic().as_nanos() as u64
    }
}
