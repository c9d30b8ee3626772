//! Frames and messages of Kafka's protocol and of the native requests. No I/O.
//!
//! The messages are generated from Kafka's own definitions (crate `kafka-protocol`); this crate puts
//! bounds around their decoders, and writes large payloads without a copy. The broker takes a request
//! in two steps:
//!
//! 1. [`take_frame`] takes the next whole frame out of the bytes that a connection has received.
//! 2. [`decode_request`] decodes it into a [`RequestHeader`] and a [`Request`]. Strings, bytes and
//!    records are slices of the frame, so a slice keeps the whole receive buffer in memory; copy a
//!    slice that must live longer. The decoder reserves memory for at most as many elements of an
//!    array as the frame has bytes, and for at most [`REQUEST_FIELDS_MAX`].
//!
//! This crate does not check records; the log does.
//!
//! [`encode_response`] encodes the answer into [`Pieces`] for vectored writes. [`encode_request`] and
//! [`decode_response`] are the client's side.
//!
//! [`SUPPORTED`] lists all requests and their versions. `docs/protocol.md` describes them.
//!
//! ```
//! use bytes::{Buf, BytesMut};
//! use millstream_wire::messages::ApiVersionsRequest;
//! use millstream_wire::{
//!     ApiKey, Request, RequestHeader, Response, api_versions, decode_request, decode_response,
//!     encode_request, encode_response, take_frame,
//! };
//!
//! // The client sends.
//! let header = RequestHeader {
//!     api: ApiKey::ApiVersions,
//!     version: 3,
//!     correlation_id: 7,
//!     client_id: Some("example".into()),
//! };
//! let request = Request::ApiVersions(ApiVersionsRequest::default());
//! let sent = encode_request(&header, &request)?.into_bytes();
//!
//! // The broker answers.
//! let mut received = BytesMut::from(sent);
//! let frame = take_frame(&mut received, 1 << 20)?.expect("it is whole");
//! let (header, request) = decode_request(frame)?;
//! assert_eq!(request.api(), ApiKey::ApiVersions);
//! let answer = encode_response(&header, &Response::ApiVersions(api_versions()))?;
//!
//! // The client reads.
//! let mut received = BytesMut::from(answer.into_bytes());
//! let frame = take_frame(&mut received, 1 << 20)?.expect("it is whole");
//! let (correlation_id, response) = decode_response(header.api, header.version, frame)?;
//! assert_eq!(correlation_id, 7);
//! assert_eq!(response, Response::ApiVersions(api_versions()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// The metadata of offsets that record a flow's progress. A group with these offsets belongs to the flow: brokers
/// refuse members and all other offsets.
pub const FLOW_OFFSETS: &str = "millstream flow";

mod api;
mod body;
mod consumer_protocol;
mod error;
mod fetch;
mod fields;
#[cfg(any(test, feature = "forge"))]
pub mod forge;
mod frame;
mod header;
mod init_producer_id;
mod input;
mod log_dirs;
mod message;
mod metadata;
pub mod native;
mod offsets;
mod pieces;
mod produce;
mod request;
mod request_error;
pub mod sasl;
mod share;
pub mod streams_group;
mod table;
#[cfg(test)]
mod tests;
mod versioned;

pub use api::{ApiKey, SUPPORTED, Supported, UnknownApiKey, api_versions};
pub use consumer_protocol::{
    decode_assignment, decode_subscription, encode_assignment, encode_subscription,
};
pub use error::{EncodeError, FrameError, Malformed, ResponseFrameError};
pub use fetch::{FetchResponse, FetchedPartition, FetchedTopic};
pub use frame::{FRAME_HEADER_BYTES, missing_bytes, take_frame};
pub use header::RequestHeader;
pub use input::{FIELD_BYTES, REQUEST_FIELDS_MAX, RESPONSE_FIELDS_MAX};
pub use log_dirs::{DescribeLogDirsResponse, LogDir};
pub use message::{
    correlation_id, decode_counted_request, decode_request, decode_response, encode_request,
    encode_response, request_api,
};
pub use metadata::{Brokers, MetadataPartition, MetadataResponse, MetadataTopic};
pub use pieces::{Pieces, SHARED_BYTES_MIN};
pub use request::{Question, Request, Response};
pub use request_error::RequestError;
pub use share::{
    DescribeShareGroupOffsetsResponse, ShareAcknowledgeRequest, ShareAcknowledgeResponse,
    ShareFetchRequest, ShareFetchResponse, ShareFetchedPartition, ShareFetchedTopic,
    ShareGroupOffsets, SharePartitionOffsets, ShareTopicOffsets,
};

/// Kafka's error codes.
pub use kafka_protocol::error::{ParseResponseErrorCode, ResponseError};
/// The messages that are generated from Kafka's definitions.
pub use kafka_protocol::messages;
/// A string, as a slice of its frame.
pub use kafka_protocol::protocol::StrBytes;
pub use uuid::Uuid;
