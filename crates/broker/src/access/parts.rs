//! Takes out of a request the parts that the client may not have carried out.

use millstream_wire::messages::{FindCoordinatorRequest, TopicName};
use millstream_wire::{Request, Response, ResponseError, Uuid, refuse};

use super::demands::{KEY_OF_GROUP, KEY_OF_SHARE};
use super::unknown::NO_SUCH_ID;
use super::{Access, denied};
use crate::client::Client;
use crate::configs::{BROKER, CLIENT_METRICS, GROUP, LOGGER, TOPIC};
use crate::security::{Operation, Resource, ResourceType};

use Operation::{Alter, AlterConfigs, Delete, Describe, DescribeConfigs, Read, Write};

const TOPIC_DENIED: ResponseError = ResponseError::TopicAuthorizationFailed;
/// The error for a topic that is named by its id, and does not exist or must stay unknown to the
/// client.
const UNKNOWN_ID: ResponseError = ResponseError::UnknownTopicId;
const GROUP_DENIED: ResponseError = ResponseError::GroupAuthorizationFailed;

/// The resources with settings, as access rules see them.
const CONFIGURED: [ResourceType; 3] = [
    ResourceType::Topic,
    ResourceType::Group,
    ResourceType::Cluster,
];

/// Takes out the parts that the client may not have carried out, and returns the answers that
/// refuse them.
pub fn withhold(client: &mut Client, version: i16, request: &mut Request) -> Vec<Response> {
    let access = &client.access().clone();
    let topic = |operation, name: &str| access.may_topic(operation, name);
    let group = |operation, name: &str| access.may(operation, Resource::group(name));
    let refuse = |refused: Request, error| {
        let message = (error == UNKNOWN_ID).then_some(NO_SUCH_ID);
        refuse(&refused, version, error, message)
    };
    let mut responses = Vec::new();
    // Takes the items that fail the check from a list, and refuses them.
    macro_rules! keep {
        ($request:ident.$list:ident, $error:expr, $may:expr) => {
            if let Some(list) = take(&mut $request.$list, $may) {
                let mut refused = $request.clone();
                refused.$list = list;
                responses.push(refuse(refused.into(), $error));
            }
        };
    }
    match request {
        Request::Produce(request) => {
            keep!(request.topic_data, UNKNOWN_ID, |asked| knows(
                client,
                Write,
                asked.topic_id
            ));
            keep!(request.topic_data, TOPIC_DENIED, |asked| {
                may_named(client, Write, Some(&asked.name), asked.topic_id)
            });
        }
        Request::ListOffsets(request) => {
            keep!(request.topics, TOPIC_DENIED, |asked| topic(
                Describe,
                &asked.name
            ));
        }
        Request::OffsetForLeaderEpoch(request) => {
            keep!(request.topics, TOPIC_DENIED, |asked| topic(
                Describe,
                &asked.topic
            ));
        }
        Request::DeleteRecords(request) => {
            keep!(request.topics, TOPIC_DENIED, |asked| topic(
                Delete,
                &asked.name
            ));
        }
        Request::DescribeProducers(request) => {
            keep!(request.topics, TOPIC_DENIED, |asked| topic(
                Read,
                &asked.name
            ));
        }
        Request::CreateTopics(request) => {
            keep!(request.topics, TOPIC_DENIED, |asked| access
                .may_create(&asked.name));
        }
        Request::DeleteTopics(request) => {
            keep!(request.topic_names, TOPIC_DENIED, |name| topic(
                Delete, name
            ));
            keep!(request.topics, UNKNOWN_ID, |asked| knows(
                client,
                Delete,
                asked.topic_id
            ));
            keep!(request.topics, TOPIC_DENIED, |asked| {
                may_named(client, Delete, asked.name.as_ref(), asked.topic_id)
            });
        }
        Request::CreatePartitions(request) => {
            keep!(request.topics, TOPIC_DENIED, |asked| topic(
                Alter,
                &asked.name
            ));
        }
        Request::DescribeConfigs(request) => {
            for kind in CONFIGURED {
                keep!(request.resources, denied(kind), |asked| {
                    let (code, name) = (asked.resource_type, &asked.resource_name);
                    may_configure(access, kind, DescribeConfigs, code, name)
                });
            }
        }
        Request::AlterConfigs(request) => {
            for kind in CONFIGURED {
                keep!(request.resources, denied(kind), |asked| {
                    let (code, name) = (asked.resource_type, &asked.resource_name);
                    may_configure(access, kind, AlterConfigs, code, name)
                });
            }
        }
        Request::IncrementalAlterConfigs(request) => {
            for kind in CONFIGURED {
                keep!(request.resources, denied(kind), |asked| {
                    let (code, name) = (asked.resource_type, &asked.resource_name);
                    may_configure(access, kind, AlterConfigs, code, name)
                });
            }
        }
        Request::OffsetCommit(request) => {
            keep!(request.topics, TOPIC_DENIED, |asked| topic(
                Read,
                &asked.name
            ));
        }
        Request::TxnOffsetCommit(request) => {
            keep!(request.topics, TOPIC_DENIED, |asked| topic(
                Read,
                &asked.name
            ));
        }
        Request::OffsetFetch(request) => {
            keep!(request.groups, GROUP_DENIED, |asked| group(
                Describe,
                &asked.group_id
            ));
        }
        Request::DescribeGroups(request) => {
            keep!(request.groups, GROUP_DENIED, |name| group(Describe, name));
        }
        Request::ConsumerGroupDescribe(request) => {
            keep!(request.group_ids, GROUP_DENIED, |name| group(
                Describe, name
            ));
        }
        Request::ShareGroupDescribe(request) => {
            keep!(request.group_ids, GROUP_DENIED, |name| group(
                Describe, name
            ));
        }
        Request::StreamsGroupDescribe(request) => {
            keep!(request.group_ids, GROUP_DENIED, |name| group(
                Describe, name
            ));
        }
        Request::DescribeShareGroupOffsets(request) => {
            keep!(request.groups, GROUP_DENIED, |asked| group(
                Describe,
                &asked.group_id
            ));
        }
        Request::DeleteGroups(request) => {
            keep!(request.groups_names, GROUP_DENIED, |name| group(
                Delete, name
            ));
        }
        Request::DescribeTransactions(request) => {
            let error = ResponseError::TransactionalIdAuthorizationFailed;
            keep!(request.transactional_ids, error, |id| {
                access.may(Describe, Resource::transactional_id(id))
            });
        }
        // The brokers' type is checked as a whole: all keys or none.
        Request::FindCoordinator(request) if request.key_type != KEY_OF_SHARE => {
            let kind = coordinated(request);
            keep!(request.coordinator_keys, denied(kind), |key| {
                access.may(Describe, Resource { kind, name: key })
            });
        }
        Request::FindCoordinator(_) => {}
        request => unreachable!("{:?} has no items to check", request.api()),
    }
    responses
}

/// Takes out the items that fail the check, if there are any.
fn take<T>(items: &mut Vec<T>, mut may: impl FnMut(&T) -> bool) -> Option<Vec<T>> {
    let taken: Vec<T> = items.extract_if(.., |item| !may(item)).collect();
    (!taken.is_empty()).then_some(taken)
}

/// Returns whether the client may know that the topic of this id exists; `true` for the nil id,
/// with which no topic is named.
fn knows(client: &mut Client, operation: Operation, id: Uuid) -> bool {
    id.is_nil()
        || client.stream_by_uuid(id).is_ok_and(|stream| {
            let access = client.access();
            access.would(operation, Resource::topic(stream.name()))
                || access.sees_topic(stream.name())
        })
}

/// Checks the right to an existing topic that is named by its name or its id.
fn may_named(
    client: &mut Client,
    operation: Operation,
    name: Option<&TopicName>,
    id: Uuid,
) -> bool {
    match name.filter(|_| id.is_nil()) {
        Some(name) => client.access().may_topic(operation, name),
        None => match client.stream_by_uuid(id) {
            Ok(stream) => client.access().may_topic(operation, stream.name()),
            Err(_) => true,
        },
    }
}

/// Returns whether the client may read or change settings of this kind of resource.
fn may_configure(
    access: &Access,
    kind: ResourceType,
    operation: Operation,
    code: i8,
    name: &str,
) -> bool {
    match (kind, code) {
        (ResourceType::Topic, TOPIC) => access.may_topic(operation, name),
        (ResourceType::Group, GROUP) => access.may(operation, Resource::group(name)),
        (ResourceType::Cluster, BROKER | LOGGER | CLIENT_METRICS) => {
            access.may(operation, Resource::CLUSTER)
        }
        _ => true,
    }
}

fn coordinated(request: &FindCoordinatorRequest) -> ResourceType {
    match request.key_type {
        KEY_OF_GROUP => ResourceType::Group,
        _ => ResourceType::TransactionalId,
    }
}

/// Merges the answer to the refused parts with the answer to the rest.
pub fn merge(response: &mut Response, refused: Response) {
    macro_rules! merge {
        ($($name:ident.$list:ident,)*) => {
            match (response, refused) {
                $(
                    (Response::$name(response), Response::$name(refused)) => {
                        response.$list.extend(refused.$list);
                    }
                )*
                // The rest was not carried out either, and the answer says so.
                _ => {}
            }
        };
    }
    merge! {
        Produce.responses,
        ListOffsets.topics,
        OffsetForLeaderEpoch.topics,
        DeleteRecords.topics,
        DescribeProducers.topics,
        CreateTopics.topics,
        DeleteTopics.responses,
        CreatePartitions.results,
        DescribeConfigs.results,
        AlterConfigs.responses,
        IncrementalAlterConfigs.responses,
        OffsetCommit.topics,
        TxnOffsetCommit.topics,
        OffsetFetch.groups,
        DescribeGroups.groups,
        ConsumerGroupDescribe.groups,
        ShareGroupDescribe.groups,
        DescribeShareGroupOffsets.groups,
        StreamsGroupDescribe.groups,
        DeleteGroups.results,
        DescribeTransactions.transaction_states,
        FindCoordinator.coordinators,
    }
}
