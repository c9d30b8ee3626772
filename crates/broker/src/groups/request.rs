//! The coordinator's requests, independent of the wire format.
//!
//! Where one request of Kafka's protocol covers several groups and answers each by itself (OffsetFetch), it becomes
//! several requests here.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, ProducerId};

use super::{
    Endpoint, Epoch, Generation, GroupName, GroupState, GroupType, InstanceId, LeaderEpoch,
    MemberId, Partition, RandomBytes, Tasks, TopicId, TopicName, Topology,
};

/// A request to the coordinator of groups.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Become a member of a classic group, or stay one. The answer may take as long as the rebalance.
    JoinGroup(JoinGroup),
    /// Bring the assignment (the leader), and get one's own. The answer waits for the leader.
    SyncGroup(SyncGroup),
    /// Stay a member of a classic group.
    Heartbeat(Heartbeat),
    /// Remove members from a group.
    LeaveGroup(LeaveGroup),
    /// Describe groups of the classic protocol.
    DescribeGroups(Vec<GroupName>),
    /// List the groups.
    ListGroups(ListGroups),
    /// Delete groups that have no members, with their offsets.
    DeleteGroups(Vec<GroupName>),
    /// Commit offsets.
    CommitOffsets(CommitOffsets),
    /// Commit offsets with a transaction: they apply when it is committed.
    CommitTransactionOffsets(CommitTransactionOffsets),
    /// End a transaction, as its coordinator decided. A repeated request does no harm.
    EndTransaction(EndTransaction),
    /// Read offsets.
    FetchOffsets(FetchOffsets),
    /// Delete offsets.
    DeleteOffsets(DeleteOffsets),
    /// Become a member of a group of KIP-848, stay one, or leave.
    ConsumerHeartbeat(ConsumerHeartbeat),
    /// Describe groups of KIP-848.
    DescribeConsumerGroups(Vec<GroupName>),
    /// Become a member of a share group, stay one, or leave.
    ShareHeartbeat(ShareHeartbeat),
    /// Create a share group without members, if there is no group of this name.
    CreateShareGroup(GroupName),
    /// Describe share groups.
    DescribeShareGroups(Vec<GroupName>),
    /// Become a member of a group of Kafka Streams, stay one, or leave.
    StreamsHeartbeat(StreamsHeartbeat),
    /// Describe groups of Kafka Streams.
    DescribeStreamsGroups(Vec<GroupName>),
}

/// The client that sends a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Client {
    /// The client id of the request's header; may be empty.
    pub id: Arc<str>,
    /// The host that it connects from.
    pub host: Arc<str>,
}

/// Kafka's JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinGroup {
    /// The group.
    pub group: GroupName,
    /// The member, empty if it has no id yet.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// The client that sends the request.
    pub client: Client,
    /// How long the member may be silent.
    pub session_timeout: Duration,
    /// How long the member may take to join again.
    pub rebalance_timeout: Duration,
    /// The group's protocol type: `consumer`, `connect`.
    pub protocol_type: Arc<str>,
    /// The protocols that the member supports, its favourite first.
    pub protocols: Vec<Protocol>,
    /// From version 4 of the request on: a new member gets an id first, and joins with it.
    pub member_id_required: bool,
    /// From version 9 on: the answer can tell a leader to skip the assignment.
    pub can_skip_assignment: bool,
    /// Used if the member needs an id.
    pub random: RandomBytes,
}

/// A protocol, and the member's metadata for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protocol {
    /// Its name, as `range`.
    pub name: Arc<str>,
    /// Opaque; for the leader. Of protocol type `consumer`, the subscription.
    pub metadata: Bytes,
}

/// Kafka's SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncGroup {
    /// The group.
    pub group: GroupName,
    /// The member.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// The generation that it belongs to.
    pub generation: Generation,
    /// From version 5 on.
    pub protocol_type: Option<Arc<str>>,
    /// From version 5 on.
    pub protocol: Option<Arc<str>>,
    /// From the leader, the assignment of each member; empty from the others.
    pub assignments: Vec<(MemberId, Bytes)>,
}

/// Kafka's Heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The group.
    pub group: GroupName,
    /// The member.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// The generation that it belongs to.
    pub generation: Generation,
}

/// Kafka's LeaveGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveGroup {
    /// The group.
    pub group: GroupName,
    /// The members that leave. Before version 3 there is one, without instance id.
    pub members: Vec<LeavingMember>,
}

/// A member that leaves, or is removed by an administrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeavingMember {
    /// Its id; may be empty for an administrator with only the instance id.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
}

/// Kafka's ListGroups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListGroups {
    /// Only groups in one of these states; `None` for groups in any state.
    pub states: Option<BTreeSet<GroupState>>,
    /// Only groups of these types; `None` for groups of any type.
    pub types: Option<BTreeSet<GroupType>>,
}

impl ListGroups {
    /// Lists the groups with one of these states and one of these types. Names match in any case; no names at all stand
    /// for all states or types, and an unknown name for none.
    pub fn named<T: Deref<Target = str>>(states: &[T], types: &[T]) -> Self {
        ListGroups {
            states: filter(states, GroupState::named),
            types: filter(types, GroupType::named),
        }
    }
}

fn filter<V: Ord>(
    names: &[impl Deref<Target = str>],
    named: impl Fn(&str) -> Option<V>,
) -> Option<BTreeSet<V>> {
    let values = names.iter().filter_map(|name| named(name.trim()));
    (!names.is_empty()).then(|| values.collect())
}

/// Kafka's OffsetCommit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitOffsets {
    /// The group; a commit without a member creates a missing one.
    pub group: GroupName,
    /// The member; empty from a client that only stores offsets here.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// The generation, or the member's epoch; negative from a client that only stores offsets here.
    pub generation: Generation,
    /// From version 9 on: the client knows the errors of KIP-848.
    pub knows_member_epochs: bool,
    /// How long to retain the offsets, if an old client says so (versions 2 to 4).
    pub retention: Option<Duration>,
    /// The offsets.
    pub topics: Vec<TopicCommit>,
}

/// Kafka's TxnOffsetCommit.
///
/// The coordinator of transactions checks the producer's epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitTransactionOffsets {
    /// The group; a commit without a member creates a missing one.
    pub group: GroupName,
    /// The producer of the transaction.
    pub producer: ProducerId,
    /// The member; empty from older clients.
    pub member: MemberId,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// The generation, or the member's epoch; negative from older clients.
    pub generation: Generation,
    /// The offsets.
    pub topics: Vec<TopicCommit>,
}

/// The offsets of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicCommit {
    /// The topic.
    pub topic: TopicName,
    /// Its id; the default, which no topic has, if it was deleted meanwhile.
    pub id: TopicId,
    /// Its partitions.
    pub partitions: Vec<PartitionCommit>,
}

/// An offset to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionCommit {
    /// The partition.
    pub partition: Partition,
    /// The next offset to read.
    pub offset: Offset,
    /// The epoch of the leader that the client read from, if the client knows it.
    pub leader_epoch: Option<LeaderEpoch>,
    /// Any text; a fetch returns it with the offset.
    pub metadata: Arc<str>,
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndTransaction {
    /// The producer of the transaction.
    pub producer: ProducerId,
    /// Whether it is committed, or else aborted.
    pub committed: bool,
}

/// Kafka's OffsetFetch, for one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchOffsets {
    /// The group.
    pub group: GroupName,
    /// From version 9 on, the member of a group of KIP-848.
    pub member: Option<MemberId>,
    /// Its epoch; negative if there is no member.
    pub member_epoch: Generation,
    /// The partitions to read; `None` for all with an offset.
    pub topics: Option<Vec<(TopicName, Vec<Partition>)>>,
    /// From version 7 on: return an error for an offset that an open transaction may change.
    pub require_stable: bool,
}

/// Kafka's OffsetDelete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteOffsets {
    /// The group.
    pub group: GroupName,
    /// The partitions whose offsets to delete.
    pub topics: Vec<(TopicName, Vec<Partition>)>,
}

/// Partitions of topics.
pub type TopicPartitions = Vec<(TopicId, Vec<Partition>)>;

/// Kafka's ConsumerGroupHeartbeat. A field that is `None` has not changed since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerHeartbeat {
    /// The group.
    pub group: GroupName,
    /// The member, which has given itself its id.
    pub member: MemberId,
    /// In version 0 of the request: a new member may have no id, and gets one.
    pub gets_member_id: bool,
    /// The member's epoch, or the request to join or leave.
    pub epoch: Epoch,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// Its rack; stored and shown, but not considered.
    pub rack: Option<Arc<str>>,
    /// The client that sends the request.
    pub client: Client,
    /// Its principal; the access rules for it limit the topics that its regular expression may match.
    pub principal: Arc<str>,
    /// How long the member may take to give up partitions.
    pub rebalance_timeout: Option<Duration>,
    /// The topics that it subscribes to; they need not exist yet.
    pub topics: Option<Vec<TopicName>>,
    /// A regular expression for further topics, which matches whole names; empty for none.
    pub regex: Option<Arc<str>>,
    /// The assignor that it wants: `uniform` or `range`.
    pub assignor: Option<Arc<str>>,
    /// The partitions that it owns.
    pub owned: Option<TopicPartitions>,
    /// Used if the member needs an id.
    pub random: RandomBytes,
}

/// Kafka's ShareGroupHeartbeat. A field that is `None` has not changed since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareHeartbeat {
    /// The group.
    pub group: GroupName,
    /// The member, which has given itself its id.
    pub member: MemberId,
    /// The member's epoch, or the request to join or leave.
    pub epoch: Epoch,
    /// Its rack; stored and shown, but not considered.
    pub rack: Option<Arc<str>>,
    /// The client that sends the request.
    pub client: Client,
    /// The topics that it subscribes to; they need not exist yet.
    pub topics: Option<Vec<TopicName>>,
}

/// Kafka's StreamsGroupHeartbeat. A field that is `None` has not changed since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamsHeartbeat {
    /// The group.
    pub group: GroupName,
    /// The member, which has given itself its id.
    pub member: MemberId,
    /// The member's epoch, or the request to join or leave.
    pub epoch: Epoch,
    /// The epoch of the endpoints that the member knows.
    pub endpoint_epoch: i32,
    /// The instance id of a static member.
    pub instance: Option<InstanceId>,
    /// Its rack; stored and shown, but not considered.
    pub rack: Option<Arc<str>>,
    /// The client that sends the request.
    pub client: Client,
    /// Its principal, for the access rules.
    pub principal: Arc<str>,
    /// How long the member may take to give up tasks.
    pub rebalance_timeout: Option<Duration>,
    /// The topology of its application; from a member that joins.
    pub topology: Option<Topology>,
    /// The active tasks that it owns.
    pub owned: Option<Tasks>,
    /// How many standby tasks it claims to own.
    pub standby: Option<usize>,
    /// How many warm-up tasks it claims to own.
    pub warmup: Option<usize>,
    /// The process that it is in.
    pub process: Option<Arc<str>>,
    /// The address at which other processes reach it.
    pub endpoint: Option<Endpoint>,
    /// Names and values.
    pub tags: Option<Vec<(Arc<str>, Arc<str>)>>,
    /// Whether all members are to shut down.
    pub shuts_down: bool,
}
