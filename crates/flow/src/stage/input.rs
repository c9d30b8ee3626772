//! What a stage reads: a source, or the ring that earlier stages write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use millstream_ring::{ReadSlice, Ring, SAMPLE_EVERY};

use crate::build::flow::Flow;
use crate::checkpoint::coordinator::Pause;
use crate::error::{BoxError, Failure};
use crate::ranks::remote::Outlets;
use crate::run::doorbell::Doorbell;
use crate::sources::positions::Positions;
use crate::sources::source::{Output, Source, SourceStatus};
use crate::stage::attempt::Label;
use crate::stage::chain::Chain;
use crate::stage::channel::ChannelState;
use crate::stage::entry;
use crate::stage::entry::{EndRow, Entry, Give, Row};
use crate::stage::terminal::Terminal;
use crate::time::control_events::Mark;
use crate::time::lanes::{LaneId, Lanes, SourceLanes};

/// What became of an attempt to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// There are items in hand.
    Items,
    Idle,
    End,
}

/// Holds on to a batch of items from `take` until `done`, whoever works on it: a worker that dies
/// leaves the rest of its batch to the next one.
pub trait Input: Entry {
    /// Whether it is what other ranks send.
    const IS_REMOTE: bool = false;

    /// How many items `take` may give at once, as far as that is known.
    fn readable(&self) -> usize;

    /// Whether there will never be anything again where nothing is readable.
    fn is_finished(&self) -> bool;

    /// Whether a mark lies where it has read up to.
    fn meets_mark(&self) -> bool {
        false
    }

    /// What the marks up to behind the items in hand come to, if that is new.
    fn meet_mark(&mut self) -> Option<Mark> {
        None
    }

    /// How far time has come behind what was taken so far, as told to any instance that shares the
    /// input.
    fn time(&self) -> Timestamp {
        Timestamp(i64::MIN)
    }

    /// Sees to it that a worker is awake at `time` of the flow's clock.
    fn wake_at(&self, _time: Duration) {}

    /// Takes a batch of up to `budget` items in hand, which must be empty.
    fn take(&mut self, budget: usize) -> Result<Took, Failure>;

    /// The items in hand.
    fn parts(&self) -> [&[Self::Item]; 2];

    /// Which lane of the source an item in hand is of, if it has several.
    fn lane_of(&self, _item: &Self::Item) -> Option<LaneId> {
        None
    }

    /// The lanes of the source, if it has several.
    fn lanes(&self) -> Option<Lanes> {
        None
    }

    /// If it is what other ranks send: the way on which this one sends the same to them.
    fn inlet(&self) -> Option<Arc<Outlets>> {
        None
    }

    /// When the newest item in hand that is known of entered the flow, in ns of the flow's clock.
    fn stamp(&mut self) -> u64;

    /// Calls `visit` with the stamps of a hundredth of the records in hand, and how many records have this stamp.
    fn sample(&mut self, visit: impl FnMut(u64, u64));

    /// Drops the items in hand.
    fn done(&mut self);

    fn wants_commits(&self) -> bool {
        false
    }

    /// How far its source is; `None` if it has none that can say.
    fn positions(&self) -> Option<Arc<dyn Positions>> {
        None
    }

    /// Whether it gives nothing more before the cut `number` is taken, but for what is in its ring.
    fn is_at_rest(&self, _number: u64) -> bool {
        true
    }

    /// What it needs to go on from here; nothing if that is in its ring.
    fn save(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(None)
    }

    /// Whether any number of such inputs can go on from what one has saved.
    fn shares_position(&self) -> bool {
        false
    }

    /// Goes on from what was [saved](Input::save).
    fn restore(&mut self, _saved: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }

    /// The flow is over.
    fn close(&mut self) {}

    /// Everything that was taken has arrived for good.
    fn commit(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

pub struct SourceInput<S: Source> {
    pub source: S,
    pub label: Label,
    pub doorbell: Arc<Doorbell>,
    pub waker: Waker,
    /// Set by [`Running::stop`](crate::Running::stop): no more is asked of the source.
    pub stopping: Arc<AtomicBool>,
    /// When it is on nothing is asked of the source.
    pub pause: Arc<Pause>,
    pub clock: Arc<dyn Clock>,
    pub output: Output<S::Item>,
    /// When `output` was filled.
    pub stamp: u64,
    /// Records since the last that was sampled.
    pub unsampled: u64,
    /// How many items a poll gave lately.
    pub usual: usize,
    /// The source said so together with its last items.
    pub ended: bool,
}

impl<S: Source> Give for SourceInput<S> {
    type Item = S::Item;

    const IS_SHARED: bool = false;
}

impl<S: Source> EndRow<S::Item> for SourceInput<S> {
    fn end<C: Chain<S::Item>, T: Terminal<C::Out>>(flow: &mut Flow, row: Row<Self, C, T>) {
        entry::add_stage(flow, row);
    }
}

impl<S: Source> Input for SourceInput<S> {
    /// More than usual, to find out whether it could give more.
    fn readable(&self) -> usize {
        match self.is_finished() || self.pause.is_on.load(Ordering::SeqCst) {
            true => 0,
            false => 2 * self.usual.max(1),
        }
    }

    fn is_finished(&self) -> bool {
        self.ended || self.stopping.load(Ordering::Relaxed)
    }

    fn take(&mut self, budget: usize) -> Result<Took, Failure> {
        if self.is_finished() {
            return Ok(Took::End);
        }
        let status = self
            .label
            .run(|| self.source.poll(&mut self.output, budget, &self.waker));
        let status = status.map_err(|error| self.failure(error))?;
        self.ended = status == SourceStatus::End;
        if let SourceStatus::IdleUntil(time) = status {
            self.doorbell.ring_at(time);
        }
        if !self.output.items.is_empty() {
            self.usual = (self.usual + self.output.items.len()).div_ceil(2);
            self.stamp = self.clock.monotonic().as_nanos() as u64;
            return Ok(Took::Items);
        }
        Ok(match status {
            // It has made progress of its own.
            SourceStatus::Ready => Took::Items,
            SourceStatus::Idle | SourceStatus::IdleUntil(_) => Took::Idle,
            SourceStatus::End => Took::End,
        })
    }

    fn parts(&self) -> [&[S::Item]; 2] {
        [&self.output.items, &[]]
    }

    fn stamp(&mut self) -> u64 {
        self.stamp
    }

    fn sample(&mut self, mut visit: impl FnMut(u64, u64)) {
        let items = self.output.items.iter();
        self.unsampled += items.map(|item| self.source.records_of(item)).sum::<u64>();
        let samples = self.unsampled / SAMPLE_EVERY;
        if samples > 0 {
            visit(self.stamp, samples);
        }
        self.unsampled %= SAMPLE_EVERY;
    }

    fn done(&mut self) {
        self.output.items.clear();
    }

    fn wake_at(&self, time: Duration) {
        self.doorbell.ring_at(time);
    }

    fn lane_of(&self, item: &S::Item) -> Option<LaneId> {
        match self.source.lanes() {
            SourceLanes::One => None,
            SourceLanes::Many { lane_of, .. } => Some(lane_of(item)),
        }
    }

    fn lanes(&self) -> Option<Lanes> {
        match self.source.lanes() {
            SourceLanes::One => None,
            SourceLanes::Many { lanes, .. } => Some(lanes.clone()),
        }
    }

    fn wants_commits(&self) -> bool {
        self.source.wants_commits()
    }

    fn positions(&self) -> Option<Arc<dyn Positions>> {
        self.source.positions()
    }

    fn shares_position(&self) -> bool {
        self.source.shares_position()
    }

    fn save(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let saved = self.label.run(|| self.source.save());
        let saved = saved.map_err(|error| self.failure(error))?;
        let mut bytes = vec![u8::from(self.ended)];
        bytes.extend(saved);
        Ok(Some(bytes))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let [ended, saved @ ..] = saved else {
            return Err("what was saved of a source is cut short".into());
        };
        self.ended = *ended != 0;
        self.label.run(|| self.source.restore(saved))
    }

    fn close(&mut self) {
        self.label.run(|| self.source.close());
    }

    fn commit(&mut self) -> Result<(), Failure> {
        let committed = self.label.run(|| self.source.commit());
        committed.map_err(|error| self.failure(error))
    }
}

impl<S: Source> SourceInput<S> {
    fn failure(&self, error: BoxError) -> Failure {
        Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        }
    }
}

pub struct RingInput<T> {
    pub ring: Arc<Ring<T>>,
    pub channel: Arc<ChannelState>,
    /// Which of the channel's rings it is.
    pub index: usize,
    pub slice: Option<ReadSlice<T>>,
    /// Of the last item that was sampled.
    pub stamp: u64,
}

impl<T> RingInput<T> {
    /// Reads the ring of this index of a channel.
    pub fn new(ring: &Arc<Ring<T>>, channel: &Arc<ChannelState>, index: usize) -> Self {
        RingInput {
            ring: Arc::clone(ring),
            channel: Arc::clone(channel),
            index,
            slice: None,
            stamp: 0,
        }
    }
}

impl<T: Send + 'static> Give for RingInput<T> {
    type Item = T;

    const IS_SHARED: bool = true;
}

impl<T: Send + 'static> EndRow<T> for RingInput<T> {
    fn end<C: Chain<T>, E: Terminal<C::Out>>(flow: &mut Flow, row: Row<Self, C, E>) {
        entry::add_stage(flow, row);
    }
}

impl<T: Send + 'static> Input for RingInput<T> {
    fn readable(&self) -> usize {
        self.ring.readable()
    }

    /// Items that another worker has in hand may come back.
    fn is_finished(&self) -> bool {
        self.channel.is_closed() && self.ring.is_empty()
    }

    fn meets_mark(&self) -> bool {
        self.channel.marks[self.index].are_met(self.ring.read_to())
    }

    /// Behind the items in hand; or where nothing is in hand, behind all that anybody has taken.
    fn meet_mark(&mut self) -> Option<Mark> {
        let slice = self.slice.as_ref();
        let position = slice.map_or_else(|| self.ring.read_to(), ReadSlice::end);
        self.channel.marks[self.index].meet(position)
    }

    fn time(&self) -> Timestamp {
        self.channel.marks[self.index].time()
    }

    fn take(&mut self, budget: usize) -> Result<Took, Failure> {
        self.slice = self.ring.try_read(budget);
        Ok(match &self.slice {
            Some(_) => Took::Items,
            None => Took::Idle,
        })
    }

    fn parts(&self) -> [&[T]; 2] {
        self.slice.as_ref().map_or([&[], &[]], ReadSlice::parts)
    }

    fn stamp(&mut self) -> u64 {
        if let Some(stamp) = self.slice.as_ref().and_then(|slice| slice.stamps().last()) {
            self.stamp = stamp;
        }
        self.stamp
    }

    fn sample(&mut self, mut visit: impl FnMut(u64, u64)) {
        if let Some(slice) = &self.slice {
            slice.stamps().for_each(|stamp| visit(stamp, 1));
        }
    }

    fn done(&mut self) {
        if let Some(slice) = self.slice.take() {
            slice.done();
        }
    }
}
