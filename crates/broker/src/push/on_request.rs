//! Chunk delivery on request: a consumer asks for the next chunks before they exist.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use millstream_base::Cursor;
use millstream_wire::native::{DeliveredChunks, Payload, ReceiveResponse};
use millstream_wire::{ResponseError, SHARED_BYTES_MIN};
use tokio::sync::{Mutex, watch};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep_until, timeout};

use super::outlet::{Delivery, Outlet, Progress, RefusedPlace};
use crate::answer_memory::{AnswerMemory, AnswerRoom, Part};
use crate::native::refused::Refused;

/// The most pieces of one answer.
const PIECES_MAX: usize = 1024;

/// The memory of an answer with that many pieces, beside the chunks that lie in place: each piece
/// has its place in the stream, and a small one is copied.
const ANSWER_BYTES: usize = PIECES_MAX * (512 + SHARED_BYTES_MIN);

/// A subscription of a consumer that asks for each answer.
pub struct OnRequest {
    /// Locked by the request whose turn it is.
    outlet: Mutex<Outlet>,
    handed_bytes: usize,
    has_ended: watch::Sender<bool>,
}

impl OnRequest {
    pub fn new(outlet: Outlet, handed_bytes: usize) -> OnRequest {
        OnRequest {
            outlet: Mutex::new(outlet),
            handed_bytes,
            has_ended: watch::Sender::new(false),
        }
    }

    /// Ends the subscription: every request is answered with that from now on.
    pub fn end(&self) {
        self.has_ended.send_replace(true);
    }

    /// Waits for the next chunks, about `bytes_max` bytes at most. Returns nothing when there are
    /// none by `until`.
    pub async fn receive(
        &self,
        bytes_max: usize,
        until: Instant,
        mut ending: watch::Receiver<bool>,
        answers: &AnswerMemory,
    ) -> (ReceiveResponse, Option<AnswerRoom>) {
        let mut has_ended = self.has_ended.subscribe();
        let received = tokio::select! {
            biased;
            _ = has_ended.wait_for(|has_ended| *has_ended) => Err(ended()),
            received = self.next(bytes_max, answers) => received,
            _ = ending.wait_for(|ends| *ends) => Ok((Vec::new(), None)),
            // A consumer that has vanished is detected when it sends no further request.
            () = sleep_until(until) => Ok((Vec::new(), None)),
        };
        match received {
            Ok((delivered, room)) => {
                let response = ReceiveResponse {
                    delivered,
                    ..ReceiveResponse::default()
                };
                (response, room)
            }
            Err(refused) => (refused.answer(), None),
        }
    }

    /// Waits for the next chunks, and returns them with the memory of their answer. Cancelling this
    /// loses no chunk: every chunk that it has taken is in its answer.
    async fn next(
        &self,
        bytes_max: usize,
        answers: &AnswerMemory,
    ) -> Result<(Vec<DeliveredChunks>, Option<AnswerRoom>), Refused> {
        let mut outlet = self.outlet.lock().await;
        loop {
            let room = answers.take(Part::Late, ANSWER_BYTES).await;
            let handed = match outlet.has_filter() {
                // A filter takes long, and must not block the threads that answer producers.
                true => block_in_place(|| self.take(&mut outlet, bytes_max)),
                false => self.take(&mut outlet, bytes_max),
            }?;
            if !handed.is_empty() {
                return Ok((handed, Some(room)));
            }
            // A waiting request must not hold memory.
            drop(room);
            let told_in = outlet.told_in();
            let more = poll_fn(|context| match outlet.has_more(context.waker()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            match told_in {
                None => more.await,
                // After the wait the loop looks once more.
                Some(wait) => timeout(wait, more).await.unwrap_or_default(),
            }
        }
    }

    /// Returns the chunks that are available now.
    fn take(&self, outlet: &mut Outlet, bytes_max: usize) -> Result<Vec<DeliveredChunks>, Refused> {
        let mut handed = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_max && handed.len() < PIECES_MAX {
            let room = (bytes_max - bytes).min(self.handed_bytes);
            match outlet.next(room) {
                Ok(Delivery::Chunks(progress, chunks)) => {
                    bytes += chunks.len();
                    handed.push(delivered(progress, Some(Bytes::from(chunks))));
                }
                Ok(Delivery::Passed(progress)) => {
                    handed.push(delivered(progress, None));
                    // Other tasks get their turn.
                    break;
                }
                Ok(Delivery::Refused(place)) => handed.push(refused(place)),
                Ok(Delivery::Nothing | Delivery::Busy) => break,
                // The next request reports the error.
                Err(_) if !handed.is_empty() => break,
                Err(refused) => return Err(refused),
            }
        }
        Ok(handed)
    }
}

fn ended() -> Refused {
    Refused::new(
        ResponseError::ResourceNotFound,
        "the subscription has ended",
    )
}

fn delivered(progress: Progress, chunks: Option<Bytes>) -> DeliveredChunks {
    DeliveredChunks {
        lane: progress.place,
        error_code: 0,
        error_message: None,
        from: progress.from,
        next: progress.next,
        end: progress.end,
        cursor: progress.cursor,
        chunks: Payload::from(chunks.unwrap_or_default()),
    }
}

fn refused(place: RefusedPlace) -> DeliveredChunks {
    DeliveredChunks {
        lane: place.place,
        error_code: place.refused.code(),
        error_message: place.refused.message(),
        from: place.earliest,
        next: place.earliest,
        end: place.earliest,
        cursor: Cursor::default(),
        chunks: Payload::default(),
    }
}
