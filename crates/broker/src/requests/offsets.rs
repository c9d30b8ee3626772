//! The first and last offsets of partitions: ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

use std::sync::Arc;

use millstream_base::{Offset, Timestamp};
use millstream_log::{LogError, Stream, StreamPartition};
use millstream_wire::ResponseError;
use millstream_wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use millstream_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use millstream_wire::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use millstream_wire::messages::{
    DeleteRecordsRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest,
};

use super::bounds::{Bound, BoundContext, nested};
use super::handle::{Handle, Refusal, each, errors};
use super::rights::{Check, TOPIC_DENIED, items, may_topic};
use super::topics::not_read_only;
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::partitions::{lane_of, with_epoch};
use crate::reply::Reply;
use crate::security::Operation;

/// The special timestamps of ListOffsets, which a client may send instead of a time.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

/// Returns whether this version has the special timestamp.
fn is_known(timestamp: i64, version: i16) -> bool {
    match timestamp {
        MAX_TIMESTAMP => version >= 7,
        EARLIEST_LOCAL => version >= 8,
        LATEST_TIERED => version >= 9,
        EARLIEST_PENDING_UPLOAD => version >= 11,
        timestamp => timestamp >= EARLIEST,
    }
}

/// From this version on ListOffsets returns the epoch of the leader.
const LEADER_EPOCH_FROM: i16 = 4;

/// The isolation level "read committed" of ListOffsets and Fetch.
pub const READ_COMMITTED: i8 = 1;

/// Finds offsets by timestamp, and the first and last offsets of partitions.
impl Handle for ListOffsetsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { topics:
        topics, TOPIC_DENIED, |client, asked| may_topic(client, Operation::Describe, &asked.name);
    }

    fn refuse(&self, refusal: &Refusal) -> ListOffsetsResponse {
        ListOffsetsResponse::default().with_topics(each(&self.topics, |topic| {
            ListOffsetsTopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    ListOffsetsPartitionResponse::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(refusal.code)
                }))
        }))
    }

    errors!(topics.partitions.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, _: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        list(client, version, self)
    }
}

/// Returns the end offsets of leader epochs.
impl Handle for OffsetForLeaderEpochRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { topics:
        topics, TOPIC_DENIED, |client, asked| may_topic(client, Operation::Describe, &asked.topic);
    }

    fn refuse(&self, refusal: &Refusal) -> OffsetForLeaderEpochResponse {
        OffsetForLeaderEpochResponse::default().with_topics(each(&self.topics, |topic| {
            OffsetForLeaderTopicResult::default()
                .with_topic(topic.topic.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    EpochEndOffset::default()
                        .with_partition(partition.partition)
                        .with_error_code(refusal.code)
                }))
        }))
    }

    errors!(topics.partitions.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, _: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        for_leader_epoch(client, self)
    }
}

/// Deletes the records of partitions before an offset.
impl Handle for DeleteRecordsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { topics:
        topics, TOPIC_DENIED, |client, asked| may_topic(client, Operation::Delete, &asked.name);
    }

    fn refuse(&self, refusal: &Refusal) -> DeleteRecordsResponse {
        DeleteRecordsResponse::default().with_topics(each(&self.topics, |topic| {
            DeleteRecordsTopicResult::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    DeleteRecordsPartitionResult::default()
                        .with_partition_index(partition.partition_index)
                        .with_low_watermark(-1)
                        .with_error_code(refusal.code)
                }))
        }))
    }

    errors!(topics.partitions.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        delete_records(broker, client, self)
    }
}

/// Lists offsets by time.
fn list(client: &mut Client, version: i16, request: ListOffsetsRequest) -> Reply {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        // The lookup by name happens here; the search, which may read from disk, on another thread.
        let stream = client.stream(&topic.name);
        let partitions = topic.partitions.into_iter().map(|partition| {
            let lane = match &stream {
                Ok(stream) => lane_of(stream, partition.partition_index),
                Err(error) => Err(error.clone()),
            };
            (partition, lane)
        });
        topics.push((topic.name, partitions.collect::<Vec<_>>()));
    }
    let end_of = match request.isolation_level {
        READ_COMMITTED => StreamPartition::last_stable_offset,
        _ => StreamPartition::high_watermark,
    };
    Reply::blocking(move || {
        let topics = topics.into_iter().map(|(name, partitions)| {
            let partitions = partitions.into_iter().map(|(partition, lane)| {
                let response = ListOffsetsPartitionResponse::default()
                    .with_partition_index(partition.partition_index);
                let lane = lane.map_err(|error| response_error(&error));
                let lane = lane.and_then(|lane| with_epoch(lane, partition.current_leader_epoch));
                let found = match lane {
                    Err(error) => Err(error),
                    Ok(_) if !is_known(partition.timestamp, version) => {
                        Err(ResponseError::UnsupportedVersion)
                    }
                    Ok(lane) => find(&lane, partition.timestamp, end_of)
                        .map_err(|error| response_error(&error)),
                };
                match found {
                    Ok(Some(found)) => {
                        let response = response
                            .with_offset(found.offset)
                            .with_timestamp(found.timestamp);
                        match version >= LEADER_EPOCH_FROM {
                            true => response.with_leader_epoch(found.leader_epoch),
                            false => response,
                        }
                    }
                    Ok(None) => response,
                    Err(error) => response.with_error_code(error.code()),
                }
            });
            ListOffsetsTopicResponse::default()
                .with_name(name)
                .with_partitions(partitions.collect())
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    })
}

/// The offset that was found: of a record for a search by time, otherwise of a partition's
/// beginning or end.
struct FoundOffset {
    offset: i64,
    timestamp: i64,
    /// The epoch of the record at the offset; at the end the epoch of the next record.
    leader_epoch: i32,
}

impl FoundOffset {
    fn untimed(lane: &StreamPartition, offset: Offset) -> FoundOffset {
        FoundOffset::timed(lane, (offset, Timestamp(-1)))
    }

    fn timed(lane: &StreamPartition, (offset, timestamp): (Offset, Timestamp)) -> FoundOffset {
        FoundOffset {
            offset: offset.0 as i64,
            timestamp: timestamp.0,
            leader_epoch: lane.leader_epoch_at(offset),
        }
    }
}

fn find(
    lane: &StreamPartition,
    timestamp: i64,
    end_of: fn(&StreamPartition) -> Offset,
) -> Result<Option<FoundOffset>, LogError> {
    match timestamp {
        LATEST => Ok(Some(FoundOffset::untimed(lane, end_of(lane)))),
        EARLIEST | EARLIEST_LOCAL => {
            let earliest = lane.earliest_offset();
            Ok(Some(FoundOffset::untimed(lane, earliest)))
        }
        MAX_TIMESTAMP => {
            let newest = lane.newest_record(end_of(lane))?;
            Ok(newest.map(|newest| FoundOffset::timed(lane, newest)))
        }
        // There is no tiered storage.
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => Ok(None),
        timestamp => {
            let found = lane.record_at(Timestamp(timestamp))?;
            // A record that consumers may not read yet does not count.
            let found = found.filter(|(offset, _)| *offset < end_of(lane));
            Ok(found.map(|found| FoundOffset::timed(lane, found)))
        }
    }
}

/// Answers where the records of leader epochs end, so that a consumer learns of records that are lost (KIP-320).
fn for_leader_epoch(client: &mut Client, request: OffsetForLeaderEpochRequest) -> Reply {
    let topics = request.topics.into_iter().map(|topic| {
        let stream = client.stream(&topic.topic);
        let partitions = topic.partitions.iter().map(|partition| {
            let response = EpochEndOffset::default().with_partition(partition.partition);
            let lane = match &stream {
                Ok(stream) => lane_of(stream, partition.partition),
                Err(error) => Err(error.clone()),
            };
            let lane = lane.map_err(|error| response_error(&error));
            let lane = lane.and_then(|lane| with_epoch(lane, partition.current_leader_epoch));
            match lane.map(|lane| lane.epoch_end(partition.leader_epoch)) {
                Ok(Some((epoch, end))) => response
                    .with_leader_epoch(epoch)
                    .with_end_offset(end.0 as i64),
                // Kafka answers so for an epoch that it does not know.
                Ok(None) => response,
                Err(error) => response.with_error_code(error.code()),
            }
        });
        OffsetForLeaderTopicResult::default()
            .with_topic(topic.topic.clone())
            .with_partitions(partitions.collect())
    });
    OffsetForLeaderEpochResponse::default()
        .with_topics(topics.collect())
        .into()
}

/// The special offset that stands for all records up to the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// Refuses topics that are compacted alone, as Kafka does: their oldest records may be the newest ones of their keys.
fn with_retention(stream: Stream) -> Result<Stream, ResponseError> {
    match stream.is_without_retention() {
        true => Err(ResponseError::PolicyViolation),
        false => Ok(stream),
    }
}

/// Deletes the records before given offsets of partitions.
fn delete_records(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: DeleteRecordsRequest,
) -> Reply {
    let mut asked = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let stream = client.stream(&topic.name);
        let stream = stream.map_err(|error| response_error(&error));
        let stream = stream.and_then(not_read_only).and_then(with_retention);
        let partitions = topic.partitions.iter().map(|partition| {
            let stream = stream.as_ref().map_err(|error| *error)?;
            let lane = lane_of(stream, partition.partition_index);
            let lane = lane.map_err(|error| response_error(&error))?;
            let before = match partition.offset {
                HIGH_WATERMARK => lane.high_watermark(),
                offset => {
                    let offset = u64::try_from(offset);
                    Offset(offset.map_err(|_| ResponseError::OffsetOutOfRange)?)
                }
            };
            Ok((lane, before))
        });
        let partitions: Vec<Result<(StreamPartition, Offset), ResponseError>> =
            partitions.collect();
        asked.push((topic, partitions));
    }
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let wanted = asked.iter().flat_map(|(_, partitions)| partitions);
        let wanted: Vec<(StreamPartition, Offset)> =
            wanted.filter_map(|lane| lane.clone().ok()).collect();
        // Clients may delete the records that consumers see, but not before they are durable: the
        // check below reports an error.
        for (lane, before) in wanted
            .iter()
            .filter(|(lane, to)| *to <= lane.high_watermark())
        {
            let _ = lane.wait_durable(*before);
        }
        let mut deleted = broker.log().delete_before(&wanted).into_iter();
        let topics = asked.into_iter().map(|(topic, partitions)| {
            let results = topic.partitions.iter().zip(partitions);
            let results = results.map(|(partition, lane)| {
                let result = DeleteRecordsPartitionResult::default()
                    .with_partition_index(partition.partition_index)
                    .with_low_watermark(-1);
                let start = match lane {
                    Err(error) => Err(error),
                    Ok(_) => match deleted.next() {
                        Some(start) => start.map_err(|error| response_error(&error)),
                        None => Err(ResponseError::UnknownServerError),
                    },
                };
                match start {
                    Ok(start) => result.with_low_watermark(start.0 as i64),
                    Err(error) => result.with_error_code(error.code()),
                }
            });
            DeleteRecordsTopicResult::default()
                .with_name(topic.name)
                .with_partitions(results.collect())
        });
        DeleteRecordsResponse::default().with_topics(topics.collect())
    })
}
