//! Where a stage's results go: rings of later stages, state, sinks.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;

use millstream_ring::{Ring, WriteSlice};
use parking_lot::{Mutex, MutexGuard};

use crate::attempt::{Attempt, Label};
use crate::channel::{self, Channel, ChannelState};
use crate::error::{BoxError, Failure};
use crate::marks::{Mark, WriterId};
use crate::remote::Outlets;
use crate::sink::Sink;

/// How the input of a stage came to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InputEnd {
    /// All of a bounded input was read.
    Complete,
    /// The flow was stopped; there would have been more.
    Stopped,
}

/// Takes the results of one slice of input at a time: `reserve`, then `begin` (again after a panic,
/// or by another worker), then `commit`.
pub trait Terminal<T: ?Sized>: Send + 'static {
    type Slice<'a>: Slice<T>
    where
        Self: 'a;

    /// Whether it has results that come only when event time has come so far, or its input has ended.
    const GOES_BY_TIME: bool = false;

    /// Makes room for about `results` results, and passes on what former slices left behind. `None`
    /// when that has to wait; otherwise for how many results there is room. More will find a place,
    /// too: `results` is only what is expected.
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure>;

    /// Gives back the room.
    fn cancel(&mut self);

    /// Goes on taking in the results of the slice.
    fn begin(&mut self) -> Self::Slice<'_>;

    /// Passes the results of the slice on; returns how many there were. `stamp` is when they entered
    /// the flow, and `mark` what is to be said behind them.
    fn commit(&mut self, stamp: u64, mark: Option<Mark>) -> Result<usize, Failure>;

    /// There is nothing to read just now. Passes on what former slices left behind; `false` when that
    /// has to wait.
    fn pause(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    /// Whether nothing is left of former slices, and all of it has arrived for good.
    fn is_at_rest(&self) -> bool {
        true
    }

    /// What it needs to go on from here, all being at rest; nothing if it keeps nothing.
    fn save(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(None)
    }

    /// Goes on from what was [saved](Terminal::save).
    fn restore(&mut self, _saved: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }

    /// The way to other ranks, if it leads there.
    fn outlets(&self) -> Option<Arc<Outlets>> {
        None
    }

    /// There will never be anything to read again; `None` when something is still on its way, or
    /// else how many results that gave.
    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure>;
}

/// The results of one slice of input.
pub trait Slice<T: ?Sized> {
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T);
}

/// Where a stage stands that is about to get a terminal for each of its instances.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// What the stage reads; none for a source.
    pub input: Option<&'a Arc<ChannelState>>,
    /// As whom the instance says marks.
    pub writer: WriterId,
}

/// One ring per instance of the next stage, or one for all of them.
pub struct Outbox<T> {
    outlets: Vec<Outlet<T>>,
    /// What the stage reads; none for a source.
    input: Option<Arc<ChannelState>>,
    writer: WriterId,
    /// Of each ring, while a slice of input is worked on.
    open: Vec<WriteSlice<T>>,
    /// Those of them that are smaller than was asked for.
    small: Vec<usize>,
}

struct Outlet<T> {
    ring: Arc<Ring<T>>,
    channel: Arc<ChannelState>,
    /// Which of the channel's rings it is.
    index: usize,
    /// Marks lie behind all that is written: of two that are in one ring the second one says them.
    says_marks: bool,
}

impl<T> Outbox<T> {
    /// Into the only ring of each of some channels.
    pub fn of_channels(place: Place<'_>, channels: &[Channel<T>]) -> Self {
        let outlets = channels.iter().map(|channel| Outlet {
            ring: Arc::clone(&channel.ring),
            channel: Arc::clone(&channel.state),
            index: 0,
            says_marks: true,
        });
        Outbox::new(place, outlets.collect())
    }

    /// Into all rings of one channel.
    pub fn of_rings(place: Place<'_>, rings: &[Arc<Ring<T>>], channel: &Arc<ChannelState>) -> Self {
        let outlets = rings.iter().enumerate().map(|(index, ring)| Outlet {
            ring: Arc::clone(ring),
            channel: Arc::clone(channel),
            index,
            says_marks: true,
        });
        Outbox::new(place, outlets.collect())
    }

    fn new(place: Place<'_>, mut outlets: Vec<Outlet<T>>) -> Self {
        for index in 0..outlets.len() {
            let (before, behind) = outlets.split_at_mut(index + 1);
            let is_same = |other: &Outlet<T>| Arc::ptr_eq(&other.ring, &before[index].ring);
            before[index].says_marks = !behind.iter().any(is_same);
        }
        Outbox {
            outlets,
            input: place.input.cloned(),
            writer: place.writer,
            open: Vec::new(),
            small: Vec::new(),
        }
    }

    /// How many rings there are.
    pub fn len(&self) -> usize {
        self.outlets.len()
    }

    /// Reserves room in every ring; `None` when one of them has none to speak of. Returns for how
    /// many items there is room if they spread evenly.
    pub fn reserve(&mut self, results: usize) -> Option<usize> {
        let count = self.outlets.len();
        let share = results.div_ceil(count).max(1);
        let mut room_min = share;
        for (index, outlet) in self.outlets.iter().enumerate() {
            let Outlet { ring, channel, .. } = outlet;
            let is_led_back = channel.is_led_back_from(self.input.as_deref());
            // What comes into a cycle from outside leaves room for what is led back: that may have to
            // find a place before the ring's own reader can go on.
            if is_led_back == Some(false) && ring.readable() > ring.capacity_max() / 2 {
                self.cancel();
                return None;
            }
            let slice = ring.try_write_at_least(channel::room_min(ring, share), share);
            let room = slice.as_ref().map_or(0, WriteSlice::room);
            let may_grow = room < share && channel.may_grow(ring.capacity());
            let Some(slice) = slice else {
                if may_grow {
                    ring.grow();
                }
                self.cancel();
                return None;
            };
            self.open.push(slice);
            if may_grow {
                self.small.push(index);
            }
            room_min = room_min.min(room);
        }
        Some(room_min * count)
    }

    /// From the last to the first: where two are in one ring, the first can give back its room only
    /// when nothing is reserved behind it.
    pub fn cancel(&mut self) {
        while self.open.pop().is_some() {}
        self.small.clear();
    }

    #[inline]
    pub fn put(&mut self, ring: usize, item: T) {
        self.open[ring].push(item);
    }

    /// Passes the results on, and says `mark` behind them.
    pub fn commit(&mut self, stamp: u64, mark: Option<Mark>) -> usize {
        let mut count = 0;
        for (outlet, mut slice) in self.outlets.iter().zip(self.open.drain(..)) {
            count += slice.len();
            slice.set_stamp(stamp);
            let says_marks = outlet.says_marks && outlet.channel.wants_marks();
            if let Some(mark) = mark.filter(|_| says_marks) {
                outlet.channel.marks[outlet.index].say(slice.end(), self.writer, mark);
            }
            slice.commit();
        }
        // Not before there are results: a source that finds nothing needs no room.
        for index in self.small.drain(..).filter(|_| count > 0) {
            self.outlets[index].ring.grow();
        }
        count
    }

    /// Whether somebody further on goes by event time.
    pub fn wants_marks(&self) -> bool {
        let mut outlets = self.outlets.iter();
        outlets.any(|outlet| outlet.channel.wants_marks())
    }

    /// Says that nothing more will come; `false` when there is no room for that.
    pub fn finish(&mut self, end: InputEnd) -> bool {
        if end == InputEnd::Stopped || !self.wants_marks() {
            return true;
        }
        let has_room = self.reserve(1).is_some();
        if has_room {
            self.commit(0, Some(Mark::End));
        }
        has_room
    }
}

/// Into one ring, which all instances of the next stage read.
pub struct ToRing<T>(pub Outbox<T>);

impl<T: Clone + Send + 'static> Terminal<T> for ToRing<T> {
    type Slice<'a> = &'a mut WriteSlice<T>;

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.0.reserve(results))
    }

    fn cancel(&mut self) {
        self.0.cancel();
    }

    fn begin(&mut self) -> &mut WriteSlice<T> {
        &mut self.0.open[0]
    }

    fn commit(&mut self, stamp: u64, mark: Option<Mark>) -> Result<usize, Failure> {
        Ok(self.0.commit(stamp, mark))
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        Ok(self.0.finish(end).then_some(0))
    }
}

impl<T: Clone> Slice<T> for &mut WriteSlice<T> {
    #[inline]
    fn take<A: Attempt>(&mut self, _: &A, item: &T) {
        self.push(item.clone());
    }
}

/// Into one of several rings.
pub struct ToSplit<T, F> {
    pub outbox: Outbox<T>,
    pub route: Arc<F>,
    pub label: Label,
}

impl<T, F> Terminal<T> for ToSplit<T, F>
where
    T: Clone + Debug + Send + 'static,
    F: Fn(&T) -> usize + Send + Sync + 'static,
{
    type Slice<'a> = &'a mut Self;

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.outbox.reserve(results))
    }

    fn cancel(&mut self) {
        self.outbox.cancel();
    }

    fn begin(&mut self) -> &mut Self {
        self
    }

    fn commit(&mut self, stamp: u64, mark: Option<Mark>) -> Result<usize, Failure> {
        Ok(self.outbox.commit(stamp, mark))
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        Ok(self.outbox.finish(end).then_some(0))
    }
}

impl<T, F> Slice<T> for &mut ToSplit<T, F>
where
    T: Clone + Debug,
    F: Fn(&T) -> usize,
{
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        let outputs = self.outbox.len();
        let route = || {
            let output = (self.route)(item);
            assert!(
                output < outputs,
                "there are {outputs} outputs, numbered from 0; the item is sent to number {output}"
            );
            output
        };
        if let Some(output) = attempt.call(&self.label, item, route) {
            self.outbox.put(output, item.clone());
        }
    }
}

/// Into each of several rings.
pub struct ToAll<T>(pub Outbox<T>);

impl<T: Clone + Send + 'static> Terminal<T> for ToAll<T> {
    type Slice<'a> = &'a mut Self;

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        let rings = self.0.len();
        let room = self.0.reserve(results.saturating_mul(rings));
        Ok(room.map(|room| room / rings))
    }

    fn cancel(&mut self) {
        self.0.cancel();
    }

    fn begin(&mut self) -> &mut Self {
        self
    }

    fn commit(&mut self, stamp: u64, mark: Option<Mark>) -> Result<usize, Failure> {
        Ok(self.0.commit(stamp, mark) / self.0.len())
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        Ok(self.0.finish(end).then_some(0))
    }
}

impl<T: Clone> Slice<T> for &mut ToAll<T> {
    #[inline]
    fn take<A: Attempt>(&mut self, _: &A, item: &T) {
        for ring in 0..self.0.len() {
            self.0.put(ring, item.clone());
        }
    }
}

/// Into this instance's part of a partial state.
pub struct ToState<S, F> {
    pub part: Arc<Mutex<S>>,
    pub step: Arc<F>,
    pub label: Label,
}

impl<T, S, F> Terminal<T> for ToState<S, F>
where
    T: Debug + ?Sized,
    S: Send + 'static,
    F: Fn(&mut S, &T) + Send + Sync + 'static,
{
    type Slice<'a> = StateSlice<'a, S, F>;

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(Some(results))
    }

    fn cancel(&mut self) {}

    fn begin(&mut self) -> StateSlice<'_, S, F> {
        StateSlice {
            part: self.part.lock(),
            step: &*self.step,
            label: &self.label,
        }
    }

    fn commit(&mut self, _: u64, _: Option<Mark>) -> Result<usize, Failure> {
        Ok(0)
    }

    fn finish(&mut self, _: InputEnd) -> Result<Option<usize>, Failure> {
        Ok(Some(0))
    }
}

/// Holds the part's lock for the time of one slice.
pub struct StateSlice<'a, S, F> {
    part: MutexGuard<'a, S>,
    step: &'a F,
    label: &'a Label,
}

impl<T: Debug + ?Sized, S, F: Fn(&mut S, &T)> Slice<T> for StateSlice<'_, S, F> {
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        attempt.call(self.label, item, || (self.step)(&mut self.part, item));
    }
}

/// Into a sink that all instances of the stage share.
pub struct ToSink<T, K> {
    pub sink: Arc<Mutex<K>>,
    pub waker: Waker,
    pub label: Label,
    /// Bounded by what one slice of input expands to: nothing is read before the sink has taken
    /// these.
    pub waiting: Vec<T>,
    /// Whether the sink got something since it was last flushed.
    pub unflushed: bool,
}

impl<T, K: Sink<T>> ToSink<T, K> {
    /// Whether the sink has taken everything.
    fn send(&mut self) -> Result<bool, Failure> {
        while !self.waiting.is_empty() {
            let mut sink = self.sink.lock();
            let taken = self
                .label
                .run(|| sink.push(&self.waiting, &self.waker))
                .map_err(|error| self.failure(error))?;
            drop(sink);
            if taken == 0 {
                return Ok(false);
            }
            self.unflushed = true;
            self.waiting.drain(..taken);
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, Failure> {
        if self.unflushed {
            let mut sink = self.sink.lock();
            let arrived = self
                .label
                .run(|| sink.flush(&self.waker))
                .map_err(|error| self.failure(error))?;
            drop(sink);
            self.unflushed = !arrived;
        }
        Ok(!self.unflushed)
    }

    fn failure(&self, error: BoxError) -> Failure {
        Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        }
    }
}

impl<T: Clone + Send + 'static, K: Sink<T>> Terminal<T> for ToSink<T, K> {
    type Slice<'a> = &'a mut Vec<T>;

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.send()?.then_some(results))
    }

    fn cancel(&mut self) {}

    fn begin(&mut self) -> &mut Vec<T> {
        &mut self.waiting
    }

    fn commit(&mut self, _: u64, _: Option<Mark>) -> Result<usize, Failure> {
        let count = self.waiting.len();
        self.send()?;
        Ok(count)
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        let is_taken = self.send()?;
        self.flush()?;
        Ok(is_taken)
    }

    fn is_at_rest(&self) -> bool {
        self.waiting.is_empty() && !self.unflushed
    }

    fn save(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let saved = self.label.run(|| self.sink.lock().save());
        saved.map(Some).map_err(|error| self.failure(error))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.label.run(|| self.sink.lock().restore(saved))
    }

    fn finish(&mut self, _: InputEnd) -> Result<Option<usize>, Failure> {
        Ok((self.send()? && self.flush()?).then_some(0))
    }
}

impl<T: Clone> Slice<T> for &mut Vec<T> {
    #[inline]
    fn take<A: Attempt>(&mut self, _: &A, item: &T) {
        self.push(item.clone());
    }
}
