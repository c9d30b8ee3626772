//! Chunks: written to streamlets.

use bytes::Bytes;
use millstream_base::{
    ByteSize, LaneIndex, Offset, ProducerEpoch, ProducerId, Sequence, StreamId, StreamletIndex,
    Timestamp,
};
use millstream_record::{ChunkBuilder, Compression, Producer};
use millstream_wire::ResponseError;
use millstream_wire::native::{
    ChunkToWrite, Durability, StreamSettings, WriteChunksRequest, WrittenChunk,
};

use crate::client::{Broker, Client, answer, ask, chunk, creation, settings};

/// Returns a request for these chunks, each with its streamlet.
pub fn writing(stream: StreamId, chunks: &[(u32, &Bytes)]) -> WriteChunksRequest {
    let chunks = chunks.iter().map(|(streamlet, chunk)| ChunkToWrite {
        streamlet: StreamletIndex(*streamlet),
        chunk: (*chunk).clone(),
    });
    WriteChunksRequest {
        stream,
        chunks: chunks.collect(),
    }
}

/// Writes one chunk. Returns an error of the whole request as if it were the chunk's.
pub fn write(client: &mut Client, stream: StreamId, streamlet: u32, chunk: &Bytes) -> WrittenChunk {
    let mut response = ask!(client, WriteChunks, writing(stream, &[(streamlet, chunk)]));
    match response.chunks.pop() {
        Some(written) => written,
        None => WrittenChunk {
            error_code: response.error_code,
            error_message: response.error_message,
            lane: LaneIndex(0),
            base_offset: Offset(0),
            next_offset: Offset(0),
            is_duplicate: false,
        },
    }
}

fn of_producer(id: i64, epoch: i16, sequence: i32) -> Bytes {
    let producer = Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        sequence: Sequence(sequence),
    };
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.push(Timestamp(1), None, Some(b"x"), &[]).unwrap();
    Bytes::copy_from_slice(builder.finish(Some(producer)).unwrap())
}

#[test]
fn chunks_of_a_request_reach_their_streamlets_and_are_durable_before_the_answer() {
    let mut broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("written", 2, 1);
    let chunk = chunk(b"x");
    let request = writing(stream, &[(0, &chunk), (1, &chunk), (0, &chunk)]);
    let response = ask!(client, WriteChunks, request);
    let offsets = response.chunks.iter().map(|written| {
        assert_eq!((written.error_code, written.is_duplicate), (0, false));
        (written.base_offset.0, written.next_offset.0)
    });
    assert_eq!(offsets.collect::<Vec<_>>(), [(0, 1), (0, 1), (1, 2)]);
    let durable_offsets = |broker: &Broker| {
        let info = broker.log().stream("written").unwrap().info();
        let durable = info.partitions.iter().map(|partition| partition.durable.0);
        durable.collect::<Vec<_>>()
    };
    assert_eq!(durable_offsets(&broker), [2, 1]);
    broker.restart();
    assert_eq!(durable_offsets(&broker), [2, 1]);
}

#[test]
fn requests_of_a_connection_are_appended_in_their_order() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("ordered", 1, 1);
    for _ in 0..200 {
        client.send(writing(stream, &[(0, &chunk(b"x"))]));
    }
    for expected in 0..200 {
        let response = answer!(client, WriteChunks);
        assert_eq!(response.chunks[0].base_offset, Offset(expected));
    }
}

#[test]
fn a_producer_stays_in_its_partition_and_has_each_chunk_stored_once() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("once", 1, 4);
    let first = write(&mut client, stream, 0, &of_producer(7, 1, 0));
    let second = write(&mut client, stream, 0, &of_producer(7, 1, 1));
    assert_eq!(second.lane, first.lane);
    assert_eq!(second.base_offset, Offset(1));
    let again = write(&mut client, stream, 0, &of_producer(7, 1, 1));
    assert_eq!((again.is_duplicate, again.base_offset), (true, Offset(1)));
    assert_eq!(again.next_offset, Offset(2));

    let gap = write(&mut client, stream, 0, &of_producer(7, 1, 9));
    let out_of_order = ResponseError::OutOfOrderSequenceNumber.code();
    assert_eq!(gap.error_code, out_of_order);
    let fenced = write(&mut client, stream, 0, &of_producer(7, 0, 2));
    assert_eq!(
        fenced.error_code,
        ResponseError::InvalidProducerEpoch.code()
    );
}

#[test]
fn a_refused_chunk_does_not_affect_other_chunks_of_the_request() {
    let broker = Broker::start();
    let mut client = broker.client();
    let small = StreamSettings {
        chunk_bytes_max: Some(ByteSize(200)),
        ..settings(1, 1)
    };
    let stream = ask!(client, CreateStream, creation("strict", small)).stream;
    let good = chunk(b"x");
    let mut damaged = good.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = Bytes::from(damaged);
    let mut transactional = ChunkBuilder::new(Compression::None);
    transactional.set_transactional(true);
    transactional
        .push(Timestamp(1), None, Some(b"x"), &[])
        .unwrap();
    let producer = Producer {
        id: ProducerId(1),
        epoch: ProducerEpoch(0),
        sequence: Sequence(0),
    };
    let transactional = Bytes::copy_from_slice(transactional.finish(Some(producer)).unwrap());
    let refused = [
        (0, damaged, ResponseError::CorruptMessage),
        (0, Bytes::new(), ResponseError::InvalidRecord),
        (
            0,
            Bytes::from_static(b"no chunk"),
            ResponseError::InvalidRecord,
        ),
        (0, chunk(&[1; 500]), ResponseError::MessageTooLarge),
        (0, transactional, ResponseError::InvalidTxnState),
        (9, good.clone(), ResponseError::UnknownTopicOrPartition),
    ];
    let mut chunks: Vec<(u32, &Bytes)> = vec![(0, &good)];
    chunks.extend(
        refused
            .iter()
            .map(|(streamlet, chunk, _)| (*streamlet, chunk)),
    );
    chunks.push((0, &good));
    let response = ask!(client, WriteChunks, writing(stream, &chunks));
    assert_eq!((response.error_code, response.chunks.len()), (0, 8));
    for ((_, _, error), written) in refused.iter().zip(&response.chunks[1..]) {
        assert_eq!(written.error_code, error.code(), "{written:?}");
        assert!(written.error_message.is_some());
    }
    let (first, last) = (&response.chunks[0], &response.chunks[7]);
    assert_eq!((first.error_code, first.base_offset), (0, Offset(0)));
    assert_eq!((last.error_code, last.base_offset), (0, Offset(1)));
}

#[test]
fn a_record_without_a_key_is_refused_in_a_compacted_stream() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("table", 1, 1);
    let policy = ("cleanup.policy".to_owned(), "compact".to_owned());
    broker
        .log()
        .alter_stream("table", |config| config.settings.extend([policy]))
        .unwrap();
    let mut builder = ChunkBuilder::new(Compression::Gzip);
    for key in [Some(&b"key"[..]), None] {
        builder.push(Timestamp(1), key, Some(b"x"), &[]).unwrap();
    }
    let chunk = Bytes::copy_from_slice(builder.finish(None).unwrap());
    let refused = write(&mut client, stream, 0, &chunk);
    assert_eq!(refused.error_code, ResponseError::InvalidRecord.code());
    let message = refused.error_message.as_deref().unwrap();
    assert!(
        message.starts_with("record 1 of the chunk is refused"),
        "{message}"
    );
    assert!(message.contains("stream table"), "{message}");
}

#[test]
fn a_write_to_an_unknown_stream_or_with_too_many_chunks_is_refused() {
    let broker = Broker::start();
    let mut client = broker.client();
    let request = writing(StreamId(999), &[(0, &chunk(b"x"))]);
    let response = ask!(client, WriteChunks, request);
    assert_eq!(response.error_code, ResponseError::UnknownTopicId.code());
    assert!(response.chunks.is_empty());

    let stream = client.create("many", 1, 1);
    let nothing = Bytes::new();
    let request = writing(stream, &vec![(0, &nothing); (1 << 16) + 1]);
    let response = ask!(client, WriteChunks, request);
    assert_eq!(response.error_code, ResponseError::InvalidRequest.code());
    assert!(response.chunks.is_empty());
}

#[test]
fn writes_to_an_in_memory_stream_do_not_use_the_journal() {
    let broker = Broker::start();
    let mut client = broker.client();
    let memory = StreamSettings {
        durability: Durability::Memory,
        ..settings(1, 1)
    };
    let stream = ask!(client, CreateStream, creation("in-memory", memory)).stream;
    let blocks = broker.log().stats().journal_blocks;
    for _ in 0..10 {
        assert_eq!(write(&mut client, stream, 0, &chunk(b"x")).error_code, 0);
    }
    assert_eq!(broker.log().stats().journal_blocks, blocks);
}

/// If it were stored, it would end each reader of its partition.
#[test]
fn a_chunk_whose_header_contradicts_itself_is_refused() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("written", 1, 1);
    let mut lying = chunk(b"x").to_vec();
    // The last offset's delta.
    lying[23..27].copy_from_slice(&i32::MAX.to_be_bytes());
    let crc = millstream_base::crc32c(&lying[21..]);
    lying[17..21].copy_from_slice(&crc.to_be_bytes());
    let refused = write(&mut client, stream, 0, &Bytes::from(lying));
    assert_eq!(refused.error_code, ResponseError::InvalidRecord.code());
    let written = write(&mut client, stream, 0, &chunk(b"x"));
    assert_eq!((written.error_code, written.base_offset.0), (0, 0));
}
