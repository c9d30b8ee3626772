//! Errors of received bytes, and of messages to send.

use crate::api::ApiKey;

/// The reason why bytes are not a frame. The bytes after them on the connection cannot be decoded either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The announced length is negative.
    #[error("the frame announces {announced} bytes: this is not Kafka's protocol")]
    NegativeLength {
        /// What the frame's first four bytes say.
        announced: i32,
    },
    /// The frame is larger than allowed.
    #[error("the frame announces {announced} bytes, and at most {max} are allowed")]
    FrameTooLarge {
        /// What the frame's first four bytes say.
        announced: usize,
        /// The bound.
        max: usize,
    },
}

/// Why a frame is no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {position}: {what}")]
pub struct Malformed {
    /// How many bytes of the frame were understood.
    pub position: usize,
    /// The fault.
    pub what: String,
}

/// The reason why a frame is not a response to the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("response to {api:?} version {version} refused {malformed}")]
pub struct ResponseFrameError {
    /// Which request was sent.
    pub api: ApiKey,
    /// Its version.
    pub version: i16,
    /// What is wrong.
    pub malformed: Malformed,
}

/// Why a message cannot be sent: a mistake of the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The request does not exist in this version.
    #[error("{api:?} has no version {version}")]
    Version {
        /// Which request it is.
        api: ApiKey,
        /// The version.
        version: i16,
    },
    /// The response is to another request.
    #[error("a response to {response:?} does not answer {request:?}")]
    OtherApi {
        /// The request.
        request: ApiKey,
        /// The response.
        response: ApiKey,
    },
    /// A field does not fit, or is set though the version does not have it.
    #[error("{api:?} version {version}: {what}")]
    Field {
        /// Which request it is.
        api: ApiKey,
        /// The version.
        version: i16,
        /// What is wrong.
        what: String,
    },
    /// Frames have at most 2^31 - 1 bytes.
    #[error("a message of {bytes} bytes does not fit into a frame")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}
