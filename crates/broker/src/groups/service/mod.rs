//! The coordinator of groups at work: its records in a ledger, its answers to connections, its deadlines
//! on the clock.

mod access;
mod internal_topics;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_base::{Clock, Offset};
use millstream_log::{Log, LogError};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use self::access::Rules;
use self::internal_topics::Outcomes;
pub use self::internal_topics::SetTopic;
use crate::groups::{
    Action, Answer, Config, Coordinator, GroupConfig, GroupName, MemberId, Moment, Request,
    RequestId, Standing, Topic, TopicId, TopicName,
};
use crate::ledger::{Ledger, Record};
use crate::security::service::SecurityService;

/// The stream that holds the groups.
pub const LEDGER: &str = "__groups";

/// The topic that Kafka keeps committed offsets in, and that tools look for. Here it is always
/// empty: [`LEDGER`] holds the offsets.
pub const OFFSETS: &str = "__consumer_offsets";

/// The interval between searches for changed topics, for groups that the coordinator assigns to.
const TOPICS_INTERVAL: Duration = Duration::from_secs(1);

/// The wait when no deadline is set.
const IDLE: Duration = Duration::from_secs(60);

/// Answers that are released together.
type Released = Vec<(oneshot::Sender<Answer>, Answer)>;

/// The group coordinator, and the log, access rules and clock that it works with.
pub struct GroupService {
    at_work: Mutex<AtWork>,
    ledger: Arc<Ledger>,
    log: Log,
    clock: Arc<dyn Clock>,
    security: Arc<SecurityService>,
    set_topic: SetTopic,
    /// The next deadline may have come nearer.
    changed: Notify,
    outcomes: Outcomes,
    /// The ledger is damaged: nothing is answered, since members and positions would be wrong.
    is_damaged: AtomicBool,
}

struct AtWork {
    coordinator: Coordinator,
    waiting: HashMap<RequestId, oneshot::Sender<Answer>>,
    next_id: u64,
    /// Everything before this offset has to be durable before an answer may follow.
    appended: Offset,
    /// As the coordinator knows them: ids and partitions.
    topics: HashMap<String, (u128, u32)>,
    topics_known_at: Option<Duration>,
    /// The version of the access rules that the coordinator has applied.
    access_version: u64,
    /// The broker ends, so no request waits for other members.
    is_ending: bool,
}

impl GroupService {
    /// Restores the coordinator from the ledger. If that is damaged, no request is answered. `set_topic` knows the settings
    /// of topics that the broker makes for groups.
    ///
    /// # Errors
    /// When the ledger cannot be read, or holds records of another kind.
    pub fn open(
        log: &Log,
        config: Config,
        clock: Arc<dyn Clock>,
        security: Arc<SecurityService>,
        set_topic: SetTopic,
    ) -> Result<GroupService, LogError> {
        let ledger = Ledger::open(log, LEDGER)?;
        let now = moment(&*clock);
        let (coordinator, is_damaged) = match restore(&ledger, &config, now, &security) {
            Err(error @ LogError::Corrupted { .. }) => {
                tracing::error!("groups are refused: {error}");
                (coordinator(&config, now, Vec::new(), &security)?, true)
            }
            restored => (restored?, false),
        };
        let service = GroupService {
            at_work: Mutex::new(AtWork {
                coordinator,
                waiting: HashMap::new(),
                next_id: 0,
                appended: Offset(0),
                topics: HashMap::new(),
                topics_known_at: None,
                access_version: 0,
                is_ending: false,
            }),
            ledger: Arc::new(ledger),
            log: log.clone(),
            clock,
            security,
            set_topic,
            changed: Notify::new(),
            outcomes: Outcomes::default(),
            is_damaged: AtomicBool::new(is_damaged),
        };
        service.learn_topics(&mut service.at_work.lock(), now);
        Ok(service)
    }

    /// Whether requests about groups go unanswered, since the ledger cannot be read.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }

    /// Handles deadlines as they pass, for as long as it is polled.
    pub async fn keep_time(self: Arc<Self>) {
        loop {
            let deadline = self.at_work.lock().coordinator.next_deadline();
            let now = self.clock.monotonic();
            let wait = deadline.map_or(IDLE, |deadline| deadline.saturating_sub(now));
            tokio::select! {
                () = tokio::time::sleep(wait) => {
                    let now = moment(&*self.clock);
                    let mut at_work = self.at_work.lock();
                    self.learn_topics(&mut at_work, now);
                    let actions = at_work.coordinator.tick(now);
                    self.act(&mut at_work, now, actions);
                }
                () = self.changed.notified() => {}
            }
        }
    }

    /// Whether a group exists, or ever existed.
    pub fn has_had_groups(&self) -> bool {
        self.ledger.lane().next_offset() > Offset(0)
    }

    /// Summaries of all groups, ordered by name.
    pub fn standings(&self) -> Vec<Standing> {
        self.at_work.lock().coordinator.standings()
    }

    /// How many members a share group has; `None` if no share group has this name.
    pub fn share_group_members(&self, group: &GroupName) -> Option<usize> {
        self.at_work.lock().coordinator.share_group_members(group)
    }

    /// Whether a share group has this member.
    pub fn has_share_member(&self, group: &GroupName, member: &MemberId) -> bool {
        let at_work = self.at_work.lock();
        at_work.coordinator.has_share_member(group, member)
    }

    /// Hands a request to the coordinator. The sender of the answer is dropped if the ledger could not store the
    /// coordinator's records.
    pub fn ask(&self, request: Request) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        if self.is_damaged() {
            return receiver;
        }
        let now = moment(&*self.clock);
        let mut at_work = self.at_work.lock();
        // The coordinator has to know the topics before a heartbeat.
        let needs_topics = matches!(
            request,
            Request::ConsumerHeartbeat(_)
                | Request::ShareHeartbeat(_)
                | Request::StreamsHeartbeat(_)
        );
        for (group, made) in std::mem::take(&mut *self.outcomes.lock()) {
            match made {
                Ok(()) => at_work.topics_known_at = None,
                Err(why) => at_work.coordinator.creation_failed(&group, why),
            }
        }
        if needs_topics || at_work.topics_known_at.is_none() {
            self.learn_topics(&mut at_work, now);
            self.learn_access(&mut at_work);
        }
        at_work.next_id += 1;
        let id = RequestId(at_work.next_id);
        at_work.waiting.insert(id, sender);
        let actions = at_work.coordinator.handle(now, id, request);
        self.act(&mut at_work, now, actions);
        if at_work.is_ending {
            at_work.waiting.clear();
        }
        drop(at_work);
        self.changed.notify_one();
        receiver
    }

    /// Ends the requests that wait for other members, now and from now on: the broker ends. Their clients join again when they
    /// find the coordinator again.
    pub fn end_waits(&self) {
        let mut at_work = self.at_work.lock();
        at_work.is_ending = true;
        at_work.waiting.clear();
    }

    /// Carries out the coordinator's actions.
    fn act(&self, at_work: &mut AtWork, now: Moment, actions: Vec<Action>) {
        let mut records = Vec::new();
        let mut released: Released = Vec::new();
        for action in actions {
            match action {
                Action::Persist(record) => records.push(record),
                Action::Answer(id, answer) => {
                    released.extend(at_work.waiting.remove(&id).map(|sender| (sender, answer)));
                }
                Action::CreateTopics(creation) => {
                    let (log, security) = (&self.log, &self.security);
                    let (set_topic, outcomes) = (self.set_topic, &self.outcomes);
                    internal_topics::create(log, security, set_topic, outcomes, creation);
                }
            }
        }
        if !records.is_empty() {
            match self.ledger.append(records, now.timestamp) {
                Ok(appended) => {
                    at_work.appended = appended;
                    self.ledger.compact_if_due();
                }
                Err(error) => return self.start_again(at_work, now, &error),
            }
        }
        self.release(at_work.appended, released);
    }

    /// Sends answers once everything before `offset` is durable.
    fn release(&self, offset: Offset, released: Released) {
        // The connection that asked may be gone.
        let give = |released: Released| {
            for (sender, answer) in released {
                let _ = sender.send(answer);
            }
        };
        if released.is_empty() {
            return;
        }
        if self.ledger.lane().durable_offset() >= offset {
            return give(released);
        }
        let ledger = Arc::clone(&self.ledger);
        tokio::spawn(async move {
            // Otherwise the senders are dropped, which reports the failure to the receivers.
            if ledger.lane().durable(offset).await.is_ok() {
                give(released);
            }
        });
    }

    /// Restores the coordinator from the ledger, since its memory is ahead of that. Waiting requests get no answer.
    fn start_again(&self, at_work: &mut AtWork, now: Moment, error: &LogError) {
        tracing::warn!(
            "cannot store changes of groups, so the coordinator goes back to the stored state: {error}"
        );
        at_work.waiting.clear();
        at_work.topics.clear();
        at_work.topics_known_at = None;
        let config = at_work.coordinator.config().clone();
        match restore(&self.ledger, &config, now, &self.security) {
            Ok(coordinator) => {
                at_work.coordinator = coordinator;
                // All topics are new to it, so this removes no offsets and appends nothing.
                self.learn_topics(at_work, now);
            }
            Err(error) => {
                tracing::error!("groups are refused, since they cannot be read: {error}");
                self.is_damaged.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Gives a group settings of its own.
    pub fn set_group_config(&self, group: &str, config: GroupConfig) {
        let mut at_work = self.at_work.lock();
        at_work.coordinator.set_group_config(group.into(), config);
    }

    /// Returns the id of the topic that has this name now.
    pub fn topic_id(&self, name: &str) -> Option<TopicId> {
        let stream = self.log.stream(name).ok()?;
        Some(TopicId(stream.uuid().as_u128()))
    }

    /// Notes that a topic was created, changed or deleted.
    pub fn topics_changed(&self) {
        self.at_work.lock().topics_known_at = None;
    }

    fn learn_access(&self, at_work: &mut AtWork) {
        let version = self.security.version();
        if at_work.access_version != version {
            at_work.access_version = version;
            at_work.coordinator.access_changed();
        }
    }

    fn learn_topics(&self, at_work: &mut AtWork, now: Moment) {
        let is_new = |at: Duration| now.elapsed.saturating_sub(at) < TOPICS_INTERVAL;
        if at_work.topics_known_at.is_some_and(is_new) {
            return;
        }
        at_work.topics_known_at = Some(now.elapsed);
        let mut names = self.log.stream_names();
        // Clients see it as soon as there is a group, and regular expressions match it, as in Kafka.
        names.push(OFFSETS.to_owned());
        let streams = names.iter().filter_map(|name| self.log.stream(name).ok());
        let mut gone = std::mem::take(&mut at_work.topics);
        let mut actions = Vec::new();
        for stream in streams {
            let known = (stream.uuid().as_u128(), stream.partition_count());
            let before = gone.remove(stream.name());
            at_work.topics.insert(stream.name().to_owned(), known);
            if before == Some(known) {
                continue;
            }
            let topic = Topic {
                name: stream.name().into(),
                id: TopicId(known.0),
                partitions: known.1 as i32,
            };
            let coordinator = &mut at_work.coordinator;
            match before {
                Some((id, _)) if id != known.0 => {
                    actions.extend(coordinator.replace_topic(now, topic));
                }
                _ => coordinator.put_topic(topic),
            }
        }
        for name in gone.into_keys().map(TopicName::from) {
            actions.extend(at_work.coordinator.remove_topic(now, &name));
        }
        // Last, since this replaces the coordinator if the ledger does not take the removals.
        self.act(at_work, now, actions);
    }
}

fn restore(
    ledger: &Ledger,
    config: &Config,
    now: Moment,
    security: &Arc<SecurityService>,
) -> Result<Coordinator, LogError> {
    coordinator(config, now, ledger.read()?, security)
}

fn coordinator(
    config: &Config,
    now: Moment,
    records: Vec<Record>,
    security: &Arc<SecurityService>,
) -> Result<Coordinator, LogError> {
    let restored = Coordinator::restore(config.clone(), now, records);
    let mut coordinator = restored.map_err(|error| LogError::BadSetting {
        setting: LEDGER,
        why: format!("the stream holds something else than groups: {error}"),
    })?;
    coordinator.set_access(Arc::new(Rules(Arc::clone(security))));
    Ok(coordinator)
}

fn moment(clock: &dyn Clock) -> Moment {
    Moment {
        elapsed: clock.monotonic(),
        timestamp: clock.now(),
    }
}
