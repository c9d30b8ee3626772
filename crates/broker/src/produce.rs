//! Produce: chunks go from the connection's buffer to their segments, copied once.

use std::time::Duration;

use bytes::Bytes;
use millstream_log::{Appended, Durability, Lane, LogError, Stream};
use millstream_wire::messages::ProduceRequest;
use millstream_wire::messages::produce_request::TopicProduceData;
use millstream_wire::messages::produce_response::{
    PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use millstream_wire::{ResponseError, StrBytes, refuse};
use tokio::time::{Instant, timeout_at};

use crate::client::Client;
use crate::error::response_error;
use crate::offsets::lane_of;
use crate::reply::Reply;
use crate::topics::Named;

/// The chunks that are appended and not durable yet.
struct Waiting {
    topic: usize,
    partition: usize,
    lane: Lane,
    appended: Appended,
}

/// Appends the chunks of a request, and answers when they are as durable as their streams' settings say.
/// `acks` decides only whether there is an answer.
pub fn produce(client: &mut Client, version: i16, request: ProduceRequest) -> Reply {
    if !(-1..=1).contains(&request.acks) {
        let error = ResponseError::InvalidRequiredAcks;
        return refuse(&request.into(), version, error, None).into();
    }
    let deadline = Instant::now() + Duration::from_millis(request.timeout_ms.max(0) as u64);
    let mut waiting = Vec::new();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        let number = topics.len();
        topics.push(append_topic(client, version, topic, number, &mut waiting));
    }
    let response = ProduceResponse::default().with_responses(topics);
    if request.acks == 0 {
        return match first_error(&response) {
            None => Reply::Nothing,
            // It cannot be told otherwise.
            Some(error) => Reply::Close(format!(
                "a chunk was refused whose producer wants no answer: {error}"
            )),
        };
    }
    if waiting.is_empty() {
        return response.into();
    }
    Reply::later(acknowledge(response, waiting, deadline))
}

fn append_topic(
    client: &mut Client,
    version: i16,
    topic: TopicProduceData,
    number: usize,
    waiting: &mut Vec<Waiting>,
) -> TopicProduceResponse {
    let stream = Named::of(version >= 13, &topic.name, topic.topic_id).stream(client);
    let mut partitions = Vec::with_capacity(topic.partition_data.len());
    for data in topic.partition_data {
        let appended = match &stream {
            Ok(stream) => append(stream, data.index, data.records),
            Err(error) => Err(Refused::from(*error)),
        };
        let response = PartitionProduceResponse::default()
            .with_index(data.index)
            .with_log_append_time_ms(-1);
        partitions.push(match appended {
            Ok((lane, appended)) => {
                let response = response
                    .with_base_offset(appended.base_offset.0 as i64)
                    .with_log_start_offset(lane.earliest_offset().0 as i64);
                waiting.push(Waiting {
                    topic: number,
                    partition: partitions.len(),
                    lane,
                    appended,
                });
                response
            }
            Err(refused) => refused.put_into(response),
        });
    }
    TopicProduceResponse::default()
        .with_name(topic.name)
        .with_topic_id(topic.topic_id)
        .with_partition_responses(partitions)
}

fn append(
    stream: &Stream,
    partition: i32,
    records: Option<Bytes>,
) -> Result<(Lane, Appended), Refused> {
    let lane = lane_of(stream, partition)?;
    let records = records.unwrap_or_default();
    let appended = lane.append(&records)?;
    Ok((lane, appended))
}

/// Waits until everything is durable that has to be before the answer.
async fn acknowledge(
    mut response: ProduceResponse,
    waiting: Vec<Waiting>,
    deadline: Instant,
) -> ProduceResponse {
    for wait in waiting {
        if wait.lane.durability() != Durability::Replicated {
            continue;
        }
        let durable = wait.lane.durable(wait.appended.next_offset);
        let refused = match timeout_at(deadline, durable).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => Refused::from(error),
            Err(_) => Refused::from(ResponseError::RequestTimedOut),
        };
        let topic = &mut response.responses[wait.topic];
        let partition = &mut topic.partition_responses[wait.partition];
        *partition = refused.put_into(std::mem::take(partition));
    }
    response
}

fn first_error(response: &ProduceResponse) -> Option<String> {
    let mut partitions = response
        .responses
        .iter()
        .flat_map(|topic| &topic.partition_responses);
    let partition = partitions.find(|partition| partition.error_code != 0)?;
    let message = partition.error_message.as_ref().map(StrBytes::to_string);
    Some(message.unwrap_or_else(|| format!("error {}", partition.error_code)))
}

/// Why a chunk was not stored.
struct Refused {
    error: ResponseError,
    message: Option<String>,
}

impl From<ResponseError> for Refused {
    fn from(error: ResponseError) -> Refused {
        Refused {
            error,
            message: None,
        }
    }
}

impl From<LogError> for Refused {
    fn from(error: LogError) -> Refused {
        Refused {
            error: response_error(&error),
            message: Some(error.to_string()),
        }
    }
}

impl Refused {
    fn put_into(self, response: PartitionProduceResponse) -> PartitionProduceResponse {
        response
            .with_error_code(self.error.code())
            .with_error_message(self.message.map(StrBytes::from_string))
            .with_base_offset(-1)
            .with_log_start_offset(-1)
    }
}
