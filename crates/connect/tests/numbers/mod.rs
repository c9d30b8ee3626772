//! Streams of numbers.

use millstream_base::{ProducerId, StreamletIndex, Timestamp};
use millstream_connect::StreamProducer;
use millstream_log::Stream;

/// Appends numbers to a streamlet.
pub fn produce(stream: &Stream, streamlet: u32, numbers: std::ops::Range<u64>) {
    let streamlet = StreamletIndex(streamlet);
    let mut producer = StreamProducer::for_streamlet(stream, streamlet, ProducerId::NONE).unwrap();
    for number in numbers {
        let value = number.to_le_bytes();
        producer
            .push(Timestamp(0), None, Some(&value), &[])
            .unwrap();
    }
    producer.flush().unwrap();
}
