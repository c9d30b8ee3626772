//! The records of a group of KIP-848, which hold all of its state, and its restore from them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Assignment, ConsumerGroup, Current, Member, MemberState, Subscription};
use crate::groups::record::{Key, StoredConsumerGroup, Value, record};
use crate::groups::turn::Turn;
use crate::groups::{GroupName, MemberId};
use crate::ledger::Record;

/// The log's state of a member.
#[derive(Debug, Default)]
pub(in crate::groups) struct StoredConsumerMember {
    pub subscription: Option<Subscription>,
    pub target: Assignment,
    pub current: Current,
}

impl ConsumerGroup {
    pub(super) fn store_group(&self, turn: &mut Turn) {
        turn.store(&self.key(), &Value::ConsumerGroup(self.to_store()));
    }

    /// Removes the stored records of an empty group.
    pub fn remove_stored(&self, turn: &mut Turn) {
        if !self.is_unused() {
            turn.remove(&self.key());
        }
    }

    /// Adds the records that the log holds of the group.
    pub fn snapshot(&self, records: &mut Vec<Record>) {
        if !self.is_unused() {
            records.push(record(
                &self.key(),
                Some(&Value::ConsumerGroup(self.to_store())),
            ));
        }
        for (id, member) in &self.members {
            let place = || (self.name.clone(), id.clone());
            let mut add = |key: fn(GroupName, MemberId) -> Key, value| {
                let (group, member) = place();
                records.push(record(&key(group, member), Some(&value)));
            };
            let subscription = member.subscription.clone();
            add(Key::ConsumerMember, Value::ConsumerMember(subscription));
            if !member.target.is_empty() {
                add(Key::Target, Value::Target(member.target.clone()));
            }
            if member.current != Current::default() {
                add(Key::Current, Value::Current(member.current.clone()));
            }
        }
    }

    /// Restores a group from the log.
    pub fn restore(
        name: GroupName,
        group: StoredConsumerGroup,
        members: BTreeMap<MemberId, StoredConsumerMember>,
    ) -> Self {
        let mut restored = ConsumerGroup::new(name);
        restored.epoch = group.epoch;
        restored.target_epoch = group.target_epoch;
        restored.topics_hash = group.topics_hash;
        // Topics may have changed since the last record.
        restored.topics_changed = true;
        for (id, stored) in members {
            restored.restore_member(id, stored);
        }
        restored
    }

    fn restore_member(&mut self, id: MemberId, stored: StoredConsumerMember) {
        // A member without a subscription is cut off: a crash lost the last of its records. It joins again.
        let Some(subscription) = stored.subscription else {
            return;
        };
        let mut current = stored.current;
        for part in [&mut current.assigned, &mut current.revoking] {
            for (topic, partitions) in part.iter_mut() {
                let is_free = |partition: &_| !self.owners.contains_key(&(*topic, *partition));
                partitions.retain(is_free);
            }
            part.retain(|_, partitions| !partitions.is_empty());
            for (topic, partitions) in part.iter() {
                let places = partitions
                    .iter()
                    .map(|partition| ((*topic, *partition), id.clone()));
                self.owners.extend(places);
            }
        }
        let owned: BTreeSet<_> = current.owned().collect();
        current.since.retain(|place, _| owned.contains(place));
        if let Some(instance) = &subscription.instance {
            self.static_members.insert(instance.clone(), id.clone());
        }
        let member = Member {
            subscription,
            current,
            target: stored.target,
        };
        self.members.insert(id, member);
    }

    /// Starts the sessions of all members, and the rebalance timeouts of those that have to give up partitions.
    pub fn start_sessions(&self, turn: &mut Turn) {
        for (id, member) in &self.members {
            turn.set_timer(self.session_timer(id), self.session_timeout(turn));
            if member.current.state == MemberState::Unrevoked {
                turn.set_timer(
                    self.rebalance_timer(id),
                    member.subscription.rebalance_timeout,
                );
            }
        }
    }

    fn to_store(&self) -> StoredConsumerGroup {
        StoredConsumerGroup {
            epoch: self.epoch,
            target_epoch: self.target_epoch,
            topics_hash: self.topics_hash,
        }
    }

    fn key(&self) -> Key {
        Key::ConsumerGroup(self.name.clone())
    }
}
