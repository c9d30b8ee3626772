//! Watches: the changes of keys, as they are committed.

mod changes;
mod link;
mod shared;

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{KeyRange, KeySnapshot, Offset, Timestamp, WatchPositions};
use millstream_wire::ResponseError;
use millstream_wire::native::{ScanKeysRequest, ScanKeysResponse};
use tokio::time::{Instant, sleep};

use self::changes::Received;
use self::link::Link;
use super::{ANSWER_TIME, KeyVersion, KeyedStream, READ, version};
use crate::client::text;
use crate::error::ClientError;

/// The keys of one page of a snapshot.
const PAGE_KEYS: u32 = 1_000;

/// About the bytes of one page.
const PAGE_BYTES: u32 = 1 << 20;

/// Where a watch begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchFrom {
    /// With the next change.
    Now,
    /// With a snapshot: the keys that have a value, and then all changes since. The watch makes a new snapshot where it would
    /// miss a change.
    Snapshot,
    /// At the position of an earlier watch of the same keys. Where the server no longer has all changes since then, the
    /// watch fails with [`ClientError::ChangesLost`].
    Position(WatchPositions),
    /// The same, but it makes a snapshot where it would fail.
    PositionOrSnapshot(WatchPositions),
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A snapshot begins: earlier events are void. Changes follow that put all keys which have a value.
    SnapshotBegins,
    /// A key has changed, or is in the snapshot.
    Change(WatchedChange),
    /// The snapshot is complete.
    SnapshotEnds,
}

/// A committed change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedChange {
    /// The partition of the key.
    pub partition: u32,
    /// The version: the offset of the record in its partition.
    pub version: Offset,
    /// The time of the record.
    pub timestamp: Timestamp,
    /// The key.
    pub key: Bytes,
    /// The new value; `None` if the key was deleted.
    pub value: Option<Bytes>,
    /// The time at which the value expires, if it does. The expiry is not a change: from then on look-ups do not find
    /// the key.
    pub expires_at: Option<Timestamp>,
}

/// The changes of a range of keys: see [`KeyedStream::watch`].
#[derive(Debug)]
pub struct KeyWatch {
    stream: KeyedStream,
    range: KeyRange,
    /// Whether to make a snapshot where changes would be missed.
    may_reset: bool,
    /// Whether to read in the server's memory, if it shares that.
    may_share: bool,
    /// `None` while it is not connected.
    link: Option<Link>,
    /// The connection that is being made.
    connecting: Option<Step<(Link, WatchPositions)>>,
    /// The page of the snapshot that was requested.
    page: Option<Step<ScanKeysResponse>>,
    /// Up to where its events were returned. `None` before the first connection of a watch without a position.
    positions: Option<WatchPositions>,
    /// The snapshot under way.
    snapshot: Option<Snapshot>,
    /// Events to return. They are behind `positions`.
    ready: VecDeque<Ready>,
    /// The first failure since the server last answered.
    failing_since: Option<Instant>,
}

/// A step under way. The watch holds it, so that dropping the future of [`KeyWatch::next`] loses nothing.
struct Step<T>(Pin<Box<dyn Future<Output = Result<T, ClientError>> + Send>>);

impl<T> fmt::Debug for Step<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Step")
    }
}

/// The state of a snapshot of all watched partitions.
#[derive(Debug)]
struct Snapshot {
    /// By the lanes of the link. Lanes before `lane` are complete.
    lane: usize,
    /// The pages of `lane`.
    pages: KeySnapshot,
    /// The position that the lane must have reached before the next page.
    until: Offset,
}

/// An event, or the progress behind events.
#[derive(Debug)]
enum Ready {
    Event(WatchEvent),
    /// All before this offset of the lane was returned.
    Reached(usize, Offset),
}

impl KeyedStream {
    /// Watches a range of keys: returns their changes as they are committed, in the order of each key's versions. Compaction may
    /// leave out older versions of a key, but never its newest one. Records that retention removes cause no change.
    ///
    /// ```no_run
    /// # async fn example(client: millstream_client::Client) -> Result<(), millstream_client::ClientError> {
    /// use millstream_client::{KeyRange, WatchEvent, WatchFrom};
    ///
    /// let users = client.keyed("users");
    /// let mut watch = users.watch(KeyRange::prefix("a"), WatchFrom::Snapshot);
    /// loop {
    ///     match watch.next().await? {
    ///         WatchEvent::SnapshotBegins => println!("forget all keys"),
    ///         WatchEvent::Change(change) => println!("{:?}: {:?}", change.key, change.value),
    ///         WatchEvent::SnapshotEnds => println!("these are all"),
    ///     }
    ///     // A later watch goes on here: WatchFrom::Position.
    ///     let _position = watch.positions();
    /// }
    /// # }
    /// ```
    pub fn watch(&self, range: KeyRange, from: WatchFrom) -> KeyWatch {
        let may_reset = matches!(from, WatchFrom::Snapshot | WatchFrom::PositionOrSnapshot(_));
        let begins_with_snapshot = from == WatchFrom::Snapshot;
        let positions = match from {
            WatchFrom::Now | WatchFrom::Snapshot => None,
            WatchFrom::Position(positions) | WatchFrom::PositionOrSnapshot(positions) => {
                Some(positions)
            }
        };
        // Its questions whether the server lives must not wait behind slow requests.
        let stream = KeyedStream {
            client: self.client.separate(),
            name: Arc::clone(&self.name),
        };
        KeyWatch {
            stream,
            range,
            may_reset,
            may_share: false,
            link: None,
            connecting: None,
            page: None,
            positions,
            snapshot: begins_with_snapshot.then(Snapshot::new),
            ready: VecDeque::new(),
            failing_since: None,
        }
    }
}

impl Snapshot {
    fn new() -> Snapshot {
        Snapshot {
            lane: 0,
            pages: KeySnapshot::new(),
            until: Offset(0),
        }
    }

    /// Returns whether a change is passed on.
    fn passes(&self, lane: usize, key: &[u8], version: Offset) -> bool {
        lane < self.lane || lane == self.lane && self.pages.passes(key, version)
    }
}

impl KeyWatch {
    /// Lets the watch read changes in the memory of a server on this machine that runs as the same user, which takes the least
    /// time and CPU. The watch then has a thread here and one at the server. From other servers it gets the changes over the
    /// network. To be called before the first event.
    #[must_use]
    pub fn through_shared_memory(mut self) -> KeyWatch {
        self.may_share = true;
        self
    }

    /// Returns whether changes come through the server's memory; `false` while the watch is not connected.
    pub fn is_shared(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_shared)
    }

    /// Returns the position behind the last event that was returned; `None` before the first connection, and from the beginning of
    /// a snapshot to its end.
    pub fn positions(&self) -> Option<&WatchPositions> {
        self.positions.as_ref().filter(|_| self.snapshot.is_none())
    }

    /// Waits for the next event. A lost connection is made again, and the watch goes on where it was. Dropping the future loses
    /// nothing; call it again.
    ///
    /// # Errors
    /// When the server no longer has all changes ([`ClientError::ChangesLost`]) and the watch makes no snapshot, the stream was
    /// deleted, or made again ([`ClientError::MadeAgain`]), is not keyed, or the user may not read it; when no server answers
    /// for the client's `request_timeout`. The next call tries again.
    pub async fn next(&mut self) -> Result<WatchEvent, ClientError> {
        loop {
            while let Some(ready) = self.ready.pop_front() {
                match ready {
                    Ready::Event(event) => return Ok(self.returned(event)),
                    Ready::Reached(lane, next) => self.reach(lane, next),
                }
            }
            match self.advance().await {
                Ok(()) => self.failing_since = None,
                Err(error) => self.lost(error).await?,
            }
        }
    }

    /// Waits until the watch has begun, so that it sees all later changes. [`next`](Self::next) does that itself.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn begin(&mut self) -> Result<(), ClientError> {
        while self.link.is_none() {
            match self.connect().await {
                Ok(()) => self.failing_since = None,
                Err(error) => self.lost(error).await?,
            }
        }
        Ok(())
    }

    fn returned(&mut self, event: WatchEvent) -> WatchEvent {
        if let WatchEvent::Change(change) = &event
            && self.snapshot.is_none()
            && let Some(positions) = &mut self.positions
        {
            let mut partitions = positions.partitions.iter_mut();
            if let Some(it) = partitions.find(|it| it.partition == change.partition) {
                it.next = it.next.max(change.version.plus(1));
            }
        }
        event
    }

    fn reach(&mut self, lane: usize, next: Offset) {
        let positions = self.positions.as_mut();
        if let Some(position) = positions.and_then(|it| it.partitions.get_mut(lane)) {
            position.next = next;
        }
    }

    /// Makes one step: connects, reads a page of a snapshot, or receives changes.
    async fn advance(&mut self) -> Result<(), ClientError> {
        if self.link.is_none() {
            return self.connect().await;
        }
        let is_caught_up = self.snapshot.as_ref().is_some_and(|snapshot| {
            let positions = self.positions.as_ref();
            let lane = positions.and_then(|it| it.partitions.get(snapshot.lane));
            lane.is_none_or(|lane| lane.next >= snapshot.until)
        });
        match is_caught_up {
            true => self.read_page().await,
            false => self.receive().await,
        }
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        let connecting = self.connecting.get_or_insert_with(|| {
            let known = match &self.snapshot {
                Some(_) => None,
                None => self.positions.clone(),
            };
            let (stream, range) = (self.stream.clone(), self.range.clone());
            let may_share = self.may_share;
            Step(Box::pin(async move {
                Link::begin(&stream, &range, known.as_ref(), may_share).await
            }))
        });
        let connected = (&mut connecting.0).await;
        self.connecting = None;
        let (link, positions) = connected?;
        self.positions = Some(positions);
        self.link = Some(link);
        if self.snapshot.is_some() {
            // Pages that were read before are of another connection.
            self.snapshot = Some(Snapshot::new());
            self.ready
                .push_back(Ready::Event(WatchEvent::SnapshotBegins));
        }
        Ok(())
    }

    /// Reads the next page of the snapshot, or ends it.
    async fn read_page(&mut self) -> Result<(), ClientError> {
        let (Some(link), Some(snapshot), Some(positions)) =
            (&self.link, &mut self.snapshot, &self.positions)
        else {
            return Ok(());
        };
        if snapshot.pages.is_read() {
            *snapshot = Snapshot {
                lane: snapshot.lane + 1,
                ..Snapshot::new()
            };
        }
        let (Some(lane), Some(from)) = (
            positions.partitions.get(snapshot.lane),
            snapshot.pages.next(),
        ) else {
            self.snapshot = None;
            self.ready.push_back(Ready::Event(WatchEvent::SnapshotEnds));
            return Ok(());
        };
        let from = Bytes::copy_from_slice(from).max(Bytes::copy_from_slice(&self.range.from));
        let page = self.page.get_or_insert_with(|| {
            let request = ScanKeysRequest {
                stream: text(&self.stream.name),
                partition: lane.partition,
                from: from.clone(),
                until: self.range.until.as_deref().map(Bytes::copy_from_slice),
                keys_max: PAGE_KEYS,
                bytes_max: PAGE_BYTES,
            };
            let within = self.stream.client.config().request_timeout.max(ANSWER_TIME);
            let connection = Arc::clone(link.connection());
            Step(Box::pin(async move {
                connection.ask_within(request, within).await
            }))
        });
        let answer = (&mut page.0).await;
        self.page = None;
        let answer = answer?;
        let message = answer.error_message.as_deref();
        self.stream.check(READ, answer.error_code, message)?;
        if answer.next.as_ref().is_some_and(|next| *next <= from) && answer.keys.is_empty() {
            let what = "a page of a scan is empty, and the next one begins with the same key";
            return Err(self.stream.violation(what.to_owned()));
        }
        let page = answer
            .keys
            .iter()
            .map(|it| (&it.key[..], it.newest.version));
        let next = answer.next.as_deref().map(<[u8]>::to_vec);
        snapshot.until = snapshot.pages.add_page(lane.next, page, next);
        let partition = lane.partition;
        let changes = answer.keys.into_iter().map(|entry| {
            let KeyVersion {
                partition,
                version,
                timestamp,
                value,
                expires_at,
            } = version(partition, entry.newest);
            Ready::Event(WatchEvent::Change(WatchedChange {
                partition,
                version,
                timestamp,
                key: entry.key,
                value: Some(value),
                expires_at,
            }))
        });
        self.ready.extend(changes);
        Ok(())
    }

    /// Receives the next changes.
    async fn receive(&mut self) -> Result<(), ClientError> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        // A page waits for the answers to all requests of its connection.
        let ahead = match self.snapshot.is_some() {
            true => 1,
            false => link::AHEAD_MAX,
        };
        let snapshot = self.snapshot.as_ref();
        let passes = |lane: usize, key: &[u8], version| {
            snapshot.is_none_or(|snapshot| snapshot.passes(lane, key, version))
        };
        let received = link.receive(&self.stream, ahead).await?;
        for Received {
            lane,
            next,
            changes,
        } in received
        {
            let changes = changes
                .into_iter()
                .filter(|change| passes(lane, &change.key, change.version));
            self.ready
                .extend(changes.map(|change| Ready::Event(WatchEvent::Change(change))));
            self.ready.push_back(Ready::Reached(lane, next));
        }
        Ok(())
    }

    /// Begins anew after a failure, unless that cannot help.
    async fn lost(&mut self, error: ClientError) -> Result<(), ClientError> {
        self.link = None;
        self.page = None;
        self.ready.clear();
        let error = match error.response_error() {
            Some(ResponseError::OffsetOutOfRange) => ClientError::ChangesLost {
                why: error.to_string(),
            },
            _ => error,
        };
        match error.response_error() {
            None if self.may_reset && matches!(error, ClientError::ChangesLost { .. }) => {
                self.snapshot = Some(Snapshot::new());
                return Ok(());
            }
            Some(ResponseError::UnknownTopicId) => {
                return Err(ClientError::MadeAgain {
                    stream: self.stream.name.to_string(),
                });
            }
            _ if !error.is_retriable() || error.is_unknown_stream() => return Err(error),
            _ => {}
        }
        let config = self.stream.client.config();
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= config.request_timeout {
            self.failing_since = None;
            return Err(error);
        }
        sleep(config.backoff).await;
        Ok(())
    }
}
