//! The permitted operations of a client on each resource in an answer: a field with a bit for each
//! operation, by its number. Clients that do not ask for them find the field's default.

use millstream_wire::{Request, Response};

use super::Access;
use crate::reply::Change;
use crate::security::{Operation, Resource};

/// Returns the change that adds the permitted operations to the answer to this request.
pub fn fill_in(access: &Access, request: &Request) -> Option<Change> {
    let (of_cluster, of_others) = match request {
        Request::Metadata(request) => (
            request.include_cluster_authorized_operations,
            request.include_topic_authorized_operations,
        ),
        Request::DescribeCluster(request) => (request.include_cluster_authorized_operations, false),
        Request::DescribeGroups(request) => (false, request.include_authorized_operations),
        Request::ConsumerGroupDescribe(request) => (false, request.include_authorized_operations),
        Request::ShareGroupDescribe(request) => (false, request.include_authorized_operations),
        Request::StreamsGroupDescribe(request) => (false, request.include_authorized_operations),
        // The request has no field to ask with.
        Request::DescribeTopicPartitions(_) => (false, true),
        request => unreachable!("the answer to {:?} has no operations", request.api()),
    };
    if !of_cluster && !of_others {
        return None;
    }
    let access = access.clone();
    Some(Box::new(move |response| {
        if of_cluster {
            fill_in_cluster(&access, response);
        }
        if of_others {
            fill_in_others(&access, response);
        }
    }))
}

fn fill_in_cluster(access: &Access, response: &mut Response) {
    let operations = match access.would(Operation::Describe, Resource::CLUSTER) {
        true => permitted(access, Resource::CLUSTER),
        false => 0,
    };
    match response {
        Response::Metadata(response) => response.cluster_authorized_operations = operations,
        Response::DescribeCluster(response) if response.error_code == 0 => {
            response.cluster_authorized_operations = operations;
        }
        _ => {}
    }
}

/// Fills in the operations for topics or groups, except those with an error.
fn fill_in_others(access: &Access, response: &mut Response) {
    let of_topic = |name: &str| permitted(access, Resource::topic(name));
    let of_group = |name: &str| permitted(access, Resource::group(name));
    match response {
        Response::Metadata(response) => {
            for topic in response.topics.iter_mut().filter(|t| t.error_code == 0) {
                let name = topic.name.as_deref().map_or("", |name| &**name);
                topic.topic_authorized_operations = of_topic(name);
            }
        }
        Response::DescribeTopicPartitions(response) => {
            for topic in response.topics.iter_mut().filter(|t| t.error_code == 0) {
                let name = topic.name.as_deref().map_or("", |name| &**name);
                topic.topic_authorized_operations = of_topic(name);
            }
        }
        Response::DescribeGroups(response) => {
            for group in response.groups.iter_mut().filter(|g| g.error_code == 0) {
                group.authorized_operations = of_group(&group.group_id);
            }
        }
        Response::ConsumerGroupDescribe(response) => {
            for group in response.groups.iter_mut().filter(|g| g.error_code == 0) {
                group.authorized_operations = of_group(&group.group_id);
            }
        }
        Response::ShareGroupDescribe(response) => {
            for group in response.groups.iter_mut().filter(|g| g.error_code == 0) {
                group.authorized_operations = of_group(&group.group_id);
            }
        }
        Response::StreamsGroupDescribe(response) => {
            for group in response.groups.iter_mut().filter(|g| g.error_code == 0) {
                group.authorized_operations = of_group(&group.group_id);
            }
        }
        _ => {}
    }
}

/// Returns a bit for each operation that the client may do.
fn permitted(access: &Access, resource: Resource<'_>) -> i32 {
    let operations = resource.kind.operations().iter();
    let permitted = operations.filter(|operation| access.would(**operation, resource));
    permitted.fold(0, |bits, operation| bits | 1 << operation.code())
}
