//! OffsetCommit and TxnOffsetCommit: the broker stores the offsets of existing partitions. It
//! refuses those of others and carries out the rest of the request, as Apache Kafka does.

use std::collections::HashMap;

use millstream_wire::messages::offset_commit_request::OffsetCommitRequestTopic;
use millstream_wire::messages::txn_offset_commit_request::TxnOffsetCommitRequestTopic;
use millstream_wire::messages::{OffsetCommitRequest, TopicName, TxnOffsetCommitRequest};
use millstream_wire::{Request, Response, ResponseError, refuse};

use crate::client::Client;
use crate::reply::Reply;

/// Carries out a commit for existing partitions, and refuses the rest. If nothing else is left, the
/// answer does not involve the group.
pub fn of_known_partitions<R: Commit>(
    client: &mut Client,
    version: i16,
    mut request: R,
    carry_out: impl FnOnce(&mut Client, Request) -> Reply,
) -> Reply {
    let unknown = take_unknown(client, request.topics());
    let (is_whole, is_empty) = (unknown.is_empty(), request.topics().is_empty());
    if is_whole && !is_empty {
        return carry_out(client, request.into());
    }
    let mut refused = R::default();
    *refused.topics() = unknown;
    let error = ResponseError::UnknownTopicOrPartition;
    let refused = refuse(&refused.into(), version, error, None);
    match is_empty {
        true => refused.into(),
        false => carry_out(client, request.into()).map(|response| merge(response, refused)),
    }
}

/// A request that commits offsets.
pub trait Commit: Default + Into<Request> {
    type Topic: Committed;

    fn topics(&mut self) -> &mut Vec<Self::Topic>;
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
pub trait Committed: Sized {
    fn name(&self) -> &TopicName;

    /// Returns whether no partition is left.
    fn is_empty(&self) -> bool;

    /// Takes out the partitions that a topic with `count` partitions does not have; `None` if it
    /// has all of them.
    fn take_from(&mut self, count: u32) -> Option<Self>;
}

macro_rules! committed {
    ($($request:ident, $topic:ident;)*) => {
        $(
            impl Commit for $request {
                type Topic = $topic;

                fn topics(&mut self) -> &mut Vec<$topic> {
                    &mut self.topics
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
    OffsetCommitRequest, OffsetCommitRequestTopic;
    TxnOffsetCommitRequest, TxnOffsetCommitRequestTopic;
}

/// Merges the answer to the refused partitions with the answer to the rest, so that each topic
/// stands there once.
fn merge(response: &mut Response, refused: Response) {
    macro_rules! merge {
        ($topics:expr, $refused:expr) => {{
            let topics = &mut $topics;
            let names = topics.iter().enumerate();
            let places = names.map(|(place, topic)| (topic.name.clone(), place));
            let places: HashMap<TopicName, usize> = places.collect();
            for refused in $refused {
                match places.get(&refused.name) {
                    Some(place) => topics[*place].partitions.extend(refused.partitions),
                    None => topics.push(refused),
                }
            }
        }};
    }
    match (response, refused) {
        (Response::OffsetCommit(response), Response::OffsetCommit(refused)) => {
            merge!(response.topics, refused.topics);
        }
        (Response::TxnOffsetCommit(response), Response::TxnOffsetCommit(refused)) => {
            merge!(response.topics, refused.topics);
        }
        // The rest was not carried out either, and the answer says so.
        _ => {}
    }
}
