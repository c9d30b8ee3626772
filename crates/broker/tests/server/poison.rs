//! Chunks with a right checksum that contradict themselves: stored, each would end all consumers of its partition.

use bytes::Bytes;
use millstream_base::crc32c;
use millstream_record::{ChunkBuilder, Compression};
use millstream_wire::ResponseError;

use crate::support::{Node, ask, chunk, produce_request, values};

/// The positions of the header's fields, and of the records of `chunk(&["a", "b"])`: 8 bytes each.
const LAST_OFFSET_DELTA: usize = 23;
const PRODUCER_ID: usize = 43;
const RECORD_COUNT: usize = 57;
const FIRST_RECORD: usize = 61;
const SECOND_RECORD: usize = 69;

// The positions of the fields of this record; numbers are zigzag varints.
const LENGTH: usize = 0;
const OFFSET_DELTA: usize = 3;
const KEY_LENGTH: usize = 4;
const VALUE_LENGTH: usize = 5;
const HEADER_COUNT: usize = 7;

/// Returns the chunk with other bytes in these places, and the matching checksum.
fn changed(chunk: &[u8], changes: &[(usize, &[u8])]) -> Bytes {
    let mut chunk = chunk.to_vec();
    for (at, bytes) in changes {
        chunk[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    let crc = crc32c(&chunk[21..]);
    chunk[17..21].copy_from_slice(&crc.to_be_bytes());
    Bytes::from(chunk)
}

/// Sends a chunk in Kafka's request, and to the log itself. Both refuse it, and the next chunk is
/// stored and read as if the first had never come.
#[track_caller]
fn assert_refused(chunk: &Bytes, reason: &str) {
    assert_refused_by(&Node::start(), chunk, reason);
}

#[track_caller]
fn assert_refused_by(node: &Node, chunk: &Bytes, reason: &str) {
    let mut client = node.connect();
    client.create_topic("t", 1);
    assert_eq!(client.produce("t", 0, &["before"]), 0);

    let produced = ask!(client, Produce, 9, produce_request("t", 0, chunk.clone()));
    let refused = &produced.responses[0].partition_responses[0];
    assert_eq!(
        refused.error_code,
        ResponseError::InvalidRecord.code(),
        "{refused:?}"
    );
    let message = refused.error_message.as_deref().unwrap_or_default();
    assert!(message.contains(reason), "{message}");
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    let error = partition.append_foreign(chunk).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");

    assert_eq!(client.produce("t", 0, &["behind"]), 1);
    let fetched = client.fetch("t", 0, 0);
    assert_eq!(fetched.high_watermark, 2);
    assert_eq!(values(&fetched), ["before", "behind"]);
}

fn two() -> Bytes {
    chunk(&["a", "b"])
}

#[test]
fn a_last_offset_far_behind_the_records_is_refused() {
    let far = i32::MAX.to_be_bytes();
    let chunk = changed(&two(), &[(LAST_OFFSET_DELTA, &far)]);
    assert_refused(&chunk, "lastOffsetDelta is 2147483647");
}

#[test]
fn a_record_count_below_that_of_the_offsets_is_refused() {
    let chunk = changed(&two(), &[(RECORD_COUNT, &1_u32.to_be_bytes())]);
    assert_refused(&chunk, "recordCount is 1, but lastOffsetDelta is 1");
}

#[test]
fn a_compressed_chunk_whose_header_contradicts_itself_is_refused() {
    let mut builder = ChunkBuilder::new(Compression::Zstd);
    let time = millstream_base::Timestamp(1);
    builder.push(time, None, Some(b"a"), &[]).unwrap();
    let whole = builder.finish(None).unwrap();
    let chunk = changed(whole, &[(LAST_OFFSET_DELTA, &5_u32.to_be_bytes())]);
    assert_refused(&chunk, "recordCount is 1, but lastOffsetDelta is 5");
}

#[test]
fn fewer_records_than_the_header_counts_are_refused() {
    let (delta, count) = (2_u32.to_be_bytes(), 3_u32.to_be_bytes());
    let chunk = changed(
        &two(),
        &[(LAST_OFFSET_DELTA, &delta), (RECORD_COUNT, &count)],
    );
    assert_refused(&chunk, "recordCount is 3, but 16 bytes");
}

#[test]
fn more_records_than_the_header_counts_are_refused() {
    let (delta, count) = (0_u32.to_be_bytes(), 1_u32.to_be_bytes());
    let chunk = changed(
        &two(),
        &[(LAST_OFFSET_DELTA, &delta), (RECORD_COUNT, &count)],
    );
    assert_refused(&chunk, "8 bytes follow the last of 1 records");
}

#[test]
fn offset_deltas_that_repeat_or_jump_are_refused() {
    // 0, 2 and -1.
    for delta in [0, 4, 1] {
        let chunk = changed(&two(), &[(SECOND_RECORD + OFFSET_DELTA, &[delta])]);
        assert_refused(&chunk, "record 1: offsetDelta");
    }
    let chunk = changed(&two(), &[(FIRST_RECORD + OFFSET_DELTA, &[2])]);
    assert_refused(&chunk, "record 1: offsetDelta");
}

#[test]
fn records_that_reach_beyond_the_chunk_are_refused() {
    for length in [0x7e, 1] {
        let chunk = changed(&two(), &[(SECOND_RECORD + LENGTH, &[length])]);
        assert_refused(&chunk, "record 1: length");
    }
}

#[test]
fn fields_that_reach_beyond_their_record_are_refused() {
    let second = |field, byte: u8| changed(&two(), &[(SECOND_RECORD + field, &[byte])]);
    assert_refused(&second(KEY_LENGTH, 0x7e), "record 1: keyLength");
    // Below -1, which is null.
    assert_refused(&second(VALUE_LENGTH, 3), "record 1: valueLength");
    assert_refused(&second(HEADER_COUNT, 0x7e), "record 1: headerCount");
}

#[test]
fn unterminated_varints_are_refused() {
    let chunk = changed(&two(), &[(SECOND_RECORD, &[0xff; 8])]);
    assert_refused(&chunk, "record 1: length");
}

#[test]
fn negative_producers_are_refused() {
    let chunk = changed(&two(), &[(PRODUCER_ID, &(-2_i64).to_be_bytes())]);
    assert_refused(&chunk, "producer");
}

#[test]
fn compressed_records_that_contradict_the_header_are_refused_where_they_are_checked() {
    let mut builder = ChunkBuilder::new(Compression::Zstd);
    let time = millstream_base::Timestamp(1);
    builder.push(time, None, Some(b"a"), &[]).unwrap();
    let whole = builder.finish(None).unwrap();
    let (delta, count) = (1_u32.to_be_bytes(), 2_u32.to_be_bytes());
    let two = [(LAST_OFFSET_DELTA, &delta[..]), (RECORD_COUNT, &count[..])];
    let lying = changed(whole, &two);
    let mut garbage = whole.to_vec();
    garbage[FIRST_RECORD] ^= 0xff;
    let garbage = changed(&garbage, &[]);
    let node = || {
        let dir = tempfile::tempdir().unwrap();
        Node::with_log(dir, |config| config.check_compressed = true)
    };
    assert_refused_by(&node(), &lying, "recordCount is 2");
    assert_refused_by(&node(), &garbage, "cannot be decompressed");
    let checked = node();
    let mut client = checked.connect();
    client.create_topic("t", 1);
    let good = Bytes::copy_from_slice(whole);
    let produced = ask!(client, Produce, 9, produce_request("t", 0, good));
    assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
    assert_eq!(values(&client.fetch("t", 0, 0)), ["a"]);
}
