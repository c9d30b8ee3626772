//! OffsetCommit and TxnOffsetCommit: the broker stores the offsets of existing partitions. It
//! refuses those of others and carries out the rest of the request, as Apache Kafka does.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_wire::ResponseError;
use millstream_wire::messages::offset_commit_request::OffsetCommitRequestTopic;
use millstream_wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use millstream_wire::messages::txn_offset_commit_request::TxnOffsetCommitRequestTopic;
use millstream_wire::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use millstream_wire::messages::{
    OffsetCommitRequest, OffsetCommitResponse, TopicName, TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
};

use super::bounds::{Bound, BoundContext, ECHOES, nested};
use super::handle::{Handle, Refusal, each, edit, errors};
use super::rights::{
    Check, Checked, TOPIC_DENIED, UNKNOWN_ID, items, may_topic, need_group, need_transaction,
};
use super::topics::{knows, may_named, topic_name};
use super::{groups, transactions};
use crate::broker::Broker;
use crate::client::Client;
use crate::key_transactions::is_own_id;
use crate::reply::Reply;
use crate::security::Operation;
use crate::topic_names::NAME_BYTES_MAX;

/// The first version of OffsetCommit with topic ids in place of names.
const TOPIC_IDS_FROM: i16 = 10;

/// Commits offsets of a group.
impl Handle for OffsetCommitRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Items];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.group_id)
    }

    items! { topics:
        topics, UNKNOWN_ID, |client, asked| knows(client, Operation::Read, asked.topic_id);
        topics, TOPIC_DENIED, |client, asked| {
            may_named(client, Operation::Read, Some(&asked.name), asked.topic_id)
        };
    }

    fn refuse(&self, refusal: &Refusal) -> OffsetCommitResponse {
        OffsetCommitResponse::default().with_topics(each(&self.topics, |topic| {
            OffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_topic_id(topic.topic_id)
                .with_partitions(each(&topic.partitions, |partition| {
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(refusal.code)
                }))
        }))
    }

    errors!(topics.partitions.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        // The request has no names where it has ids, and the answer has them until it is encoded.
        let names = match context.version >= TOPIC_IDS_FROM {
            true => self.topics.len() * ECHOES * NAME_BYTES_MAX,
            false => 0,
        };
        let elements = context.elements(nested(&self.topics, |topic| topic.partitions.len()));
        elements.and(Bound::Bytes(names))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        match version >= TOPIC_IDS_FROM {
            true => commit_by_id(broker, client, version, self),
            false => commit_by_name(broker, client, version, self),
        }
    }
}

fn commit_by_name(
    broker: &Broker,
    client: &mut Client,
    version: i16,
    request: OffsetCommitRequest,
) -> Reply {
    of_known_partitions(client, version, request, |request| {
        groups::commit(broker, version, request)
    })
}

/// Carries out a commit with topic ids. The coordinator knows topics by name, so the broker fills in the names before, and
/// puts the ids into the answer afterwards.
fn commit_by_id(
    broker: &Broker,
    client: &mut Client,
    version: i16,
    mut request: OffsetCommitRequest,
) -> Reply {
    let mut ids = HashMap::new();
    let unknown = request.topics.extract_if(.., |topic| {
        let Ok(stream) = client.stream_by_uuid(topic.topic_id) else {
            return true;
        };
        topic.name = topic_name(stream.name());
        ids.insert(topic.name.clone(), topic.topic_id);
        false
    });
    let unknown = OffsetCommitRequest::default().with_topics(unknown.collect());
    let refused = unknown.refused(version, UNKNOWN_ID);
    let reply = commit_by_name(broker, client, version, request);
    edit::<OffsetCommitRequest>(reply, move |answer| {
        for topic in &mut answer.topics {
            topic.topic_id = ids.get(&topic.name).copied().unwrap_or_default();
        }
        answer.topics.extend(refused.topics);
    })
}

/// Commits offsets of a group as a part of a transaction.
impl Handle for TxnOffsetCommitRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Items];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_transaction(client, Operation::Write, &self.transactional_id)?;
        need_group(client, Operation::Read, &self.group_id)
    }

    items! { topics:
        topics, TOPIC_DENIED, |client, asked| may_topic(client, Operation::Read, &asked.name);
    }

    fn refuse(&self, refusal: &Refusal) -> TxnOffsetCommitResponse {
        TxnOffsetCommitResponse::default().with_topics(each(&self.topics, |topic| {
            TxnOffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    TxnOffsetCommitResponsePartition::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(refusal.code)
                }))
        }))
    }

    errors!(topics.partitions.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        if is_own_id(&self.transactional_id) {
            return self.refused(version, ResponseError::InvalidRequest).into();
        }
        of_known_partitions(client, version, self, |request| {
            transactions::commit(broker, version, request)
        })
    }
}

/// Carries out a commit for existing partitions, and refuses the rest. If nothing else is left, the
/// answer does not involve the group.
fn of_known_partitions<R: Commit>(
    client: &mut Client,
    version: i16,
    mut request: R,
    carry_out: impl FnOnce(R) -> Reply,
) -> Reply {
    let unknown = take_unknown(client, request.topics());
    let (is_whole, is_empty) = (unknown.is_empty(), request.topics().is_empty());
    if is_whole && !is_empty {
        return carry_out(request);
    }
    let mut refused = R::default();
    *refused.topics() = unknown;
    let refused = refused.refused(version, ResponseError::UnknownTopicOrPartition);
    match is_empty {
        true => Reply::from(refused),
        false => edit::<R>(carry_out(request), move |answer| {
            R::merge_topics(answer, refused)
        }),
    }
}

/// A request that commits offsets.
trait Commit: Default + Handle {
    type Topic: Committed;

    fn topics(&mut self) -> &mut Vec<Self::Topic>;

    /// Merges the answer to the refused partitions with the answer to the rest, so that each topic
    /// stands there once.
    fn merge_topics(answer: &mut Self::Answer, refused: Self::Answer);
}

/// Takes out partitions that do not exist, and topics of which none is left.
fn take_unknown<T: Committed>(client: &mut Client, topics: &mut Vec<T>) -> Vec<T> {
    let mut unknown = Vec::new();
    topics.retain_mut(|topic| {
        let stream = client.stream(topic.name());
        let count = stream.map_or(0, |stream| stream.partition_count());
        unknown.extend(topic.take_from(count));
        !topic.is_empty()
    });
    unknown
}

/// A topic with offsets to commit.
trait Committed: Sized {
    fn name(&self) -> &TopicName;

    /// Returns whether no partition is left.
    fn is_empty(&self) -> bool;

    /// Takes out the partitions that a topic with `count` partitions does not have; `None` if it
    /// has all of them.
    fn take_from(&mut self, count: u32) -> Option<Self>;
}

macro_rules! committed {
    ($($request:ident, $response:ident, $topic:ident;)*) => {
        $(
            impl Commit for $request {
                type Topic = $topic;

                fn topics(&mut self) -> &mut Vec<$topic> {
                    &mut self.topics
                }

                fn merge_topics(answer: &mut $response, refused: $response) {
                    let names = answer.topics.iter().enumerate();
                    let places = names.map(|(place, topic)| (topic.name.clone(), place));
                    let places: HashMap<TopicName, usize> = places.collect();
                    for refused in refused.topics {
                        match places.get(&refused.name) {
                            Some(place) => answer.topics[*place].partitions.extend(refused.partitions),
                            None => answer.topics.push(refused),
                        }
                    }
                }
            }

            impl Committed for $topic {
                fn name(&self) -> &TopicName {
                    &self.name
                }

                fn is_empty(&self) -> bool {
                    self.partitions.is_empty()
                }

                fn take_from(&mut self, count: u32) -> Option<$topic> {
                    let is_there = |index: i32| u32::try_from(index).is_ok_and(|index| index < count);
                    let taken = self.partitions.extract_if(.., |partition| {
                        !is_there(partition.partition_index)
                    });
                    let taken: Vec<_> = taken.collect();
                    let name = self.name.clone();
                    (!taken.is_empty()).then(|| $topic::default().with_name(name).with_partitions(taken))
                }
            }
        )*
    };
}

committed! {
    OffsetCommitRequest, OffsetCommitResponse, OffsetCommitRequestTopic;
    TxnOffsetCommitRequest, TxnOffsetCommitResponse, TxnOffsetCommitRequestTopic;
}
