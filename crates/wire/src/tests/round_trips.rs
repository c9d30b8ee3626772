//! Decoding returns the encoded message, in all versions.

use bytes::{Buf, Bytes};
use kafka_protocol::messages::ProduceRequest;
use proptest::prelude::*;

use crate::forge::Forge;
use crate::message::request_layout;
use crate::request::forged;
use crate::{
    ApiKey, Request, RequestHeader, Response, SUPPORTED, decode_request, decode_response,
    encode_request, encode_response,
};

/// The number of attempts to forge a valid message; many have a null that is not allowed.
const ATTEMPTS_MAX: u64 = 2000;

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

pub(super) fn any_request(api: ApiKey, version: i16, seed: u64) -> Option<Request> {
    if (api, version) == (ApiKey::InitProducerId, 6) {
        let Some(Request::InitProducerId(mut init)) = any_request(api, 5, seed) else {
            return None;
        };
        init.unknown_tagged_fields.clear();
        init.enable_2_pc = seed & 1 == 1;
        init.keep_prepared_txn = seed & 2 == 2;
        return Some(init.into());
    }
    (0..ATTEMPTS_MAX).find_map(|attempt| {
        forged::request(
            api,
            request_layout(api, version),
            &mut Forge::new(seed.wrapping_add(attempt << 32)),
        )
    })
}

pub(super) fn any_response(api: ApiKey, version: i16, seed: u64) -> Option<Response> {
    (0..ATTEMPTS_MAX).find_map(|attempt| {
        forged::response(
            api,
            version,
            &mut Forge::new(seed.wrapping_add(attempt << 32)),
        )
    })
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
    fn requests_in_all_versions(seed: u64) {
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
    fn responses_in_all_versions(seed: u64) {
        for (api, version) in versions() {
            let response = any_response(api, version, seed).expect("one of them is valid");
            let header = header(api, version);
            let frame = body(encode_response(&header, &response).unwrap());
            let decoded = decode_response(api, version, frame);
            prop_assert_eq!(decoded, Ok((header.correlation_id, response)));
        }
    }
}
