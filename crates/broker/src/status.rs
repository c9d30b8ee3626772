//! How the broker is doing, for those who look at it.

use std::collections::HashMap;

use millstream_base::Offset;
use millstream_log::Stream;

use crate::broker::Broker;
use crate::counters::RequestStatus;
use crate::user_streams::stream_of_users;

/// How the broker is doing.
#[derive(Debug, Clone)]
pub struct Status {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were taken since the start.
    pub connections_accepted: u64,
    /// Connections that were closed at once, since there were too many.
    pub connections_refused: u64,
    /// Connections that were closed since their client did what it must not, or failed to agree on TLS.
    pub connections_failed: u64,
    /// Logins that were refused.
    pub logins_refused: u64,
    /// What users wanted to do and may not.
    pub denied: u64,
    /// Memory of requests that are being worked on, in bytes.
    pub requests_bytes: u64,
    /// Its bound.
    pub requests_bytes_max: u64,
    /// The kinds of requests that there were.
    pub requests: Vec<RequestStatus>,
    /// In the order of their names.
    pub groups: Vec<GroupStatus>,
}

/// How a group of consumers is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its state, as Kafka calls it.
    pub state: &'static str,
    /// Whether it shows how far a flow is.
    pub is_of_flow: bool,
    /// How many members it has.
    pub members: usize,
    /// The streams in which it has committed offsets.
    pub topics: Vec<GroupTopic>,
}

/// How far a group is in a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTopic {
    /// The stream.
    pub stream: String,
    /// In how many partitions the group has committed offsets.
    pub partitions: usize,
    /// Records of these partitions behind the offsets.
    pub lag_records: u64,
}

impl Broker {
    /// How the broker is doing. Takes time for every committed offset.
    pub fn status(&self) -> Status {
        let counters = &self.counters;
        let (accepted, ended) = (counters.accepted.get(), counters.ended.get());
        Status {
            connections: accepted.saturating_sub(ended),
            connections_accepted: accepted,
            connections_refused: counters.refused.get(),
            connections_failed: counters.failed.get(),
            logins_refused: self.security().refused_logins(),
            denied: self.security().denied(),
            requests_bytes: self.memory().used(),
            requests_bytes_max: self.config().requests_bytes_max as u64,
            requests: counters.requests(),
            groups: self.group_statuses(),
        }
    }

    fn group_statuses(&self) -> Vec<GroupStatus> {
        let mut streams: HashMap<String, Option<Stream>> = HashMap::new();
        let mut lag = |stream: &str, offsets: &[(u32, Offset)]| {
            let find = || stream_of_users(self.log(), stream).ok();
            let found = streams.entry(stream.to_owned()).or_insert_with(find);
            let ends = offsets.iter().map(|(partition, done)| {
                let lane = found.as_ref()?.partition(*partition).ok()?;
                Some(lane.readable_offset().0.saturating_sub(done.0))
            });
            ends.flatten().sum()
        };
        let standings = self.groups().standings();
        let groups = standings.into_iter().map(|group| GroupStatus {
            name: group.name.as_str().to_owned(),
            state: group.state.as_str(),
            is_of_flow: group.is_of_flow,
            members: group.members,
            topics: group
                .offsets
                .iter()
                .map(|(topic, offsets)| GroupTopic {
                    stream: topic.as_str().to_owned(),
                    partitions: offsets.len(),
                    lag_records: lag(topic.as_str(), offsets),
                })
                .collect(),
        });
        groups.collect()
    }
}
