//! Refusals of requests about share groups.

use kafka_protocol::messages::share_group_describe_response::DescribedGroup;
use kafka_protocol::messages::{
    AlterShareGroupOffsetsResponse, DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest, ShareGroupDescribeRequest, ShareGroupDescribeResponse,
    ShareGroupHeartbeatResponse,
};

use super::{Refusal, each};
use crate::share::{
    DescribeShareGroupOffsetsResponse, ShareAcknowledgeResponse, ShareFetchResponse,
    ShareGroupOffsets,
};

impl Refusal {
    pub(super) fn share_group_heartbeat(&self) -> ShareGroupHeartbeatResponse {
        ShareGroupHeartbeatResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
    }

    pub(super) fn share_group_describe(
        &self,
        request: &ShareGroupDescribeRequest,
    ) -> ShareGroupDescribeResponse {
        ShareGroupDescribeResponse::default().with_groups(each(&request.group_ids, |group| {
            DescribedGroup::default()
                .with_group_id(group.clone())
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
        }))
    }

    pub(super) fn share_fetch(&self) -> ShareFetchResponse {
        ShareFetchResponse {
            error_code: self.code,
            error_message: self.message.clone(),
            ..ShareFetchResponse::default()
        }
    }

    pub(super) fn share_acknowledge(&self) -> ShareAcknowledgeResponse {
        ShareAcknowledgeResponse {
            error_code: self.code,
            error_message: self.message.clone(),
            ..ShareAcknowledgeResponse::default()
        }
    }

    pub(super) fn describe_share_group_offsets(
        &self,
        request: &DescribeShareGroupOffsetsRequest,
    ) -> DescribeShareGroupOffsetsResponse {
        DescribeShareGroupOffsetsResponse {
            throttle_time_ms: 0,
            groups: each(&request.groups, |group| ShareGroupOffsets {
                group_id: group.group_id.clone(),
                error_code: self.code,
                error_message: self.message.clone(),
                ..ShareGroupOffsets::default()
            }),
        }
    }

    pub(super) fn alter_share_group_offsets(&self) -> AlterShareGroupOffsetsResponse {
        AlterShareGroupOffsetsResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
    }

    pub(super) fn delete_share_group_offsets(&self) -> DeleteShareGroupOffsetsResponse {
        DeleteShareGroupOffsetsResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
    }
}
