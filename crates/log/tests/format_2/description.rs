//! All that a log holds, as text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;

use millstream_base::{Offset, ProducerId, StreamletIndex, crc32c};
use millstream_log::{Log, StreamPartition};
use millstream_record::{Chunk, Decompressor, Record};

use crate::make::SHARED_GROUP;

const BYTES_MAX: usize = 100_000;

/// Calls `each` with the chunks of a partition.
fn for_each_chunk(partition: &StreamPartition, mut each: impl FnMut(&Chunk<'_>)) {
    let mut reader = partition.reader(partition.earliest());
    while let Some(chunks) = reader.read(BYTES_MAX).unwrap() {
        for chunk in chunks.chunks() {
            each(&chunk.unwrap());
        }
    }
}

/// Describes the streams, partitions, chunks, records, aborted transactions, producers, committed positions and objects.
pub fn describe(log: &Log) -> String {
    let mut text = String::new();
    let out = &mut text;
    for name in log.stream_names() {
        let stream = log.stream(&name).unwrap();
        let (id, uuid, config) = (stream.id(), stream.uuid(), stream.config());
        let durability = config.durability.name();
        writeln!(out, "stream {name} {id} {uuid} {durability}").unwrap();
        for partition in 0..stream.partition_count() {
            describe_partition(&stream.partition(partition).unwrap(), out);
        }
        let shared_group = log.shared_group(&name, SHARED_GROUP).unwrap();
        for streamlet in 0..config.streamlets {
            let streamlet = StreamletIndex(streamlet);
            for cursor in shared_group.next_groups(streamlet, "one", 100).unwrap() {
                let (group, position) = (cursor.group, cursor.position);
                writeln!(out, "to be read: {streamlet}/{group} from {position}").unwrap();
            }
        }
        shared_group.release("one");
    }
    for object in log.objects("").unwrap() {
        let mut content = Vec::new();
        let mut reader = log.get_object(&object.name, None).unwrap();
        reader.read_to_end(&mut content).unwrap();
        let (crc, time) = (crc32c(&content), object.created.0);
        let (name, bytes) = (object.name, content.len());
        writeln!(out, "object {name} {bytes} {crc:08x} made {time}").unwrap();
    }
    text
}

fn describe_partition(partition: &StreamPartition, out: &mut String) {
    let info = partition.info();
    writeln!(
        out,
        "partition {} ({}/{}): {} to {}, stable {}, groups {}, bytes {}",
        info.partition,
        info.streamlet,
        info.lane,
        info.earliest,
        info.durable,
        partition.last_stable_offset(),
        info.groups,
        info.bytes
    )
    .unwrap();
    assert_eq!((info.fault, info.truncated_bytes), (None, 0));
    let mut decompressor = Decompressor::default();
    for_each_chunk(partition, |chunk| {
        let header = chunk.header();
        let at = match header.base_offset < info.earliest {
            true => String::new(),
            false => {
                let cursor = partition.seek_offset(header.base_offset).unwrap();
                format!(" at {}/{}", cursor.group, cursor.position)
            }
        };
        let (offset, crc) = (header.base_offset, header.crc);
        writeln!(out, "chunk {offset}{at} {crc:08x}").unwrap();
        for record in chunk.records(&mut decompressor).unwrap() {
            describe_record(&record.unwrap(), out);
        }
    });
    let end = partition.high_watermark();
    for aborted in partition.aborted_transactions(Offset(0), end).unwrap() {
        let (first, last) = (aborted.first_offset, aborted.last_offset);
        writeln!(out, "aborted {}: {first} to {last}", aborted.producer).unwrap();
    }
    for producer in partition.producers() {
        let transaction = producer.transaction;
        writeln!(
            out,
            "producer {}: epoch {}, sequence {:?}, at {}, coordinator {:?}, transaction {:?}",
            producer.producer,
            producer.epoch,
            producer.last_sequence.map(|sequence| sequence.0),
            producer.last_timestamp.0,
            producer.coordinator_epoch,
            transaction.map(|open| (open.first_offset.0, open.started.0)),
        )
        .unwrap();
    }
}

fn describe_record(record: &Record<'_>, out: &mut String) {
    let bytes = |bytes: Option<&[u8]>| match bytes {
        Some(bytes) => format!("{} bytes {:08x}", bytes.len(), crc32c(bytes)),
        None => "none".to_owned(),
    };
    let (offset, time) = (record.offset, record.timestamp.0);
    let (key, value) = (bytes(record.key), bytes(record.value));
    write!(out, "record {offset} at {time}: key {key}, value {value}").unwrap();
    for header in record.headers() {
        let name = String::from_utf8_lossy(header.name);
        write!(out, ", {name}: {}", bytes(header.value)).unwrap();
    }
    out.push('\n');
}

/// Sends the last chunk of each producer again, and returns their number: the partition knows that it has them.
pub fn resend_last_chunks(log: &Log) -> usize {
    let mut count = 0;
    for name in log.stream_names() {
        let stream = log.stream(&name).unwrap();
        for partition in 0..stream.partition_count() {
            let partition = stream.partition(partition).unwrap();
            let mut last = BTreeMap::new();
            for_each_chunk(&partition, |chunk| {
                let header = chunk.header();
                if header.producer_id != ProducerId::NONE && !header.attributes.is_control() {
                    let sent = (header.base_offset, chunk.bytes().to_vec());
                    last.insert(header.producer_id, sent);
                }
            });
            // A marker of a later epoch has fenced off this one.
            last.remove(&crate::make::FENCED);
            for (offset, chunk) in last.into_values() {
                let appended = partition.append(&chunk).unwrap();
                assert!(appended.duplicate && appended.base_offset == offset);
                count += 1;
            }
        }
    }
    count
}
