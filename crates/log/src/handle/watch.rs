//! Waiting for any of many lanes, without a task for each and without looking at all of them.
//!
//! A [`Watch`] is told by the lanes themselves: whoever moves a lane's head puts the lane's key into the watches that are armed for it, and wakes those who wait. A lane tells a watch once,
//! until it is armed again, so a busy lane does not keep waking somebody who is still at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use event_listener::{Event, EventListener};
use hashbrown::HashMap;
use millstream_base::Offset;
use parking_lot::Mutex;

use crate::lane::LaneState;
use crate::log::Lane;

/// What [`Entry::after`] holds while the lane is not to tell anything.
const DISARMED: u64 = u64::MAX;

/// Tells which of many lanes have more than was known of them. Made once for as long as somebody is
/// interested, such as a consumer's connection; clones are the same watch.
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
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Keys of lanes that have told; at most one for each entry that was armed.
    ready: Mutex<Vec<u64>>,
    /// Notified when a key was added.
    changed: Event,
}

/// A lane in a [`Watch`], until this is dropped.
#[derive(Debug)]
pub struct Watched {
    lane: Arc<LaneState>,
    entry: Arc<Entry>,
}

#[derive(Debug)]
struct Entry {
    watch: Arc<Shared>,
    key: u64,
    head: Head,
    /// The lane tells when its head is beyond this. Stored by who arms; swapped for
    /// [`DISARMED`] by who tells.
    after: AtomicU64,
}

/// Which of a lane's heads a watch is about.
#[derive(Debug, Clone, Copy)]
enum Head {
    Durable,
    Readable,
}

impl Head {
    fn of(self, lane: &LaneState) -> Offset {
        match self {
            Head::Durable => lane.durable_offset(),
            Head::Readable => lane.readable_offset(),
        }
    }
}

impl Watch {
    /// Adds a lane, which is called `key` from then on. It tells nothing before it is armed, and then
    /// of what is durable.
    pub fn add(&self, lane: &Lane, key: u64) -> Watched {
        self.add_for(lane, key, Head::Durable)
    }

    /// As [`Watch::add`], for who reads up to [`Lane::readable_offset`].
    pub fn add_readable(&self, lane: &Lane, key: u64) -> Watched {
        self.add_for(lane, key, Head::Readable)
    }

    fn add_for(&self, lane: &Lane, key: u64, head: Head) -> Watched {
        let entry = Arc::new(Entry {
            watch: Arc::clone(&self.shared),
            key,
            head,
            after: AtomicU64::new(DISARMED),
        });
        let lane = Arc::clone(&lane.lane);
        lane.watchers.add(&entry);
        Watched { lane, entry }
    }

    /// The keys of the lanes that have told since they were asked for last, each once for each time
    /// that it was armed. A lane that was dropped meanwhile may be among them.
    pub fn take_ready(&self) -> Vec<u64> {
        std::mem::take(&mut *self.shared.ready.lock())
    }

    /// Hears once when a key is added from now on: look at [`Watch::take_ready`] after it is made.
    pub(crate) fn listen(&self) -> EventListener {
        self.shared.changed.listen()
    }

    /// As [`Watch::take_ready`], when there is at least one. What is dropped before it is done takes
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
    /// Lets the lane tell once when its head is beyond `after`, or when its stream is
    /// deleted; at once if that is so already.
    pub fn arm(&self, after: Offset) {
        self.entry.after.store(after.0, Ordering::Relaxed);
        // Either whoever moves the lane's offset sees the store above, or the loads below see the
        // offset: see `LaneState::wake`.
        fence(Ordering::SeqCst);
        if self.entry.note(&self.lane) {
            self.entry.wake();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.lane.watchers.remove(&self.entry);
    }
}

impl Entry {
    /// Adds the key to those that are ready, if it is armed for less than the lane's head. `true` when
    /// the watch is to be woken.
    fn note(&self, lane: &LaneState) -> bool {
        let after = self.after.load(Ordering::Relaxed);
        if after == DISARMED || (self.head.of(lane).0 <= after && !lane.is_removed()) {
            return false;
        }
        // Who arms it meanwhile looks by itself.
        let disarmed =
            self.after
                .compare_exchange(after, DISARMED, Ordering::Relaxed, Ordering::Relaxed);
        if disarmed.is_ok() {
            self.watch.ready.lock().push(self.key);
        }
        disarmed.is_ok()
    }

    fn wake(&self) {
        self.watch.changed.notify(usize::MAX);
    }
}

/// The watches that a lane is in.
#[derive(Debug, Default)]
pub struct Watchers {
    /// How many there are, for a lane that nobody watches. Stored under the lock of `entries`.
    count: AtomicUsize,
    /// By address.
    entries: Mutex<HashMap<usize, Arc<Entry>>>,
}

impl Watchers {
    fn add(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.lock();
        entries.insert(Arc::as_ptr(entry) as usize, Arc::clone(entry));
        self.count.store(entries.len(), Ordering::Relaxed);
    }

    fn remove(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.lock();
        entries.remove(&(Arc::as_ptr(entry) as usize));
        self.count.store(entries.len(), Ordering::Relaxed);
    }

    /// Whether there are any. The caller has moved the lane's offset, and then made a sequentially
    /// consistent fence.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Tells those that are armed for less than the lane's head.
    pub fn tell(&self, lane: &LaneState) {
        let entries = self.entries.lock();
        let told: Vec<Arc<Entry>> = entries
            .values()
            .filter(|entry| entry.note(lane))
            .cloned()
            .collect();
        // Whoever is woken may drop what it watched.
        drop(entries);
        told.iter().for_each(|entry| entry.wake());
    }
}
