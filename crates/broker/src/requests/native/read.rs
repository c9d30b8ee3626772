//! Reads chunks from cursors on: they go from their segments to the connection, in place.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Cursor, Offset};
use millstream_log::{
    Log, LogError, STREAM_PARTITIONS_MAX, StreamPartition, WINDOW_BYTES, Watch, Watched,
};
use millstream_wire::native::{Payload, ReadChunksRequest, ReadChunksResponse, ReadFromCursor};
use millstream_wire::{ResponseError, SHARED_BYTES_MIN, StrBytes};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::unknown::{put, take_unknown};
use crate::access::NO_SUCH_ID;
use crate::answer_memory::{AnswerMemory, AnswerRoom, Part};
use crate::broker::Broker;
use crate::client::Client;
use crate::native::find::{stream_of, unknown_id};
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Edit, Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, UNKNOWN_ID, need_listed};
use crate::security::{Operation, Traffic};

/// The most cursors of one request: as many as a stream has partitions.
pub const CURSORS_MAX: usize = STREAM_PARTITIONS_MAX as usize;

/// An answer's own memory, with that of a few pieces.
const ANSWER_BYTES: usize = 2 << 10;

/// The memory of a cursor in an answer, beside its chunks.
const READ_BYTES: usize = 320;

/// The memory of a piece of chunks, which lies elsewhere.
const PIECE_BYTES: usize = 128;

/// The most pieces of one answer.
const PIECES_MAX: usize = 1024;

/// The longest wait. The broker notices a closed connection only after it.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Reads durable chunks from several positions.
impl Handle for ReadChunksRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Ids];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Consumed);

    fn check(&self, client: &Client, _: i16) -> Checked {
        let mut cursors = self.cursors.iter();
        cursors.try_for_each(|cursor| need_listed(client, Operation::Read, cursor.stream))
    }

    fn withhold_unknown(&mut self, client: &Client) -> Option<Edit<Self>> {
        // Larger requests are refused as a whole, before any lookup.
        if self.cursors.len() > CURSORS_MAX {
            return None;
        }
        let unknown = take_unknown(client, &mut self.cursors)?;
        // The client gets the errors at once.
        self.wait_ms_max = 0;
        Some(Box::new(move |answer| {
            if answer.error_code == 0 {
                put(&mut answer.reads, unknown, |cursor| ReadFromCursor {
                    error_code: UNKNOWN_ID.code(),
                    error_message: Some(StrBytes::from_static_str(NO_SUCH_ID)),
                    next: cursor,
                    chunks: Payload::default(),
                });
            }
        }))
    }

    refuse_with_message!();
    errors!(error_code, reads.error_code);
    tell_throttle!();

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        read(broker, client, self)
    }
}

/// Answers when there is enough to read, or the client has waited long enough.
fn read(broker: &Arc<Broker>, client: &Client, request: ReadChunksRequest) -> Reply {
    if request.cursors.len() > CURSORS_MAX {
        return Refused::too_many("cursors", CURSORS_MAX)
            .answer::<ReadChunksResponse>()
            .into();
    }
    let bytes_max = (request.bytes_max as usize).min(client.answer_bytes_max());
    let wait = Duration::from_millis(request.wait_ms_max.into()).min(WAIT_MAX);
    let bounds = Bounds {
        // There is always room for the first chunk.
        bytes_max: bytes_max.max(1),
        bytes_min: (request.bytes_min as usize).min(bytes_max),
        until: Instant::now() + wait,
        ending: client.ending(),
    };
    let answers = Arc::clone(broker.answers());
    Reply::counted(answer(
        broker.log().clone(),
        request.cursors,
        bounds,
        answers,
    ))
}

/// The limits of an answer, and its deadline.
struct Bounds {
    bytes_max: usize,
    bytes_min: usize,
    until: Instant,
    /// Becomes `true` when the broker ends.
    ending: watch::Receiver<bool>,
}

impl Bounds {
    fn are_met_by(&self, round: &Round) -> bool {
        round.has_errors
            || round.reads.is_empty()
            || round.bytes >= self.bytes_min
            || Instant::now() >= self.until
    }
}

async fn answer(
    log: Log,
    cursors: Vec<Cursor>,
    mut bounds: Bounds,
    answers: Arc<AnswerMemory>,
) -> (ReadChunksResponse, AnswerRoom) {
    let mut lanes: Option<Lanes> = None;
    let mut bytes = cursors.len() * READ_BYTES + ANSWER_BYTES;
    loop {
        let mut room = answers.take(Part::Late, bytes).await;
        if let Some(lanes) = &mut lanes {
            lanes.note_heads();
        }
        let round = Round::read(&log, &cursors, bounds.bytes_max);
        let needed = round.memory_bytes();
        if !room.grow(needed) {
            // Nothing waits between the read and this, so this memory is soon free.
            bytes = needed + needed / 4;
            continue;
        }
        if bounds.are_met_by(&round) {
            let response = ReadChunksResponse {
                reads: round.reads,
                ..ReadChunksResponse::default()
            };
            return (response, room);
        }
        // A waiting request must not hold the memory of the records it has read.
        drop((round, room));
        match &lanes {
            Some(lanes) => tokio::select! {
                () = lanes.wait(bounds.until) => {}
                _ = bounds.ending.wait_for(|ends| *ends) => bounds.until = Instant::now(),
            },
            // The next pass reads once more, and knows the earlier high watermarks.
            None => lanes = Some(Lanes::of(&log, &cursors)),
        }
    }
}

/// The partitions that a request reads from.
struct Lanes {
    watch: Watch,
    lanes: Vec<WatchedLane>,
}

struct WatchedLane {
    lane: StreamPartition,
    watched: Watched,
    /// The high watermark before the last read.
    head: Offset,
}

impl Lanes {
    fn of(log: &Log, cursors: &[Cursor]) -> Lanes {
        let watch = Watch::default();
        let mut known = HashSet::new();
        let mut lanes = Vec::new();
        for cursor in cursors {
            let stream = log.stream_by_id(cursor.stream);
            let lane =
                stream.and_then(|stream| stream.partition_of_group(cursor.streamlet, cursor.group));
            // The next read reports a partition that is gone.
            let Ok(lane) = lane else { continue };
            if known.insert(lane.id()) {
                lanes.push(WatchedLane {
                    watched: watch.add(&lane, lanes.len() as u64),
                    head: Offset(0),
                    lane,
                });
            }
        }
        Lanes { watch, lanes }
    }

    fn note_heads(&mut self) {
        for lane in &mut self.lanes {
            lane.head = lane.lane.durable_offset();
        }
    }

    /// Waits until a partition has more than at the noted high watermark, or until the deadline.
    async fn wait(&self, until: Instant) {
        for lane in &self.lanes {
            lane.watched.arm(lane.head);
        }
        // In both cases the next pass reads the available chunks.
        let _ = timeout_at(until, self.watch.ready()).await;
    }
}

/// The result of one pass over the cursors.
struct Round {
    /// In the order of the cursors.
    reads: Vec<ReadFromCursor>,
    bytes: usize,
    has_errors: bool,
}

impl Round {
    /// Returns the memory of the answer, beside the chunks that lie in place.
    fn memory_bytes(&self) -> usize {
        let of_read = |read: &ReadFromCursor| {
            let message = read.error_message.as_ref().map_or(0, |told| told.len());
            let small = read.chunks.0.iter().map(Bytes::len);
            let copied: usize = small.filter(|bytes| *bytes < SHARED_BYTES_MIN).sum();
            READ_BYTES + read.chunks.0.len() * PIECE_BYTES + 3 * message + 2 * copied
        };
        READ_BYTES + self.reads.iter().map(of_read).sum::<usize>()
    }

    /// Reads the available chunks: a window from each cursor in turn, until no cursor has more or
    /// the answer is full.
    fn read(log: &Log, cursors: &[Cursor], bytes_max: usize) -> Round {
        let mut round = Round {
            reads: cursors.iter().copied().map(nothing_from).collect(),
            bytes: 0,
            has_errors: false,
        };
        let mut pieces = 0;
        let mut open: Vec<usize> = (0..cursors.len()).collect();
        let mut is_first_turn = true;
        while !open.is_empty() {
            let mut is_full = false;
            open.retain(|&index| {
                let room = bytes_max.saturating_sub(round.bytes);
                is_full = room == 0 || pieces == PIECES_MAX;
                if is_full {
                    return true;
                }
                let read = &mut round.reads[index];
                match read_some(log, &read.next, room.min(WINDOW_BYTES)) {
                    Ok(Some((bytes, next))) => {
                        round.bytes += bytes.len();
                        pieces += 1;
                        read.chunks.0.push(bytes);
                        read.next = next;
                        true
                    }
                    Ok(None) => false,
                    Err(refusal) => {
                        // The chunks before are good, and the next request reports the error.
                        if is_first_turn {
                            refusal.put_into(read);
                            round.has_errors = true;
                        }
                        false
                    }
                }
            });
            if is_full {
                break;
            }
            is_first_turn = false;
        }
        round
    }
}

fn nothing_from(cursor: Cursor) -> ReadFromCursor {
    ReadFromCursor {
        error_code: 0,
        error_message: None,
        next: cursor,
        chunks: Payload::default(),
    }
}

/// The reason why a cursor cannot be read, and the earliest readable offset.
struct CursorRefused {
    refused: Refused,
    earliest: Option<Cursor>,
}

impl CursorRefused {
    fn put_into(self, read: &mut ReadFromCursor) {
        read.error_code = self.refused.code();
        read.error_message = self.refused.message();
        if let Some(earliest) = self.earliest {
            read.next = earliest;
        }
    }
}

/// Returns whole chunks from a cursor on, and where they end; `None` at the high watermark.
fn read_some(
    log: &Log,
    cursor: &Cursor,
    bytes_max: usize,
) -> Result<Option<(Bytes, Cursor)>, CursorRefused> {
    let refuse = |refused| CursorRefused {
        refused,
        earliest: None,
    };
    stream_of(log, cursor.stream).map_err(refuse)?;
    match log.read(cursor, bytes_max) {
        Ok(read) => Ok(read.map(|read| (Bytes::from(read.bytes), read.next))),
        Err(LogError::UnknownStream { .. }) => Err(refuse(unknown_id(cursor.stream))),
        Err(error @ LogError::ReadBudget) => Err(refuse(Refused::new(
            ResponseError::ThrottlingQuotaExceeded,
            error.to_string(),
        ))),
        Err(error) => {
            let earliest = match &error {
                LogError::CursorRemoved { earliest, .. } => Some(*earliest),
                _ => None,
            };
            let refused = Refused::from(error);
            Err(CursorRefused { refused, earliest })
        }
    }
}
