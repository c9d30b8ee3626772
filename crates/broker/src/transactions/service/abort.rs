//! WriteTxnMarkers, by which administrators abort a transaction, or decide one that no coordinator knows. Between brokers
//! it would carry the outcome of any transaction; here the coordinator writes the markers itself.

use std::sync::Arc;

use millstream_base::ProducerId;
use millstream_log::{LogError, StreamPartition};
use millstream_record::{EndMarker, TransactionEnd};
use millstream_wire::ResponseError;
use millstream_wire::messages::write_txn_markers_request::WritableTxnMarker;
use millstream_wire::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use millstream_wire::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};

use super::requests::{MISMATCH, ask, producer};
use super::{COORDINATOR_EPOCH, TransactionService};
use crate::error::response_error;
use crate::groups::{Partition, TopicName};
use crate::transactions::{Abort, AbortTransaction, Answer, Producer, Request, TopicPartition};

/// Aborts the transactions that the markers name.
pub async fn abort(
    transactions: &Arc<TransactionService>,
    request: &WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse {
    let mut results = Vec::with_capacity(request.markers.len());
    for marker in &request.markers {
        let mut topics = Vec::with_capacity(marker.topics.len());
        for topic in &marker.topics {
            let mut partitions = Vec::with_capacity(topic.partition_indexes.len());
            for index in &topic.partition_indexes {
                let partition = TopicPartition {
                    topic: TopicName::from(&**topic.name),
                    partition: Partition(*index),
                };
                let result = transactions.abort_one(marker, partition).await;
                let result = WritableTxnMarkerPartitionResult::default()
                    .with_partition_index(*index)
                    .with_error_code(result.err().map_or(0, |error| error.code()));
                partitions.push(result);
            }
            let topic = WritableTxnMarkerTopicResult::default().with_name(topic.name.clone());
            topics.push(topic.with_partitions(partitions));
        }
        let result = WritableTxnMarkerResult::default().with_producer_id(marker.producer_id);
        results.push(result.with_topics(topics));
    }
    WriteTxnMarkersResponse::default().with_markers(results)
}

impl TransactionService {
    async fn abort_one(
        self: &Arc<Self>,
        marker: &WritableTxnMarker,
        partition: TopicPartition,
    ) -> Result<(), ResponseError> {
        let producer = producer(marker.producer_id, marker.producer_epoch);
        if marker.transaction_result && producer.id < ProducerId::IN_PROCESS {
            // Only the coordinator may commit: it alone knows whether all records have arrived.
            return Err(ResponseError::InvalidRequest);
        }
        let end = match marker.transaction_result {
            true => TransactionEnd::Commit,
            false => TransactionEnd::Abort,
        };
        if marker.coordinator_epoch > COORDINATOR_EPOCH {
            return Err(ResponseError::TransactionCoordinatorFenced);
        }
        if !self.knows(&partition) {
            return Err(ResponseError::UnknownTopicOrPartition);
        }
        // A record appended meanwhile would belong to a transaction that the administrator takes for aborted.
        let appending = self.appending.write().await;
        let request = Request::AbortTransaction(AbortTransaction {
            producer,
            partition: partition.clone(),
        });
        match ask(self, request).await? {
            Answer::AbortTransaction(Ok(Abort::UnderWay)) => return Ok(()),
            Answer::AbortTransaction(Ok(Abort::Unknown)) => {}
            Answer::AbortTransaction(Err(error)) => {
                let error = ResponseError::try_from_code(error.code());
                return Err(error.unwrap_or(ResponseError::UnknownServerError));
            }
            _ => return Err(MISMATCH),
        }
        let index = u32::try_from(partition.partition.0).unwrap_or(u32::MAX);
        let stream = self.log.stream(&partition.topic);
        let lane = stream.and_then(|stream| stream.partition(index));
        let lane = lane.map_err(|error| response_error(&error))?;
        if !has_open(&lane, producer)? {
            return Ok(());
        }
        let marker = EndMarker {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            end,
            coordinator_epoch: COORDINATOR_EPOCH,
        };
        let refused = |error: LogError| match error {
            LogError::ProducerFenced { .. } => ResponseError::InvalidProducerEpoch,
            error => response_error(&error),
        };
        let appended = lane.append_marker(&marker).map_err(refused)?;
        drop(appending);
        lane.durable(appended.next_offset).await.map_err(refused)
    }
}

/// Whether this incarnation of a producer has a transaction open in the lane.
fn has_open(lane: &StreamPartition, producer: Producer) -> Result<bool, ResponseError> {
    let mut known = lane.producers().into_iter();
    let known = known.find(|known| known.producer == producer.id);
    let Some(known) = known.filter(|known| known.transaction.is_some()) else {
        return Ok(false);
    };
    match known.epoch == producer.epoch {
        true => Ok(true),
        false => Err(ResponseError::InvalidProducerEpoch),
    }
}
