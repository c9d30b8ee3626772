//! The encoder of Produce requests, which does not copy the records.

use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};

use crate::api::ApiKey;
use crate::error::EncodeError;
use crate::pieces::Output;

/// The first version whose topics have ids instead of names.
const TOPIC_ID_FROM: i16 = 13;

/// Writes the same bytes as the generated encoder, but no tagged fields, since none is defined.
pub(crate) fn put_produce(
    request: &ProduceRequest,
    version: i16,
    output: &mut Output,
) -> Result<(), EncodeError> {
    let written = put_request(request, version, output);
    written.map_err(|what| EncodeError::Field {
        api: ApiKey::Produce,
        version,
        what,
    })
}

fn put_request(request: &ProduceRequest, version: i16, output: &mut Output) -> Result<(), String> {
    let is_flexible = ApiKey::Produce.is_flexible(version);
    match &request.transactional_id {
        Some(id) => output.string_in(is_flexible, id)?,
        None if is_flexible => output.varint32(0),
        None => output.int16(-1),
    }
    output.int16(request.acks);
    output.int32(request.timeout_ms);
    output.length_in(is_flexible, request.topic_data.len());
    for topic in &request.topic_data {
        put_topic(topic, version, output)?;
    }
    if is_flexible {
        output.no_tags();
    }
    Ok(())
}

fn put_topic(topic: &TopicProduceData, version: i16, output: &mut Output) -> Result<(), String> {
    let is_flexible = ApiKey::Produce.is_flexible(version);
    if version >= TOPIC_ID_FROM {
        output.uuid(topic.topic_id);
    } else {
        output.string_in(is_flexible, &topic.name)?;
    }
    output.length_in(is_flexible, topic.partition_data.len());
    for partition in &topic.partition_data {
        put_partition(partition, is_flexible, output);
    }
    if is_flexible {
        output.no_tags();
    }
    Ok(())
}

fn put_partition(partition: &PartitionProduceData, is_flexible: bool, output: &mut Output) {
    output.int32(partition.index);
    match &partition.records {
        Some(records) => {
            output.length_in(is_flexible, records.len());
            output.put_shared(records);
        }
        None if is_flexible => output.varint32(0),
        None => output.int32(-1),
    }
    if is_flexible {
        output.no_tags();
    }
}
