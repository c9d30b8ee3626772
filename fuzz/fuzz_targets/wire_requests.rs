//! Decodes arbitrary bytes as the body of each request. A decoded request round-trips through its encoding.
#![no_main]

use bytes::{Buf, BufMut, BytesMut};
use libfuzzer_sys::fuzz_target;
use millstream_wire::{
    ResponseError, SUPPORTED, decode_request, encode_request, encode_response, refuse,
};

fuzz_target!(|bytes: &[u8]| {
    let [which, version, body @ ..] = bytes else {
        return;
    };
    let supported = SUPPORTED[usize::from(*which) % SUPPORTED.len()];
    let versions = supported.version_max - supported.version_min + 1;
    let version = supported.version_min + i16::from(*version) % versions;
    let mut frame = BytesMut::new();
    frame.put_i16(supported.api as i16);
    frame.put_i16(version);
    frame.put_i32(1);
    frame.put_i16(-1);
    if supported.api.is_flexible(version) {
        frame.put_u8(0);
    }
    frame.put_slice(body);

    let Ok((header, request)) = decode_request(frame.freeze()) else {
        return;
    };
    let refusal = refuse(
        &request,
        version,
        ResponseError::InvalidRequest,
        Some("fuzz"),
    );
    // A name may be longer than an answer of this version can repeat.
    let _ = encode_response(&header, &refusal);
    let decoded = format!("{:?}", (&header, &request));
    let tagged = decoded.matches("unknown_tagged_fields: {").count();
    if tagged > decoded.matches("unknown_tagged_fields: {}").count() {
        // Not all unknown tagged fields are written again, and their order may be another.
        return;
    }
    // A string may be longer than fits where it is encoded.
    let Ok(pieces) = encode_request(&header, &request) else {
        return;
    };
    let mut frame = pieces.into_bytes();
    frame.advance(4);
    let again = decode_request(frame).expect("an encoded request can be decoded");
    // Numbers that are not equal to themselves can be in quotas.
    assert_eq!(format!("{again:?}"), decoded);
});
