//! Transactions and producers of a partition, for the broker: markers, the last stable offset, aborted transactions.

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{EndMarker, check};

use crate::error::Result;
use crate::handle::partition::StreamPartition;
use crate::lane::append::Appended;
use crate::produce::append::append_when_room;
use crate::producers::transactions::{AbortedTransaction, OpenTransaction};
use crate::producers::{NO_COORDINATOR, ProducerState};
use crate::read::aborted::aborted_transactions;

/// The state of a producer in a partition, as Kafka's `DescribeProducers` returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerInfo {
    /// The producer.
    pub producer: ProducerId,
    /// Its incarnation.
    pub epoch: ProducerEpoch,
    /// The number of the last record that it appended with this epoch.
    pub last_sequence: Option<Sequence>,
    /// The largest timestamp of its last chunk, or the timestamp of its last marker.
    pub last_timestamp: Timestamp,
    /// The coordinator's incarnation in its last marker.
    pub coordinator_epoch: Option<i32>,
    /// The transaction that it is in.
    pub transaction: Option<OpenTransaction>,
}

impl StreamPartition {
    /// Ends the transaction that a producer has in the lane. The marker takes one offset; it is
    /// appended also where the producer has no transaction here, as one that is sent again. A higher
    /// epoch than the producer's fences off chunks of the former ones.
    ///
    /// # Errors
    /// When the marker's epochs are older than those that the partition has seen of this producer
    /// ([`LogError::ProducerFenced`](crate::LogError::ProducerFenced),
    /// [`LogError::CoordinatorFenced`](crate::LogError::CoordinatorFenced)), and as
    /// [`StreamPartition::append`]. Nothing is stored then.
    pub fn append_marker(&self, marker: &EndMarker) -> Result<Appended> {
        let chunk = marker.to_chunk(self.core.clock.now())?;
        let header = check(&chunk)?;
        append_when_room(&self.core, || {
            self.lane
                .append_marker(&self.core.appends, &header, &chunk, marker)
        })
    }

    /// Returns the last stable offset, before which all transactions have ended for good: the end of the records for
    /// consumers of committed ones. Never beyond the [high watermark](StreamPartition::high_watermark).
    pub fn last_stable_offset(&self) -> Offset {
        self.lane.last_stable_offset()
    }

    /// The aborted transactions that have records from `from` up to `to`, in the order of their ends.
    /// Those are complete that begin before the last stable offset.
    ///
    /// # Errors
    /// When the disk does not return the stored bytes.
    pub fn aborted_transactions(
        &self,
        from: Offset,
        to: Offset,
    ) -> Result<Vec<AbortedTransaction>> {
        aborted_transactions(&self.core.reads, &self.lane, from, to)
    }

    /// Returns the states of the partition's producers, in the order of their ids.
    pub fn producers(&self) -> Vec<ProducerInfo> {
        let mut producers = self.lane.with_producers(|producers| {
            let all = producers.iter();
            all.map(|(id, state)| ProducerInfo::of(id, state))
                .collect::<Vec<_>>()
        });
        producers.sort_unstable_by_key(|info| info.producer);
        producers
    }
}

impl ProducerInfo {
    fn of(producer: ProducerId, state: &ProducerState) -> ProducerInfo {
        let epoch = state.coordinator_epoch;
        ProducerInfo {
            producer,
            epoch: state.epoch,
            last_sequence: state.chunks.back().map(|past| past.last),
            last_timestamp: state.last_timestamp,
            coordinator_epoch: (epoch != NO_COORDINATOR).then_some(epoch),
            transaction: state.transaction,
        }
    }
}
