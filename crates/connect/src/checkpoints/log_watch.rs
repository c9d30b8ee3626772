//! Watches the changelog of a state element in a stream of a log.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::task::{Poll, Waker};

use bytes::Bytes;
use millstream_base::{
    KeyEvent, KeyRange, KeySnapshot, KeyedVersion, Offset, WatchFrom, WatchPosition,
    WatchPositions, partition_of_key,
};
use millstream_flow::{ChangelogWatch, WatchError, WatchFuture, WatchedChangelog};
use millstream_log::{
    KeyEntry, Listening, Log, LogError, Next, Stream, StreamPartition, Subscription,
};
use millstream_record::{Chunks, Decompressor, Record};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

use super::changelog::of_stream;
use crate::keys::log::again;

/// About the bytes of chunks that are read at once; a larger chunk comes whole.
const PIECE_BYTES: usize = 64 << 10;

/// The keys of one page of a snapshot, and about its bytes.
const PAGE_KEYS: usize = 1_000;
const PAGE_BYTES: usize = 256 << 10;

/// The threads that read changes at once, of all watches of the process: others have the processors, too.
static THREADS: Semaphore = Semaphore::const_new(2);

/// The changelog of a state element in a stream of a log.
pub struct LogWatched {
    log: Log,
    stream: String,
}

impl LogWatched {
    pub fn new(log: &Log, stream: String) -> LogWatched {
        LogWatched {
            log: log.clone(),
            stream,
        }
    }
}

impl WatchedChangelog for LogWatched {
    fn watch(
        &self,
        range: KeyRange,
        from: WatchFrom,
    ) -> WatchFuture<'static, Box<dyn ChangelogWatch>> {
        let (log, name) = (self.log.clone(), self.stream.clone());
        Box::pin(async move {
            let begun = on_thread(move || {
                let stream = log.stream(&name).map_err(failed)?;
                Changes::begin(stream, range, from)
            });
            let (changes, ready) = begun.await?;
            let watch = LogWatch {
                positions: changes.positions(),
                is_in_snapshot: changes.snapshot.is_some(),
                changes: Some(changes),
                reading: None,
                is_dry: false,
                ready: ready.into(),
                has_moved: false,
            };
            Ok(Box::new(watch) as Box<dyn ChangelogWatch>)
        })
    }

    fn ends(&self) -> WatchFuture<'static, Vec<Offset>> {
        let (log, name) = (self.log.clone(), self.stream.clone());
        Box::pin(on_thread(move || {
            let stream = log.stream(&name).map_err(failed)?;
            let partitions = 0..stream.partition_count();
            let ends = partitions.map(|it| stream.partition(it).map(|it| it.high_watermark()));
            ends.collect::<Result<_, _>>().map_err(failed)
        }))
    }
}

/// Runs `work` on a thread that may block.
async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WatchError> + Send + 'static,
) -> Result<T, WatchError> {
    let turn = THREADS.acquire().await.map_err(|_| ended())?;
    let work = spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    work.await.unwrap_or_else(|_| Err(ended()))
}

fn failed(error: LogError) -> WatchError {
    WatchError::Failed(error.into())
}

fn ended() -> WatchError {
    WatchError::Failed("the program is ending".into())
}

/// A watch. It holds no memory of the log while it waits, and no thread.
struct LogWatch {
    /// `None` while a thread has them.
    changes: Option<Changes>,
    /// The work of a thread, which goes on if its caller is dropped.
    reading: Option<JoinHandle<Step>>,
    /// Whether the last look has found no changes.
    is_dry: bool,
    /// Events that are behind `positions`.
    ready: VecDeque<Ready>,
    /// Whether the position has moved since `next` has returned.
    has_moved: bool,
    positions: WatchPositions,
    is_in_snapshot: bool,
}

/// The changes of a range of keys.
struct Changes {
    stream: Stream,
    range: KeyRange,
    /// The watched partitions, and the next offset of each.
    partitions: Vec<(StreamPartition, Offset)>,
    subscription: Subscription,
    /// Hears of this subscription's appends alone.
    listening: Option<Listening>,
    snapshot: Option<Snapshot>,
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
    /// The watch begins again here.
    Begun(WatchPositions),
}

/// Changes after a step, and its events; `None` if there are none now.
type Step = (Changes, Result<Option<Vec<Ready>>, LogError>);

impl LogWatch {
    async fn next_event(&mut self) -> Result<Option<KeyEvent>, WatchError> {
        loop {
            while let Some(ready) = self.ready.pop_front() {
                match ready {
                    Ready::Event(event) => {
                        self.has_moved = false;
                        return Ok(Some(self.returned(event)));
                    }
                    Ready::Reached(place, next) => {
                        self.positions.partitions[place].next = next;
                        self.has_moved = true;
                    }
                    Ready::Begun(positions) => self.positions = positions,
                }
            }
            if std::mem::take(&mut self.has_moved) {
                return Ok(None);
            }
            self.read().await?;
        }
    }

    fn returned(&mut self, event: KeyEvent) -> KeyEvent {
        match &event {
            KeyEvent::ChangesLost { .. } | KeyEvent::SnapshotBegins => self.is_in_snapshot = true,
            KeyEvent::SnapshotEnds => self.is_in_snapshot = false,
            KeyEvent::Change { version, .. } if !self.is_in_snapshot => {
                let mut partitions = self.positions.partitions.iter_mut();
                if let Some(it) = partitions.find(|it| it.partition == version.partition) {
                    it.next = it.next.max(version.version.plus(1));
                }
            }
            KeyEvent::Change { .. } => {}
        }
        event
    }

    /// Waits until there may be more events, and lets a thread read them.
    async fn read(&mut self) -> Result<(), WatchError> {
        if let (Some(changes), true) = (&mut self.changes, self.is_dry) {
            poll_fn(|context| changes.poll_more(context.waker())).await;
            self.is_dry = false;
        }
        if self.reading.is_none() {
            let turn = THREADS.acquire().await.map_err(|_| ended())?;
            let mut changes = self.changes.take().ok_or_else(ended)?;
            self.reading = Some(spawn_blocking(move || {
                let _turn = turn;
                let step = changes.step();
                (changes, step)
            }));
        }
        let Some(reading) = &mut self.reading else {
            return Ok(());
        };
        let read = reading.await;
        self.reading = None;
        let (changes, step) = read.map_err(|_| ended())?;
        let name = changes.stream.name().to_owned();
        let step = step.map_err(|error| WatchError::Failed(of_stream(&name, error.into())))?;
        self.changes = Some(changes);
        // It listens before the next look, and waits after it.
        self.is_dry = step.is_none();
        self.ready.extend(step.into_iter().flatten());
        Ok(())
    }
}

impl ChangelogWatch for LogWatch {
    fn next(&mut self) -> WatchFuture<'_, Option<KeyEvent>> {
        Box::pin(self.next_event())
    }

    fn positions(&self) -> WatchPositions {
        self.positions.clone()
    }

    fn is_in_snapshot(&self) -> bool {
        self.is_in_snapshot
    }
}

impl Changes {
    fn begin(
        stream: Stream,
        range: KeyRange,
        from: WatchFrom,
    ) -> Result<(Changes, Vec<Ready>), WatchError> {
        let watched = now(&stream, &range).map_err(failed)?;
        let mut changes = Changes {
            subscription: Subscription::of_keys(watched.clone(), &range),
            partitions: watched,
            listening: None,
            snapshot: None,
            stream,
            range,
        };
        let mut ready = Vec::new();
        match from {
            WatchFrom::Now => {}
            WatchFrom::Snapshot => changes.begin_snapshot(&mut ready).map_err(failed)?,
            WatchFrom::After(positions) => match changes.begin_at(&positions) {
                Err(error @ LogError::ChangesLost { .. }) => {
                    changes.reset(&error, &mut ready).map_err(failed)?;
                }
                Err(LogError::UnknownStream { name }) => {
                    return Err(WatchError::MadeAgain { stream: name });
                }
                begun => begun.map_err(failed)?,
            },
        }
        Ok((changes, ready))
    }

    fn begin_at(&mut self, positions: &WatchPositions) -> Result<(), LogError> {
        if positions.stream != self.stream.uuid().into_bytes() {
            return Err(LogError::UnknownStream {
                name: self.stream.name().to_owned(),
            });
        }
        let known = positions.partitions.iter().map(|it| it.partition);
        if !known.eq(self.partitions.iter().map(|(it, _)| it.index())) {
            return Err(LogError::ChangesLost {
                stream: self.stream.name().to_owned(),
                partition: 0,
                offset: Offset(0),
                why: "the position is of other keys, or the stream had another number of partitions",
            });
        }
        for ((partition, next), position) in self.partitions.iter_mut().zip(&positions.partitions) {
            partition.check_watch(position.next, position.epoch)?;
            *next = position.next;
        }
        self.subscribe();
        Ok(())
    }

    fn begin_snapshot(&mut self, ready: &mut Vec<Ready>) -> Result<(), LogError> {
        self.partitions = now(&self.stream, &self.range)?;
        self.subscribe();
        self.snapshot = Some(Snapshot::new());
        ready.push(Ready::Begun(self.positions()));
        ready.push(Ready::Event(KeyEvent::SnapshotBegins));
        Ok(())
    }

    /// Makes a snapshot, since changes were missed.
    fn reset(&mut self, why: &LogError, ready: &mut Vec<Ready>) -> Result<(), LogError> {
        let why = why.to_string();
        ready.push(Ready::Event(KeyEvent::ChangesLost { why }));
        self.begin_snapshot(ready)
    }

    fn subscribe(&mut self) {
        self.subscription = Subscription::of_keys(self.partitions.clone(), &self.range);
        self.listening = None;
    }

    /// Returns ready when there may be more changes; otherwise the waker is woken then.
    fn poll_more(&mut self, waker: &Waker) -> Poll<()> {
        self.subscription.poll_more(&mut self.listening, waker)
    }

    fn positions(&self) -> WatchPositions {
        let partitions = self
            .partitions
            .iter()
            .map(|(partition, next)| WatchPosition {
                partition: partition.index(),
                next: *next,
                epoch: partition.watch_epoch(),
            });
        WatchPositions {
            stream: self.stream.uuid().into_bytes(),
            partitions: partitions.collect(),
        }
    }

    /// Reads the next page of the snapshot, or the next changes.
    fn step(&mut self) -> Result<Option<Vec<Ready>>, LogError> {
        let is_caught_up = self.snapshot.as_ref().is_some_and(|snapshot| {
            let partition = self.partitions.get(snapshot.place);
            partition.is_none_or(|(_, next)| *next >= snapshot.until)
        });
        match is_caught_up {
            true => self.read_page().map(Some),
            false => match self.receive() {
                Err(error @ LogError::ChangesLost { .. }) => {
                    let mut ready = Vec::new();
                    self.reset(&error, &mut ready)?;
                    Ok(Some(ready))
                }
                received => received,
            },
        }
    }

    fn read_page(&mut self) -> Result<Vec<Ready>, LogError> {
        let Some(snapshot) = &mut self.snapshot else {
            return Ok(Vec::new());
        };
        if snapshot.pages.is_read() {
            *snapshot = Snapshot {
                place: snapshot.place + 1,
                ..Snapshot::new()
            };
        }
        let (Some((partition, position)), Some(next)) =
            (self.partitions.get(snapshot.place), snapshot.pages.next())
        else {
            self.snapshot = None;
            return Ok(vec![Ready::Event(KeyEvent::SnapshotEnds)]);
        };
        let mut range = self.range.clone();
        range.from = range.from.max(next.to_vec());
        let scan = again(|| partition.scan(&range, PAGE_KEYS, PAGE_BYTES))?;
        let entries = scan.entries;
        let page = entries.iter().map(|it| (&it.key[..], it.version.offset));
        snapshot.until = snapshot.pages.add_page(*position, page, scan.next);
        let index = partition.index();
        let changes = entries.into_iter().map(|KeyEntry { key, version }| {
            Ready::Event(KeyEvent::Change {
                key: key.into(),
                version: KeyedVersion {
                    partition: index,
                    version: version.offset,
                },
                timestamp: version.timestamp,
                // A copy: it must hold no memory of the log.
                value: Some(Bytes::copy_from_slice(&version.value)),
                expires_at: version.expires_at,
            })
        });
        Ok(changes.collect())
    }

    fn receive(&mut self) -> Result<Option<Vec<Ready>>, LogError> {
        let next = self.subscription.next(PIECE_BYTES);
        let handed = match next.map_err(|failed| failed.error)? {
            Next::Handed(handed) => handed,
            Next::Nothing | Next::Busy | Next::End => return Ok(None),
        };
        let place = handed.place as usize;
        let offsets = handed.from..handed.next;
        let mut ready = self.read(place, &handed.chunks.bytes, &offsets)?;
        ready.push(Ready::Reached(place, handed.next));
        self.partitions[place].1 = handed.next;
        Ok(Some(ready))
    }

    /// Reads the changes of chunks, and copies them: they must hold no memory of the log.
    fn read(
        &self,
        place: usize,
        chunks: &[u8],
        offsets: &Range<Offset>,
    ) -> Result<Vec<Ready>, LogError> {
        let (mut ready, mut decompressor) = (Vec::new(), Decompressor::default());
        for chunk in Chunks::trusted(chunks) {
            let chunk = chunk.map_err(LogError::Chunk)?;
            if chunk.header().attributes.is_control() {
                continue;
            }
            for record in chunk.records(&mut decompressor).map_err(LogError::Chunk)? {
                let record = record.map_err(LogError::Chunk)?;
                if offsets.contains(&record.offset) {
                    ready.extend(self.change_of(place, &record));
                }
            }
        }
        Ok(ready)
    }

    /// Returns the change that a record is; `None` if a snapshot has it, and for records that look-ups do not find.
    fn change_of(&self, place: usize, record: &Record<'_>) -> Option<Ready> {
        let (partition, key) = (&self.partitions[place].0, record.key?);
        let index = partition.index();
        let is_owned =
            partition_of_key(key, self.stream.partition_count() as usize) == index as usize;
        let mut snapshots = self.snapshot.iter();
        if !is_owned || !snapshots.all(|it| it.passes(place, key, record.offset)) {
            return None;
        }
        let value = partition.value_of(record);
        Some(Ready::Event(KeyEvent::Change {
            key: Bytes::copy_from_slice(key),
            version: KeyedVersion {
                partition: index,
                version: record.offset,
            },
            timestamp: record.timestamp,
            value: value.map(|(value, _)| Bytes::copy_from_slice(value)),
            expires_at: value.and_then(|(_, end)| end),
        }))
    }
}

/// Returns the partitions of a range, each with the end of its committed records: one owns a single key.
fn now(stream: &Stream, range: &KeyRange) -> Result<Vec<(StreamPartition, Offset)>, LogError> {
    let count = stream.partition_count();
    let owners = match range.only_key() {
        Some(key) => {
            let owner = partition_of_key(key, count as usize) as u32;
            owner..owner + 1
        }
        None => 0..count,
    };
    let watched = owners.map(|index| {
        let partition = stream.partition(index)?;
        let end = partition.last_stable_offset();
        Ok((partition, end))
    });
    watched.collect()
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use millstream_base::Timestamp;
    use millstream_log::{CLEANUP_POLICY, LogConfig, StreamConfig};
    use millstream_record::{ChunkBuilder, Compression};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// It listened to the subscription that it had before, and slept for ever.
    #[test]
    fn a_watch_that_makes_a_snapshot_anew_hears_of_the_changes_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::new(dir.path())).unwrap();
        let mut config = StreamConfig::default();
        let policy = (CLEANUP_POLICY.to_owned(), "compact".to_owned());
        config.settings.extend([policy]);
        let stream = log.create_stream("s", config).unwrap();
        let begun = Changes::begin(stream.clone(), KeyRange::all(), WatchFrom::Now);
        let (mut changes, _) = begun.unwrap();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        // From here on it listens.
        assert!(changes.step().unwrap().is_none());
        assert!(changes.poll_more(&waker).is_ready());
        let lost = stream.partition(0).unwrap().check_watch(Offset(1), 7);
        changes.reset(&lost.unwrap_err(), &mut Vec::new()).unwrap();
        loop {
            while changes.step().unwrap().is_some() {}
            if changes.poll_more(&waker).is_pending() {
                break;
            }
        }
        let mut chunk = ChunkBuilder::new(Compression::None);
        chunk
            .push(Timestamp(0), Some(b"key"), Some(b"value"), &[])
            .unwrap();
        let partition = stream.partition(0).unwrap();
        let appended = partition.append(chunk.finish(None).unwrap()).unwrap();
        partition.wait_durable(appended.next_offset).unwrap();
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(changes.step().unwrap().is_some());
    }
}
