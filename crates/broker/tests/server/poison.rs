//! Chunks with a right checksum that contradict themselves: stored, each would end all consumers of its partition.

use bytes::Bytes;
use millstream_base::{ByteSize, Offset, crc32c};
use millstream_log::LogConfig;
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
    let node = Node::start();
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
    let chunk = changed(
        &compressed(b"a"),
        &[(LAST_OFFSET_DELTA, &5_u32.to_be_bytes())],
    );
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

/// Returns a compressed chunk of one record.
fn compressed(value: &[u8]) -> Bytes {
    let mut builder = ChunkBuilder::new(Compression::Zstd);
    let time = millstream_base::Timestamp(1);
    builder.push(time, None, Some(value), &[]).unwrap();
    Bytes::copy_from_slice(builder.finish(None).unwrap())
}

/// Returns a compressed chunk of one record whose header counts two.
fn lying() -> Bytes {
    let (delta, count) = (1_u32.to_be_bytes(), 2_u32.to_be_bytes());
    let two = [(LAST_OFFSET_DELTA, &delta[..]), (RECORD_COUNT, &count[..])];
    changed(&compressed(b"a"), &two)
}

/// Returns the error of a chunk.
fn produced(node: &Node, chunk: Bytes) -> i16 {
    let request = produce_request("t", 0, chunk);
    let produced = ask!(node.connect(), Produce, 9, request);
    produced.responses[0].partition_responses[0].error_code
}

#[test]
fn compressed_records_that_contradict_the_header_are_refused() {
    assert_refused(&lying(), "recordCount is 2");
    let mut garbage = compressed(b"a").to_vec();
    garbage[FIRST_RECORD] ^= 0xff;
    let garbage = changed(&garbage, &[]);
    assert_refused(&garbage, "cannot be decompressed");
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    assert_eq!(produced(&node, compressed(b"a")), 0);
    assert_eq!(values(&client.fetch("t", 0, 0)), ["a"]);
}

#[test]
fn compressed_records_that_are_too_large_to_be_checked_are_refused() {
    // Large enough for 6 MiB.
    let small_budget = |config: &mut LogConfig| config.decompression = ByteSize(64 << 20);
    let node = Node::with_log(tempfile::tempdir().unwrap(), small_budget);
    node.connect().create_topic("t", 1);
    assert_eq!(produced(&node, compressed(&vec![0; 5 << 20])), 0);
    let too_large = ResponseError::MessageTooLarge.code();
    assert_eq!(produced(&node, compressed(&vec![0; 8 << 20])), too_large);
}

#[test]
fn compressed_records_are_stored_unread_where_the_check_is_off() {
    let off = |config: &mut LogConfig| {
        config.check_compressed = false;
        config.decompression = ByteSize(64 << 20);
    };
    let node = Node::with_log(tempfile::tempdir().unwrap(), off);
    node.connect().create_topic("t", 1);
    assert_eq!(produced(&node, compressed(&vec![0; 8 << 20])), 0);
    assert_eq!(produced(&node, lying()), 0);
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    assert_eq!(partition.next_offset(), Offset(3));
}
