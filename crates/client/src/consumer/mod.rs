//! The consumer: records of partitions that are chosen, or that a group shares out.
//!
//! For each server that leads some of its partitions there is a task that fetches ahead
//! (`fetcher.rs`), or is sent what there is (`pusher.rs`), as far as [`ConsumerConfig::prefetch_bytes`] allows. What it brings is handed out by
//! [`Consumer::next`]. When partitions come or go, or their leader does, all fetching starts anew from
//! what was handed out.
//!
//! In a group, a further task keeps the member alive and is told what it is assigned (`group.rs`). The
//! consumer follows at its next call of [`Consumer::next`], between records, so that it does not lose a
//! partition while it is at work on it.

mod commit;
mod config;
mod damage;
mod fetched;
mod fetcher;
mod group;
mod growth;
mod handed;
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
pub use self::fetched::{DeliveryPath, Fetched};
use self::fetcher::{Event, Fetcher, ROOM_UNIT};
use self::group::Membership;
use self::growth::Growth;
use self::handed::HandedOut;
use self::pusher::Pusher;
use crate::client::Client;
use crate::error::ClientError;
use crate::offsets::{Isolation, Start, TopicPartition};
use crate::push::Torn;

/// Events that wait to be handed out: what they hold is bounded by memory.
const EVENTS_MAX: usize = 1024;

/// Memory is not shared for so long after the user was too slow for that.
const SHARED_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Reads records.
#[derive(Debug)]
pub struct Consumer {
    /// For all that is answered at once.
    client: Client,
    /// For what takes long.
    fetching_client: Client,
    config: ConsumerConfig,
    /// Its partitions, and the first offset of each that is not done.
    positions: BTreeMap<TopicPartition, Offset>,
    filter: Option<Arc<Filter>>,
    handed: HandedOut,
    /// When the server has taken its memory back last, since the user was too slow for that.
    stalled_at: Option<Instant>,
    fetching: Option<Fetching>,
    room: Arc<Semaphore>,
    is_alive: Arc<AtomicBool>,
    lost: Option<Lost>,
    group: Option<Membership>,
    growth: Option<Growth>,
    /// Of its partitions, those that were added, or are not paused any more, since fetching began.
    unfetched: BTreeMap<TopicPartition, Offset>,
    /// Partitions that are not read for now. Watched by the fetchers.
    paused: watch::Sender<BTreeSet<TopicPartition>>,
    /// What tells its streams from others of their names.
    ids: HashMap<Arc<str>, Uuid>,
    /// Why nothing comes any more.
    gone: Option<ClientError>,
}

/// What does not pass.
#[derive(Debug, Clone, Copy)]
struct Lost {
    since: Instant,
    /// Whether servers answer, and do not know a stream.
    is_unknown: bool,
}

/// Partitions, and the offset that is next in each.
type Positions = HashMap<TopicPartition, Offset>;

#[derive(Debug)]
struct Fetching {
    events: mpsc::Receiver<Event>,
    /// For further tasks.
    sender: mpsc::Sender<Event>,
    /// End with this.
    tasks: JoinSet<()>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Event")
    }
}

impl Consumer {
    /// A consumer of these partitions, from these places on.
    ///
    /// # Errors
    /// When a partition does not exist, or nobody answers.
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

    /// A member of a group that shares the partitions of streams. It stays one as long as this is not
    /// closed or dropped, and [`next`](Self::next) is called at least every
    /// [`poll_interval_max`](ConsumerConfig::poll_interval_max). Needs a broker with the group protocol
    /// of KIP-848, as all have since Kafka 4.0.
    ///
    /// # Errors
    /// When there is no randomness for the member's name.
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
            handed: HandedOut::default(),
            stalled_at: None,
            fetching: None,
            is_alive: Arc::default(),
            lost: None,
            group: None,
            growth: None,
            unfetched: BTreeMap::new(),
            paused: watch::Sender::default(),
            ids: HashMap::new(),
            gone: None,
        }
    }

    /// The partitions that it has now, and the first offset of each that was not handed out.
    pub fn positions(&self) -> BTreeMap<TopicPartition, Offset> {
        let mut positions = self.positions.clone();
        self.handed.seen_from(&mut positions);
        positions
    }

    /// Waits for records. What was handed out before counts as done from here on. Given up, it may be
    /// called again, and nothing is lost.
    ///
    /// # Errors
    /// When an offset is not there any more, a partition is refused, a stream is gone for the client's
    /// `unknown_timeout`, or no server answers for its `request_timeout`. The next call tries again. When a stream was
    /// deleted and made again, the consumer goes on in the new one where [`reset`](ConsumerConfig::reset) says; without that, or if it
    /// [follows](Self::follow) the stream, this and all later calls fail with [`ClientError::MadeAgain`]. A member of a group
    /// goes on at the beginning of the new stream, of which some records may come twice.
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
                    // The end of its subscription comes next.
                    Event::Fetched(fetched) if !fetched.is_live() => {}
                    Event::Fetched(fetched) => {
                        self.handed.add(&fetched);
                        return Ok(fetched);
                    }
                    Event::OutOfRange(place, earliest) => self.reset(place, earliest).await?,
                    Event::Lost(error) => self.lost(error).await?,
                }
            }
        }
    }

    /// The next event of a fetcher; `None` when the group has something to say, or to be told, or the stream has grown.
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

    /// Counts what was handed out as done, unless it could not be read.
    fn settle(&mut self) {
        match self.handed.settle(&mut self.positions) {
            None => return,
            Some(Torn::Ended) => {}
            Some(Torn::Stalled) => self.stalled_at = Some(Instant::now()),
        }
        self.fetching = None;
    }

    /// Says how far the work is in the partition that was handed out last, for who stops before its end.
    pub fn mark(&mut self, place: &TopicPartition, next: Offset) {
        if self.handed.forget(place) {
            self.fetching = None;
        }
        if let Some(position) = self.positions.get_mut(place) {
            *position = next;
        }
    }

    async fn begin_fetching(&mut self) -> Result<Fetching, ClientError> {
        self.check_ids().await?;
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

    /// Positions by the server that leads the partition.
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

    /// Begins a task for each server.
    fn fetch(&self, by_server: HashMap<i32, Positions>, fetching: &mut Fetching) {
        for (server, positions) in by_server {
            let mut order: Vec<TopicPartition> = positions.keys().cloned().collect();
            order.sort();
            let fetcher = Fetcher {
                client: self.fetching_client.clone(),
                server,
                config: self.config.clone(),
                filter: self.filter.clone(),
                positions,
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

    /// Takes note of the streams that are read. Positions say nothing in one that was made again; a group knows itself
    /// which of its own belong to that.
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

    /// Only committed records are pushed.
    fn is_pushed(&self) -> bool {
        let ConsumerConfig {
            delivery,
            isolation,
            ..
        } = self.config;
        delivery == DeliveryMode::Push && isolation == Isolation::Committed
    }

    /// Who was too slow for the server's memory has all the time over the network.
    fn may_share(&self) -> bool {
        self.stalled_at
            .is_none_or(|stalled_at| stalled_at.elapsed() >= SHARED_AGAIN_AFTER)
    }

    /// Starts anew after something failed, unless that will not help.
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
                "what is stored there is damaged; `millstream repair` lists all damage".to_owned()
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
        let patience = match is_unknown {
            true => config.unknown_timeout,
            false => config.request_timeout,
        };
        if lost.since.elapsed() >= patience {
            self.lost = None;
            return Err(error);
        }
        sleep(config.backoff).await;
        let mut topics: Vec<&str> = self.positions.keys().map(|place| &*place.topic).collect();
        topics.dedup();
        // If nobody answers now, it is found out when fetching begins.
        let _ = self.fetching_client.refresh(&topics).await;
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
                self.positions.extend(found);
                Ok(())
            }
            Err(error) => self.lost(error).await,
        }
    }
}
