//! Offsets of groups: OffsetFetch, OffsetDelete, and the commit of OffsetCommit.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_wire::messages::offset_delete_request::OffsetDeleteRequestTopic;
use millstream_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use millstream_wire::messages::offset_fetch_response::OffsetFetchResponseTopics;
use millstream_wire::messages::{
    self, GroupId, OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest,
    OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse,
    offset_commit_response as commit_response, offset_delete_response as delete,
    offset_fetch_response as fetch_response,
};
use millstream_wire::{ResponseError, StrBytes, Uuid};

use super::convert::{code, group, instance, member, sent, text, topic, topic_name};
use super::{coordinate, coordinate_all};
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::{
    Answer, CommitOffsets, DeleteOffsets, FetchOffsets, FetchedOffset, Generation, GroupError,
    LeaderEpoch, Partition, PartitionCommit, Request, TopicCommit, TopicId, TopicName,
    TopicOffsets, TopicResults,
};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, ECHOES, ELEMENT_BYTES, nested};
use crate::requests::handle::{Edit, Handle, Refusal, each, errors, refuse_with_code};
use crate::requests::rights::{
    Check, Checked, GROUP_DENIED, TOPIC_DENIED, UNKNOWN_ID, items, may_group, may_topic,
    need_group, take,
};
use crate::security::{Operation, Resource};

/// The first version of OffsetFetch with an error for the whole request.
const FETCH_ERROR_FROM: i16 = 2;
/// The first version of OffsetFetch for several groups.
const SEVERAL_GROUPS_FROM: i16 = 8;
/// The first version of OffsetFetch with topic ids in place of names.
const TOPIC_IDS_FROM: i16 = 10;

/// Returns the committed offsets of groups.
impl Handle for OffsetFetchRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Items, Check::Listed];

    fn check(&self, client: &Client, version: i16) -> Checked {
        match version < SEVERAL_GROUPS_FROM {
            true => need_group(client, Operation::Describe, &self.group_id),
            // Each group is checked by itself.
            false => Ok(()),
        }
    }

    items! { groups:
        groups, GROUP_DENIED, |client, asked| {
            may_group(client, Operation::Describe, &asked.group_id)
        };
    }

    fn hide(&self, access: &Access) -> Option<Edit<Self>> {
        let access = access.clone();
        let all_topics = self.topics.is_none();
        let groups = self.groups.iter();
        let all_of = groups.filter(|group| group.topics.is_none());
        let all_of: HashSet<GroupId> = all_of.map(|group| group.group_id.clone()).collect();
        Some(Box::new(move |answer| {
            let sees = |resource: Resource<'_>| access.would(Operation::Describe, resource);
            hide_offsets(&mut answer.topics, all_topics, &sees);
            for group in &mut answer.groups {
                let all_topics = all_of.contains(&group.group_id);
                hide_offsets(&mut group.topics, all_topics, &sees);
            }
        }))
    }

    fn refuse(&self, refusal: &Refusal) -> OffsetFetchResponse {
        if refusal.version >= SEVERAL_GROUPS_FROM {
            let groups = each(&self.groups, |group| {
                fetch_response::OffsetFetchResponseGroup::default()
                    .with_group_id(group.group_id.clone())
                    .with_error_code(refusal.code)
            });
            return OffsetFetchResponse::default().with_groups(groups);
        }
        if refusal.version >= FETCH_ERROR_FROM {
            return OffsetFetchResponse::default().with_error_code(refusal.code);
        }
        let topics = self.topics.as_deref().unwrap_or_default();
        let topics = each(topics, |topic| {
            fetch_response::OffsetFetchResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partition_indexes, |partition| {
                    fetch_response::OffsetFetchResponsePartition::default()
                        .with_partition_index(*partition)
                        .with_committed_offset(-1)
                        .with_error_code(refusal.code)
                }))
        });
        OffsetFetchResponse::default().with_topics(topics)
    }

    errors!(error_code, groups.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        match asked_offsets(self) {
            Some(count) => {
                // The text of a commit, in the answer and in a buffer that grows.
                let text_max = context.broker.config().groups.offset_metadata_max;
                context.list(count, ELEMENT_BYTES + ECHOES * text_max)
            }
            None => Bound::State,
        }
    }

    fn handle(mut self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        let has_ids = version >= TOPIC_IDS_FROM;
        if has_ids {
            name_topics(client, &mut self.groups);
        }
        let asked = fetch(version, &self);
        let shown = Arc::clone(broker);
        coordinate_all(broker, version, self, asked, move |request, mut answers| {
            if version >= SEVERAL_GROUPS_FROM {
                let groups = request.groups.iter().zip(answers);
                let groups = groups.map(|(asked, mut answer)| {
                    leave_out_deleted(&shown, asked.topics.is_none(), &mut answer);
                    let mut fetched = fetched_group(asked.group_id.clone(), answer);
                    if has_ids {
                        put_ids(&shown, asked, &mut fetched.topics);
                    }
                    fetched
                });
                return Some(OffsetFetchResponse::default().with_groups(groups.collect()));
            }
            let mut answer = answers.pop()?;
            leave_out_deleted(&shown, request.topics.is_none(), &mut answer);
            match answer {
                Answer::FetchOffsets(answer) => Some(fetched(version, request, answer)),
                _ => None,
            }
        })
    }
}

/// Deletes committed offsets of a group.
impl Handle for OffsetDeleteRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Items];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Delete, &self.group_id)
    }

    fn withhold(&mut self, client: &mut Client, _: i16) -> Vec<OffsetDeleteResponse> {
        let may =
            |asked: &OffsetDeleteRequestTopic| may_topic(client, Operation::Read, &asked.name);
        let denied = take(&mut self.topics, may).into_iter();
        let refused = denied.map(|topics| {
            OffsetDeleteResponse::default().with_topics(each(&topics, |topic| {
                let partitions = each(&topic.partitions, |partition| {
                    delete::OffsetDeleteResponsePartition::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(TOPIC_DENIED.code())
                });
                delete::OffsetDeleteResponseTopic::default()
                    .with_name(topic.name.clone())
                    .with_partitions(partitions)
            }))
        });
        refused.collect()
    }

    fn merge(answer: &mut OffsetDeleteResponse, refused: OffsetDeleteResponse) {
        // An error of the group stands alone.
        if answer.error_code == 0 {
            answer.topics.extend(refused.topics);
        }
    }

    refuse_with_code!();
    errors!(error_code, topics.partitions.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        if self.topics.is_empty() {
            return Reply::from(OffsetDeleteResponse::default());
        }
        let asked = Ok(delete_offsets(&self));
        coordinate!(broker, version, self, asked, DeleteOffsets(answer) => deleted(answer))
    }
}

/// Commits offsets of existing partitions.
pub fn commit(broker: &Broker, version: i16, request: OffsetCommitRequest) -> Reply {
    let asked = commit_request(broker, version, &request);
    coordinate!(broker, version, request, asked, CommitOffsets(answer) => committed(answer))
}

/// Returns the number of offsets that a request names; `None` if it asks for all of a group.
fn asked_offsets(request: &OffsetFetchRequest) -> Option<usize> {
    if request.groups.is_empty() {
        let topics = request.topics.as_ref()?;
        return Some(nested(topics, |topic| topic.partition_indexes.len()));
    }
    let groups = request.groups.iter().map(|group| {
        let topics = group.topics.as_ref()?;
        Some(1 + nested(topics, |topic| topic.partition_indexes.len()))
    });
    groups.sum()
}

fn commit_request(
    broker: &Broker,
    version: i16,
    request: &OffsetCommitRequest,
) -> Result<Request, ResponseError> {
    let mut committed = request.topics.iter().flat_map(|topic| &topic.partitions);
    if committed.any(|partition| partition.committed_offset < 0) {
        return Err(ResponseError::OffsetOutOfRange);
    }
    let topics = request.topics.iter().map(|committed| {
        let partitions = committed
            .partitions
            .iter()
            .map(|partition| PartitionCommit {
                partition: Partition(partition.partition_index),
                offset: Offset(partition.committed_offset.max(0) as u64),
                leader_epoch: leader_epoch(partition.committed_leader_epoch),
                metadata: partition
                    .committed_metadata
                    .as_ref()
                    .map(text)
                    .unwrap_or_default(),
            });
        TopicCommit {
            topic: topic(&committed.name),
            id: match committed.topic_id.is_nil() {
                true => broker
                    .groups()
                    .topic_id(&committed.name)
                    .unwrap_or_default(),
                false => TopicId(committed.topic_id.as_u128()),
            },
            partitions: partitions.collect(),
        }
    });
    let retention = u64::try_from(request.retention_time_ms).ok();
    Ok(Request::CommitOffsets(CommitOffsets {
        group: group(&request.group_id),
        member: member(&request.member_id),
        instance: instance(request.group_instance_id.as_ref()),
        generation: Generation(request.generation_id_or_member_epoch),
        knows_member_epochs: version >= 9,
        retention: retention
            .filter(|_| version <= 4)
            .map(Duration::from_millis),
        topics: topics.collect(),
    }))
}

fn leader_epoch(epoch: i32) -> Option<LeaderEpoch> {
    (epoch >= 0).then_some(LeaderEpoch(epoch))
}

fn committed(topics: Vec<TopicResults>) -> OffsetCommitResponse {
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|(partition, result)| {
            commit_response::OffsetCommitResponsePartition::default()
                .with_partition_index(partition.0)
                .with_error_code(code(result.err()))
        });
        commit_response::OffsetCommitResponseTopic::default()
            .with_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

/// Fills in the names of topics where the request has their ids, since the coordinator knows topics by name. A topic with an
/// unknown id keeps its empty name, which has no offsets.
fn name_topics(client: &mut Client, groups: &mut [OffsetFetchRequestGroup]) {
    let topics = groups.iter_mut().flat_map(|group| &mut group.topics);
    for topic in topics.flatten() {
        if let Ok(stream) = client.stream_by_uuid(topic.topic_id) {
            topic.name = topic_name(stream.name());
        }
    }
}

/// Takes out the offsets of deleted topics: a topic that has the name now has other records. If the request names its
/// topics, their partitions stay in the answer, without an offset.
fn leave_out_deleted(broker: &Broker, asks_for_all: bool, answer: &mut Answer) {
    let Answer::FetchOffsets(Ok(topics)) = answer else {
        return;
    };
    for topic in topics.iter_mut() {
        let id = broker.groups().topic_id(&topic.topic);
        let is_current = |offset: &FetchedOffset| offset.topic.is_none_or(|of| Some(of) == id);
        for offset in topic.partitions.iter_mut().flat_map(|(_, offset)| offset) {
            *offset = offset.take().filter(is_current);
        }
        if asks_for_all {
            let partitions = &mut topic.partitions;
            partitions.retain(|(_, offset)| !matches!(offset, Ok(None)));
        }
    }
    if asks_for_all {
        topics.retain(|topic| !topic.partitions.is_empty());
    }
}

/// Puts topic ids into the answer to a request that has them, and the errors of unknown ids. Where the request asks for all
/// topics, the answer leaves out deleted ones, which have no id, as in Kafka.
fn put_ids(
    broker: &Broker,
    asked: &OffsetFetchRequestGroup,
    topics: &mut Vec<OffsetFetchResponseTopics>,
) {
    let Some(asked) = &asked.topics else {
        topics.retain_mut(|topic| {
            let stream = broker.shown_stream(&topic.name);
            stream.is_ok_and(|stream| {
                topic.topic_id = stream.uuid();
                true
            })
        });
        return;
    };
    for (asked, topic) in asked.iter().zip(topics) {
        topic.topic_id = asked.topic_id;
        if asked.name.is_empty() {
            for partition in &mut topic.partitions {
                partition.error_code = UNKNOWN_ID.code();
            }
        }
    }
}

fn fetch(version: i16, request: &OffsetFetchRequest) -> Result<Vec<Request>, ResponseError> {
    let mut named = HashSet::new();
    if !request
        .groups
        .iter()
        .all(|asked| named.insert(&asked.group_id))
    {
        return Err(ResponseError::InvalidRequest);
    }
    if version < SEVERAL_GROUPS_FROM {
        let topics = request.topics.as_ref().map(|topics| {
            let topics = topics.iter();
            each_once(topics.map(|asked| (&asked.name, Uuid::nil(), &asked.partition_indexes[..])))
        });
        return Ok(vec![Request::FetchOffsets(FetchOffsets {
            group: group(&request.group_id),
            member: None,
            member_epoch: Generation::NONE,
            topics,
            require_stable: request.require_stable,
        })]);
    }
    let groups = request.groups.iter().map(|asked| {
        let topics = asked.topics.as_ref().map(|topics| {
            let topics = topics.iter();
            each_once(
                topics.map(|asked| (&asked.name, asked.topic_id, &asked.partition_indexes[..])),
            )
        });
        Request::FetchOffsets(FetchOffsets {
            group: group(&asked.group_id),
            member: asked.member_id.as_ref().map(member),
            member_epoch: Generation(asked.member_epoch),
            topics,
            require_stable: request.require_stable,
        })
    });
    Ok(groups.collect())
}

/// Returns the partitions of each topic. A repeated partition is left out: an answer has the text of
/// each commit once.
fn each_once<'a>(
    topics: impl Iterator<Item = (&'a messages::TopicName, Uuid, &'a [i32])>,
) -> Vec<(TopicName, Vec<Partition>)> {
    let mut named = HashSet::new();
    let topics = topics.map(|(name, id, indexes)| {
        let indexes = indexes.iter().copied();
        let once = indexes.filter(|index| named.insert((name, id, *index)));
        (topic(name), once.map(Partition).collect())
    });
    topics.collect()
}

/// Up to version 7: one group.
fn fetched(
    version: i16,
    request: &OffsetFetchRequest,
    answer: Result<Vec<TopicOffsets>, GroupError>,
) -> OffsetFetchResponse {
    let topics = match answer {
        Ok(topics) => topics,
        Err(error) => {
            let error = ResponseError::try_from_code(error.code());
            let error = error.unwrap_or(ResponseError::UnknownServerError);
            return request.refused(version, error);
        }
    };
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|(partition, result)| {
            let (offset, error) = offset_of(result);
            let response = fetch_response::OffsetFetchResponsePartition::default()
                .with_partition_index(partition.0)
                .with_committed_offset(offset.offset)
                .with_metadata(Some(offset.metadata))
                .with_error_code(error);
            match version >= 5 {
                true => response.with_committed_leader_epoch(offset.leader_epoch),
                false => response,
            }
        });
        fetch_response::OffsetFetchResponseTopic::default()
            .with_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    OffsetFetchResponse::default().with_topics(topics.collect())
}

/// From version 8 on: one of several groups.
fn fetched_group(
    group: messages::GroupId,
    answer: Answer,
) -> fetch_response::OffsetFetchResponseGroup {
    let response = fetch_response::OffsetFetchResponseGroup::default().with_group_id(group);
    let topics = match answer {
        Answer::FetchOffsets(Ok(topics)) => topics,
        Answer::FetchOffsets(Err(error)) => return response.with_error_code(error.code()),
        _ => return response.with_error_code(ResponseError::UnknownServerError.code()),
    };
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|(partition, result)| {
            let (offset, error) = offset_of(result);
            fetch_response::OffsetFetchResponsePartitions::default()
                .with_partition_index(partition.0)
                .with_committed_offset(offset.offset)
                .with_committed_leader_epoch(offset.leader_epoch)
                .with_metadata(Some(offset.metadata))
                .with_error_code(error)
        });
        fetch_response::OffsetFetchResponseTopics::default()
            .with_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    response.with_topics(topics.collect())
}

/// An offset as a response carries it; -1 for none.
struct SentOffset {
    offset: i64,
    leader_epoch: i32,
    metadata: StrBytes,
}

fn offset_of(result: Result<Option<FetchedOffset>, GroupError>) -> (SentOffset, i16) {
    let none = SentOffset {
        offset: -1,
        leader_epoch: -1,
        metadata: StrBytes::default(),
    };
    match result {
        Ok(Some(offset)) => {
            let sent = SentOffset {
                offset: offset.offset.0 as i64,
                leader_epoch: offset.leader_epoch.map_or(-1, |epoch| epoch.0),
                metadata: sent(&offset.metadata),
            };
            (sent, 0)
        }
        Ok(None) => (none, 0),
        Err(error) => (none, error.code()),
    }
}

fn delete_offsets(request: &OffsetDeleteRequest) -> Request {
    let topics = request.topics.iter().map(|asked| {
        let partitions = asked.partitions.iter();
        let partitions = partitions.map(|partition| Partition(partition.partition_index));
        (topic(&asked.name), partitions.collect())
    });
    Request::DeleteOffsets(DeleteOffsets {
        group: group(&request.group_id),
        topics: topics.collect(),
    })
}

fn deleted(answer: Result<Vec<TopicResults>, GroupError>) -> OffsetDeleteResponse {
    let topics = match answer {
        Ok(topics) => topics,
        Err(error) => return OffsetDeleteResponse::default().with_error_code(error.code()),
    };
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|(partition, result)| {
            delete::OffsetDeleteResponsePartition::default()
                .with_partition_index(partition.0)
                .with_error_code(code(result.err()))
        });
        delete::OffsetDeleteResponseTopic::default()
            .with_name(topic_name(&topic.topic))
            .with_partitions(partitions.collect())
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}

/// Leaves out topics that were not named, and the offsets of those that were.
fn hide_offsets<T: Offsets>(
    topics: &mut Vec<T>,
    all_topics: bool,
    sees: &impl Fn(Resource<'_>) -> bool,
) {
    let is_seen = |topic: &T| sees(Resource::topic(topic.name()));
    if all_topics {
        topics.retain(is_seen);
    } else {
        let denied = topics.iter_mut().filter(|topic| !is_seen(topic));
        denied.for_each(Offsets::deny);
    }
}

/// A topic with offsets of a group.
trait Offsets {
    fn name(&self) -> &str;

    /// Replaces the offsets by an error.
    fn deny(&mut self);
}

macro_rules! offsets {
    ($($topic:ty, $partition:ty, |$denied:ident| $error:expr;)*) => {
        $(
            impl Offsets for $topic {
                fn name(&self) -> &str {
                    &self.name
                }

                fn deny(&mut self) {
                    let $denied = &*self;
                    let error: ResponseError = $error;
                    for partition in &mut self.partitions {
                        *partition = <$partition>::default()
                            .with_partition_index(partition.partition_index)
                            .with_committed_offset(-1)
                            .with_error_code(error.code());
                    }
                }
            }
        )*
    };
}

offsets! {
    // The first type is of versions up to 7, the second of version 8 and later.
    fetch_response::OffsetFetchResponseTopic, fetch_response::OffsetFetchResponsePartition,
        |_topic| TOPIC_DENIED;
    // No answer shows which ids exist.
    fetch_response::OffsetFetchResponseTopics, fetch_response::OffsetFetchResponsePartitions,
        |topic| if topic.topic_id.is_nil() { TOPIC_DENIED } else { UNKNOWN_ID };
}
