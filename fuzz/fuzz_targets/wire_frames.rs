//! Arbitrary bytes of a connection: frames, and the requests in them, however they arrive.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use millstream_wire::{RequestError, decode_request, missing_bytes, take_frame};

const FRAME_BYTES_MAX: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let mut buffer = BytesMut::new();
    for part in bytes.chunks(7) {
        buffer.extend_from_slice(part);
        while let Ok(Some(frame)) = take_frame(&mut buffer, FRAME_BYTES_MAX) {
            assert!(frame.len() <= FRAME_BYTES_MAX);
            if let Err(error) = decode_request(frame) {
                let is_answered = error.answer().is_some();
                assert!(!is_answered || matches!(error, RequestError::UnsupportedVersion { .. }));
            }
        }
        match missing_bytes(&buffer, FRAME_BYTES_MAX) {
            Ok(missing) => assert!(0 < missing && missing <= FRAME_BYTES_MAX + 4),
            Err(_) => return,
        }
    }
});
