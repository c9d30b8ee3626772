//! How code of the user is called, and what becomes of its panics.
//!
//! A panic costs nothing until it happens: an item is processed once as it is, with nothing around
//! the calls but a note of whose code runs ([`First`]). When that panics, the item is processed
//! again, each call by itself ([`Again`]): whatever panics a second time becomes a dead letter, and
//! all else of the item goes its way. Results that the first attempt had already passed on are not
//! passed on twice.
//!
//! Code that answers an error is not called again: what it was given becomes a dead letter at once.
//!
//! Code that changes state is never called again, since nobody knows how much of a call that panicked
//! took effect: its panic fails the flow ([`Attempt::change`]), which can go on from its last checkpoint. These
//! are the functions of aggregates (`add`, `merge`, `result` and the like), `fold_local`, and what hashes,
//! compares, copies or drops keys and states in windows. Key and time functions run before that: what
//! they panic on becomes a dead letter. So state is exact, or there is none; and each item is in it, or in a dead
//! letter, or counted as late.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use crate::error::{BoxError, Failure};
use crate::stage::dead_letter::Origin;
use crate::stage::rejected::Rejected;
use crate::stage::user_code::{Label, is_state_broken, panic_message};
use crate::time::stage_time::StageTime;

pub trait Attempt {
    /// Calls `code` of the operator `label` on `item`; `None` when `item` is rejected.
    fn call<T: Debug + ?Sized, R>(
        &self,
        label: &Label,
        item: &T,
        code: impl FnOnce() -> R,
    ) -> Option<R>;

    /// Calls `code` of the operator `label`, which changes state; its panic fails the flow.
    #[inline(always)]
    fn change<R>(&self, label: &Label, code: impl FnOnce() -> R) -> R {
        label.change(code)
    }

    /// Takes note of an `item` for which code of the operator `label` answered an error.
    fn reject<T: Debug + ?Sized>(&self, label: &Label, item: &T, error: BoxError);

    /// Takes note of what was rejected of items that had been put off.
    fn reject_all(&self, rejected: Vec<Rejected>);

    /// Names the origin of all that was rejected since it was last named.
    fn settle(&self, origin: impl FnOnce() -> Option<Origin>);

    /// Event time where the item is.
    fn time(&self) -> &StageTime;
}

pub struct FirstAttempt<'a> {
    /// What was rejected of the item so far.
    pub rejected: RefCell<Vec<Rejected>>,
    /// Something was rejected since an origin was last named: all that costs a part of which nothing is.
    is_unsettled: Cell<bool>,
    /// Something was rejected, of whichever item.
    has_rejected: Cell<bool>,
    /// What was rejected of items that had been put off: it outlasts the attempt.
    put_off: &'a RefCell<Vec<Rejected>>,
    time: &'a StageTime,
}

impl<'a> FirstAttempt<'a> {
    pub fn new(time: &'a StageTime, put_off: &'a RefCell<Vec<Rejected>>) -> FirstAttempt<'a> {
        FirstAttempt {
            put_off,
            rejected: RefCell::default(),
            is_unsettled: Cell::new(false),
            has_rejected: Cell::new(false),
            time,
        }
    }

    /// Takes note of an item of a stage that panicked where it is not known as what.
    pub fn reject_unseen(&self, stage: &str, panic: &(dyn Any + Send)) {
        self.add(Rejected::unseen(stage, panic));
    }

    /// Whether anything was rejected.
    #[inline(always)]
    pub fn has_rejected(&self) -> bool {
        self.has_rejected.get()
    }

    fn add(&self, rejected: Rejected) {
        self.is_unsettled.set(true);
        self.has_rejected.set(true);
        self.rejected.borrow_mut().push(rejected);
    }

    #[cold]
    fn name_origin(&self, origin: Option<Origin>) {
        // What it is a part of may know.
        let Some(origin) = origin.map(Arc::new) else {
            return;
        };
        self.is_unsettled.set(false);
        let mut all = self.rejected.borrow_mut();
        for rejected in all.iter_mut().filter(|it| it.origin.is_none()) {
            rejected.origin = Some(Arc::clone(&origin));
        }
    }
}

impl Attempt for FirstAttempt<'_> {
    #[inline(always)]
    fn call<T: Debug + ?Sized, R>(
        &self,
        label: &Label,
        _: &T,
        code: impl FnOnce() -> R,
    ) -> Option<R> {
        Some(label.run(code))
    }

    #[cold]
    fn reject<T: Debug + ?Sized>(&self, label: &Label, item: &T, error: BoxError) {
        let operator = Arc::clone(&label.0);
        self.add(Rejected::new(item, Failure::Error { operator, error }));
    }

    fn reject_all(&self, rejected: Vec<Rejected>) {
        if rejected.is_empty() {
            return;
        }
        self.has_rejected.set(true);
        self.put_off.borrow_mut().extend(rejected);
    }

    #[inline(always)]
    fn settle(&self, origin: impl FnOnce() -> Option<Origin>) {
        if self.is_unsettled.get() {
            self.name_origin(origin());
        }
    }

    #[inline(always)]
    fn time(&self) -> &StageTime {
        self.time
    }
}

pub struct SecondAttempt<'a>(pub FirstAttempt<'a>);

impl Attempt for SecondAttempt<'_> {
    fn call<T: Debug + ?Sized, R>(
        &self,
        label: &Label,
        item: &T,
        code: impl FnOnce() -> R,
    ) -> Option<R> {
        // What user code left half done is the user's: the item is not touched again.
        match panic::catch_unwind(AssertUnwindSafe(code)) {
            Ok(result) => Some(result),
            // What the code had passed on came to a state.
            Err(panic) if is_state_broken() => panic::resume_unwind(panic),
            Err(panic) => {
                let failure = Failure::Panicked {
                    operator: Arc::clone(&label.0),
                    message: panic_message(&*panic),
                };
                self.0.add(Rejected::new(item, failure));
                None
            }
        }
    }

    fn reject<T: Debug + ?Sized>(&self, label: &Label, item: &T, error: BoxError) {
        self.0.reject(label, item, error);
    }

    fn reject_all(&self, rejected: Vec<Rejected>) {
        self.0.reject_all(rejected);
    }

    fn settle(&self, origin: impl FnOnce() -> Option<Origin>) {
        self.0.settle(origin);
    }

    fn time(&self) -> &StageTime {
        self.0.time()
    }
}
