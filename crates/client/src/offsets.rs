//! Looks up offsets of partitions.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_base::{Offset, Timestamp};
use millstream_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use millstream_wire::messages::{BrokerId, ListOffsetsRequest, OffsetForLeaderEpochRequest};
use tokio::time::{Instant, sleep};

use crate::client::{Client, topic_name};
use crate::error::ClientError;

/// The values that request the end and the beginning in place of a time.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// A partition of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The stream's name.
    pub topic: Arc<str>,
    /// The index of the partition.
    pub partition: i32,
}

/// A position in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The first record.
    Earliest,
    /// The end, behind the last record.
    Latest,
    /// The record of this offset.
    At(Offset),
    /// The first record that is not older; the end if all are.
    Since(Timestamp),
}

/// The records of transactions that a reader sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Only records of committed transactions.
    #[default]
    Committed,
    /// All records, also of open and aborted transactions.
    Uncommitted,
}

impl Isolation {
    pub(crate) fn level(self) -> i8 {
        match self {
            Isolation::Uncommitted => 0,
            Isolation::Committed => 1,
        }
    }
}

/// Checks the error code of a committed offset.
pub(crate) fn check_commit(
    code: i16,
    group: &str,
    topic: &str,
    partition: i32,
) -> Result<(), ClientError> {
    let what = format!("offset of group {group} in partition {partition} of {topic}");
    ClientError::check(code, None, what)
}

impl Client {
    /// Returns the offsets of positions. Waits for partitions without a leader, since new partitions may have none yet.
    ///
    /// # Errors
    /// When the partition does not exist, or it has no leader that answers within the client's `request_timeout`.
    pub async fn offsets(
        &self,
        places: &[(TopicPartition, Start)],
        isolation: Isolation,
    ) -> Result<HashMap<TopicPartition, Offset>, ClientError> {
        let started_at = Instant::now();
        loop {
            match self.offsets_now(places, isolation).await {
                Err(error)
                    if error.is_of_leaders()
                        && started_at.elapsed() < self.config().request_timeout => {}
                result => return result,
            }
            sleep(self.config().backoff).await;
            let mut topics: Vec<&str> = places.iter().map(|(place, _)| &*place.topic).collect();
            topics.sort_unstable();
            topics.dedup();
            // The next round asks again for a server that cannot be reached now.
            let _ = self.refresh(&topics).await;
        }
    }

    /// Returns the ends of the records of leader epochs (KIP-320): a reader in this epoch that has passed the end has read
    /// records that the server has lost since. Leaves out partitions whose server does not know the epoch.
    ///
    /// # Errors
    /// When a partition does not exist, or its leader does not answer, or knows a newer leader epoch than this client: look
    /// up the stream [again](Self::refresh).
    pub async fn epoch_ends(
        &self,
        epochs: &[(TopicPartition, i32)],
    ) -> Result<HashMap<TopicPartition, Offset>, ClientError> {
        let mut by_leader: HashMap<i32, Vec<OffsetForLeaderTopic>> = HashMap::new();
        for (place, epoch) in epochs {
            let leader = self.leader_of(place).await?;
            let current = self.topic(&place.topic).await?.epoch(place.partition);
            let partition = OffsetForLeaderPartition::default()
                .with_partition(place.partition)
                .with_current_leader_epoch(current)
                .with_leader_epoch(*epoch);
            by_leader.entry(leader).or_default().push(
                OffsetForLeaderTopic::default()
                    .with_topic(topic_name(&place.topic))
                    .with_partitions(vec![partition]),
            );
        }
        let mut found = HashMap::new();
        for (leader, topics) in by_leader {
            let request = OffsetForLeaderEpochRequest::default()
                .with_replica_id(BrokerId(-1))
                .with_topics(topics);
            let answer = self.server(leader).await?.ask(request).await?;
            for topic in answer.topics {
                for partition in topic.partitions {
                    let place = TopicPartition {
                        topic: topic.topic.as_str().into(),
                        partition: partition.partition,
                    };
                    let what =
                        format!("epochs of partition {} of {}", place.partition, place.topic);
                    ClientError::check(partition.error_code, None, what)?;
                    if let Ok(end) = u64::try_from(partition.end_offset) {
                        found.insert(place, Offset(end));
                    }
                }
            }
        }
        Ok(found)
    }

    async fn offsets_now(
        &self,
        places: &[(TopicPartition, Start)],
        isolation: Isolation,
    ) -> Result<HashMap<TopicPartition, Offset>, ClientError> {
        let mut found = HashMap::new();
        let mut asked: Vec<(&TopicPartition, i64)> = Vec::new();
        let mut ends: Vec<(&TopicPartition, i64)> = Vec::new();
        for (place, start) in places {
            match start {
                Start::At(offset) => {
                    found.insert(place.clone(), *offset);
                }
                Start::Earliest => asked.push((place, EARLIEST)),
                Start::Latest => asked.push((place, LATEST)),
                Start::Since(Timestamp(time)) => {
                    ends.push((place, LATEST));
                    asked.push((place, (*time).max(0)));
                }
            }
        }
        // The ends hold where all records are older than the time. Ends from after that answer would skip the records that
        // were appended in between.
        self.list(&ends, isolation, &mut found).await?;
        self.list(&asked, isolation, &mut found).await?;
        Ok(found)
    }

    /// Asks the leaders. Finds nothing in partitions without a record as new as the requested time.
    async fn list(
        &self,
        asked: &[(&TopicPartition, i64)],
        isolation: Isolation,
        found: &mut HashMap<TopicPartition, Offset>,
    ) -> Result<(), ClientError> {
        let mut by_leader: HashMap<i32, HashMap<&Arc<str>, Vec<ListOffsetsPartition>>> =
            HashMap::new();
        for (place, time) in asked {
            let leader = self.leader_of(place).await?;
            let topics = by_leader.entry(leader).or_default();
            topics.entry(&place.topic).or_default().push(
                ListOffsetsPartition::default()
                    .with_partition_index(place.partition)
                    .with_timestamp(*time),
            );
        }
        for (leader, topics) in by_leader {
            let topics = topics.into_iter().map(|(name, partitions)| {
                ListOffsetsTopic::default()
                    .with_name(topic_name(name))
                    .with_partitions(partitions)
            });
            let request = ListOffsetsRequest::default()
                .with_replica_id(BrokerId(-1))
                .with_isolation_level(isolation.level())
                .with_topics(topics.collect());
            let answer = self.server(leader).await?.ask(request).await?;
            for topic in answer.topics {
                let name: Arc<str> = topic.name.as_str().into();
                for partition in topic.partitions {
                    let index = partition.partition_index;
                    let what = format!("offsets of partition {index} of {name}");
                    ClientError::check(partition.error_code, None, what)?;
                    let place = TopicPartition {
                        topic: Arc::clone(&name),
                        partition: index,
                    };
                    if let Ok(offset) = u64::try_from(partition.offset) {
                        found.insert(place, Offset(offset));
                    }
                }
            }
        }
        Ok(())
    }
}
