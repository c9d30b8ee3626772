//! The member of a group: keeps its session alive, and receives its assignment (KIP-848).
//!
//! A task sends heartbeats. It passes the assignment to the consumer. The consumer passes back the partitions that it
//! has taken over, and the task reports these at once with a further heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, Random, SystemRandom};
use millstream_wire::messages::consumer_group_heartbeat_request::TopicPartitions;
use millstream_wire::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId,
};
use millstream_wire::{ResponseError, StrBytes, Uuid};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::ConsumerConfig;
use super::growth::LOOK_EVERY;
use super::polling::{Poll, Polled, Polling, polling};
use super::search::Searching;
use crate::client::{Client, text, topic_name};
use crate::error::ClientError;
use crate::offsets::TopicPartition;

/// Epochs with a special meaning: joining and leaving.
const EPOCH_JOIN: i32 = 0;
const EPOCH_LEAVE: i32 = -1;

/// The interval of heartbeats if the server does not set one.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(3);

/// Partitions by the ids of their streams, as the protocol has them.
pub(super) type Partitions = BTreeMap<Uuid, BTreeSet<i32>>;

/// The state of the assignment, as the group last sent it.
#[derive(Debug, Clone, Default)]
struct Assigned {
    /// Grows with every change.
    version: u64,
    /// Grows when the member loses all its partitions.
    generation: u64,
    epoch: i32,
    partitions: Partitions,
    error: Option<ClientError>,
}

/// The partitions that the consumer has taken over.
#[derive(Debug, Clone, Default)]
struct Owned {
    generation: u64,
    partitions: Partitions,
}

/// The consumer's view of its group.
#[derive(Debug)]
pub(super) struct Membership {
    pub group: Arc<str>,
    pub member: StrBytes,
    pub topics: Vec<Arc<str>>,
    assigned: watch::Receiver<Assigned>,
    owned: watch::Sender<Owned>,
    /// The version that the consumer has followed.
    followed: u64,
    generation: u64,
    heartbeats: AbortHandle,
    polling: Polling,
    commit_every: Option<Duration>,
    commit_at: Option<Instant>,
    pub committed: BTreeMap<TopicPartition, Offset>,
    /// The number of tries of the commit in progress.
    pub commit_tries: u32,
    /// The search for the positions in the newly assigned partitions.
    pub searching: Option<Searching>,
    /// The ids of the streams that it reads; a new stream of the same name has another id.
    pub ids: BTreeMap<Arc<str>, Uuid>,
}

/// A change that the consumer has to follow.
pub(super) struct News {
    pub version: u64,
    generation: u64,
    pub partitions: Partitions,
    /// Other members may have had the partitions in between.
    pub is_lost: bool,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.heartbeats.abort();
    }
}

impl Membership {
    pub fn join(
        client: &Client,
        group: &str,
        topics: &[&str],
        config: &ConsumerConfig,
    ) -> Result<Membership, ClientError> {
        let mut random = [0; 16];
        let filled = SystemRandom.fill(&mut random);
        filled.map_err(|error| ClientError::Connect {
            address: client.config().servers.join(","),
            error: Arc::new(error),
        })?;
        let member = text(&Uuid::from_bytes(random).to_string());
        let (sender, assigned) = watch::channel(Assigned::default());
        let (owned, taken) = watch::channel(Owned::default());
        let (polling, polled) = polling(config.poll_interval_max);
        let heartbeats = Heartbeats {
            // A heartbeat must not queue behind other requests.
            client: client.separate(),
            group: group.into(),
            member: member.clone(),
            topics: topics.iter().map(|topic| Arc::from(*topic)).collect(),
            rebalance_timeout: config.rebalance_timeout,
            assigned: sender,
            owned: taken,
            polled,
            epoch: EPOCH_JOIN,
            reported: None,
            shapes: None,
        };
        let topics = heartbeats.topics.clone();
        Ok(Membership {
            group: group.into(),
            member,
            topics,
            assigned,
            owned,
            followed: 0,
            generation: 0,
            heartbeats: tokio::spawn(heartbeats.run()).abort_handle(),
            polling,
            commit_every: config.auto_commit,
            commit_at: config.auto_commit.map(|every| Instant::now() + every),
            committed: BTreeMap::new(),
            commit_tries: 0,
            searching: None,
            ids: BTreeMap::new(),
        })
    }

    /// Begins a poll.
    pub fn poll(&self) -> Poll {
        self.polling.begin()
    }

    /// Returns the member's epoch, by which the group recognizes requests of an earlier incarnation.
    pub fn epoch(&self) -> i32 {
        self.assigned.borrow().epoch
    }

    /// Returns the time of the next automatic commit.
    pub fn commit_at(&self) -> Option<Instant> {
        self.commit_at
    }

    /// Returns whether a commit is due, and schedules the next one.
    pub fn takes_commit(&mut self) -> bool {
        let is_due = self.commit_at.is_some_and(|at| Instant::now() >= at);
        if is_due {
            self.commit_at = self.commit_every.map(|every| Instant::now() + every);
        }
        is_due
    }

    pub fn commits_by_itself(&self) -> bool {
        self.commit_every.is_some()
    }

    /// Waits for a change.
    pub async fn changed(&mut self) {
        let followed = self.followed;
        let changed = self.assigned.wait_for(|now| now.version != followed);
        if changed.await.is_err() {
            // The task has ended after an error, which the consumer has seen.
            std::future::pending().await
        }
    }

    /// Returns a change that the consumer has not followed yet.
    pub fn news(&mut self) -> Result<Option<News>, ClientError> {
        let now = self.assigned.borrow();
        if let Some(error) = &now.error {
            return Err(error.clone());
        }
        Ok((now.version != self.followed).then(|| News {
            version: now.version,
            generation: now.generation,
            partitions: now.partitions.clone(),
            is_lost: now.generation != self.generation,
        }))
    }

    /// Notes that the consumer has exactly the assigned partitions.
    pub fn follow(&mut self, news: News) {
        self.followed = news.version;
        self.generation = news.generation;
        self.owned.send_replace(Owned {
            generation: news.generation,
            partitions: news.partitions,
        });
    }

    /// Leaves the group, so that others need not wait for this member.
    pub async fn leave(&self, client: &Client) -> Result<(), ClientError> {
        self.heartbeats.abort();
        leave(client, &self.group, &self.member).await
    }
}

async fn leave(client: &Client, group: &str, member: &StrBytes) -> Result<(), ClientError> {
    let request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(member.clone())
        .with_member_epoch(EPOCH_LEAVE);
    let coordinator = client.coordinator(group).await?;
    let answer = coordinator.ask(request).await?;
    let what = format!("leaving group {group}");
    ClientError::check(answer.error_code, answer.error_message.as_deref(), what)
}

/// The task that keeps the member alive.
struct Heartbeats {
    client: Client,
    group: Arc<str>,
    member: StrBytes,
    topics: Vec<Arc<str>>,
    rebalance_timeout: Duration,
    assigned: watch::Sender<Assigned>,
    owned: watch::Receiver<Owned>,
    polled: Polled,
    epoch: i32,
    /// The owned partitions in the last heartbeat; `None` if the next one must carry every field.
    reported: Option<Partitions>,
    /// The streams at the last look.
    shapes: Option<Shapes>,
}

/// Streams by their ids, each with its number of partitions.
type Shapes = BTreeMap<Uuid, usize>;

/// Waits until the partitions of a stream differ from the last look; the group assigns partitions anew at its next
/// heartbeat from any member.
async fn changed_shapes(client: &Client, topics: &[Arc<str>], shapes: &mut Option<Shapes>) {
    let names: Vec<&str> = topics.iter().map(|topic| &**topic).collect();
    loop {
        sleep(LOOK_EVERY).await;
        if client.look_up(&names).await.is_err() {
            continue;
        }
        let known = names.iter().filter_map(|name| client.known_topic(name));
        let now: Shapes = known.map(|topic| (topic.id, topic.leaders.len())).collect();
        let before = shapes.replace(now);
        if before.is_some() && before != *shapes {
            return;
        }
    }
}

impl Heartbeats {
    /// Sends heartbeats until the consumer goes, or the group refuses it for good.
    async fn run(mut self) {
        loop {
            let owned = self.owned();
            let answer = self.beat(&owned).await;
            let wait = match answer {
                Ok(answer) => self.take(answer, owned),
                Err(error) => {
                    let is_fenced = error.response_error().is_some_and(is_fenced);
                    if !is_fenced && !error.is_retriable() {
                        self.assigned.send_modify(|assigned| {
                            assigned.version += 1;
                            assigned.error = Some(error);
                        });
                        return;
                    }
                    // The next heartbeat carries every field.
                    self.reported = None;
                    if is_fenced {
                        self.epoch = EPOCH_JOIN;
                        self.lose();
                    }
                    self.client.config().backoff
                }
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = changed_shapes(&self.client, &self.topics, &mut self.shapes) => {}
                () = self.polled.idle() => {
                    self.leave().await;
                    if !self.polled.resumed().await {
                        return;
                    }
                }
                changed = self.owned.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Returns the consumer's partitions; none while it still has those of a lost generation.
    fn owned(&mut self) -> Partitions {
        let owned = self.owned.borrow_and_update();
        match owned.generation == self.assigned.borrow().generation {
            true => owned.partitions.clone(),
            false => Partitions::new(),
        }
    }

    async fn beat(
        &self,
        owned: &Partitions,
    ) -> Result<ConsumerGroupHeartbeatResponse, ClientError> {
        let mut request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(text(&self.group)))
            .with_member_id(self.member.clone())
            .with_member_epoch(self.epoch);
        if self.reported.is_none() {
            let timeout = i32::try_from(self.rebalance_timeout.as_millis()).unwrap_or(i32::MAX);
            let topics = self.topics.iter().map(|topic| topic_name(topic)).collect();
            request = request
                .with_rebalance_timeout_ms(timeout)
                .with_subscribed_topic_names(Some(topics));
        }
        // A joining member has no partitions yet.
        let owned = match self.epoch {
            EPOCH_JOIN => &Partitions::new(),
            _ => owned,
        };
        if self.reported.as_ref() != Some(owned) {
            let partitions = owned.iter().map(|(id, partitions)| {
                TopicPartitions::default()
                    .with_topic_id(*id)
                    .with_partitions(partitions.iter().copied().collect())
            });
            request = request.with_topic_partitions(Some(partitions.collect()));
        }
        let coordinator = self.client.coordinator(&self.group).await?;
        let answer = coordinator.ask(request).await?;
        let what = format!("group {}", self.group);
        let is_refused = answer.error_code == ResponseError::UnsupportedVersion.code();
        let message = match is_refused {
            // Some brokers know the request and are set up to refuse it.
            true => Some(
                "the server does not take members with the protocol of KIP-848: Apache Kafka has it since \
                 4.0, where `group.coordinator.rebalance.protocols` names `consumer`",
            ),
            false => answer.error_message.as_deref(),
        };
        ClientError::check(answer.error_code, message, what)?;
        Ok(answer)
    }

    /// Returns how long to wait before the next heartbeat.
    fn take(&mut self, answer: ConsumerGroupHeartbeatResponse, owned: Partitions) -> Duration {
        let reported = match self.epoch {
            EPOCH_JOIN => Partitions::new(),
            _ => owned,
        };
        self.reported = Some(reported);
        self.epoch = answer.member_epoch;
        let partitions = answer.assignment.map(|assignment| {
            let topics = assignment.topic_partitions.into_iter();
            let topics =
                topics.map(|topic| (topic.topic_id, topic.partitions.into_iter().collect()));
            topics.collect::<Partitions>()
        });
        self.assigned.send_if_modified(|assigned| {
            let is_new = |new: &Partitions| *new != assigned.partitions || assigned.version == 0;
            let has_news = partitions.as_ref().is_some_and(is_new);
            let is_modified = has_news || assigned.epoch != self.epoch;
            assigned.epoch = self.epoch;
            if let Some(partitions) = partitions.filter(|_| has_news) {
                assigned.version += 1;
                assigned.partitions = partitions;
            }
            is_modified
        });
        match u64::try_from(answer.heartbeat_interval_ms) {
            Ok(millis) if millis > 0 => Duration::from_millis(millis),
            _ => INTERVAL_DEFAULT,
        }
    }

    /// Leaves the group, since nothing processes the partitions.
    async fn leave(&mut self) {
        let (group, member) = (&self.group, &self.member);
        tracing::warn!("no records are asked for any more; leaving group {group}");
        // If that fails, the group removes the member after missing its heartbeats.
        let _ = leave(&self.client, group, member).await;
        self.epoch = EPOCH_JOIN;
        self.reported = None;
        self.lose();
    }

    /// Notes that the group has assigned the partitions to others.
    fn lose(&self) {
        self.assigned.send_modify(|assigned| {
            assigned.version += 1;
            assigned.generation += 1;
            assigned.epoch = EPOCH_JOIN;
            assigned.partitions.clear();
        });
    }
}

/// Returns whether the group no longer knows the member.
fn is_fenced(error: ResponseError) -> bool {
    matches!(
        error,
        ResponseError::UnknownMemberId | ResponseError::FencedMemberEpoch
    )
}
