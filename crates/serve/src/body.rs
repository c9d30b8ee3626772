//! The bodies of requests, and their bounds.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, header};
use tokio::time::timeout;

use crate::error::RequestError;
use crate::keyed::KeyedError;
use crate::memory::Memory;

/// The memory of all bodies, in bytes.
const BODIES_BYTES_MAX: usize = 64 << 20;

/// The time for a whole body.
const BODY_TIME_MAX: Duration = Duration::from_secs(15);

/// The most bytes of the body of a refused request that are read, so that the client reads the answer: a client that still
/// sends would see a reset connection instead.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// The time for these bytes.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(2);

/// The memory of bodies.
pub struct Bodies(Memory);

impl Bodies {
    pub fn new() -> Bodies {
        Bodies(Memory::new(BODIES_BYTES_MAX))
    }

    /// Reads a body of at most `bytes_max`. Its bytes hold their memory.
    pub async fn read(
        &self,
        headers: &HeaderMap,
        body: Body,
        bytes_max: usize,
    ) -> Result<Bytes, RequestError> {
        let whole = self.read_whole(headers, body, bytes_max);
        let in_time = timeout(BODY_TIME_MAX, whole).await;
        in_time.unwrap_or(Err(RequestError::SlowBody(BODY_TIME_MAX)))
    }

    async fn read_whole(
        &self,
        headers: &HeaderMap,
        mut body: Body,
        bytes_max: usize,
    ) -> Result<Bytes, RequestError> {
        let too_large = || RequestError::Keyed(KeyedError::TooLarge { bytes_max });
        let announced = body.size_hint();
        if announced.lower() > bytes_max as u64 {
            discard_unless_awaited(headers, body).await;
            return Err(too_large());
        }
        let announced = announced.exact().map(|bytes| bytes as usize);
        let room = self.0.take(announced.unwrap_or(bytes_max));
        let Some(room) = room else {
            discard_unless_awaited(headers, body).await;
            return Err(RequestError::BusyBodies);
        };
        let mut bytes = Vec::with_capacity(announced.unwrap_or(0));
        while let Some(piece) = next(&mut body).await {
            let piece = piece?;
            if bytes.len() + piece.len() > bytes_max {
                discard(body).await;
                return Err(too_large());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(room.hold(bytes))
    }
}

/// Reads on after a request was refused, unless the client waits for `100 Continue` before it sends.
pub async fn discard_unless_awaited(headers: &HeaderMap, body: Body) {
    if !headers.contains_key(header::EXPECT) {
        discard(body).await;
    }
}

async fn discard(mut body: Body) {
    let mut rest = DISCARDED_BYTES_MAX;
    let discarded = timeout(DISCARD_TIME_MAX, async {
        while let Some(Ok(piece)) = next(&mut body).await {
            match rest.checked_sub(piece.len()) {
                Some(less) => rest = less,
                None => break,
            }
        }
    });
    // A client that sends more sees a reset.
    let _ = discarded.await;
}

/// Returns the next bytes of a body; `None` at its end.
async fn next(body: &mut Body) -> Option<Result<Bytes, RequestError>> {
    let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
    Some(match frame {
        // Trailers have no data.
        Ok(frame) => Ok(frame.into_data().unwrap_or_default()),
        Err(_) => Err(RequestError::TornBody),
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, ready};

    use hyper::body::{Frame, SizeHint};
    use tokio::time::{Instant, Interval, interval};

    use super::*;

    /// A body of unknown size without an end.
    struct Endless {
        piece: Bytes,
        /// The time between two pieces.
        pause: Option<Interval>,
        sent: Arc<AtomicUsize>,
    }

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if let Some(pause) = &mut self.pause {
                ready!(pause.poll_tick(context));
            }
            self.sent.fetch_add(self.piece.len(), Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(self.piece.clone()))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::default()
        }
    }

    fn endless(bytes: usize, pause: Option<Duration>) -> (Body, Arc<AtomicUsize>) {
        let sent = Arc::default();
        let body = Endless {
            piece: vec![b'x'; bytes].into(),
            pause: pause.map(interval),
            sent: Arc::clone(&sent),
        };
        (Body::new(body), sent)
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_given_up() {
        let (body, sent) = endless(1, Some(Duration::from_secs(1)));
        let start = Instant::now();
        let read = Bodies::new().read(&HeaderMap::new(), body, 1_000).await;
        assert!(matches!(read, Err(RequestError::SlowBody(_))));
        assert_eq!(start.elapsed(), BODY_TIME_MAX);
        assert!(sent.load(Ordering::Relaxed) < 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_is_refused_and_little_more_of_it_is_read() {
        let (body, sent) = endless(1 << 20, None);
        let read = Bodies::new().read(&HeaderMap::new(), body, 3 << 20).await;
        assert!(matches!(
            read,
            Err(RequestError::Keyed(KeyedError::TooLarge { bytes_max })) if bytes_max == 3 << 20
        ));
        let bytes = sent.load(Ordering::Relaxed);
        assert!(bytes <= (5 << 20) + DISCARDED_BYTES_MAX, "{bytes}");
        // A client that sends nothing more gets its answer soon.
        let start = Instant::now();
        discard(endless(1, Some(Duration::from_hours(1))).0).await;
        assert_eq!(start.elapsed(), DISCARD_TIME_MAX);
    }

    #[tokio::test]
    async fn an_announced_size_is_checked_before_anything_is_read() {
        let bodies = Bodies::new();
        let mut headers = HeaderMap::new();
        let whole = bodies.read(&headers, Body::from("abc"), 3).await;
        assert_eq!(whole.unwrap(), "abc");
        headers.insert(header::EXPECT, "100-continue".parse().unwrap());
        let large = bodies.read(&headers, Body::from("abcd"), 3).await;
        assert!(matches!(large, Err(RequestError::Keyed(_))));
    }

    #[tokio::test]
    async fn all_bodies_share_one_bound() {
        let (bodies, headers) = (Bodies::new(), HeaderMap::new());
        let mut held = Vec::new();
        for _ in 0..4 {
            let body = Body::from(vec![b'x'; BODIES_BYTES_MAX / 4]);
            let read = bodies.read(&headers, body, BODIES_BYTES_MAX).await;
            held.push(read.unwrap());
        }
        let more = || bodies.read(&headers, Body::from("x"), 1);
        assert!(matches!(more().await, Err(RequestError::BusyBodies)));
        held.pop();
        assert_eq!(more().await.unwrap(), "x");
    }
}
