//! Requests about the offsets of groups.

use millstream_wire::FLOW_OFFSETS;

use super::answer::{Answer, TopicOffsets, TopicResults};
use super::config::check_group_name;
use super::group::{Groups, Members};
use super::offsets::{Offsets, commit};
use super::turn::Turn;
use super::{
    CommitOffsets, CommitTransactionOffsets, DeleteOffsets, EndTransaction, FetchOffsets,
    Generation, GroupError, GroupName, RequestId, TopicCommit,
};

/// Whether a flow commits its position.
fn is_of_flow(topics: &[TopicCommit]) -> bool {
    let mut partitions = topics.iter().flat_map(|topic| &topic.partitions);
    partitions.any(|commit| &*commit.metadata == FLOW_OFFSETS)
}

impl Groups {
    pub fn commit(&mut self, turn: &mut Turn, request: RequestId, commit: CommitOffsets) {
        let results = match self.check_commit(turn, &commit) {
            Err(error) => commit::refused(commit.topics, error),
            Ok(()) => match self.get_or_create(&commit.group, turn) {
                Err(_) => commit::refused(commit.topics, GroupError::InvalidCommitOffsetSize),
                Ok(group) => {
                    if let Members::Classic(members) = &group.members {
                        members.committed_by(&commit.member, turn);
                    }
                    group
                        .offsets
                        .commit(turn, &commit.group, commit.topics, commit.retention)
                }
            },
        };
        turn.answer(request, Answer::CommitOffsets(results));
        self.forget_if_unused(&commit.group);
    }

    fn check_commit(&self, turn: &Turn, commit: &CommitOffsets) -> Result<(), GroupError> {
        self.check_committer(turn, &commit.group, commit.generation)
            .map_err(|error| match error {
                GroupError::GroupIdNotFound if !commit.knows_member_epochs => {
                    GroupError::IllegalGeneration
                }
                error => error,
            })?;
        let Some(group) = self.by_name.get(&commit.group) else {
            return Ok(());
        };
        if !group.offsets.is_empty() && group.offsets.are_of_flow() != is_of_flow(&commit.topics) {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        let instance = commit.instance.as_ref();
        match &group.members {
            Members::Classic(group) => {
                group.check_commit(&commit.member, instance, commit.generation, false)
            }
            members @ (Members::Consumer(_) | Members::Streams(_)) => {
                let Some(group) = members.with_epochs() else {
                    return Ok(());
                };
                let knows_member_epochs = commit.knows_member_epochs;
                group.check_commit(
                    &commit.member,
                    commit.generation,
                    &commit.topics,
                    |topic| members.ids_of(topic, turn.topics),
                    false,
                    knows_member_epochs,
                )
            }
            Members::Share(_) => Err(GroupError::GroupIdNotFound),
        }
    }

    /// Checks that the group exists, or may be created: only a commit without a member creates a group.
    fn check_committer(
        &self,
        turn: &Turn,
        group: &GroupName,
        generation: Generation,
    ) -> Result<(), GroupError> {
        // Old simple consumers use the empty name.
        if !group.is_empty() {
            check_group_name(group)?;
        }
        if !self.by_name.contains_key(group) {
            if generation.0 >= 0 {
                return Err(GroupError::GroupIdNotFound);
            }
            if self.by_name.len() >= turn.config.groups_max {
                return Err(GroupError::InvalidCommitOffsetSize);
            }
        }
        Ok(())
    }

    pub fn commit_transaction_offsets(
        &mut self,
        turn: &mut Turn,
        request: RequestId,
        commit: CommitTransactionOffsets,
    ) {
        let results = match self.check_transaction_commit(turn, &commit) {
            Err(error) => commit::refused(commit.topics, error),
            Ok(()) => match self.get_or_create(&commit.group, turn) {
                Err(_) => commit::refused(commit.topics, GroupError::InvalidCommitOffsetSize),
                Ok(group) => {
                    let offsets = &mut group.offsets;
                    offsets.commit_pending(turn, &commit.group, commit.producer, commit.topics)
                }
            },
        };
        if self
            .by_name
            .get(&commit.group)
            .is_some_and(|group| group.offsets.has_pending())
        {
            let groups = self.transactions.entry(commit.producer).or_default();
            groups.insert(commit.group.clone());
        }
        turn.answer(request, Answer::CommitTransactionOffsets(results));
        self.forget_if_unused(&commit.group);
    }

    fn check_transaction_commit(
        &self,
        turn: &Turn,
        commit: &CommitTransactionOffsets,
    ) -> Result<(), GroupError> {
        check_group_name(&commit.group)?;
        let result = self.check_committer(turn, &commit.group, commit.generation);
        let members = self.by_name.get(&commit.group).map(|group| &group.members);
        let group = self.by_name.get(&commit.group);
        if group.is_some_and(|group| group.offsets.are_of_flow()) {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        let result = result.and_then(|()| match members {
            None => Ok(()),
            Some(Members::Classic(group)) => {
                let instance = commit.instance.as_ref();
                group.check_commit(&commit.member, instance, commit.generation, true)
            }
            Some(Members::Share(_)) => Err(GroupError::GroupIdNotFound),
            Some(members) => members.with_epochs().map_or(Ok(()), |group| {
                group.check_commit(
                    &commit.member,
                    commit.generation,
                    &commit.topics,
                    |topic| members.ids_of(topic, turn.topics),
                    true,
                    true,
                )
            }),
        });
        // Producers do not understand the errors of KIP-848.
        result.map_err(|error| match error {
            GroupError::GroupIdNotFound | GroupError::StaleMemberEpoch => {
                GroupError::IllegalGeneration
            }
            error => error,
        })
    }

    pub fn end_transaction(&mut self, turn: &mut Turn, request: RequestId, end: EndTransaction) {
        let groups = self.transactions.remove(&end.producer).unwrap_or_default();
        for name in groups {
            if let Some(group) = self.by_name.get_mut(&name) {
                group
                    .offsets
                    .end_transaction(turn, &name, end.producer, end.committed);
            }
        }
        turn.answer(request, Answer::EndTransaction);
    }

    pub fn fetch(&self, turn: &mut Turn, request: RequestId, fetch: FetchOffsets) {
        let result = self.try_fetch(fetch);
        turn.answer(request, Answer::FetchOffsets(result));
    }

    fn try_fetch(&self, fetch: FetchOffsets) -> Result<Vec<TopicOffsets>, GroupError> {
        let Some(group) = self.by_name.get(&fetch.group) else {
            return Ok(Offsets::default().fetch(fetch.topics, false));
        };
        match &group.members {
            Members::Classic(_) => {}
            members @ (Members::Consumer(_) | Members::Streams(_)) => {
                if let Some(group) = members.with_epochs() {
                    group.check_fetch(fetch.member.as_ref(), fetch.member_epoch)?;
                }
            }
            Members::Share(_) => return Err(GroupError::GroupIdNotFound),
        }
        Ok(group.offsets.fetch(fetch.topics, fetch.require_stable))
    }

    pub fn delete_offsets(&mut self, turn: &mut Turn, request: RequestId, delete: DeleteOffsets) {
        let result = self.try_delete_offsets(turn, delete);
        turn.answer(request, Answer::DeleteOffsets(result));
    }

    fn try_delete_offsets(
        &mut self,
        turn: &mut Turn,
        delete: DeleteOffsets,
    ) -> Result<Vec<TopicResults>, GroupError> {
        check_group_name(&delete.group)?;
        let group = self.by_name.get_mut(&delete.group);
        let group = group.ok_or(GroupError::GroupIdNotFound)?;
        match &group.members {
            Members::Classic(group) => group.check_delete_offsets()?,
            Members::Consumer(_) | Members::Streams(_) => {}
            Members::Share(_) => return Err(GroupError::GroupIdNotFound),
        }
        let members = &group.members;
        let is_subscribed = |topic: &_| members.subscribes_to(topic);
        Ok(group
            .offsets
            .delete(turn, &delete.group, delete.topics, is_subscribed))
    }
}
