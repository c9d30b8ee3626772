//! The values of groups of KIP-848 and of share groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{StoredConsumerGroup, StoredShareMember, read_client};
use crate::groups::consumer::{Assignment, Current, MemberState, Subscription};
use crate::groups::{Epoch, Partition, TopicId};
use crate::ledger::{Reader, RecordError, Writer};

impl StoredConsumerGroup {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer
            .i32(self.epoch.0)
            .i32(self.target_epoch.0)
            .u64(self.topics_hash);
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(StoredConsumerGroup {
            epoch: Epoch(reader.i32("epoch")?),
            target_epoch: Epoch(reader.i32("target epoch")?),
            topics_hash: reader.u64("hash of the topics")?,
        })
    }
}

impl Subscription {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer
            .option(&self.instance, |writer, text| writer.text(text))
            .option(&self.rack, |writer, text| writer.text(text))
            .text(&self.client.id)
            .text(&self.client.host)
            .duration(self.rebalance_timeout)
            .count(self.topics.len());
        for topic in &self.topics {
            writer.text(topic);
        }
        writer
            .option(&self.regex, |writer, text| writer.text(text))
            .option(&self.assignor, |writer, text| writer.text(text))
            .text(&self.principal);
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        let instance = reader.option("instance", Reader::text)?;
        let rack = reader.option("rack", Reader::text)?;
        let client = read_client(reader)?;
        let rebalance_timeout = reader.duration("rebalance timeout")?;
        let mut topics = BTreeSet::new();
        for _ in 0..reader.count("topics")? {
            topics.insert(reader.text("topic")?);
        }
        Ok(Subscription {
            instance,
            rack,
            client,
            rebalance_timeout,
            topics,
            regex: reader.option("regex", Reader::text)?,
            assignor: reader.option("assignor", Reader::text)?,
            principal: match reader.is_at_end() {
                true => Arc::default(),
                false => reader.text("principal")?,
            },
        })
    }
}

impl StoredShareMember {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.i32(self.epoch.0).i32(self.previous_epoch.0);
        self.subscription.write(writer);
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(StoredShareMember {
            epoch: Epoch(reader.i32("epoch")?),
            previous_epoch: Epoch(reader.i32("previous epoch")?),
            subscription: Subscription::read(reader)?,
        })
    }
}

impl Current {
    pub(super) fn write(&self, writer: &mut Writer) {
        let state = match self.state {
            MemberState::Stable => 0,
            MemberState::Unrevoked => 1,
            MemberState::Unreleased => 2,
        };
        writer
            .i32(self.epoch.0)
            .i32(self.previous_epoch.0)
            .u8(state);
        write_partitions(writer, &self.assigned);
        write_partitions(writer, &self.revoking);
        for place in self.owned() {
            let since = self.since.get(&place).unwrap_or(&self.epoch);
            writer.i32(since.0);
        }
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        let epoch = Epoch(reader.i32("epoch")?);
        let previous_epoch = Epoch(reader.i32("previous epoch")?);
        let field = "state";
        let state = match reader.u8(field)? {
            0 => MemberState::Stable,
            1 => MemberState::Unrevoked,
            2 => MemberState::Unreleased,
            value => return Err(RecordError::unknown(field, value)),
        };
        let mut current = Current {
            epoch,
            previous_epoch,
            state,
            assigned: read_partitions(reader, "assigned")?,
            revoking: read_partitions(reader, "to give up")?,
            since: BTreeMap::new(),
        };
        let is_older = reader.is_at_end();
        let since = current.owned().map(|place| match is_older {
            true => Ok((place, epoch)),
            false => Ok((place, Epoch(reader.i32("since")?))),
        });
        current.since = since.collect::<Result<_, RecordError>>()?;
        Ok(current)
    }
}

pub(super) fn write_partitions(writer: &mut Writer, assignment: &Assignment) {
    writer.count(assignment.len());
    for (topic, partitions) in assignment {
        writer.u128(topic.0).count(partitions.len());
        for partition in partitions {
            writer.i32(partition.0);
        }
    }
}

pub(super) fn read_partitions(
    reader: &mut Reader,
    field: &'static str,
) -> Result<Assignment, RecordError> {
    let mut assignment = Assignment::new();
    for _ in 0..reader.count(field)? {
        let topic = TopicId(reader.u128(field)?);
        let mut partitions = BTreeSet::new();
        for _ in 0..reader.count(field)? {
            partitions.insert(Partition(reader.i32(field)?));
        }
        if !partitions.is_empty() {
            assignment.insert(topic, partitions);
        }
    }
    Ok(assignment)
}
