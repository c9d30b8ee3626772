//! Chunks: read from cursors on.

use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream_base::{Cursor, GroupId, Position, SegmentIndex, StreamId, StreamletIndex};
use millstream_record::{Chunks, Decompressor};
use millstream_wire::ResponseError;
use millstream_wire::native::{
    DeleteStreamRequest, ReadChunksRequest, ReadChunksResponse, ReadFromCursor,
};

use crate::chunks::{write, writing};
use crate::client::{Broker, Client, answer, ask, chunk, text};

/// Long enough that no chunk arrives by chance.
const LONG_MS: u32 = 30_000;

/// Returns the start of a group of the first streamlet.
pub fn start_of(stream: StreamId, group: u64) -> Cursor {
    Cursor {
        stream,
        streamlet: StreamletIndex(0),
        group: GroupId(group),
        segment: SegmentIndex(0),
        position: Position(0),
    }
}

fn reading(cursors: &[Cursor], bytes_max: u32, bytes_min: u32, wait_ms: u32) -> ReadChunksRequest {
    ReadChunksRequest {
        cursors: cursors.to_vec(),
        bytes_max,
        bytes_min,
        wait_ms_max: wait_ms,
    }
}

/// Reads the available chunks from cursors on.
fn read(client: &mut Client, cursors: &[Cursor], bytes_max: u32) -> ReadChunksResponse {
    ask!(client, ReadChunks, reading(cursors, bytes_max, 0, 0))
}

/// Returns the values of all records.
fn values(read: &ReadFromCursor) -> Vec<Bytes> {
    let mut decompressor = Decompressor::default();
    let mut values = Vec::new();
    for piece in &read.chunks.0 {
        for chunk in Chunks::new(piece) {
            for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                values.push(Bytes::copy_from_slice(record.unwrap().value.unwrap()));
            }
        }
    }
    values
}

/// Reads one group to its end, in answers of at most `bytes_max` bytes.
pub fn read_group(client: &mut Client, mut cursor: Cursor, bytes_max: u32) -> (Vec<Bytes>, Cursor) {
    let mut all = Vec::new();
    loop {
        let response = read(client, &[cursor], bytes_max);
        let read = &response.reads[0];
        assert_eq!(read.error_code, 0, "{:?}", read.error_message);
        if read.chunks.size() == 0 {
            return (all, cursor);
        }
        all.extend(values(read));
        cursor = read.next;
    }
}

#[test]
fn reads_with_any_byte_bound_return_all_records() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("read", 1, 1);
    let written: Vec<Bytes> = (0..100u8).map(|n| Bytes::from(vec![n; 500])).collect();
    for value in &written {
        client.send(writing(stream, &[(0, &chunk(value))]));
    }
    for _ in &written {
        assert_eq!(answer!(client, WriteChunks).chunks[0].error_code, 0);
    }
    for bytes_max in [0, 1, 600, 5000, u32::MAX] {
        let (all, _) = read_group(&mut client, start_of(stream, 1), bytes_max);
        assert_eq!(all, written, "{bytes_max} bytes");
    }
    // The same when memory holds none of it.
    broker.log().persist();
    broker.log().evict();
    let (all, end) = read_group(&mut client, start_of(stream, 1), 5000);
    assert_eq!(all, written);
    assert!(values(&read(&mut client, &[end], 5000).reads[0]).is_empty());
}

#[test]
fn a_cursor_between_chunk_starts_is_out_of_range_before_and_after_a_restart() {
    let mut broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("read", 1, 1);
    write(&mut client, stream, 0, &chunk(&[1; 1000]));
    for _ in 0..2 {
        let mut client = broker.client();
        let start = start_of(stream, 1);
        let cursors = [10, 60, 1_000_000, u64::MAX].map(|position| Cursor {
            position: Position(position),
            ..start
        });
        let out_of_range = ResponseError::OffsetOutOfRange.code();
        for answer in read(&mut client, &cursors, 5000).reads {
            assert_eq!(
                answer.error_code, out_of_range,
                "{:?}",
                answer.error_message
            );
        }
        let lane = broker.log().stream("read").unwrap().partition(0).unwrap();
        assert!(lane.damage().is_none());
        assert_eq!(broker.log().stats().damaged_reads, 0);
        assert_eq!(values(&read(&mut client, &[start], 5000).reads[0]).len(), 1);
        broker.restart();
    }
}

#[test]
fn all_cursors_share_the_byte_bound_of_an_answer() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("shared", 2, 1);
    for streamlet in [0, 1] {
        for _ in 0..10 {
            write(&mut client, stream, streamlet, &chunk(&[1; 1000]));
        }
    }
    let chunk_bytes = chunk(&[1; 1000]).len() as u32;
    let first = start_of(stream, 1);
    let second = Cursor {
        streamlet: StreamletIndex(1),
        ..first
    };
    let sizes = |response: &ReadChunksResponse| {
        let sizes = response.reads.iter().map(|read| read.chunks.size() as u32);
        sizes.collect::<Vec<_>>()
    };
    let some = read(&mut client, &[first, second], 10 * chunk_bytes);
    assert_eq!(sizes(&some), [10 * chunk_bytes, 0]);
    assert_eq!(some.reads[1].next, second);
    let more = read(&mut client, &[some.reads[0].next, second], 10 * chunk_bytes);
    assert_eq!(sizes(&more), [0, 10 * chunk_bytes]);
    let all = read(&mut client, &[first, second], 100 * chunk_bytes);
    assert_eq!(sizes(&all), [10 * chunk_bytes, 10 * chunk_bytes]);
    // The first chunk comes whole, and nothing behind it.
    let one = read(&mut client, &[first, second], 10);
    assert_eq!(sizes(&one), [chunk_bytes, 0]);
}

#[test]
fn a_read_waits_for_its_minimum_of_bytes() {
    let broker = Broker::start();
    let (mut reader, mut writer) = (broker.client(), broker.client());
    let stream = writer.create("awaited", 1, 1);
    let value = chunk(&[1; 1000]);
    write(&mut writer, stream, 0, &value);
    let (_, head) = read_group(&mut reader, start_of(stream, 1), 5000);

    reader.send(reading(&[head], 5000, 2 * value.len() as u32, LONG_MS));
    assert!(reader.is_silent_for(Duration::from_millis(200)));
    write(&mut writer, stream, 0, &value);
    assert!(
        reader.is_silent_for(Duration::from_millis(200)),
        "one is too little"
    );
    write(&mut writer, stream, 0, &value);
    let response = answer!(reader, ReadChunks);
    assert_eq!(values(&response.reads[0]).len(), 2);
}

#[test]
fn a_read_without_new_records_is_answered_after_its_wait() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("quiet", 1, 1);
    write(&mut client, stream, 0, &chunk(b"x"));
    let (_, head) = read_group(&mut client, start_of(stream, 1), 5000);
    let begun = Instant::now();
    let response = ask!(client, ReadChunks, reading(&[head], 5000, 1, 300));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!((response.error_code, response.reads[0].error_code), (0, 0));
    assert_eq!(response.reads[0].next, head);
    // Without cursors there is nothing to wait for.
    let response = ask!(client, ReadChunks, reading(&[], 5000, 1, LONG_MS));
    assert!(response.reads.is_empty());
}

#[test]
fn many_readers_are_woken_by_one_write() {
    let broker = Broker::start();
    let mut writer = broker.client();
    let streams: Vec<StreamId> = (0..20)
        .map(|n| writer.create(&format!("stream-{n}"), 1, 1))
        .collect();
    for stream in &streams {
        write(&mut writer, *stream, 0, &chunk(b"before"));
    }
    let mut heads = Vec::new();
    for stream in &streams {
        heads.push(read_group(&mut writer, start_of(*stream, 1), 5000).1);
    }
    let mut readers: Vec<Client> = (0..10).map(|_| broker.client()).collect();
    for reader in &mut readers {
        reader.send(reading(&heads, 5000, 1, LONG_MS));
    }
    assert!(readers[9].is_silent_for(Duration::from_millis(200)));
    write(&mut writer, streams[13], 0, &chunk(b"after"));
    for reader in &mut readers {
        let response = answer!(reader, ReadChunks);
        let has_some: Vec<usize> = (0..20)
            .filter(|n| !values(&response.reads[*n]).is_empty())
            .collect();
        assert_eq!(has_some, [13]);
    }
}

#[test]
fn deleting_a_stream_ends_waiting_reads() {
    let broker = Broker::start();
    let (mut reader, mut other) = (broker.client(), broker.client());
    let stream = other.create("doomed", 1, 1);
    write(&mut other, stream, 0, &chunk(b"x"));
    let (_, head) = read_group(&mut reader, start_of(stream, 1), 5000);
    reader.send(reading(&[head], 5000, 1, LONG_MS));
    assert!(reader.is_silent_for(Duration::from_millis(200)));
    let deletion = DeleteStreamRequest {
        name: text("doomed"),
    };
    assert_eq!(ask!(other, DeleteStream, deletion).error_code, 0);
    let response = answer!(reader, ReadChunks);
    let unknown = ResponseError::UnknownTopicId.code();
    assert_eq!(response.reads[0].error_code, unknown);
}

#[test]
fn a_cursor_is_refused_at_once_and_the_others_are_read() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("half", 1, 1);
    let internal = broker.log().internal_stream("__secret").unwrap();
    write(&mut client, stream, 0, &chunk(b"x"));
    let good = start_of(stream, 1);
    let bad = [
        (start_of(StreamId(999), 1), ResponseError::UnknownTopicId),
        (start_of(internal.id(), 1), ResponseError::UnknownTopicId),
        (start_of(stream, 2), ResponseError::OffsetOutOfRange),
        (
            Cursor {
                streamlet: StreamletIndex(7),
                ..good
            },
            ResponseError::UnknownTopicOrPartition,
        ),
        (
            Cursor {
                position: Position(1 << 40),
                ..good
            },
            ResponseError::OffsetOutOfRange,
        ),
        // Within a chunk.
        (
            Cursor {
                position: Position(3),
                ..good
            },
            ResponseError::OffsetOutOfRange,
        ),
    ];
    for (cursor, error) in bad {
        let request = reading(&[cursor, good], 5000, 5000, LONG_MS);
        let response = ask!(client, ReadChunks, request);
        assert_eq!(response.reads[0].error_code, error.code(), "{cursor}");
        assert!(response.reads[0].error_message.is_some());
        assert_eq!(values(&response.reads[1]), ["x"]);
    }
    let many = vec![good; (1 << 16) + 1];
    let response = ask!(client, ReadChunks, reading(&many, 1, 0, 0));
    assert_eq!(response.error_code, ResponseError::InvalidRequest.code());
    assert!(response.reads.is_empty());
}

#[test]
fn a_cursor_in_a_removed_group_continues_at_the_earliest_group() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("short", 1, 1);
    for _ in 0..20 {
        write(&mut client, stream, 0, &chunk(&[1; 60_000]));
    }
    let log = broker.log();
    log.set_retention("short", None, Some(millstream_base::ByteSize(200_000)))
        .unwrap();
    log.persist();
    assert!(log.apply_retention().unwrap() > 0);
    let response = read(&mut client, &[start_of(stream, 1)], 5000);
    let refused = &response.reads[0];
    assert_eq!(refused.error_code, ResponseError::OffsetOutOfRange.code());
    assert!(refused.next.group > GroupId(1));
    let response = read(&mut client, &[refused.next], 5000);
    assert_eq!(values(&response.reads[0]).len(), 1);
}
