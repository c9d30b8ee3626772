//! The records of transactions in the log, byte for byte.
//!
//! [`Writer`] defines the encoding of numbers and texts; `?` marks an optional field.
//!
//! ```text
//! kind  key       value
//! 1               the first producer id that is not reserved: i64
//! 2     id: text  transactional id: producer, last ?producer, timeout, updated timestamp, phase
//!
//! timeout         duration; the largest one for none
//! producer        id i64, epoch i16; neither is negative
//! phase           u8, and the fields of that phase:
//!                 0 empty
//!                 1 ongoing: started timestamp, participants
//!                 2 ending:  started timestamp, participants, end, next producer's id ?i64
//!                 3 ended:   started timestamp, end
//! end             outcome u8 (0 aborted, 1 committed), whether it bumps the epoch u8 (0 no, 1 yes)
//! participants    u32 topics: each name text, u32 partitions: each i32; u32 groups: each name text
//! ```

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use millstream_base::{ProducerEpoch, ProducerId};

use super::participants::Participants;
use super::transaction::{End, Phase, Transaction};
use super::{Outcome, Producer, TopicPartition, TransactionalId};
use crate::groups::{Partition, TopicName};
use crate::ledger::{Reader, Record, RecordError, Writer};

const PRODUCER_IDS: u8 = 1;
const TRANSACTION: u8 = 2;

/// How a transaction without a timeout is written.
const NO_TIMEOUT: Duration = Duration::from_millis(u64::MAX);

const EMPTY: u8 = 0;
const ONGOING: u8 = 1;
const ENDING: u8 = 2;
const ENDED: u8 = 3;

/// The key of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    ProducerIds,
    Transaction(TransactionalId),
}

/// The value of a record; of the variant with the name of its key's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    ProducerIds(ProducerId),
    Transaction(Transaction),
}

/// A record of the first producer id that is not reserved.
pub(super) fn producer_ids(reserved_end: ProducerId) -> Record {
    Record {
        key: Key::ProducerIds.encode(),
        value: Some(Writer::value().i64(reserved_end.0).done()),
    }
}

/// A record of a transactional id.
pub(super) fn transaction(id: &TransactionalId, transaction: &Transaction) -> Record {
    let mut writer = Writer::value();
    transaction.write(&mut writer);
    Record {
        value: Some(writer.done()),
        ..tombstone(id)
    }
}

/// A record that removes a transactional id.
pub(super) fn tombstone(id: &TransactionalId) -> Record {
    Record {
        key: Key::Transaction(id.clone()).encode(),
        value: None,
    }
}

/// Decodes a record into its key and its value.
pub(super) fn decode(record: Record) -> Result<(Key, Option<Value>), RecordError> {
    let key = Key::decode(record.key)?;
    let value = record.value.map(|value| Value::decode(&key, value));
    Ok((key, value.transpose()?))
}

impl Key {
    fn encode(&self) -> Bytes {
        match self {
            Key::ProducerIds => Writer::key(PRODUCER_IDS).done(),
            Key::Transaction(id) => Writer::key(TRANSACTION).text(id).done(),
        }
    }

    fn decode(bytes: Bytes) -> Result<Key, RecordError> {
        Reader::key(bytes, |reader| match reader.u8("kind")? {
            PRODUCER_IDS => Ok(Key::ProducerIds),
            TRANSACTION => Ok(Key::Transaction(reader.text("transactional id")?)),
            kind => Err(RecordError::unknown("kind", kind)),
        })
    }
}

impl Value {
    fn decode(key: &Key, bytes: Bytes) -> Result<Value, RecordError> {
        Reader::value(bytes, |reader| match key {
            Key::ProducerIds => Ok(Value::ProducerIds(read_id(reader, "producer ids")?)),
            Key::Transaction(_) => Ok(Value::Transaction(Transaction::read(reader)?)),
        })
    }
}

impl Transaction {
    fn write(&self, writer: &mut Writer) {
        write_producer(writer, &self.producer);
        writer
            .option(&self.last, write_producer)
            .duration(self.timeout.unwrap_or(NO_TIMEOUT))
            .timestamp(self.updated);
        match &self.phase {
            Phase::Empty => {
                writer.u8(EMPTY);
            }
            Phase::Ongoing {
                started,
                participants,
            } => {
                writer.u8(ONGOING).timestamp(*started);
                participants.write(writer);
            }
            Phase::Ending {
                started,
                participants,
                end,
                next,
            } => {
                writer.u8(ENDING).timestamp(*started);
                participants.write(writer);
                end.write(writer);
                writer.option(next, |writer, id| writer.i64(id.0));
            }
            Phase::Ended { started, end } => {
                writer.u8(ENDED).timestamp(*started);
                end.write(writer);
            }
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(Transaction {
            producer: read_producer(reader, "producer")?,
            last: reader.option("last", read_producer)?,
            timeout: Some(reader.duration("timeout")?).filter(|timeout| *timeout < NO_TIMEOUT),
            updated: reader.timestamp("updated")?,
            phase: Phase::read(reader)?,
        })
    }
}

impl Phase {
    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        let phase = reader.u8("phase")?;
        if phase == EMPTY {
            return Ok(Phase::Empty);
        }
        let started = reader.timestamp("started")?;
        match phase {
            ONGOING => Ok(Phase::Ongoing {
                started,
                participants: Participants::read(reader)?,
            }),
            ENDING => Ok(Phase::Ending {
                started,
                participants: Participants::read(reader)?,
                end: End::read(reader)?,
                next: reader.option("next", read_id)?,
            }),
            ENDED => Ok(Phase::Ended {
                started,
                end: End::read(reader)?,
            }),
            _ => Err(RecordError::unknown("phase", phase)),
        }
    }
}

impl End {
    fn write(&self, writer: &mut Writer) {
        let is_committed = self.outcome == Outcome::Committed;
        writer.u8(is_committed.into()).u8(self.bumps_epoch.into());
    }

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(End {
            outcome: match reader.bool("outcome")? {
                true => Outcome::Committed,
                false => Outcome::Aborted,
            },
            bumps_epoch: reader.bool("bumps epoch")?,
        })
    }
}

impl Participants {
    fn write(&self, writer: &mut Writer) {
        writer.count(self.topics().len());
        for (topic, partitions) in self.topics() {
            writer.text(topic).count(partitions.len());
            for partition in partitions {
                writer.i32(partition.0);
            }
        }
        writer.count(self.groups().len());
        for group in self.groups() {
            writer.text(group);
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        let mut participants = Participants::default();
        for _ in 0..reader.count("topics")? {
            let topic: TopicName = reader.text("topic")?;
            for _ in 0..reader.count("partitions")? {
                participants.add_partition(TopicPartition {
                    topic: topic.clone(),
                    partition: Partition(reader.i32("partition")?),
                });
            }
        }
        for _ in 0..reader.count("groups")? {
            participants.add_group(reader.text("group")?);
        }
        Ok(participants)
    }
}

fn write_producer<'w>(writer: &'w mut Writer, producer: &Producer) -> &'w mut Writer {
    writer.i64(producer.id.0).i16(producer.epoch.0)
}

fn read_producer(reader: &mut Reader, field: &'static str) -> Result<Producer, RecordError> {
    let id = read_id(reader, field)?;
    match reader.i16(field)? {
        epoch @ 0.. => Ok(Producer {
            id,
            epoch: ProducerEpoch(epoch),
        }),
        epoch => Err(RecordError::unknown(field, epoch)),
    }
}

fn read_id(reader: &mut Reader, field: &'static str) -> Result<ProducerId, RecordError> {
    match reader.i64(field)? {
        id @ 0.. => Ok(ProducerId(id)),
        id => Err(RecordError::unknown(field, id)),
    }
}
