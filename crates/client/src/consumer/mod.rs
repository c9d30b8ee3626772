//! The consumer: reads the partitions that the user chooses or a group assigns.
//!
//! For each server that leads some of its partitions, a task fetches ahead (`fetcher.rs`) or receives pushed records
//! (`pusher.rs`), up to [`ConsumerConfig::prefetch_bytes`]. [`Consumer::next`] returns the records. When partitions
//! or their leaders change, all fetching starts anew behind the records that were returned.
//!
//! In a group, a further task keeps the member alive and receives its assignment (`group.rs`). The consumer follows the
//! assignment at its next call of [`Consumer::next`], between records, so that it does not lose a partition while it
//! works on it.

mod commit;
mod config;
mod damage;
mod delivered;
mod fetched;
mod fetcher;
mod group;
mod growth;
mod pauses;
mod polling;
mod pusher;
mod search;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_base::Offset;
use millstream_record::Filter;
use millstream_wire::{ResponseError, Uuid};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

pub use self::config::{ConsumerConfig, DeliveryMode, OnDamage, Reset, SkippedRecords};
use self::delivered::DeliveredRecords;
pub use self::fetched::{DeliveryPath, Fetched};
use self::fetcher::{Event, Fetcher, ROOM_UNIT};
use self::group::Membership;
use self::growth::Growth;
use self::pusher::Pusher;
use crate::client::Client;
use crate::error::ClientError;
use crate::offsets::{Isolation, Start, TopicPartition};
use crate::push::Torn;

/// The capacity of the queue of events; a memory limit bounds their content.
const EVENTS_MAX: usize = 1024;

/// For this time the consumer avoids shared memory after the user was too slow for it.
const SHARED_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Reads records.
#[derive(Debug)]
pub struct Consumer {
    /// Sends the requests that servers answer at once.
    client: Client,
    /// Sends the requests that take long.
    fetching_client: Client,
    config: ConsumerConfig,
    /// Its partitions, each with the first offset that is not done.
    positions: BTreeMap<TopicPartition, Offset>,
    filter: Option<Arc<Filter>>,
    delivered: DeliveredRecords,
    /// The last time that the server took its memory back since the user was too slow.
    stalled_at: Option<Instant>,
    fetching: Option<Fetching>,
    room: Arc<Semaphore>,
    is_alive: Arc<AtomicBool>,
    lost: Option<Lost>,
    group: Option<Membership>,
    growth: Option<Growth>,
    /// The partitions that were added or resumed since fetching began.
    unfetched: BTreeSet<TopicPartition>,
    /// The paused partitions. Watched by the fetchers.
    paused: watch::Sender<BTreeSet<TopicPartition>>,
    /// The ids of its streams; a new stream of the same name has another id.
    ids: HashMap<Arc<str>, Uuid>,
    /// The stream's id and the leader epoch in which each position was last valid.
    epochs: HashMap<TopicPartition, (Uuid, i32)>,
    /// Whether leaders and epochs may have changed since the last look-up.
    is_outdated: bool,
    /// The error with which all later calls fail.
    gone: Option<ClientError>,
}

/// A failure that lasts.
#[derive(Debug, Clone, Copy)]
struct Lost {
    since: Instant,
    /// Whether servers answer, but do not know a stream.
    is_unknown: bool,
}

/// Partitions, and the next offset of each.
type Positions = HashMap<TopicPartition, Offset>;

#[derive(Debug)]
struct Fetching {
    events: mpsc::Receiver<Event>,
    /// The sender for tasks that are added later.
    sender: mpsc::Sender<Event>,
    /// The tasks, which end when this is dropped.
    tasks: JoinSet<()>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Event")
    }
}

impl Consumer {
    /// Returns a consumer of these partitions, from these positions on.
    ///
    /// # Errors
    /// When a partition does not exist, or no server answers.
    pub async fn assigned(
        client: &Client,
        config: ConsumerConfig,
        places: &[(TopicPartition, Start)],
    ) -> Result<Consumer, ClientError> {
        let mut consumer = Consumer::new(client, config);
        let found = client.offsets(places, consumer.config.isolation).await?;
        consumer.positions = found.into_iter().collect();
        Ok(consumer)
    }

    /// Returns a member of a group that shares the partitions of streams. It stays a member until it is closed or
    /// dropped, as long as [`next`](Self::next) is called at least every
    /// [`poll_interval_max`](ConsumerConfig::poll_interval_max). Needs a broker with the group protocol of KIP-848, as
    /// all have since Kafka 4.0.
    ///
    /// # Errors
    /// When the system provides no random bytes for the member's id.
    pub fn in_group(
        client: &Client,
        config: ConsumerConfig,
        group: &str,
        topics: &[&str],
    ) -> Result<Consumer, ClientError> {
        let mut consumer = Consumer::new(client, config);
        let membership = Membership::join(&consumer.client, group, topics, &consumer.config)?;
        consumer.group = Some(membership);
        Ok(consumer)
    }

    fn new(client: &Client, config: ConsumerConfig) -> Consumer {
        let units = config.prefetch_bytes.div_ceil(ROOM_UNIT);
        Consumer {
            client: client.separate(),
            fetching_client: client.separate(),
            room: Arc::new(Semaphore::new(units.clamp(1, Semaphore::MAX_PERMITS))),
            filter: config.filter.clone().map(Arc::new),
            config,
            positions: BTreeMap::new(),
            delivered: DeliveredRecords::default(),
            stalled_at: None,
            fetching: None,
            is_alive: Arc::default(),
            lost: None,
            group: None,
            growth: None,
            unfetched: BTreeSet::new(),
            paused: watch::Sender::default(),
            ids: HashMap::new(),
            epochs: HashMap::new(),
            is_outdated: false,
            gone: None,
        }
    }

    /// Returns the consumer's partitions, each with the first offset that was not returned.
    pub fn positions(&self) -> BTreeMap<TopicPartition, Offset> {
        let mut positions = self.positions.clone();
        self.delivered.seen_from(&mut positions);
        positions
    }

    /// Waits for records. All records returned earlier count as done from here on. Dropping the future loses nothing;
    /// call it again.
    ///
    /// # Errors
    /// When an offset no longer exists, the server refuses a partition, a stream is gone for the client's
    /// `unknown_timeout`, or no server answers for its `request_timeout`. The next call tries again. When a crash of the
    /// server took back records that were read, the consumer continues with those in their place; without
    /// [`reset`](ConsumerConfig::reset), the call fails. When a stream was deleted and made again, the consumer continues
    /// in the new one at [`reset`](ConsumerConfig::reset); without that, or if it [follows](Self::follow) the stream, this
    /// and all later calls fail with [`ClientError::MadeAgain`]. A member of a group continues at the beginning of the new
    /// stream, and may receive some of its records twice.
    pub async fn next(&mut self) -> Result<Fetched, ClientError> {
        let _poll = self.group.as_ref().map(Membership::poll);
        self.settle();
        loop {
            if let Some(gone) = &self.gone {
                return Err(gone.clone());
            }
            self.follow_group().await?;
            self.follow_growth().await?;
            if self.fetching.is_none() {
                match self.begin_fetching().await {
                    Ok(fetching) => self.fetching = Some(fetching),
                    Err(error) => self.lost(error).await?,
                }
                continue;
            }
            if let Some(event) = self.event().await {
                match event {
                    Event::Fetched(fetched) => match fetched.end_of_subscription() {
                        None => {
                            self.delivered.add(&fetched);
                            return Ok(fetched);
                        }
                        // Not later: a notice of progress behind them would move the position past these records.
                        Some(error) => self.lost(error).await?,
                    },
                    Event::OutOfRange(place, earliest) => self.reset(place, earliest).await?,
                    Event::Lost(error) => self.lost(error).await?,
                }
            }
        }
    }

    /// Returns the next event of a fetcher; `None` when the group has a change or needs a report, or the stream has
    /// grown.
    async fn event(&mut self) -> Option<Event> {
        let fetching = self.fetching.as_mut()?;
        let group = self.group.as_mut();
        let growth = self.growth.as_mut();
        let commit_at = group.as_ref().and_then(|group| group.commit_at());
        tokio::select! {
            event = fetching.events.recv(), if !self.positions.is_empty() => event,
            () = async {
                match group {
                    Some(group) => group.changed().await,
                    None => std::future::pending().await,
                }
            } => None,
            () = async {
                match growth {
                    Some(growth) => growth.wait().await,
                    None => std::future::pending().await,
                }
            } => None,
            () = async {
                match commit_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            } => None,
        }
    }

    /// Counts the records returned as done, unless they could not be read.
    fn settle(&mut self) {
        match self.delivered.settle(&mut self.positions) {
            None => return,
            Some(Torn::Ended) => {}
            Some(Torn::Stalled) => self.stalled_at = Some(Instant::now()),
        }
        self.stop_fetching();
    }

    /// Has the next call begin to fetch anew. The events that are dropped may include the end of a server whose next run has
    /// lost records, or another stream of the name; only fresh metadata tells.
    fn stop_fetching(&mut self) {
        self.fetching = None;
        self.is_outdated = true;
    }

    /// Sets the position inside the records that were returned last, for a user that stops before their end.
    pub fn mark(&mut self, place: &TopicPartition, next: Offset) {
        if self.delivered.forget(place) {
            self.stop_fetching();
        }
        if let Some(position) = self.positions.get_mut(place) {
            *position = next;
        }
    }

    async fn begin_fetching(&mut self) -> Result<Fetching, ClientError> {
        self.check_positions().await?;
        let by_server = self.by_server(&self.wanted()).await?;
        self.unfetched.clear();
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let mut fetching = Fetching {
            events,
            sender,
            tasks: JoinSet::new(),
        };
        self.fetch(by_server, &mut fetching);
        Ok(fetching)
    }

    /// Groups positions by the server that leads the partition.
    async fn by_server(
        &self,
        positions: &BTreeMap<TopicPartition, Offset>,
    ) -> Result<HashMap<i32, Positions>, ClientError> {
        let mut by_server: HashMap<i32, Positions> = HashMap::new();
        for (place, next) in positions {
            let server = self.fetching_client.leader_of(place).await?;
            let positions = by_server.entry(server).or_default();
            positions.insert(place.clone(), *next);
        }
        Ok(by_server)
    }

    /// Starts a task for each server.
    fn fetch(&self, by_server: HashMap<i32, Positions>, fetching: &mut Fetching) {
        for (server, positions) in by_server {
            let mut order: Vec<TopicPartition> = positions.keys().cloned().collect();
            order.sort();
            let epochs = order.iter().filter_map(|place| {
                let (_, epoch) = self.epochs.get(place)?;
                Some((place.clone(), *epoch))
            });
            let fetcher = Fetcher {
                client: self.fetching_client.clone(),
                server,
                config: self.config.clone(),
                filter: self.filter.clone(),
                positions,
                epochs: epochs.collect(),
                order,
                paused: self.paused.subscribe(),
                room: Arc::clone(&self.room),
                events: fetching.sender.clone(),
                is_alive: Arc::clone(&self.is_alive),
            };
            match self.is_pushed() {
                true => {
                    let may_share = self.may_share();
                    fetching.tasks.spawn(Pusher { fetcher, may_share }.run())
                }
                false => fetching.tasks.spawn(fetcher.run()),
            };
        }
    }

    async fn refresh(&mut self) -> Result<(), ClientError> {
        let mut topics: Vec<&str> = self.positions.keys().map(|place| &*place.topic).collect();
        topics.dedup();
        self.fetching_client.refresh(&topics).await?;
        self.is_outdated = false;
        Ok(())
    }

    /// Moves the positions of streams that were made again, and those behind records that a crash took back.
    async fn check_positions(&mut self) -> Result<(), ClientError> {
        if self.is_outdated {
            self.refresh().await?;
        }
        self.check_ids().await?;
        self.check_epochs().await
    }

    /// Notes the ids of the streams. A position is void in a stream that was made again; a group tracks this for its
    /// own positions.
    async fn check_ids(&mut self) -> Result<(), ClientError> {
        if self.group.is_some() {
            return Ok(());
        }
        let mut made_again = Vec::new();
        for place in self.positions.keys() {
            let now = self.fetching_client.topic(&place.topic).await?;
            let id = self.ids.entry(Arc::clone(&place.topic)).or_insert(now.id);
            if *id != now.id {
                made_again.push((place.clone(), now.id));
            }
        }
        let Some((place, _)) = made_again.first() else {
            return Ok(());
        };
        let Some(reset) = self.config.reset.filter(|_| self.growth.is_none()) else {
            let stream = place.topic.to_string();
            let gone = ClientError::MadeAgain { stream };
            return Err(self.gone.insert(gone).clone());
        };
        let places = made_again.iter().map(|(place, _)| place.clone());
        let starts: Vec<_> = places.map(|place| (place, reset.into())).collect();
        let found = self.client.offsets(&starts, self.config.isolation).await?;
        self.positions.extend(found);
        let ids = made_again.into_iter();
        self.ids.extend(ids.map(|(place, id)| (place.topic, id)));
        Ok(())
    }

    /// Checks the positions in partitions with a new leader epoch: the records before them may be lost (KIP-320). Then
    /// other records take their offsets, and the position moves back to those.
    async fn check_epochs(&mut self) -> Result<(), ClientError> {
        let mut asked = Vec::new();
        let mut present = Vec::new();
        for place in self.positions.keys() {
            let topic = self.fetching_client.topic(&place.topic).await?;
            let now = (topic.id, topic.epoch(place.partition));
            let valid = self.epochs.entry(place.clone()).or_insert(now);
            if valid.0 != now.0 || valid.1 < 0 {
                *valid = now;
            }
            if valid.1 < now.1 {
                asked.push((place.clone(), valid.1));
                present.push(now);
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let ends = self.fetching_client.epoch_ends(&asked).await?;
        for (place, now) in asked.into_iter().map(|(place, _)| place).zip(present) {
            if let Some(position) = self.positions.get_mut(&place)
                && let Some(end) = ends.get(&place).copied()
                && end < *position
            {
                let lost = format!("a crash of the server took back records from offset {end} on");
                let what = format!("partition {} of {}", place.partition, place.topic);
                if self.config.reset.is_none() {
                    return Err(ClientError::Refused {
                        what,
                        error: ResponseError::OffsetOutOfRange,
                        message: Some(format!("offset {position} is not there: {lost}")),
                    });
                }
                tracing::warn!("{what}: {lost}; reading goes on there");
                *position = end;
            }
            self.epochs.insert(place, now);
        }
        Ok(())
    }

    /// Returns whether servers push: they push only committed records.
    fn is_pushed(&self) -> bool {
        let ConsumerConfig {
            delivery,
            isolation,
            ..
        } = self.config;
        delivery == DeliveryMode::Push && isolation == Isolation::Committed
    }

    /// Returns whether to share memory; a user that was too slow for it reads over the network, without a time limit.
    fn may_share(&self) -> bool {
        self.stalled_at
            .is_none_or(|stalled_at| stalled_at.elapsed() >= SHARED_AGAIN_AFTER)
    }

    /// Starts fetching anew after a failure, unless that cannot help.
    async fn lost(&mut self, error: ClientError) -> Result<(), ClientError> {
        self.fetching = None;
        if self.skip_damage(&error).await? {
            return Ok(());
        }
        if let ClientError::Refused {
            what,
            error: error @ ResponseError::CorruptMessage,
            message,
        } = error
        {
            let hint = || {
                "the stored records there are damaged; `millstream repair` lists all damage"
                    .to_owned()
            };
            return Err(ClientError::Refused {
                what,
                error,
                message: Some(message.unwrap_or_else(hint)),
            });
        }
        if !error.is_retriable() {
            return Err(error);
        }
        if matches!(error, ClientError::TakenBack { .. }) {
            self.stalled_at = Some(Instant::now());
        }
        let is_unknown = error.is_unknown_stream();
        let is_other = self.lost.is_some_and(|lost| lost.is_unknown != is_unknown);
        if self.is_alive.swap(false, Ordering::Relaxed) || is_other {
            self.lost = None;
        }
        let lost = self.lost.get_or_insert_with(|| Lost {
            since: Instant::now(),
            is_unknown,
        });
        let config = self.client.config();
        let retry_for = match is_unknown {
            true => config.unknown_timeout,
            false => config.request_timeout,
        };
        if lost.since.elapsed() >= retry_for {
            self.lost = None;
            return Err(error);
        }
        self.is_outdated = true;
        sleep(config.backoff).await;
        Ok(())
    }

    async fn reset(
        &mut self,
        place: TopicPartition,
        earliest: Option<Offset>,
    ) -> Result<(), ClientError> {
        self.fetching = None;
        let Some(reset) = self.config.reset else {
            let next = self.positions.get(&place).copied().unwrap_or_default();
            let earliest = earliest.map(|earliest| format!("; the earliest is {earliest}"));
            return Err(ClientError::Refused {
                what: format!("partition {} of {}", place.partition, place.topic),
                error: ResponseError::OffsetOutOfRange,
                message: Some(format!(
                    "offset {next} is not there{}",
                    earliest.unwrap_or_default()
                )),
            });
        };
        let isolation = self.config.isolation;
        let found = self
            .client
            .offsets(&[(place, reset.into())], isolation)
            .await;
        match found {
            Ok(found) => {
                self.epochs.retain(|place, _| !found.contains_key(place));
                self.positions.extend(found);
                Ok(())
            }
            Err(error) => self.lost(error).await,
        }
    }
}
