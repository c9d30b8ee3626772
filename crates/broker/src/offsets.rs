//! Where partitions begin and end: ListOffsets, OffsetForLeaderEpoch.

use millstream_base::Timestamp;
use millstream_log::{Lane, LogError};
use millstream_wire::ResponseError;
use millstream_wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use millstream_wire::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use millstream_wire::messages::{ListOffsetsRequest, OffsetForLeaderEpochRequest};

use crate::client::Client;
use crate::error::response_error;
use crate::reply::Reply;
use crate::topics::LEADER_EPOCH;

/// What a client may ask for instead of a time.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

/// Offsets by time.
pub fn list(client: &mut Client, request: ListOffsetsRequest) -> Reply {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        // Looked up by their names here; found, which may read from disk, elsewhere.
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
    Reply::blocking(move || {
        let topics = topics.into_iter().map(|(name, partitions)| {
            let partitions = partitions.into_iter().map(|(partition, lane)| {
                let response = ListOffsetsPartitionResponse::default()
                    .with_partition_index(partition.partition_index);
                let found = match epoch_error(partition.current_leader_epoch) {
                    Some(error) => Err(error),
                    None => lane
                        .and_then(|lane| find(&lane, partition.timestamp))
                        .map_err(|error| response_error(&error)),
                };
                match found {
                    Ok(Some(found)) => response
                        .with_offset(found.offset)
                        .with_timestamp(found.timestamp)
                        .with_leader_epoch(LEADER_EPOCH),
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

struct FoundOffset {
    offset: i64,
    /// Of the record, if it was asked for by its time; else -1.
    timestamp: i64,
}

fn find(lane: &Lane, timestamp: i64) -> Result<Option<FoundOffset>, LogError> {
    let untimed = |offset: u64| {
        Some(FoundOffset {
            offset: offset as i64,
            timestamp: -1,
        })
    };
    match timestamp {
        LATEST => Ok(untimed(lane.durable_offset().0)),
        EARLIEST | EARLIEST_LOCAL => Ok(untimed(lane.earliest_offset().0)),
        MAX_TIMESTAMP => Ok(lane.max_timestamp()?.map(FoundOffset::of)),
        // Nothing is kept elsewhere.
        LATEST_TIERED => Ok(None),
        timestamp => {
            let found = lane.first_at_or_after(Timestamp(timestamp))?;
            Ok(found.map(FoundOffset::of))
        }
    }
}
