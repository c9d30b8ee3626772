//! Subscriptions: chunks are handed out in place as they become durable (push.txt, section 3; kera 7.4).
//!
//! Who subscribes says once where it begins. From then on it is told when there is more, and takes what there
//! is as slices of the segments themselves, which stay in memory for as long as it holds a slice. Only
//! what is committed is handed out: up to the last stable offset, without what was aborted.
//!
//! Nobody polls: see [`Subscription::poll_more`].

mod feed;
mod filter;
mod shared_group;

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use event_listener::EventListener;
use millstream_base::Offset;
use millstream_record::Filter;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::handle::lane::Lane;
use crate::handle::stream::Stream;
use crate::handle::watch::{Watch, Watched};
use crate::log::Log;
use crate::read::reader::ReadChunks;
use crate::subscription::feed::Feed;
use crate::subscription::filter::Sieve;
use crate::subscription::shared_group::ApplicationReader;

/// Chunks that are handed out.
#[derive(Debug, Clone)]
pub struct Handed {
    /// The lane: its number among those that were subscribed to, or among all of the stream.
    pub place: u32,
    /// Whole chunks. There may be none, where others were left out that nobody is to see.
    pub chunks: ReadChunks,
    /// Records before are in the first chunk, and were not asked for.
    pub from: Offset,
    /// The offset behind the last record.
    pub next: Offset,
    /// Up to where there was something to be handed out.
    pub end: Offset,
}

/// What a subscription has.
#[derive(Debug)]
pub enum Next {
    /// These chunks.
    Handed(Handed),
    /// Something, for which there is no memory: other readers hold all that there is for catch-up reads, or for
    /// decompression.
    Busy,
    /// Nothing now.
    Nothing,
    /// Nothing more: see [`Subscription::end_at_head`].
    End,
}

/// Why a subscription cannot go on.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct SubscriptionError {
    /// The lane that it is about, as in [`Handed::place`].
    pub place: Option<u32>,
    /// What is wrong. [`LogError::OffsetOutOfRange`] names the earliest offset, and
    /// [`LogError::CursorRemoved`] the earliest cursor.
    pub error: LogError,
}

impl From<LogError> for SubscriptionError {
    fn from(error: LogError) -> SubscriptionError {
        SubscriptionError { place: None, error }
    }
}

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
    sieve: Option<Sieve>,
    /// There was no memory for what comes next.
    is_busy: bool,
}

/// Hears when a subscription may have more: see [`Subscription::poll_more`].
#[derive(Debug)]
pub struct Listening {
    events: Vec<EventListener>,
    is_for_memory: bool,
}

#[derive(Debug)]
enum Reader {
    Lanes(LanesReader),
    Application(ApplicationReader),
}

impl Subscription {
    /// Everything in a stream, from the oldest record on, also of lanes that are added later.
    pub fn of_stream(stream: &Stream) -> Subscription {
        Subscription::with(Reader::Lanes(LanesReader::new(Some(stream.clone()))))
    }

    /// Lanes, each from an offset on.
    pub fn of_lanes(lanes: impl IntoIterator<Item = (Lane, Offset)>) -> Subscription {
        let mut reader = LanesReader::new(None);
        for (lane, from) in lanes {
            reader.add(Feed::new(lane, from));
        }
        Subscription::with(Reader::Lanes(reader))
    }

    /// What an application has not done yet. Its subscribers share the stream's groups, each of which is
    /// handed to one of them at a time (kera 6.2.3), so that they never wait for each other. Who commits
    /// how far a group is done names its `consumer`.
    ///
    /// # Errors
    /// When there is no such stream, or the application's name is refused.
    pub fn of_application(
        log: &Log,
        stream: &Stream,
        application: &str,
        consumer: String,
    ) -> Result<Subscription> {
        let reader = ApplicationReader::new(log, stream, application, consumer)?;
        Ok(Subscription::with(Reader::Application(reader)))
    }

    fn with(reader: Reader) -> Subscription {
        Subscription {
            reader,
            sieve: None,
            is_busy: false,
        }
    }

    /// Hands out records alone that a filter keeps. It is evaluated here, so that no others are moved.
    pub fn set_filter(&mut self, filter: Filter) {
        self.sieve = self.core().map(|core| Sieve::new(filter, core));
    }

    /// Ends the subscription behind what is there now.
    pub fn end_at_head(&mut self) {
        match &mut self.reader {
            Reader::Lanes(reader) => reader.end_at_head(),
            Reader::Application(reader) => reader.end_at_head(),
        }
    }

    /// By lane, the first offset that was not handed out; `None` where an application knows how far it is, or
    /// a lane has failed.
    pub fn positions(&self) -> Option<Vec<Offset>> {
        match &self.reader {
            Reader::Lanes(reader) => reader.positions(),
            Reader::Application(_) => None,
        }
    }

    /// How many lanes it reads: the [places](Handed::place) below this number. Grows with the stream that it is of.
    pub fn lane_count(&self) -> u32 {
        match &self.reader {
            Reader::Lanes(reader) => reader.lanes.len() as u32,
            Reader::Application(reader) => reader.lane_count(),
        }
    }

    /// The lanes that may have something. Where an application knows how far it is, none are named.
    pub fn ready_lanes(&self) -> impl Iterator<Item = u32> + '_ {
        let lanes = match &self.reader {
            Reader::Lanes(reader) => Some([&reader.queue, &reader.waiting, &reader.unwanted]),
            Reader::Application(_) => None,
        };
        lanes.into_iter().flatten().flatten().copied()
    }

    /// Whether it was told to [end](Self::end_at_head) somewhere.
    pub fn has_end(&self) -> bool {
        match &self.reader {
            Reader::Lanes(reader) => reader.has_ends,
            Reader::Application(reader) => reader.has_ends(),
        }
    }

    /// What of a lane is there now and was not handed out: from the first such offset to the end. What an application has
    /// done of it may be among that. `None` if the lane has failed, or there is no such place.
    pub fn unread(&self, place: u32) -> Option<Range<Offset>> {
        match &self.reader {
            Reader::Lanes(reader) => {
                let lane = reader.lanes.get(place as usize)?.as_ref()?;
                Some(lane.feed.unread())
            }
            Reader::Application(reader) => {
                let lane = reader.stream().partition(place).ok()?;
                Some(lane.earliest_offset()..lane.last_stable_offset())
            }
        }
    }

    /// Goes on from [positions](Self::positions), before anything was handed out. Lanes that were added since
    /// then are read from the beginning.
    ///
    /// # Errors
    /// When retention has removed what comes next, there are fewer lanes or records than there were, or an
    /// application knows how far it is.
    pub fn seek(&mut self, positions: &[Offset]) -> Result<(), SubscriptionError> {
        match &mut self.reader {
            Reader::Lanes(reader) => reader.seek(positions),
            Reader::Application(reader) => Err(LogError::UnknownLane {
                stream: reader.stream().name().to_owned(),
                what: "positions but those that the application keeps".to_owned(),
            }
            .into()),
        }
    }

    /// What there is next, of about `bytes_max` bytes at most, unless a single chunk is larger.
    ///
    /// # Errors
    /// When retention has removed what comes next, the stream was deleted, or the disk does not give back
    /// what was stored. The lane that it is about is not looked at again.
    pub fn next(&mut self, bytes_max: usize) -> Result<Next, SubscriptionError> {
        self.next_of(bytes_max, |_| true)
    }

    /// As [`next`](Self::next), but only of lanes that are wanted now, which are named by their
    /// [places](Handed::place). It has [nothing](Next::Nothing) while others alone have something, and is not at its end
    /// then.
    ///
    /// # Errors
    /// See [`next`](Self::next).
    pub fn next_of(
        &mut self,
        bytes_max: usize,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Result<Next, SubscriptionError> {
        let sieve = self.sieve.as_mut();
        let next = match &mut self.reader {
            Reader::Lanes(reader) => reader.next(bytes_max, sieve, is_wanted)?,
            Reader::Application(reader) => reader.next(bytes_max, sieve, is_wanted)?,
        };
        self.is_busy = matches!(next, Next::Busy);
        Ok(next)
    }

    /// Whether a filter is evaluated with each call of [`next`](Self::next), which may take tens of milliseconds then.
    pub fn has_filter(&self) -> bool {
        self.sieve.is_some()
    }

    /// Whether there may be more since [`next`](Self::next) had nothing; else `waker` is woken when there
    /// may be. `listening` is the caller's, who has looked in vain with [`next`](Self::next) since this was called last:
    /// of several each has one.
    pub fn poll_more(&self, listening: &mut Option<Listening>, waker: &Waker) -> Poll<()> {
        let events = match listening {
            Some(listening) if listening.is_for_memory || !self.is_busy => &mut listening.events,
            _ => {
                // No event is missed: what comes after the listening began wakes, and what came before is
                // seen by the next look.
                *listening = Some(self.listen());
                return Poll::Ready(());
            }
        };
        let mut context = Context::from_waker(waker);
        let mut hears = |event: &mut EventListener| Pin::new(event).poll(&mut context).is_ready();
        if !events.iter_mut().any(&mut hears) {
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
                events.extend(reader.stream.as_ref().map(Stream::listen_for_lanes));
            }
            Reader::Application(reader) => events.push(reader.stream().listen()),
        }
        if self.is_busy {
            events.extend(self.core().map(|core| core.pool.freed().listen()));
            events.extend(self.sieve.as_ref().and_then(Sieve::listen));
        }
        Listening {
            events,
            is_for_memory: self.is_busy,
        }
    }

    fn core(&self) -> Option<&Arc<Core>> {
        match &self.reader {
            Reader::Lanes(reader) => reader.core(),
            Reader::Application(reader) => Some(reader.stream().core()),
        }
    }

    /// Whether how far it is can be kept: it reads for an application.
    pub fn has_application(&self) -> bool {
        matches!(self.reader, Reader::Application(_))
    }

    /// Keeps that everything is done which an application's subscriber was handed.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn commit(&mut self) -> Result<()> {
        match &mut self.reader {
            Reader::Lanes(_) => Ok(()),
            Reader::Application(reader) => reader.commit(),
        }
    }

    /// Gives all groups back that an application's subscriber has. What was not committed is handed out
    /// again.
    pub fn release(&mut self) {
        if let Reader::Application(reader) = &mut self.reader {
            reader.release();
        }
    }
}

/// Reads lanes from offsets on.
#[derive(Debug)]
struct LanesReader {
    /// Its lanes are read from the beginning, also those that are added later.
    stream: Option<Stream>,
    watch: Watch,
    /// By place. `None` for those that failed.
    lanes: Vec<Option<WatchedFeed>>,
    /// Places that may have something. Any other one is in `waiting` or `unwanted`, or armed in `watch`.
    queue: VecDeque<u32>,
    /// Places that have something, for which there was no memory. They do not hold up the others.
    waiting: VecDeque<u32>,
    /// Places that may have something, which was not wanted when they were looked at last.
    unwanted: VecDeque<u32>,
    /// It ends where the lanes say, and what is added later has no part in it.
    has_ends: bool,
}

#[derive(Debug)]
struct WatchedFeed {
    feed: Feed,
    watched: Watched,
}

impl LanesReader {
    fn new(stream: Option<Stream>) -> LanesReader {
        let mut reader = LanesReader {
            stream,
            watch: Watch::default(),
            lanes: Vec::new(),
            queue: VecDeque::new(),
            waiting: VecDeque::new(),
            unwanted: VecDeque::new(),
            has_ends: false,
        };
        reader.add_new_lanes();
        reader
    }

    fn add(&mut self, feed: Feed) {
        let place = self.lanes.len() as u32;
        let watched = self.watch.add_readable(feed.lane(), u64::from(place));
        self.lanes.push(Some(WatchedFeed { feed, watched }));
        self.queue.push_back(place);
    }

    fn add_new_lanes(&mut self) {
        let Some(stream) = self.stream.clone() else {
            return;
        };
        for partition in self.lanes.len() as u32..stream.lane_count() {
            if let Ok(lane) = stream.partition(partition) {
                let earliest = lane.earliest_offset();
                self.add(Feed::new(lane, earliest));
            }
        }
    }

    fn positions(&self) -> Option<Vec<Offset>> {
        let lanes = self.lanes.iter();
        lanes
            .map(|lane| lane.as_ref().map(|lane| lane.feed.next()))
            .collect()
    }

    fn seek(&mut self, positions: &[Offset]) -> Result<(), SubscriptionError> {
        self.add_new_lanes();
        for (place, position) in (0..).zip(positions) {
            let sought = match self.lanes.get_mut(place as usize) {
                Some(Some(lane)) => lane.feed.seek(*position),
                _ => Err(LogError::UnknownLane {
                    stream: self.stream.as_ref().map_or("", Stream::name).to_owned(),
                    what: format!("lane {place}"),
                }),
            };
            sought.map_err(|error| SubscriptionError {
                place: Some(place),
                error,
            })?;
        }
        Ok(())
    }

    fn end_at_head(&mut self) {
        self.add_new_lanes();
        for lane in self.lanes.iter_mut().flatten() {
            lane.feed.end_at_head();
        }
        self.has_ends = true;
    }

    fn next(
        &mut self,
        bytes_max: usize,
        mut sieve: Option<&mut Sieve>,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Result<Next, SubscriptionError> {
        if !self.has_ends {
            self.add_new_lanes();
        }
        self.queue.extend(
            self.watch
                .take_ready()
                .into_iter()
                .map(|place| place as u32),
        );
        // They were there before all that is in the queue now.
        while let Some(place) = self.unwanted.pop_back() {
            self.queue.push_front(place);
        }
        // Whether there is memory by now is seen by one of them.
        if let Some(place) = self.waiting.pop_front() {
            self.queue.push_front(place);
        }
        while let Some(place) = self.queue.pop_front() {
            if !is_wanted(place) {
                self.unwanted.push_back(place);
                continue;
            }
            let slot = &mut self.lanes[place as usize];
            let Some(WatchedFeed { feed, watched }) = slot else {
                continue;
            };
            let seen = feed.lane().readable_offset();
            match feed.read(place, bytes_max, sieve.as_deref_mut()) {
                Ok(Some(handed)) => {
                    self.queue.push_back(place);
                    return Ok(Next::Handed(handed));
                }
                Ok(None) => watched.arm(seen),
                Err(LogError::ReadBudget) => self.waiting.push_back(place),
                Err(error) => {
                    *slot = None;
                    let place = Some(place);
                    return Err(SubscriptionError { place, error });
                }
            }
        }
        if !self.waiting.is_empty() {
            return Ok(Next::Busy);
        }
        let mut lanes = self.lanes.iter().flatten();
        Ok(
            match self.has_ends && lanes.all(|lane| lane.feed.is_at_end()) {
                true => Next::End,
                false => Next::Nothing,
            },
        )
    }

    fn core(&self) -> Option<&Arc<Core>> {
        let lane = self.lanes.iter().flatten().next()?;
        Some(&lane.feed.lane().core)
    }
}
