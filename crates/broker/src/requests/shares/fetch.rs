//! ShareFetch: a member gets records for itself, once there are some.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_log::{AtLeast, Stream, StreamPartition, Watch, Watched};
use millstream_wire::messages::share_fetch_response::AcquiredRecords;
use millstream_wire::{
    ResponseError, ShareFetchRequest, ShareFetchResponse, ShareFetchedPartition, ShareFetchedTopic,
    StrBytes, Uuid,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::acknowledge::{Acknowledged, Acknowledgements, acknowledge_all, fail};
use super::{names, need_reader};
use crate::answer_memory::{AnswerMemory, AnswerRoom, Part};
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::groups::{GroupName, MemberId, Partition, TopicId};
use crate::partitions::lane_of;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{
    Handle, Refusal, errors, messages, refuse_with_message, tell_throttle,
};
use crate::requests::rights::{Check, Checked};
use crate::requests::topics::Named;
use crate::security::{Operation, Traffic};
use crate::shares::ShareSettings;
use crate::shares::record::Key;
use crate::shares::service::ShareService;
use crate::shares::service::read::{Read, Wanted};
use crate::shares::service::sessions::{FINAL_EPOCH, INITIAL_EPOCH, PartitionKey, Reading};

/// The modes that bound a member's records: `share.acquire.mode` (KIP-1206).
mod acquire_mode {
    /// Up to the bound, and the rest of the last batch.
    pub const BATCH_OPTIMIZED: i8 = 0;
    /// No more than the bound.
    pub const RECORD_LIMIT: i8 = 1;
}

/// Acquires records for a member of a share group, and takes its acknowledgements.
impl Handle for ShareFetchRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Consumed);

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_reader(client, self.group_id.as_ref())
    }

    refuse_with_message!();
    errors!(
        error_code,
        topics.partitions.error_code,
        topics.partitions.acknowledge_error_code
    );
    messages!(
        error_message,
        topics.partitions.error_message,
        topics.partitions.acknowledge_error_message
    );
    tell_throttle!();

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        fetch(broker, client, self)
    }
}

/// Applies acknowledgements, and answers once there are records, or the client's wait has timed out.
fn fetch(broker: &Arc<Broker>, client: &mut Client, request: ShareFetchRequest) -> Reply {
    match begin(broker, client, request) {
        Ok(fetching) => Reply::counted(fetching.answer(Arc::clone(broker.answers()))),
        Err(error) => ShareFetchResponse {
            error_code: error.code(),
            error_message: Some(StrBytes::from_string(error.to_string())),
            ..ShareFetchResponse::default()
        }
        .into(),
    }
}

/// The memory of a partition in an answer, with an error's message.
const PARTITION_BYTES: usize = 1 << 10;

/// The memory of a run of acquired records in an answer, and of a piece of records.
const RUN_BYTES: usize = 256;

/// A ShareFetch request in progress.
struct Fetching {
    service: Arc<ShareService>,
    group: GroupName,
    member: MemberId,
    settings: Arc<ShareSettings>,
    reading: Reading,
    /// The partitions, in the order of the reads.
    targets: Vec<Target>,
    acknowledged: Vec<Acknowledged>,
    /// The ledger has to be durable up to this offset before the broker answers.
    durable: Option<Offset>,
    /// Whether the answer covers all partitions, since it is the session's first.
    is_first: bool,
    records_max: u64,
    /// How many records beyond the bound the member may get to complete a batch.
    excess_max: u64,
    bytes_max: usize,
    until: Instant,
    /// Signals the end of the broker.
    ending: watch::Receiver<bool>,
}

/// A partition to read.
struct Target {
    place: PartitionKey,
    lane: Result<StreamPartition, ResponseError>,
    /// Its readable end at the last read.
    seen: Offset,
    watched: Option<Watched>,
}

/// The result of one pass over all partitions.
#[derive(Default)]
struct Look {
    reads: Vec<(PartitionKey, Result<Read, ResponseError>)>,
    records: u64,
    bytes: usize,
    has_errors: bool,
    /// When to look again, if nothing happens before.
    deadline: Option<Duration>,
    /// Whether the look made records available that other members may get.
    has_unblocked: bool,
}

fn begin(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: ShareFetchRequest,
) -> Result<Fetching, ResponseError> {
    let service = Arc::clone(broker.shares());
    if service.is_damaged() {
        return Err(ResponseError::CoordinatorNotAvailable);
    }
    let (group, member) = names(request.group_id.as_ref(), request.member_id.as_ref())?;
    let records_max = request.max_records.max(0) as u64;
    let excess_max = match request.share_acquire_mode {
        acquire_mode::BATCH_OPTIMIZED => records_max,
        acquire_mode::RECORD_LIMIT => 0,
        _ => return Err(ResponseError::InvalidRequest),
    };
    let bounds = [
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.max_records,
    ];
    if request.is_renew_ack && bounds != [0; 4] {
        return Err(ResponseError::InvalidRequest);
    }
    let place = |topic: Uuid, partition: i32| (TopicId(topic.as_u128()), Partition(partition));
    let mut named = BTreeSet::new();
    let mut asked = Vec::new();
    for topic in request.topics {
        for partition in topic.partitions {
            named.insert(place(topic.topic_id, partition.partition_index));
            if !partition.acknowledgement_batches.is_empty() {
                let batches = partition.acknowledgement_batches.into_iter();
                asked.push(Acknowledgements {
                    topic: topic.topic_id,
                    partition: partition.partition_index,
                    batches: batches
                        .map(|batch| {
                            (
                                batch.first_offset,
                                batch.last_offset,
                                batch.acknowledge_types,
                            )
                        })
                        .collect(),
                });
            }
        }
    }
    let forgotten = request.forgotten_topics_data.iter().flat_map(|topic| {
        let partitions = topic.partitions.iter();
        partitions.map(move |partition| place(topic.topic_id, *partition))
    });
    let forgotten: BTreeSet<PartitionKey> = forgotten.collect();
    let epoch = request.share_session_epoch;
    let sessions = service.sessions();
    let reading = match epoch {
        INITIAL_EPOCH => {
            // A session that begins has no acquired records to acknowledge.
            if !asked.is_empty() {
                return Err(ResponseError::InvalidRequest);
            }
            if !service.groups().has_share_member(&group, &member) {
                let has_group = service.groups().share_group_members(&group).is_some();
                return Err(match has_group {
                    true => ResponseError::UnknownMemberId,
                    false => ResponseError::GroupIdNotFound,
                });
            }
            let reading = sessions.begin(&group, &member, named)?;
            client.hold_share_session(&group, &member, reading.number);
            reading
        }
        FINAL_EPOCH => {
            let (number, bell) = sessions.touch(&group, &member, epoch)?;
            Reading {
                number,
                partitions: Vec::new(),
                bell,
            }
        }
        epoch => sessions.next(&group, &member, epoch, named, &forgotten)?,
    };
    let has_acknowledged = !asked.is_empty();
    let (acknowledged, durable) = acknowledge_all(
        &service,
        client,
        &group,
        &member,
        asked,
        request.is_renew_ack,
    );
    if has_acknowledged {
        reading.bell.notify_waiters();
    }
    if epoch == FINAL_EPOCH {
        service.end_session(&group, &member, reading.number);
    }
    let wait_max = Duration::from_millis(request.max_wait_ms.max(0) as u64);
    let bytes_max = request.max_bytes.max(0) as usize;
    Ok(Fetching {
        settings: service.settings(&group),
        targets: match request.is_renew_ack {
            true => Vec::new(),
            false => targets(client, &reading.partitions),
        },
        service,
        group,
        member,
        reading,
        acknowledged,
        durable,
        is_first: epoch == INITIAL_EPOCH,
        records_max,
        excess_max,
        bytes_max: bytes_max.min(client.answer_bytes_max()),
        until: Instant::now() + wait_max.min(broker.config().idle_max),
        ending: client.ending(),
    })
}

/// The partitions of a session, with an error for those that are missing or that the client may not read.
fn targets(client: &mut Client, places: &[PartitionKey]) -> Vec<Target> {
    let mut last: Option<(TopicId, Result<Stream, ResponseError>)> = None;
    let targets = places.iter().map(|place| {
        let (topic, partition) = *place;
        let stream = match &last {
            Some((of, stream)) if *of == topic => stream.clone(),
            _ => {
                let id = Uuid::from_u128(topic.0);
                let stream = Named::Id(id).permitted(client, Operation::Read);
                last = Some((topic, stream.clone()));
                stream
            }
        };
        Target {
            place: *place,
            lane: stream.and_then(|stream| {
                lane_of(&stream, partition.0).map_err(|error| response_error(&error))
            }),
            seen: Offset(0),
            watched: None,
        }
    });
    targets.collect()
}

impl Fetching {
    async fn answer(mut self, answers: Arc<AnswerMemory>) -> (ShareFetchResponse, AnswerRoom) {
        let watch = Watch::default();
        let (look, room) = loop {
            // Listen before the read, so that no ring is missed.
            let bell = Arc::clone(&self.reading.bell);
            let rung = bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            let room = answers.take(Part::Late, self.memory_bytes()).await;
            let look = self.look();
            let reads_nothing = self.targets.is_empty() || self.records_max == 0;
            let is_late = Instant::now() >= self.until;
            if look.has_unblocked {
                self.reading.bell.notify_waiters();
            }
            if look.records > 0 || look.has_errors || reads_nothing || is_late {
                break (look, room);
            }
            // A waiting fetch must not hold memory.
            let deadline = look.deadline;
            drop((look, room));
            let until = self.watch_until(&watch, deadline);
            tokio::select! {
                _ = timeout_at(until, watch.ready()) => {}
                () = rung => {}
                _ = self.ending.wait_for(|ends| *ends) => self.until = Instant::now(),
            }
        };
        if let Err(error) = self.service.durable(self.durable).await {
            fail(&mut self.acknowledged, error);
        }
        (self.respond(look), room)
    }

    /// Returns the memory of an answer, beside the records that lie in place.
    fn memory_bytes(&self) -> usize {
        let records = u64::try_from(self.targets.len()).unwrap_or(u64::MAX);
        let records = records.saturating_mul(self.settings.record_locks_max);
        let records = records.min(self.records_max.saturating_add(self.excess_max));
        let runs = usize::try_from(records).unwrap_or(usize::MAX);
        let partitions = self.targets.len() + self.acknowledged.len() + 1;
        (partitions * PARTITION_BYTES).saturating_add(runs.saturating_mul(RUN_BYTES))
    }

    /// Acquires the available records of all partitions.
    fn look(&mut self) -> Look {
        let mut look = Look::default();
        // They may have changed while the fetch waited.
        self.settings = self.service.settings(&self.group);
        let (group, member) = (&self.group, &self.member);
        let (service, number) = (&self.service, self.reading.number);
        let is_current = || service.sessions().is_current(group, member, number);
        if !is_current() {
            // The session has ended, so the client would never acknowledge these records.
            self.until = Instant::now();
            return look;
        }
        for target in &mut self.targets {
            let read = match &target.lane {
                Err(error) => Err(*error),
                Ok(lane) => {
                    target.seen = lane.high_watermark();
                    let (topic, partition) = target.place;
                    let key = Key {
                        group: group.clone(),
                        topic,
                        partition,
                    };
                    let wanted = Wanted {
                        member,
                        settings: &self.settings,
                        excess_max: self.excess_max,
                        records_left: self.records_max.saturating_sub(look.records),
                        bytes_left: self.bytes_max.saturating_sub(look.bytes),
                        at_least: match look.bytes {
                            0 => AtLeast::OneChunk,
                            _ => AtLeast::Nothing,
                        },
                    };
                    service.read(&key, lane, &wanted, is_current)
                }
            };
            match &read {
                Ok(read) => {
                    look.records += read.records;
                    look.bytes += read.bytes;
                    self.durable = self.durable.max(read.durable);
                    look.has_unblocked |= read.has_unblocked;
                    let deadlines = [look.deadline, read.deadline].into_iter().flatten();
                    look.deadline = deadlines.min();
                }
                Err(_) => look.has_errors = true,
            }
            look.reads.push((target.place, read));
        }
        look
    }

    /// Watches the partitions for new records; returns the end of the wait.
    fn watch_until(&mut self, watch: &Watch, deadline: Option<Duration>) -> Instant {
        for (number, target) in self.targets.iter_mut().enumerate() {
            if let Ok(lane) = &target.lane {
                let watched = &mut target.watched;
                let watched =
                    watched.get_or_insert_with(|| watch.add_high_watermark(lane, number as u64));
                watched.arm(target.seen);
            }
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(self.service.now()));
        let at = left.and_then(|left| Instant::now().checked_add(left));
        at.map_or(self.until, |at| at.min(self.until))
    }

    fn respond(self, look: Look) -> ShareFetchResponse {
        let mut partitions: BTreeMap<PartitionKey, ShareFetchedPartition> = BTreeMap::new();
        for (place, read) in look.reads {
            let response = match read {
                Ok(read) if read.acquired.is_empty() && !self.is_first => continue,
                Ok(read) => {
                    let acquired = read.acquired.iter().map(|run| {
                        AcquiredRecords::default()
                            .with_first_offset(run.first.0 as i64)
                            .with_last_offset(run.last.0 as i64)
                            .with_delivery_count(i16::try_from(run.deliveries).unwrap_or(i16::MAX))
                    });
                    ShareFetchedPartition {
                        acquired: acquired.collect(),
                        records: read.pieces,
                        ..ShareFetchedPartition::default()
                    }
                }
                Err(error) => ShareFetchedPartition {
                    error_code: error.code(),
                    error_message: Some(StrBytes::from_string(error.to_string())),
                    ..ShareFetchedPartition::default()
                },
            };
            partitions.insert(place, response);
        }
        for acknowledged in self.acknowledged {
            let place = (
                TopicId(acknowledged.topic.as_u128()),
                Partition(acknowledged.partition),
            );
            let response = partitions.entry(place).or_default();
            if let Err(failed) = acknowledged.result {
                response.acknowledge_error_code = failed.error.code();
                response.acknowledge_error_message = Some(StrBytes::from_string(failed.why));
            }
        }
        let mut topics: Vec<ShareFetchedTopic> = Vec::new();
        for ((topic, partition), response) in partitions {
            let id = Uuid::from_u128(topic.0);
            let response = ShareFetchedPartition {
                partition: partition.0,
                ..response
            };
            match topics.last_mut() {
                Some(topic) if topic.id == id => topic.partitions.push(response),
                _ => topics.push(ShareFetchedTopic {
                    id,
                    partitions: vec![response],
                }),
            }
        }
        ShareFetchResponse {
            acquisition_lock_timeout_ms: self.settings.record_lock_ms(),
            topics,
            ..ShareFetchResponse::default()
        }
    }
}
