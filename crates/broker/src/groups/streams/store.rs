//! The records of a group of Kafka Streams beside its members and their tasks, and its restore from them.

use std::collections::BTreeMap;

use super::{StreamsGroup, StreamsMember, Topology};
use crate::groups::MemberId;
use crate::groups::consumer::ConsumerGroup;
use crate::groups::record::{Key, Value, record};
use crate::groups::turn::Turn;
use crate::ledger::Record;

impl StreamsGroup {
    /// Restores a group from the log. Its `topology` distinguishes it from a group of consumers.
    pub fn restore(
        tasks: ConsumerGroup,
        topology: Topology,
        mut members: BTreeMap<MemberId, StreamsMember>,
    ) -> Self {
        members.retain(|id, _| tasks.contains(id));
        StreamsGroup::around(tasks.of_tasks(), Some(topology), members)
    }

    pub(super) fn store_topology(&self, turn: &mut Turn) {
        if let Some(topology) = &self.topology {
            turn.store(&self.key(), &Value::StreamsGroup(topology.clone()));
        }
    }

    /// Removes the stored records of an empty group.
    pub fn remove_stored(&self, turn: &mut Turn) {
        if self.topology.is_some() {
            turn.remove(&self.key());
        }
        self.tasks.remove_stored(turn);
    }

    /// Adds the records that the log holds of the group.
    pub fn snapshot(&self, records: &mut Vec<Record>) {
        if let Some(topology) = &self.topology {
            let value = Value::StreamsGroup(topology.clone());
            records.push(record(&self.key(), Some(&value)));
        }
        for (id, member) in &self.members {
            let key = Key::StreamsMember(self.tasks.name().clone(), id.clone());
            let value = Value::StreamsMember(member.clone());
            records.push(record(&key, Some(&value)));
        }
        self.tasks.snapshot(records);
    }

    fn key(&self) -> Key {
        Key::StreamsGroup(self.tasks.name().clone())
    }
}
