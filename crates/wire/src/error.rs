//! Errors of received bytes, and of messages to send.

use crate::api::ApiKey;

/// The reason why bytes are not a frame. The bytes after them on the connection cannot be decoded either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The announced length is negative.
    #[error("the frame announces {announced} bytes: this is not Kafka's protocol")]
    NegativeLength {
        /// The length in the frame's first four bytes.
        announced: i32,
    },
    /// The frame is larger than allowed.
    #[error("the frame announces {announced} bytes, and at most {max} are allowed")]
    FrameTooLarge {
        /// The length in the frame's first four bytes.
        announced: usize,
        /// The bound.
        max: usize,
    },
}

/// The reason why a frame is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {position}: {what}")]
pub struct Malformed {
    /// The position in the frame at which decoding failed.
    pub position: usize,
    /// The fault.
    pub what: String,
}

/// The reason why a frame is not a response to the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("response to {api:?} version {version} refused {malformed}")]
pub struct ResponseFrameError {
    /// The kind of the request.
    pub api: ApiKey,
    /// Its version.
    pub version: i16,
    /// The fault.
    pub malformed: Malformed,
}

/// The reason why a message cannot be encoded: a mistake of the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The request does not exist in this version.
    #[error("{api:?} has no version {version}")]
    Version {
        /// The kind of the request.
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
    /// A field does not fit, or the version lacks it.
    #[error("{api:?} version {version}: {what}")]
    Field {
        /// The kind of the request.
        api: ApiKey,
        /// The version.
        version: i16,
        /// The fault.
        what: String,
    },
    /// The frame would have more than 2^31 - 1 bytes.
    #[error("a message of {bytes} bytes does not fit into a frame")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}
