//! Watches of keys over HTTP.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{
    KeyRange, KeySnapshot, Offset, WatchPosition, WatchPositions, partition_of_key,
};
use millstream_broker::{KeyReads, Threads};
use millstream_log::{
    KeyEntry, KeyScan, Listening, LogError, Next, Stream, StreamPartition, Subscription,
    SubscriptionError,
};
use millstream_record::{Chunks, Decompressor, Record};
use millstream_serve::{KEY_WATCHERS_MAX, KeyEvent, KeyWatch, KeyedError, KeyedVersion, WatchFrom};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::keyed_errors::{ended, failed};

/// About the bytes of chunks that are read at once; a larger chunk comes whole.
const PIECE_BYTES: usize = 64 << 10;

/// The keys of one page of a snapshot, and about its bytes.
const PAGE_KEYS: usize = 1_000;
const PAGE_BYTES: usize = 256 << 10;

/// The memory of the changes that were read and not sent, of all watches.
const CHANGES_BYTES_MAX: usize = 64 << 20;

/// The most bytes of changes that a watch reads at once without that memory: so clients that take no large changes hold up no
/// watch of small ones.
const OWN_BYTES_MAX: usize = 256 << 10;

/// The unit, in bytes, of permits.
const UNIT_BYTES: usize = 1 << 10;

/// The state that all watches share.
pub struct WatchBounds {
    threads: Threads,
    /// Held while changes are read.
    turns: Arc<Semaphore>,
    memory: Arc<Semaphore>,
}

impl WatchBounds {
    pub fn new() -> WatchBounds {
        WatchBounds {
            threads: Threads::new(KEY_WATCHERS_MAX),
            turns: Arc::new(Semaphore::new(KEY_WATCHERS_MAX)),
            memory: Arc::new(Semaphore::new(CHANGES_BYTES_MAX / UNIT_BYTES)),
        }
    }

    /// Takes the next changes, with their memory. Changes that find none are read again when there is some, so they take none
    /// while they wait. Returns `None` if the program is ending.
    async fn take(
        &self,
        mut subscription: Subscription,
        partitions: Vec<StreamPartition>,
        count: usize,
    ) -> Option<Received> {
        let mut room = None;
        loop {
            let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
            let (partitions, memory) = (partitions.clone(), Arc::clone(&self.memory));
            let work = move || {
                let read = read_in_memory(&mut subscription, &partitions, count, &memory, room);
                (subscription, read)
            };
            let (read_from, read) = self.threads.run(work).await?;
            drop(turn);
            subscription = read_from;
            let units = match read {
                Ok((taken, room)) => {
                    return Some(Received {
                        subscription,
                        taken,
                        room,
                    });
                }
                Err(NeedsRoom(units)) => units,
            };
            room = Some(self.wait(units).await?);
        }
    }

    /// Waits for memory. Returns `None` if the program is ending.
    async fn wait(&self, units: u32) -> Option<OwnedSemaphorePermit> {
        let memory = Arc::clone(&self.memory);
        memory.acquire_many_owned(units).await.ok()
    }
}

/// There is no memory of this many units now.
struct NeedsRoom(u32);

/// Takes memory for this number of bytes, unless they are few or `room` covers them already.
fn take_room(
    memory: &Arc<Semaphore>,
    bytes: usize,
    room: Option<OwnedSemaphorePermit>,
) -> Result<Option<OwnedSemaphorePermit>, NeedsRoom> {
    if bytes <= OWN_BYTES_MAX {
        return Ok(None);
    }
    let units = bytes.div_ceil(UNIT_BYTES);
    let units = units.min(CHANGES_BYTES_MAX / UNIT_BYTES) as u32;
    if let Some(room) = room
        && room.num_permits() >= units as usize
    {
        return Ok(Some(room));
    }
    let taken = Arc::clone(memory).try_acquire_many_owned(units);
    taken.map(Some).map_err(|_| NeedsRoom(units))
}

/// The chunks that a subscription has handed out, with their memory.
type ReadInMemory = (
    Result<Taken, SubscriptionError>,
    Option<OwnedSemaphorePermit>,
);

/// Takes the next changes. If there is no memory for them, the subscription goes back.
fn read_in_memory(
    subscription: &mut Subscription,
    partitions: &[StreamPartition],
    count: usize,
    memory: &Arc<Semaphore>,
    room: Option<OwnedSemaphorePermit>,
) -> Result<ReadInMemory, NeedsRoom> {
    let before = subscription.positions();
    let taken = take(subscription, partitions, count);
    let bytes = match &taken {
        Ok(Taken::Changes(.., changes)) => changes.iter().map(bytes_of).sum(),
        _ => 0,
    };
    match (take_room(memory, bytes, room), before) {
        (Ok(room), _) => Ok((taken, room)),
        (Err(needs), Some(before)) => match subscription.seek(&before) {
            Ok(()) => Err(needs),
            Err(error) => Ok((Err(error), None)),
        },
        (Err(_), None) => Ok((taken, None)),
    }
}

/// Changes, and the subscription that they are from.
struct Received {
    subscription: Subscription,
    taken: Result<Taken, SubscriptionError>,
    room: Option<OwnedSemaphorePermit>,
}

type Receiving = Pin<Box<dyn Future<Output = Option<Received>> + Send>>;

/// A watch of the node's keys. It holds no memory of the log while it waits, and no thread.
pub struct NodeWatch {
    stream: Stream,
    range: KeyRange,
    reads: Arc<KeyReads>,
    bounds: Arc<WatchBounds>,
    partitions: Vec<StreamPartition>,
    positions: WatchPositions,
    /// `None` while a thread has it.
    subscription: Option<Subscription>,
    listening: Option<Listening>,
    /// Whether the last look has found no changes.
    is_dry: bool,
    /// The work of a thread, which goes on if its caller is dropped.
    receiving: Option<Receiving>,
    snapshot: Option<Snapshot>,
    /// Events that are behind `positions`.
    ready: VecDeque<Ready>,
    /// The memory of these.
    room: Option<OwnedSemaphorePermit>,
}

/// A snapshot of all partitions.
struct Snapshot {
    /// Partitions before this one are complete.
    place: usize,
    pages: KeySnapshot,
    /// The position that the partition must have reached before the next page.
    until: Offset,
}

enum Ready {
    Event(KeyEvent),
    /// All before this offset of the partition at the place was returned.
    Reached(usize, Offset),
}

/// The changes that a subscription has handed out.
enum Taken {
    Changes(usize, Offset, Vec<KeyEvent>),
    Nothing,
}

impl NodeWatch {
    /// Begins to watch a range of a keyed stream.
    pub fn begin(
        stream: Stream,
        range: KeyRange,
        from: WatchFrom,
        reads: Arc<KeyReads>,
        bounds: Arc<WatchBounds>,
    ) -> Result<NodeWatch, KeyedError> {
        let mut watch = NodeWatch {
            positions: WatchPositions {
                stream: stream.uuid().into_bytes(),
                partitions: Vec::new(),
            },
            partitions: Vec::new(),
            subscription: None,
            listening: None,
            is_dry: false,
            receiving: None,
            snapshot: None,
            ready: VecDeque::new(),
            room: None,
            stream,
            range,
            reads,
            bounds,
        };
        match from {
            WatchFrom::Now => watch.begin_now()?,
            WatchFrom::Snapshot => watch.begin_snapshot()?,
            WatchFrom::After(positions) => match watch.begin_at(positions) {
                Err(error @ LogError::ChangesLost { .. }) => watch.reset(&error)?,
                Err(LogError::UnknownStream { name }) => return Err(KeyedError::MadeAgain(name)),
                begun => begun.map_err(failed)?,
            },
        }
        Ok(watch)
    }

    /// Goes on at positions.
    fn begin_at(&mut self, positions: WatchPositions) -> Result<(), LogError> {
        if positions.stream != self.positions.stream {
            return Err(LogError::UnknownStream {
                name: self.stream.name().to_owned(),
            });
        }
        let partitions = positions.partitions.iter().map(|it| it.partition);
        if !partitions.eq(self.watched()) {
            return Err(LogError::ChangesLost {
                stream: self.stream.name().to_owned(),
                partition: 0,
                offset: Offset(0),
                why: "the position is of other keys, or the stream had another number of partitions",
            });
        }
        let mut watched = Vec::new();
        for position in &positions.partitions {
            let partition = self.stream.partition(position.partition)?;
            partition.check_watch(position.next, position.epoch)?;
            watched.push((partition, position.next));
        }
        self.subscribe(watched);
        Ok(())
    }

    fn begin_now(&mut self) -> Result<(), KeyedError> {
        let watched = self.watched().map(|index| {
            let partition = self.stream.partition(index)?;
            let end = partition.last_stable_offset();
            Ok((partition, end))
        });
        let watched = watched.collect::<Result<Vec<_>, LogError>>();
        self.subscribe(watched.map_err(failed)?);
        Ok(())
    }

    /// Returns the partitions of the range: one owns a single key.
    fn watched(&self) -> Range<u32> {
        let count = self.stream.partition_count();
        match self.range.only_key() {
            Some(key) => {
                let owner = partition_of_key(key, count as usize) as u32;
                owner..owner + 1
            }
            None => 0..count,
        }
    }

    fn begin_snapshot(&mut self) -> Result<(), KeyedError> {
        self.begin_now()?;
        self.snapshot = Some(Snapshot::new());
        self.ready.push_back(Ready::Event(KeyEvent::SnapshotBegins));
        Ok(())
    }

    /// Makes a snapshot, since changes were missed.
    fn reset(&mut self, why: &LogError) -> Result<(), KeyedError> {
        self.ready.clear();
        let why = why.to_string();
        self.ready
            .push_back(Ready::Event(KeyEvent::ChangesLost { why }));
        self.begin_snapshot()
    }

    fn subscribe(&mut self, watched: Vec<(StreamPartition, Offset)>) {
        self.partitions = watched.iter().map(|(it, _)| it.clone()).collect();
        let position = |(partition, next): &(StreamPartition, Offset)| WatchPosition {
            partition: partition.index(),
            next: *next,
            epoch: partition.watch_epoch(),
        };
        self.positions.partitions = watched.iter().map(position).collect();
        self.subscription = Some(Subscription::of_keys(watched, &self.range));
        (self.listening, self.receiving, self.is_dry) = (None, None, false);
    }

    async fn next_event(&mut self) -> Result<KeyEvent, KeyedError> {
        loop {
            while let Some(ready) = self.ready.pop_front() {
                match ready {
                    Ready::Event(event) => return Ok(self.returned(event)),
                    Ready::Reached(place, next) => self.reach(place, next),
                }
            }
            self.room = None;
            let is_caught_up = self.snapshot.as_ref().is_some_and(|snapshot| {
                let position = self.positions.partitions.get(snapshot.place);
                position.is_none_or(|position| position.next >= snapshot.until)
            });
            match is_caught_up {
                true => self.read_page().await?,
                false => self.receive().await?,
            }
        }
    }

    fn returned(&mut self, event: KeyEvent) -> KeyEvent {
        if let KeyEvent::Change { version, .. } = &event
            && self.snapshot.is_none()
        {
            let mut partitions = self.positions.partitions.iter_mut();
            if let Some(it) = partitions.find(|it| it.partition == version.partition) {
                it.next = it.next.max(version.version.plus(1));
            }
        }
        event
    }

    fn reach(&mut self, place: usize, next: Offset) {
        if let Some(position) = self.positions.partitions.get_mut(place) {
            position.next = next;
        }
    }

    /// Reads the next page of the snapshot, or ends it.
    async fn read_page(&mut self) -> Result<(), KeyedError> {
        let Some(snapshot) = &mut self.snapshot else {
            return Ok(());
        };
        if snapshot.pages.is_read() {
            *snapshot = Snapshot {
                place: snapshot.place + 1,
                ..Snapshot::new()
            };
        }
        let (Some(partition), Some(next)) =
            (self.partitions.get(snapshot.place), snapshot.pages.next())
        else {
            self.snapshot = None;
            self.ready.push_back(Ready::Event(KeyEvent::SnapshotEnds));
            return Ok(());
        };
        let mut range = self.range.clone();
        range.from = range.from.max(next.to_vec());
        let mut room = None;
        let KeyScan { entries, next } = loop {
            self.reads.catch_up([partition]).await;
            let scanned = self.reads.run({
                let (partition, range) = (partition.clone(), range.clone());
                move || partition.scan(&range, PAGE_KEYS, PAGE_BYTES)
            });
            let scan = scanned.await.ok_or_else(ended)?.map_err(failed)?;
            let bytes = scan.entries.iter().map(entry_bytes).sum();
            let needed = match take_room(&self.bounds.memory, bytes, room) {
                Ok(taken) => {
                    self.room = taken;
                    break scan;
                }
                Err(NeedsRoom(units)) => units,
            };
            // Read again with its memory.
            drop(scan);
            room = Some(self.bounds.wait(needed).await.ok_or_else(ended)?);
        };
        let page = entries.iter().map(|it| (&it.key[..], it.version.offset));
        let position = self.positions.partitions[snapshot.place].next;
        snapshot.until = snapshot.pages.add_page(position, page, next);
        let index = partition.index();
        let changes = entries.into_iter().map(|entry| {
            Ready::Event(KeyEvent::Change {
                key: entry.key.into(),
                version: KeyedVersion {
                    partition: index,
                    version: entry.version.offset,
                },
                timestamp: entry.version.timestamp,
                value: Some(entry.version.value),
                expires_at: entry.version.expires_at,
            })
        });
        self.ready.extend(changes);
        Ok(())
    }

    /// Receives the next changes.
    async fn receive(&mut self) -> Result<(), KeyedError> {
        if !self.may_have_more().await {
            return Err(ended());
        }
        if let Some(subscription) = self.subscription.take() {
            let partitions = self.partitions.clone();
            let count = self.stream.partition_count() as usize;
            let bounds = Arc::clone(&self.bounds);
            self.receiving = Some(Box::pin(async move {
                bounds.take(subscription, partitions, count).await
            }));
        }
        if let Some(receiving) = &mut self.receiving {
            let received = receiving.await;
            self.receiving = None;
            let Received {
                subscription,
                taken,
                room,
            } = received.ok_or_else(ended)?;
            self.subscription = Some(subscription);
            match taken {
                Ok(Taken::Changes(place, next, changes)) => {
                    self.is_dry = false;
                    self.room = room;
                    self.add(place, next, changes);
                }
                // It listens before the next look, and waits after it.
                Ok(Taken::Nothing) => self.is_dry = true,
                Err(SubscriptionError { error, .. }) => match error {
                    LogError::ChangesLost { .. } => return self.reset(&error),
                    error => return Err(failed(error)),
                },
            }
        }
        Ok(())
    }

    /// Waits until there may be more changes. Returns `false` if the watch has failed before.
    async fn may_have_more(&mut self) -> bool {
        if self.receiving.is_some() {
            return true;
        }
        let Some(subscription) = &self.subscription else {
            return false;
        };
        if self.is_dry {
            let listening = &mut self.listening;
            poll_fn(|context| subscription.poll_more(listening, context.waker())).await;
            self.is_dry = false;
        }
        true
    }

    fn add(&mut self, place: usize, next: Offset, changes: Vec<KeyEvent>) {
        let snapshot = self.snapshot.as_ref();
        let passes = |event: &KeyEvent| match (event, snapshot) {
            (KeyEvent::Change { key, version, .. }, Some(snapshot)) => {
                snapshot.passes(place, key, version.version)
            }
            _ => true,
        };
        let changes = changes.into_iter().filter(passes).map(Ready::Event);
        self.ready.extend(changes);
        self.ready.push_back(Ready::Reached(place, next));
    }
}

impl KeyWatch for NodeWatch {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<KeyEvent, KeyedError>> + Send + '_>> {
        Box::pin(self.next_event())
    }

    fn positions(&self) -> WatchPositions {
        self.positions.clone()
    }

    fn is_in_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }
}

impl Snapshot {
    fn new() -> Snapshot {
        Snapshot {
            place: 0,
            pages: KeySnapshot::new(),
            until: Offset(0),
        }
    }

    /// Returns whether a change is passed on.
    fn passes(&self, place: usize, key: &[u8], version: Offset) -> bool {
        place < self.place || place == self.place && self.pages.passes(key, version)
    }
}

/// Takes the next changes, and copies them: they must hold no memory of the log.
fn take(
    subscription: &mut Subscription,
    partitions: &[StreamPartition],
    count: usize,
) -> Result<Taken, SubscriptionError> {
    let handed = match subscription.next(PIECE_BYTES)? {
        Next::Handed(handed) => handed,
        Next::Nothing | Next::Busy | Next::End => return Ok(Taken::Nothing),
    };
    let place = handed.place as usize;
    let Some(partition) = partitions.get(place) else {
        return Ok(Taken::Nothing);
    };
    let offsets = handed.from..handed.next;
    let read = read(&handed.chunks.bytes, offsets, partition, count);
    let changes = read.map_err(|error| SubscriptionError {
        place: Some(handed.place),
        error: LogError::Chunk(error),
    })?;
    Ok(Taken::Changes(place, handed.next, changes))
}

fn read(
    chunks: &[u8],
    offsets: Range<Offset>,
    partition: &StreamPartition,
    count: usize,
) -> Result<Vec<KeyEvent>, millstream_record::ChunkError> {
    let (mut changes, mut decompressor) = (Vec::new(), Decompressor::default());
    for chunk in Chunks::trusted(chunks) {
        let chunk = chunk?;
        if chunk.header().attributes.is_control() {
            continue;
        }
        for record in chunk.records(&mut decompressor)? {
            let record = record?;
            if offsets.contains(&record.offset) {
                changes.extend(change_of(&record, partition, count));
            }
        }
    }
    Ok(changes)
}

fn bytes_of(event: &KeyEvent) -> usize {
    match event {
        KeyEvent::Change { key, value, .. } => {
            size_of::<Ready>() + key.len() + value.as_ref().map_or(0, Bytes::len)
        }
        _ => 0,
    }
}

fn entry_bytes(entry: &KeyEntry) -> usize {
    size_of::<Ready>() + entry.key.len() + entry.version.value.len()
}

/// Returns the change that a record is; `None` if look-ups do not find it, since another partition owns its key. A value that has
/// ended is a deletion.
fn change_of(record: &Record<'_>, partition: &StreamPartition, count: usize) -> Option<KeyEvent> {
    let key = record.key?;
    let index = partition.index();
    let value = partition.value_of(record);
    (partition_of_key(key, count) == index as usize).then(|| KeyEvent::Change {
        key: Bytes::copy_from_slice(key),
        version: KeyedVersion {
            partition: index,
            version: record.offset,
        },
        timestamp: record.timestamp,
        value: value.map(|(value, _)| Bytes::copy_from_slice(value)),
        expires_at: value.and_then(|(_, end)| end),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream_base::{ByteSize, Timestamp};
    use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, StreamConfig};
    use millstream_record::{ChunkBuilder, Compression};
    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(30);

    /// Takes changes until there are some. Returns how many, whether they hold memory, and the subscription.
    async fn take_some(
        bounds: &WatchBounds,
        mut subscription: Subscription,
        partition: &StreamPartition,
    ) -> (usize, bool, Subscription) {
        loop {
            let taken = bounds.take(subscription, vec![partition.clone()], 1);
            let received = taken.await.unwrap();
            subscription = received.subscription;
            match received.taken.unwrap() {
                Taken::Changes(.., changes) if !changes.is_empty() => {
                    return (changes.len(), received.room.is_some(), subscription);
                }
                // Chunks without keys of the range yield no event.
                Taken::Changes(..) | Taken::Nothing => {}
            }
        }
    }

    /// As when the clients of other watches take none of the large changes that these have read.
    #[test]
    fn large_changes_wait_for_memory_and_small_ones_do_not() {
        let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(take_large_and_small());
    }

    async fn take_large_and_small() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
        let config = StreamConfig {
            settings: [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into(),
            ..StreamConfig::default()
        };
        let partition = log
            .create_stream("t", config)
            .unwrap()
            .partition(0)
            .unwrap();
        for (key, bytes) in [("large", 1 << 20), ("small", 10), ("large", 2 << 20)] {
            let value = vec![b'x'; bytes];
            let mut builder = ChunkBuilder::new(Compression::None);
            builder
                .push(Timestamp(0), Some(key.as_bytes()), Some(&value), &[])
                .unwrap();
            let appended = partition.append(builder.finish(None).unwrap()).unwrap();
            partition.acknowledge(&appended).unwrap();
        }
        let bounds = WatchBounds::new();
        let take = |key: &str| {
            let from = [(partition.clone(), Offset(0))];
            let subscription = Subscription::of_keys(from, &KeyRange::key(key));
            take_some(&bounds, subscription, &partition)
        };
        let all = (CHANGES_BYTES_MAX / UNIT_BYTES) as u32;
        let all = bounds.wait(all).await;
        // More than there are turns.
        let waiting = (0..2 * KEY_WATCHERS_MAX).map(|_| Box::pin(take("large")));
        let mut waiting: Vec<_> = waiting.collect();
        for large in &mut waiting {
            assert!(timeout(Duration::from_millis(100), large).await.is_err());
        }
        let (count, has_room, _) = timeout(WAIT_MAX, take("small")).await.unwrap();
        assert_eq!((count, has_room), (1, false));
        drop(all);
        for large in waiting {
            let (count, has_room, rest) = timeout(WAIT_MAX, large).await.unwrap();
            assert_eq!((count, has_room), (1, true));
            let second = take_some(&bounds, rest, &partition);
            let (count, has_room, _) = timeout(WAIT_MAX, second).await.unwrap();
            assert_eq!((count, has_room), (1, true));
        }
    }
}
