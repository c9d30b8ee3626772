//! The partitions of a topic, as clients name them.

use millstream_log::{LogError, Stream, StreamPartition};
use millstream_wire::ResponseError;

/// Returns the partition of this number.
pub fn lane_of(stream: &Stream, partition: i32) -> Result<StreamPartition, LogError> {
    // A negative number is no partition either.
    stream.partition(u32::try_from(partition).unwrap_or(u32::MAX))
}

/// Returns the partition if its leader epoch is the one that a client believes to be the current one; a negative epoch means that
/// the client sent none. A client that gets the error asks for metadata, and then whether its position is still valid.
pub fn with_epoch(lane: StreamPartition, current: i32) -> Result<StreamPartition, ResponseError> {
    let epoch = lane.leader_epoch();
    match current {
        ..0 => Ok(lane),
        current if current < epoch => Err(ResponseError::FencedLeaderEpoch),
        current if current > epoch => Err(ResponseError::UnknownLeaderEpoch),
        _ => Ok(lane),
    }
}
