//! Fetch: chunks go from their segments to the connection, in place.

mod begin;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_log::{AtLeast, LogError, ReadSpan, Watch, Watched};
use millstream_wire::messages::FetchRequest;
use millstream_wire::messages::fetch_response::AbortedTransaction;
use millstream_wire::{
    FetchResponse, FetchedPartition, FetchedTopic, ResponseError, SHARED_BYTES_MIN,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use self::begin::{Begun, begin};
use super::bounds::{Bound, BoundContext};
use super::handle::{Handle, Refusal, each, errors, tell_throttle};
use super::offsets::READ_COMMITTED;
use super::rights::Check;
use crate::answer_memory::{AnswerRoom, Part};
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::fetch::session::{Partition, Reported, Session};
use crate::objectives::woken;
use crate::reply::Reply;
use crate::security::Traffic;

/// From this version on topics have ids instead of names.
const TOPIC_ID_FROM: i16 = 13;

/// The first version with an error for the whole request.
const ERROR_FROM: i16 = 7;

/// Reads batches of records, and waits for new ones.
impl Handle for FetchRequest {
    const CHECKS: &'static [Check] = &[Check::Handler];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Consumed);

    fn refuse(&self, refusal: &Refusal) -> FetchResponse {
        if refusal.version >= ERROR_FROM {
            return FetchResponse {
                error_code: refusal.code,
                ..FetchResponse::default()
            };
        }
        let topics = each(&self.topics, |topic| FetchedTopic {
            name: topic.topic.clone(),
            id: topic.topic_id,
            partitions: each(&topic.partitions, |partition| FetchedPartition {
                partition: partition.partition,
                error_code: refusal.code,
                ..FetchedPartition::default()
            }),
        });
        FetchResponse {
            topics,
            ..FetchResponse::default()
        }
    }

    errors!(error_code, topics.partitions.error_code);
    tell_throttle!();

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        fetch(broker, client, version, self)
    }
}

/// Answers when there is enough to read, or the client has waited long enough.
fn fetch(broker: &Arc<Broker>, client: &mut Client, version: i16, request: FetchRequest) -> Reply {
    let wait_max = Duration::from_millis(request.max_wait_ms.max(0) as u64);
    let bytes_max = request.max_bytes.max(0) as usize;
    let bytes_max = bytes_max.min(client.answer_bytes_max());
    let bounds = Bounds {
        is_committed: request.isolation_level == READ_COMMITTED,
        until: Instant::now() + wait_max.min(broker.config().idle_max),
        bytes_min: bytes_max.min(request.min_bytes.max(0) as usize),
        bytes_max,
        ending: client.ending(),
    };
    let has_ids = version >= TOPIC_ID_FROM;
    let begun = begin(&broker.sessions, client, broker.random(), has_ids, request);
    match begun {
        Ok(begun) => Reply::counted(answer(begun, bounds, Arc::clone(broker))),
        Err(error) => FetchResponse {
            error_code: error.code(),
            ..FetchResponse::default()
        }
        .into(),
    }
}

/// An answer's own memory, with that of a small piece of records.
const ANSWER_BYTES: usize = 4 << 10;

/// The memory of a partition in an answer, beside its records.
const PARTITION_BYTES: usize = 512;

/// The memory of a piece of records, which lies elsewhere, and of an aborted transaction.
const PIECE_BYTES: usize = 128;

/// The pause before the next read, when all memory for reads of files is in use. Freed blocks wake no fetch: the broker frees
/// some at each eviction, and for each read that fails after a part of its work.
const MEMORY_PAUSE: Duration = Duration::from_millis(20);

/// The limits of an answer, and its deadline.
struct Bounds {
    /// Whether the client reads committed records only.
    is_committed: bool,
    until: Instant,
    bytes_min: usize,
    bytes_max: usize,
    /// Becomes `true` when the broker ends.
    ending: watch::Receiver<bool>,
}

async fn answer(
    begun: Begun,
    mut bounds: Bounds,
    broker: Arc<Broker>,
) -> (FetchResponse, AnswerRoom) {
    let mut session = begun.session.lock().await;
    // There may be records already: then the fetch is measured from here on.
    let mut measured = broker.objectives.begin_fetch(Instant::now());
    let names_bytes = session.names_bytes();
    let mut bytes = ANSWER_BYTES + names_bytes + session.partitions.len() * PARTITION_BYTES;
    loop {
        let mut room = broker.answers().take(Part::Late, bytes).await;
        let old_bytes_max = broker.old_data.bytes_max(&broker.counters);
        let mut round = read(
            &mut session,
            bounds.is_committed,
            bounds.bytes_max,
            old_bytes_max,
        );
        let needed = names_bytes + round.memory_bytes();
        if !room.grow(needed) {
            // Nothing waits between the read and this, so this memory is soon free.
            bytes = needed + needed / 4;
            continue;
        }
        let is_enough = round.bytes >= bounds.bytes_min || round.is_full || round.has_errors;
        if !is_enough && let Some(measured) = measured.take() {
            measured.take_back();
        }
        if is_enough || Instant::now() >= bounds.until {
            if begun.is_new {
                // A full answer covers each partition once.
                round
                    .reported
                    .iter_mut()
                    .for_each(|reported| *reported = true);
            }
            return (session.response(&begun, round), room);
        }
        let until = match round.is_short {
            true => bounds.until.min(Instant::now() + MEMORY_PAUSE),
            false => bounds.until,
        };
        // A waiting fetch must not hold the memory of the records it has read.
        drop((round, room));
        tokio::select! {
            woken_at = session.wait(until, broker.objectives.has_fetch()) => {
                measured = woken_at.and_then(|at| broker.objectives.begin_fetch(at));
            }
            _ = bounds.ending.wait_for(|ends| *ends) => bounds.until = Instant::now(),
        }
    }
}

/// The result of one pass over the partitions of a session.
struct Round {
    /// In the order of the session's partitions.
    fetched: Vec<FetchedPartition>,
    /// The partitions with news for the client.
    reported: Vec<bool>,
    /// The parts of the partitions that were read.
    spans: Vec<Option<ReadSpan>>,
    bytes: usize,
    has_errors: bool,
    /// Whether there is more than fits.
    is_full: bool,
    /// Whether a partition has more, and no memory was free to read it.
    is_short: bool,
}

impl Round {
    /// Returns the memory of the answer, beside the records that lie in place.
    fn memory_bytes(&self) -> usize {
        let of_partition = |fetched: &FetchedPartition| {
            let small = fetched.records.iter().map(Bytes::len);
            let copied: usize = small.filter(|bytes| *bytes < SHARED_BYTES_MIN).sum();
            let aborted = fetched.aborted_transactions.as_ref().map_or(0, Vec::len);
            let pieces = fetched.records.len() + aborted;
            PARTITION_BYTES + pieces.saturating_sub(1) * PIECE_BYTES + 2 * copied
        };
        self.fetched.iter().map(of_partition).sum::<usize>() + PARTITION_BYTES
    }
}

/// Reads all partitions in turn. The first is the one after the last answer's first, so that none
/// starves behind those before it. Of data that is not in memory it reads about `old_bytes_max`.
fn read(
    session: &mut Session,
    is_committed: bool,
    bytes_max: usize,
    old_bytes_max: usize,
) -> Round {
    let count = session.partitions.len();
    let mut round = Round {
        fetched: vec![FetchedPartition::default(); count],
        reported: vec![false; count],
        spans: vec![None; count],
        bytes: 0,
        has_errors: false,
        is_full: false,
        is_short: false,
    };
    let first = session.first;
    let mut old_bytes_left = old_bytes_max;
    for index in (0..count).map(|index| (first + index) % count.max(1)) {
        let partition = &mut session.partitions[index];
        let mut room = bytes_max
            .saturating_sub(round.bytes)
            .min(partition.bytes_max);
        let is_old = old_bytes_max < usize::MAX && partition.is_old();
        if is_old {
            room = room.min(old_bytes_left);
        }
        let at_least = match round.bytes {
            0 => AtLeast::OneChunk,
            _ => AtLeast::Nothing,
        };
        let PartitionRead {
            fetched,
            span,
            has_more,
            is_short,
        } = read_partition(partition, is_committed, room, at_least);
        let bytes: usize = fetched.records.iter().map(|piece| piece.len()).sum();
        let has_error = fetched.error_code != 0;
        round.bytes += bytes;
        if is_old {
            old_bytes_left = old_bytes_left.saturating_sub(bytes);
        }
        round.has_errors |= has_error;
        round.is_full |= bytes > 0 && has_more;
        round.is_short |= is_short;
        round.reported[index] =
            bytes > 0 || has_error || partition.reported != Some(Reported::of(&fetched));
        partition.seen = u64::try_from(fetched.high_watermark).map_or(Offset(0), Offset);
        round.fetched[index] = fetched;
        round.spans[index] = span;
    }
    // The memory of these records may be the memory that is missing.
    round.is_full |= round.is_short && round.bytes > 0;
    round
}

/// The result of a read of one partition.
#[derive(Default)]
struct PartitionRead {
    fetched: FetchedPartition,
    /// The part of the partition that was read.
    span: Option<ReadSpan>,
    /// Whether there is more to read.
    has_more: bool,
    /// Whether no memory was free to read it.
    is_short: bool,
}

/// Reads one partition.
fn read_partition(
    partition: &Partition,
    is_committed: bool,
    bytes_max: usize,
    at_least: AtLeast,
) -> PartitionRead {
    let refused = |error: ResponseError| PartitionRead {
        fetched: FetchedPartition {
            partition: partition.place.partition,
            error_code: error.code(),
            ..FetchedPartition::default()
        },
        ..PartitionRead::default()
    };
    let lane = match &partition.lane {
        Ok(lane) => lane,
        Err(error) => return refused(*error),
    };
    let readable = lane.high_watermark();
    let stable = lane.last_stable_offset();
    let end = if is_committed { stable } else { readable };
    let mut result = PartitionRead {
        fetched: FetchedPartition {
            partition: partition.place.partition,
            high_watermark: readable.0 as i64,
            last_stable_offset: stable.0 as i64,
            log_start_offset: lane.earliest_offset().0 as i64,
            ..FetchedPartition::default()
        },
        ..PartitionRead::default()
    };
    let Ok(from) = u64::try_from(partition.offset) else {
        return refused(ResponseError::OffsetOutOfRange);
    };
    if bytes_max == 0 && at_least == AtLeast::Nothing {
        return result;
    }
    match lane.fetch(Offset(from), end.max(Offset(from)), bytes_max, at_least) {
        Ok(read) => {
            if is_committed {
                match lane.aborted_transactions(Offset(from), read.next) {
                    Ok(aborted) => result.fetched.aborted_transactions = Some(aborted_of(&aborted)),
                    Err(error) => return refused(response_error(&error)),
                }
            }
            result.span = read.span;
            result.has_more = read.next < end;
            result.fetched.records = read.into_bytes().collect();
        }
        Err(LogError::ReadBudget) => result.is_short = true,
        Err(error) => result.fetched.error_code = response_error(&error).code(),
    }
    result
}

fn aborted_of(aborted: &[millstream_log::AbortedTransaction]) -> Vec<AbortedTransaction> {
    let aborted = aborted.iter().map(|aborted| {
        AbortedTransaction::default()
            .with_producer_id(aborted.producer.0.into())
            .with_first_offset(aborted.first_offset.0 as i64)
    });
    aborted.collect()
}

impl Session {
    /// Returns the memory of the topics' names in an answer.
    fn names_bytes(&self) -> usize {
        let mut last: &str = "";
        let mut bytes = 0;
        for partition in &self.partitions {
            let name: &str = &partition.place.name;
            if name != last {
                bytes += 3 * name.len();
                last = name;
            }
        }
        bytes
    }

    /// Waits until a partition has more than at the last look, or until `until`. Returns the time at which there was more, if it
    /// is wanted.
    async fn wait(&mut self, until: Instant, wants_time: bool) -> Option<Instant> {
        let watch = self.watch.get_or_insert_with(Watch::default);
        for (key, partition) in self.partitions.iter_mut().enumerate() {
            let Ok(lane) = &partition.lane else {
                continue;
            };
            let watched = &mut partition.watched;
            let watched: &Watched =
                watched.get_or_insert_with(|| watch.add_high_watermark(lane, key as u64));
            watched.arm(partition.seen);
        }
        match wants_time {
            true => {
                let ready = timeout_at(until, woken(watch.ready())).await;
                ready.ok().map(|(_, at)| at)
            }
            false => {
                let _ = timeout_at(until, watch.ready()).await;
                None
            }
        }
    }

    fn response(&mut self, begun: &Begun, round: Round) -> FetchResponse {
        let count = self.partitions.len();
        self.first = if count == 0 {
            0
        } else {
            (self.first + 1) % count
        };
        // Not before: a fetch that waits for more reads again from the same offset.
        for (partition, span) in self.partitions.iter().zip(&round.spans) {
            if let (Ok(lane), Some(span)) = (&partition.lane, span) {
                lane.note_read(*span);
            }
        }
        let mut topics: Vec<FetchedTopic> = Vec::new();
        let partitions = self
            .partitions
            .iter_mut()
            .zip(round.fetched)
            .zip(round.reported);
        for ((partition, fetched), reported) in partitions {
            if begun.is_incremental && !reported {
                continue;
            }
            partition.reported = Some(Reported::of(&fetched));
            let (name, id) = (&partition.place.name, partition.place.id);
            match topics.last_mut() {
                Some(topic) if topic.name == *name && topic.id == id => {
                    topic.partitions.push(fetched);
                }
                _ => topics.push(FetchedTopic {
                    name: name.clone(),
                    id,
                    partitions: vec![fetched],
                }),
            }
        }
        FetchResponse {
            session_id: begun.session_id,
            topics,
            ..FetchResponse::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::Timestamp;
    use millstream_log::{Log, LogConfig, StreamConfig, StreamPartition};
    use millstream_record::{ChunkBuilder, Compression};
    use millstream_wire::Uuid;
    use millstream_wire::messages::TopicName;

    use super::*;
    use crate::fetch::session::place;

    fn append(lane: &StreamPartition) {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder
            .push(Timestamp(0), None, Some(b"value"), &[])
            .unwrap();
        let appended = lane.append(builder.finish(None).unwrap()).unwrap();
        lane.wait_durable(appended.next_offset).unwrap();
    }

    /// Available data that is not enough yet must not wake the fetch again and again.
    #[tokio::test]
    async fn only_records_after_the_last_look_wake_a_waiting_fetch() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::new(dir.path())).unwrap();
        let stream = log.create_stream("t", StreamConfig::default()).unwrap();
        let lane = stream.partition(0).unwrap();
        append(&lane);
        let mut session = Session::default();
        session.partitions.push(Partition {
            place: place(&TopicName::default(), Uuid::nil(), false, 0),
            lane: Ok(lane.clone()),
            offset: 0,
            bytes_max: usize::MAX,
            reported: None,
            seen: Offset(0),
            watched: None,
        });
        let round = read(&mut session, false, usize::MAX, usize::MAX);
        assert!(round.bytes > 0);
        let until = Instant::now() + Duration::from_millis(200);
        session.wait(until, false).await;
        assert!(Instant::now() >= until);
        append(&lane);
        let until = Instant::now() + Duration::from_secs(60);
        let woken_at = session.wait(until, true).await;
        assert!(woken_at.is_some_and(|at| at < until));
    }
}
