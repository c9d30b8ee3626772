//! Groups: their list, their members and their committed offsets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_wire::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use millstream_wire::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::{
    AlterShareGroupOffsetsRequest, ConsumerGroupDescribeRequest, DeleteGroupsRequest,
    DescribeGroupsRequest, DescribeShareGroupOffsetsRequest, GroupId, ListGroupsRequest,
    OffsetCommitRequest, ShareGroupDescribeRequest,
};
use millstream_wire::streams_group::StreamsGroupDescribeRequest;
use millstream_wire::{FLOW_OFFSETS, ResponseError, decode_assignment};

use crate::client::{Client, text, topic_name};
use crate::error::ClientError;
use crate::offsets::TopicPartition;

/// A group, as an entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedGroup {
    /// The group's name.
    pub name: String,
    /// The protocol of its members: `classic`, `consumer`, `share` or `streams`.
    pub kind: String,
    /// The group's state, as Kafka names it: `Empty`, `Stable` and others.
    pub state: String,
}

/// The offsets that a group has committed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupOffsets {
    /// The offset at which the group resumes each partition.
    pub offsets: HashMap<TopicPartition, Offset>,
    /// The metadata of the commits that have some.
    pub metadata: HashMap<TopicPartition, String>,
    /// The leader epochs of the commits that have one.
    pub(crate) leader_epochs: HashMap<TopicPartition, i32>,
}

impl GroupOffsets {
    /// Returns whether the offsets report the progress of a flow that owns the group.
    pub fn are_of_flow(&self) -> bool {
        self.metadata.values().any(|text| text == FLOW_OFFSETS)
    }
}

/// The progress of a share group in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareProgress {
    /// The offset of the first record that is not processed; `None` before the group has read the partition.
    pub start: Option<Offset>,
    /// The number of records that are not processed; `None` if the server does not know it.
    pub lag: Option<u64>,
}

/// The description of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDescription {
    /// The protocol of its members: `classic`, `consumer`, `share` or `streams`.
    pub kind: &'static str,
    /// The group's state, as Kafka names it.
    pub state: String,
    /// The group's members.
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The member's id.
    pub id: String,
    /// The client id.
    pub client: String,
    /// The address that the client connects from.
    pub host: String,
    /// The partitions that are assigned to the member. Empty for Kafka Streams, whose members have tasks instead.
    pub partitions: BTreeSet<TopicPartition>,
}

impl Client {
    /// Returns all groups, by name.
    ///
    /// # Errors
    /// When no server answers.
    pub async fn groups(&self) -> Result<Vec<ListedGroup>, ClientError> {
        let answer = self.ask(ListGroupsRequest::default()).await?;
        ClientError::check(answer.error_code, None, "listing groups")?;
        let groups = answer.groups.into_iter().map(|group| ListedGroup {
            name: group.group_id.0.to_string(),
            kind: group.group_type.to_lowercase(),
            state: group.group_state.to_string(),
        });
        let mut groups: Vec<ListedGroup> = groups.collect();
        groups.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(groups)
    }

    /// Returns the description of a group, of any kind.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn group(&self, name: &str) -> Result<GroupDescription, ClientError> {
        // Each request knows the groups of one kind.
        let mut described = self.consumer_group(name).await;
        if is_of_other_kind(&described) {
            described = self.classic_group(name).await;
        }
        if is_of_other_kind(&described) {
            described = self.share_group(name).await;
        }
        if is_of_other_kind(&described) {
            described = self.streams_group(name).await;
        }
        match is_of_other_kind(&described) {
            true => Err(unknown(name)),
            false => described,
        }
    }

    async fn consumer_group(&self, name: &str) -> Result<GroupDescription, ClientError> {
        let request =
            ConsumerGroupDescribeRequest::default().with_group_ids(vec![GroupId(text(name))]);
        let answer = self.coordinator(name).await?.ask(request).await?;
        let group = answer.groups.into_iter().next();
        let group = group.ok_or_else(|| unknown(name))?;
        let message = group.error_message.as_deref();
        ClientError::check(group.error_code, message, format!("group {name}"))?;
        let members = group.members.into_iter().map(|member| GroupMember {
            id: member.member_id.to_string(),
            client: member.client_id.to_string(),
            host: member.client_host.to_string(),
            partitions: member
                .assignment
                .topic_partitions
                .iter()
                .flat_map(|topic| places(topic.topic_name.as_str(), &topic.partitions))
                .collect(),
        });
        Ok(GroupDescription {
            kind: "consumer",
            state: group.group_state.to_string(),
            members: members.collect(),
        })
    }

    async fn classic_group(&self, name: &str) -> Result<GroupDescription, ClientError> {
        let request = DescribeGroupsRequest::default().with_groups(vec![GroupId(text(name))]);
        let answer = self.coordinator(name).await?.ask(request).await?;
        let group = answer.groups.into_iter().next();
        let group = group.ok_or_else(|| unknown(name))?;
        let message = group.error_message.as_deref();
        ClientError::check(group.error_code, message, format!("group {name}"))?;
        // Older versions of the request report a missing group by this state instead of an error.
        if group.group_state.as_str() == "Dead" {
            return Err(unknown(name));
        }
        let members = group.members.into_iter().map(|member| GroupMember {
            id: member.member_id.to_string(),
            client: member.client_id.to_string(),
            host: member.client_host.to_string(),
            partitions: assigned(member.member_assignment),
        });
        Ok(GroupDescription {
            kind: "classic",
            state: group.group_state.to_string(),
            members: members.collect(),
        })
    }

    async fn share_group(&self, name: &str) -> Result<GroupDescription, ClientError> {
        let request =
            ShareGroupDescribeRequest::default().with_group_ids(vec![GroupId(text(name))]);
        let answer = self.coordinator(name).await?.ask(request).await?;
        let group = answer.groups.into_iter().next();
        let group = group.ok_or_else(|| unknown(name))?;
        let message = group.error_message.as_deref();
        ClientError::check(group.error_code, message, format!("group {name}"))?;
        let members = group.members.into_iter().map(|member| GroupMember {
            id: member.member_id.to_string(),
            client: member.client_id.to_string(),
            host: member.client_host.to_string(),
            partitions: member
                .assignment
                .topic_partitions
                .iter()
                .flat_map(|topic| places(topic.topic_name.as_str(), &topic.partitions))
                .collect(),
        });
        Ok(GroupDescription {
            kind: "share",
            state: group.group_state.to_string(),
            members: members.collect(),
        })
    }

    async fn streams_group(&self, name: &str) -> Result<GroupDescription, ClientError> {
        let request = StreamsGroupDescribeRequest {
            group_ids: vec![text(name)],
            include_authorized_operations: false,
        };
        let answer = self.coordinator(name).await?.ask(request).await?;
        let group = answer.groups.into_iter().next();
        let group = group.ok_or_else(|| unknown(name))?;
        let message = group.error_message.as_deref();
        ClientError::check(group.error_code, message, format!("group {name}"))?;
        let members = group.members.into_iter().map(|member| GroupMember {
            id: member.member_id.to_string(),
            client: member.client_id.to_string(),
            host: member.client_host.to_string(),
            partitions: BTreeSet::new(),
        });
        Ok(GroupDescription {
            kind: "streams",
            state: group.group_state.to_string(),
            members: members.collect(),
        })
    }

    /// Returns the progress of a share group in the partitions that it has read.
    ///
    /// # Errors
    /// When there is no share group of this name.
    pub async fn share_progress(
        &self,
        group: &str,
    ) -> Result<HashMap<TopicPartition, ShareProgress>, ClientError> {
        let asked = DescribeShareGroupOffsetsRequestGroup::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(None);
        let request = DescribeShareGroupOffsetsRequest::default().with_groups(vec![asked]);
        let answer = self.coordinator(group).await?.ask(request).await?;
        let mut progress = HashMap::new();
        for answered in answer.groups {
            let message = answered.error_message.as_deref();
            ClientError::check(answered.error_code, message, format!("group {group}"))?;
            for topic in answered.topics {
                let name: Arc<str> = topic.topic_name.as_str().into();
                for partition in topic.partitions {
                    let message = partition.error_message.as_deref();
                    let what = format!("group {group} in stream {name}");
                    ClientError::check(partition.error_code, message, what)?;
                    let place = TopicPartition {
                        topic: Arc::clone(&name),
                        partition: partition.partition_index,
                    };
                    let reached = ShareProgress {
                        start: u64::try_from(partition.start_offset).ok().map(Offset),
                        lag: u64::try_from(partition.lag).ok(),
                    };
                    progress.insert(place, reached);
                }
            }
        }
        Ok(progress)
    }

    /// Sets the offsets at which a group resumes. The group must have no members.
    ///
    /// # Errors
    /// When the group is in use, or a partition does not exist.
    pub async fn set_offsets(
        &self,
        group: &str,
        offsets: &BTreeMap<TopicPartition, Offset>,
    ) -> Result<(), ClientError> {
        self.commit_offsets(group, offsets, "").await
    }

    /// Sets the offsets from which a share group reads; all records from there on count as not processed. The group must
    /// have no members.
    ///
    /// # Errors
    /// When the group is in use, or a partition does not exist.
    pub async fn set_share_offsets(
        &self,
        group: &str,
        offsets: &BTreeMap<TopicPartition, Offset>,
    ) -> Result<(), ClientError> {
        let topics = by_topic(offsets, |index, offset| {
            AlterShareGroupOffsetsRequestPartition::default()
                .with_partition_index(index)
                .with_start_offset(offset)
        });
        let topics = topics.into_iter().map(|(name, partitions)| {
            AlterShareGroupOffsetsRequestTopic::default()
                .with_topic_name(topic_name(name))
                .with_partitions(partitions)
        });
        let request = AlterShareGroupOffsetsRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(topics.collect());
        let answer = self.coordinator(group).await?.ask(request).await?;
        let code = answer.error_code;
        let message = match ResponseError::try_from_code(code) {
            Some(ResponseError::NonEmptyGroup) => Some("the group has members; stop them first"),
            _ => answer.error_message.as_deref(),
        };
        ClientError::check(code, message, format!("group {group}"))?;
        for topic in answer.responses {
            for partition in topic.partitions {
                let message = partition.error_message.as_deref();
                let what = format!("group {group} in stream {}", topic.topic_name.as_str());
                ClientError::check(partition.error_code, message, what)?;
            }
        }
        Ok(())
    }

    /// Reports the progress of a flow as the offsets of a group, which the flow owns from then on.
    ///
    /// # Errors
    /// When consumers use the group, or a partition does not exist.
    pub async fn set_flow_offsets(
        &self,
        group: &str,
        offsets: &BTreeMap<TopicPartition, Offset>,
    ) -> Result<(), ClientError> {
        self.commit_offsets(group, offsets, FLOW_OFFSETS).await
    }

    async fn commit_offsets(
        &self,
        group: &str,
        offsets: &BTreeMap<TopicPartition, Offset>,
        metadata: &str,
    ) -> Result<(), ClientError> {
        let topics = by_topic(offsets, |index, offset| {
            OffsetCommitRequestPartition::default()
                .with_partition_index(index)
                .with_committed_offset(offset)
                .with_committed_metadata(Some(text(metadata)))
        });
        let topics = topics.into_iter().map(|(name, partitions)| {
            OffsetCommitRequestTopic::default()
                .with_name(topic_name(name))
                .with_partitions(partitions)
        });
        let request = OffsetCommitRequest::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(topics.collect());
        let answer = self.coordinator(group).await?.ask(request).await?;
        for topic in answer.topics {
            for partition in topic.partitions {
                // The server refuses commits of non-members for a group that has members.
                let code = partition.error_code;
                let message = match ResponseError::try_from_code(code) {
                    Some(ResponseError::UnknownMemberId) => {
                        Some("the group has members; stop them first")
                    }
                    Some(ResponseError::InconsistentGroupProtocol) if metadata.is_empty() => {
                        Some("it shows how far the flow of this name is, which alone moves it")
                    }
                    Some(ResponseError::InconsistentGroupProtocol) => {
                        Some("it is a group of consumers, which keep their own offsets in it")
                    }
                    _ => None,
                };
                ClientError::check(code, message, format!("group {group}"))?;
            }
        }
        Ok(())
    }

    /// Deletes a group with its offsets. It must have no members.
    ///
    /// # Errors
    /// When the group is in use, or there is none.
    pub async fn delete_group(&self, group: &str) -> Result<(), ClientError> {
        let request = DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text(group))]);
        let answer = self.coordinator(group).await?.ask(request).await?;
        for result in answer.results {
            ClientError::check(result.error_code, None, format!("group {group}"))?;
        }
        Ok(())
    }
}

/// Returns the partitions of each topic in a request that sets offsets.
fn by_topic<P>(
    offsets: &BTreeMap<TopicPartition, Offset>,
    partition: impl Fn(i32, i64) -> P,
) -> BTreeMap<&Arc<str>, Vec<P>> {
    let mut topics: BTreeMap<_, Vec<P>> = BTreeMap::new();
    for (place, Offset(offset)) in offsets {
        let offset = i64::try_from(*offset).unwrap_or(i64::MAX);
        let partitions = topics.entry(&place.topic).or_default();
        partitions.push(partition(place.partition, offset));
    }
    topics
}

/// Returns whether a group may be of another kind than the asked one. Older servers lack the requests of some kinds.
fn is_of_other_kind(described: &Result<GroupDescription, ClientError>) -> bool {
    described.as_ref().is_err_and(|error| {
        matches!(error, ClientError::Unsupported { .. })
            || error.response_error() == Some(ResponseError::GroupIdNotFound)
    })
}

fn unknown(name: &str) -> ClientError {
    ClientError::Refused {
        what: format!("group {name}"),
        error: ResponseError::GroupIdNotFound,
        message: Some("there is no such group".to_owned()),
    }
}

fn places<'a>(
    topic: &str,
    partitions: &'a [i32],
) -> impl Iterator<Item = TopicPartition> + use<'a> {
    let topic: Arc<str> = topic.into();
    partitions.iter().map(move |partition| TopicPartition {
        topic: Arc::clone(&topic),
        partition: *partition,
    })
}

/// Returns the partitions that are assigned to a member of the classic protocol; none if the member
/// is no consumer.
fn assigned(assignment: Bytes) -> BTreeSet<TopicPartition> {
    let assignment = decode_assignment(assignment).unwrap_or_default();
    let topics = assignment.assigned_partitions.iter();
    topics
        .flat_map(|topic| places(topic.topic.as_str(), &topic.partitions))
        .collect()
}
