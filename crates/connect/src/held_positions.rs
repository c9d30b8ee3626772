//! Positions of a checkpoint, compared with the records that a server holds.

use std::collections::BTreeMap;
use std::time::Instant;

use millstream_base::Offset;
use millstream_client::{Client, ClientError, Isolation, ResponseError, Start, TopicPartition};

use crate::source_error::SourceError;

/// Fails unless the server holds the records from these positions on: retention may have deleted them, or a crash lost
/// them. A consumer would find this out late, or not at all if it has to read up to an end before its position.
///
/// Waits up to the client's `request_timeout` for a server that is away.
pub async fn check(
    client: &Client,
    stream: &str,
    places: &[TopicPartition],
    positions: &BTreeMap<i32, Offset>,
) -> Result<(), SourceError> {
    let read = |error| SourceError::read(stream, error);
    let ends = offsets(client, places, Start::Latest).await.map_err(read)?;
    let earliest = offsets(client, places, Start::Earliest)
        .await
        .map_err(read)?;
    for (partition, position) in positions {
        let place = TopicPartition {
            topic: stream.into(),
            partition: *partition,
        };
        let (error, message) = match (earliest.get(&place), ends.get(&place)) {
            (Some(earliest), Some(end)) if earliest <= position && position <= end => continue,
            (Some(earliest), Some(end)) => (
                ResponseError::OffsetOutOfRange,
                format!("offset {position} is not there, only those from {earliest} up to {end}"),
            ),
            _ => (
                ResponseError::UnknownTopicOrPartition,
                "the source does not read it".to_owned(),
            ),
        };
        let error = ClientError::Refused {
            what: format!("partition {partition} of {stream}"),
            error,
            message: Some(message),
        };
        return Err(SourceError::Gone {
            stream: stream.to_owned(),
            partition: Some(partition.unsigned_abs()),
            error: error.into(),
        });
    }
    Ok(())
}

async fn offsets(
    client: &Client,
    places: &[TopicPartition],
    start: Start,
) -> Result<BTreeMap<TopicPartition, Offset>, ClientError> {
    let starts: Vec<_> = places.iter().map(|place| (place.clone(), start)).collect();
    let started_at = Instant::now();
    let config = client.config();
    loop {
        // Positions also lie in front of transactions that are open.
        match client.offsets(&starts, Isolation::Uncommitted).await {
            Ok(found) => return Ok(found.into_iter().collect()),
            Err(error) if error.is_retriable() && started_at.elapsed() < config.request_timeout => {
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(config.backoff).await;
    }
}
