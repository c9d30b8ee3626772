//! Topics that are created, grown and deleted.

use std::sync::Arc;

use millstream_log::{LogError, StreamConfig};
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
use millstream_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, TopicName,
};
use millstream_wire::{ResponseError, StrBytes, Uuid};

use super::{knows, may_named, topic_name};
use crate::broker::Broker;
use crate::client::Client;
use crate::configs::set_of_created;
use crate::error::response_error;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::configs;
use crate::requests::handle::{Handle, Refusal, each, errors, messages};
use crate::requests::rights::{Check, TOPIC_DENIED, UNKNOWN_ID, items, may_topic};
use crate::security::Operation;
use crate::topic_names::check_name;
use crate::user_streams::{not_internal, stream_of_users};

/// The first version of DeleteTopics that can name topics by their ids.
const DELETE_STATES_FROM: i16 = 6;

/// A created topic in an answer, with all its settings.
const CREATED_BYTES: usize = 32 << 10;

/// Creates topics.
impl Handle for CreateTopicsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { topics:
        topics, TOPIC_DENIED, |client, asked| client.access().may_create(&asked.name);
    }

    fn refuse(&self, refusal: &Refusal) -> CreateTopicsResponse {
        CreateTopicsResponse::default().with_topics(each(&self.topics, |topic| {
            CreatableTopicResult::default()
                .with_name(topic.name.clone())
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
        }))
    }

    errors!(topics.error_code);
    messages!(topics.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.list(self.topics.len(), CREATED_BYTES)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        create(broker, self)
    }
}

/// Deletes topics.
impl Handle for DeleteTopicsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { responses:
        topic_names, TOPIC_DENIED, |client, name| may_topic(client, Operation::Delete, name);
        topics, UNKNOWN_ID, |client, asked| knows(client, Operation::Delete, asked.topic_id);
        topics, TOPIC_DENIED, |client, asked| {
            may_named(client, Operation::Delete, asked.name.as_ref(), asked.topic_id)
        };
    }

    fn refuse(&self, refusal: &Refusal) -> DeleteTopicsResponse {
        let result = || {
            DeletableTopicResult::default()
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
        };
        let results = if refusal.version >= DELETE_STATES_FROM {
            each(&self.topics, |topic| {
                result()
                    .with_name(topic.name.clone())
                    .with_topic_id(topic.topic_id)
            })
        } else {
            each(&self.topic_names, |name| {
                result().with_name(Some(name.clone()))
            })
        };
        DeleteTopicsResponse::default().with_responses(results)
    }

    errors!(responses.error_code);
    messages!(responses.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.topics.len() + self.topic_names.len())
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        delete(broker, version, self)
    }
}

/// Adds partitions to topics.
impl Handle for CreatePartitionsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { results:
        topics, TOPIC_DENIED, |client, asked| may_topic(client, Operation::Alter, &asked.name);
    }

    fn refuse(&self, refusal: &Refusal) -> CreatePartitionsResponse {
        CreatePartitionsResponse::default().with_results(each(&self.topics, |topic| {
            CreatePartitionsTopicResult::default()
                .with_name(topic.name.clone())
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
        }))
    }

    errors!(results.error_code);
    messages!(results.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.topics.len())
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        create_partitions(broker, self)
    }
}

/// The reason why a topic is not created or changed.
struct Refused {
    error: ResponseError,
    message: String,
}

impl Refused {
    fn new(error: ResponseError, message: impl Into<String>) -> Refused {
        let message = message.into();
        Refused { error, message }
    }
}

impl From<LogError> for Refused {
    fn from(error: LogError) -> Refused {
        Refused::new(response_error(&error), error.to_string())
    }
}

/// Creates topics.
fn create(broker: &Arc<Broker>, request: CreateTopicsRequest) -> Reply {
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
                Err(refused) => result
                    .with_num_partitions(-1)
                    .with_replication_factor(-1)
                    .with_error_code(refused.error.code())
                    .with_error_message(Some(StrBytes::from_string(refused.message))),
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
) -> Result<Created, Refused> {
    let invalid_name = |why: &str| Refused::new(ResponseError::InvalidTopicException, why);
    check_name(&topic.name).map_err(invalid_name)?;
    let partitions = partitions_of(broker, topic)?;
    let mut config = StreamConfig {
        streamlets: partitions,
        ..StreamConfig::default()
    };
    let settings = topic.configs.iter();
    let settings = settings.map(|setting| (&*setting.name, setting.value.as_deref()));
    let settings: Vec<(&str, Option<&str>)> = settings.collect();
    set_of_created(&mut config, &settings)
        .map_err(|refused| Refused::new(refused.error, refused.message))?;
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

fn partitions_of(broker: &Broker, topic: &CreatableTopic) -> Result<u32, Refused> {
    if !topic.assignments.is_empty() {
        let places = topic.assignments.iter().map(|assignment| {
            let is_here = assignment.broker_ids == [broker.node_id()];
            is_here.then_some(assignment.partition_index)
        });
        let mut places: Vec<Option<i32>> = places.collect();
        places.sort_unstable();
        let expected = 0..places.len() as i32;
        if !places.iter().copied().eq(expected.map(Some)) {
            return Err(Refused::new(
                ResponseError::InvalidReplicaAssignment,
                format!(
                    "partitions are numbered from 0, and each is on broker {} alone",
                    broker.config().node_id
                ),
            ));
        }
    } else if !matches!(topic.replication_factor, -1 | 1) {
        return Err(Refused::new(
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

fn check_partitions(broker: &Broker, partitions: u32) -> Result<u32, Refused> {
    let max = broker.config().partitions_max;
    match (1..=max).contains(&partitions) {
        true => Ok(partitions),
        false => Err(Refused::new(
            ResponseError::InvalidPartitions,
            format!("a topic has 1 to {max} partitions"),
        )),
    }
}

/// Deletes topics, with all that is in them.
fn delete(broker: &Arc<Broker>, version: i16, request: DeleteTopicsRequest) -> Reply {
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
            let message = error.as_ref().map(|refused| refused.message.clone());
            DeletableTopicResult::default()
                // Up to version 5 the field cannot be null.
                .with_name(name.or((version < 6).then(TopicName::default)))
                .with_topic_id(id)
                .with_error_code(error.map_or(0, |refused| refused.error.code()))
                .with_error_message(message.filter(|_| version >= 5).map(StrBytes::from_string))
        });
        DeleteTopicsResponse::default().with_responses(results.collect())
    })
}

fn delete_topic(broker: &Broker, name: Option<&TopicName>, id: Uuid) -> Result<TopicName, Refused> {
    let name = match name {
        // Access was asked for by one of them.
        Some(_) if !id.is_nil() => {
            let message = "a topic is named by its name or by its id, not by both";
            return Err(Refused::new(ResponseError::InvalidRequest, message));
        }
        Some(name) => name.clone(),
        None => {
            let stream = broker.log().stream_by_uuid(id);
            let stream = stream
                .and_then(not_internal)
                .map_err(|error| Refused::new(ResponseError::UnknownTopicId, error.to_string()))?;
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
fn create_partitions(broker: &Arc<Broker>, request: CreatePartitionsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let mut validated = 0;
        let results = request.topics.into_iter().map(|topic| {
            let tried = request.validate_only.then_some(&mut validated);
            let grown = grow(&broker, &topic.name, topic.count, tried);
            let result = CreatePartitionsTopicResult::default().with_name(topic.name);
            match grown {
                Ok(()) => result,
                Err(refused) => result
                    .with_error_code(refused.error.code())
                    .with_error_message(Some(StrBytes::from_string(refused.message))),
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
) -> Result<(), Refused> {
    let stream = stream_of_users(broker.log(), name)?;
    let config = stream.config();
    let has = stream.partition_count();
    let wanted = check_partitions(broker, u32::try_from(count).unwrap_or(0))?;
    if wanted <= has {
        return Err(Refused::new(
            ResponseError::InvalidPartitions,
            format!("topic {name} has {has} partitions already, and none is ever taken away"),
        ));
    }
    if wanted % config.lanes != 0 {
        return Err(Refused::new(
            ResponseError::InvalidPartitions,
            format!(
                "topic {name} gets {lanes} partitions at a time: their number must be a multiple of {lanes}, and not {wanted}",
                lanes = config.lanes
            ),
        ));
    }
    stream.check_growth()?;
    if let Some(validated) = validated {
        return Ok(check_more(broker, wanted - has, validated)?);
    }
    let streamlets = wanted / config.lanes;
    broker.log().grow_stream(name, streamlets, config.lanes)?;
    broker.groups().topics_changed();
    Ok(())
}
