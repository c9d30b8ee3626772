//! The bound of the decoders' memory, whatever length a frame announces. This test is a program of its own,
//! since the allocator counts for the whole process.

use std::alloc::System;

use bytes::{BufMut, Bytes, BytesMut};
use millstream_wire::{ApiKey, REQUEST_FIELDS_MAX, SUPPORTED, decode_request, decode_response};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The greatest ratio of a decoded element's size to its shortest encoding, including arrays in arrays.
const GROWTH_MAX: usize = 500;

/// Memory for texts of errors, and for small arrays that the decoder reserves before it finds the frame's end.
const FIXED_BYTES: usize = 64 << 10;

/// Returns bodies that announce the largest possible lengths.
fn greedy_bodies() -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    let patterns: [&[u8]; 12] = [
        &[0xff],
        &[0x7f],
        &[0x7f, 0xff, 0xff, 0xff],
        &[0, 0, 0x0f, 0xff],
        &[0, 0, 3, 0],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0xff, 0xff, 0x03],
        &[0x80, 0x20],
        &[0x01],
        &[0x02, 0x00],
        &[0, 1, b'a', 0, 0, 0x0f, 0xff],
        &[2, b'a', 0x80, 0x20],
    ];
    for pattern in patterns {
        for size in [16, 300, 5000, 100_000] {
            for skip in 0..pattern.len() {
                let endless = pattern.iter().copied().cycle().skip(skip);
                bodies.push(endless.take(size).collect());
            }
        }
    }
    bodies
}

fn request(api: ApiKey, version: i16, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_i16(api as i16);
    frame.put_i16(version);
    frame.put_i32(1);
    frame.put_i16(-1);
    if api.is_flexible(version) {
        frame.put_u8(0);
    }
    frame.put_slice(body);
    frame.freeze()
}

#[track_caller]
fn check(api: ApiKey, version: i16, frame_bytes: usize, decode: impl FnOnce()) {
    let region = Region::new(ALLOCATOR);
    decode();
    let asked_for = region.change().bytes_allocated;
    let allowed = GROWTH_MAX * frame_bytes + FIXED_BYTES;
    assert!(
        asked_for <= allowed,
        "{api:?} version {version}: {asked_for} bytes for a frame of {frame_bytes}"
    );
}

/// The most bytes of a decoded topic.
const TOPIC_BYTES_MAX: usize = 128;

/// Returns a frame with more bytes than a request may have fields.
fn many_topics(version: i16, announced: &[u8]) -> Bytes {
    let mut body = BytesMut::from(announced);
    body.put_bytes(1, 8 * REQUEST_FIELDS_MAX);
    request(ApiKey::Metadata, version, &body)
}

#[test]
fn decoding_a_frame_takes_memory_in_proportion_to_its_bytes() {
    let bodies = greedy_bodies();
    for supported in SUPPORTED {
        let api = supported.api;
        for version in api.versions() {
            for body in &bodies {
                let frame = request(api, version, body);
                check(api, version, frame.len(), || drop(decode_request(frame)));
                let mut frame = BytesMut::from(&b"\0\0\0\x01"[..]);
                if api.is_flexible(version) && api != ApiKey::ApiVersions {
                    frame.put_u8(0);
                }
                frame.put_slice(body);
                let frame = frame.freeze();
                check(api, version, frame.len(), || {
                    drop(decode_response(api, version, frame));
                });
            }
        }
    }

    // Arrays that would fit into the frame, but have more elements than a request has fields.
    for (version, announced) in [(9, &[0x80, 0x80, 0x80, 0x03][..]), (1, &[0, 0x60, 0, 0])] {
        let frame = many_topics(version, announced);
        let region = Region::new(ALLOCATOR);
        assert!(decode_request(frame).is_err());
        let asked_for = region.change().bytes_allocated;
        let allowed = TOPIC_BYTES_MAX * REQUEST_FIELDS_MAX;
        assert!(asked_for <= allowed, "version {version}: {asked_for} bytes");
    }
}
