//! A group of the classic protocol: members join together, and one of them, the leader, assigns.
//!
//! ```text
//! Empty ──join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance
//!   ▲                │  ▲   ▲                                         │            │
//!   └──none joined───┘  │   └──── a member joins, leaves, fails ──────┘   the leader syncs
//!                       │                                                          ▼
//!                       └───────────── a member joins, leaves, fails ─────────── Stable
//! ```
//!
//! The log holds only stable generations and empty groups: the members of a rebalance that a restart interrupts begin
//! it again.

mod join;
mod membership;
mod rebalance;
mod store;
mod subscription;
mod sync;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Timestamp;

use super::answer::{
    Answer, DescribedGroup, DescribedMember, GroupState, GroupType, JoinRefused, Joined,
    JoinedMember, ListedGroup, Synced,
};
use super::timers::Timer;
use super::turn::Turn;
use super::{
    Client, Generation, GroupError, GroupName, InstanceId, MemberId, Protocol, RequestId, TopicName,
};

pub(super) use self::join::check as check_join;
use self::store::Stored;

/// The protocol type of Kafka's consumers.
pub(super) const CONSUMER: &str = "consumer";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No members.
    Empty,
    /// Members are joining; the ones that have joined wait for their answers.
    Preparing,
    /// All have joined; the broker waits for the leader's assignment.
    Completing,
    /// All have their assignment, or can have it.
    Stable,
}

/// A group of the classic protocol.
#[derive(Debug)]
pub(super) struct ClassicGroup {
    name: GroupName,
    state: State,
    /// When the state last changed: offsets expire from then on when the group is empty.
    state_since: Timestamp,
    generation: Generation,
    /// Set by the first member.
    protocol_type: Option<Arc<str>>,
    /// The protocol chosen for this generation.
    protocol: Option<Arc<str>>,
    /// Some member, as soon as there is one.
    leader: Option<MemberId>,
    members: BTreeMap<MemberId, Member>,
    /// The members of `members` that are static.
    static_members: BTreeMap<InstanceId, MemberId>,
    /// Ids given to clients that have not joined with them yet.
    pending_join: BTreeSet<MemberId>,
    /// Members that have not yet asked for the assignment of this generation.
    pending_sync: BTreeSet<MemberId>,
    /// Set while the first members of an empty group wait for other members.
    initial: Option<InitialDelay>,
    /// The topics that the members of this generation subscribe to, if all are consumers whose subscriptions can be
    /// read.
    subscribed: Option<BTreeSet<TopicName>>,
    stored: Option<Stored>,
}

/// The wait of an empty group's first members for other members.
#[derive(Debug)]
struct InitialDelay {
    /// The wait that is under way.
    delay: Duration,
    /// The most that further waits may take.
    left: Duration,
    /// Whether a member joined during this wait; if so, more may follow, and the group waits once more.
    joined_meanwhile: bool,
}

#[derive(Debug)]
struct Member {
    instance: Option<InstanceId>,
    client: Client,
    session_timeout: Duration,
    rebalance_timeout: Duration,
    /// Its protocols, the favourite first; never empty.
    protocols: Vec<Protocol>,
    assignment: Bytes,
    awaiting_join: Option<RequestId>,
    awaiting_sync: Option<RequestId>,
    /// The member has not received its id yet, so it sends no heartbeats.
    is_new: bool,
}

impl ClassicGroup {
    pub fn new(name: GroupName, now: Timestamp) -> Self {
        ClassicGroup {
            name,
            state: State::Empty,
            state_since: now,
            generation: Generation(0),
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            static_members: BTreeMap::new(),
            pending_join: BTreeSet::new(),
            pending_sync: BTreeSet::new(),
            initial: None,
            subscribed: None,
            stored: None,
        }
    }

    /// How many members it has.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.state == State::Empty
    }

    /// Whether the group has no member and no pending one.
    pub fn is_abandoned(&self) -> bool {
        self.is_empty() && self.pending_join.is_empty()
    }

    fn set_state(&mut self, state: State, turn: &Turn) {
        self.state = state;
        self.state_since = turn.now.timestamp;
    }

    /// Checks that the member belongs to the group, and holds its instance id if it names one.
    fn check_member(
        &self,
        member: &MemberId,
        instance: Option<&InstanceId>,
    ) -> Result<(), GroupError> {
        if let Some(instance) = instance {
            match self.static_members.get(instance) {
                None => return Err(GroupError::UnknownMemberId),
                Some(owner) if owner != member => return Err(GroupError::FencedInstanceId),
                Some(_) => {}
            }
        }
        match self.members.contains_key(member) {
            true => Ok(()),
            false => Err(GroupError::UnknownMemberId),
        }
    }

    /// Checks a commit of offsets.
    pub fn check_commit(
        &self,
        member: &MemberId,
        instance: Option<&InstanceId>,
        generation: Generation,
        is_transactional: bool,
    ) -> Result<(), GroupError> {
        let is_member = generation.0 >= 0 || !member.is_empty() || instance.is_some();
        if generation.0 < 0 && self.is_empty() {
            return Ok(());
        }
        if is_member {
            self.check_member(member, instance)?;
            if generation != self.generation {
                return Err(GroupError::IllegalGeneration);
            }
        } else if !is_transactional {
            return Err(GroupError::UnknownMemberId);
        }
        match self.state {
            // The member has joined already, so it knows how to react to this error.
            State::Completing if !is_transactional => Err(GroupError::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// A member that commits offsets is alive.
    pub fn committed_by(&self, member: &MemberId, turn: &mut Turn) {
        if matches!(self.state, State::Stable | State::Preparing) {
            self.extend_session(member, turn);
        }
    }

    /// Whether the group subscribes to the topic, and so keeps its offsets.
    pub fn subscribes_to(&self, topic: &TopicName) -> bool {
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.is_of_consumers(),
        }
    }

    fn is_of_consumers(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER)
    }

    /// Checks that offsets may be deleted; those of topics that the group subscribes to may not.
    pub fn check_delete_offsets(&self) -> Result<(), GroupError> {
        match self.is_empty() || self.is_of_consumers() {
            true => Ok(()),
            false => Err(GroupError::NonEmptyGroup),
        }
    }

    /// The time from which the retention of an offset committed at `committed_at` counts; `None` while the offset must
    /// stay.
    pub fn retained_since(&self, committed_at: Timestamp) -> Option<Timestamp> {
        match (&self.protocol_type, self.state) {
            (None, _) => Some(committed_at),
            (Some(_), State::Empty) => Some(self.state_since),
            (Some(_), State::Stable) if self.is_of_consumers() && self.subscribed.is_some() => {
                Some(committed_at)
            }
            _ => None,
        }
    }

    fn state(&self) -> GroupState {
        match self.state {
            State::Empty => GroupState::Empty,
            State::Preparing => GroupState::PreparingRebalance,
            State::Completing => GroupState::CompletingRebalance,
            State::Stable => GroupState::Stable,
        }
    }

    pub fn listed(&self) -> ListedGroup {
        ListedGroup {
            group: self.name.clone(),
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            state: self.state(),
            group_type: GroupType::Classic,
        }
    }

    pub fn described(&self) -> DescribedGroup {
        // Until the group is stable, metadata and assignments may change at any moment.
        let protocol = self
            .protocol
            .clone()
            .filter(|_| self.state == State::Stable);
        let members = self.members.iter().map(|(id, member)| DescribedMember {
            member: id.clone(),
            instance: member.instance.clone(),
            client: member.client.clone(),
            metadata: member.metadata(protocol.as_deref()),
            assignment: protocol
                .as_ref()
                .map_or(Bytes::new(), |_| member.assignment.clone()),
        });
        DescribedGroup {
            group: self.name.clone(),
            error: None,
            state: self.state(),
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            members: members.collect(),
            protocol: protocol.unwrap_or_default(),
        }
    }

    fn session_timer(&self, member: &MemberId) -> Timer {
        Timer::ClassicSession(self.name.clone(), member.clone())
    }

    /// Restarts a member's session timeout.
    fn extend_session(&self, member: &MemberId, turn: &mut Turn) {
        if let Some(state) = self.members.get(member) {
            turn.set_timer(self.session_timer(member), state.session_timeout);
        }
    }

    /// Removes a member or a pending id. Leaves the waiting requests of the member to the caller.
    fn remove(&mut self, member: &MemberId, turn: &mut Turn) -> Option<Member> {
        let removed = self.members.remove(member);
        if let Some(instance) = removed.as_ref().and_then(|member| member.instance.as_ref()) {
            self.static_members.remove(instance);
        }
        if self.leader.as_ref() == Some(member) {
            self.leader = self.members.keys().next().cloned();
        }
        self.pending_join.remove(member);
        self.pending_sync.remove(member);
        turn.cancel_timer(&self.session_timer(member));
        removed
    }

    /// The answer to a member that has joined.
    fn joined(&self, member: &MemberId) -> Joined {
        let leader = self.leader.clone().unwrap_or_default();
        let protocol = self.protocol.as_deref();
        let describe = |(id, member): (&MemberId, &Member)| JoinedMember {
            member: id.clone(),
            instance: member.instance.clone(),
            metadata: member.metadata(protocol),
        };
        Joined {
            member: member.clone(),
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            members: match leader == *member {
                true => self.members.iter().map(describe).collect(),
                false => Vec::new(),
            },
            leader,
            skip_assignment: false,
        }
    }

    fn synced(&self, member: &Member) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment: member.assignment.clone(),
        }
    }
}

impl Member {
    /// Its metadata for a protocol.
    fn metadata(&self, protocol: Option<&str>) -> Bytes {
        let mut protocols = self.protocols.iter();
        let found = protocols.find(|offered| Some(&*offered.name) == protocol);
        found.map_or(Bytes::new(), |offered| offered.metadata.clone())
    }

    fn supports(&self, protocol: &str) -> bool {
        self.protocols
            .iter()
            .any(|offered| &*offered.name == protocol)
    }
}

/// Refuses a request to join.
fn refuse_join(turn: &mut Turn, request: RequestId, error: GroupError, member: MemberId) {
    let refused = JoinRefused { error, member };
    turn.answer(request, Answer::JoinGroup(Err(refused)));
}
