//! The values of groups of Kafka Streams. A list follows its length, a u32.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::groups::streams::StreamsMember;
use crate::groups::{Copartition, Endpoint, InternalTopic, Subtopology, Topology};
use crate::ledger::{Reader, RecordError, Writer};

type Result<T> = std::result::Result<T, RecordError>;

impl Topology {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.i32(self.epoch).count(self.subtopologies.len());
        for (id, part) in &self.subtopologies {
            writer.text(id);
            list(writer, &part.sources, |writer, name| _ = writer.text(name));
            list(writer, &part.source_regexes, |writer, text| {
                _ = writer.text(text)
            });
            list(writer, &part.changelogs, write_topic);
            list(writer, &part.repartition_sinks, |writer, name| {
                _ = writer.text(name)
            });
            list(writer, &part.repartition_sources, write_topic);
            list(writer, &part.copartitions, |writer, group| {
                let places = [
                    &group.sources,
                    &group.source_regexes,
                    &group.repartition_sources,
                ];
                for places in places {
                    list(writer, places, |writer, place| _ = writer.i16(*place));
                }
            });
        }
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self> {
        let epoch = reader.i32("epoch of the topology")?;
        let mut subtopologies = BTreeMap::new();
        for _ in 0..reader.count("subtopologies")? {
            let id = reader.text("subtopology")?;
            let part = Subtopology {
                sources: read_list(reader, |reader| reader.text("source"))?,
                source_regexes: read_list(reader, |reader| reader.text("regex"))?,
                changelogs: read_list(reader, read_topic)?,
                repartition_sinks: read_list(reader, |reader| reader.text("sink"))?,
                repartition_sources: read_list(reader, read_topic)?,
                copartitions: read_list(reader, |reader| {
                    Ok(Copartition {
                        sources: read_list(reader, |reader| reader.i16("place"))?,
                        source_regexes: read_list(reader, |reader| reader.i16("place"))?,
                        repartition_sources: read_list(reader, |reader| reader.i16("place"))?,
                    })
                })?,
            };
            subtopologies.insert(id, part);
        }
        Ok(Topology {
            epoch,
            subtopologies,
        })
    }
}

impl StreamsMember {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer
            .i32(self.topology_epoch)
            .text(&self.process)
            .option(&self.endpoint, |writer, endpoint| {
                writer.text(&endpoint.host).u32(endpoint.port.into())
            });
        list(writer, &self.tags, write_pair);
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self> {
        Ok(StreamsMember {
            topology_epoch: reader.i32("epoch of the topology")?,
            process: reader.text("process")?,
            endpoint: reader.option("endpoint", |reader, _| {
                let host = reader.text("host")?;
                let port = reader.u32("port")? as u16;
                Ok(Endpoint { host, port })
            })?,
            tags: read_list(reader, read_pair)?,
        })
    }
}

fn list<T>(writer: &mut Writer, all: &[T], write: impl Fn(&mut Writer, &T)) {
    writer.count(all.len());
    all.iter().for_each(|one| write(writer, one));
}

fn read_list<T>(reader: &mut Reader, read: impl Fn(&mut Reader) -> Result<T>) -> Result<Vec<T>> {
    let count = reader.count("list")?;
    (0..count).map(|_| read(reader)).collect()
}

fn write_topic(writer: &mut Writer, topic: &InternalTopic) {
    writer
        .text(&topic.name)
        .i32(topic.partitions)
        .i16(topic.replication_factor);
    list(writer, &topic.settings, write_pair);
}

fn read_topic(reader: &mut Reader) -> Result<InternalTopic> {
    Ok(InternalTopic {
        name: reader.text("topic")?,
        partitions: reader.i32("partitions")?,
        replication_factor: reader.i16("replication factor")?,
        settings: read_list(reader, read_pair)?,
    })
}

fn write_pair(writer: &mut Writer, (key, value): &(Arc<str>, Arc<str>)) {
    writer.text(key).text(value);
}

fn read_pair(reader: &mut Reader) -> Result<(Arc<str>, Arc<str>)> {
    Ok((reader.text("key")?, reader.text("value")?))
}
