//! The meaning of Kafka's errors in words, for answers without a message.

use millstream_wire::{ApiKey, ResponseError};

/// The key of the first native request.
pub(crate) const NATIVE_FROM: i16 = ApiKey::CreateStream as i16;

/// Returns the meaning of an error.
pub(crate) fn reason(error: ResponseError) -> String {
    known(error).map_or_else(|| format!("Kafka's error {error}"), str::to_owned)
}

fn known(error: ResponseError) -> Option<&'static str> {
    use ResponseError as E;
    Some(match error {
        E::UnknownServerError => "the server failed; see its log",
        E::OffsetOutOfRange => "there is no record of this offset",
        E::CorruptMessage => "the records were damaged on the way",
        E::UnknownTopicOrPartition | E::UnknownTopicId => {
            "there is no such stream or partition, or not any more"
        }
        E::LeaderNotAvailable | E::NotLeaderOrFollower | E::BrokerNotAvailable => {
            "no server leads it now; try again"
        }
        E::RequestTimedOut => "the server did not get it done in time",
        E::MessageTooLarge | E::RecordListTooLarge => "it is larger than the stream takes at once",
        E::CoordinatorLoadInProgress | E::CoordinatorNotAvailable | E::NotCoordinator => {
            "no server keeps it now; try again"
        }
        E::NotEnoughReplicas | E::NotEnoughReplicasAfterAppend => "too few replicas are in sync",
        E::InvalidTopicException => "a stream cannot have this name",
        E::InvalidGroupId => "a group cannot have this name",
        E::IllegalGeneration
        | E::UnknownMemberId
        | E::FencedMemberEpoch
        | E::StaleMemberEpoch
        | E::RebalanceInProgress => {
            "the group has given the partitions of this member to others, or is about to"
        }
        error if is_denial(error) => "no access rule allows it",
        E::IllegalSaslState => "the server wants a login first",
        E::SaslAuthenticationFailed => "user or password is wrong",
        E::UnsupportedSaslMechanism => "the server does not know this way to log in",
        E::UnsupportedVersion => "the server does not do this, or not any more",
        E::TopicAlreadyExists => "it exists already",
        E::InvalidPartitions => "it cannot have this number of partitions",
        E::InvalidReplicationFactor => "there are fewer servers than replicas",
        E::InvalidConfig => "the server refuses a setting",
        E::InvalidRequest => "the server finds the request invalid",
        E::PolicyViolation => "the server's policy forbids it",
        E::KafkaStorageError => "the server's disk is full, or has failed",
        E::NonEmptyGroup => "the group has members; stop them first",
        E::GroupIdNotFound => "there is no such group",
        E::GroupMaxSizeReached => "the group has as many members as it may",
        E::GroupSubscribedToTopic => "members of the group read the stream; stop them first",
        E::SecurityDisabled => "the server has no access rules",
        E::ResourceNotFound => "it does not exist",
        E::UnacceptableCredential => "the server does not take this user or password",
        E::ThrottlingQuotaExceeded => "a quota is used up; try again later",
        E::OutOfOrderSequenceNumber | E::UnknownProducerId => "records before it are missing",
        E::ProducerFenced | E::InvalidProducerEpoch => "a newer producer has taken its place",
        E::UnsupportedCompressionType => "the server does not know this compression",
        _ => return None,
    })
}

/// Returns whether the user lacks a right.
pub(crate) fn is_denial(error: ResponseError) -> bool {
    matches!(
        error,
        ResponseError::TopicAuthorizationFailed
            | ResponseError::GroupAuthorizationFailed
            | ResponseError::ClusterAuthorizationFailed
            | ResponseError::TransactionalIdAuthorizationFailed
    )
}

/// Returns the servers that know a request, as the end of a message about one that does not.
pub(crate) fn servers_that_know(api: ApiKey) -> &'static str {
    match api {
        _ if api as i16 >= NATIVE_FROM => "; only a server of Millstream does",
        ApiKey::ConsumerGroupHeartbeat | ApiKey::ConsumerGroupDescribe => {
            "; groups need the protocol of KIP-848, which Apache Kafka has since 4.0"
        }
        _ => " in a version that is known here",
    }
}
