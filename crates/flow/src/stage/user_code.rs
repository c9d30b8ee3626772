//! Calls of user code: they note which operator's code panicked, and whether the panic left a state half changed.
//!
//! A call costs nothing until the code panics: the note is taken while the stack unwinds.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::{self, Write};
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use crate::error::BoxError;

/// Bytes of an item or an error in a dead letter.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// The name of an operator, by which a panic in its code is reported.
#[derive(Clone)]
pub struct Label(pub(crate) Arc<str>);

thread_local! {
    /// The innermost operator whose code panicked on this thread.
    static PANICKED: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };

    /// A call that changes state panicked on this thread: the flow must fail, even if other user code caught the
    /// panic.
    static BROKE_STATE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the panic that was caught on this thread has left a state half changed.
pub fn is_state_broken() -> bool {
    BROKE_STATE.get()
}

impl Label {
    /// Runs user code. Costs nothing unless that panics: then the label is remembered
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

    /// Runs code that changes state: nothing on this thread continues after its panic.
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

/// Runs user code, and makes an error of its panic.
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
    // An error means that the text is full; then its beginning has to do.
    let _ = text.write_str(message);
    text.0
}

/// Text in a dead letter, of user code or of a record: longer text is cut off.
#[derive(Default)]
pub struct BoundedText(pub String);

impl BoundedText {
    /// Writes bytes as text, with U+FFFD for those that are no UTF-8.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> fmt::Result {
        for chunk in bytes.utf8_chunks() {
            self.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                self.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut_off_and_those_that_are_no_text_are_replaced() {
        let text_of = |bytes: &[u8]| {
            let mut text = BoundedText::default();
            let is_whole = text.write_bytes(bytes).is_ok();
            (text.0, is_whole)
        };
        assert_eq!(
            text_of(b"a\xffb\xc3"),
            ("a\u{fffd}b\u{fffd}".to_owned(), true)
        );
        assert_eq!(text_of("ä".as_bytes()), ("ä".to_owned(), true));
        let (text, is_whole) = text_of(&[0xff; TEXT_BYTES_MAX]);
        assert_eq!(text.len(), TEXT_BYTES_MAX / 3 * 3);
        assert!(!is_whole);
    }
}
