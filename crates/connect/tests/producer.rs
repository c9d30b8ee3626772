//! Records that a stream refuses: a producer drops them, and no others.

use millstream_base::{ByteSize, ProducerId, Timestamp};
use millstream_connect::StreamProducer;
use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, LogError, Stream, StreamConfig};
use tempfile::{TempDir, tempdir};

fn open() -> (TempDir, Log, Stream) {
    let dir = tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    (dir, log, stream)
}

fn compact(config: &mut StreamConfig) {
    let policy = (CLEANUP_POLICY.to_owned(), COMPACT.to_owned());
    config.settings.extend([policy]);
}

#[test]
fn a_producer_to_a_compacted_stream_drops_only_the_record_without_a_key() {
    let (_dir, log, stream) = open();
    log.alter_stream(stream.name(), compact).unwrap();
    let mut producer = StreamProducer::new(&stream, ProducerId(5)).unwrap();
    for key in [Some(&b"ada"[..]), None, Some(b"bob")] {
        let result = producer.push(Timestamp(0), key, Some(b"1"), &[]);
        match key {
            Some(_) => result.unwrap(),
            None => assert!(matches!(result, Err(LogError::NoKey { .. })), "{result:?}"),
        }
    }
    producer.flush().unwrap();
    assert_eq!(producer.totals().durable_records, 2);
}

#[test]
fn a_producer_does_not_resend_records_that_a_changed_policy_refuses() {
    let (_dir, log, stream) = open();
    let mut producer = StreamProducer::new(&stream, ProducerId(5)).unwrap();
    producer.push(Timestamp(0), None, Some(b"1"), &[]).unwrap();
    log.alter_stream(stream.name(), compact).unwrap();
    let refused = producer.flush().unwrap_err();
    assert!(matches!(refused, LogError::NoKey { .. }), "{refused}");
    producer
        .push(Timestamp(0), Some(b"ada"), Some(b"1"), &[])
        .unwrap();
    producer.flush().unwrap();
    assert_eq!(producer.totals().durable_records, 1);
}

#[test]
fn a_producer_keeps_its_chunks_within_the_streams_maximum() {
    let (_dir, log, stream) = open();
    let set = |config: &mut StreamConfig| config.chunk_bytes_max = Some(ByteSize(1000));
    log.alter_stream(stream.name(), set).unwrap();
    let mut producer = StreamProducer::new(&stream, ProducerId(5)).unwrap();
    for number in 0..1000_u32 {
        let value = vec![7; number as usize % 300];
        producer
            .push(Timestamp(0), None, Some(&value), &[])
            .unwrap();
    }
    producer.flush().unwrap();
    assert_eq!(producer.totals().durable_records, 1000);
}
