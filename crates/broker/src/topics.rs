//! Topics: listed, described, created, changed and deleted. A topic is a stream, and each `StreamPartition` of
//! it a partition.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_log::{LogError, Stream, StreamConfig};
use millstream_wire::messages::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use millstream_wire::messages::create_topics_request::CreatableTopic;
use millstream_wire::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use millstream_wire::messages::delete_topics_response::{
    DeletableTopicResult, DeleteTopicsResponse,
};
use millstream_wire::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use millstream_wire::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use millstream_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest,
    DescribeTopicPartitionsRequest, MetadataRequest, TopicName,
};
use millstream_wire::{ResponseError, StrBytes, Uuid};

use crate::access::denied_by_id;
use crate::broker::{Broker, OFFSETS};
use crate::client::Client;
use crate::configs;
use crate::error::response_error;
use crate::reply::Reply;
use crate::security::Operation;
use crate::topic_names::check_name;
use crate::user_streams::{not_internal, stream_of_users};

/// The epoch of every partition's leader, of which there is only one, ever.
pub const LEADER_EPOCH: i32 = 0;

/// The most partitions in one page of a description.
const PAGE_PARTITIONS_MAX: i32 = 2_000;

/// A topic as a request names it.
pub enum Named<'a> {
    Name(&'a str),
    Id(Uuid),
}

impl<'a> Named<'a> {
    pub fn of(has_id: bool, name: &'a TopicName, id: Uuid) -> Named<'a> {
        match has_id {
            true => Named::Id(id),
            false => Named::Name(name),
        }
    }

    /// Returns the named stream.
    pub fn stream(&self, client: &mut Client) -> Result<Stream, ResponseError> {
        match self {
            Named::Name(name) => client.stream(name).map_err(|error| response_error(&error)),
            Named::Id(id) => client
                .stream_by_uuid(*id)
                .map_err(|_| ResponseError::UnknownTopicId),
        }
    }

    /// Returns the named stream if the client may do this operation on it.
    pub fn permitted(
        &self,
        client: &mut Client,
        operation: Operation,
    ) -> Result<Stream, ResponseError> {
        let check = |client: &Client, name: &str| match client.access().may_topic(operation, name) {
            true => Ok(()),
            false => Err(ResponseError::TopicAuthorizationFailed),
        };
        match self {
            Named::Name(name) => {
                check(client, name)?;
                self.stream(client)
            }
            Named::Id(_) => {
                let stream = self.stream(client)?;
                check(client, stream.name())
                    .map_err(|_| denied_by_id(client.access(), stream.name()))?;
                Ok(stream)
            }
        }
    }
}

/// Refuses a stream that clients can only read.
pub fn not_read_only(stream: Stream) -> Result<Stream, ResponseError> {
    match stream.is_internal() {
        true => Err(ResponseError::InvalidTopicException),
        false => Ok(stream),
    }
}

/// Lists the topics and the places of their partitions.
pub fn metadata(
    broker: &Arc<Broker>,
    client: &mut Client,
    version: i16,
    request: MetadataRequest,
) -> Reply {
    let (host, port) = client.advertised();
    let response = MetadataResponse::default()
        .with_brokers(vec![
            MetadataResponseBroker::default()
                .with_node_id(broker.node_id())
                .with_host(StrBytes::from_string(host))
                .with_port(port.into()),
        ])
        .with_cluster_id(Some(StrBytes::from_string(broker.cluster_id().to_owned())))
        .with_controller_id(broker.node_id());
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
        return response.with_topics(topics.collect()).into();
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
                MetadataResponseTopic::default()
            }
            (Err(error), _) => refused_topic(topic.name, topic.topic_id, *error),
        };
        topics.push(described);
    }
    if missing.is_empty() {
        return response.with_topics(topics).into();
    }
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        for (place, name) in missing {
            topics[place] = match create_missing(&broker, &name) {
                Ok(stream) => describe_topic(&broker, &stream),
                Err(error) => refused_topic(Some(name), Uuid::nil(), response_error(&error)),
            };
        }
        response.with_topics(topics)
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

fn describe_topic(broker: &Broker, stream: &Stream) -> MetadataResponseTopic {
    let partitions = (0..stream.partition_count() as i32).map(|partition| {
        MetadataResponsePartition::default()
            .with_partition_index(partition)
            .with_leader_id(broker.node_id())
            .with_leader_epoch(LEADER_EPOCH)
            .with_replica_nodes(vec![broker.node_id()])
            .with_isr_nodes(vec![broker.node_id()])
    });
    MetadataResponseTopic::default()
        .with_name(Some(topic_name(stream.name())))
        .with_topic_id(shown_id(stream))
        .with_is_internal(stream.is_internal())
        .with_partitions(partitions.collect())
}

/// Returns the id that clients see. A stream that they can only read has none, since the lookup by
/// id finds streams of users alone.
fn shown_id(stream: &Stream) -> Uuid {
    match stream.is_internal() {
        true => Uuid::nil(),
        false => stream.uuid(),
    }
}

fn refused_topic(name: Option<TopicName>, id: Uuid, error: ResponseError) -> MetadataResponseTopic {
    MetadataResponseTopic::default()
        .with_name(name)
        .with_topic_id(id)
        .with_error_code(error.code())
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// Describes topics, a page at a time.
pub fn describe(
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
        let count = stream.partition_count();
        let end = count.min(first.saturating_add(room));
        let partitions = (first..end).map(|partition| {
            DescribeTopicPartitionsResponsePartition::default()
                .with_partition_index(partition as i32)
                .with_leader_id(broker.node_id())
                .with_leader_epoch(LEADER_EPOCH)
                .with_replica_nodes(vec![broker.node_id()])
                .with_isr_nodes(vec![broker.node_id()])
                // Java's client cannot read a null list.
                .with_eligible_leader_replicas(Some(Vec::new()))
                .with_last_known_elr(Some(Vec::new()))
        });
        let described = described
            .with_topic_id(shown_id(&stream))
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

/// Why a topic is not created or changed.
struct Refusal {
    error: ResponseError,
    message: String,
}

impl Refusal {
    fn new(error: ResponseError, message: impl Into<String>) -> Refusal {
        let message = message.into();
        Refusal { error, message }
    }
}

impl From<LogError> for Refusal {
    fn from(error: LogError) -> Refusal {
        Refusal::new(response_error(&error), error.to_string())
    }
}

/// Creates topics.
pub fn create(broker: &Arc<Broker>, request: CreateTopicsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let mut validated = 0;
        let results = request.topics.iter().map(|topic| {
            let result = CreatableTopicResult::default().with_name(topic.name.clone());
            match create_topic(&broker, topic, request.validate_only, &mut validated) {
                Ok(created) => result
                    .with_topic_id(created.id)
                    .with_num_partitions(created.partitions)
                    .with_replication_factor(1)
                    .with_configs(Some(created.configs)),
                Err(refusal) => result
                    .with_num_partitions(-1)
                    .with_replication_factor(-1)
                    .with_error_code(refusal.error.code())
                    .with_error_message(Some(StrBytes::from_string(refusal.message))),
            }
        });
        CreateTopicsResponse::default().with_topics(results.collect())
    })
}

struct Created {
    id: Uuid,
    partitions: i32,
    configs: Vec<CreatableTopicConfigs>,
}

/// Creates one topic. `validated` counts the partitions of a request that only validates.
fn create_topic(
    broker: &Broker,
    topic: &CreatableTopic,
    validate_only: bool,
    validated: &mut u64,
) -> Result<Created, Refusal> {
    let invalid_name = |why: &str| Refusal::new(ResponseError::InvalidTopicException, why);
    check_name(&topic.name).map_err(invalid_name)?;
    let partitions = partitions_of(broker, topic)?;
    let mut config = StreamConfig {
        streamlets: partitions,
        ..StreamConfig::default()
    };
    let settings = topic.configs.iter();
    let settings = settings.map(|setting| (&*setting.name, setting.value.as_deref()));
    configs::set_of_created(&mut config, &topic.name, settings)
        .map_err(|refused| Refusal::new(refused.error, refused.message))?;
    let id = match validate_only {
        true if broker.log().stream(&topic.name).is_ok() => {
            let exists = LogError::Exists {
                name: topic.name.to_string(),
            };
            return Err(exists.into());
        }
        true => {
            check_more(broker, partitions, validated)?;
            Uuid::nil()
        }
        false => {
            let stream = broker.log().create_stream(&topic.name, config.clone())?;
            broker.groups().topics_changed();
            stream.uuid()
        }
    };
    Ok(Created {
        id,
        partitions: partitions as i32,
        configs: configs::of_created(broker, &config),
    })
}

/// Checks that the node may have the partitions that a validating request has counted so far, and
/// these beside them.
fn check_more(broker: &Broker, partitions: u32, validated: &mut u64) -> Result<(), LogError> {
    let more = *validated + u64::from(partitions);
    broker.log().check_partitions(more)?;
    *validated = more;
    Ok(())
}

fn partitions_of(broker: &Broker, topic: &CreatableTopic) -> Result<u32, Refusal> {
    if !topic.assignments.is_empty() {
        let places = topic.assignments.iter().map(|assignment| {
            let is_here = assignment.broker_ids == [broker.node_id()];
            is_here.then_some(assignment.partition_index)
        });
        let mut places: Vec<Option<i32>> = places.collect();
        places.sort_unstable();
        let expected = 0..places.len() as i32;
        if !places.iter().copied().eq(expected.map(Some)) {
            return Err(Refusal::new(
                ResponseError::InvalidReplicaAssignment,
                format!(
                    "partitions are numbered from 0, and each is on broker {} alone",
                    broker.config().node_id
                ),
            ));
        }
    } else if !matches!(topic.replication_factor, -1 | 1) {
        return Err(Refusal::new(
            ResponseError::InvalidReplicationFactor,
            "there is one broker, so the replication factor is 1",
        ));
    }
    let partitions = match (topic.assignments.len(), topic.num_partitions) {
        (0, -1) => broker.config().partitions_default,
        (0, count) => u32::try_from(count).unwrap_or(0),
        (count, _) => count as u32,
    };
    check_partitions(broker, partitions)
}

fn check_partitions(broker: &Broker, partitions: u32) -> Result<u32, Refusal> {
    let max = broker.config().partitions_max;
    match (1..=max).contains(&partitions) {
        true => Ok(partitions),
        false => Err(Refusal::new(
            ResponseError::InvalidPartitions,
            format!("a topic has 1 to {max} partitions"),
        )),
    }
}

/// Deletes topics, with all that is in them.
pub fn delete(broker: &Arc<Broker>, version: i16, request: DeleteTopicsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let by_name = request
            .topic_names
            .into_iter()
            .map(|name| (Some(name), Uuid::nil()));
        let named = request
            .topics
            .into_iter()
            .map(|topic| (topic.name, topic.topic_id));
        let results = by_name.chain(named).map(|(name, id)| {
            let (name, error) = match delete_topic(&broker, name.as_ref(), id) {
                Ok(name) => (Some(name), None),
                Err(error) => (name, Some(error)),
            };
            let message = error.as_ref().map(|refusal| refusal.message.clone());
            DeletableTopicResult::default()
                // Up to version 5 the field cannot be null.
                .with_name(name.or((version < 6).then(TopicName::default)))
                .with_topic_id(id)
                .with_error_code(error.map_or(0, |refusal| refusal.error.code()))
                .with_error_message(message.filter(|_| version >= 5).map(StrBytes::from_string))
        });
        DeleteTopicsResponse::default().with_responses(results.collect())
    })
}

fn delete_topic(broker: &Broker, name: Option<&TopicName>, id: Uuid) -> Result<TopicName, Refusal> {
    let name = match name {
        // Access was asked for by one of them.
        Some(_) if !id.is_nil() => {
            let message = "a topic is named by its name or by its id, not by both";
            return Err(Refusal::new(ResponseError::InvalidRequest, message));
        }
        Some(name) => name.clone(),
        None => {
            let stream = broker.log().stream_by_uuid(id);
            let stream = stream
                .and_then(not_internal)
                .map_err(|error| Refusal::new(ResponseError::UnknownTopicId, error.to_string()))?;
            topic_name(stream.name())
        }
    };
    stream_of_users(broker.log(), &name)?;
    broker.log().delete_stream(&name)?;
    broker.groups().topics_changed();
    broker.shares().forget_missing();
    Ok(name)
}

/// Adds partitions to topics.
pub fn create_partitions(broker: &Arc<Broker>, request: CreatePartitionsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let mut validated = 0;
        let results = request.topics.into_iter().map(|topic| {
            let tried = request.validate_only.then_some(&mut validated);
            let grown = grow(&broker, &topic.name, topic.count, tried);
            let result = CreatePartitionsTopicResult::default().with_name(topic.name);
            match grown {
                Ok(()) => result,
                Err(refusal) => result
                    .with_error_code(refusal.error.code())
                    .with_error_message(Some(StrBytes::from_string(refusal.message))),
            }
        });
        CreatePartitionsResponse::default().with_results(results.collect())
    })
}

/// Adds partitions to one topic. `validated` counts the partitions of a request that only
/// validates.
fn grow(
    broker: &Broker,
    name: &str,
    count: i32,
    validated: Option<&mut u64>,
) -> Result<(), Refusal> {
    let stream = stream_of_users(broker.log(), name)?;
    let config = stream.config();
    let has = stream.partition_count();
    let wanted = check_partitions(broker, u32::try_from(count).unwrap_or(0))?;
    if wanted <= has {
        return Err(Refusal::new(
            ResponseError::InvalidPartitions,
            format!("topic {name} has {has} partitions already, and none is ever taken away"),
        ));
    }
    if wanted % config.lanes != 0 {
        return Err(Refusal::new(
            ResponseError::InvalidPartitions,
            format!(
                "each streamlet of {name} has {} lanes, so the partitions are a multiple of that",
                config.lanes
            ),
        ));
    }
    if let Some(validated) = validated {
        return Ok(check_more(broker, wanted - has, validated)?);
    }
    let streamlets = wanted / config.lanes;
    broker.log().grow_stream(name, streamlets, config.lanes)?;
    broker.groups().topics_changed();
    Ok(())
}
