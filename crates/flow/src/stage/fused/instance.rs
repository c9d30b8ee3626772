//! An instance of a stage, and the slot in which one worker at a time enters it.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use parking_lot::{Mutex, MutexGuard};

use crate::stage::held_letters::HeldLetters;
use crate::stage::input::Input;
use crate::stage::item_loop::BatchProgress;
use crate::stage::terminal::End;
use crate::time::control_event::ControlEvent;
use crate::time::stage_time::StageTime;

/// The place of an instance.
pub struct Slot<I, T> {
    pub instance: Mutex<Instance<I, T>>,
    /// A worker came while another was in the instance, and perhaps went to sleep: a worker that leaves the instance
    /// without having found anything to do looks again. Set by workers that find it locked, cleared by the worker
    /// that leaves.
    missed: AtomicBool,
}

impl<I, T> Slot<I, T> {
    pub fn new(instance: Instance<I, T>) -> Self {
        Slot {
            instance: Mutex::new(instance),
            missed: AtomicBool::new(false),
        }
    }

    /// Returns the instance, unless another worker is in it; that worker then knows that it was missed.
    pub fn enter(&self) -> Option<MutexGuard<'_, Instance<I, T>>> {
        self.instance.try_lock().or_else(|| {
            self.missed.store(true, Ordering::Relaxed);
            // Either the other worker has left by now, or it will see the flag: one of the two fences comes first.
            fence(Ordering::SeqCst);
            self.instance.try_lock()
        })
    }

    /// Whether it was missed by another worker. The caller has left it.
    pub fn was_missed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::Relaxed)
    }
}

/// An instance. The items in hand stay in it when its worker dies; the next worker continues with them.
pub struct Instance<I, T> {
    pub input: I,
    pub terminal: T,
    /// There are items in hand.
    pub is_working: bool,
    pub progress: BatchProgress,
    /// The terminal has stopped before the rest of the items in hand. It has no room reserved.
    pub is_waiting: bool,
    /// The items in hand whose slice was counted.
    pub counted: usize,
    /// Items of this activation that are finished and dropped.
    pub dropped: usize,
    pub time: StageTime,
    /// The control event behind the items in hand.
    pub event_behind: Option<ControlEvent>,
    /// Dead letters of late items that are yet to be stored.
    pub held_letters: HeldLetters,
    pub ended: bool,
    /// It counts in the stage's `having_more`.
    pub has_more: bool,
    /// It has failed, and is left as it is: no checkpoint is taken of state that may be half changed.
    pub is_broken: bool,
}

impl<I, T> Instance<I, T> {
    pub fn new(input: I, terminal: T, time: StageTime) -> Self {
        Instance {
            time,
            event_behind: None,
            input,
            terminal,
            is_working: false,
            progress: BatchProgress::default(),
            is_waiting: false,
            counted: 0,
            dropped: 0,
            held_letters: HeldLetters::default(),
            ended: false,
            has_more: false,
            is_broken: false,
        }
    }
}

impl<I: Input, T: End> Instance<I, T> {
    /// Returns the number of the items in hand.
    pub fn in_hand(&self) -> usize {
        let [first, second] = self.input.parts();
        first.len() + second.len()
    }

    /// Whether it has nothing in hand and nothing left to do that is part of the snapshot `number`.
    pub fn is_at_rest(&self, number: u64) -> bool {
        // A control event or an end that it has yet to pass on would release windows while the snapshot is taken, or
        // behind it.
        let has_to_emit = !self.ended && (self.input.is_finished() || self.input.has_due_event());
        !self.is_working
            && !self.is_broken
            && !has_to_emit
            && self.held_letters.is_empty()
            && self.input.is_at_rest(number)
            && self.terminal.is_at_rest()
    }
}
