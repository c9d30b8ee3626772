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
fn a_record_without_a_key_for_a_compacted_stream_is_dropped_alone() {
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
fn records_that_a_stream_refuses_since_its_policy_changed_do_not_come_again() {
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
fn records_fit_the_chunks_that_their_stream_takes() {
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
