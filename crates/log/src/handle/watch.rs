//! Waiting for any of many partitions, without a task for each and without looking at all of them.
//!
//! The partitions notify a [`Watch`] themselves: the thread that moves a partition's head puts the partition's key into the watches that are
//! armed for it, and wakes their waiters. A partition notifies a watch once until it is armed again, so a busy partition does not keep
//! waking a thread that is still at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use event_listener::EventListener;
use millstream_base::Offset;

use crate::handle::partition::StreamPartition;
use crate::lane::LaneState;
use crate::lane::watchers::{DISARMED, WatchEntry, WatchShared, WatchedHead};

/// Reports which of many partitions have more than the caller has seen. One watch serves for the life of its owner, such as
/// a consumer's connection; clones are the same watch.
///
/// ```
/// # use millstream_base::{Offset, StreamletIndex, Timestamp};
/// # use millstream_log::{Durability, Log, LogConfig, StreamConfig, Watch};
/// # use millstream_record::{ChunkBuilder, Compression};
/// # let dir = tempfile::tempdir()?;
/// # let log = Log::open(LogConfig::new(dir.path()))?;
/// # let durability = Durability::Memory;
/// # let config = StreamConfig { durability, ..StreamConfig::default() };
/// # let stream = log.create_stream("lines", config)?;
/// let watch = Watch::default();
/// let lane = stream.partition(0)?;
/// let watched = watch.add(&lane, 7);
/// watched.arm(lane.durable_offset());
/// assert!(watch.take_ready().is_empty());
/// # let mut builder = ChunkBuilder::new(Compression::None);
/// # builder.push(Timestamp(0), None, Some(b"hello"), &[])?;
///
/// // In memory, so it is as durable as it gets.
/// lane.append(builder.finish(None)?)?;
/// assert_eq!(watch.take_ready(), [7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Watch {
    shared: Arc<WatchShared>,
}

/// A partition in a [`Watch`], until this is dropped.
#[derive(Debug)]
pub struct Watched {
    lane: Arc<LaneState>,
    entry: Arc<WatchEntry>,
}

impl Watch {
    /// Adds a partition, which is called `key` from then on. The partition does not notify the watch before it is armed, and then
    /// when its durable offset has moved.
    pub fn add(&self, lane: &StreamPartition, key: u64) -> Watched {
        self.add_for(lane, key, WatchedHead::Durable)
    }

    /// As [`Watch::add`], for readers up to [`StreamPartition::high_watermark`].
    pub fn add_high_watermark(&self, lane: &StreamPartition, key: u64) -> Watched {
        self.add_for(lane, key, WatchedHead::HighWatermark)
    }

    fn add_for(&self, lane: &StreamPartition, key: u64, head: WatchedHead) -> Watched {
        let entry = Arc::new(WatchEntry {
            watch: Arc::clone(&self.shared),
            key,
            head,
            after: AtomicU64::new(DISARMED),
        });
        let lane = Arc::clone(&lane.lane);
        lane.watchers.add(&entry);
        Watched { lane, entry }
    }

    /// Takes the keys of the partitions that have notified the watch since the last call, each once for each time
    /// that it was armed. A partition that was dropped meanwhile may be among them.
    pub fn take_ready(&self) -> Vec<u64> {
        std::mem::take(&mut *self.shared.ready.lock())
    }

    /// Listens for the next key that is added: look at [`Watch::take_ready`] after it is made.
    pub(crate) fn listen(&self) -> EventListener {
        self.shared.changed.listen()
    }

    /// As [`Watch::take_ready`], when there is at least one. A future that is dropped before it is ready takes
    /// nothing.
    pub async fn ready(&self) -> Vec<u64> {
        loop {
            let ready = self.take_ready();
            if !ready.is_empty() {
                return ready;
            }
            let changed = self.shared.changed.listen();
            if self.shared.ready.lock().is_empty() {
                changed.await;
            }
        }
    }
}

impl Watched {
    /// Lets the partition notify the watch once when its head is beyond `after`, or when its stream is
    /// deleted; at once if that is so already.
    pub fn arm(&self, after: Offset) {
        self.entry.after.store(after.0, Ordering::Relaxed);
        // Either the thread that moves the lane's offset sees the store above, or the loads below see the
        // offset: see `LaneState::wake`.
        fence(Ordering::SeqCst);
        if self.entry.note(&self.lane.heads()) {
            self.entry.wake();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.lane.watchers.remove(&self.entry);
    }
}
