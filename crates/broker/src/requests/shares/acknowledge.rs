//! ShareAcknowledge, and the acknowledgements that come with ShareFetch.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_base::Offset;
use millstream_wire::messages::share_acknowledge_response::{
    PartitionData, ShareAcknowledgeTopicResponse,
};
use millstream_wire::{
    ResponseError, ShareAcknowledgeRequest, ShareAcknowledgeResponse, StrBytes, Uuid,
};

use super::{names, need_reader};
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::groups::{GroupName, MemberId, Partition, TopicId};
use crate::partitions::lane_of;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, nested};
use crate::requests::handle::{Handle, Refusal, errors, messages, refuse_with_message};
use crate::requests::rights::{Check, Checked};
use crate::requests::topics::Named;
use crate::security::Operation;
use crate::shares::record::Key;
use crate::shares::service::sessions::{FINAL_EPOCH, INITIAL_EPOCH};
use crate::shares::service::{Failed, ShareService};
use crate::shares::{Refused, checked};

/// Acknowledges records of a share group.
impl Handle for ShareAcknowledgeRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_reader(client, self.group_id.as_ref())
    }

    refuse_with_message!();
    errors!(error_code, responses.partitions.error_code);
    messages!(error_message, responses.partitions.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        acknowledge(broker, client, self)
    }
}

/// The acknowledgements of one partition, as a request names it.
pub struct Acknowledgements {
    pub topic: Uuid,
    pub partition: i32,
    /// First offset, last offset, types.
    pub batches: Vec<(i64, i64, Vec<i8>)>,
}

/// The result of the acknowledgements of one partition.
pub struct Acknowledged {
    pub topic: Uuid,
    pub partition: i32,
    pub result: Result<(), Failed>,
}

/// Applies acknowledgements, and answers once they are durable.
fn acknowledge(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: ShareAcknowledgeRequest,
) -> Reply {
    match try_acknowledge(broker, client, request) {
        Ok(reply) => reply,
        Err(error) => ShareAcknowledgeResponse {
            error_code: error.code(),
            error_message: Some(StrBytes::from_string(error.to_string())),
            ..ShareAcknowledgeResponse::default()
        }
        .into(),
    }
}

fn try_acknowledge(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: ShareAcknowledgeRequest,
) -> Result<Reply, ResponseError> {
    let service = Arc::clone(broker.shares());
    if service.is_damaged() {
        return Err(ResponseError::CoordinatorNotAvailable);
    }
    let (group, member) = names(request.group_id.as_ref(), request.member_id.as_ref())?;
    let epoch = request.share_session_epoch;
    if epoch == INITIAL_EPOCH {
        return Err(ResponseError::InvalidShareSessionEpoch);
    }
    let (number, bell) = service.sessions().touch(&group, &member, epoch)?;
    let mut asked = Vec::new();
    for topic in request.topics {
        for partition in topic.partitions {
            let batches = partition.acknowledgement_batches.into_iter();
            asked.push(Acknowledgements {
                topic: topic.topic_id,
                partition: partition.partition_index,
                batches: batches
                    .map(|batch| {
                        (
                            batch.first_offset,
                            batch.last_offset,
                            batch.acknowledge_types,
                        )
                    })
                    .collect(),
            });
        }
    }
    let may_renew = request.is_renew_ack;
    let (mut acknowledged, durable) =
        acknowledge_all(&service, client, &group, &member, asked, may_renew);
    bell.notify_waiters();
    if epoch == FINAL_EPOCH {
        service.end_session(&group, &member, number);
    }
    Ok(Reply::later(async move {
        if let Err(error) = service.durable(durable).await {
            fail(&mut acknowledged, error);
        }
        ShareAcknowledgeResponse {
            acquisition_lock_timeout_ms: service.settings(&group).record_lock_ms(),
            responses: respond(acknowledged),
            ..ShareAcknowledgeResponse::default()
        }
    }))
}

/// Fails all acknowledgements: the ledger did not confirm them, so it may hold them or not.
pub fn fail(acknowledged: &mut [Acknowledged], error: ResponseError) {
    for partition in acknowledged {
        if partition.result.is_ok() {
            partition.result = Err(error.into());
        }
    }
}

fn respond(acknowledged: Vec<Acknowledged>) -> Vec<ShareAcknowledgeTopicResponse> {
    let mut topics: Vec<ShareAcknowledgeTopicResponse> = Vec::new();
    for partition in acknowledged {
        let mut data = PartitionData::default().with_partition_index(partition.partition);
        if let Err(failed) = partition.result {
            data = data
                .with_error_code(failed.error.code())
                .with_error_message(Some(StrBytes::from_string(failed.why)));
        }
        match topics.last_mut() {
            Some(topic) if topic.topic_id == partition.topic => topic.partitions.push(data),
            _ => topics.push(
                ShareAcknowledgeTopicResponse::default()
                    .with_topic_id(partition.topic)
                    .with_partitions(vec![data]),
            ),
        }
    }
    topics
}

/// Applies a member's acknowledgements, each partition's by itself. Returns their results, and the offset up to which the
/// ledger has to be durable before the broker answers. Only a request that `may_renew` renews locks.
pub fn acknowledge_all(
    service: &ShareService,
    client: &mut Client,
    group: &GroupName,
    member: &MemberId,
    asked: Vec<Acknowledgements>,
    may_renew: bool,
) -> (Vec<Acknowledged>, Option<Offset>) {
    let mut durable = None;
    let mut acknowledged = Vec::with_capacity(asked.len());
    let mut named = BTreeSet::new();
    for asked in asked {
        let (topic, partition) = (asked.topic, asked.partition);
        // Each partition costs a pass over its records in flight, so a request may name it only once.
        let result = match named.insert((topic, partition)) {
            true => acknowledge_one(service, client, group, member, asked, may_renew),
            false => Err(Failed::from(Refused::InvalidRequest)),
        };
        acknowledged.push(Acknowledged {
            topic,
            partition,
            result: result.map(|appended| durable = durable.max(appended)),
        });
    }
    (acknowledged, durable)
}

fn acknowledge_one(
    service: &ShareService,
    client: &mut Client,
    group: &GroupName,
    member: &MemberId,
    asked: Acknowledgements,
    may_renew: bool,
) -> Result<Option<Offset>, Failed> {
    let batches = checked(asked.batches, may_renew)?;
    let stream = Named::Id(asked.topic).permitted(client, Operation::Read)?;
    let lane =
        lane_of(&stream, asked.partition).map_err(|error| Failed::from(response_error(&error)))?;
    if batches.is_empty() {
        return Ok(None);
    }
    let key = Key {
        group: group.clone(),
        topic: TopicId(asked.topic.as_u128()),
        partition: Partition(asked.partition),
    };
    service.acknowledge(&key, &lane, member, &batches).map(Some)
}
