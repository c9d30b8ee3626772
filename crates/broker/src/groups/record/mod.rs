//! The records of groups in the log, byte for byte.
//!
//! [`Writer`] defines the encoding of numbers and texts; `?` marks an optional field.
//!
//! ```text
//! kind  key                                  value
//! 1     group: text                          classic group: generation i32, protocol type ?text,
//!                                            protocol ?text, leader ?text, state since timestamp
//! 2     group: text, member: text            member of a classic group: generation i32, instance ?text,
//!                                            client text, host text, rebalance timeout duration,
//!                                            session timeout duration, metadata bytes, assignment bytes
//! 3     group: text, topic: text,            offset: offset u64, leader epoch ?i32, metadata text,
//!       partition i32                        committed timestamp, expires ?timestamp, order u64,
//!                                            id of the topic (16 bytes; not in older ones)
//! 4     group: text, producer i64,           offset of an open transaction: as 3
//!       topic: text, partition i32
//! 5     group: text                          group of KIP-848: epoch i32, target epoch i32,
//!                                            hash of the topics u64
//! 6     group: text, member: text            its member: instance ?text, rack ?text,
//!                                            client text, host text, rebalance timeout duration,
//!                                            topics: count u32 and as many text, regex ?text,
//!                                            assignor ?text, principal text (not in older ones)
//! 7     group: text, member: text            its target assignment: partitions
//! 8     group: text, member: text            its current assignment: epoch i32, previous epoch i32, state u8
//!                                            (0 stable, 1 unrevoked, 2 unreleased), assigned
//!                                            partitions, partitions to give up, and for each of
//!                                            both i32, the epoch in which it came (not in older ones)
//! 9     group: text                          share group: epoch i32
//! 10    group: text, member: text            its member: epoch i32, previous epoch i32, and the fields of 6
//! 20    group: text                          group of Kafka Streams, beside 5 to 8, where a subtopology
//!                                            (by the FNV-1a hash of its id, 128 bits) is a topic:
//!                                            epoch i32, u32 count of subtopologies, and for each its id
//!                                            text, sources, regular expressions, changelogs,
//!                                            repartition sinks, repartition sources, copartitions
//! 21    group: text, member: text            its member: epoch of the topology i32, process
//!                                            text, endpoint ?(text, u32), tags
//! ```
//!
//! `partitions` are a u32 count of topics, and for each its id (16 bytes), a u32 count and as many i32.
//!
//! A member of a classic group counts only if it has the generation of its group. This distinguishes a whole generation
//! from one whose last records a crash has lost.

mod consumer;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, ProducerId, Timestamp};

use self::consumer::{read_partitions, write_partitions};
use super::consumer::{Assignment, Current, Subscription};
use super::streams::StreamsMember;
use super::{
    Client, Epoch, Generation, GroupName, InstanceId, LeaderEpoch, MemberId, Partition, TopicId,
    TopicName, Topology,
};
use crate::ledger::{Reader, Record, RecordError, Writer};

const CLASSIC_GROUP: u8 = 1;
const CLASSIC_MEMBER: u8 = 2;
const OFFSET: u8 = 3;
const PENDING_OFFSET: u8 = 4;
const CONSUMER_GROUP: u8 = 5;
const CONSUMER_MEMBER: u8 = 6;
const TARGET: u8 = 7;
const CURRENT: u8 = 8;
const SHARE_GROUP: u8 = 9;
const SHARE_MEMBER: u8 = 10;
const STREAMS_GROUP: u8 = 20;
const STREAMS_MEMBER: u8 = 21;

/// The key of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    ClassicGroup(GroupName),
    ClassicMember(GroupName, MemberId),
    Offset(GroupName, TopicName, Partition),
    PendingOffset(GroupName, ProducerId, TopicName, Partition),
    ConsumerGroup(GroupName),
    ConsumerMember(GroupName, MemberId),
    Target(GroupName, MemberId),
    Current(GroupName, MemberId),
    ShareGroup(GroupName),
    ShareMember(GroupName, MemberId),
    StreamsGroup(GroupName),
    StreamsMember(GroupName, MemberId),
}

/// The value of a record: the variant with the name of its key's, or `Offset` for both kinds of offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    ClassicGroup(StoredGroup),
    ClassicMember(StoredMember),
    Offset(CommittedOffset),
    ConsumerGroup(StoredConsumerGroup),
    ConsumerMember(Subscription),
    Target(Assignment),
    Current(Current),
    ShareGroup(Epoch),
    ShareMember(StoredShareMember),
    StreamsGroup(Topology),
    StreamsMember(StreamsMember),
}

/// A classic group, apart from its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredGroup {
    pub generation: Generation,
    pub protocol_type: Option<Arc<str>>,
    pub protocol: Option<Arc<str>>,
    pub leader: Option<MemberId>,
    pub state_since: Timestamp,
}

/// A member of a classic group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredMember {
    pub generation: Generation,
    pub instance: Option<InstanceId>,
    pub client: Client,
    pub rebalance_timeout: Duration,
    pub session_timeout: Duration,
    /// Its metadata for the chosen protocol.
    pub metadata: Bytes,
    pub assignment: Bytes,
}

/// An offset that was committed, or will be with its transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommittedOffset {
    pub offset: Offset,
    pub leader_epoch: Option<LeaderEpoch>,
    pub metadata: Arc<str>,
    pub committed_at: Timestamp,
    /// Set if the client itself chose a retention.
    pub expires_at: Option<Timestamp>,
    /// Grows with every commit of the group: the later one of two wins, whenever a transaction ends.
    pub order: u64,
    /// The topic that it was committed for; `None` if it was stored by an earlier program.
    pub topic: Option<TopicId>,
}

/// A group of KIP-848, apart from its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredConsumerGroup {
    pub epoch: Epoch,
    pub target_epoch: Epoch,
    pub topics_hash: u64,
}

/// A member of a share group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StoredShareMember {
    pub epoch: Epoch,
    /// The epoch before: the member may have missed the answer with the new one.
    pub previous_epoch: Epoch,
    /// Its topics; it has no regular expression.
    pub subscription: Subscription,
}

/// A record that sets the value of a key, or removes it.
pub(super) fn record(key: &Key, value: Option<&Value>) -> Record {
    Record {
        key: key.encode(),
        value: value.map(Value::encode),
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
        let mut writer;
        match self {
            Key::ClassicGroup(group) => writer = of_group(CLASSIC_GROUP, group),
            Key::ClassicMember(group, member) => writer = of_member(CLASSIC_MEMBER, group, member),
            Key::Offset(group, topic, partition) => {
                writer = Writer::key(OFFSET);
                writer.text(group).text(topic).i32(partition.0);
            }
            Key::PendingOffset(group, producer, topic, partition) => {
                writer = Writer::key(PENDING_OFFSET);
                writer.text(group).i64(producer.0);
                writer.text(topic).i32(partition.0);
            }
            Key::ConsumerGroup(group) => writer = of_group(CONSUMER_GROUP, group),
            Key::ConsumerMember(group, member) => {
                writer = of_member(CONSUMER_MEMBER, group, member);
            }
            Key::Target(group, member) => writer = of_member(TARGET, group, member),
            Key::Current(group, member) => writer = of_member(CURRENT, group, member),
            Key::ShareGroup(group) => writer = of_group(SHARE_GROUP, group),
            Key::ShareMember(group, member) => {
                writer = of_member(SHARE_MEMBER, group, member);
            }
            Key::StreamsGroup(group) => writer = of_group(STREAMS_GROUP, group),
            Key::StreamsMember(group, member) => {
                writer = of_member(STREAMS_MEMBER, group, member);
            }
        }
        writer.done()
    }

    fn decode(bytes: Bytes) -> Result<Key, RecordError> {
        Reader::key(bytes, |reader| {
            let kind = reader.u8("kind")?;
            let group = reader.text("group")?;
            Ok(match kind {
                CLASSIC_GROUP => Key::ClassicGroup(group),
                CLASSIC_MEMBER => Key::ClassicMember(group, reader.text("member")?),
                OFFSET => Key::Offset(
                    group,
                    reader.text("topic")?,
                    Partition(reader.i32("partition")?),
                ),
                PENDING_OFFSET => Key::PendingOffset(
                    group,
                    ProducerId(reader.i64("producer")?),
                    reader.text("topic")?,
                    Partition(reader.i32("partition")?),
                ),
                CONSUMER_GROUP => Key::ConsumerGroup(group),
                CONSUMER_MEMBER => Key::ConsumerMember(group, reader.text("member")?),
                TARGET => Key::Target(group, reader.text("member")?),
                CURRENT => Key::Current(group, reader.text("member")?),
                SHARE_GROUP => Key::ShareGroup(group),
                SHARE_MEMBER => Key::ShareMember(group, reader.text("member")?),
                STREAMS_GROUP => Key::StreamsGroup(group),
                STREAMS_MEMBER => Key::StreamsMember(group, reader.text("member")?),
                kind => return Err(RecordError::unknown("kind", kind)),
            })
        })
    }
}

fn of_group(kind: u8, group: &GroupName) -> Writer {
    let mut writer = Writer::key(kind);
    writer.text(group);
    writer
}

fn of_member(kind: u8, group: &GroupName, member: &MemberId) -> Writer {
    let mut writer = of_group(kind, group);
    writer.text(member);
    writer
}

impl Value {
    fn encode(&self) -> Bytes {
        let mut writer = Writer::value();
        match self {
            Value::ClassicGroup(group) => group.write(&mut writer),
            Value::ClassicMember(member) => member.write(&mut writer),
            Value::Offset(offset) => offset.write(&mut writer),
            Value::ConsumerGroup(group) => group.write(&mut writer),
            Value::ConsumerMember(subscription) => subscription.write(&mut writer),
            Value::Target(target) => write_partitions(&mut writer, target),
            Value::Current(current) => current.write(&mut writer),
            Value::ShareGroup(epoch) => {
                writer.i32(epoch.0);
            }
            Value::ShareMember(member) => member.write(&mut writer),
            Value::StreamsGroup(topology) => topology.write(&mut writer),
            Value::StreamsMember(member) => member.write(&mut writer),
        }
        writer.done()
    }

    fn decode(key: &Key, bytes: Bytes) -> Result<Value, RecordError> {
        Reader::value(bytes, |reader| {
            Ok(match key {
                Key::ClassicGroup(_) => Value::ClassicGroup(StoredGroup::read(reader)?),
                Key::ClassicMember(..) => Value::ClassicMember(StoredMember::read(reader)?),
                Key::Offset(..) | Key::PendingOffset(..) => {
                    Value::Offset(CommittedOffset::read(reader)?)
                }
                Key::ConsumerGroup(_) => Value::ConsumerGroup(StoredConsumerGroup::read(reader)?),
                Key::ConsumerMember(..) => Value::ConsumerMember(Subscription::read(reader)?),
                Key::Target(..) => Value::Target(read_partitions(reader, "target")?),
                Key::Current(..) => Value::Current(Current::read(reader)?),
                Key::ShareGroup(_) => Value::ShareGroup(Epoch(reader.i32("epoch")?)),
                Key::ShareMember(..) => Value::ShareMember(StoredShareMember::read(reader)?),
                Key::StreamsGroup(_) => Value::StreamsGroup(Topology::read(reader)?),
                Key::StreamsMember(..) => Value::StreamsMember(StreamsMember::read(reader)?),
            })
        })
    }
}

impl StoredGroup {
    fn write(&self, writer: &mut Writer) {
        writer
            .i32(self.generation.0)
            .option(&self.protocol_type, |writer, text| writer.text(text))
            .option(&self.protocol, |writer, text| writer.text(text))
            .option(&self.leader, |writer, leader| writer.text(leader))
            .timestamp(self.state_since);
    }

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(StoredGroup {
            generation: Generation(reader.i32("generation")?),
            protocol_type: reader.option("protocol type", Reader::text)?,
            protocol: reader.option("protocol", Reader::text)?,
            leader: reader.option("leader", Reader::text)?,
            state_since: reader.timestamp("state since")?,
        })
    }
}

impl StoredMember {
    fn write(&self, writer: &mut Writer) {
        writer
            .i32(self.generation.0)
            .option(&self.instance, |writer, instance| writer.text(instance))
            .text(&self.client.id)
            .text(&self.client.host)
            .duration(self.rebalance_timeout)
            .duration(self.session_timeout)
            .bytes(&self.metadata)
            .bytes(&self.assignment);
    }

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(StoredMember {
            generation: Generation(reader.i32("generation")?),
            instance: reader.option("instance", Reader::text)?,
            client: read_client(reader)?,
            rebalance_timeout: reader.duration("rebalance timeout")?,
            session_timeout: reader.duration("session timeout")?,
            // Copied: the metadata stays in memory, and the buffer that holds it is large.
            metadata: Bytes::copy_from_slice(&reader.bytes("metadata")?),
            assignment: Bytes::copy_from_slice(&reader.bytes("assignment")?),
        })
    }
}

fn read_client(reader: &mut Reader) -> Result<Client, RecordError> {
    Ok(Client {
        id: reader.text("client")?,
        host: reader.text("host")?,
    })
}

impl CommittedOffset {
    fn write(&self, writer: &mut Writer) {
        writer
            .u64(self.offset.0)
            .option(&self.leader_epoch, |writer, epoch| writer.i32(epoch.0))
            .text(&self.metadata)
            .timestamp(self.committed_at)
            .option(&self.expires_at, |writer, at| writer.timestamp(*at))
            .u64(self.order);
        if let Some(topic) = self.topic {
            writer.u128(topic.0);
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        let offset = Offset(reader.u64("offset")?);
        let leader_epoch = reader.option("leader epoch", Reader::i32)?;
        Ok(CommittedOffset {
            offset,
            leader_epoch: leader_epoch.map(LeaderEpoch),
            metadata: reader.text("metadata")?,
            committed_at: reader.timestamp("committed")?,
            expires_at: reader.option("expires", Reader::timestamp)?,
            order: reader.u64("order")?,
            topic: match reader.is_at_end() {
                true => None,
                false => Some(TopicId(reader.u128("id of the topic")?)),
            },
        })
    }
}
