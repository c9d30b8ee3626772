//! Finds the positions at which a member begins in its assigned partitions, in a task of its own,
//! which continues when the call that waits for it is dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use millstream_base::Offset;
use millstream_wire::{ResponseError, Uuid};
use tokio::task::JoinHandle;

use super::group::{News, Partitions};
use super::{ConsumerConfig, Reset};
use crate::client::Client;
use crate::error::ClientError;
use crate::offsets::{Start, TopicPartition};

/// A search in progress.
#[derive(Debug)]
pub(super) struct Searching {
    /// The version of the assignment that it serves.
    version: u64,
    task: JoinHandle<Result<Found, ClientError>>,
}

/// The member's new partitions.
#[derive(Debug)]
pub(super) struct Found {
    pub places: BTreeSet<TopicPartition>,
    /// The ids of their streams.
    pub ids: BTreeMap<Arc<str>, Uuid>,
    /// The positions in those that it did not have.
    pub starts: HashMap<TopicPartition, Offset>,
    /// The leader epochs in which they were committed, as far as they are known.
    pub epochs: HashMap<TopicPartition, i32>,
}

/// The inputs of a search.
pub(super) struct Search {
    pub client: Client,
    pub config: ConsumerConfig,
    pub group: Arc<str>,
    pub topics: Vec<Arc<str>>,
    /// The partitions that the member already has, of the streams with these ids.
    pub known: BTreeSet<TopicPartition>,
    pub ids: BTreeMap<Arc<str>, Uuid>,
}

impl Drop for Searching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Searching {
    pub fn is_about(&self, news: &News) -> bool {
        self.version == news.version
    }

    /// Waits for the result; if the future is dropped, it may be called again.
    pub async fn found(&mut self) -> Result<Found, ClientError> {
        let found = (&mut self.task).await;
        found.unwrap_or(Err(ClientError::Closed))
    }
}

impl Search {
    pub fn start(self, news: &News) -> Searching {
        let partitions = news.partitions.clone();
        Searching {
            version: news.version,
            task: tokio::spawn(self.run(partitions)),
        }
    }

    async fn run(self, partitions: Partitions) -> Result<Found, ClientError> {
        let (places, ids) = self.names(&partitions).await?;
        // A stream that was made again has other records.
        let is_known = |place: &TopicPartition| {
            self.known.contains(place) && self.ids.get(&place.topic) == ids.get(&place.topic)
        };
        let new = places.iter().filter(|place| !is_known(place)).cloned();
        let new: Vec<TopicPartition> = new.collect();
        if new.is_empty() {
            return Ok(Found {
                places,
                ids,
                starts: HashMap::new(),
                epochs: HashMap::new(),
            });
        }
        let committed = self.client.committed_of(&self.group, &new).await?;
        let starts = new.into_iter().map(|place| {
            let start = match committed.offsets.get(&place) {
                Some(offset) => Start::At(*offset),
                None => self.start_without(&place)?.into(),
            };
            Ok((place, start))
        });
        let starts: Vec<_> = starts.collect::<Result<_, ClientError>>()?;
        let starts = self.client.offsets(&starts, self.config.isolation).await?;
        Ok(Found {
            places,
            ids,
            starts,
            epochs: committed.leader_epochs,
        })
    }

    /// Returns the position in a partition without an offset of the group.
    fn start_without(&self, place: &TopicPartition) -> Result<Reset, ClientError> {
        let TopicPartition { topic, partition } = place;
        self.config.reset.ok_or_else(|| ClientError::Refused {
            what: format!("group {}", self.group),
            error: ResponseError::OffsetOutOfRange,
            message: Some(format!(
                "there is no offset of partition {partition} of {topic}"
            )),
        })
    }

    /// Returns the partitions by name, and the ids of their streams.
    async fn names(
        &self,
        partitions: &Partitions,
    ) -> Result<(BTreeSet<TopicPartition>, BTreeMap<Arc<str>, Uuid>), ClientError> {
        let names: Vec<&str> = self.topics.iter().map(|topic| &**topic).collect();
        let mut found = BTreeSet::new();
        let mut ids = BTreeMap::new();
        let mut is_refreshed = false;
        for (id, partitions) in partitions {
            let topic = loop {
                let known = names
                    .iter()
                    .filter_map(|name| self.client.known_topic(name));
                match known.into_iter().find(|topic| topic.id == *id) {
                    Some(topic) => break topic,
                    None if is_refreshed => {
                        return Err(ClientError::NoLeader {
                            what: format!("the stream with id {id}"),
                        });
                    }
                    None => {
                        // Streams that do not exist yet are no error.
                        let _ = self.client.refresh(&names).await;
                        is_refreshed = true;
                    }
                }
            };
            ids.insert(Arc::clone(&topic.name), *id);
            found.extend(partitions.iter().map(|partition| TopicPartition {
                topic: Arc::clone(&topic.name),
                partition: *partition,
            }));
        }
        Ok((found, ids))
    }
}
