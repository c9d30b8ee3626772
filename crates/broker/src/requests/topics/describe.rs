//! The description of topics and their partitions. It creates missing topics, if a client asks for that.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_log::{LogError, Stream, StreamConfig};
use millstream_wire::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use millstream_wire::messages::metadata_response::MetadataResponseBroker;
use millstream_wire::messages::{DescribeTopicPartitionsRequest, MetadataRequest, TopicName};
use millstream_wire::{
    Brokers, MetadataPartition, MetadataResponse, MetadataTopic, ResponseError, StrBytes, Uuid,
};

use super::{Named, topic_name};
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::groups::service::OFFSETS;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, TOPIC_BYTES};
use crate::requests::handle::{Edit, Handle, Refusal, each, errors};
use crate::requests::rights::{Check, permitted, permitted_on_cluster};
use crate::security::{Operation, Resource};
use crate::topic_names::check_name;

/// The first version of Metadata in which a topic that the request names by its id has a null name.
const METADATA_NULL_NAME_FROM: i16 = 12;
/// The first version of Metadata with an error for the whole request.
const METADATA_ERROR_FROM: i16 = 13;

/// A partition in an answer to Metadata. Lists of one broker lie in the partition itself.
const METADATA_PARTITION_BYTES: usize = 192;

/// A partition of a DescribeTopicPartitions answer, with its four lists.
const DESCRIBED_PARTITION_BYTES: usize = 512;

/// The most partitions in a page of DescribeTopicPartitions.
const PAGE_PARTITIONS_MAX: i32 = 2_000;

/// Describes the broker, and topics with their partitions.
impl Handle for MetadataRequest {
    const CHECKS: &'static [Check] = &[Check::Handler, Check::Operations];

    fn operations(&self, access: &Access) -> Option<Edit<Self>> {
        let of_cluster = self.include_cluster_authorized_operations;
        let of_topics = self.include_topic_authorized_operations;
        if !of_cluster && !of_topics {
            return None;
        }
        let access = access.clone();
        Some(Box::new(move |answer| {
            if of_cluster {
                answer.cluster_authorized_operations = permitted_on_cluster(&access);
            }
            let topics = answer.topics.iter_mut().filter(|_| of_topics);
            for topic in topics.filter(|topic| topic.error_code == 0) {
                let name = topic.name.as_deref().map_or("", |name| &**name);
                topic.topic_authorized_operations = permitted(&access, Resource::topic(name));
            }
        }))
    }

    fn refuse(&self, refusal: &Refusal) -> MetadataResponse {
        let topics = self.topics.as_deref().unwrap_or_default();
        let topics = each(topics, |topic| {
            let name = match refusal.version >= METADATA_NULL_NAME_FROM {
                true => topic.name.clone(),
                false => Some(topic.name.clone().unwrap_or_default()),
            };
            MetadataTopic {
                error_code: refusal.code,
                name,
                topic_id: topic.topic_id,
                ..MetadataTopic::default()
            }
        });
        let is_told = refusal.version >= METADATA_ERROR_FROM;
        MetadataResponse {
            error_code: if is_told { refusal.code } else { 0 },
            topics,
            ..MetadataResponse::default()
        }
    }

    errors!(topics.error_code);

    /// No topic is described twice.
    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let elements = context.elements(self.topics.as_ref().map_or(0, Vec::len));
        Bound::Bytes(described_bytes(context, self)).and(elements)
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        metadata(broker, client, version, self)
    }
}

/// Describes topics and their partitions, page by page.
impl Handle for DescribeTopicPartitionsRequest {
    const CHECKS: &'static [Check] = &[Check::Handler, Check::Operations];

    /// The request has no field to ask with.
    fn operations(&self, access: &Access) -> Option<Edit<Self>> {
        let access = access.clone();
        Some(Box::new(move |answer| {
            for topic in answer
                .topics
                .iter_mut()
                .filter(|topic| topic.error_code == 0)
            {
                let name = topic.name.as_deref().map_or("", |name| &**name);
                topic.topic_authorized_operations = permitted(&access, Resource::topic(name));
            }
        }))
    }

    fn refuse(&self, refusal: &Refusal) -> DescribeTopicPartitionsResponse {
        let topics = each(&self.topics, |topic| {
            DescribeTopicPartitionsResponseTopic::default()
                .with_name(Some(topic.name.clone()))
                .with_error_code(refusal.code)
        });
        DescribeTopicPartitionsResponse::default().with_topics(topics)
    }

    errors!(topics.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let page = self.response_partition_limit.clamp(1, PAGE_PARTITIONS_MAX) as usize;
        let page = page.min(context.broker.log().partition_count() as usize);
        Bound::Bytes(page * (DESCRIBED_PARTITION_BYTES + TOPIC_BYTES))
            .and(context.elements(self.topics.len()))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        describe(broker, client, self)
    }
}

/// Returns the bytes of the topics that a Metadata request asks for.
fn described_bytes(context: &mut BoundContext<'_>, request: &MetadataRequest) -> usize {
    let (log, config) = (context.broker.log(), context.broker.config());
    let all = log.partition_count() as usize;
    let asked = request.topics.as_deref();
    let asked = asked.filter(|topics| context.version > 0 || !topics.is_empty());
    let Some(asked) = asked else {
        return all * METADATA_PARTITION_BYTES + log.stream_count() * TOPIC_BYTES;
    };
    // A topic that is missing may be created.
    let created = config.partitions_default;
    let topics = asked.iter().map(|topic| {
        let stream = match &topic.name {
            Some(name) if topic.topic_id.is_nil() => context.client.stream(name),
            _ => context.client.stream_by_uuid(topic.topic_id),
        };
        let partitions = stream.map_or(created, |stream| stream.partition_count());
        TOPIC_BYTES + METADATA_PARTITION_BYTES * partitions as usize
    });
    let created = asked.len() * (TOPIC_BYTES + METADATA_PARTITION_BYTES * created as usize);
    topics
        .sum::<usize>()
        .min(all * (METADATA_PARTITION_BYTES + TOPIC_BYTES) + created)
}

/// Lists the topics and the places of their partitions.
fn metadata(
    broker: &Arc<Broker>,
    client: &mut Client,
    version: i16,
    request: MetadataRequest,
) -> Reply {
    let (host, port) = client.advertised();
    let response = MetadataResponse {
        brokers: vec![
            MetadataResponseBroker::default()
                .with_node_id(broker.node_id())
                .with_host(StrBytes::from_string(host))
                .with_port(port.into()),
        ],
        cluster_id: Some(StrBytes::from_string(broker.cluster_id().to_owned())),
        controller_id: broker.node_id(),
        ..MetadataResponse::default()
    };
    // In the oldest version, none means all.
    let asked = request
        .topics
        .filter(|topics| version > 0 || !topics.is_empty());
    let Some(asked) = asked else {
        let log = broker.log();
        let names = log.stream_names().into_iter();
        let streams = names.filter_map(|name| log.stream(&name).ok());
        let offsets = broker.shown_stream(OFFSETS).ok();
        let topics = streams
            .filter(is_topic)
            .chain(offsets)
            .filter(|stream| client.access().sees_topic(stream.name()))
            .map(|stream| describe_topic(broker, &stream));
        let topics = topics.collect();
        return MetadataResponse { topics, ..response }.into();
    };
    // Listed once, even if the request names it several times: an answer is no larger than all
    // topics together.
    let mut named = HashSet::new();
    let mut asked = asked;
    // A request that names a topic by its id may carry an empty name, too.
    for topic in asked.iter_mut().filter(|topic| !topic.topic_id.is_nil()) {
        topic.name = None;
    }
    asked.retain(|topic| named.insert((topic.name.clone(), topic.topic_id)));
    let may_create = request.allow_auto_topic_creation && broker.config().auto_create_topics;
    let mut missing = Vec::new();
    let mut topics = Vec::with_capacity(asked.len());
    for topic in asked {
        let stream = match &topic.name {
            Some(name) => Named::Name(name),
            None => Named::Id(topic.topic_id),
        };
        let stream = stream.permitted(client, Operation::Describe);
        let described = match (&stream, &topic.name) {
            (Ok(stream), _) => describe_topic(broker, stream),
            // The offsets topic appears with the first group.
            (Err(error @ ResponseError::UnknownTopicOrPartition), Some(name))
                if ***name == *OFFSETS =>
            {
                refused_topic(topic.name, topic.topic_id, *error)
            }
            (Err(ResponseError::UnknownTopicOrPartition), Some(name))
                if check_name(name).is_err() =>
            {
                refused_topic(
                    topic.name,
                    topic.topic_id,
                    ResponseError::InvalidTopicException,
                )
            }
            (Err(ResponseError::UnknownTopicOrPartition), Some(name))
                if may_create && !client.access().may_create(name) =>
            {
                let error = ResponseError::TopicAuthorizationFailed;
                refused_topic(topic.name, topic.topic_id, error)
            }
            (Err(ResponseError::UnknownTopicOrPartition), Some(name)) if may_create => {
                missing.push((topics.len(), name.clone()));
                MetadataTopic::default()
            }
            (Err(error), _) => refused_topic(topic.name, topic.topic_id, *error),
        };
        topics.push(described);
    }
    if missing.is_empty() {
        return MetadataResponse { topics, ..response }.into();
    }
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        for (place, name) in missing {
            topics[place] = match create_missing(&broker, &name) {
                Ok(stream) => describe_topic(&broker, &stream),
                Err(error) => refused_topic(Some(name), Uuid::nil(), response_error(&error)),
            };
        }
        MetadataResponse { topics, ..response }
    })
}

fn create_missing(broker: &Broker, name: &str) -> Result<Stream, LogError> {
    let config = StreamConfig {
        streamlets: broker.config().partitions_default,
        ..StreamConfig::default()
    };
    let stream = broker.log().stream_or_create(name, config)?;
    broker.groups().topics_changed();
    Ok(stream)
}

/// Returns whether Kafka's clients can name the stream.
fn is_topic(stream: &Stream) -> bool {
    check_name(stream.name()).is_ok()
}

fn describe_topic(broker: &Broker, stream: &Stream) -> MetadataTopic {
    let only = broker.node_id();
    let epochs = stream.leader_epochs().into_iter();
    let partitions = (0..)
        .zip(epochs)
        .map(|(partition, epoch)| MetadataPartition {
            partition_index: partition,
            leader_id: only,
            leader_epoch: epoch,
            replica_nodes: Brokers::One(only),
            isr_nodes: Brokers::One(only),
            ..MetadataPartition::default()
        });
    MetadataTopic {
        name: Some(topic_name(stream.name())),
        topic_id: stream.uuid(),
        is_internal: stream.is_internal(),
        partitions: partitions.collect(),
        ..MetadataTopic::default()
    }
}

fn refused_topic(name: Option<TopicName>, id: Uuid, error: ResponseError) -> MetadataTopic {
    MetadataTopic {
        error_code: error.code(),
        name,
        topic_id: id,
        ..MetadataTopic::default()
    }
}

/// Describes topics, a page at a time.
fn describe(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: DescribeTopicPartitionsRequest,
) -> Reply {
    let mut names: Vec<TopicName> = request.topics.into_iter().map(|topic| topic.name).collect();
    if names.is_empty() {
        names = broker
            .log()
            .stream_names()
            .iter()
            .map(|name| topic_name(name))
            .collect();
        let is_seen = |name: &TopicName| client.access().sees_topic(name);
        names.retain(|name| check_name(name).is_ok());
        if broker.shows_offsets() {
            names.push(topic_name(OFFSETS));
        }
        names.retain(is_seen);
    }
    names.sort();
    names.dedup();
    let (after, mut first) = match request.cursor {
        Some(cursor) => (cursor.topic_name, cursor.partition_index.max(0) as u32),
        None => (TopicName::default(), 0),
    };
    let mut room = request
        .response_partition_limit
        .clamp(1, PAGE_PARTITIONS_MAX) as u32;
    let mut topics = Vec::new();
    let mut next = None;
    for name in names.into_iter().filter(|name| *name >= after) {
        if room == 0 {
            next = Some(Cursor::default().with_topic_name(name));
            break;
        }
        if name != after {
            first = 0;
        }
        let described =
            DescribeTopicPartitionsResponseTopic::default().with_name(Some(name.clone()));
        let stream = match Named::Name(&name).permitted(client, Operation::Describe) {
            Ok(stream) => stream,
            Err(error) => {
                topics.push(described.with_error_code(error.code()));
                continue;
            }
        };
        let epochs = stream.leader_epochs();
        let count = epochs.len() as u32;
        let end = count.min(first.saturating_add(room));
        let partitions = (first..end).map(|partition| {
            DescribeTopicPartitionsResponsePartition::default()
                .with_partition_index(partition as i32)
                .with_leader_id(broker.node_id())
                .with_leader_epoch(epochs[partition as usize])
                .with_replica_nodes(vec![broker.node_id()])
                .with_isr_nodes(vec![broker.node_id()])
                // Java's client cannot read a null list.
                .with_eligible_leader_replicas(Some(Vec::new()))
                .with_last_known_elr(Some(Vec::new()))
        });
        let described = described
            .with_topic_id(stream.uuid())
            .with_is_internal(stream.is_internal());
        topics.push(described.with_partitions(partitions.collect()));
        room -= end.saturating_sub(first);
        if end < count {
            let cursor = Cursor::default().with_topic_name(name);
            next = Some(cursor.with_partition_index(end as i32));
            break;
        }
    }
    DescribeTopicPartitionsResponse::default()
        .with_topics(topics)
        .with_next_cursor(next)
        .into()
}
