//! Decodes arbitrary bytes as the body of each response, as a client does.
#![no_main]

use bytes::{BufMut, BytesMut};
use libfuzzer_sys::fuzz_target;
use millstream_wire::{SUPPORTED, decode_response};

fuzz_target!(|bytes: &[u8]| {
    let [which, version, body @ ..] = bytes else {
        return;
    };
    let supported = SUPPORTED[usize::from(*which) % SUPPORTED.len()];
    let versions = supported.version_max - supported.version_min + 1;
    let version = supported.version_min + i16::from(*version) % versions;
    let mut frame = BytesMut::new();
    frame.put_i32(1);
    frame.put_slice(body);
    let _ = decode_response(supported.api, version, frame.freeze());
});
