//! Errors of native requests, or of parts of them.

use millstream_log::LogError;
use millstream_wire::{ResponseError, StrBytes, native};

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
}

impl From<LogError> for Refused {
    fn from(error: LogError) -> Refused {
        Refused::new(response_error(&error), error.to_string())
    }
}

/// The answers that refuse whole requests: they have nothing but the error.
macro_rules! refusals {
    ($($response:ident)*) => {
        $(
            impl From<Refused> for native::$response {
                fn from(refused: Refused) -> native::$response {
                    native::$response {
                        error_code: refused.code(),
                        error_message: refused.message(),
                        ..native::$response::default()
                    }
                }
            }
        )*
    };
}

refusals! {
    CreateStreamResponse DescribeStreamResponse GrowStreamResponse DeleteStreamResponse
    WriteChunksResponse ReadChunksResponse
    NextGroupsResponse NextSegmentsResponse AvailableGroupsResponse AvailableSegmentsResponse
    CommitCursorsResponse ReleaseGroupsResponse
    PutObjectResponse GetObjectResponse ListObjectsResponse DeleteObjectResponse
    GetKeysResponse ScanKeysResponse PutKeysResponse WatchKeysResponse FindKeysResponse
    KeyHistoryResponse ChangeHoldResponse ListHoldsResponse
    SubscribeResponse ReceiveResponse UnsubscribeResponse
}

/// Returns the answer, or the one that refuses the request.
pub fn answered<R: From<Refused>>(answer: Result<R, Refused>) -> R {
    answer.unwrap_or_else(R::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_between_characters() {
        let long = "é".repeat(2 * MESSAGE_CHARS_MAX);
        let refused = Refused::new(ResponseError::InvalidRequest, long);
        let message = refused.message().unwrap();
        assert_eq!(*message, *"é".repeat(MESSAGE_CHARS_MAX));
    }
}
