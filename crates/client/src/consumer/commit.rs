//! The consumer's duties in its group: takes over partitions, commits offsets, leaves.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use millstream_base::Offset;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use millstream_wire::messages::{GroupId, OffsetCommitRequest, OffsetFetchRequest};
use millstream_wire::{ResponseError, StrBytes, Uuid};
use tokio::time::sleep;

use super::Consumer;
use super::group::News;
use super::search::{Found, Search};
use crate::admin::GroupOffsets;
use crate::client::{Client, text, topic_name};
use crate::error::ClientError;
use crate::offsets::{TopicPartition, check_commit};

/// The most tries of a commit: the group's epoch may change in between.
const TRIES_MAX: u32 = 20;

impl Consumer {
    /// Commits the positions, including all records that were returned. Does nothing without a group.
    ///
    /// # Errors
    /// When the group refuses the commit, for example since it has assigned the partitions to other members.
    pub async fn commit(&mut self) -> Result<(), ClientError> {
        self.settle();
        self.commit_positions().await
    }

    async fn commit_positions(&mut self) -> Result<(), ClientError> {
        let Some(group) = &mut self.group else {
            return Ok(());
        };
        let is_new =
            |place: &TopicPartition, next: &Offset| group.committed.get(place) != Some(next);
        let mut offsets = self.positions.clone();
        offsets.retain(|place, next| is_new(place, next));
        while !offsets.is_empty() {
            // The count outlives a call that is dropped: a failing commit must not keep the member from following the
            // group.
            group.commit_tries += 1;
            let is_last = group.commit_tries >= TRIES_MAX;
            // A commit names the stream's id: the offset of a stream that has been deleted and made again is not valid
            // in the new one.
            let names: Vec<&str> = group.ids.keys().map(|name| &**name).collect();
            // A server that fails to answer this look-up fails to answer the commit, too, which reports it.
            let _ = self.client.look_up(&names).await;
            let is_same = |place: &TopicPartition| {
                let now = self.client.known_topic(&place.topic);
                now.is_none_or(|now| group.ids.get(&place.topic) == Some(&now.id))
            };
            offsets.retain(|place, _| is_same(place));
            if offsets.is_empty() {
                break;
            }
            let coordinator = self.client.coordinator(&group.group).await;
            let request = commit_request(
                &group.group,
                &group.member,
                group.epoch(),
                &offsets,
                &self.epochs,
            );
            let result = match coordinator {
                Ok(coordinator) => commit(&coordinator.ask(request).await, &group.group),
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => group.committed.append(&mut offsets),
                Err(error) if !is_last && may_pass(&error) => {
                    sleep(self.client.config().backoff).await;
                }
                Err(error) => {
                    group.commit_tries = 0;
                    return Err(error);
                }
            }
        }
        group.commit_tries = 0;
        Ok(())
    }

    /// Takes over the group's assignment, and commits when a commit is due.
    pub(super) async fn follow_group(&mut self) -> Result<(), ClientError> {
        let Some(group) = &mut self.group else {
            return Ok(());
        };
        let news = group.news()?;
        let commits = group.takes_commit() || news.is_some() && group.commits_by_itself();
        if commits && !news.as_ref().is_some_and(|news| news.is_lost) {
            // Records without a commit are delivered again, which is no reason to stop.
            let _ = self.commit_positions().await;
        }
        let Some(news) = news else {
            return Ok(());
        };
        match self.find(&news).await {
            Ok(found) => {
                self.take_over(news, found);
                Ok(())
            }
            Err(error) => self.lost(error).await,
        }
    }

    async fn find(&mut self, news: &News) -> Result<Found, ClientError> {
        let Some(group) = &mut self.group else {
            return Err(ClientError::Closed);
        };
        let search = || {
            let known = self.positions.keys().filter(|_| !news.is_lost);
            let search = Search {
                client: self.client.clone(),
                config: self.config.clone(),
                group: Arc::clone(&group.group),
                topics: group.topics.clone(),
                known: known.cloned().collect(),
                ids: group.ids.clone(),
            };
            search.start(news)
        };
        let begun = group.searching.take();
        let begun = begun.filter(|searching| searching.is_about(news));
        let begun = begun.unwrap_or_else(search);
        let found = group.searching.insert(begun).found().await;
        group.searching = None;
        found
    }

    fn take_over(&mut self, news: News, found: Found) {
        self.stop_fetching();
        let Some(group) = &mut self.group else {
            return;
        };
        if news.is_lost {
            self.positions.clear();
            self.epochs.clear();
            group.committed.clear();
        }
        let Found {
            places,
            ids,
            starts,
            epochs,
        } = found;
        let is_still_read =
            |place: &TopicPartition| places.contains(place) && !starts.contains_key(place);
        self.positions.retain(|place, _| is_still_read(place));
        self.epochs.retain(|place, _| is_still_read(place));
        group.committed.retain(|place, _| is_still_read(place));
        self.positions.extend(starts);
        let epochs = epochs.into_iter().filter_map(|(place, epoch)| {
            let id = *ids.get(&place.topic)?;
            Some((place, (id, epoch)))
        });
        self.epochs.extend(epochs);
        group.ids = ids;
        group.follow(news);
    }

    /// Ends the consumer: commits, if it commits automatically, and leaves the group.
    ///
    /// # Errors
    /// When the commit or the request to leave fails; the group then removes the member when its session times out.
    pub async fn close(mut self) -> Result<(), ClientError> {
        self.settle();
        let commits = self
            .group
            .as_ref()
            .is_some_and(|group| group.commits_by_itself());
        let committed = match commits {
            true => self.commit_positions().await,
            false => Ok(()),
        };
        if let Some(group) = &self.group {
            group.leave(&self.client).await?;
        }
        committed
    }
}

fn commit_request(
    group: &str,
    member: &StrBytes,
    epoch: i32,
    offsets: &BTreeMap<TopicPartition, Offset>,
    leader_epochs: &HashMap<TopicPartition, (Uuid, i32)>,
) -> OffsetCommitRequest {
    let mut topics: Vec<OffsetCommitRequestTopic> = Vec::new();
    for (place, Offset(next)) in offsets {
        let leader_epoch = leader_epochs.get(place).map_or(-1, |(_, epoch)| *epoch);
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(place.partition)
            .with_committed_offset(i64::try_from(*next).unwrap_or(i64::MAX))
            .with_committed_leader_epoch(leader_epoch);
        match topics.last_mut() {
            Some(topic) if topic.name.as_str() == &*place.topic => topic.partitions.push(partition),
            _ => topics.push(
                OffsetCommitRequestTopic::default()
                    .with_name(topic_name(&place.topic))
                    .with_partitions(vec![partition]),
            ),
        }
    }
    OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(member.clone())
        .with_generation_id_or_member_epoch(epoch)
        .with_topics(topics)
}

fn commit(
    answer: &Result<millstream_wire::messages::OffsetCommitResponse, ClientError>,
    group: &str,
) -> Result<(), ClientError> {
    let answer = answer.as_ref().map_err(ClientError::clone)?;
    for topic in &answer.topics {
        for partition in &topic.partitions {
            let index = partition.partition_index;
            check_commit(partition.error_code, group, &topic.name, index)?;
        }
    }
    Ok(())
}

/// Returns whether a commit may ignore the error: the epoch may have changed, which the next heartbeat shows, or the
/// stream is gone, and its offsets with it.
fn may_pass(error: &ClientError) -> bool {
    let is_stale = error.response_error() == Some(ResponseError::StaleMemberEpoch);
    is_stale || error.is_retriable() && !error.is_unknown_stream()
}

impl Client {
    /// Returns the offsets that a group has committed, without the partitions that have none.
    ///
    /// # Errors
    /// When the group's coordinator does not answer or refuses.
    pub async fn committed(
        &self,
        group: &str,
        places: &[TopicPartition],
    ) -> Result<HashMap<TopicPartition, Offset>, ClientError> {
        Ok(self.committed_of(group, places).await?.offsets)
    }

    pub(super) async fn committed_of(
        &self,
        group: &str,
        places: &[TopicPartition],
    ) -> Result<GroupOffsets, ClientError> {
        let mut topics: BTreeMap<&Arc<str>, Vec<i32>> = BTreeMap::new();
        for place in places {
            topics
                .entry(&place.topic)
                .or_default()
                .push(place.partition);
        }
        let topics = topics.into_iter().map(|(name, partitions)| {
            OffsetFetchRequestTopics::default()
                .with_name(topic_name(name))
                .with_partition_indexes(partitions)
        });
        self.fetch_offsets(group, Some(topics.collect()), true)
            .await
    }

    /// Returns all offsets that a group has committed.
    ///
    /// # Errors
    /// When the group's coordinator does not answer or refuses.
    pub async fn all_committed(
        &self,
        group: &str,
    ) -> Result<HashMap<TopicPartition, Offset>, ClientError> {
        Ok(self.fetch_offsets(group, None, true).await?.offsets)
    }

    /// Returns all offsets that a group has committed, with their metadata, without those of open transactions.
    ///
    /// # Errors
    /// When the group's coordinator does not answer or refuses.
    pub async fn group_offsets(&self, group: &str) -> Result<GroupOffsets, ClientError> {
        self.fetch_offsets(group, None, false).await
    }

    async fn fetch_offsets(
        &self,
        group: &str,
        topics: Option<Vec<OffsetFetchRequestTopics>>,
        require_stable: bool,
    ) -> Result<GroupOffsets, ClientError> {
        let asked = OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(topics);
        let request = OffsetFetchRequest::default()
            .with_groups(vec![asked])
            .with_require_stable(require_stable);
        let answer = self.coordinator(group).await?.ask(request).await?;
        let mut found = GroupOffsets::default();
        for answered in answer.groups {
            ClientError::check(answered.error_code, None, format!("group {group}"))?;
            for topic in answered.topics {
                let name: Arc<str> = topic.name.as_str().into();
                for partition in topic.partitions {
                    let index = partition.partition_index;
                    let what = format!("offset of group {group} in partition {index} of {name}");
                    ClientError::check(partition.error_code, None, what)?;
                    let place = TopicPartition {
                        topic: Arc::clone(&name),
                        partition: index,
                    };
                    if let Ok(offset) = u64::try_from(partition.committed_offset) {
                        if let Some(text) = partition.metadata.filter(|text| !text.is_empty()) {
                            found.metadata.insert(place.clone(), text.to_string());
                        }
                        if partition.committed_leader_epoch >= 0 {
                            let epoch = partition.committed_leader_epoch;
                            found.leader_epochs.insert(place.clone(), epoch);
                        }
                        found.offsets.insert(place, Offset(offset));
                    }
                }
            }
        }
        Ok(found)
    }
}
