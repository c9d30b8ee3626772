//! Malformed frames cause an error that names the fault, and never a panic.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    CreateTopicsRequest, FetchRequest, ListOffsetsRequest, MetadataRequest,
};
use proptest::prelude::*;

use super::round_trips::{body, header, versions};
use crate::forge::{Forge, any_request, any_response};
use crate::input::{FieldsMax, Input, Lengths};
use crate::{
    ApiKey, REQUEST_FIELDS_MAX, Request, RequestError, Response, ResponseError,
    decode_counted_request, decode_request, decode_response, encode_request, encode_response,
    request_api,
};

/// Returns a request with this body.
fn frame(api: ApiKey, version: i16, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_i16(api as i16);
    frame.put_i16(version);
    frame.put_i32(5);
    frame.put_i16(-1);
    if api.is_flexible(version) {
        frame.put_u8(0);
    }
    frame.put_slice(body);
    frame.freeze()
}

#[track_caller]
fn refused(frame: Bytes, expected: &str) {
    let error = decode_request(frame).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn arrays_longer_than_the_frame_are_refused() {
    // A topic is two bytes at least, so these would be 160 GiB of topics.
    refused(
        frame(ApiKey::Metadata, 1, b"\x7f\xff\xff\xffabcdef"),
        "Metadata version 1 refused at byte",
    );
    refused(
        frame(ApiKey::Metadata, 1, b"\0\0\0\x07abcdef"),
        "Not enough bytes",
    );
    refused(
        frame(ApiKey::Metadata, 9, b"\xff\xff\xff\xff\x0fabcdef"),
        "a length of 4294967295, but 6 bytes are left",
    );
    refused(
        frame(ApiKey::Metadata, 9, b"\x07abcdef"),
        "Metadata version 9 refused",
    );
}

#[test]
fn varints_not_in_shortest_form_are_refused() {
    refused(
        frame(ApiKey::Metadata, 9, b"\xff\xff\xff\xff\xff\x01"),
        "within 5 bytes",
    );
    refused(
        frame(ApiKey::Metadata, 9, b"\xff\xff\xff\xff\x1f"),
        "too large",
    );
    refused(frame(ApiKey::Metadata, 9, b"\x81\0abcdef"), "shortest form");
    refused(frame(ApiKey::Metadata, 9, b"\xff\xff"), "within 5 bytes");
}

#[test]
fn a_length_behind_a_boolean_is_checked() {
    // CreateTopics version 7 ends with a boolean and the number of tagged fields, here 2^28 - 1.
    let hidden = b"\x01\0\0\0\x01\x80\xff\xff\xff\x7f";
    refused(
        frame(ApiKey::CreateTopics, 7, hidden),
        "shortest form, or too large",
    );
    // An invalid boolean counts as the first byte of the varint, whatever its value.
    let merged = b"\x01\0\0\0\x01\x80\0";
    refused(frame(ApiKey::CreateTopics, 7, merged), "shortest form");
    let whole = CreateTopicsRequest::default()
        .with_timeout_ms(1)
        .with_validate_only(true);
    let decoded = decode_request(frame(ApiKey::CreateTopics, 7, b"\x01\0\0\0\x01\x01\0"));
    assert_eq!(decoded.unwrap().1, Request::from(whole));
}

#[test]
fn large_integers_that_are_not_lengths_decode_unchanged() {
    let check = |version, request: Request| {
        let header = header(request.api(), version);
        let frame = body(encode_request(&header, &request).unwrap());
        assert_eq!(decode_request(frame), Ok((header, request)));
    };
    for version in ApiKey::Fetch.versions().filter(|version| *version < 15) {
        let mut request = FetchRequest::default()
            .with_max_wait_ms(i32::MAX)
            .with_min_bytes(i32::MIN)
            .with_max_bytes(55 << 20);
        if version >= 7 {
            request = request.with_session_id(1 << 29).with_session_epoch(70_000);
        }
        check(version, request.into());
    }
    let request = ListOffsetsRequest::default().with_replica_id((1 << 30).into());
    check(1, request.into());
}

#[test]
fn arrays_longer_than_the_remaining_fields_are_refused() {
    let decode = |fields_max, topics: &[u8]| {
        let bytes = Bytes::copy_from_slice(topics);
        let mut input = Input::new(bytes, Lengths::Compact, FieldsMax(fields_max));
        input.message::<MetadataRequest>(9)
    };
    // 300 topics without a name, and three booleans; each topic takes four fields.
    let mut topics = BytesMut::from(&b"\xad\x02"[..]);
    topics.put_bytes(0, 2 * 300);
    for topic in topics[2..].chunks_mut(2) {
        topic[0] = 1;
    }
    topics.put_slice(b"\0\0\0\0");
    assert_eq!(decode(1000, &topics).unwrap().topics.unwrap().len(), 300);
    for fields_max in [0, 1, 290, 700, 904] {
        let error = decode(fields_max, &topics).unwrap_err();
        assert!(error.what.contains("too many fields"), "{error}");
    }
    assert!(decode(905, &topics).is_ok());
}

#[test]
fn trailing_bytes_are_ignored_and_missing_ones_refused() {
    let mut whole = BytesMut::from(&frame(ApiKey::Metadata, 1, b"\0\0\0\x01\0\x01a")[..]);
    let decoded = decode_request(whole.clone().freeze()).unwrap();
    whole.put_u8(0);
    assert_eq!(decode_request(whole.freeze()).unwrap(), decoded);
    refused(
        frame(ApiKey::Metadata, 1, b"\0\0\0\x01\0\x02a"),
        "Not enough bytes",
    );
    refused(frame(ApiKey::Metadata, 1, b"\0\0\0\x01\0\x01\xff"), "utf-8");
}

#[test]
fn incomplete_headers_are_refused() {
    for length in 0..10 {
        let frame = frame(ApiKey::Metadata, 1, b"").slice(..length);
        let error = decode_request(frame).unwrap_err();
        assert!(
            matches!(error, RequestError::Header(_)),
            "{length}: {error}"
        );
    }
    refused(
        Bytes::from_static(b"\0\x03\0\x01\0\0\0\x05\0\x02a"),
        "client id",
    );
    refused(
        Bytes::from_static(b"\0\x03\0\x01\0\0\0\x05\xff\xfea"),
        "length of -2",
    );
}

#[test]
fn errors_name_the_unsupported_request() {
    refused(
        Bytes::from_static(b"\0\x63\0\x01\0\0\0\x05"),
        "request 5 has the unknown api key 99",
    );
    refused(
        Bytes::from_static(b"\0\0\0\x02\0\0\0\x05"),
        "Produce version 2; versions 3 to 13",
    );
    let error = decode_request(Bytes::from_static(b"\0\0\0\x02\0\0\0\x05")).unwrap_err();
    assert_eq!(error.answer(), None);
}

#[test]
fn the_fields_of_a_request_are_counted() {
    let fields = |topics| {
        let request =
            MetadataRequest::default().with_topics(Some(vec![Default::default(); topics]));
        [1, 9].map(|version| {
            let whole = encode_request(&header(ApiKey::Metadata, version), &request.clone().into());
            decode_counted_request(body(whole.unwrap())).unwrap().2
        })
    };
    let few = fields(1);
    // The length of a name, its bytes, and in the newer version also tags.
    assert_eq!(fields(101), [few[0] + 200, few[1] + 300]);
}

#[test]
fn the_kind_of_a_request_is_known_before_it_is_decoded() {
    let check = |frame: &[u8], api| assert_eq!(request_api(frame), api, "{frame:?}");
    check(b"", None);
    check(b"\0", None);
    check(b"\0\x63\0\x01", None);
    check(b"\xff\xff", None);
    check(
        b"\0\x12\0\x63 an unknown version",
        Some(ApiKey::ApiVersions),
    );
}

#[test]
fn api_versions_in_an_unknown_version_gets_the_supported_versions() {
    let future = Bytes::from_static(b"\0\x12\0\x63\0\0\0\x05 a header of the future");
    let answer = decode_request(future).unwrap_err().answer().unwrap();
    let (correlation_id, response) = decode_response(ApiKey::ApiVersions, 0, body(answer)).unwrap();
    assert_eq!(correlation_id, 5);
    let Response::ApiVersions(response) = response else {
        panic!("{response:?}");
    };
    assert_eq!(
        response.error_code,
        ResponseError::UnsupportedVersion.code()
    );
    assert_eq!(response.api_keys, crate::api_versions().api_keys);
}

/// Flips, removes, doubles or overwrites some bytes.
fn damage(frame: &Bytes, forge: &mut Forge) -> Bytes {
    let mut bytes = frame.to_vec();
    for _ in 0..=forge.below(3) {
        let at = forge.below(bytes.len() as u64 + 1) as usize;
        match forge.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.splice(at..at, bytes[..at].to_vec()).for_each(drop),
            2 => bytes.splice(at..at, [0xff; 4]).for_each(drop),
            3 => bytes
                .iter_mut()
                .skip(at)
                .take(4)
                .for_each(|byte| *byte = 0xff),
            _ => {
                let bit = 1 << forge.below(8);
                bytes
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|byte| *byte ^= bit);
            }
        }
    }
    bytes.into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn decoding_damaged_messages_does_not_panic(seed: u64) {
        let mut forge = Forge::new(seed);
        for (api, version) in versions() {
            let request = any_request(api, version, seed).expect("one of them is valid");
            let frame = body(encode_request(&header(api, version), &request).unwrap());
            let response = any_response(api, version, seed).expect("one of them is valid");
            let answer = body(encode_response(&header(api, version), &response).unwrap());
            for _ in 0..20 {
                let _ = decode_request(damage(&frame, &mut forge));
                let _ = decode_response(api, version, damage(&answer, &mut forge));
            }
        }
    }

    #[test]
    fn incomplete_messages_are_refused(seed: u64) {
        for (api, version) in versions() {
            let request = any_request(api, version, seed).expect("one of them is valid");
            let frame = body(encode_request(&header(api, version), &request).unwrap());
            for length in 0..frame.len() {
                let decoded = decode_request(frame.slice(..length));
                prop_assert!(decoded.is_err(), "{:?} {}: {:?}", api, version, decoded);
            }
        }
    }

    #[test]
    fn decoding_random_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for (api, version) in versions() {
            let _ = decode_request(frame(api, version, &bytes));
            let _ = decode_response(api, version, Bytes::copy_from_slice(&bytes));
        }
        let _ = decode_request(bytes.into());
    }
}

#[test]
fn a_byte_field_may_exceed_the_bound_on_the_number_of_fields() {
    let size = 2 * REQUEST_FIELDS_MAX;
    for version in ApiKey::SaslAuthenticate.versions() {
        let auth = kafka_protocol::messages::SaslAuthenticateRequest::default()
            .with_auth_bytes(Bytes::from(vec![1; size]));
        let header = header(ApiKey::SaslAuthenticate, version);
        let frame = body(encode_request(&header, &auth.clone().into()).unwrap());
        assert_eq!(decode_request(frame), Ok((header, auth.into())));
    }
}
