//! The task that sends queued chunks, and processes the answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, ProducerEpoch, ProducerId};
use millstream_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use millstream_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use millstream_wire::messages::produce_response::PartitionProduceResponse;
use millstream_wire::messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse};
use millstream_wire::{ResponseError, Uuid};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::partition::{Effect, IN_FLIGHT_MAX, Identity};
use super::state::{Chunks, Plan};
use super::transaction_requests::{add_partitions, send_chunks, transactional_id};
use crate::client::{Client, topic_name};
use crate::connection::Connection;
use crate::error::ClientError;

/// Waits for all replicas: records on fewer may be lost.
const ACKS_ALL: i16 = -1;

/// The age at which metadata is refreshed, since topics may have more partitions by then.
const METADATA_AGE_MAX: Duration = Duration::from_secs(300);

pub(super) struct Sender {
    shared: Arc<Shared>,
    servers: HashMap<i32, Server>,
    /// The tasks that connect, wait for answers, or ask for ids and leaders.
    tasks: JoinSet<Event>,
    identity: Option<Identity>,
    is_identifying: bool,
    is_joining: bool,
    is_refreshing: bool,
    refreshed_at: Instant,
}

/// The state of requests to a server.
#[derive(Default)]
struct Server {
    connection: Option<Arc<Connection>>,
    is_connecting: bool,
    in_flight: usize,
    /// No earlier attempt than this.
    retry_at: Option<Instant>,
}

/// An event that the sender waits for.
enum Event {
    Connected(i32, Result<Arc<Connection>, ClientError>),
    Answered(i32, Vec<Sent>, Result<ProduceResponse, ClientError>),
    Identified(Result<(ProducerId, ProducerEpoch), ClientError>),
    /// The partitions at these places were added to the transaction of a generation, or the request failed.
    Joined(Vec<usize>, u64, Result<(), ClientError>),
    /// The look-up of leaders has ended; servers may have refused some topics.
    Refreshed(Vec<(Arc<str>, ClientError)>),
}

/// A chunk in flight.
struct Sent {
    place: usize,
    number: u64,
    topic_id: Uuid,
}

impl Sender {
    pub fn new(shared: Arc<Shared>) -> Sender {
        Sender {
            shared,
            servers: HashMap::new(),
            tasks: JoinSet::new(),
            identity: None,
            is_identifying: false,
            is_joining: false,
            is_refreshing: false,
            refreshed_at: Instant::now(),
        }
    }

    /// Runs until the producer is dropped.
    pub async fn run(mut self) {
        loop {
            let now = Instant::now();
            let plan = self.plan(now);
            let mut wake_at = plan.wake_at;
            if let Some(generation) = plan.identify
                && self.shared.transactional_id.is_none()
            {
                self.identify(generation);
            }
            if !plan.join.is_empty() {
                self.join(&plan.join);
            }
            if !plan.leaderless.is_empty() || now >= self.refreshed_at + METADATA_AGE_MAX {
                self.refresh();
            }
            for (server, chunks) in plan.requests {
                self.send(server, chunks).await;
            }
            // A time in the past is of a server that no partition wants.
            let retries = self.servers.values().filter_map(|server| server.retry_at);
            let retries = retries.filter(|at| *at > now);
            wake_at = wake_at.into_iter().chain(retries).min();
            let wake = async {
                match wake_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                () = shared.wake.notified() => {}
                Some(event) = self.tasks.join_next() => {
                    if let Ok(event) = event {
                        self.take(event);
                    }
                }
                () = wake => {}
            }
        }
    }

    fn plan(&mut self, now: Instant) -> Plan {
        let client = &self.shared.client;
        let mut wanted = Vec::new();
        let plan = {
            let servers = &self.servers;
            let wanted = std::cell::RefCell::new(&mut wanted);
            let has_room = |number: i32| match servers.get(&number) {
                Some(Server {
                    connection: Some(connection),
                    in_flight,
                    ..
                }) if connection.is_open() => *in_flight < IN_FLIGHT_MAX,
                _ => {
                    wanted.borrow_mut().push(number);
                    false
                }
            };
            let mut leaders: HashMap<Arc<str>, _> = HashMap::new();
            let leaders = std::cell::RefCell::new(&mut leaders);
            let mut state = self.shared.state.lock();
            let transaction = state.transaction.as_ref();
            let identity = transaction.map(|transaction| transaction.identity);
            let plan = state.plan(
                now,
                identity.or(self.identity),
                |partition| {
                    let mut leaders = leaders.borrow_mut();
                    let topic = leaders
                        .entry(Arc::clone(&partition.topic))
                        .or_insert_with(|| client.known_topic(&partition.topic));
                    topic.as_ref()?.leader(partition.index).ok()
                },
                has_room,
            );
            let retry_at = now + client.config().backoff;
            for place in &plan.leaderless {
                state.partitions[*place].delay(retry_at);
            }
            plan
        };
        for number in wanted {
            self.connect(number, now);
        }
        if plan.has_freed {
            self.shared.room.notify_waiters();
        }
        plan
    }

    fn connect(&mut self, number: i32, now: Instant) {
        let server = self.servers.entry(number).or_default();
        if server.is_connecting || server.retry_at.is_some_and(|at| now < at) {
            return;
        }
        server.is_connecting = true;
        server.retry_at = None;
        let client = self.shared.client.clone();
        self.tasks
            .spawn(async move { Event::Connected(number, client.server(number).await) });
    }

    fn identify(&mut self, generation: u64) {
        let is_new_enough = |identity: &Identity| identity.generation >= generation;
        if self.is_identifying || self.identity.as_ref().is_some_and(is_new_enough) {
            return;
        }
        self.is_identifying = true;
        let client = self.shared.client.clone();
        self.tasks
            .spawn(async move { Event::Identified(new_identity(&client).await) });
    }

    /// Adds partitions to the transaction: for servers on which a produce request does not add them.
    fn join(&mut self, places: &[usize]) {
        let Some(id) = &self.shared.transactional_id else {
            return;
        };
        if self.is_joining {
            return;
        }
        let request = {
            let state = self.shared.state.lock();
            let Some(transaction) = &state.transaction else {
                return;
            };
            let mut topics: Vec<AddPartitionsToTxnTopic> = Vec::new();
            for place in places {
                let partition = &state.partitions[*place];
                let name = topic_name(&partition.topic);
                match topics.iter_mut().find(|topic| topic.name == name) {
                    Some(topic) => topic.partitions.push(partition.index),
                    None => topics.push(
                        AddPartitionsToTxnTopic::default()
                            .with_name(name)
                            .with_partitions(vec![partition.index]),
                    ),
                }
            }
            (transaction.identity, topics)
        };
        self.is_joining = true;
        let (client, id) = (self.shared.client.clone(), Arc::clone(id));
        let (places, (identity, topics)) = (places.to_vec(), request);
        self.tasks.spawn(async move {
            let added = add_partitions(&client, &id, identity, topics).await;
            if added.is_err() {
                tokio::time::sleep(client.config().backoff).await;
            }
            Event::Joined(places, identity.generation, added)
        });
    }

    fn refresh(&mut self) {
        if self.is_refreshing {
            return;
        }
        self.is_refreshing = true;
        let client = self.shared.client.clone();
        let topics: Vec<Arc<str>> = self.shared.state.lock().topics().cloned().collect();
        let backoff = client.config().backoff;
        self.tasks.spawn(async move {
            let names: Vec<&str> = topics.iter().map(|name| &**name).collect();
            // The next plan looks up again the leaders that stay unknown.
            let looked_up = client.look_up(&names).await;
            if !matches!(&looked_up, Ok(refused) if refused.is_empty()) {
                tokio::time::sleep(backoff).await;
            }
            Event::Refreshed(looked_up.unwrap_or_default())
        });
    }

    async fn send(&mut self, number: i32, chunks: Chunks) {
        let (request, sent) = self.request(&chunks);
        let server = self.servers.entry(number).or_default();
        server.in_flight += 1;
        let Some(connection) = server.connection.clone() else {
            return;
        };
        // Never waits: the connection's queue holds more requests than may be in flight.
        let pending = match self.shared.transactional_id {
            Some(_) => send_chunks(&connection, request).await,
            None => connection.send(request).await,
        };
        let after = self.shared.client.config().request_timeout;
        self.tasks.spawn(async move {
            let answer = match pending {
                Ok(pending) => timeout(after, pending.wait()).await,
                Err(error) => Ok(Err(error)),
            };
            let answer = answer.unwrap_or_else(|_| {
                connection.close();
                Err(ClientError::Timeout {
                    what: format!("sending to {}", connection.address()),
                    after,
                    trouble: None,
                })
            });
            Event::Answered(number, sent, answer)
        });
    }

    fn request(&self, chunks: &Chunks) -> (ProduceRequest, Vec<Sent>) {
        let state = self.shared.state.lock();
        let mut topics: Vec<TopicProduceData> = Vec::new();
        let mut sent = Vec::with_capacity(chunks.len());
        for (place, number, chunk) in chunks {
            let partition = &state.partitions[*place];
            let topic_id = state.topic_id(&partition.topic);
            sent.push(Sent {
                place: *place,
                number: *number,
                topic_id,
            });
            let data = PartitionProduceData::default()
                .with_index(partition.index)
                .with_records(Some(chunk.clone()));
            match topics
                .iter_mut()
                .find(|topic| topic.name.as_str() == &*partition.topic)
            {
                Some(topic) => topic.partition_data.push(data),
                None => topics.push(
                    TopicProduceData::default()
                        .with_name(topic_name(&partition.topic))
                        .with_topic_id(topic_id)
                        .with_partition_data(vec![data]),
                ),
            }
        }
        let timeout = self.shared.client.config().request_timeout;
        let id = self.shared.transactional_id.as_deref();
        let request = ProduceRequest::default()
            .with_transactional_id(id.map(transactional_id))
            .with_acks(ACKS_ALL)
            .with_timeout_ms(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX))
            .with_topic_data(topics);
        (request, sent)
    }

    fn take(&mut self, event: Event) {
        let retry_at = Instant::now() + self.shared.client.config().backoff;
        match event {
            Event::Connected(number, connected) => {
                let server = self.servers.entry(number).or_default();
                server.is_connecting = false;
                match connected {
                    Ok(connection) => server.connection = Some(connection),
                    Err(error) if error.is_retriable() => {
                        server.retry_at = Some(retry_at);
                        self.refresh();
                    }
                    Err(error) => self.close(error),
                }
            }
            Event::Answered(number, sent, answer) => {
                self.servers.entry(number).or_default().in_flight -= 1;
                self.answered(number, &sent, answer, retry_at);
            }
            Event::Identified(Ok((id, epoch))) => {
                self.is_identifying = false;
                let generation = self.identity.map_or(0, |identity| identity.generation + 1);
                self.identity = Some(Identity {
                    id,
                    epoch,
                    generation,
                });
            }
            Event::Identified(Err(error)) => self.close(error),
            Event::Joined(places, generation, joined) => {
                self.is_joining = false;
                let mut state = self.shared.state.lock();
                match joined {
                    Ok(()) => {
                        for place in places {
                            state.partitions[place].join(generation);
                        }
                    }
                    Err(error) if error.is_retriable_in_transaction() => {}
                    Err(error) => {
                        state.take_effect(Effect {
                            freed_bytes: 0,
                            error: Some(error),
                        });
                        drop(state);
                        self.shared.room.notify_waiters();
                    }
                }
            }
            Event::Refreshed(refused) => {
                self.is_refreshing = false;
                self.refreshed_at = Instant::now();
                let mut state = self.shared.state.lock();
                let names: Vec<Arc<str>> = state.topics().cloned().collect();
                let mut has_freed = false;
                for name in names {
                    if let Some(topic) = self.shared.client.known_topic(&name) {
                        has_freed |= state.learn(&topic);
                    }
                }
                for (name, error) in refused {
                    has_freed |= state.refuse(&name, &error, retry_at);
                }
                if has_freed {
                    self.shared.room.notify_waiters();
                }
            }
        }
    }

    fn answered(
        &mut self,
        number: i32,
        sent: &[Sent],
        answer: Result<ProduceResponse, ClientError>,
        retry_at: Instant,
    ) {
        let mut has_freed = false;
        let mut asks_for_leaders = answer.is_err();
        {
            let mut state = self.shared.state.lock();
            for sent in sent {
                let partition = &mut state.partitions[sent.place];
                let what = || format!("partition {} of {}", partition.index, partition.topic);
                let result = match &answer {
                    Err(error) => Err(error.clone()),
                    Ok(answer) => find(answer, &partition.topic, sent.topic_id, partition.index)
                        .ok_or_else(|| ClientError::Protocol {
                            address: format!("server {number}"),
                            what: format!("its answer lacks {}", what()),
                        })
                        .and_then(|answer| offset(answer, what())),
                };
                let effect = match result {
                    Ok(offset) => partition.stored(sent.number, offset),
                    Err(error) => {
                        asks_for_leaders |= error.response_error().is_some_and(is_of_leaders);
                        partition.failed(sent.number, error, retry_at)
                    }
                };
                has_freed |= state.take_effect(effect);
            }
        }
        self.shared.answered.notify_waiters();
        if has_freed {
            self.shared.room.notify_waiters();
        }
        if asks_for_leaders {
            self.refresh();
        }
    }

    fn close(&mut self, error: ClientError) {
        self.shared.state.lock().close(error);
        self.shared.room.notify_waiters();
    }
}

/// Returns the part of the server's answer about a partition.
fn find<'a>(
    answer: &'a ProduceResponse,
    topic: &str,
    id: Uuid,
    partition: i32,
) -> Option<&'a PartitionProduceResponse> {
    let mut topics = answer.responses.iter();
    // Newer versions of the answer have the id in place of the name.
    let found = topics.find(|found| match found.topic_id.is_nil() {
        true => found.name.as_str() == topic,
        false => found.topic_id == id,
    })?;
    let mut partitions = found.partition_responses.iter();
    partitions.find(|found| found.index == partition)
}

/// Returns the offset of a stored chunk; `None` if the server only reports that it stored the chunk before.
fn offset(answer: &PartitionProduceResponse, what: String) -> Result<Option<Offset>, ClientError> {
    let code = match answer.error_code {
        code if code == ResponseError::DuplicateSequenceNumber.code() => return Ok(None),
        // The server may have another topic of the same name.
        code if code == ResponseError::UnknownTopicId.code() => {
            ResponseError::UnknownTopicOrPartition.code()
        }
        code => code,
    };
    ClientError::check(code, answer.error_message.as_deref(), what)
        .map_err(|error| error.needing("Write"))?;
    Ok(u64::try_from(answer.base_offset).ok().map(Offset))
}

/// Returns whether to ask another server.
fn is_of_leaders(error: ResponseError) -> bool {
    matches!(
        error,
        ResponseError::NotLeaderOrFollower
            | ResponseError::UnknownTopicOrPartition
            | ResponseError::LeaderNotAvailable
    )
}

/// Returns a unique producer id. Retries until a server assigns one, or refuses for good.
async fn new_identity(client: &Client) -> Result<(ProducerId, ProducerEpoch), ClientError> {
    loop {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(i32::MAX);
        let answer = client.ask(request).await.and_then(|answer| {
            // Kafka checks the access rules of the cluster here, but means those of its streams.
            let is_denied = answer.error_code == ResponseError::ClusterAuthorizationFailed.code();
            let message = is_denied.then_some("no access rule lets this user write to any stream");
            ClientError::check(answer.error_code, message, "asking for a producer id")?;
            Ok(answer)
        });
        match answer {
            Ok(answer) => {
                let millstream_wire::messages::ProducerId(id) = answer.producer_id;
                return Ok((ProducerId(id), ProducerEpoch(answer.producer_epoch)));
            }
            Err(error) if error.is_retriable() => {
                tokio::time::sleep(client.config().backoff).await;
            }
            Err(error) => return Err(error),
        }
    }
}
