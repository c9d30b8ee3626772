//! Transactions: requests of producers and administrators, which the coordinator of transactions answers.

use std::sync::Arc;

use millstream_wire::ResponseError;
use millstream_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use millstream_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use millstream_wire::messages::describe_transactions_response::TransactionState;
use millstream_wire::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use millstream_wire::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse,
    DescribeTransactionsRequest, DescribeTransactionsResponse, EndTxnRequest,
    InitProducerIdRequest, InitProducerIdResponse, ListTransactionsRequest, ProducerId,
    TxnOffsetCommitRequest, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};

use super::bounds::{Bound, BoundContext, nested};
use super::handle::{Edit, Handle, Refusal, each, errors, refuse_with_code};
use super::rights::{
    Check, Checked, TOPIC_DENIED, items, may_topic, need_cluster, need_group, need_transaction,
};
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::key_transactions::is_own_id;
use crate::reply::Reply;
use crate::security::{Operation, Resource};
use crate::transactions::service;

/// The first version of AddPartitionsToTxn with an error for the whole request.
const ADD_PARTITIONS_ERROR_FROM: i16 = 4;

/// Gives an id and an epoch to a producer, and aborts its open transaction.
impl Handle for InitProducerIdRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        match &self.transactional_id {
            Some(id) => {
                need_transaction(client, Operation::Write, id)?;
                match self.enable_2_pc {
                    true => need_transaction(client, Operation::TwoPhaseCommit, id),
                    false => Ok(()),
                }
            }
            None if client.access().may_be_idempotent() => Ok(()),
            None => Err(ResponseError::ClusterAuthorizationFailed),
        }
    }

    fn refuse(&self, refusal: &Refusal) -> InitProducerIdResponse {
        InitProducerIdResponse::default()
            .with_error_code(refusal.code)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
    }

    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let transactions = Arc::clone(broker.transactions());
        let id = self.transactional_id.as_ref();
        if id.is_some_and(|id| is_own_id(id)) {
            return self.refused(version, ResponseError::InvalidRequest).into();
        }
        Reply::later(async move {
            let answer = service::init(&transactions, version, &self).await;
            answer.unwrap_or_else(|error| self.refused(version, error))
        })
    }
}

/// Adds partitions to a transaction.
impl Handle for AddPartitionsToTxnRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Items];

    fn check(&self, client: &Client, _: i16) -> Checked {
        if self.transactions.is_empty() {
            let id = &self.v3_and_below_transactional_id;
            return need_transaction(client, Operation::Write, id);
        }
        let mut transactions = self.transactions.iter();
        transactions.try_for_each(|asked| {
            need_transaction(client, Operation::Write, &asked.transactional_id)
        })
    }

    /// Takes out each transaction with a denied topic: the coordinator adds all partitions of a transaction, or none.
    fn withhold(&mut self, client: &mut Client, _: i16) -> Vec<AddPartitionsToTxnResponse> {
        let mut refused = Vec::new();
        if let Some(topics) = denied_topics(client, &self.v3_and_below_topics) {
            self.v3_and_below_topics.clear();
            let answer = AddPartitionsToTxnResponse::default();
            refused.push(answer.with_results_by_topic_v3_and_below(topics));
        }
        self.transactions.retain(|asked| {
            let Some(topics) = denied_topics(client, &asked.topics) else {
                return true;
            };
            let result = AddPartitionsToTxnResult::default()
                .with_transactional_id(asked.transactional_id.clone())
                .with_topic_results(topics);
            let answer = AddPartitionsToTxnResponse::default();
            refused.push(answer.with_results_by_transaction(vec![result]));
            false
        });
        refused
    }

    fn merge(answer: &mut AddPartitionsToTxnResponse, refused: AddPartitionsToTxnResponse) {
        let topics = refused.results_by_topic_v3_and_below;
        answer.results_by_topic_v3_and_below.extend(topics);
        let transactions = refused.results_by_transaction;
        answer.results_by_transaction.extend(transactions);
    }

    fn refuse(&self, refusal: &Refusal) -> AddPartitionsToTxnResponse {
        if refusal.version < ADD_PARTITIONS_ERROR_FROM {
            return AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(
                partitions_not_added(&self.v3_and_below_topics, refusal),
            );
        }
        AddPartitionsToTxnResponse::default()
            .with_error_code(refusal.code)
            .with_results_by_transaction(each(&self.transactions, |transaction| {
                AddPartitionsToTxnResult::default()
                    .with_transactional_id(transaction.transactional_id.clone())
                    .with_topic_results(partitions_not_added(&transaction.topics, refusal))
            }))
    }

    errors!(
        error_code,
        results_by_topic_v3_and_below
            .results_by_partition
            .partition_error_code,
        results_by_transaction
            .topic_results
            .results_by_partition
            .partition_error_code
    );

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let transactions = nested(&self.transactions, |transaction| {
            nested(&transaction.topics, |topic| topic.partitions.len())
        });
        let of_old = nested(&self.v3_and_below_topics, |topic| topic.partitions.len());
        context.elements(transactions + of_old)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let transactions = Arc::clone(broker.transactions());
        let mut asked = self.transactions.iter();
        if is_own_id(&self.v3_and_below_transactional_id)
            || asked.any(|asked| is_own_id(&asked.transactional_id))
        {
            return self.refused(version, ResponseError::InvalidRequest).into();
        }
        Reply::later(async move {
            let answer = service::add(&transactions, version, &self).await;
            answer.unwrap_or_else(|error| self.refused(version, error))
        })
    }
}

fn partitions_not_added(
    topics: &[AddPartitionsToTxnTopic],
    refusal: &Refusal,
) -> Vec<AddPartitionsToTxnTopicResult> {
    each(topics, |topic| topic_not_added(topic, refusal.code))
}

/// Returns the results of a transaction's partitions if the client may not write to one of their topics.
fn denied_topics(
    client: &Client,
    topics: &[AddPartitionsToTxnTopic],
) -> Option<Vec<AddPartitionsToTxnTopicResult>> {
    let may = |topic: &AddPartitionsToTxnTopic| may_topic(client, Operation::Write, &topic.name);
    let permitted = each(topics, may);
    let results = topics.iter().zip(&permitted).map(|(topic, is_permitted)| {
        let error = match is_permitted {
            true => ResponseError::OperationNotAttempted,
            false => TOPIC_DENIED,
        };
        topic_not_added(topic, error.code())
    });
    permitted.contains(&false).then(|| results.collect())
}

fn topic_not_added(topic: &AddPartitionsToTxnTopic, code: i16) -> AddPartitionsToTxnTopicResult {
    AddPartitionsToTxnTopicResult::default()
        .with_name(topic.name.clone())
        .with_results_by_partition(each(&topic.partitions, |partition| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(*partition)
                .with_partition_error_code(code)
        }))
}

/// Adds the offsets of a group to a transaction.
impl Handle for AddOffsetsToTxnRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_transaction(client, Operation::Write, &self.transactional_id)?;
        need_group(client, Operation::Read, &self.group_id)
    }

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let transactions = Arc::clone(broker.transactions());
        if is_own_id(&self.transactional_id) {
            return self.refused(version, ResponseError::InvalidRequest).into();
        }
        Reply::later(async move {
            let answer = service::add_offsets(&transactions, version, &self).await;
            answer.unwrap_or_else(|error| self.refused(version, error))
        })
    }
}

/// Commits or aborts a transaction.
impl Handle for EndTxnRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_transaction(client, Operation::Write, &self.transactional_id)
    }

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let transactions = Arc::clone(broker.transactions());
        if is_own_id(&self.transactional_id) {
            return self.refused(version, ResponseError::InvalidRequest).into();
        }
        Reply::later(async move {
            let answer = service::end(&transactions, version, &self).await;
            answer.unwrap_or_else(|error| self.refused(version, error))
        })
    }
}

/// Commits offsets of existing partitions with a transaction.
pub fn commit(broker: &Broker, version: i16, request: TxnOffsetCommitRequest) -> Reply {
    let transactions = Arc::clone(broker.transactions());
    let groups = Arc::clone(broker.groups());
    Reply::later(async move {
        let answer = service::commit(&transactions, &groups, version, &request).await;
        answer.unwrap_or_else(|error| request.refused(version, error))
    })
}

/// Aborts the open transactions of partitions.
impl Handle for WriteTxnMarkersRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        match client.access().would(Operation::Alter, Resource::CLUSTER) {
            true => Ok(()),
            false => need_cluster(client, Operation::ClusterAction),
        }
    }

    fn refuse(&self, refusal: &Refusal) -> WriteTxnMarkersResponse {
        WriteTxnMarkersResponse::default().with_markers(each(&self.markers, |marker| {
            WritableTxnMarkerResult::default()
                .with_producer_id(marker.producer_id)
                .with_topics(each(&marker.topics, |topic| {
                    WritableTxnMarkerTopicResult::default()
                        .with_name(topic.name.clone())
                        .with_partitions(each(&topic.partition_indexes, |partition| {
                            WritableTxnMarkerPartitionResult::default()
                                .with_partition_index(*partition)
                                .with_error_code(refusal.code)
                        }))
                }))
        }))
    }

    errors!(markers.topics.partitions.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(nested(&self.markers, |marker| {
            nested(&marker.topics, |topic| topic.partition_indexes.len())
        }))
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        let transactions = Arc::clone(broker.transactions());
        Reply::later(async move { service::abort(&transactions, &self).await })
    }
}

/// Describes transactions by their ids.
impl Handle for DescribeTransactionsRequest {
    const CHECKS: &'static [Check] = &[Check::Items, Check::Listed];

    items! { transaction_states:
        transactional_ids, ResponseError::TransactionalIdAuthorizationFailed, |client, id| {
            let resource = Resource::transactional_id(id);
            client.access().may(Operation::Describe, resource)
        };
    }

    fn hide(&self, access: &Access) -> Option<Edit<Self>> {
        let access = access.clone();
        Some(Box::new(move |answer| {
            for transaction in &mut answer.transaction_states {
                let topics = &mut transaction.topics;
                topics.retain(|topic| access.sees_topic(&topic.topic));
            }
        }))
    }

    fn refuse(&self, refusal: &Refusal) -> DescribeTransactionsResponse {
        let states = each(&self.transactional_ids, |id| {
            TransactionState::default()
                .with_transactional_id(id.clone())
                .with_error_code(refusal.code)
        });
        DescribeTransactionsResponse::default().with_transaction_states(states)
    }

    errors!(transaction_states.error_code);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let transactions = Arc::clone(broker.transactions());
        Reply::later(async move {
            let answer = service::describe(&transactions, &self).await;
            answer.unwrap_or_else(|error| self.refused(version, error))
        })
    }
}

/// Lists transactions.
impl Handle for ListTransactionsRequest {
    const CHECKS: &'static [Check] = &[Check::Listed];

    fn hide(&self, access: &Access) -> Option<Edit<Self>> {
        let access = access.clone();
        Some(Box::new(move |answer| {
            answer.transaction_states.retain(|transaction| {
                let id = Resource::transactional_id(&transaction.transactional_id);
                access.would(Operation::Describe, id)
            });
        }))
    }

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let transactions = Arc::clone(broker.transactions());
        Reply::later(async move {
            let answer = service::list(&transactions, version, &self).await;
            answer.unwrap_or_else(|error| self.refused(version, error))
        })
    }
}
