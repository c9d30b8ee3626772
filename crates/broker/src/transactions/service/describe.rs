//! Answers the requests that describe and list transactions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::ProducerId;
use millstream_wire::messages::{
    self, DescribeTransactionsRequest, DescribeTransactionsResponse, ListTransactionsRequest,
    ListTransactionsResponse, describe_transactions_response as described,
    list_transactions_response as listed,
};
use millstream_wire::{ResponseError, StrBytes};

use super::TransactionService;
use super::requests::{MISMATCH, ask, code, transactional_id};
use crate::transactions::{Answer, ListTransactions, Request, State};

/// States of Kafka that no transaction has here; a request may still name them.
const UNSEEN_STATES: [&str; 2] = ["Dead", "PrepareEpochFence"];

/// Describes the transactions of some transactional ids.
pub async fn describe(
    transactions: &Arc<TransactionService>,
    request: &DescribeTransactionsRequest,
) -> Result<DescribeTransactionsResponse, ResponseError> {
    // Each is described once, however often it is named: an answer is no larger than all
    // transactions together.
    let mut named = HashSet::new();
    let ids = request.transactional_ids.iter();
    let ids = ids.filter(|id| named.insert(*id)).map(transactional_id);
    let asked = Request::DescribeTransactions(ids.collect());
    let Answer::DescribeTransactions(found) = ask(transactions, asked).await? else {
        return Err(MISMATCH);
    };
    let states = found.into_iter().map(|(id, result)| {
        let state = described::TransactionState::default().with_transactional_id(
            messages::TransactionalId(StrBytes::from_string(id.to_string())),
        );
        let found = match result {
            Ok(found) => found,
            Err(error) => return state.with_error_code(code(error)),
        };
        let mut topics: Vec<described::TopicData> = Vec::new();
        for place in &found.partitions {
            match topics.last_mut() {
                Some(topic) if **topic.topic == *place.topic.as_str() => {
                    topic.partitions.push(place.partition.0);
                }
                _ => topics.push(
                    described::TopicData::default()
                        .with_topic(messages::TopicName(StrBytes::from_string(
                            place.topic.as_str().to_owned(),
                        )))
                        .with_partitions(vec![place.partition.0]),
                ),
            }
        }
        state
            .with_transaction_state(StrBytes::from_static_str(found.state.as_str()))
            .with_transaction_timeout_ms(timeout_ms(found.timeout))
            .with_transaction_start_time_ms(found.started.map_or(-1, |time| time.0))
            .with_producer_id(found.producer.id.0.into())
            .with_producer_epoch(found.producer.epoch.0)
            .with_topics(topics)
    });
    Ok(DescribeTransactionsResponse::default().with_transaction_states(states.collect()))
}

/// The largest number stands for no timeout, as in Apache Kafka.
fn timeout_ms(timeout: Option<Duration>) -> i32 {
    let millis = timeout.map(|timeout| i32::try_from(timeout.as_millis()));
    millis.and_then(Result::ok).unwrap_or(i32::MAX)
}

/// Lists the transactional ids.
pub async fn list(
    transactions: &Arc<TransactionService>,
    version: i16,
    request: &ListTransactionsRequest,
) -> Result<ListTransactionsResponse, ResponseError> {
    let duration = u64::try_from(request.duration_filter).ok();
    let pattern = request.transactional_id_pattern.as_ref();
    let names = &request.state_filters;
    let is_known = |name: &str| State::named(name).is_some() || UNSEEN_STATES.contains(&name);
    let unknown = names.iter().filter(|name| !is_known(name)).cloned();
    let response =
        ListTransactionsResponse::default().with_unknown_state_filters(unknown.collect());
    let states = names.iter().filter_map(|name| State::named(name));
    let asked = Request::ListTransactions(ListTransactions {
        states: (!names.is_empty()).then(|| states.collect()),
        producers: request
            .producer_id_filters
            .iter()
            .map(|id| ProducerId(id.0))
            .collect(),
        duration: duration.filter(|_| version >= 1).map(Duration::from_millis),
        pattern: pattern.map(|pattern| pattern.to_string()),
    });
    let found = match ask(transactions, asked).await? {
        Answer::ListTransactions(Ok(found)) => found,
        Answer::ListTransactions(Err(error)) => {
            return Ok(ListTransactionsResponse::default().with_error_code(code(error)));
        }
        _ => return Err(MISMATCH),
    };
    let states = found.into_iter().map(|transaction| {
        let id = StrBytes::from_string(transaction.transactional_id.to_string());
        listed::TransactionState::default()
            .with_transactional_id(messages::TransactionalId(id))
            .with_producer_id(transaction.producer.0.into())
            .with_transaction_state(StrBytes::from_static_str(transaction.state.as_str()))
    });
    Ok(response.with_transaction_states(states.collect()))
}
