//! The channels that join stages: rings, and the number of stages that still write to them.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use millstream_ring::{Positions, Ring};

use crate::stage::metrics::SLICE_NS;
use crate::time::control_event::{RingEvents, WriterId};

/// A queue of items between stages. Any number of stages write to it
/// ([`to`](crate::Operators::to), [`split`](crate::Operators::split)), and one reads it
/// ([`Flow::stage`](crate::Flow::stage)): so flows are merged and split, and led back in cycles.
pub struct Channel<T> {
    pub(crate) ring: Arc<Ring<T>>,
    pub(crate) state: Arc<ChannelState>,
}

impl<T> Clone for Channel<T> {
    fn clone(&self) -> Self {
        Channel {
            ring: Arc::clone(&self.ring),
            state: Arc::clone(&self.state),
        }
    }
}

/// The rings of a channel, for items of any type. There are several if each instance of the reading stage has its
/// own.
pub struct ChannelState {
    pub name: String,
    pub rings: Vec<Arc<dyn AnyRing>>,
    /// The control events of each ring.
    pub events: Vec<RingEvents>,
    /// A stage further on needs event time. Written once, before the flow runs.
    wants_events: AtomicBool,
    /// Stages that write to it and have not ended. Counted up while the graph is built.
    writers: AtomicUsize,
    /// Set when all writers have ended, or when a cycle is at rest.
    closed: AtomicBool,
    /// Nanoseconds that the reading stage spends on an item. Written by that stage's workers, read by the writers to
    /// see how much work a full ring is; 0 before it is known.
    reader_ns: AtomicU64,
    /// The number of the cycle that it is part of, 0 if of none. Written once, before the flow runs.
    cycle: AtomicUsize,
}

/// A full ring should keep its reader busy for this long; longer adds latency and memory, and waiting items fall out
/// of the processor's cache.
const FULL_RING_NS: u64 = 4 * SLICE_NS;

/// Before it is known how long the reader takes.
const UNKNOWN_ITEM_NS: u64 = 1_000;

impl ChannelState {
    pub fn new(name: &str, rings: Vec<Arc<dyn AnyRing>>) -> Arc<Self> {
        Arc::new(ChannelState {
            name: name.to_owned(),
            events: rings.iter().map(|_| RingEvents::default()).collect(),
            wants_events: AtomicBool::new(false),
            rings,
            writers: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            reader_ns: AtomicU64::new(0),
            cycle: AtomicUsize::new(0),
        })
    }

    /// Adds a stage that writes to the channel, and emits control events as these writers.
    pub fn add_writer(&self, writers: &[WriterId]) {
        self.writers.fetch_add(1, Ordering::Relaxed);
        for events in &self.events {
            writers.iter().for_each(|writer| events.add_writer(*writer));
        }
    }

    pub fn want_events(&self) {
        self.wants_events.store(true, Ordering::Relaxed);
    }

    pub fn wants_events(&self) -> bool {
        self.wants_events.load(Ordering::Relaxed)
    }

    pub fn writers(&self) -> usize {
        self.writers.load(Ordering::Acquire)
    }

    /// A writing stage has ended. Release, so that a reader that finds the channel closed finds everything that was
    /// written.
    pub fn end_writer(&self) {
        if self.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn set_cycle(&self, number: usize) {
        self.cycle.store(number, Ordering::Relaxed);
    }

    pub fn is_in_cycle(&self) -> bool {
        self.cycle.load(Ordering::Relaxed) > 0
    }

    /// Whether stages that read `input` write to it as part of a cycle; `None` where there is no cycle.
    pub fn is_led_back_from(&self, input: Option<&ChannelState>) -> Option<bool> {
        let cycle = self.cycle.load(Ordering::Relaxed);
        let number = |input: &ChannelState| input.cycle.load(Ordering::Relaxed);
        (cycle > 0).then(|| input.map(number) == Some(cycle))
    }

    pub fn set_reader_ns(&self, ns: u64) {
        self.reader_ns.store(ns, Ordering::Relaxed);
    }

    /// Whether a larger ring would still be worked off in good time.
    pub fn may_grow(&self, capacity: usize) -> bool {
        let ns = match self.reader_ns.load(Ordering::Relaxed) {
            0 => UNKNOWN_ITEM_NS,
            ns => ns,
        };
        (capacity as u64).saturating_mul(ns) < FULL_RING_NS
    }

    /// Items that wait to be read, and control events with nothing before them.
    pub fn readable(&self) -> usize {
        let met = |(ring, events): (&Arc<dyn AnyRing>, &RingEvents)| match ring.readable() {
            0 => usize::from(events.has_due(ring.read_to())),
            items => items,
        };
        self.rings.iter().zip(&self.events).map(met).sum()
    }

    /// The items that the caller's thread wrote, where threads have lanes of their own.
    pub fn own_readable(&self) -> usize {
        self.rings.iter().map(|ring| ring.own_readable()).sum()
    }

    /// Room of the fullest ring, as if all were like that.
    pub fn room(&self) -> usize {
        let rooms = self.rings.iter().map(|ring| ring.room());
        rooms.min().unwrap_or(0) * self.rings.len()
    }

    pub fn capacity(&self) -> usize {
        self.rings.iter().map(|ring| ring.capacity()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.rings.iter().all(|ring| ring.is_empty())
    }

    /// Whether one of its rings has no room to speak of.
    pub fn is_full(&self) -> bool {
        self.rings.iter().any(|ring| ring.is_full())
    }
}

/// A ring of items of any type.
pub trait AnyRing: Send + Sync {
    fn readable(&self) -> usize;
    fn read_to(&self) -> u64;
    fn own_readable(&self) -> usize;
    fn room(&self) -> usize;
    fn capacity(&self) -> usize;
    fn is_empty(&self) -> bool;
    fn positions(&self) -> Positions;
    fn shrink(&self) -> bool;
    fn is_full(&self) -> bool;
    fn grow_past_max(&self) -> bool;
}

/// Less room than one part in this many of a ring is not worth an activation.
const ROOM_MIN: usize = 4;

/// Returns the least room, in items, at which an activation for `items` is worth it.
pub fn room_min<T>(ring: &Ring<T>, items: usize) -> usize {
    items.min(ring.lane_capacity().div_ceil(ROOM_MIN))
}

impl<T: Send> AnyRing for Arc<Ring<T>> {
    fn readable(&self) -> usize {
        Ring::readable(self)
    }

    fn read_to(&self) -> u64 {
        Ring::read_to(self)
    }

    fn own_readable(&self) -> usize {
        Ring::own_readable(self)
    }

    fn room(&self) -> usize {
        Ring::room(self)
    }

    fn capacity(&self) -> usize {
        Ring::capacity(self)
    }

    fn is_empty(&self) -> bool {
        Ring::is_empty(self)
    }

    fn positions(&self) -> Positions {
        Ring::positions(self)
    }

    fn shrink(&self) -> bool {
        Ring::shrink(self)
    }

    fn is_full(&self) -> bool {
        self.slice_room() < room_min(self, usize::MAX)
    }

    fn grow_past_max(&self) -> bool {
        Ring::grow_past_max(self)
    }
}

impl<T> Debug for Channel<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("name", &self.state.name)
            .finish_non_exhaustive()
    }
}
