//! Look-ups of keys, on threads that may block.
//!
//! A look-up first lets the key index of a partition read the records appended since the last one. After a start that
//! is the whole partition, and takes long. So a look-up that finds an index far behind waits for a *rebuild* first,
//! which needs one thread for each partition however many look-ups wait for it. Look-ups of other partitions, and other
//! requests, go on meanwhile.
//!
//! Look-ups of older versions read many chunks, so they have few threads of their own, and others need not wait for them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use millstream_log::{KeyRange, LaneId, StreamPartition};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// An index that has fewer offsets yet to read is not far behind: a look-up reads them itself.
const BEHIND_MAX: u64 = 1_000;

/// About the most bytes of chunks that one answer with older versions reads.
pub const OLDER_READ_BYTES_MAX: u64 = 16 << 20;

/// Threads for work that may block, up to a bound.
#[derive(Debug, Clone)]
pub struct Threads(Arc<Semaphore>);

/// A thread that is free for some work.
#[derive(Debug)]
pub struct Thread {
    _place: OwnedSemaphorePermit,
}

impl Thread {
    /// Runs `work`. Returns `None` if it panics, or if the program is ending.
    pub async fn run<R: Send + 'static>(
        self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        let work = spawn_blocking(move || {
            let _thread = self;
            work()
        });
        work.await.ok()
    }
}

impl Threads {
    /// Returns a bound of this many threads.
    pub fn new(threads_max: usize) -> Threads {
        Threads(Arc::new(Semaphore::new(threads_max)))
    }

    /// Runs `work` when a thread is free. Returns `None` if `work` panics, or if the program is ending.
    pub async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        self.take().await?.run(work).await
    }

    /// Waits until a thread is free. Returns `None` if the program is ending.
    pub async fn take(&self) -> Option<Thread> {
        let place = Arc::clone(&self.0).acquire_owned().await.ok()?;
        Some(Thread { _place: place })
    }
}

/// A partition, and the name of an index of its secondary keys; `None` stands for the index of its keys.
type Turn = (LaneId, Option<String>);

/// Look-ups of keys.
#[derive(Debug)]
pub struct KeyReads {
    /// The threads for look-ups.
    threads: Threads,
    /// The threads for look-ups of older versions.
    older: Threads,
    /// The threads for rebuilds.
    rebuilds: Arc<Semaphore>,
    /// A lock for each partition whose index is being rebuilt.
    turns: Mutex<HashMap<Turn, Weak<AsyncMutex<()>>>>,
}

impl KeyReads {
    /// Returns look-ups that take at most `threads_max` threads, `older_max` more for older versions, and `rebuilds_max` more for
    /// rebuilds.
    pub fn new(threads_max: usize, older_max: usize, rebuilds_max: usize) -> KeyReads {
        KeyReads {
            threads: Threads::new(threads_max),
            older: Threads::new(older_max),
            rebuilds: Arc::new(Semaphore::new(rebuilds_max)),
            turns: Mutex::default(),
        }
    }

    /// Lets the indexes of these partitions read on if they are far behind. A look-up reports the error of a read that fails.
    pub async fn catch_up(&self, partitions: impl IntoIterator<Item = &StreamPartition>) {
        for partition in partitions {
            self.rebuild(partition, None).await;
        }
    }

    /// As [`catch_up`](Self::catch_up), for an index of secondary keys. It may be new, so that all records are to be read.
    pub async fn catch_up_secondary(
        &self,
        partitions: impl IntoIterator<Item = &StreamPartition>,
        name: &str,
    ) {
        for partition in partitions {
            self.rebuild(partition, Some(name)).await;
        }
    }

    /// Runs `read`, which looks up keys, on a thread that may block. Returns `None` if `read` panics, or if the program is
    /// ending. Call [`catch_up`](Self::catch_up) first, so that no look-up needs a thread for long.
    pub async fn run<R: Send + 'static>(
        &self,
        read: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        self.threads.run(read).await
    }

    /// Waits until a thread is free that looks up older versions. Returns `None` if the program is ending. Call
    /// [`catch_up`](Self::catch_up) first, and take memory for the answer afterwards.
    pub async fn thread_for_older(&self) -> Option<Thread> {
        self.older.take().await
    }

    /// Lets one index read on, unless another look-up has let it do so meanwhile.
    async fn rebuild(&self, partition: &StreamPartition, name: Option<&str>) {
        let name = name.map(str::to_owned);
        if !is_far_behind(partition, name.as_deref()) {
            return;
        }
        let turn = self.turn((partition.id(), name.clone())).lock_owned().await;
        if !is_far_behind(partition, name.as_deref()) {
            return;
        }
        let Ok(thread) = Arc::clone(&self.rebuilds).acquire_owned().await else {
            return;
        };
        let partition = partition.clone();
        // The thread keeps the turn also if the request ends before.
        let rebuild = spawn_blocking(move || {
            let _held = (turn, thread);
            match name {
                None => drop(partition.scan(&KeyRange::all(), 0, 0)),
                // No range has fewer records.
                Some(name) => drop(partition.find_by(
                    &name,
                    &KeyRange::new("a", Some(Vec::new())),
                    None,
                    1,
                    0,
                )),
            }
        });
        let _ = rebuild.await;
    }

    fn turn(&self, partition: Turn) -> Arc<AsyncMutex<()>> {
        let mut turns = self.turns.lock();
        if let Some(turn) = turns.get(&partition).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(partition, Arc::downgrade(&turn));
        turn
    }
}

fn is_far_behind(partition: &StreamPartition, name: Option<&str>) -> bool {
    let indexed = match name {
        None => partition.keys_indexed_to(),
        Some(name) => partition.secondary_indexed_to(name),
    };
    let from = indexed.max(partition.earliest_offset());
    partition.last_stable_offset().0.saturating_sub(from.0) > BEHIND_MAX
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::task::Poll;

    use millstream_base::{ByteSize, Timestamp};
    use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, StreamConfig};
    use millstream_record::{ChunkBuilder, Compression};

    use super::*;

    /// A partition whose index is far behind.
    fn partition(log: &Log, name: &str) -> StreamPartition {
        let config = StreamConfig {
            settings: [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into(),
            ..StreamConfig::default()
        };
        let stream = log.create_stream(name, config).unwrap();
        let partition = stream.partition(0).unwrap();
        let mut builder = ChunkBuilder::new(Compression::None);
        for n in 0..2 * BEHIND_MAX {
            let key = n.to_be_bytes();
            builder.push(Timestamp(0), Some(&key), None, &[]).unwrap();
        }
        let appended = partition.append(builder.finish(None).unwrap()).unwrap();
        partition.acknowledge(&appended).unwrap();
        assert!(is_far_behind(&partition, None));
        partition
    }

    #[tokio::test]
    async fn a_rebuild_outlives_its_dropped_request_and_frees_its_thread() {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig::with_pool(dir.path(), ByteSize(8 << 20));
        let log = Log::open(config).unwrap();
        let [first, second] = ["first", "second"].map(|name| partition(&log, name));
        let reads = KeyReads::new(1, 1, 1);
        let mut request = Box::pin(reads.catch_up([&first]));
        poll_fn(|context| {
            let _ = request.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
        drop(request);
        // This one waits for the only thread.
        reads.catch_up([&second]).await;
        assert!(!is_far_behind(&first, None));
        assert!(!is_far_behind(&second, None));
        assert_eq!(reads.rebuilds.available_permits(), 1);
    }

    #[tokio::test]
    async fn deleting_a_stream_ends_its_rebuild_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig::with_pool(dir.path(), ByteSize(8 << 20));
        let log = Log::open(config).unwrap();
        let partition = partition(&log, "s");
        log.delete_stream("s").unwrap();
        let reads = KeyReads::new(1, 1, 1);
        reads.catch_up([&partition]).await;
        let looked_up = reads.run(move || partition.get(b"a")).await.unwrap();
        assert!(looked_up.is_err());
    }
}
