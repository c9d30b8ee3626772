//! The error of a request that cannot be decoded.

use crate::api::ApiKey;
use crate::error::Malformed;
use crate::header::RequestHeader;

/// The reason why a frame is not a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The header is incomplete or damaged.
    #[error("request header refused {0}")]
    Header(Malformed),
    /// No request has this key.
    #[error("request {correlation_id} has the unknown api key {api_key}")]
    UnknownApi {
        /// The key.
        api_key: i16,
        /// Its version.
        version: i16,
        /// The correlation id that an answer would repeat.
        correlation_id: i32,
    },
    /// The request exists, but not in this version.
    #[error("request {correlation_id} is {api:?} version {version}; versions {} to {} are supported", api.versions().start(), api.versions().end())]
    UnsupportedVersion {
        /// The kind of the request.
        api: ApiKey,
        /// Its version.
        version: i16,
        /// The correlation id that an answer must repeat.
        correlation_id: i32,
    },
    /// The body does not match the header.
    #[error("{:?} version {} refused {malformed}", header.api, header.version)]
    Body {
        /// The header, which is whole.
        header: RequestHeader,
        /// The fault.
        malformed: Malformed,
    },
}
