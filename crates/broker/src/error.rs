//! Maps errors of the log to errors of Kafka's protocol.

use millstream_log::LogError;
use millstream_record::ChunkError;
use millstream_wire::ResponseError;

/// Returns Kafka's error for an error of the log.
pub fn response_error(error: &LogError) -> ResponseError {
    match error {
        LogError::UnknownStream { .. } | LogError::UnknownPartition { .. } => {
            ResponseError::UnknownTopicOrPartition
        }
        LogError::Exists { .. } => ResponseError::TopicAlreadyExists,
        LogError::BadName { .. } => ResponseError::InvalidTopicException,
        LogError::BadSetting { .. }
        | LogError::NotKeyed { .. }
        | LogError::NoSecondaryIndex { .. } => ResponseError::InvalidConfig,
        LogError::KeyedNotGrown { .. } => ResponseError::InvalidPartitions,
        LogError::Chunk(error) => chunk_error(error),
        LogError::EmptyChunk
        | LogError::ControlChunk
        | LogError::BadProducer { .. }
        | LogError::NoKey { .. }
        | LogError::NotFiltered { .. }
        | LogError::KeysUnreadable { .. } => ResponseError::InvalidRecord,
        LogError::TooManyTransactions { .. }
        | LogError::TooManyPartitions { .. }
        | LogError::TooManyHolds { .. } => ResponseError::PolicyViolation,
        LogError::TimestampOutOfRange { .. } => ResponseError::InvalidTimestamp,
        LogError::ChunkTooLarge { .. } => ResponseError::MessageTooLarge,
        LogError::ProducerFenced { .. } => ResponseError::InvalidProducerEpoch,
        LogError::CoordinatorFenced { .. } => ResponseError::TransactionCoordinatorFenced,
        LogError::OutOfOrderSequence { .. } => ResponseError::OutOfOrderSequenceNumber,
        LogError::OffsetOutOfRange { .. }
        | LogError::CursorRemoved { .. }
        | LogError::ChangesLost { .. }
        | LogError::VersionNotKept { .. }
        | LogError::HoldOutgrown { .. }
        | LogError::BadCursor { .. } => ResponseError::OffsetOutOfRange,
        // Clients try again.
        LogError::PoolExhausted { .. }
        | LogError::KeysBusy { .. }
        | LogError::ReadBudget
        | LogError::DecompressionBusy { .. } => ResponseError::RequestTimedOut,
        LogError::Closed => ResponseError::NotLeaderOrFollower,
        LogError::PartitionFault { .. }
        | LogError::DiskFull { .. }
        | LogError::NoRoomToStart { .. }
        | LogError::Io { .. } => ResponseError::KafkaStorageError,
        // Consumers stop at this error; at a storage error they would retry, hoping that it passes.
        LogError::Corrupted { .. } | LogError::KeysChanged { .. } => ResponseError::CorruptMessage,
        LogError::TooManyUndecided { .. } | LogError::HoldSplits { .. } => {
            ResponseError::ConcurrentTransactions
        }
        LogError::UnknownObject { .. } | LogError::UnknownHold { .. } => {
            ResponseError::ResourceNotFound
        }
        LogError::BadRange { .. }
        | LogError::NotHandedOut { .. }
        | LogError::NotTheOwner { .. }
        | LogError::SameKey { .. } => ResponseError::InvalidRequest,
        _ => ResponseError::UnknownServerError,
    }
}

fn chunk_error(error: &ChunkError) -> ResponseError {
    match error {
        ChunkError::Crc { .. } => ResponseError::CorruptMessage,
        // Java's producer then sends the records in smaller batches.
        ChunkError::DecompressedSize { .. } => ResponseError::MessageTooLarge,
        _ => ResponseError::InvalidRecord,
    }
}
