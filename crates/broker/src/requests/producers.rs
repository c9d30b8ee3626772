//! DescribeProducers: the producers that each partition knows.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_log::{ProducerInfo, StreamPartition};
use millstream_wire::ResponseError;
use millstream_wire::messages::describe_producers_response::{
    DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};
use millstream_wire::messages::{DescribeProducersRequest, ProducerId};

use super::bounds::{Bound, BoundContext};
use super::handle::{Handle, Refusal, each, errors, messages};
use super::rights::{Check, TOPIC_DENIED, items, may_topic};
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::partitions::lane_of;
use crate::reply::Reply;
use crate::security::Operation;

/// Kafka's value for an unknown field.
const UNKNOWN: i32 = -1;

/// Describes the producers that have written to partitions.
impl Handle for DescribeProducersRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { topics:
        topics, TOPIC_DENIED, |client, asked| may_topic(client, Operation::Read, &asked.name);
    }

    fn refuse(&self, refusal: &Refusal) -> DescribeProducersResponse {
        DescribeProducersResponse::default().with_topics(each(&self.topics, |topic| {
            TopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partition_indexes, |partition| {
                    PartitionResponse::default()
                        .with_partition_index(*partition)
                        .with_error_code(refusal.code)
                        .with_error_message(refusal.message.clone())
                }))
        }))
    }

    errors!(topics.partitions.error_code);
    messages!(topics.partitions.error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, _: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        describe(client, self)
    }
}

/// Describes the producers of each partition. A repeated partition is described once, so that the
/// answer is no larger than the partitions' state.
fn describe(client: &mut Client, request: DescribeProducersRequest) -> Reply {
    let mut described = BTreeSet::new();
    let topics = request.topics.into_iter().map(|topic| {
        let stream = client.stream(&topic.name);
        let named = topic.partition_indexes.into_iter();
        let named = named.filter(|partition| described.insert((topic.name.clone(), *partition)));
        let partitions = named.map(|partition| {
            let lane = stream.as_ref().map_err(response_error).and_then(|stream| {
                lane_of(stream, partition).map_err(|error| response_error(&error))
            });
            describe_partition(partition, lane)
        });
        let partitions = partitions.collect();
        TopicResponse::default()
            .with_name(topic.name)
            .with_partitions(partitions)
    });
    DescribeProducersResponse::default()
        .with_topics(topics.collect())
        .into()
}

fn describe_partition(
    partition: i32,
    lane: Result<StreamPartition, ResponseError>,
) -> PartitionResponse {
    let response = PartitionResponse::default().with_partition_index(partition);
    match lane {
        Ok(lane) => {
            let producers = lane.producers();
            response.with_active_producers(producers.iter().map(describe_producer).collect())
        }
        Err(error) => response.with_error_code(error.code()),
    }
}

fn describe_producer(info: &ProducerInfo) -> ProducerState {
    let last_sequence = info.last_sequence.map_or(UNKNOWN, |sequence| sequence.0);
    let begun = info.transaction.map(|begun| begun.first_offset.0 as i64);
    ProducerState::default()
        .with_producer_id(ProducerId(info.producer.0))
        .with_producer_epoch(info.epoch.0.into())
        .with_last_sequence(last_sequence)
        .with_last_timestamp(info.last_timestamp.0)
        .with_coordinator_epoch(info.coordinator_epoch.unwrap_or(UNKNOWN))
        .with_current_txn_start_offset(begun.unwrap_or(UNKNOWN.into()))
}
