//! Encoders and decoders of requests and responses, with their headers.

use bytes::Bytes;
use kafka_protocol::ResponseError;

use crate::api::{ApiKey, api_versions};
use crate::error::{EncodeError, Malformed, ResponseFrameError};
use crate::header::{RequestHeader, response_has_tags};
use crate::init_producer_id::{TWO_PHASE_FROM, decode_init_producer_id, put_init_producer_id};
use crate::input::{FieldsMax, Input, Lengths, RESPONSE_FIELDS_MAX};
use crate::offsets::{TOPIC_IDS_FROM, decode_commit, decode_fetch, put_commit, put_fetch};
use crate::pieces::{Output, Pieces};
use crate::produce::put_produce;
use crate::request::{Request, Response};
use crate::request_error::RequestError;

/// Decodes a request. Records, strings and bytes are slices of the frame, and pin the buffer that
/// received it.
///
/// # Errors
/// If the request is not supported, malformed or incomplete. [`RequestError::answer`] returns
/// the answer to the client; if there is none, close the connection.
pub fn decode_request(frame: Bytes) -> Result<(RequestHeader, Request), RequestError> {
    let (header, request, _) = decode_counted_request(frame)?;
    Ok((header, request))
}

/// Decodes a request. Also returns the number of its fields, each of which takes up to about [`FIELD_BYTES`] in memory.
///
/// # Errors
/// See [`decode_request`].
///
/// [`FIELD_BYTES`]: crate::FIELD_BYTES
pub fn decode_counted_request(
    frame: Bytes,
) -> Result<(RequestHeader, Request, usize), RequestError> {
    let (header, mut input) = RequestHeader::decode(frame)?;
    let decoded = match (header.api, header.version) {
        (ApiKey::InitProducerId, TWO_PHASE_FROM..) => decode_init_producer_id(&mut input),
        (ApiKey::OffsetCommit, TOPIC_IDS_FROM..) => decode_commit(&mut input),
        (ApiKey::OffsetFetch, TOPIC_IDS_FROM..) => decode_fetch(&mut input),
        (api, version) => Request::decode(api, request_layout(api, version), &mut input),
    };
    match decoded {
        Ok(request) => Ok((header, request, input.request_fields())),
        Err(malformed) => Err(RequestError::Body { header, malformed }),
    }
}

impl RequestError {
    /// Returns an answer that the client can decode, if one exists. ApiVersions in an unknown version gets the answer in
    /// the oldest version, with all supported versions. Any other unsupported request gets none, since its client has
    /// ignored the answer to ApiVersions.
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

/// Encodes the response to a request. Large payloads are separate pieces.
///
/// # Errors
/// If the response does not answer this request, or sets a field that its version lacks.
pub fn encode_response(header: &RequestHeader, response: &Response) -> Result<Pieces, EncodeError> {
    if header.api != response.api() {
        return Err(EncodeError::OtherApi {
            request: header.api,
            response: response.api(),
        });
    }
    encode_response_body(header.version, header.correlation_id, response)
}

pub(crate) fn encode_response_body(
    version: i16,
    correlation_id: i32,
    response: &Response,
) -> Result<Pieces, EncodeError> {
    let api = check_version(response.api(), version)?;
    let mut output = Output::new();
    output.int32(correlation_id);
    if response_has_tags(api, version) {
        output.no_tags();
    }
    response.encode(response_layout(api, version), &mut output)?;
    output.finish()
}

/// Encodes a request. Large payloads are separate pieces.
///
/// # Errors
/// If the header names another request, or the request sets a field that its version lacks.
pub fn encode_request(header: &RequestHeader, request: &Request) -> Result<Pieces, EncodeError> {
    if header.api != request.api() {
        return Err(EncodeError::OtherApi {
            request: header.api,
            response: request.api(),
        });
    }
    check_version(header.api, header.version)?;
    let mut output = Output::new();
    header.encode(&mut output)?;
    match (request, header.version) {
        (Request::Produce(produce), version) => put_produce(produce, version, &mut output)?,
        (Request::InitProducerId(init), version) => {
            put_init_producer_id(init, version, &mut output)?;
        }
        (Request::OffsetCommit(commit), TOPIC_IDS_FROM..) => put_commit(commit, &mut output),
        (Request::OffsetFetch(fetch), TOPIC_IDS_FROM..) => put_fetch(fetch, &mut output),
        _ => request.encode(request_layout(header.api, header.version), &mut output)?,
    }
    output.finish()
}

/// Returns the version whose layout a request has. The generated messages lack the newest versions of these requests,
/// whose layout is that of the version before.
pub(crate) fn request_layout(api: ApiKey, version: i16) -> i16 {
    match api {
        ApiKey::DescribeShareGroupOffsets => 0,
        ApiKey::DescribeLogDirs => version.min(4),
        ApiKey::ListOffsets => version.min(10),
        _ => version,
    }
}

/// Returns the version whose layout a response has; see [`request_layout`].
pub(crate) fn response_layout(api: ApiKey, version: i16) -> i16 {
    match api {
        ApiKey::ListOffsets => version.min(10),
        _ => version,
    }
}

/// Returns the kind of a request, before the request is decoded; `None` if the frame is too short, or its kind unknown.
pub fn request_api(frame: &[u8]) -> Option<ApiKey> {
    let api_key = i16::from_be_bytes(*frame.first_chunk()?);
    ApiKey::try_from(api_key).ok()
}

/// Returns the correlation id of a response, which names its request; `None` if the frame is too short.
pub fn correlation_id(frame: &[u8]) -> Option<i32> {
    frame.first_chunk().map(|bytes| i32::from_be_bytes(*bytes))
}

/// Decodes the response to a request of this version. Records, strings and bytes are slices of the
/// frame.
///
/// # Errors
/// If the version is not supported, the frame is not a response of this kind, or bytes follow it.
pub fn decode_response(
    api: ApiKey,
    version: i16,
    frame: Bytes,
) -> Result<(i32, Response), ResponseFrameError> {
    let refuse = |malformed| ResponseFrameError {
        api,
        version,
        malformed,
    };
    decode_response_frame(api, version, frame).map_err(refuse)
}

fn decode_response_frame(
    api: ApiKey,
    version: i16,
    frame: Bytes,
) -> Result<(i32, Response), Malformed> {
    let lengths = match api.is_flexible(version) {
        true => Lengths::Compact,
        false => Lengths::FixedAndChecked,
    };
    let mut input = Input::new(frame, lengths, FieldsMax(RESPONSE_FIELDS_MAX));
    if !api.versions().contains(&version) {
        return Err(input.malformed("this version is not supported"));
    }
    let correlation_id = input.int32("correlation id")?;
    if response_has_tags(api, version) {
        input.tags()?;
    }
    if lengths == Lengths::FixedAndChecked {
        input.set_lengths(Lengths::Fixed);
    }
    let response = Response::decode(api, response_layout(api, version), &mut input)?;
    input.end()?;
    Ok((correlation_id, response))
}

fn check_version(api: ApiKey, version: i16) -> Result<ApiKey, EncodeError> {
    match api.versions().contains(&version) {
        true => Ok(api),
        false => Err(EncodeError::Version { api, version }),
    }
}
