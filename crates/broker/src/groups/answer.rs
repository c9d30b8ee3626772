//! The coordinator's answers, independent of the wire format.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Offset;

use super::{
    Client, Endpoint, EndpointPartitions, Epoch, Generation, GroupError, GroupName, InstanceId,
    LeaderEpoch, MemberId, Partition, StreamsStatus, Tasks, TopicId, TopicName, TopicPartitions,
    Topology,
};

/// The answer to a [`Request`](super::Request) of the same name.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The member's place in the new generation.
    JoinGroup(Result<Joined, JoinRefused>),
    /// The member's assignment.
    SyncGroup(Result<Synced, GroupError>),
    /// Whether the member may stay.
    Heartbeat(Result<(), GroupError>),
    /// The result for each member, in the order of the request. Before version 3 the response carries the only
    /// member's error as its own.
    LeaveGroup(Result<Vec<LeftMember>, GroupError>),
    /// For each group, in the order of the request.
    DescribeGroups(Vec<DescribedGroup>),
    /// In the order of their names.
    ListGroups(Vec<ListedGroup>),
    /// For each group, in the order of the request.
    DeleteGroups(Vec<(GroupName, Result<(), GroupError>)>),
    /// For each partition of the request.
    CommitOffsets(Vec<TopicResults>),
    /// For each partition of the request.
    CommitTransactionOffsets(Vec<TopicResults>),
    /// The transaction is ended.
    EndTransaction,
    /// For each partition of the request, or all that there are.
    FetchOffsets(Result<Vec<TopicOffsets>, GroupError>),
    /// For each partition of the request.
    DeleteOffsets(Result<Vec<TopicResults>, GroupError>),
    /// The member's epoch and its assignment.
    ConsumerHeartbeat(Result<ConsumerBeat, HeartbeatRefused>),
    /// For each group, in the order of the request.
    DescribeConsumerGroups(Vec<DescribedConsumerGroup>),
    /// The member's epoch, and which partitions it is to read.
    ShareHeartbeat(Result<ShareBeat, HeartbeatRefused>),
    /// Whether there is a share group without members now.
    CreateShareGroup(Result<(), GroupError>),
    /// For each group, in the order of the request.
    DescribeShareGroups(Vec<DescribedShareGroup>),
    /// The member's epoch, its tasks, and the faults that stop the group.
    StreamsHeartbeat(Result<StreamsBeat, HeartbeatRefused>),
    /// For each group, in the order of the request.
    DescribeStreamsGroups(Vec<DescribedStreamsGroup>),
}

/// A member's place in a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The member's id, from now on.
    pub member: MemberId,
    /// The generation.
    pub generation: Generation,
    /// The group's protocol type: `consumer`, `connect`.
    pub protocol_type: Option<Arc<str>>,
    /// The protocol that was chosen.
    pub protocol: Option<Arc<str>>,
    /// The member that computes the assignment.
    pub leader: MemberId,
    /// For the leader, all members; empty for the others.
    pub members: Vec<JoinedMember>,
    /// Whether the leader has nothing to assign, and only asks for its own assignment.
    pub skip_assignment: bool,
}

/// A member, as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    /// The member.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// Its metadata for the chosen protocol.
    pub metadata: Bytes,
}

/// A member was not let in; the answer's generation is -1 and its leader empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRefused {
    /// The reason.
    pub error: GroupError,
    /// The id to send back: with `MemberIdRequired` the member's new one.
    pub member: MemberId,
}

/// A member's assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// The group's protocol type: `consumer`, `connect`.
    pub protocol_type: Option<Arc<str>>,
    /// The protocol that was chosen.
    pub protocol: Option<Arc<str>>,
    /// Its assignment by the leader; empty if there is none.
    pub assignment: Bytes,
}

/// The result for a member that was to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftMember {
    /// As in the request.
    pub member: MemberId,
    /// As in the request.
    pub instance: Option<InstanceId>,
    /// The reason why it did not leave, if it did not.
    pub error: Option<GroupError>,
}

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupState {
    /// No members; offsets at most.
    Empty,
    /// Classic: members join.
    PreparingRebalance,
    /// Classic: the leader computes the assignment.
    CompletingRebalance,
    /// Kafka Streams: topics are missing or partitioned wrongly.
    NotReady,
    /// KIP-848: the target assignment is not computed yet.
    Assigning,
    /// KIP-848: some members do not have their target assignment yet.
    Reconciling,
    /// All members have their target assignment.
    Stable,
    /// The group does not exist.
    Dead,
}

impl GroupState {
    const ALL: [GroupState; 8] = [
        GroupState::Empty,
        GroupState::PreparingRebalance,
        GroupState::CompletingRebalance,
        GroupState::NotReady,
        GroupState::Assigning,
        GroupState::Reconciling,
        GroupState::Stable,
        GroupState::Dead,
    ];

    /// The state that has this name in any case.
    pub(super) fn named(name: &str) -> Option<GroupState> {
        let mut all = GroupState::ALL.into_iter();
        all.find(|state| state.as_str().eq_ignore_ascii_case(name))
    }

    /// Kafka's name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            GroupState::Empty => "Empty",
            GroupState::PreparingRebalance => "PreparingRebalance",
            GroupState::CompletingRebalance => "CompletingRebalance",
            GroupState::NotReady => "NotReady",
            GroupState::Assigning => "Assigning",
            GroupState::Reconciling => "Reconciling",
            GroupState::Stable => "Stable",
            GroupState::Dead => "Dead",
        }
    }
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which protocol a group uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupType {
    /// Members join together, and one of them assigns.
    Classic,
    /// KIP-848: the coordinator assigns.
    Consumer,
    /// KIP-932: members share partitions, record by record.
    Share,
    /// KIP-1071: the coordinator assigns tasks of Kafka Streams.
    Streams,
}

impl GroupType {
    const ALL: [GroupType; 4] = [
        GroupType::Classic,
        GroupType::Consumer,
        GroupType::Share,
        GroupType::Streams,
    ];

    /// The type that has this name in any case.
    pub(super) fn named(name: &str) -> Option<GroupType> {
        let mut all = GroupType::ALL.into_iter();
        all.find(|group_type| group_type.as_str().eq_ignore_ascii_case(name))
    }

    /// Kafka's name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            GroupType::Classic => "classic",
            GroupType::Consumer => "consumer",
            GroupType::Share => "share",
            GroupType::Streams => "streams",
        }
    }
}

/// A group of the classic protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedGroup {
    /// The group.
    pub group: GroupName,
    /// `GroupIdNotFound` if the group is missing or not classic; before version 6 only the state `Dead` says so.
    pub error: Option<GroupError>,
    /// Its state.
    pub state: GroupState,
    /// Its protocol type; empty if it only stores offsets.
    pub protocol_type: Arc<str>,
    /// The protocol that was chosen; empty unless the group is stable.
    pub protocol: Arc<str>,
    /// Its members.
    pub members: Vec<DescribedMember>,
}

/// A member of a classic group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedMember {
    /// The member.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// Its client id and host.
    pub client: Client,
    /// Its metadata for the chosen protocol; empty unless the group is stable.
    pub metadata: Bytes,
    /// Its assignment; empty unless the group is stable.
    pub assignment: Bytes,
}

/// A group in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedGroup {
    /// The group.
    pub group: GroupName,
    /// Its protocol type; empty if it only stores offsets.
    pub protocol_type: Arc<str>,
    /// Its state.
    pub state: GroupState,
    /// Its type.
    pub group_type: GroupType,
}

/// A summary of a group, for the broker's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The group.
    pub name: GroupName,
    /// Its state.
    pub state: GroupState,
    /// Whether its offsets are the positions of a flow.
    pub is_of_flow: bool,
    /// How many members it has.
    pub members: usize,
    /// Its committed offsets, by topic.
    pub offsets: Vec<(TopicName, Vec<(u32, Offset)>)>,
}

/// The result for each partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicResults {
    /// The topic.
    pub topic: TopicName,
    /// Its partitions, in the order of the request.
    pub partitions: Vec<(Partition, Result<(), GroupError>)>,
}

/// Offsets of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicOffsets {
    /// The topic.
    pub topic: TopicName,
    /// Its partitions; `None` where no offset was committed.
    pub partitions: Vec<(Partition, Result<Option<FetchedOffset>, GroupError>)>,
}

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedOffset {
    /// The next offset to read.
    pub offset: Offset,
    /// The epoch of the leader that the client read from, if the client knew it.
    pub leader_epoch: Option<LeaderEpoch>,
    /// The client's text for the offset.
    pub metadata: Arc<str>,
    /// The topic that the offset was committed for; `None` if an earlier program committed it. Another topic of the
    /// same name does not have this offset.
    pub topic: Option<TopicId>,
}

/// The answer to a member of a group of KIP-848.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerBeat {
    /// The member.
    pub member: MemberId,
    /// Its epoch from now on.
    pub epoch: Epoch,
    /// When to send the next heartbeat.
    pub heartbeat_interval: Duration,
    /// All partitions that it is to have; `None` if nothing has changed. The member gives up all others, and confirms
    /// that by naming the ones that it still owns.
    pub assignment: Option<TopicPartitions>,
}

/// A refused heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatRefused {
    /// The reason.
    pub error: GroupError,
    /// The reason in words, for the client's log.
    pub reason: String,
}

impl HeartbeatRefused {
    pub(super) fn new(error: GroupError, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        HeartbeatRefused { error, reason }
    }
}

impl From<GroupError> for HeartbeatRefused {
    fn from(error: GroupError) -> Self {
        HeartbeatRefused::new(error, error.to_string())
    }
}

/// A group of KIP-848.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedConsumerGroup {
    /// The group.
    pub group: GroupName,
    /// `GroupIdNotFound` if the group is missing or of another type.
    pub error: Option<GroupError>,
    /// Its state.
    pub state: GroupState,
    /// The group's epoch.
    pub epoch: Epoch,
    /// The epoch of the members' targets.
    pub target_epoch: Epoch,
    /// The assignor in use.
    pub assignor: Arc<str>,
    /// Its members.
    pub members: Vec<ConsumerMember>,
}

/// A member of a group of KIP-848.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerMember {
    /// The member.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// Its rack.
    pub rack: Option<Arc<str>>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its client id and host.
    pub client: Client,
    /// The topics that it names.
    pub topics: Vec<TopicName>,
    /// Its regular expression for further topics.
    pub regex: Option<Arc<str>>,
    /// The partitions that it has.
    pub assigned: Vec<TopicAssignment>,
    /// The partitions that it is to have.
    pub target: Vec<TopicAssignment>,
}

/// Partitions of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicAssignment {
    /// The topic's id.
    pub id: TopicId,
    /// Its name.
    pub topic: TopicName,
    /// The partitions, in growing order.
    pub partitions: Vec<Partition>,
}

/// The answer to a member of a share group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareBeat {
    /// The member.
    pub member: MemberId,
    /// Its epoch from now on.
    pub epoch: Epoch,
    /// When to send the next heartbeat.
    pub heartbeat_interval: Duration,
    /// All partitions that it is to read; `None` if nothing has changed.
    pub assignment: Option<TopicPartitions>,
}

/// A share group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedShareGroup {
    /// The group.
    pub group: GroupName,
    /// `GroupIdNotFound` for a group that is missing or of another type.
    pub error: Option<GroupError>,
    /// Its state.
    pub state: GroupState,
    /// The epoch of the group and of its assignment.
    pub epoch: Epoch,
    /// The assignor in use.
    pub assignor: Arc<str>,
    /// Its members.
    pub members: Vec<ShareMember>,
}

/// A member of a share group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareMember {
    /// The member.
    pub member: MemberId,
    /// Its rack.
    pub rack: Option<Arc<str>>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its client id and host.
    pub client: Client,
    /// The topics that it names.
    pub topics: Vec<TopicName>,
    /// The partitions that it is to read.
    pub assigned: Vec<TopicAssignment>,
}

/// The answer to a member of a group of Kafka Streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamsBeat {
    /// The member.
    pub member: MemberId,
    /// Its epoch from now on.
    pub epoch: Epoch,
    /// When to send the next heartbeat.
    pub heartbeat_interval: Duration,
    /// The faults that stop the group, with advice in words.
    pub status: Vec<(StreamsStatus, String)>,
    /// All active tasks that it is to have; `None` if nothing has changed.
    pub tasks: Option<Tasks>,
    /// The epoch of the endpoints.
    pub endpoint_epoch: i32,
    /// The partitions at each endpoint; `None` if the member knows them.
    pub endpoints: Option<Vec<EndpointPartitions>>,
}

/// A group of Kafka Streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedStreamsGroup {
    /// The group.
    pub group: GroupName,
    /// `GroupIdNotFound` if the group is missing or of another type.
    pub error: Option<GroupError>,
    /// Its state.
    pub state: GroupState,
    /// The group's epoch.
    pub epoch: Epoch,
    /// The epoch of the members' targets.
    pub target_epoch: Epoch,
    /// The topology of its application: with the partitions of the topics that the broker makes, once these are known, and
    /// as its members gave it before, as without its source topics.
    pub topology: Option<Topology>,
    /// Its members.
    pub members: Vec<StreamsMemberState>,
}

/// A member of a group of Kafka Streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamsMemberState {
    /// The member.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// Its rack.
    pub rack: Option<Arc<str>>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its client id and host.
    pub client: Client,
    /// The epoch of its topology.
    pub topology_epoch: i32,
    /// The process that it is in.
    pub process: Arc<str>,
    /// The address at which other processes reach it.
    pub endpoint: Option<Endpoint>,
    /// Names and values.
    pub tags: Vec<(Arc<str>, Arc<str>)>,
    /// The tasks that it has.
    pub assigned: Tasks,
    /// The tasks that it is to have.
    pub target: Tasks,
}
