//! Watches of keys and of state, as server-sent events.
//!
//! A task for each watch takes its events and puts them into a short queue, from which the connection sends them. It holds no
//! thread while it waits.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::body::Frame;
use millstream_base::{Credentials, KeyEvent, WatchFrom, WatchPositions};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, interval_at, timeout, timeout_at};

use crate::connection_time::ConnectionTime;
use crate::error::RequestError;
use crate::gate::{Admission, Visited, Visitor};
use crate::keyed::KeyWatch;
use crate::kv::entry::{Entry, shown_value, text};
use crate::memory::Memory;
use crate::watches::{Endless, Watches};

/// The longest life of a watch. Then its client comes back with the id of the last event.
const WATCH_TIME_MAX: Duration = Duration::from_secs(600);

/// The time after which a client is disconnected that takes no event.
const SLOW_TIME_MAX: Duration = Duration::from_secs(30);

/// The time between two signs of life, and between two checks of the right to read.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The events that wait to be sent, beside the one that the connection sends.
const QUEUED_MAX: usize = 4;

/// The most bytes of an event that needs none of the memory of all watches: so clients that take no large events hold up no watch
/// of small ones.
const SMALL_BYTES_MAX: usize = 16 << 10;

/// The bytes of an event beside its key, its value and its id, at most.
const EVENT_FIELDS_BYTES: usize = 512;

/// The most partitions of a watched range: each event has the position in all of them.
const PARTITIONS_MAX: usize = 512;

/// The id of the events from the beginning of a snapshot to its end: a client that comes back meanwhile begins it again.
const OF_SNAPSHOT: &str = "snapshot";

/// The header in which a client names the last event that it has seen.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Keeps proxies from collecting events.
const UNBUFFERED: (HeaderName, HeaderValue) = (
    HeaderName::from_static("x-accel-buffering"),
    HeaderValue::from_static("no"),
);

/// The right of a visitor to read, which rules may take away.
pub struct Reader {
    pub visitor: Arc<dyn Visitor>,
    pub visited: Visited,
    pub credentials: Option<Credentials>,
}

impl Reader {
    async fn is_allowed(&self) -> bool {
        let visited = self.visited.clone();
        let admitted = Arc::clone(&self.visitor).admit(visited, self.credentials.clone());
        admitted.await == Admission::Allowed
    }
}

/// Where a request wants to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// With the next change.
    Now,
    /// With a snapshot.
    Snapshot,
    /// At a position that the text names.
    After(String),
}

/// A watch. Where it would miss a change, it says so and makes a snapshot.
pub trait Watched: Send {
    /// Waits for the next event. If the future is dropped, no event is lost.
    ///
    /// # Errors
    /// The reason why the watch has ended.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Seen, String>> + Send + '_>>;

    /// Returns the position behind the last event; of no use within a snapshot.
    fn positions(&self) -> WatchPositions;

    /// Returns whether a snapshot has begun and not ended.
    fn is_in_snapshot(&self) -> bool;
}

/// An event of a watch.
pub enum Seen {
    Key(KeyEvent),
    /// A change of one of the entries of a key, which the object names.
    Entry(KeyEvent, Box<RawValue>),
    /// How far the flow was at a checkpoint whose changes were all seen: an object.
    Progress(String),
    /// Whole frames with their ids, which hold their memory or are short.
    Frames(Bytes),
}

impl Watched for Box<dyn KeyWatch> {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Seen, String>> + Send + '_>> {
        Box::pin(async {
            let event = (**self).next().await;
            event.map(Seen::Key).map_err(|error| error.to_string())
        })
    }

    fn positions(&self) -> WatchPositions {
        (**self).positions()
    }

    fn is_in_snapshot(&self) -> bool {
        (**self).is_in_snapshot()
    }
}

/// Takes a place for a watch, if one is free.
pub fn place(watches: &Watches) -> Result<OwnedSemaphorePermit, RequestError> {
    watches
        .take()
        .ok_or_else(|| RequestError::TooManyWatches(watches.most()))
}

/// Answers with the events of a watch.
pub fn answer(
    watch: impl Watched + 'static,
    watches: &Watches,
    time: Arc<ConnectionTime>,
    (reader, place): (Reader, OwnedSemaphorePermit),
) -> Result<Response, RequestError> {
    if watch.positions().partitions.len() > PARTITIONS_MAX {
        return Err(RequestError::WatchedPartitions(PARTITIONS_MAX));
    }
    let mut response = Body::new(begin(watch, watches, reader, time, place)).into_response();
    response.extensions_mut().insert(Endless);
    let event_stream = HeaderValue::from_static("text/event-stream");
    response
        .headers_mut()
        .extend([(header::CONTENT_TYPE, event_stream), UNBUFFERED]);
    Ok(response)
}

/// Starts the task of a watch. Returns the body that it fills.
fn begin(
    mut watch: impl Watched + 'static,
    watches: &Watches,
    reader: Reader,
    time: Arc<ConnectionTime>,
    place: OwnedSemaphorePermit,
) -> Events {
    let (sender, receiver) = mpsc::channel(QUEUED_MAX);
    let last = Arc::new(Mutex::new(None));
    let task = Task {
        sender,
        last: Arc::clone(&last),
        memory: watches.memory(),
        reader,
        time,
        _place: place,
    };
    let mut stopping = watches.stopping();
    tokio::spawn(async move {
        let reason = tokio::select! {
            reason = task.run(&mut watch) => reason,
            _ = stopping.changed() => "the server stops",
        };
        task.end(reason);
    });
    Events { receiver, last }
}

/// Returns where a watch begins: behind the last event that its client has seen, if it names one.
pub fn from(asked: Asked, headers: &HeaderMap) -> Result<WatchFrom, RequestError> {
    let id = headers.get(LAST_EVENT_ID).map(HeaderValue::to_str);
    let text = match (id, asked) {
        // Events that the client has read since count.
        (Some(id), _) if !matches!(id, Ok("")) => id.unwrap_or_default().to_owned(),
        (_, Asked::After(text)) => text,
        (_, Asked::Now) => return Ok(WatchFrom::Now),
        (_, Asked::Snapshot) => return Ok(WatchFrom::Snapshot),
    };
    if text == OF_SNAPSHOT {
        return Ok(WatchFrom::Snapshot);
    }
    let positions: Result<WatchPositions, _> = text.parse();
    positions
        .map(WatchFrom::After)
        .map_err(|_| RequestError::WatchPosition)
}

/// Takes the events of a watch.
struct Task {
    sender: mpsc::Sender<Bytes>,
    /// The event that comes behind all in the queue.
    last: Arc<Mutex<Option<Bytes>>>,
    memory: Arc<Memory>,
    reader: Reader,
    time: Arc<ConnectionTime>,
    _place: OwnedSemaphorePermit,
}

impl Task {
    /// Sends events until the watch must end. Returns the reason.
    async fn run(&self, watch: &mut impl Watched) -> &'static str {
        let end = Instant::now() + WATCH_TIME_MAX;
        match timeout_at(end, self.send_all(watch)).await {
            Ok(reason) => reason,
            Err(_) => "come back with the id of the last event: a watch ends after 10 minutes",
        }
    }

    async fn send_all(&self, watch: &mut impl Watched) -> &'static str {
        let mut id = (!watch.is_in_snapshot()).then(|| watch.positions().to_string());
        // With an id at once, a client that comes back before the first event misses none.
        if id.is_some() && !self.send(id_frame(id.as_deref())).await {
            return SLOW;
        }
        let mut silence = interval_at(Instant::now() + SILENCE_MAX, SILENCE_MAX);
        loop {
            let next = {
                let mut next = watch.next();
                tokio::select! {
                    next = &mut next => Some(next),
                    _ = silence.tick() => None,
                    () = self.sender.closed() => return "",
                }
            };
            let frame = match next {
                None if !self.reader.is_allowed().await => {
                    return "the user may no longer read this";
                }
                None if watch.is_in_snapshot() => Bytes::from_static(b":\n\n"),
                None => {
                    let now = Some(watch.positions().to_string());
                    let frame = match now == id {
                        true => Bytes::from_static(b":\n\n"),
                        false => id_frame(now.as_deref()),
                    };
                    id = now;
                    frame
                }
                Some(Ok(Seen::Frames(frames))) => {
                    // A later one is sent again when there is silence.
                    id = None;
                    frames
                }
                Some(Ok(event)) => {
                    id = (!watch.is_in_snapshot()).then(|| watch.positions().to_string());
                    match self.frame_in_memory(&event, id.as_deref()).await {
                        Some(frame) => frame,
                        None => return BUSY,
                    }
                }
                Some(Err(error)) => {
                    self.put_last(&error);
                    return "";
                }
            };
            if !self.send(frame).await {
                return SLOW;
            }
        }
    }

    /// Returns the frame of an event, which holds its memory; `None` if none comes free for too long.
    async fn frame_in_memory(&self, event: &Seen, id: Option<&str>) -> Option<Bytes> {
        let bytes = frame_bytes_max(event) + id.map_or(0, str::len);
        if bytes <= SMALL_BYTES_MAX {
            return Some(frame_of(event, id));
        }
        let room = timeout(SLOW_TIME_MAX, self.memory.wait(bytes))
            .await
            .ok()??;
        Some(room.hold(frame_of(event, id)))
    }

    /// Sends a frame. Returns `false` if the client does not take any for too long.
    async fn send(&self, frame: Bytes) -> bool {
        let sent = timeout(SLOW_TIME_MAX, self.sender.send(frame))
            .await
            .is_ok();
        if sent {
            // The connection lives on as long as its client reads.
            self.time.extend(SLOW_TIME_MAX + SILENCE_MAX);
        }
        sent
    }

    /// Ends the body behind the queue, with the reason if there is one.
    fn end(self, reason: &'static str) {
        if !reason.is_empty() {
            self.put_last(reason);
        }
    }

    fn put_last(&self, reason: &str) {
        let frame = frame("end", None, &json!({ "reason": reason }).to_string());
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame);
    }
}

const BUSY: &str =
    "too many bytes of events wait for other clients: come back with the id of the last event";

const SLOW: &str = "the client takes no events: it is too slow";

/// The body of an answer.
struct Events {
    receiver: mpsc::Receiver<Bytes>,
    last: Arc<Mutex<Option<Bytes>>>,
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.receiver.poll_recv(context).map(|queued| {
            let last = || {
                self.last
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take()
            };
            queued.or_else(last).map(|bytes| Ok(Frame::data(bytes)))
        })
    }
}

/// Returns the most bytes that the frame of an event can have, without its id.
pub fn frame_bytes_max(seen: &Seen) -> usize {
    let (event, entry) = match seen {
        Seen::Key(event) => (event, 0),
        Seen::Entry(event, entry) => (event, entry.get().len()),
        Seen::Progress(progress) => return EVENT_FIELDS_BYTES + progress.len(),
        Seen::Frames(frames) => return frames.len(),
    };
    let KeyEvent::Change { key, value, .. } = event else {
        return EVENT_FIELDS_BYTES;
    };
    // As text with escapes and with a prefix for each line, or as base64.
    let escaped = |byte: &u8| match *byte {
        ..b' ' => 7,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    let of = |bytes: &[u8]| {
        let text: usize = bytes.iter().map(escaped).sum();
        text.max(4 * bytes.len().div_ceil(3))
    };
    EVENT_FIELDS_BYTES + entry + of(key) + value.as_deref().map_or(0, of)
}

/// Returns the frame of an event.
pub fn frame_of(seen: &Seen, id: Option<&str>) -> Bytes {
    let (event, name) = match seen {
        Seen::Key(event) => (event, None),
        Seen::Entry(event, name) => (event, Some(&**name)),
        Seen::Progress(progress) => return frame("progress", id, progress),
        Seen::Frames(frames) => return frames.clone(),
    };
    match event {
        KeyEvent::ChangesLost { why } => {
            let reason = json!({ "reason": why }).to_string();
            frame("reset", Some(OF_SNAPSHOT), &reason)
        }
        KeyEvent::SnapshotBegins => frame("snapshot", Some(OF_SNAPSHOT), "{}"),
        KeyEvent::SnapshotEnds => frame("current", id, "{}"),
        KeyEvent::Change {
            key,
            version,
            timestamp,
            value,
            expires_at,
        } => {
            let (key, key_base64) = text(Some(key));
            let shown = value.as_deref().and_then(shown_value);
            let is_text = shown.is_some();
            let bytes = value.as_deref().filter(|_| !is_text);
            let entry = Entry {
                secondary: None,
                secondary_base64: None,
                key,
                key_base64,
                entry: name,
                partition: version.partition,
                version: version.version,
                timestamp: *timestamp,
                value: shown,
                value_base64: bytes.map(|bytes| BASE64_STANDARD.encode(bytes)),
                expires_at: *expires_at,
                deleted: value.is_none(),
            };
            let entry = serde_json::to_string(&entry);
            frame("change", id, &entry.unwrap_or_default())
        }
    }
}

/// Returns a frame that sets the id of the last event, and is no event itself.
fn id_frame(id: Option<&str>) -> Bytes {
    format!("id: {}\n\n", id.unwrap_or_default()).into()
}

/// Returns an event. The data of a value may have line breaks, which are spaces in JSON.
fn frame(name: &str, id: Option<&str>, data: &str) -> Bytes {
    let mut frame = format!("event: {name}\n");
    if let Some(id) = id {
        frame.push_str("id: ");
        frame.push_str(id);
        frame.push('\n');
    }
    for line in data.split(['\r', '\n']) {
        frame.push_str("data: ");
        frame.push_str(line);
        frame.push('\n');
    }
    frame.push('\n');
    frame.into()
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn, ready};

    use millstream_base::{Offset, Timestamp};
    use tokio::time::sleep;

    use super::*;
    use crate::gate::Open;
    use millstream_base::KeyedVersion;

    const WATCHES_MAX: usize = 256;

    fn change_of(key: &[u8], value: Option<&[u8]>) -> Seen {
        Seen::Key(KeyEvent::Change {
            key: Bytes::copy_from_slice(key),
            version: KeyedVersion {
                partition: 1,
                version: Offset(7),
            },
            timestamp: Timestamp(5),
            value: value.map(Bytes::copy_from_slice),
            expires_at: value.map(|_| Timestamp(9)),
        })
    }

    #[track_caller]
    fn check(key: &[u8], value: Option<&[u8]>, expected: &str) {
        let frame = frame_of(&change_of(key, value), Some("x"));
        let expected = format!("event: change\nid: x\n{expected}\n\n");
        assert_eq!(frame, expected, "{frame:?}");
    }

    #[test]
    fn events_have_the_fields_of_an_entry_and_escape_line_breaks() {
        let rest = "\"partition\":1,\"version\":7,\"timestamp\":5";
        check(
            b"k",
            Some(b"{\"a\":\r\n1}"),
            &format!(
                "data: {{\"key\":\"k\",{rest},\"value\":{{\"a\":\ndata: \ndata: 1}},\"expires_at\":9}}"
            ),
        );
        check(
            b"\xff",
            Some(b"\xfe"),
            &format!(
                "data: {{\"key_base64\":\"/w==\",{rest},\"value_base64\":\"/g==\",\"expires_at\":9}}"
            ),
        );
        check(
            b"k",
            None,
            &format!("data: {{\"key\":\"k\",{rest},\"deleted\":true}}"),
        );
        check(
            b"k",
            Some(b"two\nlines"),
            &format!("data: {{\"key\":\"k\",{rest},\"value\":\"two\\nlines\",\"expires_at\":9}}"),
        );
        let begins = frame_of(&Seen::Key(KeyEvent::SnapshotBegins), None);
        assert_eq!(begins, "event: snapshot\nid: snapshot\ndata: {}\n\n");
    }

    #[test]
    fn each_frame_fits_its_memory_estimate() {
        let all: Vec<u8> = (0..=255).collect();
        for piece in [
            &b"\n"[..],
            b"\r\n",
            b"\x01",
            b"\"",
            b"\\",
            b"\xff",
            b"a",
            "\u{e9}".as_bytes(),
            b"{\"a\":\n1}",
            b" ",
            &all,
        ] {
            for count in [0, 1, 100] {
                let bytes = piece.repeat(count);
                let event = change_of(&bytes, Some(&bytes));
                let (frame, most) = (frame_of(&event, None), frame_bytes_max(&event));
                assert!(frame.len() <= most, "{piece:?}: {} of {most}", frame.len());
            }
        }
    }

    /// A watch that always sees a change of this value, or none.
    struct Steady {
        change: Option<Bytes>,
    }

    impl Watched for Steady {
        fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Seen, String>> + Send + '_>> {
            match &self.change {
                Some(value) => Box::pin(ready(Ok(change_of(b"k", Some(&value[..]))))),
                None => Box::pin(std::future::pending()),
            }
        }

        fn positions(&self) -> WatchPositions {
            WatchPositions {
                stream: [0; 16],
                partitions: Vec::new(),
            }
        }

        fn is_in_snapshot(&self) -> bool {
            false
        }
    }

    /// Returns the body of a watch, and the lifetime of its connection.
    fn begun(has_changes: bool, watches: &Watches) -> (Events, Arc<ConnectionTime>) {
        let change = has_changes.then(|| Bytes::from_static(b"v"));
        begun_by(Arc::new(Open), change, watches)
    }

    fn begun_by(
        visitor: Arc<dyn Visitor>,
        change: Option<Bytes>,
        watches: &Watches,
    ) -> (Events, Arc<ConnectionTime>) {
        let time = Arc::new(ConnectionTime::new(Duration::from_secs(60)));
        let watch = Steady { change };
        let reader = Reader {
            visitor,
            visited: Visited::Node,
            credentials: None,
        };
        let place = watches.take().unwrap();
        (
            begin(watch, watches, reader, Arc::clone(&time), place),
            time,
        )
    }

    /// A visitor that may read for some time.
    struct Until(Instant);

    impl Visitor for Until {
        fn admit(
            self: Arc<Self>,
            _: Visited,
            _: Option<Credentials>,
        ) -> Pin<Box<dyn Future<Output = Admission> + Send>> {
            Box::pin(ready(match Instant::now() < self.0 {
                true => Admission::Allowed,
                false => Admission::Denied,
            }))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_when_its_user_may_no_longer_read() {
        let (_stop, stopping) = tokio::sync::watch::channel(());
        let watches = Watches::new(WATCHES_MAX, stopping);
        for has_changes in [false, true] {
            let start = Instant::now();
            let visitor = Arc::new(Until(start + 2 * SILENCE_MAX));
            let change = has_changes.then(|| Bytes::from_static(b"v"));
            let (mut events, _time) = begun_by(visitor, change, &watches);
            let mut last = String::new();
            while let Some(frame) = next(&mut events).await {
                last = frame;
                sleep(Duration::from_millis(10)).await;
            }
            assert!(last.contains("may no longer read"), "{last}");
            assert!(start.elapsed() < 3 * SILENCE_MAX);
        }
    }

    async fn next(events: &mut Events) -> Option<String> {
        let frame = poll_fn(|context| Pin::new(&mut *events).poll_frame(context)).await?;
        let data = frame.unwrap().into_data().unwrap();
        Some(String::from_utf8(data.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_no_events_gets_the_reason_and_is_disconnected() {
        let (_stop, stopping) = tokio::sync::watch::channel(());
        let watches = Watches::new(WATCHES_MAX, stopping);
        let (mut events, time) = begun(true, &watches);
        let start = Instant::now();
        time.is_over().await;
        assert!(
            start.elapsed() <= Duration::from_secs(60),
            "nothing extends it"
        );
        let mut told = Vec::new();
        while let Some(frame) = next(&mut events).await {
            told.push(frame);
        }
        assert_eq!(told.len(), QUEUED_MAX + 1);
        assert!(told[QUEUED_MAX].contains("too slow"), "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn unread_large_events_do_not_delay_small_ones() {
        let (_stop, stopping) = tokio::sync::watch::channel(());
        let watches = Watches::with_memory(WATCHES_MAX, stopping, 1 << 20);
        let large = Bytes::from(vec![b'x'; SMALL_BYTES_MAX]);
        let begin_large = || begun_by(Arc::new(Open), Some(large.clone()), &watches).0;
        let mut idle: Vec<Events> = (0..100).map(|_| begin_large()).collect();
        sleep(Duration::from_secs(1)).await;
        let queued: usize = idle.iter().map(|events| events.receiver.len()).sum();
        // Each has an id, which is small, and a few have large events: 1 MiB of all.
        assert!((132..=164).contains(&queued), "{queued}");
        let start = Instant::now();
        let (mut small, _) = begun(true, &watches);
        for _ in 0..1_000 {
            assert!(next(&mut small).await.is_some());
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        // All of them get the reason, and a client that reads gets its slot.
        sleep(2 * SLOW_TIME_MAX).await;
        for events in &mut idle {
            let mut last = String::new();
            while let Some(frame) = next(events).await {
                last = frame;
            }
            let is_told = last.contains("too slow") || last.contains("come back with the id");
            assert!(is_told, "{last:?}");
        }
        let mut reading = begin_large();
        for _ in 0..200 {
            assert!(next(&mut reading).await.is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_watch_sends_keep_alives_until_its_time_limit() {
        let (_stop, stopping) = tokio::sync::watch::channel(());
        let watches = Watches::new(WATCHES_MAX, stopping);
        let (mut events, time) = begun(false, &watches);
        let start = Instant::now();
        assert!(next(&mut events).await.unwrap().starts_with("id: "));
        let mut signs = 0;
        let last = loop {
            match next(&mut events).await.unwrap() {
                sign if sign == ":\n\n" => signs += 1,
                last => break last,
            }
        };
        assert!(last.contains("come back"), "{last}");
        // The last one comes at the same time as the end.
        assert!((39..=40).contains(&signs), "{signs}");
        let late = start.elapsed() - WATCH_TIME_MAX;
        assert!(late < Duration::from_secs(1), "{late:?}");
        assert_eq!(next(&mut events).await, None);
        // The connection has lived as long.
        time.is_over().await;
        assert!(start.elapsed() > WATCH_TIME_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_or_a_disconnect_ends_a_watch_and_frees_its_slot() {
        let (stop, stopping) = tokio::sync::watch::channel(());
        let watches = Watches::new(WATCHES_MAX, stopping);
        let mut all: Vec<Events> = (0..WATCHES_MAX).map(|_| begun(false, &watches).0).collect();
        assert!(watches.take().is_none());
        all.pop();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(watches.open(), WATCHES_MAX - 1);
        assert!(watches.take().is_some());
        drop(stop);
        let start = Instant::now();
        for events in &mut all {
            assert!(next(events).await.unwrap().starts_with("id: "));
            let last = next(events).await.unwrap();
            assert!(last.contains("the server stops"), "{last}");
            assert_eq!(next(events).await, None);
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
