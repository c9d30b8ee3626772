//! Errors, by name and code.

use kafka_protocol::ResponseError;
use millstream_broker::groups::GroupError;

#[test]
fn errors_have_the_codes_that_kafka_gives_their_names() {
    let errors = [
        GroupError::UnknownServerError,
        GroupError::OffsetMetadataTooLarge,
        GroupError::IllegalGeneration,
        GroupError::InconsistentGroupProtocol,
        GroupError::InvalidGroupId,
        GroupError::UnknownMemberId,
        GroupError::InvalidSessionTimeout,
        GroupError::RebalanceInProgress,
        GroupError::InvalidCommitOffsetSize,
        GroupError::UnsupportedVersion,
        GroupError::InvalidRequest,
        GroupError::NonEmptyGroup,
        GroupError::GroupIdNotFound,
        GroupError::MemberIdRequired,
        GroupError::GroupMaxSizeReached,
        GroupError::FencedInstanceId,
        GroupError::GroupSubscribedToTopic,
        GroupError::UnstableOffsetCommit,
        GroupError::FencedMemberEpoch,
        GroupError::UnreleasedInstanceId,
        GroupError::UnsupportedAssignor,
        GroupError::StaleMemberEpoch,
        GroupError::InvalidRegularExpression,
    ];
    for error in errors {
        let known = ResponseError::try_from_code(error.code());
        let name = known.map(|known| format!("{known:?}"));
        assert_eq!(name, Some(format!("{error:?}")));
    }
}
