//! Produce: chunks go from the connection's buffer to their segments, copied once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_log::{Appended, LogError, NAMED_RECORDS_MAX, Stream, StreamPartition};
use millstream_record::ChunkHeader;
use millstream_wire::messages::produce_request::TopicProduceData;
use millstream_wire::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use millstream_wire::messages::{ProduceRequest, TopicName};
use millstream_wire::{ResponseError, StrBytes};
use tokio::time::{Instant, timeout_at};

use super::bounds::{Bound, BoundContext, ECHOES, ELEMENT_BYTES};
use super::handle::{Handle, Refusal, each, errors, messages, tell_throttle};
use super::rights::{Check, Checked, TOPIC_DENIED, UNKNOWN_ID, items, need_transaction};
use super::topics::{Named, knows, may_named, not_read_only};
use crate::broker::Broker;
use crate::client::Client;
use crate::copied::copy_of;
use crate::error::response_error;
use crate::groups::Partition;
use crate::key_transactions::is_own_id;
use crate::partitions::lane_of;
use crate::reply::Reply;
use crate::security::{Operation, Traffic};
use crate::transactions::service::{TransactionService, Unavailable};
use crate::transactions::{
    AddPartitions, Answer, Producer, Request, TopicPartition, TransactionError, TransactionalId,
    VerifyPartitions,
};

/// From this version on a write adds its partition to the producer's transaction.
const ADDS_PARTITIONS_FROM: i16 = 12;
/// From this version on clients know errors after which a transaction can only be aborted.
const KNOWS_ABORTABLE_FROM: i16 = 11;

/// The transaction's state cannot be stored: clients try again.
const UNAVAILABLE: ResponseError = ResponseError::CoordinatorNotAvailable;

/// A partition of a Produce answer. Errors with longer messages are rare, and shorter answers let a
/// producer have more requests in progress.
const PRODUCED_BYTES: usize = 256;

/// A record without a key in a Produce answer: its structure, and its number in the answer and in a buffer that grows.
const NAMED_RECORD_BYTES: usize = size_of::<BatchIndexAndErrorMessage>() + ECHOES * 6;

/// Appends batches of records to partitions.
impl Handle for ProduceRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Items];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Produced);

    fn check(&self, client: &Client, _: i16) -> Checked {
        match &self.transactional_id {
            Some(id) => need_transaction(client, Operation::Write, id),
            None => Ok(()),
        }
    }

    items! { responses:
        topic_data, UNKNOWN_ID, |client, asked| knows(client, Operation::Write, asked.topic_id);
        topic_data, TOPIC_DENIED, |client, asked| {
            may_named(client, Operation::Write, Some(&asked.name), asked.topic_id)
        };
    }

    fn wants_answer(&self) -> bool {
        self.acks != 0
    }

    fn refuse(&self, refusal: &Refusal) -> ProduceResponse {
        ProduceResponse::default().with_responses(each(&self.topic_data, |topic| {
            TopicProduceResponse::default()
                .with_name(topic.name.clone())
                .with_topic_id(topic.topic_id)
                .with_partition_responses(each(&topic.partition_data, |partition| {
                    PartitionProduceResponse::default()
                        .with_index(partition.index)
                        .with_error_code(refusal.code)
                        .with_error_message(refusal.message.clone())
                        .with_base_offset(-1)
                }))
        }))
    }

    errors!(responses.partition_responses.error_code);
    messages!(
        responses.partition_responses.error_message,
        responses
            .partition_responses
            .record_errors
            .batch_index_error_message
    );
    tell_throttle!();

    /// Keyed topics take more: the answer names records without a key, and each message names the topic, which the
    /// request may know by its id only.
    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let topics = self.topic_data.iter().map(|topic| {
            let partitions = topic.partition_data.len();
            let plain = ELEMENT_BYTES + topic.name.len() * ECHOES + partitions * PRODUCED_BYTES;
            match Named::of_produced(context.version, topic).stream(context.client) {
                Ok(stream) if stream.needs_keys() => {
                    let messages = partitions * stream.name().len() * ECHOES;
                    plain + messages + NAMED_RECORDS_MAX * NAMED_RECORD_BYTES
                }
                _ => plain,
            }
        });
        Bound::Bytes(topics.sum())
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        produce(broker, client, version, self)
    }
}

/// Appended chunks that are not durable yet.
struct Waiting {
    topic: usize,
    partition: usize,
    lane: StreamPartition,
    appended: Appended,
}

/// A topic of a request.
struct RequestedTopic {
    stream: Result<Stream, ResponseError>,
    topic: TopicProduceData,
    /// Partitions that take no part in the producer's transaction.
    refused: HashMap<i32, ResponseError>,
}

/// Appends the chunks of a request, and answers when they are as durable as their streams' settings
/// require. `acks` decides only whether there is an answer.
fn produce(broker: &Broker, client: &mut Client, version: i16, request: ProduceRequest) -> Reply {
    if !(-1..=1).contains(&request.acks) {
        let error = ResponseError::InvalidRequiredAcks;
        return request.refused(version, error).into();
    }
    let id = request.transactional_id.as_ref();
    if id.is_some_and(|id| is_own_id(id)) {
        let error = ResponseError::InvalidRequest;
        return request.refused(version, error).into();
    }
    let deadline = Instant::now() + Duration::from_millis(request.timeout_ms.max(0) as u64);
    let topics = request.topic_data.into_iter().map(|topic| RequestedTopic {
        stream: Named::of_produced(version, &topic)
            .stream(client)
            .and_then(not_read_only),
        topic,
        refused: HashMap::new(),
    });
    let mut topics: Vec<RequestedTopic> = topics.collect();
    let acks = request.acks;
    let Some(id) = request.transactional_id else {
        return append_all(topics, Transactional::No, acks, deadline);
    };
    let transactions = Arc::clone(broker.transactions());
    // The next request of the connection may end the transaction.
    Reply::Alone(Box::pin(async move {
        let id = TransactionalId::from(&**id);
        let verify = match permit(&transactions, version, id, &mut topics).await {
            Ok(Some(verify)) => verify,
            Ok(None) => return append_all(topics, Transactional::No, acks, deadline),
            Err(error) => return refuse_all(topics, version, error),
        };
        let append = |verified| match verified {
            Ok(Answer::VerifyPartitions(results)) => {
                refuse_some(&mut topics, version, results);
                append_all(topics, Transactional::Permitted, acks, deadline)
            }
            Ok(_) => refuse_all(topics, version, ResponseError::UnknownServerError),
            Err(Unavailable) => refuse_all(topics, version, UNAVAILABLE),
        };
        transactions.append(verify, append).await
    }))
}

fn refuse_all(topics: Vec<RequestedTopic>, version: i16, error: ResponseError) -> Reply {
    let asked = topics.into_iter().map(|asked| asked.topic);
    let request = ProduceRequest::default().with_topic_data(asked.collect());
    request.refused(version, error).into()
}

/// Whether chunks may be part of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transactional {
    No,
    Permitted,
}

/// Asks the coordinator whether the partitions take part in the producer's transaction. From
/// version 12 on a write adds them. Returns the function that asks again; `None` where there is no
/// transaction.
async fn permit(
    transactions: &Arc<TransactionService>,
    version: i16,
    transactional_id: TransactionalId,
    topics: &mut [RequestedTopic],
) -> Result<Option<Request>, ResponseError> {
    let Some((producer, partitions)) = participants(topics) else {
        return Ok(None);
    };
    let verify = Request::VerifyPartitions(VerifyPartitions {
        transactional_id: transactional_id.clone(),
        producer,
        partitions: partitions.clone(),
    });
    let request = match version >= ADDS_PARTITIONS_FROM {
        true => Request::AddPartitions(AddPartitions {
            transactional_id,
            producer,
            partitions: partitions.clone(),
            knows_fencing: true,
        }),
        false => verify.clone(),
    };
    let results = match transactions.ask_behind_last(request).await {
        Ok(Answer::AddPartitions(result)) => {
            let results = partitions.into_iter().map(|partition| (partition, result));
            results.collect()
        }
        Ok(Answer::VerifyPartitions(results)) => results,
        Ok(_) => return Err(ResponseError::UnknownServerError),
        Err(Unavailable) => return Err(UNAVAILABLE),
    };
    refuse_some(topics, version, results);
    Ok(Some(verify))
}

/// Returns the producer of the request's transaction, and the partitions that it writes to. Refuses
/// chunks of other producers.
fn participants(topics: &mut [RequestedTopic]) -> Option<(Producer, Vec<TopicPartition>)> {
    let mut found = None;
    let mut partitions = Vec::new();
    for asked in topics {
        let Ok(stream) = &asked.stream else { continue };
        for data in &asked.topic.partition_data {
            let records = data.records.as_deref().unwrap_or_default();
            let Ok(header) = ChunkHeader::parse(records) else {
                continue;
            };
            if !header.attributes.is_transactional() || lane_of(stream, data.index).is_err() {
                continue;
            }
            let producer = Producer {
                id: header.producer_id,
                epoch: header.producer_epoch,
            };
            if *found.get_or_insert(producer) != producer {
                let error = ResponseError::InvalidProducerIdMapping;
                asked.refused.insert(data.index, error);
                continue;
            }
            partitions.push(TopicPartition {
                topic: stream.name().into(),
                partition: Partition(data.index),
            });
        }
    }
    found.map(|producer| (producer, partitions))
}

/// Notes which partitions take no part in the transaction. Earlier notes stay.
fn refuse_some(
    topics: &mut [RequestedTopic],
    version: i16,
    results: Vec<(TopicPartition, Result<(), TransactionError>)>,
) {
    for (place, result) in results {
        let Err(error) = result else { continue };
        let error = error.in_produce(version >= KNOWS_ABORTABLE_FROM);
        let error = ResponseError::try_from_code(error.code());
        let error = error.unwrap_or(ResponseError::UnknownServerError);
        let of_stream = topics.iter_mut().filter(|asked| {
            let stream = asked.stream.as_ref();
            stream.is_ok_and(|stream| stream.name() == place.topic.as_str())
        });
        for asked in of_stream {
            asked.refused.entry(place.partition.0).or_insert(error);
        }
    }
}

fn append_all(
    topics: Vec<RequestedTopic>,
    transactional: Transactional,
    acks: i16,
    deadline: Instant,
) -> Reply {
    let mut waiting = Vec::new();
    // All partitions together name no more records at fault than one chunk does: answers stay short.
    let mut named_max = NAMED_RECORDS_MAX;
    let mut responses = Vec::with_capacity(topics.len());
    for asked in topics {
        let number = responses.len();
        let appended = append_topic(asked, transactional, number, &mut waiting, &mut named_max);
        responses.push(appended);
    }
    let response = ProduceResponse::default().with_responses(responses);
    if acks == 0 {
        return match first_error(&response) {
            None => Reply::Nothing,
            // Without an answer, closing the connection is the only way to report the error.
            Some(error) => Reply::Close(format!(
                "it sent a chunk that was refused, and wants no answer: {error}"
            )),
        };
    }
    if waiting.is_empty() {
        return response.into();
    }
    Reply::later(acknowledge(response, waiting, deadline))
}

fn append_topic(
    asked: RequestedTopic,
    transactional: Transactional,
    number: usize,
    waiting: &mut Vec<Waiting>,
    named_max: &mut usize,
) -> TopicProduceResponse {
    let topic = asked.topic;
    let mut partitions = Vec::with_capacity(topic.partition_data.len());
    for data in topic.partition_data {
        let appended = match (&asked.stream, asked.refused.get(&data.index)) {
            (Err(error), _) | (_, Some(error)) => Err(Refused::from(*error)),
            (Ok(stream), None) => append(stream, transactional, data.index, data.records),
        };
        let response = PartitionProduceResponse::default()
            .with_index(data.index)
            .with_log_append_time_ms(-1);
        partitions.push(match appended {
            Ok((lane, appended)) => {
                let response = response
                    .with_base_offset(appended.base_offset.0 as i64)
                    .with_log_start_offset(lane.earliest_offset().0 as i64)
                    .with_log_append_time_ms(appended.append_time.map_or(-1, |time| time.0));
                waiting.push(Waiting {
                    topic: number,
                    partition: partitions.len(),
                    lane,
                    appended,
                });
                response
            }
            Err(mut refused) => {
                refused.records.truncate(*named_max);
                *named_max -= refused.records.len();
                refused.put_into(response)
            }
        });
    }
    TopicProduceResponse::default()
        // The answer waits for the disk, and must not hold the memory of the request meanwhile.
        .with_name(TopicName(copy_of(&topic.name)))
        .with_topic_id(topic.topic_id)
        .with_partition_responses(partitions)
}

fn append(
    stream: &Stream,
    transactional: Transactional,
    partition: i32,
    records: Option<Bytes>,
) -> Result<(StreamPartition, Appended), Refused> {
    let lane = lane_of(stream, partition)?;
    let records = records.unwrap_or_default();
    // A transaction that no coordinator knows would never end.
    let header = ChunkHeader::parse(&records);
    let is_transactional = header.is_ok_and(|header| header.attributes.is_transactional());
    if is_transactional && transactional == Transactional::No {
        return Err(ResponseError::TransactionalIdAuthorizationFailed.into());
    }
    let appended = lane.append_foreign(&records)?;
    Ok((lane, appended))
}

/// Waits until everything is as durable as it has to be before the answer.
async fn acknowledge(
    mut response: ProduceResponse,
    waiting: Vec<Waiting>,
    deadline: Instant,
) -> ProduceResponse {
    for wait in waiting {
        if wait.lane.answers_at_once() {
            continue;
        }
        let acknowledged = wait.lane.acknowledged(&wait.appended);
        let refused = match timeout_at(deadline, acknowledged).await {
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
    /// The numbers of the records at fault, if the message is about some.
    records: Vec<u32>,
}

impl From<ResponseError> for Refused {
    fn from(error: ResponseError) -> Refused {
        Refused {
            error,
            message: None,
            records: Vec::new(),
        }
    }
}

impl From<LogError> for Refused {
    fn from(error: LogError) -> Refused {
        Refused {
            error: match &error {
                // The stored data is damaged, not the producer's message.
                LogError::Corrupted { .. } => ResponseError::KafkaStorageError,
                error => response_error(error),
            },
            message: Some(error.to_string()),
            records: match error {
                LogError::NoKey { records, .. } => records,
                _ => Vec::new(),
            },
        }
    }
}

impl Refused {
    fn put_into(self, response: PartitionProduceResponse) -> PartitionProduceResponse {
        // Without a message of its own, clients show the partition's.
        let record =
            |number: u32| BatchIndexAndErrorMessage::default().with_batch_index(number as i32);
        response
            .with_record_errors(self.records.into_iter().map(record).collect())
            .with_error_code(self.error.code())
            .with_error_message(self.message.map(StrBytes::from_string))
            .with_base_offset(-1)
            .with_log_start_offset(-1)
    }
}
