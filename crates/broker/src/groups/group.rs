//! All groups, and the dispatch of requests to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use millstream_base::{ProducerId, Timestamp};

use super::answer::{
    Answer, ConsumerBeat, HeartbeatRefused, JoinRefused, LeftMember, ShareBeat, StreamsBeat,
};
use super::classic::{self, ClassicGroup};
use super::config::check_group_name;
use super::consumer::{self, ConsumerGroup};
use super::offsets::Offsets;
use super::share::{self, ShareGroup};
use super::streams::{self, StreamsGroup};
use super::topics::Topics;
use super::turn::Turn;
use super::{
    ConsumerHeartbeat, Epoch, GroupError, GroupName, Heartbeat, JoinGroup, LeaveGroup,
    LeavingMember, MemberId, RequestId, ShareHeartbeat, StreamsHeartbeat, SyncGroup, TopicId,
    TopicName,
};

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub by_name: BTreeMap<GroupName, Group>,
    /// The groups in which a producer's open transaction has, or had, offsets.
    pub transactions: HashMap<ProducerId, BTreeSet<GroupName>>,
}

/// A group: its members, and its offsets.
#[derive(Debug)]
pub(super) struct Group {
    pub members: Members,
    pub offsets: Offsets,
}

/// The members of a group. Without members, a group may change between the classic protocol and that of KIP-848. A share
/// group stays one.
#[derive(Debug)]
pub(super) enum Members {
    Classic(Box<ClassicGroup>),
    Consumer(ConsumerGroup),
    Share(ShareGroup),
    Streams(Box<StreamsGroup>),
}

impl Group {
    pub fn new(name: &GroupName, now: Timestamp) -> Self {
        Group {
            members: Members::new_classic(name, now),
            offsets: Offsets::default(),
        }
    }

    /// The group as one of the classic protocol, unless it has members of the other.
    fn classic(&mut self, turn: &mut Turn, name: &GroupName) -> Option<&mut ClassicGroup> {
        if !matches!(self.members, Members::Classic(_)) {
            self.change_members(turn, |now| Members::new_classic(name, now))?;
        }
        match &mut self.members {
            Members::Classic(group) => Some(group),
            Members::Consumer(_) | Members::Share(_) | Members::Streams(_) => None,
        }
    }

    /// The group as one of KIP-848, unless it has members of the other protocol.
    fn consumer(&mut self, turn: &mut Turn, name: &GroupName) -> Option<&mut ConsumerGroup> {
        if !matches!(self.members, Members::Consumer(_)) {
            self.change_members(turn, |_| {
                Members::Consumer(ConsumerGroup::new(name.clone()))
            })?;
        }
        match &mut self.members {
            Members::Consumer(group) => Some(group),
            Members::Classic(_) | Members::Share(_) | Members::Streams(_) => None,
        }
    }

    /// The group as a share group, if it is one, or is still unused.
    fn share(&mut self, name: &GroupName) -> Option<&mut ShareGroup> {
        if self.members.is_unused() && self.offsets.is_empty() {
            self.members = Members::Share(ShareGroup::new(name.clone()));
        }
        match &mut self.members {
            Members::Share(group) => Some(group),
            Members::Classic(_) | Members::Consumer(_) | Members::Streams(_) => None,
        }
    }

    /// The group as one of Kafka Streams, unless it has members of another protocol.
    fn streams(&mut self, turn: &mut Turn, name: &GroupName) -> Option<&mut StreamsGroup> {
        if !matches!(self.members, Members::Streams(_)) {
            let new = || Members::Streams(Box::new(StreamsGroup::new(name.clone())));
            self.change_members(turn, |_| new())?;
        }
        match &mut self.members {
            Members::Streams(group) => Some(group),
            Members::Classic(_) | Members::Consumer(_) | Members::Share(_) => None,
        }
    }

    /// Replaces an empty set of members by one of another protocol; `None` if there are members. A share group stays
    /// one.
    fn change_members(
        &mut self,
        turn: &mut Turn,
        new: impl FnOnce(Timestamp) -> Members,
    ) -> Option<()> {
        if !self.members.is_empty() || matches!(self.members, Members::Share(_)) {
            return None;
        }
        self.members.remove_stored(turn);
        self.members = new(turn.now.timestamp);
        Some(())
    }
}

impl Members {
    fn new_classic(name: &GroupName, now: Timestamp) -> Self {
        Members::Classic(Box::new(ClassicGroup::new(name.clone(), now)))
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Members::Classic(group) => group.is_empty(),
            Members::Share(group) => group.is_empty(),
            Members::Consumer(_) | Members::Streams(_) => {
                self.with_epochs().is_none_or(ConsumerGroup::is_empty)
            }
        }
    }

    /// The ids by which the group assigns a topic: its own, or those of the subtopologies that read it.
    pub fn ids_of(&self, topic: &TopicName, topics: &Topics) -> Vec<TopicId> {
        match self {
            Members::Streams(group) => group.readers(topic),
            Members::Classic(_) | Members::Consumer(_) | Members::Share(_) => {
                let topic = topics.get(topic).map(|topic| topic.id);
                topic.into_iter().collect()
            }
        }
    }

    /// The members of a group whose members have epochs (KIP-848, Kafka Streams).
    pub fn with_epochs(&self) -> Option<&ConsumerGroup> {
        match self {
            Members::Classic(_) | Members::Share(_) => None,
            Members::Consumer(group) => Some(group),
            Members::Streams(group) => Some(group.tasks()),
        }
    }

    /// Whether the group has no member and no pending one, and may be removed. A share group keeps its positions
    /// elsewhere, and stays until it is deleted.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Members::Classic(group) => group.is_abandoned(),
            Members::Share(_) => false,
            Members::Consumer(_) | Members::Streams(_) => self.is_empty(),
        }
    }

    /// Whether it has no state, here or in the log.
    pub fn is_unused(&self) -> bool {
        match self {
            Members::Classic(group) => group.is_unused(),
            Members::Share(group) => group.is_empty() && group.is_unused(),
            Members::Consumer(_) | Members::Streams(_) => self
                .with_epochs()
                .is_none_or(|group| group.is_empty() && group.is_unused()),
        }
    }

    /// Whether the group subscribes to the topic, and so keeps its offsets.
    pub fn subscribes_to(&self, topic: &TopicName) -> bool {
        match self {
            Members::Classic(group) => group.subscribes_to(topic),
            Members::Consumer(group) => group.subscribes_to(topic),
            Members::Share(group) => group.subscribes_to(topic),
            Members::Streams(group) => group.subscribes_to(topic),
        }
    }

    /// The time from which the retention of an offset committed at `committed_at` counts; `None` while the offset must
    /// stay.
    pub fn retained_since(&self, committed_at: Timestamp) -> Option<Timestamp> {
        match self {
            Members::Classic(group) => group.retained_since(committed_at),
            Members::Consumer(_) | Members::Share(_) | Members::Streams(_) => Some(committed_at),
        }
    }

    /// Removes the stored records of a group without members.
    pub fn remove_stored(&mut self, turn: &mut Turn) {
        match self {
            Members::Classic(group) => group.remove_stored(turn),
            Members::Consumer(group) => group.remove_stored(turn),
            Members::Share(group) => group.remove_stored(turn),
            Members::Streams(group) => group.remove_stored(turn),
        }
    }
}

impl Groups {
    /// The group of this name, or a new one if there is room.
    pub fn get_or_create(
        &mut self,
        name: &GroupName,
        turn: &Turn,
    ) -> Result<&mut Group, GroupError> {
        let is_new = !self.by_name.contains_key(name);
        if is_new && self.by_name.len() >= turn.config.groups_max {
            return Err(GroupError::GroupMaxSizeReached);
        }
        let now = turn.now.timestamp;
        let group = self.by_name.entry(name.clone());
        Ok(group.or_insert_with(|| Group::new(name, now)))
    }

    /// Removes a group without any state.
    pub fn forget_if_unused(&mut self, name: &GroupName) {
        let group = self.by_name.get(name);
        if group.is_some_and(|group| group.members.is_unused() && group.offsets.is_empty()) {
            self.by_name.remove(name);
        }
    }

    pub fn join(&mut self, turn: &mut Turn, request: RequestId, join: JoinGroup) {
        let name = join.group.clone();
        let member = join.member.clone();
        if let Err(error) = self.try_join(turn, request, join) {
            // A client of a group that was never created has no member id either.
            let member = match error {
                GroupError::GroupMaxSizeReached => MemberId::default(),
                _ => member,
            };
            turn.answer(
                request,
                Answer::JoinGroup(Err(JoinRefused { error, member })),
            );
        }
        self.forget_if_unused(&name);
    }

    fn try_join(
        &mut self,
        turn: &mut Turn,
        request: RequestId,
        join: JoinGroup,
    ) -> Result<(), GroupError> {
        check_group_name(&join.group)?;
        classic::check_join(&join, turn)?;
        if !join.member.is_empty() && !self.by_name.contains_key(&join.group) {
            return Err(GroupError::UnknownMemberId);
        }
        let name = join.group.clone();
        let group = self.get_or_create(&name, turn)?;
        if group.offsets.are_of_flow() {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        match group.classic(turn, &name) {
            Some(group) => {
                group.join(turn, request, join);
                Ok(())
            }
            None => Err(GroupError::InconsistentGroupProtocol),
        }
    }

    pub fn sync(&mut self, turn: &mut Turn, request: RequestId, sync: SyncGroup) {
        let group = self.member_group(&sync.group);
        match group {
            Err(error) => turn.answer(request, Answer::SyncGroup(Err(error))),
            Ok(group) => group.sync(turn, request, sync),
        }
    }

    pub fn heartbeat(&mut self, turn: &mut Turn, request: RequestId, heartbeat: &Heartbeat) {
        let group = self.member_group(&heartbeat.group);
        let result = group.and_then(|group| group.heartbeat(turn, heartbeat));
        turn.answer(request, Answer::Heartbeat(result));
    }

    pub fn leave(&mut self, turn: &mut Turn, request: RequestId, leave: LeaveGroup) {
        let left = match self.member_group(&leave.group) {
            Ok(group) => Ok(group.leave(turn, leave.members)),
            // Members of a group of KIP-848 leave by heartbeat.
            Err(error @ GroupError::UnknownMemberId) => {
                let refuse = |leaving: LeavingMember| LeftMember {
                    member: leaving.member,
                    instance: leaving.instance,
                    error: Some(error),
                };
                Ok(leave.members.into_iter().map(refuse).collect())
            }
            Err(error) => Err(error),
        };
        turn.answer(request, Answer::LeaveGroup(left));
    }

    pub fn consumer_heartbeat(
        &mut self,
        turn: &mut Turn,
        request: RequestId,
        heartbeat: ConsumerHeartbeat,
    ) {
        let name = heartbeat.group.clone();
        let result = self.try_consumer_heartbeat(turn, heartbeat);
        turn.answer(request, Answer::ConsumerHeartbeat(result));
        self.forget_if_unused(&name);
    }

    fn try_consumer_heartbeat(
        &mut self,
        turn: &mut Turn,
        heartbeat: ConsumerHeartbeat,
    ) -> Result<ConsumerBeat, HeartbeatRefused> {
        check_group_name(&heartbeat.group).map_err(|_| GroupError::InvalidRequest)?;
        consumer::check(&heartbeat)?;
        let name = heartbeat.group.clone();
        if heartbeat.epoch == Epoch::JOIN {
            let group = self.get_or_create(&name, turn)?;
            if group.offsets.are_of_flow() {
                return Err(of_flow(&name));
            }
            let group = group.consumer(turn, &name);
            let group = group.ok_or(GroupError::GroupIdNotFound)?;
            return group.heartbeat(turn, heartbeat);
        }
        match self.by_name.get_mut(&name).map(|group| &mut group.members) {
            Some(Members::Consumer(group)) if heartbeat.epoch < Epoch::JOIN => {
                group.leave(turn, &heartbeat)
            }
            Some(Members::Consumer(group)) => group.heartbeat(turn, heartbeat),
            Some(Members::Classic(_) | Members::Share(_) | Members::Streams(_)) | None => {
                Err(GroupError::GroupIdNotFound.into())
            }
        }
    }

    pub fn share_heartbeat(
        &mut self,
        turn: &mut Turn,
        request: RequestId,
        heartbeat: ShareHeartbeat,
    ) {
        let name = heartbeat.group.clone();
        let result = self.try_share_heartbeat(turn, heartbeat);
        turn.answer(request, Answer::ShareHeartbeat(result));
        self.forget_if_unused(&name);
    }

    fn try_share_heartbeat(
        &mut self,
        turn: &mut Turn,
        heartbeat: ShareHeartbeat,
    ) -> Result<ShareBeat, HeartbeatRefused> {
        check_group_name(&heartbeat.group).map_err(|_| GroupError::InvalidRequest)?;
        share::check(&heartbeat)?;
        let name = heartbeat.group.clone();
        if heartbeat.epoch == Epoch::JOIN {
            let group = self.get_or_create(&name, turn)?.share(&name);
            let group = group.ok_or(GroupError::GroupIdNotFound)?;
            return group.heartbeat(turn, heartbeat);
        }
        match self.by_name.get_mut(&name).map(|group| &mut group.members) {
            Some(Members::Share(group)) if heartbeat.epoch < Epoch::JOIN => {
                group.leave(turn, &heartbeat)
            }
            Some(Members::Share(group)) => group.heartbeat(turn, heartbeat),
            Some(Members::Classic(_) | Members::Consumer(_) | Members::Streams(_)) | None => {
                Err(GroupError::GroupIdNotFound.into())
            }
        }
    }

    /// Creates a share group without members. One that exists already stays as it is.
    pub fn create_share_group(&mut self, turn: &mut Turn, request: RequestId, name: &GroupName) {
        let created = self.try_create_share_group(turn, name);
        turn.answer(request, Answer::CreateShareGroup(created));
        self.forget_if_unused(name);
    }

    fn try_create_share_group(
        &mut self,
        turn: &mut Turn,
        name: &GroupName,
    ) -> Result<(), GroupError> {
        check_group_name(name)?;
        let group = self.get_or_create(name, turn)?.share(name);
        let group = group.ok_or(GroupError::GroupIdNotFound)?;
        if !group.is_empty() {
            return Err(GroupError::NonEmptyGroup);
        }
        group.create(turn);
        Ok(())
    }

    pub fn streams_heartbeat(
        &mut self,
        turn: &mut Turn,
        request: RequestId,
        heartbeat: StreamsHeartbeat,
    ) {
        let name = heartbeat.group.clone();
        let result = self.try_streams_heartbeat(turn, heartbeat);
        turn.answer(request, Answer::StreamsHeartbeat(result));
        self.forget_if_unused(&name);
    }

    fn try_streams_heartbeat(
        &mut self,
        turn: &mut Turn,
        heartbeat: StreamsHeartbeat,
    ) -> Result<StreamsBeat, HeartbeatRefused> {
        check_group_name(&heartbeat.group).map_err(|_| GroupError::InvalidRequest)?;
        streams::check(&heartbeat)?;
        let name = heartbeat.group.clone();
        if heartbeat.epoch == Epoch::JOIN {
            let group = self.get_or_create(&name, turn)?;
            if group.offsets.are_of_flow() {
                return Err(of_flow(&name));
            }
            let group = group.streams(turn, &name);
            let group = group.ok_or(GroupError::GroupIdNotFound)?;
            return group.heartbeat(turn, heartbeat);
        }
        match self.by_name.get_mut(&name).map(|group| &mut group.members) {
            Some(Members::Streams(group)) if heartbeat.epoch < Epoch::JOIN => {
                group.leave(turn, &heartbeat)
            }
            Some(Members::Streams(group)) => group.heartbeat(turn, heartbeat),
            Some(Members::Classic(_) | Members::Consumer(_) | Members::Share(_)) | None => {
                Err(GroupError::GroupIdNotFound.into())
            }
        }
    }

    /// The share group of this name.
    pub fn share_group(&self, name: &GroupName) -> Option<&ShareGroup> {
        match &self.by_name.get(name)?.members {
            Members::Share(group) => Some(group),
            Members::Classic(_) | Members::Consumer(_) | Members::Streams(_) => None,
        }
    }

    /// Notes that the broker could not create topics that a group of Kafka Streams needs.
    pub fn creation_failed(&mut self, name: &GroupName, why: String) {
        let members = self.by_name.get_mut(name).map(|group| &mut group.members);
        if let Some(Members::Streams(group)) = members {
            group.creation_failed(why);
        }
    }

    /// The classic group of a request from a member.
    fn member_group(&mut self, name: &GroupName) -> Result<&mut ClassicGroup, GroupError> {
        check_group_name(name)?;
        let group = self.by_name.get_mut(name);
        match group.map(|group| &mut group.members) {
            Some(Members::Classic(group)) => Ok(group),
            Some(Members::Consumer(_) | Members::Share(_) | Members::Streams(_)) | None => {
                Err(GroupError::UnknownMemberId)
            }
        }
    }
}

fn of_flow(name: &GroupName) -> HeartbeatRefused {
    let reason = format!(
        "group {} shows how far the flow of this name is, so it takes no members: choose another group",
        &**name
    );
    HeartbeatRefused::new(GroupError::InvalidRequest, reason)
}
