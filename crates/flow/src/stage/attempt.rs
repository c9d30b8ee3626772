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
use std::fmt::{self, Debug, Write};
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use crate::error::{BoxError, Failure};
use crate::stage::dead_letter::{DeadLetter, Origin};
use crate::time::stage_time::StageTime;

/// Of an item or an error in a dead letter.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Of an item in an error message.
const TOLD_BYTES_MAX: usize = 256;

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

/// What code of the user failed on, and how.
pub struct Rejected {
    item: String,
    failure: Failure,
    origin: Option<Arc<Origin>>,
}

impl Rejected {
    /// An item of a stage that panicked where it is not known as what.
    pub fn unseen(stage: &str, panic: &(dyn Any + Send)) -> Rejected {
        Rejected {
            item: "an item whose copying, hashing or dropping panics".to_owned(),
            failure: Failure::Panicked {
                operator: stage.into(),
                message: panic_message(panic),
            },
            origin: None,
        }
    }

    /// What ends a flow that keeps no dead letters.
    pub fn into_failure(self) -> Failure {
        let end = self.item.floor_char_boundary(TOLD_BYTES_MAX);
        let cut = if end < self.item.len() { " …" } else { "" };
        let item = &self.item[..end];
        match self.failure {
            Failure::Error { operator, error } => Failure::Error {
                operator,
                error: format!("{error}; it was given {item}{cut}").into(),
            },
            Failure::Panicked { operator, message } => Failure::Panicked {
                operator,
                message: format!("{message}; it was given {item}{cut}"),
            },
        }
    }

    pub fn letter(&self) -> DeadLetter {
        let (operator, error) = match &self.failure {
            Failure::Error { operator, error } => {
                let mut text = BoundedText::default();
                let _ = write!(text, "{error}");
                (operator, text.0)
            }
            Failure::Panicked { operator, message } => (operator, message.clone()),
        };
        DeadLetter {
            operator: Arc::clone(operator),
            item: self.item.clone(),
            error,
            origin: self.origin.clone(),
        }
    }
}

pub struct First<'a> {
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

impl<'a> First<'a> {
    pub fn new(time: &'a StageTime, put_off: &'a RefCell<Vec<Rejected>>) -> First<'a> {
        First {
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

impl Attempt for First<'_> {
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
        self.add(Rejected {
            item: text_of(item),
            failure: Failure::Error {
                operator: Arc::clone(&label.0),
                error,
            },
            origin: None,
        });
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

pub struct Again<'a>(pub First<'a>);

impl Attempt for Again<'_> {
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
                self.0.add(Rejected {
                    item: text_of(item),
                    failure: Failure::Panicked {
                        operator: Arc::clone(&label.0),
                        message: panic_message(&*panic),
                    },
                    origin: None,
                });
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

/// The name of an operator, to say whose code panicked.
#[derive(Clone)]
pub struct Label(pub(crate) Arc<str>);

thread_local! {
    /// The innermost operator whose code panicked on this thread.
    static PANICKED: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };

    /// A call that changes state panicked on this thread: the flow is to fail, whoever caught it.
    static BROKE_STATE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the panic that was caught on this thread has left a state half changed.
pub fn is_state_broken() -> bool {
    BROKE_STATE.get()
}

impl Label {
    /// Runs code of the user. Costs nothing unless that panics: then the label is remembered
    /// while the stack unwinds.
    #[inline(always)]
    pub(crate) fn run<R>(&self, code: impl FnOnce() -> R) -> R {
        struct Unwinding<'a>(&'a Arc<str>);
        impl Drop for Unwinding<'_> {
            #[cold]
            fn drop(&mut self) {
                PANICKED.with_borrow_mut(|first| {
                    first.get_or_insert_with(|| Arc::clone(self.0));
                });
            }
        }
        let unwinding = Unwinding(&self.0);
        let result = code();
        mem::forget(unwinding);
        result
    }

    /// The same for code that changes state: nothing on this thread goes on after its panic.
    #[inline(always)]
    pub(crate) fn change<R>(&self, code: impl FnOnce() -> R) -> R {
        struct Unwinding;
        impl Drop for Unwinding {
            #[cold]
            fn drop(&mut self) {
                BROKE_STATE.set(true);
            }
        }
        self.run(|| {
            let unwinding = Unwinding;
            let result = code();
            mem::forget(unwinding);
            result
        })
    }

    /// Whose code panicked last on this thread; asked once per panic.
    pub(crate) fn take_panicked() -> Option<Arc<str>> {
        BROKE_STATE.set(false);
        PANICKED.take()
    }
}

/// Runs code of the user, and makes an error of its panic.
pub fn catch<R>(code: impl FnOnce() -> Result<R, BoxError>) -> Result<R, BoxError> {
    panic::catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| {
        Label::take_panicked();
        Err(format!("it panicked: {}", panic_message(&*panic)).into())
    })
}

pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = if let Some(message) = panic.downcast_ref::<&str>() {
        message
    } else if let Some(message) = panic.downcast_ref::<String>() {
        message
    } else {
        "(no message)"
    };
    let mut text = BoundedText::default();
    // It says that it is full by an error; then the beginning has to do.
    let _ = text.write_str(message);
    text.0
}

fn text_of<T: Debug + ?Sized>(item: &T) -> String {
    panic::catch_unwind(AssertUnwindSafe(|| {
        let mut text = BoundedText::default();
        let _ = write!(text, "{item:?}");
        text.0
    }))
    .unwrap_or_else(|_| "(an item that cannot be printed)".to_owned())
}

#[derive(Default)]
struct BoundedText(String);

impl Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.floor_char_boundary(TEXT_BYTES_MAX - self.0.len());
        self.0.push_str(&text[..end]);
        if end < text.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}
