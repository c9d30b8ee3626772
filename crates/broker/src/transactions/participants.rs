//! The participants of a transaction.

use std::collections::{BTreeMap, BTreeSet};

use super::config::{
    NAME_BYTES_MAX, NAME_BYTES_PER_TRANSACTION_MAX, PARTICIPANTS_PER_TRANSACTION_MAX,
};
use super::{TopicPartition, TransactionError};
use crate::groups::{GroupName, Partition, TopicName};

/// The partitions of a transaction, and the groups that commit offsets with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Participants {
    topics: BTreeMap<TopicName, BTreeSet<Partition>>,
    groups: BTreeSet<GroupName>,
    /// How many partitions and groups there are.
    count: usize,
    /// The bytes of their names; that of a topic counts once.
    name_bytes: usize,
}

impl Participants {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    pub fn topics(&self) -> &BTreeMap<TopicName, BTreeSet<Partition>> {
        &self.topics
    }

    pub fn groups(&self) -> &BTreeSet<GroupName> {
        &self.groups
    }

    pub fn partitions(&self) -> impl Iterator<Item = TopicPartition> {
        let topics = self.topics.iter();
        topics.flat_map(|(topic, partitions)| {
            partitions.iter().map(|partition| TopicPartition {
                topic: topic.clone(),
                partition: *partition,
            })
        })
    }

    pub fn has_partition(&self, partition: &TopicPartition) -> bool {
        let partitions = self.topics.get(&partition.topic);
        partitions.is_some_and(|partitions| partitions.contains(&partition.partition))
    }

    pub fn has_group(&self, group: &GroupName) -> bool {
        self.groups.contains(group)
    }

    pub fn add_partition(&mut self, partition: TopicPartition) {
        let bytes = partition.topic.len();
        let partitions = self.topics.entry(partition.topic).or_insert_with(|| {
            self.name_bytes += bytes;
            BTreeSet::new()
        });
        if partitions.insert(partition.partition) {
            self.count += 1;
        }
    }

    pub fn add_group(&mut self, group: GroupName) {
        let bytes = group.len();
        if self.groups.insert(group) {
            self.count += 1;
            self.name_bytes += bytes;
        }
    }

    /// Takes in all of another.
    pub fn extend(&mut self, added: Participants) {
        added
            .partitions()
            .for_each(|partition| self.add_partition(partition));
        added
            .groups
            .into_iter()
            .for_each(|group| self.add_group(group));
    }

    /// How many bytes the names of other participants would add. None of those may be in here already.
    pub fn name_bytes_of(&self, added: &Participants) -> usize {
        let topics = added.topics.keys();
        let topics = topics.filter(|topic| !self.topics.contains_key(*topic));
        let groups = added.groups.iter().map(|group| group.len());
        topics.map(|topic| topic.len()).chain(groups).sum()
    }

    /// Checks that there is room for more participants. None of those may be in here already.
    ///
    /// # Errors
    /// When a bound would be exceeded.
    pub fn check_room(&self, added: &Participants) -> Result<(), TransactionError> {
        let name_bytes = self.name_bytes + self.name_bytes_of(added);
        let is_room = self.count + added.count <= PARTICIPANTS_PER_TRANSACTION_MAX
            && name_bytes <= NAME_BYTES_PER_TRANSACTION_MAX;
        is_room
            .then_some(())
            .ok_or(TransactionError::PolicyViolation)
    }
}

/// Checks the name of a topic or group.
///
/// # Errors
/// When the name is empty or too long.
pub(super) fn check_name(name: &str) -> Result<(), TransactionError> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(TransactionError::InvalidRequest),
    }
}
