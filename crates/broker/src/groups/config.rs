//! Settings and bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{GroupError, GroupName};

/// The longest name of a group, in bytes.
pub const GROUP_NAME_BYTES_MAX: usize = 4096;
/// The longest id of a client, host, member or rack, and name of a protocol or topic, in bytes.
pub const ID_BYTES_MAX: usize = 4096;
/// The longest instance id, in bytes, as in Kafka's own client.
pub const INSTANCE_ID_BYTES_MAX: usize = 249;
/// The most protocols that a member may offer.
pub const PROTOCOLS_MAX: usize = 64;
/// The most bytes that the protocols of a member may carry, that a leader may assign to one, and that the
/// names of the topics of a member of a group of KIP-848 may have.
pub const MEMBER_BYTES_MAX: usize = 1 << 20;
/// The most offsets that a group may have, those of open transactions included.
pub const OFFSETS_PER_GROUP_MAX: usize = 1 << 20;

/// The most topics that a member of a group of KIP-848 may name.
pub const TOPICS_PER_MEMBER_MAX: usize = 10_000;
/// The most different regular expressions that the members of a group may use.
pub const REGEXES_PER_GROUP_MAX: usize = 100;

/// The most parts that a topology of Kafka Streams may have.
pub const SUBTOPOLOGIES_MAX: usize = 1_000;
/// The most names, settings and places that the lists of a topology, or of a member's tags, may have.
pub const TOPOLOGY_ITEMS_MAX: usize = 10_000;
/// The most tasks that a group of Kafka Streams may have.
pub const TASKS_PER_GROUP_MAX: i64 = 100_000;

/// The settings of groups. The defaults are Kafka's where it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How many groups there may be.
    pub groups_max: usize,
    /// How many members a group may have; and how many that were given an id may not have joined yet.
    pub members_max: usize,
    /// How long the first members of an empty group wait for other members.
    pub initial_rebalance_delay: Duration,
    /// The shortest session timeout that a classic member may ask for.
    pub session_timeout_min: Duration,
    /// The longest session timeout that a classic member may ask for.
    pub session_timeout_max: Duration,
    /// How long a new member waits to be let in, since it cannot send heartbeats yet.
    pub new_member_join_timeout: Duration,
    /// How long a member of a group of KIP-848 may be silent.
    pub consumer_session_timeout: Duration,
    /// The interval between heartbeats of a member of a group of KIP-848.
    pub consumer_heartbeat_interval: Duration,
    /// How many members a share group may have.
    pub share_members_max: usize,
    /// How long a member of a share group may be silent.
    pub share_session_timeout: Duration,
    /// The interval between heartbeats of a member of a share group.
    pub share_heartbeat_interval: Duration,
    /// How long a member of a group of Kafka Streams may be silent.
    pub streams_session_timeout: Duration,
    /// The interval between heartbeats of a member of a group of Kafka Streams.
    pub streams_heartbeat_interval: Duration,
    /// How long an offset is retained after the group has become empty.
    pub offsets_retention: Duration,
    /// The interval between searches for expired offsets and groups.
    pub offsets_retention_check_interval: Duration,
    /// The longest text that may go with an offset, in UTF-16 units.
    pub offset_metadata_max: usize,
    /// The most partitions of a topic that the broker makes for a group.
    pub partitions_max: u32,
    /// Groups with settings of their own.
    pub of_groups: BTreeMap<GroupName, GroupConfig>,
}

/// The settings of one group. Where one is missing, the setting of all groups applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupConfig {
    /// See [`Config::consumer_session_timeout`].
    pub consumer_session_timeout: Option<Duration>,
    /// See [`Config::consumer_heartbeat_interval`].
    pub consumer_heartbeat_interval: Option<Duration>,
    /// See [`Config::share_session_timeout`].
    pub share_session_timeout: Option<Duration>,
    /// See [`Config::share_heartbeat_interval`].
    pub share_heartbeat_interval: Option<Duration>,
    /// See [`Config::streams_session_timeout`].
    pub streams_session_timeout: Option<Duration>,
    /// See [`Config::streams_heartbeat_interval`].
    pub streams_heartbeat_interval: Option<Duration>,
}

impl Config {
    /// How long a member of this group, which is one of KIP-848, may be silent.
    pub fn session_timeout_of(&self, group: &GroupName) -> Duration {
        self.own(group, |own| own.consumer_session_timeout)
            .unwrap_or(self.consumer_session_timeout)
    }

    /// The interval between heartbeats of a member of this group, which is one of KIP-848.
    pub fn heartbeat_interval_of(&self, group: &GroupName) -> Duration {
        self.own(group, |own| own.consumer_heartbeat_interval)
            .unwrap_or(self.consumer_heartbeat_interval)
    }

    /// How long a member of this group of Kafka Streams may be silent.
    pub fn streams_session_timeout_of(&self, group: &GroupName) -> Duration {
        self.own(group, |own| own.streams_session_timeout)
            .unwrap_or(self.streams_session_timeout)
    }

    /// The interval between heartbeats of a member of this group of Kafka Streams.
    pub fn streams_heartbeat_interval_of(&self, group: &GroupName) -> Duration {
        self.own(group, |own| own.streams_heartbeat_interval)
            .unwrap_or(self.streams_heartbeat_interval)
    }

    /// How long a member of this share group may be silent.
    pub fn share_session_timeout_of(&self, group: &GroupName) -> Duration {
        self.own(group, |own| own.share_session_timeout)
            .unwrap_or(self.share_session_timeout)
    }

    /// The interval between heartbeats of a member of this share group.
    pub fn share_heartbeat_interval_of(&self, group: &GroupName) -> Duration {
        self.own(group, |own| own.share_heartbeat_interval)
            .unwrap_or(self.share_heartbeat_interval)
    }

    fn own(
        &self,
        group: &GroupName,
        setting: impl Fn(&GroupConfig) -> Option<Duration>,
    ) -> Option<Duration> {
        self.of_groups.get(group).and_then(setting)
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            groups_max: 100_000,
            members_max: 5_000,
            initial_rebalance_delay: Duration::from_secs(3),
            session_timeout_min: Duration::from_secs(6),
            session_timeout_max: Duration::from_secs(30 * 60),
            new_member_join_timeout: Duration::from_secs(5 * 60),
            consumer_session_timeout: Duration::from_secs(45),
            consumer_heartbeat_interval: Duration::from_secs(5),
            share_members_max: 200,
            share_session_timeout: Duration::from_secs(45),
            share_heartbeat_interval: Duration::from_secs(5),
            streams_session_timeout: Duration::from_secs(45),
            streams_heartbeat_interval: Duration::from_secs(5),
            offsets_retention: Duration::from_secs(7 * 24 * 60 * 60),
            offsets_retention_check_interval: Duration::from_secs(10 * 60),
            offset_metadata_max: 4096,
            of_groups: BTreeMap::new(),
            partitions_max: 10_000,
        }
    }
}

/// Checks the name of a group that may be created.
pub(super) fn check_group_name(name: &str) -> Result<(), GroupError> {
    match name.len() {
        1..=GROUP_NAME_BYTES_MAX => Ok(()),
        _ => Err(GroupError::InvalidGroupId),
    }
}
