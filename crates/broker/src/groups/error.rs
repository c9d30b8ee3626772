//! The errors of groups, by Kafka's names.

/// The reason why a group refuses a request: Kafka's error of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(i16)]
pub enum GroupError {
    /// The leader's assignment for a member is too large to be stored.
    #[error("the assignment of a member is too large to be stored")]
    UnknownServerError = -1,
    /// The text that goes with an offset is too long.
    #[error("the metadata of the committed offset is too long")]
    OffsetMetadataTooLarge = 12,
    /// The group has had a rebalance since.
    #[error("the member's generation is not the group's current one: join again")]
    IllegalGeneration = 22,
    /// The member shares no protocol with the others, or the group uses the other protocol.
    #[error("the group uses other protocols than the member")]
    InconsistentGroupProtocol = 23,
    /// The group's name is empty or too long.
    #[error("the group's name is empty or too long")]
    InvalidGroupId = 24,
    /// The group has no member with this id.
    #[error("the member does not belong to the group")]
    UnknownMemberId = 25,
    /// The session timeout is out of bounds.
    #[error("the session timeout is out of bounds")]
    InvalidSessionTimeout = 26,
    /// The group is rebalancing: join again.
    #[error("the group is rebalancing")]
    RebalanceInProgress = 27,
    /// There are too many committed offsets.
    #[error("too many committed offsets")]
    InvalidCommitOffsetSize = 28,
    /// The request needs a later version.
    #[error("the request needs a later version")]
    UnsupportedVersion = 35,
    /// A field of the request is out of bounds.
    #[error("the request is invalid")]
    InvalidRequest = 42,
    /// The group has members.
    #[error("the group has members")]
    NonEmptyGroup = 68,
    /// The group does not exist, or uses the other protocol.
    #[error("there is no such group")]
    GroupIdNotFound = 69,
    /// The member has an id now, and must join with it.
    #[error("join again with the member id given")]
    MemberIdRequired = 79,
    /// The group has as many members as it may have, or there are as many groups as there may be.
    #[error("the group is full")]
    GroupMaxSizeReached = 81,
    /// Another member with the same instance id has taken this one's place.
    #[error("another member has taken the place of this instance id")]
    FencedInstanceId = 82,
    /// The offsets of a topic cannot be deleted while members subscribe to it.
    #[error("the group is subscribed to the topic")]
    GroupSubscribedToTopic = 86,
    /// A transaction that is still open has committed an offset of this partition.
    #[error("an open transaction has committed an offset")]
    UnstableOffsetCommit = 88,
    /// The member's epoch is not the one that the group knows: it must give up all partitions and join.
    #[error("the member's epoch is fenced")]
    FencedMemberEpoch = 110,
    /// The instance id belongs to a member that has not left.
    #[error("the instance id is in use")]
    UnreleasedInstanceId = 111,
    /// The assignor does not exist.
    #[error("the assignor is not supported")]
    UnsupportedAssignor = 112,
    /// The member's epoch has changed: try again with the new one.
    #[error("the member's epoch is stale")]
    StaleMemberEpoch = 113,
    /// The regular expression does not parse, or is too large.
    #[error("the regular expression is invalid")]
    InvalidRegularExpression = 128,
    /// The topology contradicts itself, or that of the group.
    #[error("the topology is invalid")]
    StreamsInvalidTopology = 130,
}

impl GroupError {
    /// Kafka's error code.
    pub fn code(self) -> i16 {
        self as i16
    }
}
