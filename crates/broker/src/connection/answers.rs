//! The answers of a connection: in the order of the requests, to a client that may be slow.
//!
//! An encoded answer keeps its memory until it is written. Meanwhile the connection reads no
//! further requests.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::Buf;
use millstream_pool::Measured;
use millstream_wire::{Pieces, RequestHeader, Response, encode_response};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::room::{PRESSED_LOOK_EVERY, Room, patience};
use super::{Connection, End, LARGE_STALL_MAX};
use crate::answer_memory::{AnswerRooms, Part, SMALL_BYTES_MAX};
use crate::reply::Reply;
use crate::requests::{clear_messages, has_error, tell_throttle};
use crate::security::Traffic;

/// Answers that are ready at the same time are written together, up to about this many bytes.
const WRITE_BYTES: usize = 256 << 10;

/// A client that takes longer than this for an answer is slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// A request that is not answered yet.
pub struct Pending {
    pub header: RequestHeader,
    /// When the broker began to work on it.
    pub began: Instant,
    /// How long the client is held for this request.
    pub wait: Option<Duration>,
    /// Measures the request until it is answered, if its kind has an objective and it waits for no event.
    pub _measured: Option<Measured>,
    /// Whether the bytes of the answer will be taken from the client's quota.
    pub is_limited: bool,
    pub reply: Reply,
    /// The memory of the answer.
    pub room: Room,
    /// The memory of the request.
    pub _memory: OwnedSemaphorePermit,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Connection<S> {
    /// Sends the first pending reply, and those behind it that are ready by now.
    pub(super) async fn answer(&mut self, reply: Reply) -> Result<(), End> {
        let mut out = Pieces::default();
        let mut rooms = AnswerRooms::default();
        let mut reply = Some(reply);
        while let Some(next) = reply.take() {
            let Some(mut pending) = self.pending.pop_front() else {
                break;
            };
            let next = match next {
                Reply::Counted(response, room) => {
                    pending.room = Room::Taken(room);
                    Reply::Now(response)
                }
                next => next,
            };
            let counters = &self.broker.counters;
            let (api, time) = (pending.header.api, pending.began.elapsed());
            match &next {
                Reply::Now(response) => counters.answered(api, time, has_error(response)),
                Reply::Nothing => counters.answered(api, time, false),
                _ => {}
            }
            match next {
                Reply::Now(mut response) => {
                    clear_messages(&mut response);
                    let mut pieces = encode(&pending, &response)?;
                    let (sent, bytes) = (Traffic::Consumed, pieces.remaining());
                    let wait = self.throttle(&pending.header, sent, bytes);
                    if let Some(wait) = pending.wait.or(wait)
                        && tell_throttle(&mut response, wait)
                    {
                        pieces = encode(&pending, &response)?;
                    }
                    drop(response);
                    let bytes = pieces.remaining() - pieces.in_place_bytes();
                    let room = self.settle(pending.room, bytes, &mut out, &mut rooms);
                    let room = room.await?;
                    rooms.add(room);
                    out.append(pieces);
                }
                Reply::Nothing => {}
                Reply::Close(why) => return self.close(out, rooms, why).await,
                Reply::Later(_) | Reply::Alone(_) | Reply::Counted(..) => {
                    unreachable!("a reply that was waited for is whole")
                }
            }
            if self.client.is_refused() {
                let why = "it has not logged in".to_owned();
                return self.close(out, rooms, why).await;
            }
            if out.remaining() < WRITE_BYTES {
                reply = ready_reply(&mut self.pending).await;
            }
        }
        self.write(out, rooms).await
    }

    /// Sends the remaining pieces, and closes.
    async fn close(&mut self, pieces: Pieces, rooms: AnswerRooms, why: String) -> Result<(), End> {
        self.write(pieces, rooms).await?;
        Err(End::Refused(why))
    }

    /// Sends answers, and gives their memory back.
    pub(super) async fn write(
        &mut self,
        mut pieces: Pieces,
        rooms: AnswerRooms,
    ) -> Result<(), End> {
        let (began, bytes) = (Instant::now(), pieces.remaining());
        let in_time = timeout_at(began + SLOW_AFTER, self.write_all(&mut pieces, &rooms)).await;
        let written = match in_time {
            Ok(written) => written,
            Err(_) => self.write_slowly(pieces, rooms).await,
        };
        self.client.pace_mut().took(bytes, began.elapsed());
        written
    }

    async fn write_all(&mut self, pieces: &mut Pieces, rooms: &AnswerRooms) -> Result<(), End> {
        let stall_max: Duration = self.broker.config().write_stall_max;
        let look_every = PRESSED_LOOK_EVERY.min(stall_max);
        let (began, bytes) = (Instant::now(), pieces.remaining());
        let mut moved = began;
        while pieces.has_remaining() {
            match timeout(look_every, self.writer.write_buf(pieces)).await {
                Ok(Ok(0)) => return Err(End::Gone),
                Ok(written) => {
                    written?;
                    moved = Instant::now();
                }
                Err(_) if moved.elapsed() >= stall_max => {
                    return Err(End::Refused(format!(
                        "it has taken nothing of an answer for {} s",
                        stall_max.as_secs()
                    )));
                }
                Err(_) => {}
            }
            let taken = bytes - pieces.remaining();
            if rooms.are_wanted() && began.elapsed() > patience(LARGE_STALL_MAX, taken) {
                let why = "it takes its answer slowly, and others need the memory";
                return Err(End::Refused(why.to_owned()));
            }
        }
        Ok(())
    }

    /// Copies the rest of the answer if parts of it lie in place, where they would hold segments,
    /// and other readers' disk buffers.
    async fn write_slowly(
        &mut self,
        mut pieces: Pieces,
        mut rooms: AnswerRooms,
    ) -> Result<(), End> {
        if pieces.in_place_bytes() > 0 {
            let bytes = pieces.remaining();
            let part = match bytes <= SMALL_BYTES_MAX {
                true => Part::Small,
                false => Part::Late,
            };
            let Some(room) = self.broker.answers().try_take(part, bytes) else {
                let why = "it does not take its answer, and there is no memory to keep it";
                return Err(End::Refused(why.to_owned()));
            };
            rooms = AnswerRooms::default();
            rooms.add(room);
            pieces = Pieces::from_iter([pieces.into_copy()]);
        }
        self.write_all(&mut pieces, &rooms).await
    }
}

fn encode(pending: &Pending, response: &Response) -> Result<Pieces, End> {
    let pieces = encode_response(&pending.header, response);
    pieces.map_err(|error| End::Refused(error.to_string()))
}

/// Waits for the reply to the first request. Cancelling this loses nothing.
pub async fn first_reply(pending: &mut VecDeque<Pending>) -> Reply {
    poll_fn(|context| {
        let Some(first) = pending.front_mut() else {
            return Poll::Pending;
        };
        loop {
            match &mut first.reply {
                Reply::Later(answer) | Reply::Alone(answer) => {
                    match answer.as_mut().poll(context) {
                        Poll::Ready(reply) => first.reply = reply,
                        Poll::Pending => return Poll::Pending,
                    }
                }
                reply => return Poll::Ready(std::mem::replace(reply, Reply::Nothing)),
            }
        }
    })
    .await
}

/// Returns the reply to the first request if it is ready.
async fn ready_reply(pending: &mut VecDeque<Pending>) -> Option<Reply> {
    if pending.is_empty() {
        return None;
    }
    tokio::select! {
        biased;
        reply = first_reply(pending) => Some(reply),
        () = std::future::ready(()) => None,
    }
}
