//! What clients ask of groups, apart from how it is put on the wire.
//!
//! Where Kafka's protocol lets one request name several groups and each is answered by itself (fetching
//! offsets), it becomes several requests here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, ProducerId};

use super::{
    Endpoint, Epoch, Generation, GroupName, InstanceId, LeaderEpoch, MemberId, Partition,
    RandomBytes, Tasks, TopicId, TopicName, Topology,
};

/// A request to the coordinator of groups.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Become a member of a classic group, or stay one. The answer may take as long as the rebalance.
    JoinGroup(JoinGroup),
    /// Hand out the assignment (the leader), and get one's own. The answer waits for the leader.
    SyncGroup(SyncGroup),
    /// Stay a member of a classic group.
    Heartbeat(Heartbeat),
    /// Remove members from a group.
    LeaveGroup(LeaveGroup),
    /// Tell about groups of the classic protocol.
    DescribeGroups(Vec<GroupName>),
    /// Tell which groups there are.
    ListGroups(ListGroups),
    /// Delete groups that have no members, with their offsets.
    DeleteGroups(Vec<GroupName>),
    /// Keep offsets.
    CommitOffsets(CommitOffsets),
    /// Keep offsets when a transaction is committed.
    CommitTransactionOffsets(CommitTransactionOffsets),
    /// End a transaction, as its coordinator decided. Asking twice does no harm.
    EndTransaction(EndTransaction),
    /// Read offsets.
    FetchOffsets(FetchOffsets),
    /// Forget offsets.
    DeleteOffsets(DeleteOffsets),
    /// Become a member of a group of KIP-848, stay one, or leave.
    ConsumerHeartbeat(ConsumerHeartbeat),
    /// Tell about groups of KIP-848.
    DescribeConsumerGroups(Vec<GroupName>),
    /// Become a member of a share group, stay one, or leave.
    ShareHeartbeat(ShareHeartbeat),
    /// Tell about share groups.
    DescribeShareGroups(Vec<GroupName>),
    /// Become a member of a group of Kafka Streams, stay one, or leave.
    StreamsHeartbeat(StreamsHeartbeat),
    /// Tell about groups of Kafka Streams.
    DescribeStreamsGroups(Vec<GroupName>),
}

/// Who sends a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Client {
    /// The client id of the request's header; may be empty.
    pub id: Arc<str>,
    /// Where it comes from.
    pub host: Arc<str>,
}

/// Kafka's JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinGroup {
    /// The group.
    pub group: GroupName,
    /// The member, empty if it has no id yet.
    pub member: MemberId,
    /// Who it is, if it is a static member.
    pub instance: Option<InstanceId>,
    /// Who sends the request.
    pub client: Client,
    /// How long the member may be silent.
    pub session_timeout: Duration,
    /// How long the member may take to join again.
    pub rebalance_timeout: Duration,
    /// What the group is for: `consumer`, `connect`.
    pub protocol_type: Arc<str>,
    /// The protocols that the member supports, the one that it likes best first.
    pub protocols: Vec<Protocol>,
    /// From version 4 of the request on: a new member gets an id first, and joins with it.
    pub member_id_required: bool,
    /// From version 9 on: a leader can be told that there is nothing to assign.
    pub can_skip_assignment: bool,
    /// Used if the member needs an id.
    pub random: RandomBytes,
}

/// A protocol, and what the member says under it.
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
    /// Who it is, if it is a static member.
    pub instance: Option<InstanceId>,
    /// The generation that it belongs to.
    pub generation: Generation,
    /// From version 5 on.
    pub protocol_type: Option<Arc<str>>,
    /// From version 5 on.
    pub protocol: Option<Arc<str>>,
    /// From the leader, what each member gets; empty from the others.
    pub assignments: Vec<(MemberId, Bytes)>,
}

/// Kafka's Heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The group.
    pub group: GroupName,
    /// The member.
    pub member: MemberId,
    /// Who it is, if it is a static member.
    pub instance: Option<InstanceId>,
    /// The generation that it belongs to.
    pub generation: Generation,
}

/// Kafka's LeaveGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveGroup {
    /// The group.
    pub group: GroupName,
    /// Who leaves. Before version 3 it is one, without instance id.
    pub members: Vec<LeavingMember>,
}

/// A member that leaves, or is removed by an administrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeavingMember {
    /// Its id; may be empty for an administrator who knows only the instance id.
    pub member: MemberId,
    /// Who it is, if it is a static member.
    pub instance: Option<InstanceId>,
}

/// Kafka's ListGroups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListGroups {
    /// Only groups in one of these states, in any case; all if empty.
    pub states: Vec<String>,
    /// Only groups of these types (`classic`, `consumer`, `share`), in any case; all if empty.
    pub types: Vec<String>,
}

/// Kafka's OffsetCommit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitOffsets {
    /// The group; one that does not exist is created, if no member commits.
    pub group: GroupName,
    /// The member; empty from who only keeps offsets here.
    pub member: MemberId,
    /// Who it is, if it is a static member.
    pub instance: Option<InstanceId>,
    /// The generation, or the member's epoch; negative from who only keeps offsets here.
    pub generation: Generation,
    /// From version 9 on: the client knows the errors of KIP-848.
    pub knows_member_epochs: bool,
    /// How long to keep the offsets, where an old client says so (versions 2 to 4).
    pub retention: Option<Duration>,
    /// The offsets.
    pub topics: Vec<TopicCommit>,
}

/// Kafka's TxnOffsetCommit.
///
/// Whether the producer's epoch is the current one is the business of the transactions' coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitTransactionOffsets {
    /// The group; one that does not exist is created, if no member commits.
    pub group: GroupName,
    /// The producer whose transaction it is.
    pub producer: ProducerId,
    /// The member; empty from older clients.
    pub member: MemberId,
    /// Who it is, if it is a static member.
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
    /// Its partitions.
    pub partitions: Vec<PartitionCommit>,
}

/// An offset to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionCommit {
    /// The partition.
    pub partition: Partition,
    /// Where to go on reading.
    pub offset: Offset,
    /// The epoch of the leader that was read from, if the client knows it.
    pub leader_epoch: Option<LeaderEpoch>,
    /// Any text; comes back with the offset.
    pub metadata: Arc<str>,
}

/// The end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndTransaction {
    /// The producer whose transaction it is.
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
    /// What to read; `None` for all that there is.
    pub topics: Option<Vec<(TopicName, Vec<Partition>)>>,
    /// From version 7 on: rather an error than an offset that an open transaction is about to change.
    pub require_stable: bool,
}

/// Kafka's OffsetDelete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteOffsets {
    /// The group.
    pub group: GroupName,
    /// What to forget.
    pub topics: Vec<(TopicName, Vec<Partition>)>,
}

/// Partitions of topics.
pub type TopicPartitions = Vec<(TopicId, Vec<Partition>)>;

/// Kafka's ConsumerGroupHeartbeat. What is `None` has not changed since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerHeartbeat {
    /// The group.
    pub group: GroupName,
    /// The member, which has given itself its id.
    pub member: MemberId,
    /// In version 0 of the request: a new member may have no id, and gets one.
    pub gets_member_id: bool,
    /// The member's epoch, or that it joins or leaves.
    pub epoch: Epoch,
    /// Who it is, if it is a static member.
    pub instance: Option<InstanceId>,
    /// Where it is; kept and shown, but not considered.
    pub rack: Option<Arc<str>>,
    /// Who sends the request.
    pub client: Client,
    /// As whom it is known to the access rules, which say what its regular expression may find.
    pub principal: Arc<str>,
    /// How long the member may take to give up partitions.
    pub rebalance_timeout: Option<Duration>,
    /// The topics that it subscribes to; they need not exist yet.
    pub topics: Option<Vec<TopicName>>,
    /// A regular expression for further topics, which matches whole names; empty for none.
    pub regex: Option<Arc<str>>,
    /// The assignor that it wants: `uniform` or `range`.
    pub assignor: Option<Arc<str>>,
    /// What it owns.
    pub owned: Option<TopicPartitions>,
    /// Used if the member needs an id.
    pub random: RandomBytes,
}

/// Kafka's ShareGroupHeartbeat. What is `None` has not changed since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareHeartbeat {
    /// The group.
    pub group: GroupName,
    /// The member, which has given itself its id.
    pub member: MemberId,
    /// The member's epoch, or that it joins or leaves.
    pub epoch: Epoch,
    /// Where it is; kept and shown, but not considered.
    pub rack: Option<Arc<str>>,
    /// Who sends the request.
    pub client: Client,
    /// The topics that it subscribes to; they need not exist yet.
    pub topics: Option<Vec<TopicName>>,
}

/// Kafka's StreamsGroupHeartbeat. What is `None` has not changed since the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamsHeartbeat {
    /// The group.
    pub group: GroupName,
    /// The member, which has given itself its id.
    pub member: MemberId,
    /// The member's epoch, or that it joins or leaves.
    pub epoch: Epoch,
    /// The epoch of the endpoints that the member knows.
    pub endpoint_epoch: i32,
    /// Who it is, if it is a static member.
    pub instance: Option<InstanceId>,
    /// Where it is; kept and shown, but not considered.
    pub rack: Option<Arc<str>>,
    /// Who sends the request.
    pub client: Client,
    /// As whom it is known to the access rules.
    pub principal: Arc<str>,
    /// How long the member may take to give up tasks.
    pub rebalance_timeout: Option<Duration>,
    /// The topology of its application; from a member that joins.
    pub topology: Option<Topology>,
    /// The active tasks that it owns.
    pub owned: Option<Tasks>,
    /// How many standby tasks it says that it owns.
    pub standby: Option<usize>,
    /// How many warm-up tasks it says that it owns.
    pub warmup: Option<usize>,
    /// The process that it is in.
    pub process: Option<Arc<str>>,
    /// Where other processes find it.
    pub endpoint: Option<Endpoint>,
    /// Names and values.
    pub tags: Option<Vec<(Arc<str>, Arc<str>)>>,
    /// Whether all members are to shut down.
    pub shuts_down: bool,
}
