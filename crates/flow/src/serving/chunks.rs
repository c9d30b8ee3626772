//! Bodies of responses that are sent piece by piece.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

/// The bytes of a body that wait for the client, beside the last chunk.
const WAITING_BYTES_MAX: usize = 64 << 10;

/// Sends the body of a response. Dropped, it ends the body; dropped by a panic, it aborts the body.
pub struct Chunks {
    body: Arc<Body>,
}

/// Takes the chunks of a body. When the last clone is dropped, the sender gets errors.
#[derive(Clone)]
pub struct ChunkReader {
    end: Arc<ReadEnd>,
}

/// A chunk that cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkSendError {
    /// The client has gone, or its time is over.
    #[error("the client does not read the body any more")]
    Gone,
    /// [`Chunks::try_send`] would have to wait.
    #[error("the client is slow, and too many bytes wait for it")]
    Full,
}

millstream_base::debug_as_display!(ChunkSendError);

struct Body {
    state: Mutex<State>,
    /// Notified when there is room, and when the reader has gone.
    room: Condvar,
}

#[derive(Default)]
struct State {
    chunks: VecDeque<Bytes>,
    waiting_bytes: usize,
    end: Option<End>,
    has_reader: bool,
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
enum End {
    Whole,
    Aborted,
}

/// Makes both ends of a body.
pub(super) fn chunks() -> (Chunks, ChunkReader) {
    let state = State {
        has_reader: true,
        ..State::default()
    };
    let body = Arc::new(Body {
        state: Mutex::new(state),
        room: Condvar::new(),
    });
    let end = Arc::new(ReadEnd {
        body: Arc::clone(&body),
    });
    (Chunks { body }, ChunkReader { end })
}

impl Chunks {
    /// Sends a chunk, and waits while 64 KiB wait for the client.
    ///
    /// # Errors
    /// [`ChunkSendError::Gone`].
    pub fn send(&self, chunk: impl Into<Bytes>) -> Result<(), ChunkSendError> {
        let mut state = self.body.state.lock();
        while state.has_reader && state.waiting_bytes >= WAITING_BYTES_MAX {
            self.body.room.wait(&mut state);
        }
        state.put(chunk.into())
    }

    /// Sends a chunk if it does not have to wait.
    ///
    /// # Errors
    /// [`ChunkSendError::Gone`], or [`ChunkSendError::Full`] if the chunk would have to wait.
    pub fn try_send(&self, chunk: impl Into<Bytes>) -> Result<(), ChunkSendError> {
        let mut state = self.body.state.lock();
        if state.has_reader && state.waiting_bytes >= WAITING_BYTES_MAX {
            return Err(ChunkSendError::Full);
        }
        state.put(chunk.into())
    }

    /// Ends the body so that the client sees that it is not whole.
    pub fn abort(self) {
        self.body.end(End::Aborted);
    }
}

impl State {
    fn put(&mut self, chunk: Bytes) -> Result<(), ChunkSendError> {
        if !self.has_reader {
            return Err(ChunkSendError::Gone);
        }
        // The protocol ends a body with an empty chunk.
        if !chunk.is_empty() {
            self.waiting_bytes += chunk.len();
            self.chunks.push_back(chunk);
            self.wake();
        }
        Ok(())
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Body {
    fn end(&self, end: End) {
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        state.wake();
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.body.end(match thread::panicking() {
            true => End::Aborted,
            false => End::Whole,
        });
    }
}

/// The client, as long as it exists.
struct ReadEnd {
    body: Arc<Body>,
}

impl Drop for ReadEnd {
    fn drop(&mut self) {
        let mut state = self.body.state.lock();
        state.has_reader = false;
        state.chunks.clear();
        drop(state);
        self.body.room.notify_all();
    }
}

impl ChunkReader {
    /// Takes the next chunk. `None` is the end of the body; [`Aborted`] says that the body is not whole.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Aborted>>> {
        let body = &self.end.body;
        let mut state = body.state.lock();
        if let Some(chunk) = state.chunks.pop_front() {
            state.waiting_bytes -= chunk.len();
            drop(state);
            body.room.notify_all();
            return Poll::Ready(Some(Ok(chunk)));
        }
        match state.end {
            Some(End::Whole) => Poll::Ready(None),
            Some(End::Aborted) => Poll::Ready(Some(Err(Aborted))),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The program ended a body before it was whole.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the flow ended the body before it was whole")]
pub struct Aborted;

millstream_base::debug_as_display!(Aborted);

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;

    fn next(reader: &ChunkReader) -> Poll<Option<Result<Bytes, Aborted>>> {
        reader.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_sender_waits_for_a_slow_client_and_learns_that_it_has_gone() {
        let (sender, reader) = chunks();
        let large = vec![b'x'; WAITING_BYTES_MAX];
        sender.send(large.clone()).unwrap();
        assert_eq!(sender.try_send("y"), Err(ChunkSendError::Full));
        let sending = thread::spawn(move || {
            let sent = sender.send("y");
            (sent, sender)
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!sending.is_finished());
        assert_eq!(next(&reader), Poll::Ready(Some(Ok(large.into()))));
        let (sent, sender) = sending.join().unwrap();
        assert_eq!(sent, Ok(()));
        sender.send(vec![b'z'; WAITING_BYTES_MAX]).unwrap();
        let sending = thread::spawn(move || sender.send("y"));
        drop(reader.clone());
        drop(reader);
        assert_eq!(sending.join().unwrap(), Err(ChunkSendError::Gone));
    }

    #[test]
    fn a_body_ends_whole_unless_its_sender_panics_or_aborts() {
        let (sender, reader) = chunks();
        assert_eq!(next(&reader), Poll::Pending);
        sender.send("a").unwrap();
        sender.send("").unwrap();
        drop(sender);
        assert_eq!(next(&reader), Poll::Ready(Some(Ok("a".into()))));
        assert_eq!(next(&reader), Poll::Ready(None));
        let (sender, reader) = chunks();
        let panics = catch_unwind(AssertUnwindSafe(|| {
            let _sender = sender;
            panic!("a test of a body that is not whole")
        }));
        assert!(panics.is_err());
        assert_eq!(next(&reader), Poll::Ready(Some(Err(Aborted))));
        let (sender, reader) = chunks();
        sender.abort();
        assert_eq!(next(&reader), Poll::Ready(Some(Err(Aborted))));
    }
}
