//! Settings of topics, of the broker, of groups, of log lines and of subscriptions to metrics.
//!
//! Helpers that change and describe settings; the tests are in the modules.

mod brokers;
mod resources;
mod topics;

use millstream_base::Timestamp;
use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor};
use millstream_wire::StrBytes;
use millstream_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use millstream_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_wire::messages::{
    CreateTopicsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
};

use crate::support::{Connection, Node, ask, produce_request, text, topic_name};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
pub const GROUP: i8 = 32;

/// The id of the broker of these tests.
const ID: &str = "1";

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Changes settings of a resource: each by its name, an operation and a value. Returns the error and its message.
fn alter_all(
    client: &mut Connection,
    (kind, name): (i8, &str),
    changes: &[(&str, i8, &str)],
) -> (i16, String) {
    let configs = changes.iter().map(|(setting, operation, value)| {
        AlterableConfig::default()
            .with_name(text(setting))
            .with_config_operation(*operation)
            .with_value((*operation != DELETE).then(|| text(value)))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(configs.collect());
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let response = ask!(client, IncrementalAlterConfigs, 1, request);
    let response = &response.responses[0];
    let message = response.error_message.as_ref().map(StrBytes::to_string);
    (response.error_code, message.unwrap_or_default())
}

fn alter(client: &mut Connection, place: (i8, &str), change: (&str, i8, &str)) -> (i16, String) {
    alter_all(client, place, &[change])
}

/// Changes settings that must be changeable.
pub fn set(client: &mut Connection, place: (i8, &str), setting: &str, value: &str) {
    let altered = alter(client, place, (setting, SET, value));
    assert_eq!(altered, (0, String::new()), "{place:?} {setting}={value}");
}

fn describe(client: &mut Connection, (kind, name): (i8, &str)) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(true);
    ask!(client, DescribeConfigs, 4, request).results.remove(0)
}

/// Returns a setting of a resource, by its name.
fn described(
    client: &mut Connection,
    place: (i8, &str),
    setting: &str,
) -> DescribeConfigsResourceResult {
    let configs = describe(client, place).configs.into_iter();
    let mut found = configs.filter(|config| *config.name == *setting);
    found
        .next()
        .unwrap_or_else(|| panic!("{place:?} has no {setting}"))
}

/// Returns the value of a setting, and its source.
fn value(client: &mut Connection, place: (i8, &str), setting: &str) -> (String, i8) {
    let described = described(client, place, setting);
    (
        described.value.unwrap().to_string(),
        described.config_source,
    )
}

/// Returns all values of a setting, by source, name and value, the most important first.
fn synonyms(
    client: &mut Connection,
    place: (i8, &str),
    setting: &str,
) -> Vec<(i8, String, String)> {
    let synonyms = described(client, place, setting).synonyms.into_iter();
    let synonyms = synonyms.map(|synonym| {
        let value = synonym.value.unwrap().to_string();
        (synonym.source, synonym.name.to_string(), value)
    });
    synonyms.collect()
}

/// Creates a topic with one partition and these settings; returns the error.
fn create(client: &mut Connection, name: &str, settings: &[(&str, &str)]) -> i16 {
    let configs = settings.iter().map(|(name, value)| {
        CreatableTopicConfig::default()
            .with_name(text(name))
            .with_value(Some(text(value)))
    });
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(1)
        .with_replication_factor(-1)
        .with_configs(configs.collect());
    let request = CreateTopicsRequest::default().with_topics(vec![topic]);
    ask!(client, CreateTopics, 7, request).topics[0].error_code
}

/// Returns the records of a topic's only partition.
fn stored(node: &Node, topic: &str) -> Vec<Vec<u8>> {
    let partition = node.log().stream(topic).unwrap().partition(0).unwrap();
    let fetched = partition.fetch(
        partition.earliest_offset(),
        partition.high_watermark(),
        1 << 20,
        millstream_log::AtLeast::OneChunk,
    );
    let pieces = fetched.unwrap().pieces.into_iter();
    let mut chunks = Vec::new();
    for piece in pieces {
        for chunk in millstream_record::Chunks::new(&piece) {
            chunks.push(chunk.unwrap().bytes().to_vec());
        }
    }
    chunks
}

/// Produces a chunk to a topic's only partition; returns the error, the offset and the time of the append.
fn produce(client: &mut Connection, topic: &str, chunk: Vec<u8>) -> (i16, i64, i64) {
    let response = ask!(client, Produce, 9, produce_request(topic, 0, chunk.into()));
    let partition = &response.responses[0].partition_responses[0];
    let time = partition.log_append_time_ms;
    (partition.error_code, partition.base_offset, time)
}

fn compressed(compression: Compression, timestamps: &[i64]) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    for timestamp in timestamps {
        let value = format!("value of {timestamp}").repeat(20);
        builder
            .push(
                Timestamp(*timestamp),
                Some(b"key"),
                Some(value.as_bytes()),
                &[],
            )
            .unwrap();
    }
    builder.finish(None).unwrap().to_vec()
}

/// Returns the values of a chunk's records.
fn values(chunk: &[u8]) -> Vec<Vec<u8>> {
    let mut decompressor = Decompressor::default();
    let chunk = Chunk::parse(chunk).unwrap();
    let records = chunk.records(&mut decompressor).unwrap();
    records
        .map(|record| record.unwrap().value.unwrap().to_vec())
        .collect()
}
