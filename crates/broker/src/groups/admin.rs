//! Requests about groups as a whole, and the expiry of groups, offsets and sessions.

use super::answer::{
    Answer, DescribedConsumerGroup, DescribedGroup, DescribedShareGroup, DescribedStreamsGroup,
    GroupState, Standing,
};
use super::classic::ClassicGroup;
use super::group::{Groups, Members};
use super::timers::Timer;
use super::turn::Turn;
use super::{GroupError, GroupName, ListGroups, RequestId, TopicId, TopicName};
use crate::ledger::Record;

impl Groups {
    pub fn describe(&self, turn: &mut Turn, request: RequestId, names: Vec<GroupName>) {
        let described = names.into_iter().map(|name| match self.members(&name) {
            Some(Members::Classic(group)) => group.described(),
            Some(Members::Consumer(_) | Members::Share(_) | Members::Streams(_)) | None => {
                no_such_group(name)
            }
        });
        let described = described.collect();
        turn.answer(request, Answer::DescribeGroups(described));
    }

    pub fn describe_consumer_groups(
        &self,
        turn: &mut Turn,
        request: RequestId,
        names: Vec<GroupName>,
    ) {
        let described = names.into_iter().map(|name| match self.members(&name) {
            Some(Members::Consumer(group)) => group.described(turn.topics),
            Some(Members::Classic(_) | Members::Share(_) | Members::Streams(_)) | None => {
                no_such_consumer_group(name)
            }
        });
        let described = described.collect();
        turn.answer(request, Answer::DescribeConsumerGroups(described));
    }

    pub fn describe_share_groups(
        &self,
        turn: &mut Turn,
        request: RequestId,
        names: Vec<GroupName>,
    ) {
        let described = names.into_iter().map(|name| match self.share_group(&name) {
            Some(group) => group.described(turn.topics),
            None => no_such_share_group(name),
        });
        let described = described.collect();
        turn.answer(request, Answer::DescribeShareGroups(described));
    }

    pub fn describe_streams_groups(
        &self,
        turn: &mut Turn,
        request: RequestId,
        names: Vec<GroupName>,
    ) {
        let described = names.into_iter().map(|name| match self.members(&name) {
            Some(Members::Streams(group)) => group.described(),
            Some(_) | None => no_such_streams_group(name),
        });
        let described = described.collect();
        turn.answer(request, Answer::DescribeStreamsGroups(described));
    }

    fn members(&self, name: &GroupName) -> Option<&Members> {
        self.by_name.get(name).map(|group| &group.members)
    }

    pub fn list(&self, turn: &mut Turn, request: RequestId, list: &ListGroups) {
        let listed = self.by_name.values().map(|group| match &group.members {
            Members::Classic(group) => group.listed(),
            Members::Consumer(group) => group.listed(),
            Members::Share(group) => group.listed(),
            Members::Streams(group) => group.listed(),
        });
        let listed = listed.filter(|group| {
            let (states, types) = (list.states.as_ref(), list.types.as_ref());
            states.is_none_or(|states| states.contains(&group.state))
                && types.is_none_or(|types| types.contains(&group.group_type))
        });
        turn.answer(request, Answer::ListGroups(listed.collect()));
    }

    pub fn standings(&self) -> Vec<Standing> {
        let groups = self.by_name.values().map(|group| {
            let (listed, members) = match &group.members {
                Members::Classic(group) => (group.listed(), group.len()),
                Members::Consumer(group) => (group.listed(), group.len()),
                Members::Share(group) => (group.listed(), group.len()),
                Members::Streams(group) => (group.listed(), group.tasks().len()),
            };
            Standing {
                name: listed.group,
                state: listed.state,
                is_of_flow: group.offsets.are_of_flow(),
                members,
                offsets: group.offsets.positions(),
            }
        });
        groups.collect()
    }

    pub fn delete(&mut self, turn: &mut Turn, request: RequestId, names: Vec<GroupName>) {
        let delete = |name: GroupName| {
            let result = self.delete_one(turn, &name);
            (name, result)
        };
        let results = names.into_iter().map(delete).collect();
        turn.answer(request, Answer::DeleteGroups(results));
    }

    fn delete_one(&mut self, turn: &mut Turn, name: &GroupName) -> Result<(), GroupError> {
        let group = self.by_name.get_mut(name);
        let group = group.ok_or(GroupError::GroupIdNotFound)?;
        if !group.members.is_empty() {
            return Err(GroupError::NonEmptyGroup);
        }
        group.members.remove_stored(turn);
        group.offsets.clear(turn, name);
        self.by_name.remove(name);
        Ok(())
    }

    /// Handles a deadline that has passed.
    pub fn on_timer(&mut self, turn: &mut Turn, timer: Timer) {
        match timer {
            Timer::Expiry => self.expire(turn),
            Timer::ClassicJoin(name) => {
                self.on_classic_timer(&name, |group| group.join_time_is_up(turn));
            }
            Timer::ClassicSync(name) => {
                self.on_classic_timer(&name, |group| group.sync_time_is_up(turn));
            }
            Timer::ClassicSession(name, member) => {
                self.on_classic_timer(&name, |group| group.session_is_over(turn, &member));
            }
            Timer::ConsumerSession(name, member) => match self.members_mut(&name) {
                Some(Members::Consumer(group)) => group.session_is_over(turn, &member),
                Some(Members::Streams(group)) => group.session_is_over(turn, &member),
                Some(Members::Classic(_) | Members::Share(_)) | None => {}
            },
            Timer::ConsumerRebalance(name, member) => match self.members_mut(&name) {
                Some(Members::Consumer(group)) => group.rebalance_time_is_up(turn, &member),
                Some(Members::Streams(group)) => group.rebalance_time_is_up(turn, &member),
                Some(Members::Classic(_) | Members::Share(_)) | None => {}
            },
            Timer::ShareSession(name, member) => {
                if let Some(Members::Share(group)) = self.members_mut(&name) {
                    group.session_is_over(turn, &member);
                }
            }
        }
    }

    fn on_classic_timer(&mut self, name: &GroupName, event: impl FnOnce(&mut ClassicGroup)) {
        // The group may have changed its protocol since.
        if let Some(Members::Classic(group)) = self.members_mut(name) {
            event(group);
        }
        self.forget_if_unused(name);
    }

    fn members_mut(&mut self, name: &GroupName) -> Option<&mut Members> {
        self.by_name.get_mut(name).map(|group| &mut group.members)
    }

    /// Removes offsets that have expired, and groups that have neither offsets nor members.
    fn expire(&mut self, turn: &mut Turn) {
        for (name, group) in &mut self.by_name {
            let members = &group.members;
            group.offsets.expire(
                turn,
                name,
                |topic| members.subscribes_to(topic),
                |committed_at| members.retained_since(committed_at),
            );
            if group.offsets.is_empty() && group.members.is_abandoned() {
                group.members.remove_stored(turn);
            }
        }
        self.by_name
            .retain(|_, group| !group.members.is_unused() || !group.offsets.is_empty());
    }

    /// Removes the offsets of a deleted topic; not those of the topic `new`, which now has its name.
    pub fn remove_topic(&mut self, turn: &mut Turn, topic: &TopicName, new: Option<TopicId>) {
        for (name, group) in &mut self.by_name {
            group.offsets.remove_topic(turn, name, topic, new);
        }
    }

    /// Notes that a topic was created, changed or deleted.
    pub fn topic_changed(&mut self, topic: &TopicName) {
        for group in self.by_name.values_mut() {
            match &mut group.members {
                Members::Classic(_) => {}
                Members::Consumer(group) => group.topic_changed(topic),
                Members::Share(group) => group.topic_changed(topic),
                Members::Streams(group) => group.topic_changed(topic),
            }
        }
    }

    /// Notes that the access rules have changed.
    pub fn access_changed(&mut self) {
        for group in self.by_name.values_mut() {
            match &mut group.members {
                Members::Classic(_) | Members::Share(_) => {}
                Members::Consumer(group) => group.access_changed(),
                Members::Streams(group) => group.access_changed(),
            }
        }
    }

    /// Returns all state as records.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records = Vec::new();
        for (name, group) in &self.by_name {
            match &group.members {
                Members::Classic(group) => group.snapshot(&mut records),
                Members::Consumer(group) => group.snapshot(&mut records),
                Members::Share(group) => group.snapshot(&mut records),
                Members::Streams(group) => group.snapshot(&mut records),
            }
            group.offsets.snapshot(name, &mut records);
        }
        records
    }
}

fn no_such_group(group: GroupName) -> DescribedGroup {
    DescribedGroup {
        group,
        error: Some(GroupError::GroupIdNotFound),
        state: GroupState::Dead,
        protocol_type: Default::default(),
        protocol: Default::default(),
        members: Vec::new(),
    }
}

fn no_such_consumer_group(group: GroupName) -> DescribedConsumerGroup {
    DescribedConsumerGroup {
        group,
        error: Some(GroupError::GroupIdNotFound),
        state: GroupState::Dead,
        epoch: Default::default(),
        target_epoch: Default::default(),
        assignor: Default::default(),
        members: Vec::new(),
    }
}

fn no_such_share_group(group: GroupName) -> DescribedShareGroup {
    DescribedShareGroup {
        group,
        error: Some(GroupError::GroupIdNotFound),
        state: GroupState::Dead,
        epoch: Default::default(),
        assignor: Default::default(),
        members: Vec::new(),
    }
}

fn no_such_streams_group(group: GroupName) -> DescribedStreamsGroup {
    DescribedStreamsGroup {
        group,
        error: Some(GroupError::GroupIdNotFound),
        state: GroupState::Dead,
        epoch: Default::default(),
        target_epoch: Default::default(),
        topology: None,
        members: Vec::new(),
    }
}
