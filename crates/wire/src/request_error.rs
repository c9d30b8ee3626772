//! Errors of requests.

use crate::api::ApiKey;
use crate::error::Malformed;
use crate::header::RequestHeader;

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
        /// The correlation ID that an answer would repeat.
        correlation_id: i32,
    },
    /// The request is known, but not in this version.
    #[error("request {correlation_id} is {api:?} version {version}; versions {} to {} are supported", api.versions().start(), api.versions().end())]
    UnsupportedVersion {
        /// Which request it is.
        api: ApiKey,
        /// Its version.
        version: i16,
        /// The correlation ID that an answer must repeat.
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
