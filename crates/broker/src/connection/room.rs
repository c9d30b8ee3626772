//! The memory of a connection's answers. It is taken before an answer is built, and the broker reads
//! no further request until then.

use std::time::Duration;

use bytes::Buf;
use millstream_wire::Pieces;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::answers::first_reply;
use super::{Connection, End, LARGE_STALL_MAX};
use crate::answer_memory::{AnswerRoom, AnswerRooms, Part, SMALL_BYTES_MAX};
use crate::requests::Bound;

/// The most memory of answers that a connection takes for requests in progress at once. While these
/// wait, others may need the memory.
const PENDING_BYTES_MAX: usize = 128 << 10;

/// While others wait for memory, a client has to take its answers, and to send its requests, at this rate, in bytes
/// per second.
const PRESSED_RATE: usize = 256 << 10;

/// The time between two looks at whether others wait for memory.
pub const PRESSED_LOOK_EVERY: Duration = Duration::from_secs(1);

/// The memory of an answer.
pub enum Room {
    Taken(AnswerRoom),
    /// The turn to build an answer of unknown size.
    Turn {
        _permit: OwnedSemaphorePermit,
    },
    /// The answer takes its memory when the request's wait is over.
    Late,
}

impl Room {
    fn bytes(&self) -> usize {
        match self {
            Room::Taken(room) => room.bytes(),
            Room::Turn { .. } | Room::Late => 0,
        }
    }
}

/// Returns how long a client may take for its answers, or for a request, while others wait for their memory, if it has
/// taken or sent `bytes` bytes.
pub fn patience(stall_max: Duration, bytes: usize) -> Duration {
    stall_max + Duration::from_secs((bytes / PRESSED_RATE) as u64)
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Connection<S> {
    /// Takes the memory of an answer with this bound, and waits for it if need be. A connection
    /// that waits has answered all earlier requests, and so holds no memory of answers.
    pub(super) async fn room_for(&mut self, bound: Bound) -> Result<Room, End> {
        match bound {
            Bound::Late => Ok(Room::Late),
            Bound::Bytes(bytes) if bytes <= SMALL_BYTES_MAX => self.small_room(bytes).await,
            Bound::Bytes(bytes) => {
                self.answer_all().await?;
                let answers = self.broker.answers();
                let mut stop = self.stop.clone();
                tokio::select! {
                    biased;
                    room = answers.take(Part::Large, bytes) => Ok(Room::Taken(room)),
                    _ = stop.wait_for(|stop| *stop) => Err(End::Gone),
                }
            }
            Bound::State => {
                self.answer_all().await?;
                let answers = self.broker.answers();
                let mut stop = self.stop.clone();
                tokio::select! {
                    biased;
                    _permit = answers.turn() => Ok(Room::Turn { _permit }),
                    _ = stop.wait_for(|stop| *stop) => Err(End::Gone),
                }
            }
        }
    }

    async fn small_room(&mut self, bytes: usize) -> Result<Room, End> {
        loop {
            let pending: usize = self
                .pending
                .iter()
                .map(|pending| pending.room.bytes())
                .sum();
            if self.pending.is_empty() || pending + bytes <= PENDING_BYTES_MAX {
                if let Some(room) = self.broker.answers().try_take(Part::Small, bytes) {
                    return Ok(Room::Taken(room));
                }
                if self.pending.is_empty() {
                    break;
                }
            }
            self.answer_first().await?;
        }
        let answers = self.broker.answers();
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            room = answers.take(Part::Small, bytes) => Ok(Room::Taken(room)),
            _ = stop.wait_for(|stop| *stop) => Err(End::Gone),
        }
    }

    /// Answers the first request in progress.
    pub(super) async fn answer_first(&mut self) -> Result<(), End> {
        loop {
            let first = first_reply(&mut self.pending);
            match timeout(PRESSED_LOOK_EVERY, first).await {
                Ok(reply) => return self.answer(reply).await,
                Err(_) => self.check_pressed()?,
            }
        }
    }

    pub(super) async fn answer_all(&mut self) -> Result<(), End> {
        while !self.pending.is_empty() {
            self.answer_first().await?;
        }
        Ok(())
    }

    /// Returns the memory of an answer that was encoded into `bytes` bytes. If it has to wait for
    /// it, the answers before it are written first, with their memory.
    pub(super) async fn settle(
        &mut self,
        room: Room,
        bytes: usize,
        out: &mut Pieces,
        rooms: &mut AnswerRooms,
    ) -> Result<AnswerRoom, End> {
        let part = match &room {
            Room::Taken(_) => Part::Small,
            Room::Turn { .. } if bytes <= SMALL_BYTES_MAX => Part::Small,
            Room::Turn { .. } => Part::Large,
            Room::Late => Part::Late,
        };
        let _turn = match room {
            Room::Taken(mut room) => {
                debug_assert!(
                    room.covers(bytes),
                    "the answer exceeds its bound: {bytes} bytes"
                );
                room.shrink(bytes);
                return Ok(room);
            }
            room => room,
        };
        if let Some(room) = self.broker.answers().try_take(part, bytes) {
            return Ok(room);
        }
        if out.has_remaining() {
            self.write(std::mem::take(out), std::mem::take(rooms))
                .await?;
        }
        Ok(self.broker.answers().take(part, bytes).await)
    }

    /// Refuses a client whose answers stand behind a request that waits, while others need their
    /// memory.
    pub(super) fn check_pressed(&self) -> Result<(), End> {
        let Some(first) = self.pending.front() else {
            return Ok(());
        };
        let waits = matches!(first.room, Room::Late) && first.began.elapsed() > LARGE_STALL_MAX;
        let is_wanted = || {
            self.pending.iter().any(|pending| match &pending.room {
                Room::Taken(room) => room.is_wanted(),
                Room::Turn { .. } | Room::Late => false,
            })
        };
        match waits && is_wanted() {
            true => Err(End::Refused(
                "its answers wait behind a request for records, and others need the memory"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }
}
