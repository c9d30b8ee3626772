//! Positions of a checkpoint, compared with the records that a server holds.

use std::collections::BTreeMap;
use std::time::Instant;

use millstream_base::Offset;
use millstream_client::{Client, ClientError, Isolation, ResponseError, Start, TopicPartition};

use crate::saved_positions::PositionsWithEpochs;
use crate::source_error::SourceError;

/// Fails unless the server holds the records from these positions on, and those of the positions' epochs before them:
/// retention may have deleted them, or a crash lost them. A consumer would find this out late, or not at all if it has to
/// read up to an end before its position, or if other records have taken the offsets of lost ones.
///
/// Waits up to the client's `request_timeout` for a server that is away.
pub async fn check(
    client: &Client,
    stream: &str,
    places: &[TopicPartition],
    positions: &PositionsWithEpochs,
) -> Result<(), SourceError> {
    let read = |error| SourceError::read(stream, error);
    let ends = offsets(client, places, Start::Latest).await.map_err(read)?;
    let earliest = offsets(client, places, Start::Earliest)
        .await
        .map_err(read)?;
    let place = |partition: i32| TopicPartition {
        topic: stream.into(),
        partition,
    };
    let known = positions.iter().filter(|(_, (_, epoch))| *epoch >= 0);
    let known: Vec<_> = known
        .map(|(partition, (_, epoch))| (place(*partition), *epoch))
        .collect();
    let epoch_ends = retried(client, async || {
        client.refresh(&[stream]).await?;
        client.epoch_ends(&known).await
    });
    let epoch_ends = epoch_ends.await.map_err(read)?;
    for (partition, (position, epoch)) in positions {
        let place = place(*partition);
        let is_lost = *epoch >= 0 && (epoch_ends.get(&place)).is_none_or(|end| end < position);
        let (error, message) = match (earliest.get(&place), ends.get(&place)) {
            (Some(earliest), Some(end)) if earliest <= position && position <= end => {
                if !is_lost {
                    continue;
                }
                return Err(SourceError::TakenBack {
                    stream: stream.to_owned(),
                    partition: partition.unsigned_abs(),
                    offset: *position,
                });
            }
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
    // Positions also lie in front of transactions that are open.
    let ask = async || client.offsets(&starts, Isolation::Uncommitted).await;
    Ok(retried(client, ask).await?.into_iter().collect())
}

async fn retried<T>(
    client: &Client,
    ask: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let started_at = Instant::now();
    let config = client.config();
    loop {
        match ask().await {
            Err(error) if error.is_retriable() && started_at.elapsed() < config.request_timeout => {
            }
            result => return result,
        }
        tokio::time::sleep(config.backoff).await;
    }
}
