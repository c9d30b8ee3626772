//! Decoding returns the encoded message, in all versions.

use bytes::{Buf, Bytes};
use kafka_protocol::messages::ProduceRequest;
use proptest::prelude::*;

use crate::forge::{any_request, any_response};
use crate::{
    ApiKey, Request, RequestHeader, SUPPORTED, decode_request, decode_response, encode_request,
    encode_response,
};

pub(super) fn versions() -> impl Iterator<Item = (ApiKey, i16)> {
    let apis = SUPPORTED.iter().map(|supported| supported.api);
    apis.flat_map(|api| api.versions().map(move |version| (api, version)))
}

pub(super) fn header(api: ApiKey, version: i16) -> RequestHeader {
    RequestHeader {
        api,
        version,
        // Larger than any frame here, like the ids of long-lived clients.
        correlation_id: 1 << 30,
        client_id: Some("client".into()),
    }
}

/// Returns a frame without its length.
pub(super) fn body(pieces: crate::Pieces) -> Bytes {
    let mut frame = pieces.into_bytes();
    assert_eq!(frame.get_i32() as usize, frame.len());
    frame
}

/// Removes the fields that this crate does not write.
pub(super) fn without_tags(request: &mut ProduceRequest) {
    request.unknown_tagged_fields.clear();
    for topic in &mut request.topic_data {
        topic.unknown_tagged_fields.clear();
        for partition in &mut topic.partition_data {
            partition.unknown_tagged_fields.clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn requests_round_trip_in_all_versions(seed: u64) {
        for (api, version) in versions() {
            let mut request = any_request(api, version, seed).expect("one of them is valid");
            if let Request::Produce(request) = &mut request {
                without_tags(request);
            }
            let header = header(api, version);
            let frame = body(encode_request(&header, &request).unwrap());
            let decoded = decode_request(frame);
            prop_assert_eq!(decoded, Ok((header, request)));
        }
    }

    #[test]
    fn responses_round_trip_in_all_versions(seed: u64) {
        for (api, version) in versions() {
            let response = any_response(api, version, seed).expect("one of them is valid");
            let header = header(api, version);
            let frame = body(encode_response(&header, &response).unwrap());
            let decoded = decode_response(api, version, frame);
            prop_assert_eq!(decoded, Ok((header.correlation_id, response)));
        }
    }
}
