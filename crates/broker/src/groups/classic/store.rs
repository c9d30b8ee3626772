//! The records of a classic group, and its restore from them.

use std::collections::BTreeMap;

use bytes::Bytes;
use millstream_base::Timestamp;

use super::{ClassicGroup, Member, State};
use crate::groups::record::{Key, StoredGroup, StoredMember, Value, record};
use crate::groups::turn::Turn;
use crate::groups::{GroupName, MemberId, Protocol};
use crate::ledger::Record;

/// The log's state of a classic group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    group: StoredGroup,
    members: BTreeMap<MemberId, StoredMember>,
}

impl ClassicGroup {
    /// Stores the current state of the group.
    pub(super) fn store(&mut self, turn: &mut Turn) {
        let current = self.to_store();
        let before = self.stored.take();
        let before = before.map(|stored| stored.members).unwrap_or_default();
        for (id, member) in &current.members {
            if before.get(id) != Some(member) {
                turn.store(&self.member_key(id), &Value::ClassicMember(member.clone()));
            }
        }
        for id in before
            .keys()
            .filter(|id| !current.members.contains_key(*id))
        {
            turn.remove(&self.member_key(id));
        }
        turn.store(&self.key(), &Value::ClassicGroup(current.group.clone()));
        self.stored = Some(current);
    }

    /// Stores a new group, if the log does not hold it yet.
    pub(super) fn store_if_new(&mut self, turn: &mut Turn) {
        let has_come_to_be = !self.members.is_empty() || !self.pending_join.is_empty();
        if self.stored.is_some() || !has_come_to_be {
            return;
        }
        let stored = Stored {
            group: ClassicGroup::new(self.name.clone(), self.state_since)
                .to_store()
                .group,
            members: BTreeMap::new(),
        };
        turn.store(&self.key(), &Value::ClassicGroup(stored.group.clone()));
        self.stored = Some(stored);
    }

    /// Whether it has no state, here or in the log.
    pub fn is_unused(&self) -> bool {
        self.is_abandoned() && self.stored.is_none()
    }

    /// Removes all records of the group.
    pub fn remove_stored(&mut self, turn: &mut Turn) {
        if let Some(stored) = self.stored.take() {
            for id in stored.members.keys() {
                turn.remove(&self.member_key(id));
            }
            turn.remove(&self.key());
        }
    }

    /// Adds the records that the log holds of the group.
    pub fn snapshot(&self, records: &mut Vec<Record>) {
        if let Some(stored) = &self.stored {
            for (id, member) in &stored.members {
                let value = Value::ClassicMember(member.clone());
                records.push(record(&self.member_key(id), Some(&value)));
            }
            let value = Value::ClassicGroup(stored.group.clone());
            records.push(record(&self.key(), Some(&value)));
        }
    }

    /// Restores a group from the log. Each member's session timeout starts again now.
    pub fn restore(
        name: GroupName,
        group: StoredGroup,
        members: BTreeMap<MemberId, StoredMember>,
        now: Timestamp,
    ) -> Self {
        let mut restored = ClassicGroup::new(name, now);
        restored.state_since = group.state_since;
        restored.generation = group.generation;
        restored.protocol_type = group.protocol_type.clone();
        restored.protocol = group.protocol.clone();
        for (id, member) in &members {
            if member.generation == group.generation {
                restored.restore_member(id, member);
            }
        }
        if !restored.members.is_empty() {
            restored.state = State::Stable;
        }
        let is_member = |leader: &MemberId| restored.members.contains_key(leader);
        let leader = group.leader.clone().filter(is_member);
        restored.leader = leader.or_else(|| restored.members.keys().next().cloned());
        restored.subscribed = restored.subscriptions();
        restored.stored = Some(Stored { group, members });
        restored
    }

    fn restore_member(&mut self, id: &MemberId, stored: &StoredMember) {
        let protocols = self.protocol.iter().map(|name| Protocol {
            name: name.clone(),
            metadata: stored.metadata.clone(),
        });
        let member = Member {
            instance: stored.instance.clone(),
            client: stored.client.clone(),
            session_timeout: stored.session_timeout,
            rebalance_timeout: stored.rebalance_timeout,
            protocols: protocols.collect(),
            assignment: stored.assignment.clone(),
            awaiting_join: None,
            awaiting_sync: None,
            is_new: false,
        };
        if let Some(instance) = &stored.instance {
            self.static_members.insert(instance.clone(), id.clone());
        }
        self.members.insert(id.clone(), member);
    }

    /// Starts the sessions of all members.
    pub fn start_sessions(&self, turn: &mut Turn) {
        for id in self.members.keys() {
            self.extend_session(id, turn);
        }
    }

    fn to_store(&self) -> Stored {
        let members = self.members.iter().map(|(id, member)| {
            let metadata = member.metadata(self.protocol.as_deref());
            (id.clone(), self.member_to_store(member, metadata))
        });
        Stored {
            group: StoredGroup {
                generation: self.generation,
                protocol_type: self.protocol_type.clone(),
                protocol: self.protocol.clone(),
                leader: self.leader.clone(),
                state_since: self.state_since,
            },
            members: members.collect(),
        }
    }

    fn member_to_store(&self, member: &Member, metadata: Bytes) -> StoredMember {
        StoredMember {
            generation: self.generation,
            instance: member.instance.clone(),
            client: member.client.clone(),
            rebalance_timeout: member.rebalance_timeout,
            session_timeout: member.session_timeout,
            metadata,
            assignment: member.assignment.clone(),
        }
    }

    fn key(&self) -> Key {
        Key::ClassicGroup(self.name.clone())
    }

    fn member_key(&self, member: &MemberId) -> Key {
        Key::ClassicMember(self.name.clone(), member.clone())
    }
}
