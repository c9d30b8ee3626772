//! Partitions that are added to a stream while a consumer reads it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use millstream_base::Offset;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Consumer, Positions};
use crate::client::{Client, Topic};
use crate::error::ClientError;
use crate::offsets::{Isolation, Start, TopicPartition};

/// The interval at which a consumer looks up the partitions.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Findings that wait for the consumer's next call.
const FINDINGS_MAX: usize = 4;

/// Decides on a partition that was added.
type Accept = Box<dyn FnMut(&TopicPartition, Range<Offset>) -> bool + Send + Sync>;

/// Added partitions, each with the offsets of its records at that time.
type Added = Vec<(TopicPartition, Range<Offset>)>;

/// Follows the growth of a stream.
pub(super) struct Growth {
    accept: Accept,
    found: mpsc::Receiver<Result<Added, ClientError>>,
    /// A finding received from `found`, until the consumer takes it over.
    waiting: Option<Result<Added, ClientError>>,
    /// The task, which ends when this is dropped.
    _task: JoinSet<()>,
}

impl fmt::Debug for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Growth")
    }
}

impl Growth {
    /// Waits for a finding.
    pub async fn wait(&mut self) {
        match self.found.recv().await {
            Some(found) => self.waiting = Some(found),
            // The task has ended after an error, which the consumer has taken over.
            None => std::future::pending().await,
        }
    }

    fn take(&mut self) -> Option<Result<Added, ClientError>> {
        self.waiting.take().or_else(|| self.found.try_recv().ok())
    }
}

impl Consumer {
    /// Follows the growth of a stream: also reads the partitions that are added to those of `topic` from now on, from
    /// their beginning. The consumer looks for added partitions twice a second. It calls `accept` for each one with the
    /// offsets of its records, before it returns any record that it has fetched since; `accept` returns whether this
    /// consumer is to read the partition. A group finds added partitions by itself.
    pub fn follow(
        &mut self,
        topic: &Topic,
        accept: impl FnMut(&TopicPartition, Range<Offset>) -> bool + Send + Sync + 'static,
    ) {
        let (sender, found) = mpsc::channel(FINDINGS_MAX);
        let look = Look {
            client: self.client.clone(),
            isolation: self.config.isolation,
            topic: topic.clone(),
        };
        let mut task = JoinSet::new();
        task.spawn(look.run(sender));
        self.growth = Some(Growth {
            accept: Box::new(accept),
            found,
            waiting: None,
            _task: task,
        });
    }

    /// Takes over the added partitions. If the server pushes, they get a subscription beside the others: ending those
    /// would take away records that the user still holds in the server's memory. Fetches from one server take turns, so
    /// one fetcher serves all partitions.
    pub(super) async fn follow_growth(&mut self) -> Result<(), ClientError> {
        while let Some(growth) = &mut self.growth
            && let Some(found) = growth.take()
        {
            let added = found.map_err(|error| self.gone.insert(error).clone())?;
            for (place, held) in added {
                let begins_at = held.start;
                if (growth.accept)(&place, held) {
                    self.positions.insert(place.clone(), begins_at);
                    self.unfetched.insert(place);
                }
            }
        }
        if self.unfetched.is_empty() || self.fetching.is_none() {
            return Ok(());
        }
        if !self.is_pushed() {
            self.fetching = None;
            return Ok(());
        }
        let found = match self.is_history_new().await {
            // The others may have passed on records that are lost by now, so all begin anew.
            Ok(true) => {
                self.stop_fetching();
                return Ok(());
            }
            Ok(false) => self.by_server_of_unfetched().await,
            Err(error) => Err(error),
        };
        match found {
            Err(error) => self.lost(error).await,
            Ok(by_server) => {
                if let Some(mut fetching) = self.fetching.take() {
                    self.fetch(by_server, &mut fetching);
                    self.fetching = Some(fetching);
                }
                self.unfetched.clear();
                Ok(())
            }
        }
    }

    /// Asks for fresh metadata. Returns whether a stream was made again, or a server has lost records, since the positions were
    /// checked: the event that tells of it may not have come yet.
    async fn is_history_new(&mut self) -> Result<bool, ClientError> {
        self.refresh().await?;
        for (place, (id, epoch)) in &self.epochs {
            let topic = self.fetching_client.topic(&place.topic).await?;
            if topic.id != *id || topic.epoch(place.partition) > *epoch {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn by_server_of_unfetched(&mut self) -> Result<HashMap<i32, Positions>, ClientError> {
        // Notes the ids and epochs of added partitions.
        self.check_positions().await?;
        let places = self.unfetched.iter();
        let positions = places.filter_map(|it| Some((it.clone(), *self.positions.get(it)?)));
        self.by_server(&positions.collect()).await
    }
}

/// The task that looks for partitions.
struct Look {
    client: Client,
    isolation: Isolation,
    /// The topic as last seen.
    topic: Topic,
}

impl Look {
    /// Looks for partitions until the consumer is gone, or another stream has the name.
    async fn run(mut self, sender: mpsc::Sender<Result<Added, ClientError>>) {
        loop {
            sleep(LOOK_EVERY).await;
            let found = match self.added().await {
                Ok(added) if added.is_empty() => continue,
                Err(error) if !matches!(error, ClientError::MadeAgain { .. }) => {
                    // The consumer's own requests run into the same error, and report it.
                    tracing::debug!("cannot look for new partitions: {error}");
                    continue;
                }
                found => found,
            };
            let is_over = found.is_err();
            if sender.send(found).await.is_err() || is_over {
                return;
            }
        }
    }

    async fn added(&mut self) -> Result<Added, ClientError> {
        let name = &self.topic.name;
        self.client.refresh(&[name]).await?;
        let now = self.client.topic(name).await?;
        self.topic.check_same(&now)?;
        let places = now.partitions().skip(self.topic.leaders.len());
        let places: Vec<TopicPartition> = places.collect();
        let mut ends = [Vec::new(), Vec::new()];
        for (ends, start) in ends.iter_mut().zip([Start::Earliest, Start::Latest]) {
            let asked: Vec<_> = places.iter().map(|place| (place.clone(), start)).collect();
            let found = self.client.offsets(&asked, self.isolation).await?;
            let offset = |place| found.get(place).copied().unwrap_or_default();
            *ends = places.iter().map(offset).collect();
        }
        self.topic = Topic::clone(&now);
        let [firsts, ends] = ends;
        let held = firsts.into_iter().zip(ends);
        let held = held.map(|(first, end)| first..end);
        Ok(places.into_iter().zip(held).collect())
    }
}
