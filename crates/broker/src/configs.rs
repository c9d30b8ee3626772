//! Settings of topics under the names that Kafka gives them.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_base::ByteSize;
use millstream_log::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, LogError, StreamConfig};
use millstream_wire::messages::alter_configs_response::{
    AlterConfigsResourceResponse, AlterConfigsResponse,
};
use millstream_wire::messages::create_topics_response::CreatableTopicConfigs;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
    DescribeConfigsSynonym,
};
use millstream_wire::messages::incremental_alter_configs_response as incremental;
use millstream_wire::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
};
use millstream_wire::{ResponseError, StrBytes};

use crate::broker::Broker;
use crate::client::stream_of_users;
use crate::error::response_error;
use crate::reply::Reply;
use crate::topics::optional_bytes;

/// Kinds of resources.
pub const TOPIC: i8 = 2;
pub const BROKER: i8 = 4;

/// Where a value comes from.
const SOURCE_TOPIC: i8 = 1;
const SOURCE_STATIC_BROKER: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;

/// Types of values.
const TYPE_BOOLEAN: i8 = 1;
const TYPE_STRING: i8 = 2;
const TYPE_INT: i8 = 3;
const TYPE_LONG: i8 = 5;
const TYPE_LIST: i8 = 7;

/// What [`IncrementalAlterConfigsRequest`] does with a value.
const OPERATION_SET: i8 = 0;
const OPERATION_DELETE: i8 = 1;

/// The setting that decides when producers are answered.
const DURABILITY: &str = "millstream.durability";

/// A setting of topics.
struct Setting {
    name: &'static str,
    kind: i8,
    default: &'static str,
    /// What it does here.
    documentation: &'static str,
    /// Whether a value makes sense.
    check: fn(&str) -> Result<(), String>,
}

fn long_from(min: i64) -> impl Fn(&str) -> Result<i64, String> {
    move |text| match text.parse() {
        Ok(number) if number >= min => Ok(number),
        _ => Err(format!("{text:?} is no whole number from {min} on")),
    }
}

fn check_duration(text: &str) -> Result<(), String> {
    long_from(-1)(text).map(drop)
}

fn check_segment(text: &str) -> Result<(), String> {
    long_from(14)(text).map(drop)
}

fn check_chunk(text: &str) -> Result<(), String> {
    long_from(0)(text).map(drop)
}

fn one_of(text: &str, known: &[&str]) -> Result<(), String> {
    match known.contains(&text) {
        true => Ok(()),
        false => Err(format!("{text:?} is none of {}", known.join(", "))),
    }
}

/// The settings that are known. Others are refused, as Kafka does.
const SETTINGS: [Setting; 12] = [
    Setting {
        name: "cleanup.policy",
        kind: TYPE_LIST,
        default: "delete",
        documentation: "What happens to old records: they are deleted as the retention says.",
        check: |text| one_of(text, &["delete"]),
    },
    Setting {
        name: "compression.type",
        kind: TYPE_STRING,
        default: "producer",
        documentation: "Batches are kept as the producer compressed them.",
        check: |text| one_of(text, &["producer"]),
    },
    Setting {
        name: "retention.ms",
        kind: TYPE_LONG,
        default: "-1",
        documentation: "Closed groups whose newest record is older are removed; -1 for never.",
        check: check_duration,
    },
    Setting {
        name: "retention.bytes",
        kind: TYPE_LONG,
        default: "-1",
        documentation: "Closed groups are removed while a partition holds more; -1 for no bound.",
        check: check_duration,
    },
    Setting {
        name: "segment.bytes",
        kind: TYPE_INT,
        default: "134217728",
        documentation: "The size of a group, in which retention removes.",
        check: check_segment,
    },
    Setting {
        name: "max.message.bytes",
        kind: TYPE_INT,
        default: "8388608",
        documentation: "The largest batch that is taken in.",
        check: check_chunk,
    },
    Setting {
        name: "message.timestamp.type",
        kind: TYPE_STRING,
        default: "CreateTime",
        documentation: "Records keep the time that their producer gave them.",
        check: |text| one_of(text, &["CreateTime"]),
    },
    Setting {
        name: "min.insync.replicas",
        kind: TYPE_INT,
        default: "1",
        documentation: "There is one broker.",
        check: |text| one_of(text, &["1"]),
    },
    Setting {
        name: "segment.ms",
        kind: TYPE_LONG,
        default: "604800000",
        documentation: "Kept for clients that ask; groups are closed by their size.",
        check: check_duration,
    },
    Setting {
        name: "delete.retention.ms",
        kind: TYPE_LONG,
        default: "86400000",
        documentation: "Kept for clients that ask; nothing is compacted.",
        check: check_duration,
    },
    Setting {
        name: "unclean.leader.election.enable",
        kind: TYPE_BOOLEAN,
        default: "false",
        documentation: "There is one broker, so nobody is elected.",
        check: |text| one_of(text, &["false"]),
    },
    Setting {
        name: DURABILITY,
        kind: TYPE_STRING,
        default: "sync",
        documentation: "When a producer is answered: sync (what it sent is on disk), written (the system has it: only a loss of power loses the last second), async (at once; what came in the last moments is lost when the server is killed), memory (never written). Set when the topic is created.",
        check: |text| text.parse::<millstream_log::Durability>().map(drop),
    },
];

/// Sets a setting; without a value, to its default.
pub fn set(config: &mut StreamConfig, name: &str, value: Option<&str>) -> Result<(), String> {
    let setting = SETTINGS
        .iter()
        .find(|setting| setting.name == name)
        .ok_or_else(|| format!("unknown setting {name}"))?;
    let text = value.unwrap_or(setting.default);
    (setting.check)(text).map_err(|why| format!("{name}: {why}"))?;
    let number = || text.parse::<i64>().unwrap_or(-1);
    match name {
        "retention.ms" => config.retention_ms = u64::try_from(number()).ok(),
        "retention.bytes" => config.retention = optional_bytes(number()),
        "max.message.bytes" => {
            config.chunk_bytes_max = value.and_then(|_| optional_bytes(number()));
        }
        "segment.bytes" => set_group_bytes(config, number().max(0) as u64),
        DURABILITY => config.durability = text.parse()?,
        _ => {}
    }
    match value {
        Some(_) => config.settings.insert(name.to_owned(), text.to_owned()),
        None => config.settings.remove(name),
    };
    Ok(())
}

/// A group is a number of segments, so its size is what is wanted, or a little more.
fn set_group_bytes(config: &mut StreamConfig, bytes: u64) {
    let segment = bytes
        .next_power_of_two()
        .clamp(BLOCK_BYTES_MIN as u64, BLOCK_BYTES_MAX as u64);
    config.segment = ByteSize(segment);
    config.group_segments = bytes.div_ceil(segment).clamp(1, 65_536) as u32;
}

/// The value of a setting, and where it comes from.
fn value_of(config: &StreamConfig, setting: &Setting) -> (String, i8) {
    let or_none = |value: Option<u64>| value.map_or("-1".to_owned(), |value| value.to_string());
    let value = match setting.name {
        "retention.ms" => or_none(config.retention_ms),
        "retention.bytes" => or_none(config.retention.map(|bytes| bytes.0)),
        "segment.bytes" => (config.segment.0 * u64::from(config.group_segments)).to_string(),
        "max.message.bytes" => config
            .chunk_bytes_max
            .map_or(setting.default.to_owned(), |bytes| bytes.0.to_string()),
        DURABILITY => config.durability.name().to_owned(),
        name => match config.settings.get(name) {
            Some(value) => value.clone(),
            None => setting.default.to_owned(),
        },
    };
    let is_set = config.settings.contains_key(setting.name) || value != setting.default;
    let source = if is_set { SOURCE_TOPIC } else { SOURCE_DEFAULT };
    (value, source)
}

/// What a topic that was just created has.
pub fn of_created(config: &StreamConfig) -> Vec<CreatableTopicConfigs> {
    let settings = SETTINGS.iter().map(|setting| {
        let (value, source) = value_of(config, setting);
        CreatableTopicConfigs::default()
            .with_name(StrBytes::from_static_str(setting.name))
            .with_value(Some(StrBytes::from_string(value)))
            .with_config_source(source)
    });
    settings.collect()
}

/// Describes the settings of topics, and of the broker.
pub fn describe(broker: &Arc<Broker>, request: DescribeConfigsRequest) -> Reply {
    // Told once, however often it is asked for: an answer is no larger than all settings together.
    let mut named = HashSet::new();
    let resources = request.resources.iter();
    let resources = resources
        .filter(|resource| named.insert((resource.resource_type, &resource.resource_name)));
    let results = resources.map(|resource| {
        let result = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        let described = match resource.resource_type {
            TOPIC => describe_topic(broker, resource, &request),
            BROKER => describe_broker(broker, resource, &request),
            _ => Err((
                ResponseError::InvalidRequest,
                "only topics and brokers have settings".to_owned(),
            )),
        };
        match described {
            Ok(configs) => result.with_configs(configs),
            Err((error, message)) => result
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_string(message))),
        }
    });
    DescribeConfigsResponse::default()
        .with_results(results.collect())
        .into()
}

type Described = Result<Vec<DescribeConfigsResourceResult>, (ResponseError, String)>;

fn is_asked_for(resource: &DescribeConfigsResource, name: &str) -> bool {
    let keys = resource.configuration_keys.as_ref();
    keys.is_none_or(|keys| keys.iter().any(|key| **key == *name))
}

fn describe_topic(
    broker: &Broker,
    resource: &DescribeConfigsResource,
    request: &DescribeConfigsRequest,
) -> Described {
    let stream = stream_of_users(broker.log(), &resource.resource_name);
    let config = stream
        .map_err(|error| (response_error(&error), error.to_string()))?
        .config();
    let settings = SETTINGS
        .iter()
        .filter(|setting| is_asked_for(resource, setting.name));
    let described = settings.map(|setting| {
        let (value, source) = value_of(&config, setting);
        let value = Some(StrBytes::from_string(value));
        let name = StrBytes::from_static_str(setting.name);
        let synonym = DescribeConfigsSynonym::default()
            .with_name(name.clone())
            .with_value(value.clone())
            .with_source(source);
        let documentation = StrBytes::from_static_str(setting.documentation);
        DescribeConfigsResourceResult::default()
            .with_name(name)
            .with_value(value)
            .with_config_source(source)
            .with_config_type(setting.kind)
            .with_synonyms(Vec::from_iter(request.include_synonyms.then_some(synonym)))
            .with_documentation(request.include_documentation.then_some(documentation))
    });
    Ok(described.collect())
}

fn describe_broker(
    broker: &Broker,
    resource: &DescribeConfigsResource,
    request: &DescribeConfigsRequest,
) -> Described {
    let id = broker.config().node_id;
    if !resource.resource_name.is_empty() && *resource.resource_name != *id.to_string() {
        let message = format!("the only broker is {id}");
        return Err((ResponseError::InvalidRequest, message));
    }
    let config = broker.config();
    let settings = [
        (
            "auto.create.topics.enable",
            TYPE_BOOLEAN,
            config.auto_create_topics.to_string(),
        ),
        (
            "num.partitions",
            TYPE_INT,
            config.partitions_default.to_string(),
        ),
        (
            "socket.request.max.bytes",
            TYPE_INT,
            config.request_bytes_max.to_string(),
        ),
        (
            "fetch.max.bytes",
            TYPE_INT,
            config.fetch_bytes_max.to_string(),
        ),
        (
            "connections.max.idle.ms",
            TYPE_LONG,
            config.idle_max.as_millis().to_string(),
        ),
        ("default.replication.factor", TYPE_INT, "1".to_owned()),
        (
            "log.dirs",
            TYPE_STRING,
            broker.log().dir().display().to_string(),
        ),
    ];
    let settings = settings
        .into_iter()
        .filter(|(name, ..)| is_asked_for(resource, name));
    let described = settings.map(|(name, kind, value)| {
        let value = Some(StrBytes::from_string(value));
        let synonym = DescribeConfigsSynonym::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(value.clone())
            .with_source(SOURCE_STATIC_BROKER);
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(value)
            .with_read_only(true)
            .with_config_source(SOURCE_STATIC_BROKER)
            .with_config_type(kind)
            .with_synonyms(Vec::from_iter(request.include_synonyms.then_some(synonym)))
    });
    Ok(described.collect())
}

/// A change of one setting: `None` for its default.
type Change<'a> = (&'a str, Option<&'a str>);

/// Replaces all settings of topics.
pub fn alter(broker: &Arc<Broker>, request: AlterConfigsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let responses = request.resources.iter().map(|resource| {
            let given = |name: &str| {
                let mut configs = resource.configs.iter();
                let config = configs.find(|config| *config.name == *name);
                config.and_then(|config| config.value.as_deref())
            };
            let unknown = resource.configs.iter();
            let unknown = unknown.map(|config| (&*config.name, config.value.as_deref()));
            let all = SETTINGS.iter().filter(|setting| setting.name != DURABILITY);
            let all = all.map(|setting| (setting.name, given(setting.name)));
            let changes: Vec<Change<'_>> = all.chain(unknown).collect();
            let altered = alter_resource(
                &broker,
                resource.resource_type,
                &resource.resource_name,
                &changes,
                request.validate_only,
            );
            let response = AlterConfigsResourceResponse::default()
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone());
            match altered {
                Ok(()) => response,
                Err((error, message)) => response
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_string(message))),
            }
        });
        AlterConfigsResponse::default().with_responses(responses.collect())
    })
}

/// Changes single settings of topics.
pub fn alter_incrementally(broker: &Arc<Broker>, request: IncrementalAlterConfigsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let responses = request.resources.iter().map(|resource| {
            let changes = resource.configs.iter().map(|config| {
                match (config.config_operation, &config.value) {
                    (OPERATION_SET, Some(value)) => Ok((&*config.name, Some(&**value))),
                    (OPERATION_DELETE, _) => Ok((&*config.name, None)),
                    _ => Err((
                        ResponseError::InvalidRequest,
                        format!("{}: values are set or deleted", config.name),
                    )),
                }
            });
            let changes: Result<Vec<Change<'_>>, _> = changes.collect();
            let altered = changes.and_then(|changes| {
                alter_resource(
                    &broker,
                    resource.resource_type,
                    &resource.resource_name,
                    &changes,
                    request.validate_only,
                )
            });
            let response = incremental::AlterConfigsResourceResponse::default()
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone());
            match altered {
                Ok(()) => response,
                Err((error, message)) => response
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_string(message))),
            }
        });
        incremental::IncrementalAlterConfigsResponse::default().with_responses(responses.collect())
    })
}

fn alter_resource(
    broker: &Broker,
    resource_type: i8,
    name: &str,
    changes: &[Change<'_>],
    validate_only: bool,
) -> Result<(), (ResponseError, String)> {
    if resource_type != TOPIC {
        let message = "the broker's settings are those that it was started with".to_owned();
        return Err((ResponseError::InvalidConfig, message));
    }
    let of_log = |error: LogError| (response_error(&error), error.to_string());
    let stream = stream_of_users(broker.log(), name).map_err(of_log)?;
    let mut config = stream.config();
    for (name, value) in changes {
        set(&mut config, name, *value).map_err(|why| (ResponseError::InvalidConfig, why))?;
    }
    if validate_only {
        return Ok(());
    }
    // Checked above on what it was; each change stands by itself, whatever else has changed since.
    let apply = |config: &mut StreamConfig| {
        for (name, value) in changes {
            let _ = set(config, name, *value);
        }
    };
    broker.log().alter_stream(name, apply).map_err(of_log)?;
    Ok(())
}
