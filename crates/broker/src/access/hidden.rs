//! Leaves out of listing answers the resources that the client may not know of.

use millstream_wire::messages::GroupId;
use millstream_wire::messages::offset_fetch_response::{
    OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use millstream_wire::{Request, Response, ResponseError};

use super::Access;
use crate::reply::Change;
use crate::security::{Operation::Describe, Resource};

/// Returns the change that hides these resources in the answer to this request.
pub fn hide(access: &Access, request: &Request) -> Option<Change> {
    let access = access.clone();
    let sees = move |resource: Resource<'_>| access.would(Describe, resource);
    let hide: Change = match request {
        // A client that may describe the cluster sees all groups.
        Request::ListGroups(_) if !sees(Resource::CLUSTER) => Box::new(move |response| {
            if let Response::ListGroups(response) = response {
                let groups = &mut response.groups;
                groups.retain(|group| sees(Resource::group(&group.group_id)));
            }
        }),
        Request::ListTransactions(_) => Box::new(move |response| {
            if let Response::ListTransactions(response) = response {
                let transactions = &mut response.transaction_states;
                transactions.retain(|transaction| {
                    sees(Resource::transactional_id(&transaction.transactional_id))
                });
            }
        }),
        Request::DescribeTransactions(_) => Box::new(move |response| {
            if let Response::DescribeTransactions(response) = response {
                for transaction in &mut response.transaction_states {
                    let topics = &mut transaction.topics;
                    topics.retain(|topic| sees(Resource::topic(&topic.topic)));
                }
            }
        }),
        Request::ListStreams(_) => Box::new(move |response| {
            if let Response::ListStreams(response) = response {
                let streams = &mut response.streams;
                streams.retain(|stream| sees(Resource::topic(&stream.name)));
            }
        }),
        Request::ListObjects(_) => Box::new(move |response| {
            if let Response::ListObjects(response) = response {
                let objects = &mut response.objects;
                objects.retain(|object| sees(Resource::topic(&object.name)));
            }
        }),
        Request::OffsetFetch(request) => {
            let all_topics = request.topics.is_none();
            let groups = request.groups.iter();
            let all_of = groups.filter(|group| group.topics.is_none());
            let all_of: Vec<GroupId> = all_of.map(|group| group.group_id.clone()).collect();
            Box::new(move |response| {
                if let Response::OffsetFetch(response) = response {
                    hide_offsets(&mut response.topics, all_topics, &sees);
                    for group in &mut response.groups {
                        let all_topics = all_of.contains(&group.group_id);
                        hide_offsets(&mut group.topics, all_topics, &sees);
                    }
                }
            })
        }
        Request::ListGroups(_) => return None,
        request => unreachable!("the answer to {:?} lists nothing", request.api()),
    };
    Some(hide)
}

/// Leaves out topics that were not named, and the offsets of those that were.
fn hide_offsets<T: Offsets>(
    topics: &mut Vec<T>,
    all_topics: bool,
    sees: &impl Fn(Resource<'_>) -> bool,
) {
    let is_seen = |topic: &T| sees(Resource::topic(topic.name()));
    if all_topics {
        topics.retain(is_seen);
    } else {
        let denied = topics.iter_mut().filter(|topic| !is_seen(topic));
        denied.for_each(Offsets::deny);
    }
}

/// A topic with offsets of a group.
trait Offsets {
    fn name(&self) -> &str;

    /// Replaces the offsets by an error.
    fn deny(&mut self);
}

macro_rules! offsets {
    ($($topic:ty, $partition:ty;)*) => {
        $(
            impl Offsets for $topic {
                fn name(&self) -> &str {
                    &self.name
                }

                fn deny(&mut self) {
                    for partition in &mut self.partitions {
                        *partition = <$partition>::default()
                            .with_partition_index(partition.partition_index)
                            .with_committed_offset(-1)
                            .with_error_code(ResponseError::TopicAuthorizationFailed.code());
                    }
                }
            }
        )*
    };
}

offsets! {
    // The first type is of versions up to 7, the second of version 8 and later.
    OffsetFetchResponseTopic, OffsetFetchResponsePartition;
    OffsetFetchResponseTopics, OffsetFetchResponsePartitions;
}
