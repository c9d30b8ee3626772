//! Names and texts of Kafka's messages, and of the coordinator's requests and answers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Random;
use millstream_wire::{ResponseError, StrBytes, messages};

use crate::client::Client;
use crate::groups::{
    Client as GroupClient, GroupError, GroupName, InstanceId, MemberId, RandomBytes, TopicName,
};

/// Copies a text that stays in memory: the original would hold on to the whole buffer of its connection.
pub fn text(text: &StrBytes) -> Arc<str> {
    Arc::from(&**text)
}

pub fn bytes(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

pub fn group(name: &messages::GroupId) -> GroupName {
    GroupName::from(&***name)
}

/// Returns each group once, however often the request names it: an answer is no larger than all groups together.
pub fn groups(names: &[messages::GroupId]) -> Vec<GroupName> {
    let mut named = HashSet::new();
    let names = names.iter().filter(|name| named.insert(&***name));
    names.map(group).collect()
}

pub fn member(id: &StrBytes) -> MemberId {
    MemberId::from(&**id)
}

pub fn instance(id: Option<&StrBytes>) -> Option<InstanceId> {
    id.map(|id| InstanceId::from(&**id))
}

pub fn topic(name: &messages::TopicName) -> TopicName {
    TopicName::from(&***name)
}

pub fn milliseconds(number: i32) -> Duration {
    Duration::from_millis(number.max(0) as u64)
}

pub fn client_of(client: &Client) -> GroupClient {
    GroupClient {
        id: client.id().into(),
        host: format!("/{}", client.peer().address.ip()).into(),
    }
}

pub fn random_bytes(random: &dyn Random) -> Result<RandomBytes, ResponseError> {
    let mut bytes = [0; 16];
    random
        .fill(&mut bytes)
        .map_err(|_| ResponseError::UnknownServerError)?;
    Ok(RandomBytes(u128::from_be_bytes(bytes)))
}

pub fn code(error: Option<GroupError>) -> i16 {
    error.map_or(0, GroupError::code)
}

pub fn sent(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub fn group_id(name: &str) -> messages::GroupId {
    messages::GroupId(sent(name))
}

pub fn topic_name(name: &str) -> messages::TopicName {
    messages::TopicName(sent(name))
}
