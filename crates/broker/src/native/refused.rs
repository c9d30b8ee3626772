//! Errors of native requests, or of parts of them.

use millstream_log::LogError;
use millstream_wire::native::Answer;
use millstream_wire::{ResponseError, StrBytes};

use crate::error::response_error;

/// The longest message of an error. Some quote the client's input, which may be long.
const MESSAGE_CHARS_MAX: usize = 1024;

/// An error, in the form that the client gets.
#[derive(Debug, Clone)]
pub struct Refused {
    error: ResponseError,
    message: StrBytes,
}

impl Refused {
    pub fn new(error: ResponseError, message: impl Into<String>) -> Refused {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS_MAX) {
            message.truncate(end);
        }
        Refused {
            error,
            message: StrBytes::from_string(message),
        }
    }

    /// Returns the error for a request with more items than are handled at once.
    pub fn too_many(what: &str, most: usize) -> Refused {
        let message = format!("at most {most} {what} in one request");
        Refused::new(ResponseError::InvalidRequest, message)
    }

    pub fn code(&self) -> i16 {
        self.error.code()
    }

    pub fn message(self) -> Option<StrBytes> {
        Some(self.message)
    }

    /// Returns the answer that refuses the whole request.
    pub fn answer<A: Answer>(self) -> A {
        A::refused(self.error.code(), self.message)
    }
}

impl From<LogError> for Refused {
    fn from(error: LogError) -> Refused {
        Refused::new(response_error(&error), error.to_string())
    }
}

/// Returns the answer, or the one that refuses the request.
pub fn answered<A: Answer>(answer: Result<A, Refused>) -> A {
    answer.unwrap_or_else(Refused::answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_truncated_between_characters() {
        let long = "é".repeat(2 * MESSAGE_CHARS_MAX);
        let refused = Refused::new(ResponseError::InvalidRequest, long);
        let message = refused.message().unwrap();
        assert_eq!(*message, *"é".repeat(MESSAGE_CHARS_MAX));
    }
}
