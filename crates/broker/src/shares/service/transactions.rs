//! Acknowledgements that are part of a transaction.

use std::collections::BTreeSet;

use millstream_base::{Offset, ProducerId};
use millstream_wire::ResponseError;
use millstream_wire::messages::TxnOffsetCommitRequest;
use millstream_wire::messages::txn_offset_commit_request::TxnOffsetCommitRequestPartition;

use super::ShareService;
use crate::error::response_error;
use crate::groups::{GroupName, MemberId, Partition, TopicId};
use crate::shares::record::Key;
use crate::shares::{Receipt, Refused};

/// Acknowledgements of a transaction that are appended to the ledger.
pub struct Prepared {
    /// A result for each partition of each topic, as the request has them.
    results: Vec<Vec<Result<(), ResponseError>>>,
    /// The ledger has to be durable up to this offset.
    durable: Option<Offset>,
}

impl ShareService {
    /// Whether there is a share group of this name.
    pub fn has_group(&self, group: &GroupName) -> bool {
        self.groups.share_group_members(group).is_some()
    }

    /// Makes acknowledgements part of a transaction, each partition's by itself. Its coordinator permits them.
    pub fn prepare(&self, request: &TxnOffsetCommitRequest) -> Prepared {
        let group = GroupName::from(&**request.group_id);
        let producer = ProducerId(request.producer_id.0);
        let member = MemberId::from(&*request.member_id);
        let member = Some(&member).filter(|member| !member.is_empty());
        let mut durable = None;
        let mut named = BTreeSet::new();
        let results = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                // Each costs a pass over its records in flight.
                if !named.insert((&topic.name, partition.partition_index)) {
                    return Err(ResponseError::InvalidRequest);
                }
                let prepared = self.prepare_one(&group, producer, member, &topic.name, partition);
                prepared.map(|appended| durable = durable.max(Some(appended)))
            });
            partitions.collect()
        });
        Prepared {
            results: results.collect(),
            durable,
        }
    }

    fn prepare_one(
        &self,
        group: &GroupName,
        producer: ProducerId,
        member: Option<&MemberId>,
        topic: &str,
        partition: &TxnOffsetCommitRequestPartition,
    ) -> Result<Offset, ResponseError> {
        if self.is_damaged() {
            return Err(ResponseError::CoordinatorNotAvailable);
        }
        let text = partition.committed_metadata.as_ref();
        let receipts = Receipt::parse(text.map_or("", |text| text)).map_err(code_of)?;
        let index = partition.partition_index;
        let stream = self.log.stream(topic);
        let stream = stream.map_err(|error| response_error(&error))?;
        let lane = stream.partition(u32::try_from(index).unwrap_or(u32::MAX));
        let lane = lane.map_err(|error| response_error(&error))?;
        let key = Key {
            group: group.clone(),
            topic: TopicId(stream.uuid().as_u128()),
            partition: Partition(index),
        };
        let kept = self.find(&key);
        let kept = kept.ok_or(ResponseError::TransactionAbortable)?;
        let mut kept = kept.lock();
        if kept.is_gone {
            return Err(ResponseError::TransactionAbortable);
        }
        let settings = self.settings(group);
        kept.shares.advance(lane.earliest_offset());
        kept.shares.expire(self.now(), &settings);
        let checked = kept.shares.check_receipts(producer, member, &receipts);
        checked.map_err(code_of)?;
        let mut draft = kept.shares.draft();
        draft.prepare(producer, &receipts);
        self.put(&key, &mut kept, draft)
    }

    /// Brings the end of a producer's transaction to those of some groups that are share groups, durably. A repetition
    /// changes nothing.
    ///
    /// # Errors
    /// When the ledger does not store the outcome.
    pub async fn end_transaction(
        &self,
        producer: ProducerId,
        is_committed: bool,
        groups: &[GroupName],
    ) -> Result<(), ResponseError> {
        let mut durable = None;
        for group in groups {
            let settings = self.settings(group);
            for (key, entry) in self.of_group(group) {
                let mut entry = entry.lock();
                if entry.is_gone || !entry.shares.has_prepared(producer) {
                    continue;
                }
                let mut draft = entry.shares.draft();
                draft.end_transaction(producer, is_committed, &settings);
                durable = durable.max(Some(self.put(&key, &mut entry, draft)?));
            }
            self.sessions.ring(group);
        }
        match durable {
            // An earlier attempt may have appended the outcome.
            None if self.is_damaged() => Ok(()),
            None => self.durable(Some(self.ledger.lane().next_offset())).await,
            durable => self.durable(durable).await,
        }
    }

    /// Gives back the records whose acknowledgements are part of a transaction that the coordinator does not know, so that
    /// no outcome comes. Called at a start.
    pub fn abort_unknown(&self, is_known: impl Fn(ProducerId, &GroupName) -> bool) {
        for (key, entry) in &*self.partitions.lock() {
            let mut entry = entry.lock();
            let mut unknown: BTreeSet<ProducerId> = entry.shares.producers().collect();
            unknown.retain(|producer| !is_known(*producer, &key.group));
            for producer in unknown {
                tracing::warn!(
                    "the share group {:?} gets the records again that producer {producer} acknowledged in a transaction: the transaction does not exist",
                    key.group
                );
                let mut draft = entry.shares.draft();
                draft.end_transaction(producer, false, &self.settings(&key.group));
                // If the ledger does not take this, the next start tries again.
                let _ = self.put(key, &mut entry, draft);
            }
        }
    }

    /// Waits until acknowledgements of a transaction are durable; returns Kafka's error codes.
    ///
    /// # Errors
    /// When the ledger does not become durable: the acknowledgements may be part of the transaction or not.
    pub async fn prepared(
        &self,
        prepared: Prepared,
        knows_abortable: bool,
    ) -> Result<Vec<Vec<i16>>, ResponseError> {
        self.durable(prepared.durable).await?;
        let code = |result: Result<(), ResponseError>| match result {
            Ok(()) => 0,
            // Older producers abort a transaction after this error.
            Err(ResponseError::TransactionAbortable) if !knows_abortable => {
                ResponseError::IllegalGeneration.code()
            }
            Err(error) => error.code(),
        };
        let topics = prepared.results.into_iter();
        Ok(topics
            .map(|topic| topic.into_iter().map(code).collect())
            .collect())
    }
}

/// Kafka's error. A transaction whose producer does not hold the records any more can only be aborted.
fn code_of(refused: Refused) -> ResponseError {
    match refused {
        Refused::InvalidRequest => ResponseError::InvalidRequest,
        Refused::PastAcquired | Refused::InvalidRecordState | Refused::RenewalDisabled => {
            ResponseError::TransactionAbortable
        }
    }
}
