//! The broker's state, for operators.

use std::collections::{BTreeMap, HashMap};

use millstream_base::Offset;
use millstream_log::Stream;
use millstream_wire::Uuid;

use crate::broker::Broker;
use crate::counters::RequestStatus;
use crate::groups::{GroupName, TopicId};
use crate::partitions::lane_of;
use crate::user_streams::{not_internal, stream_of_users};

/// The broker's state at one moment.
#[derive(Debug, Clone)]
pub struct Status {
    /// Open connections.
    pub connections: u64,
    /// Connections that were accepted since the start.
    pub connections_accepted: u64,
    /// Connections that were closed at once, because there were too many.
    pub connections_refused: u64,
    /// Connections that were closed because the client broke the protocol or a limit, or failed to
    /// agree on TLS.
    pub connections_failed: u64,
    /// Refused logins.
    pub logins_refused: u64,
    /// Operations that access rules denied.
    pub denied: u64,
    /// Dead letters of share groups that were written since the start.
    pub dead_letters: u64,
    /// Partitions of share groups with records whose dead letters have to be written.
    pub dead_letter_partitions: u64,
    /// Memory of requests in progress, in bytes.
    pub requests_bytes: u64,
    /// The bound of `requests_bytes`.
    pub requests_bytes_max: u64,
    /// Memory of answers, from before they are built until they are written, in bytes.
    pub answers_bytes: u64,
    /// The bound of `answers_bytes`.
    pub answers_bytes_max: u64,
    /// The kinds of requests that have been answered so far.
    pub requests: Vec<RequestStatus>,
    /// The groups, in the order of their names.
    pub groups: Vec<GroupStatus>,
}

/// The state of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its state, as Kafka calls it.
    pub state: &'static str,
    /// Whether the group shows the progress of a flow.
    pub is_of_flow: bool,
    /// The number of members.
    pub members: usize,
    /// The streams in which it has committed offsets, or that it has read as a share group.
    pub topics: Vec<GroupTopic>,
}

/// The progress of a group in a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTopic {
    /// The stream.
    pub stream: String,
    /// The number of partitions with committed offsets of the group, or that the share group has read.
    pub partitions: usize,
    /// The offsets of these partitions from the committed ones to the high watermark: those of records, and of markers of
    /// transactions. Of a share group: those that are not finished.
    pub lag_records: u64,
}

impl Broker {
    /// Returns the broker's state. Takes time for every committed offset, and every partition that a share group reads.
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
            dead_letters: self.shares().dead_letters_written(),
            dead_letter_partitions: self.shares().dead_letters_due() as u64,
            requests_bytes: self.memory().used(),
            requests_bytes_max: self.config().requests_bytes_max as u64,
            answers_bytes: self.answers().used(),
            answers_bytes_max: self.config().answers_bytes_max as u64,
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
                Some(lane.high_watermark().0.saturating_sub(done.0))
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
                .chain(self.share_topics(&group.name))
                .collect(),
        });
        groups.collect()
    }

    /// Returns the progress of a share group, which commits no offsets; nothing for groups of other kinds.
    fn share_topics(&self, group: &GroupName) -> Vec<GroupTopic> {
        let mut topics: BTreeMap<TopicId, GroupTopic> = BTreeMap::new();
        for key in self.shares().keys_of(group) {
            let stream = self.log().stream_by_uuid(Uuid::from_u128(key.topic.0));
            // The stream may be deleted meanwhile.
            let Ok(stream) = stream.and_then(not_internal) else {
                continue;
            };
            let Ok(lane) = lane_of(&stream, key.partition.0) else {
                continue;
            };
            let lag = self.shares().describe_partition(&key, &lane).lag;
            let topic = topics.entry(key.topic).or_insert_with(|| GroupTopic {
                stream: stream.name().to_owned(),
                partitions: 0,
                lag_records: 0,
            });
            topic.partitions += 1;
            topic.lag_records += u64::try_from(lag).unwrap_or(0);
        }
        topics.into_values().collect()
    }
}
