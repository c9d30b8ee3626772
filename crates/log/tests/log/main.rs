//! The log as its users see it, on a real disk.

mod keyed;
mod memory;
mod objects;
mod readers;
mod resources;
mod restarts;
mod streams;

use millstream_base::{
    ByteSize, Offset, ProducerEpoch, ProducerId, Sequence, StreamletIndex, Timestamp,
};
use millstream_log::{LogConfig, ReadStart, Stream, StreamPartition};
use millstream_record::{ChunkBuilder, Compression, Decompressor, Producer};

const S0: StreamletIndex = StreamletIndex(0);

fn config(dir: &std::path::Path) -> LogConfig {
    LogConfig {
        journal: ByteSize(4 << 20),
        journal_file: ByteSize(1 << 20),
        ..LogConfig::with_pool(dir, ByteSize(4 << 20))
    }
}

fn chunk(values: &[&str], producer: Option<(i64, i32)>) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Compression::None);
    for value in values {
        builder
            .push(Timestamp(1000), None, Some(value.as_bytes()), &[])
            .unwrap();
    }
    let producer = producer.map(|(id, sequence)| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(0),
        sequence: Sequence(sequence),
    });
    builder.finish(producer).unwrap().to_vec()
}

fn append(stream: &Stream, chunk: &[u8]) -> (StreamPartition, Offset) {
    let (lane, appended) = stream.append(S0, chunk).unwrap();
    lane.acknowledge(&appended).unwrap();
    (lane, appended.base_offset)
}

/// All values of a stream, lane by lane as they come.
fn values(stream: &Stream) -> Vec<String> {
    let mut reader = stream.reader(ReadStart::Earliest);
    let mut decompressor = Decompressor::default();
    let mut values = Vec::new();
    while let Some(chunks) = reader.read(100_000).unwrap() {
        for chunk in chunks.chunks() {
            for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                let value = record.unwrap().value.unwrap();
                values.push(String::from_utf8(value.to_vec()).unwrap());
            }
        }
    }
    values
}
