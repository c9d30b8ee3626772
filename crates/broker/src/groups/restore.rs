//! Restores groups from the log.

use std::collections::BTreeMap;

use super::classic::ClassicGroup;
use super::consumer::{ConsumerGroup, StoredConsumerMember};
use super::group::{Group, Groups, Members};
use super::record::{
    Key, StoredConsumerGroup, StoredGroup, StoredMember, StoredShareMember, Value,
};
use super::share::ShareGroup;
use super::streams::{StreamsGroup, StreamsMember};
use super::turn::Turn;
use super::{Epoch, GroupName, MemberId, Topology};

/// The values read so far; a group can be restored only after the last record.
pub(super) struct Restoring<'r, 't> {
    groups: &'r mut Groups,
    turn: &'r mut Turn<'t>,
    classic: BTreeMap<GroupName, StoredGroup>,
    classic_members: BTreeMap<GroupName, BTreeMap<MemberId, StoredMember>>,
    consumer: BTreeMap<GroupName, StoredConsumerGroup>,
    consumer_members: BTreeMap<GroupName, BTreeMap<MemberId, StoredConsumerMember>>,
    share: BTreeMap<GroupName, Epoch>,
    share_members: BTreeMap<GroupName, BTreeMap<MemberId, StoredShareMember>>,
    topologies: BTreeMap<GroupName, Topology>,
    streams_members: BTreeMap<GroupName, BTreeMap<MemberId, StreamsMember>>,
}

impl<'r, 't> Restoring<'r, 't> {
    pub fn new(groups: &'r mut Groups, turn: &'r mut Turn<'t>) -> Self {
        Restoring {
            groups,
            turn,
            classic: BTreeMap::new(),
            classic_members: BTreeMap::new(),
            consumer: BTreeMap::new(),
            consumer_members: BTreeMap::new(),
            share: BTreeMap::new(),
            share_members: BTreeMap::new(),
            topologies: BTreeMap::new(),
            streams_members: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, key: Key, value: Value) {
        match (key, value) {
            (Key::ClassicGroup(name), Value::ClassicGroup(group)) => {
                self.classic.insert(name, group);
            }
            (Key::ClassicMember(name, id), Value::ClassicMember(member)) => {
                let members = self.classic_members.entry(name).or_default();
                members.insert(id, member);
            }
            (Key::Offset(name, topic, partition), Value::Offset(offset)) => {
                let offsets = &mut self.group(&name).offsets;
                offsets.restore(topic, partition, offset);
            }
            (Key::PendingOffset(name, producer, topic, partition), Value::Offset(offset)) => {
                let offsets = &mut self.group(&name).offsets;
                offsets.restore_pending(producer, topic, partition, offset);
                let groups = self.groups.transactions.entry(producer).or_default();
                groups.insert(name);
            }
            (Key::ConsumerGroup(name), Value::ConsumerGroup(group)) => {
                self.consumer.insert(name, group);
            }
            (Key::ConsumerMember(name, id), Value::ConsumerMember(subscription)) => {
                self.consumer_member(name, id).subscription = Some(subscription);
            }
            (Key::Target(name, id), Value::Target(target)) => {
                self.consumer_member(name, id).target = target;
            }
            (Key::Current(name, id), Value::Current(current)) => {
                self.consumer_member(name, id).current = current;
            }
            (Key::ShareGroup(name), Value::ShareGroup(epoch)) => {
                self.share.insert(name, epoch);
            }
            (Key::ShareMember(name, id), Value::ShareMember(member)) => {
                let members = self.share_members.entry(name).or_default();
                members.insert(id, member);
            }
            (Key::StreamsGroup(name), Value::StreamsGroup(topology)) => {
                self.topologies.insert(name, topology);
            }
            (Key::StreamsMember(name, id), Value::StreamsMember(member)) => {
                let members = self.streams_members.entry(name).or_default();
                members.insert(id, member);
            }
            // Decoding gives each key its own value.
            _ => unreachable!("a value of another kind than its key"),
        }
    }

    fn consumer_member(&mut self, name: GroupName, id: MemberId) -> &mut StoredConsumerMember {
        let members = self.consumer_members.entry(name).or_default();
        members.entry(id).or_default()
    }

    fn group(&mut self, name: &GroupName) -> &mut Group {
        let now = self.turn.now.timestamp;
        let groups = &mut self.groups.by_name;
        let group = groups.entry(name.clone());
        group.or_insert_with(|| Group::new(name, now))
    }

    /// Builds the groups, and starts the sessions of their members.
    pub fn complete(mut self) {
        for (name, stored) in std::mem::take(&mut self.classic) {
            let members = self.classic_members.remove(&name).unwrap_or_default();
            let now = self.turn.now.timestamp;
            let restored = ClassicGroup::restore(name.clone(), stored, members, now);
            restored.start_sessions(self.turn);
            self.group(&name).members = Members::Classic(Box::new(restored));
        }
        for (name, stored) in std::mem::take(&mut self.consumer) {
            let members = self.consumer_members.remove(&name).unwrap_or_default();
            let restored = ConsumerGroup::restore(name.clone(), stored, members);
            self.group(&name).members = match self.topologies.remove(&name) {
                None => {
                    restored.start_sessions(self.turn);
                    Members::Consumer(restored)
                }
                Some(topology) => {
                    let members = self.streams_members.remove(&name).unwrap_or_default();
                    let restored = StreamsGroup::restore(restored, topology, members);
                    restored.tasks().start_sessions(self.turn);
                    Members::Streams(Box::new(restored))
                }
            };
        }
        for (name, epoch) in std::mem::take(&mut self.share) {
            let members = self.share_members.remove(&name).unwrap_or_default();
            let restored = ShareGroup::restore(name.clone(), epoch, members);
            restored.start_sessions(self.turn);
            self.group(&name).members = Members::Share(restored);
        }
    }
}
