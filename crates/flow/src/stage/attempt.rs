//! Attempts at an item: calls of user code, and the consequences of its panics.
//!
//! A panic costs nothing until it happens: an item is processed once as it is, with nothing around the calls but a
//! note of the operator ([`FirstAttempt`]). When that panics, the item is processed again, each call by itself
//! ([`SecondAttempt`]): an argument whose call panics a second time becomes a dead letter, and everything else of the
//! item is processed. Results that the first attempt had already passed on are not passed on twice.
//!
//! Code that returns an error is not called again: its argument becomes a dead letter at once.
//!
//! Code that changes state is never called again, since it is unknown how much of a call that panicked took effect:
//! its panic fails the flow ([`Attempt::change`]), which can resume from its last checkpoint. This holds for the
//! functions of aggregates (`add`, `merge`, `result` and the like), for `fold_local`, `update` and `fold`, and for code
//! that hashes, compares, copies or drops keys and states in windows and values. Key and time functions run before that: an item on which
//! they panic becomes a dead letter. So state is exact, or there is none; and each item is in it, or in a dead
//! letter, or counted as late. A late item counts as passed on: if the whole that it is part of panics afterwards, the
//! second attempt does not pass it on again.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use crate::error::{BoxError, Failure};
use crate::sinks::dead_letter::Origin;
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

    /// Notes an `item` for which code of the operator `label` returned an error.
    fn reject<T: Debug + ?Sized>(&self, label: &Label, item: &T, error: BoxError);

    /// Notes an item that came too late for its windows. A further attempt at its whole does not find it again.
    fn reject_late(&self, rejected: Rejected);

    /// Notes rejected items that had been put off.
    fn reject_all(&self, rejected: Vec<Rejected>);

    /// Names the origin of all items rejected since the last call.
    fn settle(&self, origin: impl FnOnce() -> Option<Origin>);

    /// Returns the event time at the item's stage.
    fn time(&self) -> &StageTime;
}

pub struct FirstAttempt<'a> {
    /// The rejected parts of the item so far.
    pub rejected: RefCell<Vec<Rejected>>,
    /// Something was rejected since an origin was last named. A part of which nothing is rejected costs this check
    /// alone.
    is_unsettled: Cell<bool>,
    /// Whether any item or part was rejected.
    has_rejected: Cell<bool>,
    outlasting: &'a Outlasting,
    time: &'a StageTime,
}

/// Rejected items that outlast an attempt: the next one does not find them again.
#[derive(Default)]
pub struct Outlasting {
    /// Rejections of postponed items. They do not belong to the current source item, so nothing here names their origin.
    put_off: RefCell<Vec<Rejected>>,
    /// Late items of the whole at hand. Their results count as passed on.
    late: RefCell<Vec<Rejected>>,
}

impl Outlasting {
    pub fn take(&self) -> Vec<Rejected> {
        let mut all = self.put_off.take();
        all.append(&mut self.late.borrow_mut());
        all
    }
}

impl<'a> FirstAttempt<'a> {
    pub fn new(time: &'a StageTime, outlasting: &'a Outlasting) -> FirstAttempt<'a> {
        FirstAttempt {
            outlasting,
            rejected: RefCell::default(),
            is_unsettled: Cell::new(false),
            has_rejected: Cell::new(false),
            time,
        }
    }

    /// Notes an item of a stage that panicked outside of a call by an operator.
    pub fn reject_unseen(&self, stage: &str, panic: &(dyn Any + Send)) {
        self.add(Rejected::unseen(stage, panic));
    }

    /// The attempt has come to the last result that a former one passed on: late items that the former one has not named
    /// the origin of are of the part at hand.
    pub fn resume_late(&self) {
        if !self.outlasting.late.borrow().is_empty() {
            self.is_unsettled.set(true);
        }
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
        // The whole may know the origin that its part does not.
        let Some(origin) = origin.map(Arc::new) else {
            return;
        };
        self.is_unsettled.set(false);
        for all in [&self.rejected, &self.outlasting.late] {
            let mut all = all.borrow_mut();
            for rejected in all.iter_mut().filter(|it| it.origin.is_none()) {
                rejected.origin = Some(Arc::clone(&origin));
            }
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

    #[cold]
    fn reject_late(&self, rejected: Rejected) {
        self.is_unsettled.set(true);
        self.has_rejected.set(true);
        self.outlasting.late.borrow_mut().push(rejected);
    }

    fn reject_all(&self, rejected: Vec<Rejected>) {
        if rejected.is_empty() {
            return;
        }
        self.has_rejected.set(true);
        self.outlasting.put_off.borrow_mut().extend(rejected);
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
        // A half-done effect of user code is the user's own: the item is not touched again.
        match panic::catch_unwind(AssertUnwindSafe(code)) {
            Ok(result) => Some(result),
            // The code had passed something on to a state.
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

    fn reject_late(&self, rejected: Rejected) {
        self.0.reject_late(rejected);
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
