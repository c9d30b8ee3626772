//! The positions of share groups: DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use millstream_base::Offset;
use millstream_log::Stream;
use millstream_wire::messages::alter_share_group_offsets_request::AlterShareGroupOffsetsRequestTopic;
use millstream_wire::messages::alter_share_group_offsets_response::{
    AlterShareGroupOffsetsResponse, AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
};
use millstream_wire::messages::delete_share_group_offsets_response::{
    DeleteShareGroupOffsetsResponse, DeleteShareGroupOffsetsResponseTopic,
};
use millstream_wire::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use millstream_wire::messages::{
    AlterShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest, TopicName,
};
use millstream_wire::{
    DescribeShareGroupOffsetsResponse, ResponseError, ShareGroupOffsets, SharePartitionOffsets,
    ShareTopicOffsets, StrBytes, Uuid,
};

use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::groups::{Answer, GroupName, Partition, Request, TopicId};
use crate::partitions::lane_of;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, nested};
use crate::requests::groups::unavailable;
use crate::requests::handle::{Handle, Refusal, each, errors, messages, refuse_with_message};
use crate::requests::rights::{Check, Checked, GROUP_DENIED, items, may_group, need_group};
use crate::requests::topics::{Named, topic_name};
use crate::security::Operation;
use crate::shares::record::Key;
use crate::shares::service::{NO_OFFSET, ShareService};

/// Returns the start offsets and the lags of share groups.
impl Handle for DescribeShareGroupOffsetsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { groups:
        groups, GROUP_DENIED, |client, asked| {
            may_group(client, Operation::Describe, &asked.group_id)
        };
    }

    fn refuse(&self, refusal: &Refusal) -> DescribeShareGroupOffsetsResponse {
        DescribeShareGroupOffsetsResponse {
            throttle_time_ms: 0,
            groups: each(&self.groups, |group| ShareGroupOffsets {
                group_id: group.group_id.clone(),
                error_code: refusal.code,
                error_message: refusal.message.clone(),
                ..ShareGroupOffsets::default()
            }),
        }
    }

    errors!(groups.error_code, groups.topics.partitions.error_code);
    messages!(groups.error_message, groups.topics.partitions.error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        describe_offsets(broker, client, self)
    }
}

/// Moves the start offsets of a share group without members, and creates the group if there is none.
impl Handle for AlterShareGroupOffsetsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.group_id)
    }

    refuse_with_message!();
    errors!(error_code, responses.partitions.error_code);
    messages!(error_message, responses.partitions.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        alter_offsets(broker, client, self)
    }
}

/// Deletes the start offsets of a share group for whole topics.
impl Handle for DeleteShareGroupOffsetsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Delete, &self.group_id)
    }

    refuse_with_message!();
    errors!(error_code, responses.error_code);
    messages!(error_message, responses.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.topics.len())
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        delete_offsets(broker, client, self)
    }
}

fn words(error: ResponseError) -> Option<StrBytes> {
    Some(StrBytes::from_string(error.to_string()))
}

/// Describes the positions of groups.
fn describe_offsets(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: DescribeShareGroupOffsetsRequest,
) -> Reply {
    let service = broker.shares();
    // Each group is described once, however often it is named: an answer is no larger than all
    // groups together.
    let mut named = HashSet::new();
    let mut asked = request.groups;
    asked.retain(|asked| named.insert(asked.group_id.clone()));
    let groups = asked.into_iter().map(|asked| {
        let group = GroupName::from(&**asked.group_id);
        let response = ShareGroupOffsets {
            group_id: asked.group_id.clone(),
            ..ShareGroupOffsets::default()
        };
        let error = match service.is_damaged() {
            true => Some(ResponseError::CoordinatorNotAvailable),
            false if service.groups().share_group_members(&group).is_none() => {
                Some(ResponseError::GroupIdNotFound)
            }
            false => None,
        };
        match error {
            Some(error) => ShareGroupOffsets {
                error_code: error.code(),
                error_message: words(error),
                ..response
            },
            None => ShareGroupOffsets {
                topics: describe_group(service, client, &group, asked),
                ..response
            },
        }
    });
    DescribeShareGroupOffsetsResponse {
        throttle_time_ms: 0,
        groups: groups.collect(),
    }
    .into()
}

/// A topic of a request, and its stream if the client may read it.
type Altered = (
    AlterShareGroupOffsetsRequestTopic,
    Result<Stream, ResponseError>,
);

/// Moves a group without members to other offsets. A group that does not exist is created, unless the request names no topic
/// that the client can read.
fn alter_offsets(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: AlterShareGroupOffsetsRequest,
) -> Reply {
    let service = Arc::clone(broker.shares());
    let group = GroupName::from(&**request.group_id);
    let topics = request.topics.into_iter().map(|topic| {
        let stream = Named::Name(&topic.topic_name).permitted(client, Operation::Read);
        (topic, stream)
    });
    let topics: Vec<Altered> = topics.collect();
    let is_readable = topics.iter().any(|(_, stream)| stream.is_ok());
    match service.check_empty(&group) {
        Err(ResponseError::GroupIdNotFound) if is_readable => {
            let asked = Request::CreateShareGroup(group.clone());
            let created = service.groups().ask(asked);
            Reply::Alone(Box::pin(async move {
                match created.await {
                    Ok(Answer::CreateShareGroup(Ok(()))) => {
                        let (response, durable) = alter_topics(&service, &group, topics);
                        altered(&service, response, durable).await.into()
                    }
                    Ok(Answer::CreateShareGroup(Err(error))) => {
                        let message = StrBytes::from_string(error.to_string());
                        let response = AlterShareGroupOffsetsResponse::default();
                        let response = response.with_error_code(error.code());
                        response.with_error_message(Some(message)).into()
                    }
                    _ => not_altered(unavailable(service.groups())).into(),
                }
            }))
        }
        Ok(()) | Err(ResponseError::GroupIdNotFound) => {
            let (response, durable) = alter_topics(&service, &group, topics);
            Reply::later(async move { altered(&service, response, durable).await })
        }
        Err(error) => not_altered(error).into(),
    }
}

fn not_altered(error: ResponseError) -> AlterShareGroupOffsetsResponse {
    AlterShareGroupOffsetsResponse::default()
        .with_error_code(error.code())
        .with_error_message(words(error))
}

/// Returns the answer when the ledger is durable up to the offset.
async fn altered(
    service: &ShareService,
    response: AlterShareGroupOffsetsResponse,
    durable: Option<Offset>,
) -> AlterShareGroupOffsetsResponse {
    match service.durable(durable).await {
        Ok(()) => response,
        Err(error) => not_altered(error),
    }
}

/// Moves a group to other offsets; returns the answer, and the offset up to which the ledger has to be durable before it.
fn alter_topics(
    service: &ShareService,
    group: &GroupName,
    topics: Vec<Altered>,
) -> (AlterShareGroupOffsetsResponse, Option<Offset>) {
    let mut durable = None;
    let topics = topics.into_iter().map(|(topic, stream)| {
        let partitions = topic.partitions.into_iter().map(|partition| {
            let altered = stream.clone().and_then(|stream| {
                let lane = lane_of(&stream, partition.partition_index);
                lane.map_err(|error| response_error(&error))?;
                let start = u64::try_from(partition.start_offset);
                let start = start.map_err(|_| ResponseError::InvalidRequest)?;
                let key = Key {
                    group: group.clone(),
                    topic: TopicId(stream.uuid().as_u128()),
                    partition: Partition(partition.partition_index),
                };
                service.alter(&key, Offset(start))
            });
            let response = AlterShareGroupOffsetsResponsePartition::default()
                .with_partition_index(partition.partition_index);
            match altered {
                Ok(appended) => {
                    durable = durable.max(Some(appended));
                    response
                }
                Err(error) => response
                    .with_error_code(error.code())
                    .with_error_message(words(error)),
            }
        });
        let partitions = partitions.collect();
        let id = stream.as_ref().map_or(Uuid::nil(), |stream| stream.uuid());
        AlterShareGroupOffsetsResponseTopic::default()
            .with_topic_name(topic.topic_name)
            .with_topic_id(id)
            .with_partitions(partitions)
    });
    let topics = topics.collect();
    let response = AlterShareGroupOffsetsResponse::default().with_responses(topics);
    (response, durable)
}

/// Deletes the positions of a group without members in some topics.
fn delete_offsets(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: DeleteShareGroupOffsetsRequest,
) -> Reply {
    let service = Arc::clone(broker.shares());
    let group = GroupName::from(&**request.group_id);
    if let Err(error) = service.check_empty(&group) {
        return DeleteShareGroupOffsetsResponse::default()
            .with_error_code(error.code())
            .with_error_message(words(error))
            .into();
    }
    let mut durable = None;
    let topics = request.topics.into_iter().map(|topic| {
        let stream = Named::Name(&topic.topic_name).permitted(client, Operation::Read);
        let deleted = stream.as_ref().map_err(|error| *error).and_then(|stream| {
            let id = TopicId(stream.uuid().as_u128());
            let appended = service.forget_topic(&group, id)?;
            appended.ok_or(ResponseError::UnknownTopicOrPartition)
        });
        let id = stream.as_ref().map_or(Uuid::nil(), |stream| stream.uuid());
        let response = DeleteShareGroupOffsetsResponseTopic::default()
            .with_topic_name(topic.topic_name)
            .with_topic_id(id);
        match deleted {
            Ok(appended) => {
                durable = durable.max(Some(appended));
                response
            }
            Err(error) => response
                .with_error_code(error.code())
                .with_error_message(words(error)),
        }
    });
    let response = DeleteShareGroupOffsetsResponse::default().with_responses(topics.collect());
    Reply::later(async move {
        match service.durable(durable).await {
            Ok(()) => response,
            Err(error) => DeleteShareGroupOffsetsResponse::default()
                .with_error_code(error.code())
                .with_error_message(words(error)),
        }
    })
}

fn describe_group(
    service: &ShareService,
    client: &mut Client,
    group: &GroupName,
    asked: DescribeShareGroupOffsetsRequestGroup,
) -> Vec<ShareTopicOffsets> {
    let Some(topics) = asked.topics else {
        return describe_all(service, client, group);
    };
    let topics = topics.into_iter().map(|topic| {
        let stream = Named::Name(&topic.topic_name).permitted(client, Operation::Describe);
        let partitions = topic.partitions.into_iter().map(|partition| {
            let lane = stream.as_ref().map_err(|error| *error).and_then(|stream| {
                let lane = lane_of(stream, partition).map_err(|error| response_error(&error))?;
                Ok((stream.uuid(), lane))
            });
            match lane {
                Ok((id, lane)) => {
                    let key = Key {
                        group: group.clone(),
                        topic: TopicId(id.as_u128()),
                        partition: Partition(partition),
                    };
                    service.describe_partition(&key, &lane)
                }
                Err(error) => SharePartitionOffsets {
                    partition_index: partition,
                    start_offset: NO_OFFSET,
                    error_code: error.code(),
                    error_message: words(error),
                    ..SharePartitionOffsets::default()
                },
            }
        });
        let partitions = partitions.collect();
        described(&stream, topic.topic_name, partitions)
    });
    topics.collect()
}

/// The positions in all topics of the group that the client may see.
fn describe_all(
    service: &ShareService,
    client: &mut Client,
    group: &GroupName,
) -> Vec<ShareTopicOffsets> {
    let mut topics: BTreeMap<TopicId, Vec<Partition>> = BTreeMap::new();
    for key in service.keys_of(group) {
        topics.entry(key.topic).or_default().push(key.partition);
    }
    let topics = topics.into_iter().filter_map(|(topic, partitions)| {
        let stream = client.stream_by_uuid(Uuid::from_u128(topic.0)).ok()?;
        if !client.access().sees_topic(stream.name()) {
            return None;
        }
        let partitions = partitions.into_iter().filter_map(|partition| {
            let lane = lane_of(&stream, partition.0).ok()?;
            let key = Key {
                group: group.clone(),
                topic,
                partition,
            };
            Some(service.describe_partition(&key, &lane))
        });
        let partitions = partitions.collect();
        let name = topic_name(stream.name());
        Some(described(&Ok(stream), name, partitions))
    });
    topics.collect()
}

fn described(
    stream: &Result<Stream, ResponseError>,
    name: TopicName,
    partitions: Vec<SharePartitionOffsets>,
) -> ShareTopicOffsets {
    ShareTopicOffsets {
        topic_name: name,
        topic_id: stream.as_ref().map_or(Uuid::nil(), |stream| stream.uuid()),
        partitions,
    }
}
