//! Joining a classic group.

use bytes::Bytes;

use super::{ClassicGroup, Member, State, refuse_join};
use crate::groups::answer::Answer;
use crate::groups::config::{ID_BYTES_MAX, INSTANCE_ID_BYTES_MAX};
use crate::groups::config::{MEMBER_BYTES_MAX, PROTOCOLS_MAX};
use crate::groups::turn::Turn;
use crate::groups::{GroupError, InstanceId, JoinGroup, MemberId, Protocol, RequestId};

/// Checks the fields that do not depend on the group.
pub fn check(join: &JoinGroup, turn: &Turn) -> Result<(), GroupError> {
    let timeouts = turn.config.session_timeout_min..=turn.config.session_timeout_max;
    if !timeouts.contains(&join.session_timeout) {
        return Err(GroupError::InvalidSessionTimeout);
    }
    let ids = [
        &*join.client.id,
        &join.client.host,
        &join.protocol_type,
        &join.member,
    ];
    let names = join.protocols.iter().map(|protocol| &*protocol.name);
    let bytes: usize = join
        .protocols
        .iter()
        .map(|protocol| protocol.metadata.len())
        .sum();
    let is_too_long = ids
        .into_iter()
        .chain(names)
        .any(|id| id.len() > ID_BYTES_MAX)
        || join
            .instance
            .as_ref()
            .is_some_and(|id| id.len() > INSTANCE_ID_BYTES_MAX)
        || join.protocols.len() > PROTOCOLS_MAX
        || bytes > MEMBER_BYTES_MAX;
    match is_too_long {
        true => Err(GroupError::InvalidRequest),
        false => Ok(()),
    }
}

impl ClassicGroup {
    /// Lets a member join. The answer comes at once, or when the rebalance has collected all members.
    pub fn join(&mut self, turn: &mut Turn, request: RequestId, join: JoinGroup) {
        let refused = if !self.has_room_for(&join.member, turn) {
            // A pending member that comes too late for the last place loses its id.
            self.remove(&join.member, turn);
            Some((GroupError::GroupMaxSizeReached, MemberId::default()))
        } else if !self.supports(&join) {
            Some((GroupError::InconsistentGroupProtocol, join.member.clone()))
        } else if join.member.is_empty() {
            self.join_new(turn, request, join);
            None
        } else if self.pending_join.contains(&join.member) {
            match join.instance {
                // It was given the id as a member that is not static.
                Some(_) => Some((GroupError::UnknownMemberId, join.member)),
                None => {
                    let member = join.member.clone();
                    self.add(turn, request, join, member);
                    None
                }
            }
        } else {
            match self.check_member(&join.member, join.instance.as_ref()) {
                Err(error) => Some((error, join.member)),
                Ok(()) => {
                    self.join_again(turn, request, join);
                    None
                }
            }
        };
        if let Some((error, member)) = refused {
            refuse_join(turn, request, error, member);
        }
        self.store_if_new(turn);
    }

    /// Whether the member, which may be new, has room in the group.
    fn has_room_for(&self, member: &MemberId, turn: &Turn) -> bool {
        let members_max = turn.config.members_max;
        match self.state {
            State::Empty => true,
            // Members that wait for the rebalance go before new ones.
            State::Preparing => {
                let waits = |member: &Member| member.awaiting_join.is_some();
                self.members.get(member).is_some_and(waits)
                    || self.members.values().filter(|member| waits(member)).count() < members_max
            }
            State::Completing | State::Stable => {
                self.members.contains_key(member) || self.members.len() < members_max
            }
        }
    }

    /// Whether the member shares the protocol type and a protocol with all others.
    fn supports(&self, join: &JoinGroup) -> bool {
        if self.state == State::Empty {
            return !join.protocol_type.is_empty() && !join.protocols.is_empty();
        }
        let is_common = |protocol: &Protocol| {
            let mut members = self.members.values();
            members.all(|member| member.supports(&protocol.name))
        };
        self.protocol_type.as_ref() == Some(&join.protocol_type)
            && join.protocols.iter().any(is_common)
    }

    fn join_new(&mut self, turn: &mut Turn, request: RequestId, join: JoinGroup) {
        let prefix = join.instance.as_deref().unwrap_or(&join.client.id);
        let member = MemberId::from(format!("{prefix}-{}", join.random.uuid()));
        let existing = join
            .instance
            .as_ref()
            .and_then(|id| self.static_members.get(id));
        match existing.cloned() {
            Some(existing) => self.replace_static(turn, request, join, existing, member),
            None if join.instance.is_none() && join.member_id_required => {
                self.give_id(turn, request, join, member);
            }
            None => self.add(turn, request, join, member),
        }
    }

    /// Gives a new member its id. It joins when it sends the request again with the id, so that a client that retries
    /// after a lost answer becomes only one member.
    fn give_id(&mut self, turn: &mut Turn, request: RequestId, join: JoinGroup, member: MemberId) {
        if self.pending_join.len() >= turn.config.members_max {
            let error = GroupError::GroupMaxSizeReached;
            return refuse_join(turn, request, error, MemberId::default());
        }
        self.pending_join.insert(member.clone());
        turn.set_timer(self.session_timer(&member), join.session_timeout);
        refuse_join(turn, request, GroupError::MemberIdRequired, member);
    }

    fn add(&mut self, turn: &mut Turn, request: RequestId, join: JoinGroup, member: MemberId) {
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type.clone());
        }
        if let Some(initial) = &mut self.initial {
            initial.joined_meanwhile = true;
        }
        if let Some(instance) = &join.instance {
            self.static_members.insert(instance.clone(), member.clone());
        }
        self.leader.get_or_insert_with(|| member.clone());
        self.pending_join.remove(&member);
        let state = Member {
            instance: join.instance,
            client: join.client,
            session_timeout: join.session_timeout,
            rebalance_timeout: join.rebalance_timeout,
            protocols: copied(join.protocols),
            assignment: Bytes::new(),
            awaiting_join: Some(request),
            awaiting_sync: None,
            is_new: true,
        };
        self.members.insert(member.clone(), state);
        turn.set_timer(
            self.session_timer(&member),
            turn.config.new_member_join_timeout,
        );
        self.rebalance_or_complete(turn);
    }

    /// Handles the request of a member that belongs to the group already.
    fn join_again(&mut self, turn: &mut Turn, request: RequestId, join: JoinGroup) {
        let Some(member) = self.members.get(&join.member) else {
            return refuse_join(turn, request, GroupError::UnknownMemberId, join.member);
        };
        let has_changed = member.protocols != join.protocols;
        let is_leader = self.leader.as_ref() == Some(&join.member);
        match self.state {
            State::Empty => {
                refuse_join(turn, request, GroupError::UnknownMemberId, join.member);
            }
            // The member has missed the answer, or is a follower, which need not start a rebalance. A leader starts
            // one, since it may know of changes that the broker does not see, for example new partitions.
            State::Completing if !has_changed => self.tell(turn, request, &join.member),
            State::Stable if !has_changed && !is_leader => self.tell(turn, request, &join.member),
            State::Preparing | State::Completing | State::Stable => {
                self.update(turn, Some(request), &join.member.clone(), join);
                self.rebalance_or_complete(turn);
            }
        }
    }

    /// Answers with the current generation.
    fn tell(&self, turn: &mut Turn, request: RequestId, member: &MemberId) {
        turn.answer(request, Answer::JoinGroup(Ok(self.joined(member))));
    }

    /// Replaces a member's protocols and timeouts by those of the request, and holds the request until all have
    /// joined.
    fn update(
        &mut self,
        turn: &mut Turn,
        request: Option<RequestId>,
        id: &MemberId,
        join: JoinGroup,
    ) {
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        member.protocols = copied(join.protocols);
        member.session_timeout = join.session_timeout;
        member.rebalance_timeout = join.rebalance_timeout;
        // A member that sends a new request has given up the earlier one.
        let before = std::mem::replace(&mut member.awaiting_join, request);
        if let Some(before) = before {
            refuse_join(turn, before, GroupError::RebalanceInProgress, id.clone());
        }
    }

    /// Replaces a static member that comes back without its id.
    fn replace_static(
        &mut self,
        turn: &mut Turn,
        request: RequestId,
        join: JoinGroup,
        old: MemberId,
        new: MemberId,
    ) {
        let leader = self.leader.clone().unwrap_or_default();
        let can_skip_assignment = join.can_skip_assignment;
        let Some(instance) = join.instance.clone() else {
            return;
        };
        self.rename(turn, &instance, &old, &new);
        self.update(turn, None, &new, join);
        self.extend_session(&new, turn);
        match self.state {
            // No rebalance: the member takes up its old assignment, and the others notice nothing.
            State::Stable if self.protocol == self.choose_protocol() => {
                self.store(turn);
                let mut joined = self.joined(&new);
                if can_skip_assignment {
                    joined.skip_assignment = joined.leader == new;
                } else {
                    // The member must not assign, so the answer names another leader.
                    joined.leader = leader;
                    joined.members = Vec::new();
                }
                turn.answer(request, Answer::JoinGroup(Ok(joined)));
            }
            State::Completing | State::Stable => {
                // In the middle of a rebalance the leader may have received the old id.
                self.await_join(&new, request);
                self.prepare_rebalance(turn);
            }
            State::Empty | State::Preparing => {
                self.await_join(&new, request);
                self.complete_if_all_joined(turn);
            }
        }
    }

    fn await_join(&mut self, member: &MemberId, request: RequestId) {
        if let Some(member) = self.members.get_mut(member) {
            member.awaiting_join = Some(request);
        }
    }

    /// Gives a static member its new id. Requests that wait under the old id are fenced.
    fn rename(&mut self, turn: &mut Turn, instance: &InstanceId, old: &MemberId, new: &MemberId) {
        let leads = self.leader.as_ref() == Some(old);
        let awaits_sync = self.pending_sync.contains(old);
        let Some(mut member) = self.remove(old, turn) else {
            return;
        };
        if let Some(request) = member.awaiting_join.take() {
            refuse_join(turn, request, GroupError::FencedInstanceId, old.clone());
        }
        if let Some(request) = member.awaiting_sync.take() {
            turn.answer(
                request,
                Answer::SyncGroup(Err(GroupError::FencedInstanceId)),
            );
        }
        member.is_new = false;
        if awaits_sync {
            self.pending_sync.insert(new.clone());
        }
        self.members.insert(new.clone(), member);
        self.static_members.insert(instance.clone(), new.clone());
        if leads {
            self.leader = Some(new.clone());
        }
    }
}

/// Copies the protocols: they are kept, and may be slices of a larger buffer.
fn copied(mut protocols: Vec<Protocol>) -> Vec<Protocol> {
    for protocol in &mut protocols {
        protocol.metadata = Bytes::copy_from_slice(&protocol.metadata);
    }
    protocols
}
