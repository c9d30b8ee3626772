//! Items on which user code failed, before they become dead letters or end the flow, and late items, before they become
//! dead letters.

use std::any::Any;
use std::fmt::{Debug, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use crate::error::{BoxError, Failure};
use crate::sinks::dead_letter::{DeadLetter, Origin};
use crate::stage::user_code::{BoundedText, panic_message};

/// Bytes of an item in an error message.
const TOLD_BYTES_MAX: usize = 256;

/// An argument on which user code failed, and the failure.
pub struct Rejected {
    item: String,
    failure: Failure,
    /// It came too late for its windows: no code failed.
    pub is_late: bool,
    pub origin: Option<Arc<Origin>>,
}

impl Rejected {
    pub fn new<T: Debug + ?Sized>(item: &T, failure: Failure) -> Rejected {
        Rejected {
            item: text_of(item),
            failure,
            is_late: false,
            origin: None,
        }
    }

    /// An item that came too late for the windows of an operator.
    pub fn late<T: Debug + ?Sized>(operator: &Arc<str>, item: &T, error: BoxError) -> Rejected {
        let operator = Arc::clone(operator);
        Rejected {
            is_late: true,
            ..Rejected::new(item, Failure::Error { operator, error })
        }
    }

    /// An item of a stage that panicked outside of a call by an operator.
    pub fn unseen(stage: &str, panic: &(dyn Any + Send)) -> Rejected {
        Rejected {
            item: "an item whose copying, hashing or dropping panics".to_owned(),
            failure: Failure::Panicked {
                operator: stage.into(),
                message: panic_message(panic),
            },
            is_late: false,
            origin: None,
        }
    }

    /// The failure of a flow that has no keeper of dead letters.
    pub fn into_failure(self) -> Failure {
        let end = self.item.floor_char_boundary(TOLD_BYTES_MAX);
        let ellipsis = if end < self.item.len() { " …" } else { "" };
        let item = &self.item[..end];
        let place = self.origin.as_deref().map_or_else(String::new, |origin| {
            let (offset, partition) = (origin.offset, origin.partition);
            format!(
                ", at offset {offset} of partition {partition} of stream {}",
                origin.stream
            )
        });
        match self.failure {
            Failure::Error { operator, error } => Failure::Error {
                operator,
                error: format!("{error}; it was given {item}{ellipsis}{place}").into(),
            },
            Failure::Panicked { operator, message } => Failure::Panicked {
                operator,
                message: format!("{message}; it was given {item}{ellipsis}{place}"),
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
        let value = self.origin.as_deref().and_then(|it| it.value.as_deref());
        DeadLetter {
            operator: Arc::clone(operator),
            item: value.map_or_else(|| self.item.clone(), text_of_value),
            error,
            origin: self.origin.clone(),
        }
    }
}

/// Returns the value of a record as text.
fn text_of_value(value: &[u8]) -> String {
    let mut text = BoundedText::default();
    let _ = text.write_bytes(value);
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
