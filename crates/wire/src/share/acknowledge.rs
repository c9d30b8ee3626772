//! The messages of ShareAcknowledge.

use kafka_protocol::messages::share_acknowledge_request::AcknowledgeTopic;
use kafka_protocol::messages::share_acknowledge_response::{
    NodeEndpoint, ShareAcknowledgeTopicResponse,
};
use kafka_protocol::messages::{
    GroupId, ShareAcknowledgeRequest as GeneratedRequest,
    ShareAcknowledgeResponse as GeneratedResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::{RENEWS_FROM, check_is_default, put_all, take_all};
use crate::body::Body;
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// Kafka's ShareAcknowledge.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareAcknowledgeRequest {
    /// The group.
    pub group_id: Option<GroupId>,
    /// The member.
    pub member_id: Option<StrBytes>,
    /// The epoch of the share session; -1 ends it.
    pub share_session_epoch: i32,
    /// Whether acknowledgements may renew locks, from version 2 on.
    pub is_renew_ack: bool,
    /// The records.
    pub topics: Vec<AcknowledgeTopic>,
}

/// Answers [`ShareAcknowledgeRequest`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareAcknowledgeResponse {
    /// How long the client is throttled, in milliseconds.
    pub throttle_time_ms: i32,
    /// The error of the whole request; 0 if there is none.
    pub error_code: i16,
    /// The description of the error.
    pub error_message: Option<StrBytes>,
    /// The duration of the locks that the member renewed, in milliseconds, from version 2 on.
    pub acquisition_lock_timeout_ms: i32,
    /// The result of each partition.
    pub responses: Vec<ShareAcknowledgeTopicResponse>,
    /// The addresses of the new leaders that partitions name.
    pub node_endpoints: Vec<NodeEndpoint>,
}

impl Body for ShareAcknowledgeRequest {
    fn decode(input: &mut Input, version: i16) -> Result<ShareAcknowledgeRequest, Malformed> {
        if version < RENEWS_FROM {
            return input.message::<GeneratedRequest>(version).map(Into::into);
        }
        let request = ShareAcknowledgeRequest {
            group_id: input.nullable_string("group id")?.map(GroupId),
            member_id: input.nullable_string("member id")?,
            share_session_epoch: input.int32("share session epoch")?,
            is_renew_ack: input.boolean("is renew ack")?,
            topics: take_all(input, "topics")?,
        };
        input.tags()?;
        Ok(request)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.nullable_string(self.group_id.as_ref().map(|id| &***id));
        output.nullable_string(self.member_id.as_deref());
        output.int32(self.share_session_epoch);
        match version {
            RENEWS_FROM.. => output.boolean(self.is_renew_ack),
            _ => check_is_default(!self.is_renew_ack, "is_renew_ack")?,
        }
        put_all(output, &self.topics)?;
        output.no_tags();
        Ok(())
    }
}

impl Body for ShareAcknowledgeResponse {
    fn decode(input: &mut Input, version: i16) -> Result<ShareAcknowledgeResponse, Malformed> {
        if version < RENEWS_FROM {
            return input.message::<GeneratedResponse>(version).map(Into::into);
        }
        let response = ShareAcknowledgeResponse {
            throttle_time_ms: input.int32("throttle time")?,
            error_code: input.int16("error code")?,
            error_message: input.nullable_string("error message")?,
            acquisition_lock_timeout_ms: input.int32("acquisition lock timeout")?,
            responses: take_all(input, "responses")?,
            node_endpoints: take_all(input, "node endpoints")?,
        };
        input.tags()?;
        Ok(response)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int32(self.throttle_time_ms);
        output.int16(self.error_code);
        output.nullable_string(self.error_message.as_deref());
        if version >= RENEWS_FROM {
            output.int32(self.acquisition_lock_timeout_ms);
        }
        put_all(output, &self.responses)?;
        put_all(output, &self.node_endpoints)?;
        output.no_tags();
        Ok(())
    }
}

impl From<GeneratedRequest> for ShareAcknowledgeRequest {
    fn from(request: GeneratedRequest) -> ShareAcknowledgeRequest {
        ShareAcknowledgeRequest {
            group_id: request.group_id,
            member_id: request.member_id,
            share_session_epoch: request.share_session_epoch,
            is_renew_ack: false,
            topics: request.topics,
        }
    }
}

impl From<GeneratedResponse> for ShareAcknowledgeResponse {
    fn from(response: GeneratedResponse) -> ShareAcknowledgeResponse {
        ShareAcknowledgeResponse {
            throttle_time_ms: response.throttle_time_ms,
            error_code: response.error_code,
            error_message: response.error_message,
            acquisition_lock_timeout_ms: 0,
            responses: response.responses,
            node_endpoints: response.node_endpoints,
        }
    }
}

#[cfg(any(test, feature = "forge"))]
impl crate::forge::Forged for ShareAcknowledgeRequest {
    fn forge(forge: &mut crate::forge::Forge, version: i16) -> Option<ShareAcknowledgeRequest> {
        let generated = GeneratedRequest::forge(forge, super::GENERATED)?;
        Some(ShareAcknowledgeRequest {
            is_renew_ack: version >= RENEWS_FROM && forge.boolean(),
            ..generated.into()
        })
    }
}

#[cfg(any(test, feature = "forge"))]
impl crate::forge::Forged for ShareAcknowledgeResponse {
    fn forge(forge: &mut crate::forge::Forge, version: i16) -> Option<ShareAcknowledgeResponse> {
        let generated = GeneratedResponse::forge(forge, super::GENERATED)?;
        let lock_ms = forge.uint32() as i32;
        Some(ShareAcknowledgeResponse {
            acquisition_lock_timeout_ms: if version >= RENEWS_FROM { lock_ms } else { 0 },
            ..generated.into()
        })
    }
}
