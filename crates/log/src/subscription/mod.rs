//! Subscriptions: chunks are handed out in place as they become durable (push, section 3; kera 7.4).
//!
//! A subscriber names once where it begins. From then on the log wakes it when there is more, and it takes chunks
//! as slices of the segments themselves, which stay in memory while it holds a slice. The log hands out
//! committed chunks only: up to the last stable offset, without chunks of aborted transactions.
//!
//! No subscriber polls: see [`Subscription::poll_more`].

mod feed;
mod filter;
pub mod handed;
pub mod lanes;
mod shared_group;

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use event_listener::EventListener;
use millstream_base::{KeyRange, Offset};
use millstream_record::Filter;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::handle::partition::StreamPartition;
use crate::handle::stream::Stream;
use crate::log::Log;
use crate::subscription::feed::Feed;
use crate::subscription::filter::ChunkFilter;
use crate::subscription::handed::{Next, SubscriptionError};
use crate::subscription::lanes::{LanesReader, Share};
use crate::subscription::shared_group::SharedGroupReader;

/// Hands out chunks as they become durable.
///
/// ```
/// use millstream_base::{StreamletIndex, Timestamp};
/// use millstream_log::{Log, LogConfig, Next, StreamConfig, Subscription};
/// use millstream_record::{ChunkBuilder, Compression};
///
/// let dir = tempfile::tempdir()?;
/// let log = Log::open(LogConfig::new(dir.path()))?;
/// let stream = log.create_stream("lines", StreamConfig::default())?;
/// let mut subscription = Subscription::of_stream(&stream);
///
/// let mut builder = ChunkBuilder::new(Compression::None);
/// builder.push(Timestamp(0), None, Some(b"hello"), &[])?;
/// let (lane, appended) = stream.append(StreamletIndex(0), builder.finish(None)?)?;
/// lane.acknowledge(&appended)?;
///
/// let Next::Handed(handed) = subscription.next(1 << 20)? else {
///     panic!("it is durable");
/// };
/// assert_eq!(handed.next, appended.next_offset);
/// assert!(matches!(subscription.next(1 << 20)?, Next::Nothing));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Subscription {
    reader: Reader,
    filter: Option<ChunkFilter>,
    /// There was no memory for the next chunks.
    is_busy: bool,
}

/// The events that a subscriber waits for: see [`Subscription::poll_more`].
#[derive(Debug)]
pub struct Listening {
    events: Vec<EventListener>,
    is_for_memory: bool,
}

#[derive(Debug)]
enum Reader {
    Lanes(LanesReader),
    SharedGroup(SharedGroupReader),
}

impl Subscription {
    /// Subscribes to a stream from its oldest record on, also to lanes that are added later.
    pub fn of_stream(stream: &Stream) -> Subscription {
        Subscription::of_share(stream, Share::ALL)
    }

    /// Subscribes to a share of a stream's partitions, each from its oldest record on, including partitions of the share that
    /// are added later.
    pub fn of_share(stream: &Stream, share: Share) -> Subscription {
        let reader = LanesReader::new(Some((stream.clone(), share)));
        Subscription::with(Reader::Lanes(reader))
    }

    /// Subscribes to lanes, each from an offset on.
    pub fn of_partitions(
        lanes: impl IntoIterator<Item = (StreamPartition, Offset)>,
    ) -> Subscription {
        let mut reader = LanesReader::new(None);
        for (lane, from) in lanes {
            reader.add(Feed::new(lane, from));
        }
        Subscription::with(Reader::Lanes(reader))
    }

    /// Watches a range of keys of a keyed stream: subscribes to the records of these keys in partitions, each from an offset on,
    /// and fails where it would miss the newest change of a key ([`LogError::ChangesLost`]). Call
    /// [`StreamPartition::check_watch`] before.
    ///
    /// ```
    /// use millstream_base::{KeyRange, StreamletIndex, Timestamp};
    /// use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, Next, StreamConfig, Subscription};
    /// use millstream_record::ChunkBuilder;
    ///
    /// let dir = tempfile::tempdir()?;
    /// let log = Log::open(LogConfig::new(dir.path()))?;
    /// let settings = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into();
    /// let config = StreamConfig { settings, ..StreamConfig::default() };
    /// let stream = log.create_stream("users", config)?;
    /// let partition = stream.partition(0)?;
    /// let from = partition.last_stable_offset();
    /// let watched = [(partition, from)];
    /// let mut watch = Subscription::of_keys(watched, &KeyRange::prefix("a"));
    ///
    /// let mut builder = ChunkBuilder::new(Default::default());
    /// builder.push(Timestamp(0), Some(b"ada"), Some(b"1815"), &[])?;
    /// builder.push(Timestamp(0), Some(b"bob"), Some(b"1900"), &[])?;
    /// let (lane, appended) = stream.append(StreamletIndex(0), builder.finish(None)?)?;
    /// lane.acknowledge(&appended)?;
    ///
    /// let Next::Handed(handed) = watch.next(1 << 20)? else {
    ///     panic!("it is committed");
    /// };
    /// let chunk = millstream_record::Chunk::parse(&handed.chunks.bytes)?;
    /// assert_eq!(chunk.header().record_count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_keys(
        partitions: impl IntoIterator<Item = (StreamPartition, Offset)>,
        range: &KeyRange,
    ) -> Subscription {
        let mut reader = LanesReader::new(None);
        for (lane, from) in partitions {
            reader.add(Feed::watching(lane, from));
        }
        let mut subscription = Subscription::with(Reader::Lanes(reader));
        subscription.set_filter(Filter::of_keys(range));
        subscription
    }

    /// Subscribes to the chunks that a shared group has not committed yet. The subscribers of a shared group divide the
    /// stream's groups: each group is handed to one of them at a time (kera 6.2.3), so they never wait for each other.
    /// Their commits carry the name of the `consumer`.
    ///
    /// # Errors
    /// When there is no such stream, or the shared group's name is refused.
    pub fn of_shared_group(
        log: &Log,
        stream: &Stream,
        shared_group: &str,
        consumer: String,
    ) -> Result<Subscription> {
        let reader = SharedGroupReader::new(log, stream, shared_group, consumer)?;
        Ok(Subscription::with(Reader::SharedGroup(reader)))
    }

    fn with(reader: Reader) -> Subscription {
        Subscription {
            reader,
            filter: None,
            is_busy: false,
        }
    }

    /// Hands out only the records that match a filter. The log evaluates it, so no other records are moved.
    pub fn set_filter(&mut self, filter: Filter) {
        self.filter = self.core().map(|core| ChunkFilter::new(filter, core));
    }

    /// Ends the subscription behind the chunks that are there now.
    pub fn end_at_head(&mut self) {
        match &mut self.reader {
            Reader::Lanes(reader) => reader.end_at_head(),
            Reader::SharedGroup(reader) => reader.end_at_head(),
        }
    }

    /// Returns by lane the first offset that was not handed out; `None` if a shared group stores the positions, or
    /// a lane has failed.
    pub fn positions(&self) -> Option<Vec<Offset>> {
        match &self.reader {
            Reader::Lanes(reader) => reader.positions(),
            Reader::SharedGroup(_) => None,
        }
    }

    /// Returns the number of lanes: their [places](handed::Handed::place) are below it. It grows with the stream.
    pub fn partition_count(&self) -> u32 {
        match &self.reader {
            Reader::Lanes(reader) => reader.lanes.len() as u32,
            Reader::SharedGroup(reader) => reader.partition_count(),
        }
    }

    /// Returns the lanes that may have chunks; none for a shared group.
    pub fn ready_partitions(&self) -> impl Iterator<Item = u32> + '_ {
        let lanes = match &self.reader {
            Reader::Lanes(reader) => Some([&reader.queue, &reader.waiting, &reader.unwanted]),
            Reader::SharedGroup(_) => None,
        };
        lanes.into_iter().flatten().flatten().copied()
    }

    /// Returns whether [`end_at_head`](Self::end_at_head) has set an end.
    pub fn has_end(&self) -> bool {
        match &self.reader {
            Reader::Lanes(reader) => reader.has_ends,
            Reader::SharedGroup(reader) => reader.has_ends(),
        }
    }

    /// Returns the offsets of a lane that are readable now and were not handed out. Offsets that a shared group has
    /// committed may be among them. `None` if the lane has failed, or the place does not exist.
    pub fn unread(&self, place: u32) -> Option<Range<Offset>> {
        match &self.reader {
            Reader::Lanes(reader) => {
                let lane = reader.lanes.get(place as usize)?.as_ref()?;
                Some(lane.feed.unread())
            }
            Reader::SharedGroup(reader) => {
                let lane = reader.stream().partition(place).ok()?;
                Some(lane.earliest_offset()..lane.last_stable_offset())
            }
        }
    }

    /// Goes on from [positions](Self::positions), before anything was handed out. Lanes that were added since
    /// then are read from the beginning.
    ///
    /// # Errors
    /// When retention has removed the next chunks, lanes or records are missing, or a shared group stores the
    /// positions.
    pub fn seek(&mut self, positions: &[Offset]) -> Result<(), SubscriptionError> {
        match &mut self.reader {
            Reader::Lanes(reader) => reader.seek(positions),
            Reader::SharedGroup(reader) => Err(LogError::UnknownPartition {
                stream: reader.stream().name().to_owned(),
                what: "positions but those that the shared group stores".to_owned(),
            }
            .into()),
        }
    }

    /// Returns the next chunks, of about `bytes_max` bytes at most, unless a single chunk is larger.
    ///
    /// # Errors
    /// When retention has removed the next chunks, the stream was deleted, or the disk does not return
    /// the stored bytes. The failed lane is not read again.
    pub fn next(&mut self, bytes_max: usize) -> Result<Next, SubscriptionError> {
        self.next_of(bytes_max, |_| true)
    }

    /// As [`next`](Self::next), but reads only the lanes whose [places](handed::Handed::place) are wanted now. While
    /// only unwanted lanes have chunks it returns [`Next::Nothing`], not [`Next::End`].
    ///
    /// # Errors
    /// See [`next`](Self::next).
    pub fn next_of(
        &mut self,
        bytes_max: usize,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Result<Next, SubscriptionError> {
        let filter = self.filter.as_mut();
        let next = match &mut self.reader {
            Reader::Lanes(reader) => reader.next(bytes_max, filter, is_wanted)?,
            Reader::SharedGroup(reader) => reader.next(bytes_max, filter, is_wanted)?,
        };
        self.is_busy = matches!(next, Next::Busy);
        Ok(next)
    }

    /// Returns whether each call of [`next`](Self::next) evaluates a filter, which may take tens of milliseconds.
    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns ready if there may be more since [`next`](Self::next) had nothing; else wakes `waker` when there
    /// may be. Each caller has a `listening` of its own, and calls [`next`](Self::next) in vain between two calls.
    pub fn poll_more(&self, listening: &mut Option<Listening>, waker: &Waker) -> Poll<()> {
        let events = match listening {
            Some(listening) if listening.is_for_memory || !self.is_busy => &mut listening.events,
            _ => {
                // No event is missed: an event after the listening began wakes, and one before it is
                // seen by the next look.
                *listening = Some(self.listen());
                return Poll::Ready(());
            }
        };
        let mut context = Context::from_waker(waker);
        let mut has_come =
            |event: &mut EventListener| Pin::new(event).poll(&mut context).is_ready();
        if !events.iter_mut().any(&mut has_come) {
            return Poll::Pending;
        }
        *listening = None;
        Poll::Ready(())
    }

    fn listen(&self) -> Listening {
        let mut events = Vec::new();
        match &self.reader {
            Reader::Lanes(reader) => {
                events.push(reader.watch.listen());
                events
                    .extend((reader.stream.as_ref()).map(|(stream, _)| stream.listen_for_lanes()));
            }
            Reader::SharedGroup(reader) => events.push(reader.stream().listen()),
        }
        if self.is_busy {
            events.extend(self.core().map(|core| core.pool.freed().listen()));
            events.extend(self.filter.as_ref().and_then(ChunkFilter::listen));
        }
        Listening {
            events,
            is_for_memory: self.is_busy,
        }
    }

    fn core(&self) -> Option<&Arc<Core>> {
        match &self.reader {
            Reader::Lanes(reader) => reader.core(),
            Reader::SharedGroup(reader) => Some(reader.stream().core()),
        }
    }

    /// Returns whether it reads for a shared group, so that its progress can be committed.
    pub fn has_shared_group(&self) -> bool {
        matches!(self.reader, Reader::SharedGroup(_))
    }

    /// Commits everything that was handed out, if it reads for a shared group.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn commit(&mut self) -> Result<()> {
        match &mut self.reader {
            Reader::Lanes(_) => Ok(()),
            Reader::SharedGroup(reader) => reader.commit(),
        }
    }

    /// Gives all groups back, if it reads for a shared group. Chunks that were not committed are handed out
    /// again.
    pub fn release(&mut self) {
        if let Reader::SharedGroup(reader) = &mut self.reader {
            reader.release();
        }
    }
}
