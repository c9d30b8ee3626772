//! Topics: listed, described, created, changed and deleted. A topic is a stream, and each `StreamPartition` of
//! it a partition.

mod change;
mod describe;

use millstream_log::Stream;
use millstream_wire::messages::TopicName;
use millstream_wire::messages::produce_request::TopicProduceData;
use millstream_wire::{ResponseError, StrBytes, Uuid};

use crate::access::denied_by_id;
use crate::client::Client;
use crate::error::response_error;
use crate::security::{Operation, Resource};

/// A topic as a request names it.
pub enum Named<'a> {
    Name(&'a str),
    Id(Uuid),
}

impl<'a> Named<'a> {
    pub fn of(has_id: bool, name: &'a TopicName, id: Uuid) -> Named<'a> {
        match has_id {
            true => Named::Id(id),
            false => Named::Name(name),
        }
    }

    /// Returns the name of a topic in a Produce request, which has ids from version 13 on.
    pub fn of_produced(version: i16, topic: &'a TopicProduceData) -> Named<'a> {
        Named::of(version >= 13, &topic.name, topic.topic_id)
    }

    /// Returns the named stream.
    pub fn stream(&self, client: &mut Client) -> Result<Stream, ResponseError> {
        match self {
            Named::Name(name) => client.stream(name).map_err(|error| response_error(&error)),
            Named::Id(id) => client
                .stream_by_uuid(*id)
                .map_err(|_| ResponseError::UnknownTopicId),
        }
    }

    /// Returns the named stream if the client may do this operation on it.
    pub fn permitted(
        &self,
        client: &mut Client,
        operation: Operation,
    ) -> Result<Stream, ResponseError> {
        let check = |client: &Client, name: &str| match client.access().may_topic(operation, name) {
            true => Ok(()),
            false => Err(ResponseError::TopicAuthorizationFailed),
        };
        match self {
            Named::Name(name) => {
                check(client, name)?;
                self.stream(client)
            }
            Named::Id(_) => {
                let stream = self.stream(client)?;
                check(client, stream.name())
                    .map_err(|_| denied_by_id(client.access(), stream.name()))?;
                Ok(stream)
            }
        }
    }
}

/// Returns whether the client may know that the topic of this id exists; `true` for the nil id,
/// with which no topic is named.
pub fn knows(client: &mut Client, operation: Operation, id: Uuid) -> bool {
    id.is_nil()
        || client.stream_by_uuid(id).is_ok_and(|stream| {
            let access = client.access();
            access.would(operation, Resource::topic(stream.name()))
                || access.sees_topic(stream.name())
        })
}

/// Checks the right to an existing topic that is named by its name or its id.
pub fn may_named(
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

/// Refuses a stream that clients can only read.
pub fn not_read_only(stream: Stream) -> Result<Stream, ResponseError> {
    match stream.is_internal() {
        true => Err(ResponseError::InvalidTopicException),
        false => Ok(stream),
    }
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}
