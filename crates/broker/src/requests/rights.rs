//! The rights that requests need. The operation that each request needs is the same as in Apache Kafka.

use std::collections::HashMap;

use millstream_base::StreamId;
use millstream_wire::ResponseError;
use millstream_wire::messages::TopicName;

use crate::access::{Access, NO_SUCH_ID, denied, denied_by_id};
use crate::client::Client;
use crate::requests::handle::Refusal;
use crate::security::{Operation, Resource};

pub use crate::access::Checked;

pub const TOPIC_DENIED: ResponseError = ResponseError::TopicAuthorizationFailed;
pub const GROUP_DENIED: ResponseError = ResponseError::GroupAuthorizationFailed;
/// The error for a topic that is named by its id, and does not exist or must stay unknown to the client.
pub const UNKNOWN_ID: ResponseError = ResponseError::UnknownTopicId;

/// A check of a request, or of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The rights that the request as a whole needs. The broker refuses the request if one of them is missing.
    Whole,
    /// The rights for each item of the request's lists, topics for example. The broker takes out and refuses the items that
    /// the client may not touch, carries out the rest, and merges the answers.
    Items,
    /// Each stream that an item names by its id. One that the client may not know of is answered as one that does not
    /// exist.
    Ids,
    /// Each resource that the answer lists. The broker leaves out resources that the client may not know of and has not
    /// named, or the part of the answer that shows them.
    Listed,
    /// The permitted operations in the answer, for a client that asks for them.
    Operations,
    /// The handler checks the rights for each topic that it looks up or lists.
    Handler,
}

/// Checks the right to a resource.
pub fn need(access: &Access, operation: Operation, resource: Resource<'_>) -> Checked {
    match access.may(operation, resource) {
        true => Ok(()),
        false => Err(denied(resource.kind)),
    }
}

pub fn need_cluster(client: &Client, operation: Operation) -> Checked {
    need(client.access(), operation, Resource::CLUSTER)
}

pub fn need_topic(client: &Client, operation: Operation, name: &str) -> Checked {
    need(client.access(), operation, Resource::topic(name))
}

pub fn need_group(client: &Client, operation: Operation, name: &str) -> Checked {
    need(client.access(), operation, Resource::group(name))
}

pub fn need_transaction(client: &Client, operation: Operation, id: &str) -> Checked {
    need(client.access(), operation, Resource::transactional_id(id))
}

/// Checks the right to a stream that the request names by its id.
pub fn need_stream(client: &Client, operation: Operation, id: StreamId) -> Checked {
    let name = client.stream_name(id);
    let name = name.ok_or(ResponseError::UnknownTopicId)?;
    need_topic(client, operation, &name).map_err(|_| denied_by_id(client.access(), &name))
}

/// Checks the right to a stream in a list. A stream that the client may not know of passes: it gets its own answer.
pub fn need_listed(client: &Client, operation: Operation, id: StreamId) -> Checked {
    match need_stream(client, operation, id) {
        Err(ResponseError::UnknownTopicId) => Ok(()),
        checked => checked,
    }
}

pub fn may_topic(client: &Client, operation: Operation, name: &str) -> bool {
    client.access().may_topic(operation, name)
}

pub fn may_group(client: &Client, operation: Operation, name: &str) -> bool {
    client.access().may(operation, Resource::group(name))
}

/// Returns a bit for each operation that the client may do.
pub fn permitted(access: &Access, resource: Resource<'_>) -> i32 {
    let operations = resource.kind.operations().iter();
    let permitted = operations.filter(|operation| access.would(**operation, resource));
    permitted.fold(0, |bits, operation| bits | 1 << operation.code())
}

/// Returns a bit for each operation on the cluster that the client may do; none if it may not describe the cluster.
pub fn permitted_on_cluster(access: &Access) -> i32 {
    match access.would(Operation::Describe, Resource::CLUSTER) {
        true => permitted(access, Resource::CLUSTER),
        false => 0,
    }
}

/// Takes out the items that fail the check, if there are any.
pub fn take<T>(items: &mut Vec<T>, mut may: impl FnMut(&T) -> bool) -> Option<Vec<T>> {
    let taken: Vec<T> = items.extract_if(.., |item| !may(item)).collect();
    (!taken.is_empty()).then_some(taken)
}

/// Leaves out of lists the topics that the client may not know of.
pub fn hide_topics<'a>(access: &Access, lists: impl Iterator<Item = &'a mut Vec<TopicName>>) {
    // Many lists have the same topics.
    let mut seen = HashMap::new();
    for list in lists {
        list.retain(|topic| {
            let sees = seen.entry(topic.clone());
            *sees.or_insert_with(|| access.sees_topic(topic))
        });
    }
}

impl Refusal {
    /// Returns the refusal of items, or of a whole request, for the lack of a right.
    pub fn denied(version: i16, error: ResponseError) -> Refusal {
        Refusal::new(version, error, (error == UNKNOWN_ID).then_some(NO_SUCH_ID))
    }
}

/// Declares the check of each item in lists of the request. The answers to the items are in one list of the answer.
macro_rules! items {
    ($answers:ident: $($list:ident, $error:expr, |$client:ident, $item:ident| $may:expr;)+) => {
        fn withhold(&mut self, client: &mut Client, version: i16) -> Vec<Self::Answer> {
            let mut refused = Vec::new();
            $(
                let $client = &mut *client;
                if let Some(list) = $crate::requests::rights::take(&mut self.$list, |$item| $may) {
                    let mut asked = self.clone();
                    asked.$list = list;
                    refused.push(asked.refuse(&Refusal::denied(version, $error)));
                }
            )+
            refused
        }

        fn merge(answer: &mut Self::Answer, refused: Self::Answer) {
            answer.$answers.extend(refused.$answers);
        }
    };
}

/// Declares the permitted operations on each topic or group in a list of the answer, except those with an error.
macro_rules! group_operations {
    () => {
        fn operations(&self, access: &Access) -> Option<Edit<Self>> {
            let access = self.include_authorized_operations.then(|| access.clone())?;
            Some(Box::new(move |answer| {
                for group in answer.groups.iter_mut().filter(|g| g.error_code == 0) {
                    let resource = crate::security::Resource::group(&group.group_id);
                    group.authorized_operations =
                        $crate::requests::rights::permitted(&access, resource);
                }
            }))
        }
    };
}

/// Declares the refusal of each described group with a topic that the client may not know of: the group loses its members,
/// as in Kafka, and has this message. `$hide` hides more of this group; `$otherwise` changes the other groups.
macro_rules! hide_groups {
    (
        $message:literal,
        |$group:ident, $access:ident| $topics:expr
        $(, hide $hide:expr)?
        $(, otherwise $otherwise:expr)?
    ) => {
        fn hide(&self, access: &Access) -> Option<Edit<Self>> {
            let $access = access.clone();
            Some(Box::new(move |answer| {
                for $group in &mut answer.groups {
                    // Many members have the same topics.
                    let topics: std::collections::HashSet<&str> = $topics.collect();
                    if topics.into_iter().all(|topic| $access.sees_topic(topic)) {
                        $($otherwise;)?
                        continue;
                    }
                    $group.error_code = $crate::requests::rights::TOPIC_DENIED.code();
                    $group.error_message = Some(millstream_wire::StrBytes::from_static_str($message));
                    $group.members.clear();
                    $($hide;)?
                }
            }))
        }
    };
}

pub(super) use {group_operations, hide_groups, items};
