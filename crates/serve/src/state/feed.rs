//! The feed of a state element: one reader of its changelog, and all watches that follow it.
//!
//! The task of a feed (`task.rs`) reads the changelog once. This is the part that knows the subscribers: it hands each change to
//! those whose keys it is of. It never waits for one of them.
//!
//! The invariant, under the lock: everything before the feed's position was put into the queues of the subscribers that have
//! joined, and nothing behind it. So a subscriber that joins at the feed's position, and has read everything before by itself,
//! gets each change once. When the feed drops a subscriber, it leaves the position up to which the queue is whole.

mod feeds;
mod following;
mod task;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::body::Bytes;
use millstream_base::{
    KeyEvent, KeyRange, KeyedVersion, Offset, WatchFrom, WatchPosition, WatchPositions,
};
use millstream_flow::{BoxError, ChangelogWatch, ShownChange, WatchFuture};
use serde_json::value::to_raw_value;
use tokio::sync::{Notify, mpsc};

pub use self::feeds::Feeds;
pub use self::following::Following;
use crate::memory::Memory;
use crate::watch::{Seen, frame_bytes_max, frame_of};

/// The items that wait for a subscriber. A subscriber with more is dropped, and goes on with a reader of its own.
const QUEUED_MAX: usize = if cfg!(test) { 8 } else { 256 };

/// The changes of a state element, and the progress of its flow.
pub trait Source: Send + Sync {
    /// Begins to watch the keys of a range in the changelog.
    fn watch(
        &self,
        range: KeyRange,
        from: WatchFrom,
    ) -> WatchFuture<'static, Box<dyn ChangelogWatch>>;

    /// Decodes a change.
    ///
    /// # Errors
    /// When it is none of this element.
    fn show(&self, key: &[u8], value: Option<&[u8]>) -> Result<ShownChange, BoxError>;

    /// Returns the last complete checkpoint; `None` if the flow has ended.
    fn checkpoint(&self) -> Option<u64>;

    /// Asks for the progress at a checkpoint.
    fn progress(&self, checkpoint: u64) -> AskedProgress;

    /// Returns a number that no other run of the flow has while this exists.
    fn run(&self) -> usize;
}

pub type AskedProgress = Pin<Box<dyn Future<Output = Result<Progress, String>> + Send>>;

/// The progress of the flow at a checkpoint.
pub struct Progress {
    pub checkpoint: u64,
    /// An object.
    pub text: String,
    /// The ends of the changelog's partitions, which are behind all changes of the checkpoint.
    pub ends: Vec<Offset>,
}

impl Progress {
    /// Whether all changes of the checkpoint in these partitions are before the position.
    fn is_before(&self, positions: &WatchPositions) -> bool {
        let mut partitions = positions.partitions.iter();
        partitions.all(|position| {
            let end = self.ends.get(position.partition as usize);
            end.is_none_or(|end| position.next >= *end)
        })
    }
}

/// The keys that a subscriber watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchedBy {
    /// The key of these bytes in the changelog. One partition has it.
    Key(Bytes),
    /// Keys of the changelog.
    Range(KeyRange),
    /// The key that has this text, where the bytes do not tell.
    Text(String),
}

/// An item that subscribers share: a frame with its id.
#[derive(Debug, Clone)]
pub struct Item {
    /// Holds its part of the feeds' memory.
    pub text: Bytes,
    pub news: News,
}

#[derive(Debug, Clone, Copy)]
pub enum News {
    Change(KeyedVersion),
    /// Of this checkpoint.
    Progress(u64),
}

/// The reason for which a feed has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The changelog could not be read, or changes were missed: the subscribers go on by themselves.
    Broken,
    /// The flow is gone.
    FlowEnded,
}

pub struct Feed {
    state: Mutex<State>,
    /// Wakes the watches that wait to join: the position has moved, or the feed has ended.
    moved: Notify,
    /// The memory of the items in all queues of all feeds.
    memory: Arc<Memory>,
}

#[derive(Default)]
struct State {
    /// `None` until the feed has begun to read.
    positions: Option<WatchPositions>,
    end: Option<End>,
    /// The newest one.
    progress: Option<Arc<Progress>>,
    /// Whether the subscribers have it.
    is_progress_handed: bool,
    subscribers: Subscribers,
    /// The number of the next subscriber.
    next: u64,
}

#[derive(Default)]
struct Subscribers {
    of_keys: HashMap<Bytes, Vec<Subscriber>>,
    of_texts: HashMap<String, Vec<Subscriber>>,
    of_ranges: Vec<Subscriber>,
    count: usize,
}

struct Subscriber {
    number: u64,
    watched: WatchedBy,
    /// The partition of a single key.
    partition: Option<u32>,
    sender: mpsc::Sender<Item>,
    dropped_at: Arc<OnceLock<WatchPositions>>,
}

/// The end of a subscriber's queue.
pub struct Subscription {
    feed: Arc<Feed>,
    number: u64,
    watched: WatchedBy,
    partition: Option<u32>,
    pub items: mpsc::Receiver<Item>,
    /// Set before the queue ends.
    dropped_at: Arc<OnceLock<WatchPositions>>,
}

/// The answer to a watch that wants to join.
pub enum Join {
    /// It has joined, at this position of the feed.
    Joined(Subscription, WatchPositions),
    /// The feed has not begun, or has not reached the position of the watch.
    Behind,
    /// The feed reads another stream, or other partitions.
    Other,
    Ended(End),
}

impl Feed {
    pub fn new(memory: Arc<Memory>) -> Feed {
        Feed {
            state: Mutex::default(),
            moved: Notify::new(),
            memory,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes when the position has moved, or the feed has ended.
    pub fn moved(&self) -> &Notify {
        &self.moved
    }

    pub fn end_reason(&self) -> Option<End> {
        self.lock().end
    }

    /// Returns how many watches have joined.
    pub fn subscribers(&self) -> usize {
        self.lock().subscribers.count
    }

    /// Returns the newest progress.
    pub fn progress(&self) -> Option<Arc<Progress>> {
        self.lock().progress.clone()
    }

    /// Joins at the feed's position, if that is not before `at`. `shown` is the last checkpoint whose progress the subscriber has.
    pub fn join(self: &Arc<Feed>, watched: &WatchedBy, at: &WatchPositions, shown: u64) -> Join {
        let mut state = self.lock();
        if let Some(end) = state.end {
            return Join::Ended(end);
        }
        let Some(positions) = &state.positions else {
            return Join::Behind;
        };
        let partition = match watched {
            WatchedBy::Key(_) => at.partitions.first().map(|it| it.partition),
            WatchedBy::Range(_) | WatchedBy::Text(_) => None,
        };
        let now = in_partition(positions, partition);
        let is_same = now.stream == at.stream
            && now.partitions.len() == at.partitions.len()
            && pairs(&now, at)
                .all(|(now, at)| (now.partition, now.epoch) == (at.partition, at.epoch));
        if !is_same {
            return Join::Other;
        }
        if pairs(&now, at).any(|(now, at)| now.next < at.next) {
            return Join::Behind;
        }
        let (sender, items) = mpsc::channel(QUEUED_MAX);
        let dropped_at = Arc::default();
        let number = state.next;
        state.next += 1;
        let told = state.progress.clone().filter(|_| state.is_progress_handed);
        if let Some(progress) = told.filter(|it| it.checkpoint > shown)
            && let Some(item) = self.progress_item(&progress, &now)
        {
            // The queue is empty.
            let _ = sender.try_send(item);
        }
        state.subscribers.add(Subscriber {
            number,
            watched: watched.clone(),
            partition,
            sender,
            dropped_at: Arc::clone(&dropped_at),
        });
        let subscription = Subscription {
            feed: Arc::clone(self),
            number,
            watched: watched.clone(),
            partition,
            items,
            dropped_at,
        };
        Join::Joined(subscription, now)
    }

    /// Begins at a position.
    pub fn begin(&self, positions: WatchPositions) {
        self.lock().positions = Some(positions);
        self.moved.notify_waiters();
    }

    /// Hands a change to its subscribers; the feed is at `after` then. Returns how many got it.
    ///
    /// # Errors
    /// When the change cannot be decoded. The position has not moved then.
    pub fn hand_change(
        &self,
        event: KeyEvent,
        after: WatchPositions,
        source: &dyn Source,
    ) -> Result<usize, String> {
        let mut state = self.lock();
        let KeyEvent::Change { key, version, .. } = &event else {
            return Ok(0);
        };
        let (version, subscribers) = (*version, &state.subscribers);
        let has_any = !subscribers.of_texts.is_empty()
            || subscribers.of_keys.contains_key(key)
            || subscribers.of_ranges.iter().any(|it| it.has(key));
        let mut handed = 0;
        if has_any {
            let key = key.clone();
            if let Some((text, seen)) = shown(event, source)? {
                let before = state.positions.take().unwrap_or_else(|| after.clone());
                let mut one = Shared::default();
                let mut all = Shared::default();
                handed = state.subscribers.hand(&key, &text, &before, |partition| {
                    let form = match partition {
                        Some(_) => &mut one,
                        None => &mut all,
                    };
                    form.get(|| {
                        let id = in_partition(&after, partition).to_string();
                        let text = self.held_frame(&seen, &id)?;
                        let news = News::Change(version);
                        Some(Item { text, news })
                    })
                });
            }
        }
        state.positions = Some(after);
        Ok(handed)
    }

    /// Notes that all before a position was handed, and wakes those that wait for it.
    pub fn reach(&self, positions: WatchPositions) {
        self.lock().positions = Some(positions);
        self.moved.notify_waiters();
    }

    /// Notes the progress at a checkpoint, to be handed behind its changes.
    pub fn tell(&self, progress: Progress) {
        let mut state = self.lock();
        state.progress = Some(Arc::new(progress));
        state.is_progress_handed = false;
        drop(state);
        self.moved.notify_waiters();
    }

    /// Hands the progress to all subscribers if all changes before it were handed. Returns whether that is so.
    pub fn hand_progress(&self) -> bool {
        let mut state = self.lock();
        let (Some(progress), Some(positions)) = (&state.progress, &state.positions) else {
            return false;
        };
        if !progress.is_before(positions) {
            return false;
        }
        let (progress, positions) = (Arc::clone(progress), positions.clone());
        state.is_progress_handed = true;
        let mut items: HashMap<Option<u32>, Shared> = HashMap::new();
        state.subscribers.hand_to_all(&positions, |partition| {
            let item = items.entry(partition).or_default();
            item.get(|| self.progress_item(&progress, &in_partition(&positions, partition)))
        });
        true
    }

    /// Ends, and drops all subscribers.
    pub fn end(&self, end: End) {
        let mut state = self.lock();
        state.end = Some(end);
        if let Some(positions) = state.positions.clone() {
            state.subscribers.hand_to_all(&positions, |_| None);
        }
        drop(state);
        self.moved.notify_waiters();
    }

    fn progress_item(&self, progress: &Progress, at: &WatchPositions) -> Option<Item> {
        let text = self.held_frame(&Seen::Progress(progress.text.clone()), &at.to_string())?;
        let news = News::Progress(progress.checkpoint);
        Some(Item { text, news })
    }

    /// Returns a frame that holds its memory; `None` if none is free.
    fn held_frame(&self, seen: &Seen, id: &str) -> Option<Bytes> {
        let room = self.memory.take(frame_bytes_max(seen) + id.len())?;
        Some(room.hold(frame_of(seen, Some(id))))
    }
}

/// An item that is made when the first subscriber needs it.
#[derive(Default)]
struct Shared {
    /// `Some(None)` if there is no memory for it.
    made: Option<Option<Item>>,
}

impl Shared {
    fn get(&mut self, make: impl FnOnce() -> Option<Item>) -> Option<Item> {
        self.made.get_or_insert_with(make).clone()
    }
}

impl Subscribers {
    fn add(&mut self, subscriber: Subscriber) {
        self.count += 1;
        match &subscriber.watched {
            WatchedBy::Key(key) => {
                let of_key = self.of_keys.entry(key.clone()).or_default();
                of_key.push(subscriber);
            }
            WatchedBy::Text(text) => {
                let of_text = self.of_texts.entry(text.clone()).or_default();
                of_text.push(subscriber);
            }
            WatchedBy::Range(_) => self.of_ranges.push(subscriber),
        }
    }

    fn remove(&mut self, watched: &WatchedBy, number: u64) {
        let stays = |it: &Subscriber| it.number != number;
        self.of(watched, |list| list.retain(stays));
    }

    /// Changes the list of those that watch the same key, or ranges.
    fn of(&mut self, watched: &WatchedBy, change: impl FnOnce(&mut Vec<Subscriber>)) {
        let Subscribers {
            of_keys,
            of_texts,
            of_ranges,
            count,
        } = self;
        match watched {
            WatchedBy::Key(key) => change_in(of_keys.entry(key.clone()), count, change),
            WatchedBy::Text(text) => change_in(of_texts.entry(text.clone()), count, change),
            WatchedBy::Range(_) => counted(of_ranges, count, change),
        }
    }

    /// Hands an item to the subscribers of a key. Drops those that cannot take it. Returns how many have taken it.
    fn hand(
        &mut self,
        key: &Bytes,
        text: &str,
        before: &WatchPositions,
        mut item: impl FnMut(Option<u32>) -> Option<Item>,
    ) -> usize {
        let mut handed = 0;
        let mut stays = |it: &Subscriber| {
            let is_taken = it.take(before, item(it.partition));
            handed += usize::from(is_taken);
            is_taken
        };
        self.of(&WatchedBy::Key(key.clone()), |list| list.retain(&mut stays));
        if !self.of_texts.is_empty() {
            let watched = WatchedBy::Text(text.to_owned());
            self.of(&watched, |list| list.retain(&mut stays));
        }
        let Subscribers {
            of_ranges, count, ..
        } = self;
        counted(of_ranges, count, |list| {
            list.retain(|it| !it.has(key) || stays(it));
        });
        handed
    }

    /// Hands an item to all subscribers, and drops those that cannot take it.
    fn hand_to_all(
        &mut self,
        before: &WatchPositions,
        mut item: impl FnMut(Option<u32>) -> Option<Item>,
    ) {
        let mut stays = |it: &Subscriber| it.take(before, item(it.partition));
        self.of_keys.retain(|_, list| {
            list.retain(&mut stays);
            !list.is_empty()
        });
        self.of_texts.retain(|_, list| {
            list.retain(&mut stays);
            !list.is_empty()
        });
        self.of_ranges.retain(&mut stays);
        let of_keys = self.of_keys.values().map(Vec::len).sum::<usize>();
        let of_texts = self.of_texts.values().map(Vec::len).sum::<usize>();
        self.count = of_keys + of_texts + self.of_ranges.len();
    }
}

fn change_in<K>(
    entry: Entry<'_, K, Vec<Subscriber>>,
    count: &mut usize,
    change: impl FnOnce(&mut Vec<Subscriber>),
) {
    if let Entry::Occupied(mut list) = entry {
        counted(list.get_mut(), count, change);
        if list.get().is_empty() {
            list.remove();
        }
    }
}

fn counted(
    list: &mut Vec<Subscriber>,
    count: &mut usize,
    change: impl FnOnce(&mut Vec<Subscriber>),
) {
    let before = list.len();
    change(list);
    *count -= before - list.len();
}

impl Subscriber {
    /// Whether a key is in the range.
    fn has(&self, key: &[u8]) -> bool {
        matches!(&self.watched, WatchedBy::Range(range) if range.contains(key))
    }

    /// Puts an item into the queue. Returns `false` if there is none, or the queue is full: then it ends at `before`.
    fn take(&self, before: &WatchPositions, item: Option<Item>) -> bool {
        let is_taken = item.is_some_and(|item| self.sender.try_send(item).is_ok());
        if !is_taken {
            // It is dropped once.
            let _ = self.dropped_at.set(in_partition(before, self.partition));
        }
        is_taken
    }
}

impl Subscription {
    /// Returns the feed's position if all before it was taken from the queue.
    pub fn positions(&self) -> Option<WatchPositions> {
        let state = self.feed.lock();
        if self.dropped_at.get().is_some() || !self.items.is_empty() {
            return None;
        }
        let positions = state.positions.as_ref()?;
        Some(in_partition(positions, self.partition))
    }

    /// Returns the position behind the queue, if the feed has dropped the subscriber.
    pub fn dropped_at(&self) -> Option<&WatchPositions> {
        self.dropped_at.get()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.feed.lock();
        state.subscribers.remove(&self.watched, self.number);
    }
}

/// Returns the position in one partition, or in all.
fn in_partition(positions: &WatchPositions, partition: Option<u32>) -> WatchPositions {
    let Some(partition) = partition else {
        return positions.clone();
    };
    let one = positions
        .partitions
        .iter()
        .filter(|it| it.partition == partition);
    WatchPositions {
        stream: positions.stream,
        partitions: one.copied().collect(),
    }
}

/// The positions of the same partitions, side by side.
fn pairs<'a>(
    one: &'a WatchPositions,
    other: &'a WatchPositions,
) -> impl Iterator<Item = (&'a WatchPosition, &'a WatchPosition)> {
    one.partitions.iter().zip(&other.partitions)
}

/// Decodes a change. Returns the key's text beside it; `None` for a key without a text, which is left out, as in lists.
///
/// # Errors
/// When it is none of the element.
fn shown(event: KeyEvent, source: &dyn Source) -> Result<Option<(String, Seen)>, String> {
    let KeyEvent::Change {
        key,
        version,
        timestamp,
        value,
        expires_at,
    } = event
    else {
        return Ok(None);
    };
    let shown = source.show(&key, value.as_deref()).map_err(|error| {
        format!(
            "partition {}, offset {}: {error}; the program has an element of another type, or another program has \
             written to the flow's state",
            version.partition, version.version
        )
    })?;
    let ShownChange {
        key, entry, value, ..
    } = shown;
    let Some(key) = key else {
        return Ok(None);
    };
    let change = KeyEvent::Change {
        key: key.clone().into(),
        version,
        timestamp,
        value: value.map(|value| value.to_string().into()),
        expires_at,
    };
    let seen = match entry.and_then(|entry| to_raw_value(&entry).ok()) {
        Some(entry) => Seen::Entry(change, entry),
        None => Seen::Key(change),
    };
    Ok(Some((key, seen)))
}
