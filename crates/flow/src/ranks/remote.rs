//! Items for other ranks, and from them: what is between the stages of one rank a ring is here a
//! channel of the exchange.
//!
//! A message is a series of elements: items, and what is said between them. Items of several slices go
//! together, until there are enough of them or they have waited for a millisecond.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Clock;
use millstream_exchange::{ChannelId, Ranks, Receiver, SendError, Sender};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::build::flow::Flow;
use crate::checkpoint::pause::Pause;
use crate::error::{BoxError, Failure};
use crate::run::doorbell::Doorbell;
use crate::stage::chain::Chain;
use crate::stage::entry::{EndRow, Give, Row};
use crate::stage::fused::register::add_stage;
use crate::stage::input::{Input, Took};
use crate::stage::terminal::{InputEnd, Terminal};
use crate::time::control_events::{Mark, RingMarks, WriterId};

/// What goes to other ranks.
pub trait Message: Serialize + DeserializeOwned + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Message for T {}

/// Bytes that are enough for a message.
const BATCH_BYTES: usize = 64 << 10;

/// How long items wait for others at most.
const BATCH_WAIT: Duration = Duration::from_millis(1);

/// Bytes on their way from one rank to another, in one channel.
const CREDIT_BYTES: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
enum Element<T> {
    Item(T),
    Said(Mark),
    /// All that was sent before is part of this cut, and nothing that comes after.
    Barrier(u64),
    /// Nothing more comes: its input has ended, or was stopped.
    End {
        is_stopped: bool,
    },
}

/// What the instances of a stage share: the way to every other rank.
pub struct Outlets {
    /// By rank; none to this one.
    outlets: Vec<Option<Mutex<Outlet>>>,
    /// What the instances have said. Locked until what it comes to is handed over, so that this is
    /// said in its order.
    marks: Mutex<RingMarks>,
    /// Instances of the stage that have not ended.
    live: AtomicUsize,
    clock: Arc<dyn Clock>,
    operator: Arc<str>,
}

struct Outlet {
    sender: Sender,
    /// Elements that are not sent yet.
    batch: Vec<u8>,
    /// When the first of them came.
    since: Duration,
    /// Where a barrier ends that is among them: a message of its own begins behind it.
    barrier: Option<usize>,
    /// A message for which there was no credit.
    unsent: Option<Bytes>,
}

/// Where the two ends of a channel between ranks are made.
pub struct Meeting<'a> {
    pub ranks: &'a Ranks,
    pub channel: ChannelId,
    pub operator: Arc<str>,
    pub clock: &'a Arc<dyn Clock>,
    pub doorbell: &'a Arc<Doorbell>,
    pub stopping: &'a Arc<AtomicBool>,
    pub pause: &'a Arc<Pause>,
}

impl Meeting<'_> {
    pub fn outlets(&self) -> Arc<Outlets> {
        let outlet = |rank| {
            let mut sender = self.ranks.sender(rank, self.channel, CREDIT_BYTES);
            sender.set_waker(Waker::from(Arc::clone(self.doorbell)));
            Mutex::new(Outlet {
                sender,
                batch: Vec::new(),
                since: Duration::ZERO,
                barrier: None,
                unsent: None,
            })
        };
        let own = self.ranks.rank();
        let ranks = 0..self.ranks.count();
        Arc::new(Outlets {
            outlets: ranks
                .map(|rank| (rank != own).then(|| outlet(rank)))
                .collect(),
            marks: Mutex::default(),
            live: AtomicUsize::new(0),
            clock: Arc::clone(self.clock),
            operator: Arc::clone(&self.operator),
        })
    }

    /// One for each other rank.
    pub fn inputs<T: Message>(&self, outlets: &Arc<Outlets>) -> Vec<RemoteInput<T>> {
        let own = self.ranks.rank();
        let others = (0..self.ranks.count()).filter(|rank| *rank != own);
        others
            .map(|rank| {
                let mut receiver = self.ranks.receiver(rank, self.channel, CREDIT_BYTES);
                receiver.set_waker(Waker::from(Arc::clone(self.doorbell)));
                RemoteInput {
                    receiver,
                    outlets: Arc::clone(outlets),
                    operator: Arc::clone(&self.operator),
                    clock: Arc::clone(self.clock),
                    stopping: Arc::clone(self.stopping),
                    pause: Arc::clone(self.pause),
                    met: 0,
                    items: Vec::new(),
                    said: None,
                    stamp: 0,
                    has_ended: false,
                }
            })
            .collect()
    }
}

impl Outlets {
    fn others(&self) -> impl Iterator<Item = &Mutex<Outlet>> {
        self.outlets.iter().flatten()
    }

    fn failure(&self, error: impl Into<BoxError>) -> Failure {
        Failure::Error {
            operator: Arc::clone(&self.operator),
            error: error.into(),
        }
    }

    /// Sends what there is, of each rank if it is enough or has waited long enough, or `all` of it.
    /// Returns whether nothing that should have gone is left.
    fn send(&self, all: bool) -> Result<bool, Failure> {
        let now = self.clock.monotonic();
        let mut is_sent = true;
        for outlet in self.others() {
            let mut outlet = outlet.lock();
            let sent = outlet.send(all, now).map_err(|error| self.failure(error))?;
            is_sent &= sent;
        }
        Ok(is_sent)
    }

    /// Sends all that there is; what there is no credit for goes when it is called again.
    pub fn send_all(&self) -> Result<bool, Failure> {
        self.send(true)
    }

    /// Says that all that was handed over so far is part of the cut `number`.
    pub fn say_barrier(&self, number: u64) -> Result<(), Failure> {
        match self.live.load(Ordering::Acquire) {
            // The end is said.
            0 => Ok(()),
            _ => {
                let now = self.clock.monotonic();
                let encoded = self.encode::<()>(&Element::Barrier(number))?;
                for outlet in self.others() {
                    let outlet = &mut *outlet.lock();
                    outlet.add(&encoded, now);
                    outlet.barrier = Some(outlet.batch.len());
                }
                Ok(())
            }
        }
    }

    /// For a rank where the stage has no instance: nobody else says the end.
    pub fn end_if_unused(&self) -> Result<(), Failure> {
        if self.live.load(Ordering::Acquire) == 0 {
            self.put::<()>(&Element::End { is_stopped: false })?;
            self.send_all()?;
        }
        Ok(())
    }

    pub fn is_at_rest(&self) -> bool {
        self.others().all(|outlet| {
            let outlet = outlet.lock();
            outlet.batch.is_empty() && outlet.unsent.is_none()
        })
    }

    fn put<T: Message>(&self, element: &Element<T>) -> Result<(), Failure> {
        let now = self.clock.monotonic();
        let encoded = self.encode(element)?;
        for outlet in self.others() {
            outlet.lock().add(&encoded, now);
        }
        Ok(())
    }

    fn encode<T: Message>(&self, element: &Element<T>) -> Result<Vec<u8>, Failure> {
        postcard::to_stdvec(element).map_err(|error| self.failure(error))
    }
}

impl Outlet {
    fn add(&mut self, elements: &[u8], now: Duration) {
        if self.batch.is_empty() {
            self.since = now;
        }
        self.batch.extend_from_slice(elements);
    }

    /// What is to go in one message.
    fn next(&mut self, all: bool, now: Duration) -> Option<Bytes> {
        let len = self.batch.len();
        let is_due = all || len >= BATCH_BYTES || now.saturating_sub(self.since) >= BATCH_WAIT;
        if len == 0 || (self.barrier.is_none() && !is_due) {
            return None;
        }
        let rest = self.batch.split_off(self.barrier.take().unwrap_or(len));
        Some(std::mem::replace(&mut self.batch, rest).into())
    }

    fn send(&mut self, all: bool, now: Duration) -> Result<bool, SendError> {
        while let Some(message) = self.unsent.take().or_else(|| self.next(all, now)) {
            match self.sender.send(message) {
                Ok(()) => {}
                Err(SendError::Full(message)) => {
                    self.unsent = Some(message);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// One instance's way to the other ranks.
pub struct Remote<T> {
    outlets: Arc<Outlets>,
    writer: WriterId,
    /// By rank: elements of the slice that is worked on, and how many of the bytes are whole ones.
    /// Code of the user may panic in the middle of an item.
    staged: Vec<(Vec<u8>, usize)>,
    item: PhantomData<fn(&T)>,
}

impl<T: Message> Remote<T> {
    /// The way of a further instance.
    pub fn new(outlets: &Arc<Outlets>, writer: WriterId) -> Self {
        outlets.live.fetch_add(1, Ordering::Relaxed);
        outlets.marks.lock().add_writer(writer);
        Remote {
            staged: outlets.outlets.iter().map(|_| Default::default()).collect(),
            outlets: Arc::clone(outlets),
            writer,
            item: PhantomData,
        }
    }

    /// Whether there is room for more: what should have been sent is.
    pub fn reserve(&mut self) -> Result<bool, Failure> {
        self.outlets.send(false)
    }

    pub fn put(&mut self, rank: u32, item: &T) -> Result<(), BoxError> {
        let (staged, whole) = &mut self.staged[rank as usize];
        staged.truncate(*whole);
        postcard::to_io(&Element::Item(ByRef(item)), &mut *staged)?;
        *whole = staged.len();
        Ok(())
    }

    pub fn cancel(&mut self) {
        for (staged, whole) in &mut self.staged {
            staged.clear();
            *whole = 0;
        }
    }

    pub fn commit(&mut self, mark: Option<Mark>) -> Result<(), Failure> {
        let now = self.outlets.clock.monotonic();
        for ((staged, whole), outlet) in self.staged.iter_mut().zip(&self.outlets.outlets) {
            if let Some(outlet) = outlet.as_ref().filter(|_| *whole > 0) {
                outlet.lock().add(&staged[..*whole], now);
            }
            staged.clear();
            *whole = 0;
        }
        if let Some(mark) = mark {
            let marks = self.outlets.marks.lock();
            marks.say(0, self.writer, mark);
            if let Some(sum) = marks.meet(0) {
                self.outlets.put::<T>(&Element::Said(sum))?;
            }
        }
        self.outlets.send(false)?;
        Ok(())
    }

    pub fn pause(&mut self) -> Result<bool, Failure> {
        self.outlets.send(true)
    }

    pub fn is_at_rest(&self) -> bool {
        self.outlets.is_at_rest()
    }

    pub fn outlets(&self) -> Arc<Outlets> {
        Arc::clone(&self.outlets)
    }

    /// Called by each instance, once: the last one says the end.
    pub fn end(&mut self, end: InputEnd) -> Result<(), Failure> {
        // Windows stay open behind an input that was stopped.
        self.commit((end == InputEnd::Complete).then_some(Mark::End))?;
        match self.outlets.live.fetch_sub(1, Ordering::AcqRel) {
            1 => self.outlets.put::<T>(&Element::End {
                is_stopped: end == InputEnd::Stopped,
            }),
            _ => Ok(()),
        }
    }
}

/// Serialized like what it refers to.
struct ByRef<'a, T>(&'a T);

impl<T: Serialize> Serialize for ByRef<'_, T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// What comes from one other rank.
pub struct RemoteInput<T> {
    receiver: Receiver,
    /// The way on which this rank sends the same.
    outlets: Arc<Outlets>,
    operator: Arc<str>,
    clock: Arc<dyn Clock>,
    /// Whoever stops stops all.
    stopping: Arc<AtomicBool>,
    pause: Arc<Pause>,
    /// The last barrier: nothing is read behind it before that cut is taken.
    met: u64,
    items: Vec<T>,
    said: Option<Mark>,
    stamp: u64,
    has_ended: bool,
}

impl<T: Message> RemoteInput<T> {
    fn read(&mut self, message: &[u8]) -> Result<(), BoxError> {
        let mut rest = message;
        while !rest.is_empty() {
            let (element, behind) =
                postcard::take_from_bytes::<Element<T>>(rest).map_err(|error| {
                    format!(
                        "a message from rank {} is wrong: {error}",
                        self.receiver.from()
                    )
                })?;
            rest = behind;
            match element {
                Element::Item(item) => self.items.push(item),
                // Said a little later than it could be.
                Element::Said(mark) => self.said = Some(mark),
                Element::Barrier(number) => {
                    let next = self.pause.done.load(Ordering::SeqCst) + 1;
                    if number != next || !rest.is_empty() {
                        let from = self.receiver.from();
                        return Err(format!("rank {from} says the barrier {number} where {next} is due, or goes on behind it").into());
                    }
                    self.met = number;
                    // This rank's part of the cut is due as well.
                    self.pause.is_on.store(true, Ordering::SeqCst);
                }
                Element::End { is_stopped } => {
                    self.has_ended = true;
                    if is_stopped {
                        self.stopping.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
        Ok(())
    }

    fn failure(&self, error: impl Into<BoxError>) -> Failure {
        Failure::Error {
            operator: Arc::clone(&self.operator),
            error: error.into(),
        }
    }
}

impl<T: Message> Give for RemoteInput<T> {
    type Item = T;

    const IS_SHARED: bool = false;
}

impl<T: Message> EndRow<T> for RemoteInput<T> {
    fn end<C: Chain<T>, E: Terminal<C::Out>>(flow: &mut Flow, row: Row<Self, C, E>) {
        add_stage(flow, row);
    }
}

impl<T: Message> Input for RemoteInput<T> {
    const IS_REMOTE: bool = true;

    fn readable(&self) -> usize {
        let is_held = self.met > self.pause.done.load(Ordering::SeqCst);
        usize::from(!self.has_ended && !is_held)
    }

    fn is_at_rest(&self, number: u64) -> bool {
        self.has_ended || self.met == number
    }

    fn is_finished(&self) -> bool {
        self.has_ended
    }

    fn take(&mut self, _: usize) -> Result<Took, Failure> {
        let taken = self.receiver.take();
        let Some(message) = taken.map_err(|error| self.failure(error))? else {
            return Ok(Took::Idle);
        };
        self.stamp = self.clock.monotonic().as_nanos() as u64;
        self.read(&message).map_err(|error| self.failure(error))?;
        Ok(Took::Items)
    }

    fn meet_mark(&mut self) -> Option<Mark> {
        self.said.take()
    }

    fn inlet(&self) -> Option<Arc<Outlets>> {
        Some(Arc::clone(&self.outlets))
    }

    fn parts(&self) -> [&[T]; 2] {
        [&self.items, &[]]
    }

    fn stamp(&mut self) -> u64 {
        self.stamp
    }

    fn sample(&mut self, _: impl FnMut(u64, u64)) {}

    fn done(&mut self) {
        self.items.clear();
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::SystemClock;

    use super::*;

    /// Both ends of a channel from one rank to another.
    struct Ends {
        remote: Remote<Vec<u8>>,
        input: RemoteInput<Vec<u8>>,
        pause: Arc<Pause>,
        _ranks: Vec<Ranks>,
    }

    fn ends() -> Ends {
        let ranks = Ranks::threads(2);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let doorbell = Arc::new(Doorbell::new(Arc::clone(&clock)));
        let (stopping, pause) = (Arc::default(), Arc::default());
        let meeting = |rank: usize| Meeting {
            ranks: &ranks[rank],
            channel: ChannelId {
                source: 0,
                target: 1,
            },
            operator: "items".into(),
            clock: &clock,
            doorbell: &doorbell,
            stopping: &stopping,
            pause: &pause,
        };
        let input = meeting(1).inputs(&meeting(1).outlets()).remove(0);
        let remote = Remote::new(&meeting(0).outlets(), 7);
        Ends {
            remote,
            input,
            pause,
            _ranks: ranks,
        }
    }

    impl Ends {
        fn send(&mut self, item: Vec<u8>) {
            assert!(self.remote.put(1, &item).is_ok());
            assert!(self.remote.commit(None).is_ok());
        }

        fn pause(&mut self) -> bool {
            self.remote.pause().unwrap_or_else(|_| panic!("it failed"))
        }

        /// How many items come in the next message.
        fn take(&mut self) -> Option<usize> {
            let took = self.input.take(1);
            let is_there = took.is_ok_and(|took| took == Took::Items);
            let items = self.input.items.len();
            self.input.done();
            is_there.then_some(items)
        }
    }

    #[test]
    fn what_came_while_there_was_no_credit_goes_with_what_waited_for_it() {
        let mut ends = ends();
        let large = vec![0; CREDIT_BYTES as usize * 2 / 3];
        ends.send(large.clone());
        ends.send(large);
        ends.send(vec![1]);
        assert!(!ends.pause(), "there is credit for one");
        assert_eq!(ends.take(), Some(1));
        assert!(ends.pause());
        assert!(ends.remote.is_at_rest(), "nobody would come for the rest");
        assert_eq!((ends.take(), ends.take()), (Some(1), Some(1)));
        assert_eq!(ends.take(), None);
    }

    #[test]
    fn what_is_said_behind_a_barrier_comes_in_another_message() {
        let mut ends = ends();
        assert!(ends.remote.put(1, &vec![1]).is_ok());
        assert!(ends.remote.commit(None).is_ok());
        assert!(ends.remote.outlets.say_barrier(1).is_ok());
        assert!(ends.remote.end(InputEnd::Complete).is_ok());
        assert!(ends.pause());
        assert_eq!(ends.take(), Some(1));
        assert!(ends.input.is_at_rest(1) && ends.input.readable() == 0);
        assert!(!ends.input.is_finished());
        ends.pause.done.store(1, Ordering::SeqCst);
        assert_eq!((ends.input.readable(), ends.take()), (1, Some(0)));
        assert!(ends.input.is_finished());
    }
}
