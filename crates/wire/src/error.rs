//! What can be wrong with bytes from the other side, and with what is to be sent.

use kafka_protocol::ResponseError;

use crate::api::{ApiKey, api_versions};
use crate::header::RequestHeader;
use crate::message::encode_response_body;
use crate::pieces::Pieces;

/// Why bytes are no frame. What follows them on the connection cannot be understood either.
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
    /// What is wrong there.
    pub what: String,
}

/// Why a frame is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The header is cut off or damaged.
    #[error("request header refused {0}")]
    Header(Malformed),
    /// No request has this key.
    #[error("request {correlation_id} has the unknown api key {api_key}")]
    UnknownApi {
        /// The key.
        api_key: i16,
        /// Its version.
        version: i16,
        /// What an answer would have to repeat.
        correlation_id: i32,
    },
    /// The request is known, but not in this version.
    #[error("request {correlation_id} is {api:?} version {version}; versions {} to {} are supported", api.versions().start(), api.versions().end())]
    UnsupportedVersion {
        /// Which request it is.
        api: ApiKey,
        /// Its version.
        version: i16,
        /// What an answer has to repeat.
        correlation_id: i32,
    },
    /// The body is not what the header says.
    #[error("{:?} version {} refused {malformed}", header.api, header.version)]
    Body {
        /// The header, which is whole.
        header: RequestHeader,
        /// What is wrong.
        malformed: Malformed,
    },
}

impl RequestError {
    /// What the other side can be told in a form that it understands: who asks for ApiVersions in a
    /// version that does not exist here is answered in the oldest one, with all that does. Who sends
    /// anything else did not look at that answer.
    pub fn answer(&self) -> Option<Pieces> {
        let RequestError::UnsupportedVersion {
            api: ApiKey::ApiVersions,
            correlation_id,
            ..
        } = self
        else {
            return None;
        };
        let error_code = ResponseError::UnsupportedVersion.code();
        let response = api_versions().with_error_code(error_code);
        encode_response_body(0, *correlation_id, &response.into()).ok()
    }
}

/// Why a frame is no response to what was asked.
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
        /// What was asked.
        request: ApiKey,
        /// What was answered.
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
