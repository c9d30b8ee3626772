//! Control events: the watermarks that writers of a ring emit, in between the items.
//!
//! A control event lies beside the ring, at the position where its slice ends. A reader that has read up to there
//! observes it: everything that the writer wrote before the event has been read by then, and nothing that it writes
//! afterwards.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use millstream_base::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// A writer's statement about the items that it will write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlEvent {
    /// None of them is earlier.
    Watermark(Timestamp),
    /// There are none for the time being, so no reader waits for them; the watermark is this one.
    Idle(Timestamp),
    /// There are none any more.
    End,
}

/// The control events of one ring, and their combination over all writers.
///
/// They are emitted before the slice is committed, so that a reader that finds the items finds the events.
pub struct RingEvents {
    /// The position of the first event that no reader has observed, `u64::MAX` for none. Written under the lock.
    first: AtomicU64,
    /// The watermark that readers observed last. Written under the lock.
    time: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By position.
    waiting: VecDeque<PlacedEvent>,
    writers: Vec<Writer>,
    /// The combination that readers observed last.
    observed: Option<ControlEvent>,
}

impl State {
    /// Holds an event until readers observe it. It replaces an event that its writer emitted before at the same
    /// position: a writer without items takes no more memory. Instances that share a writer may end their slices in
    /// another order: then the event of the later slice stays, however early it was emitted.
    fn insert(&mut self, placed: PlacedEvent) {
        let behind = self.waiting.iter().rev();
        let behind = behind.take_while(|other| other.position > placed.position);
        let index = self.waiting.len() - behind.count();
        let before = self.waiting.range_mut(..index).rev();
        let mut here = before.take_while(|other| other.position == placed.position);
        match here.find(|other| other.writer == placed.writer) {
            Some(later) if later.slice > placed.slice => {}
            Some(earlier) => *earlier = placed,
            None => self.waiting.insert(index, placed),
        }
    }

    /// Moves the events in `room` to its start. Returns whether there were any.
    fn move_to_start(&mut self, room: &Range<u64>) -> bool {
        let stay = self
            .waiting
            .partition_point(|placed| placed.position <= room.start);
        let behind = self.waiting.iter_mut().skip(stay);
        let mut has_moved = false;
        for placed in behind.take_while(|placed| placed.position <= room.end) {
            (placed.position, placed.slice) = (room.start, room.start);
            has_moved = true;
        }
        has_moved
    }
}

struct Writer {
    id: WriterId,
    /// Its last event.
    event: ControlEvent,
    /// Readers wait for this idle writer until it emits `Idle` again. It is set when all writers were idle and another
    /// one emits a watermark, since a stall of all writers may end for each at a different moment.
    may_go_on: bool,
}

impl Writer {
    /// The event that counts for the combination.
    fn standing(&self) -> ControlEvent {
        match self.event {
            ControlEvent::Idle(time) if self.may_go_on => ControlEvent::Watermark(time),
            event => event,
        }
    }
}

/// A control event at its position in the ring.
pub struct PlacedEvent {
    pub position: u64,
    /// The position where the writer's slice begins.
    pub slice: u64,
    pub writer: WriterId,
    pub event: ControlEvent,
}

/// The id of a writer: an instance of a stage, or all of its instances where they share an input, since their results
/// come in the order of that input.
pub type WriterId = u32;

/// The event of a writer that has emitted none.
const NOTHING: ControlEvent = ControlEvent::Watermark(Timestamp(i64::MIN));

impl Default for RingEvents {
    fn default() -> Self {
        RingEvents {
            first: AtomicU64::new(u64::MAX),
            time: AtomicI64::new(i64::MIN),
            state: Mutex::default(),
        }
    }
}

impl RingEvents {
    /// Adds a writer: readers wait for its events.
    pub fn add_writer(&self, writer: WriterId) {
        let mut state = self.state.lock();
        if !state.writers.iter().any(|known| known.id == writer) {
            state.writers.push(Writer {
                id: writer,
                event: NOTHING,
                may_go_on: false,
            });
        }
    }

    /// Emits a writer's event behind the items that it has written before `position` of the ring.
    pub fn emit(&self, position: u64, writer: WriterId, event: ControlEvent) {
        let placed = PlacedEvent {
            position,
            slice: position,
            writer,
            event,
        };
        self.end_slice(Some(placed), position..position, || ());
    }

    /// Ends a writer's slice by `end`, which gives back `room`, the empty rest of the slice. The writer's event lies at
    /// the start of the room. Events of other writers in the room or at its end move to its start too; otherwise no
    /// reader would observe them until the ring holds more items.
    pub fn end_slice(&self, event: Option<PlacedEvent>, room: Range<u64>, end: impl FnOnce()) {
        // Until the lock is free no writer emits an event in room that it reserves here from now on.
        let mut state = self.state.lock();
        if let Some(placed) = event {
            state.insert(placed);
            self.note_first(&state);
        }
        end();
        if !room.is_empty() && state.move_to_start(&room) {
            self.note_first(&state);
        }
    }

    /// Makes readers wait for a writer again that has emitted `Idle`, and that has items now; the event behind its items
    /// comes later. Returns the watermark that readers have observed: it stays until the writer's next event.
    pub fn rejoin(&self, writer: WriterId) -> Timestamp {
        let mut state = self.state.lock();
        let state = &mut *state;
        let own = state.waiting.iter_mut().filter(|it| it.writer == writer);
        for placed in own {
            if let ControlEvent::Idle(time) = placed.event {
                placed.event = ControlEvent::Watermark(time);
            }
        }
        let known = state.writers.iter().find(|known| known.id == writer);
        if let Some(ControlEvent::Idle(time)) = known.map(|known| known.event) {
            let placed = PlacedEvent {
                position: 0,
                slice: 0,
                writer,
                event: ControlEvent::Watermark(time),
            };
            note(&mut state.writers, &placed);
        }
        self.time()
    }

    /// Returns the position of the first event that no reader has observed; `u64::MAX` for none.
    pub fn first_position(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    /// Returns whether a reader that has read up to `position` observes an event.
    pub fn has_due(&self, position: u64) -> bool {
        self.first.load(Ordering::Acquire) <= position
    }

    /// For a reader that has read up to `position`: returns the combination of the events up to there, if that is
    /// new.
    pub fn observe(&self, position: u64) -> Option<ControlEvent> {
        if !self.has_due(position) {
            return None;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut is_idle_again = false;
        while let Some(placed) = state
            .waiting
            .pop_front_if(|placed| placed.position <= position)
        {
            is_idle_again |= matches!(placed.event, ControlEvent::Idle(_));
            note(&mut state.writers, &placed);
        }
        self.note_first(state);
        let sum = sum(&state.writers, state.observed)?;
        if let ControlEvent::Watermark(time) | ControlEvent::Idle(time) = sum {
            self.time.store(time.0, Ordering::Release);
        }
        let is_new =
            state.observed != Some(sum) || (is_idle_again && matches!(sum, ControlEvent::Idle(_)));
        is_new.then(|| *state.observed.insert(sum))
    }

    /// Returns the watermark that readers observed last.
    pub fn time(&self) -> Timestamp {
        Timestamp(self.time.load(Ordering::Acquire))
    }

    /// Returns [`time`](RingEvents::time), or `None` before readers observe the first watermark.
    pub fn time_if_any(&self) -> Option<Timestamp> {
        Some(self.time()).filter(|time| *time > Timestamp(i64::MIN))
    }

    fn note_first(&self, state: &State) {
        let first = state.waiting.front();
        let position = first.map_or(u64::MAX, |placed| placed.position);
        self.first.store(position, Ordering::Release);
    }
}

/// Notes the event of a writer.
fn note(writers: &mut [Writer], placed: &PlacedEvent) {
    let goes_on = matches!(placed.event, ControlEvent::Watermark(_));
    let are_silent = || {
        let mut events = writers.iter().map(Writer::standing);
        events.all(|event| !matches!(event, ControlEvent::Watermark(_)))
    };
    if goes_on && are_silent() {
        for writer in writers.iter_mut() {
            // A writer that has never emitted a watermark has no items to continue with.
            writer.may_go_on = writer.event != ControlEvent::Idle(Timestamp(i64::MIN));
        }
    }
    if let Some(writer) = writers.iter_mut().find(|writer| writer.id == placed.writer) {
        (writer.event, writer.may_go_on) = (placed.event, false);
    }
}

/// Combines the events of several writers into the least watermark of those that are not idle or, when all are idle,
/// the greatest of theirs. The combination never goes back.
fn sum(writers: &[Writer], observed: Option<ControlEvent>) -> Option<ControlEvent> {
    let events = || writers.iter().map(Writer::standing);
    let least = events().filter_map(|event| match event {
        ControlEvent::Watermark(time) => Some(time),
        ControlEvent::Idle(_) | ControlEvent::End => None,
    });
    let furthest = events().filter_map(|event| match event {
        ControlEvent::Idle(time) => Some(time),
        ControlEvent::Watermark(_) | ControlEvent::End => None,
    });
    let floor = match observed {
        Some(ControlEvent::Watermark(time) | ControlEvent::Idle(time)) => time,
        Some(ControlEvent::End) | None => Timestamp(i64::MIN),
    };
    match (least.min(), furthest.max()) {
        (Some(Timestamp(i64::MIN)), _) => None,
        (Some(time), _) => Some(ControlEvent::Watermark(time.max(floor))),
        (None, Some(time)) => Some(ControlEvent::Idle(time.max(floor))),
        // The end of the ring shows that.
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: WriterId = 7;
    const SECOND: WriterId = 9;

    fn watermark(time: i64) -> ControlEvent {
        ControlEvent::Watermark(Timestamp(time))
    }

    fn idle(time: i64) -> ControlEvent {
        ControlEvent::Idle(Timestamp(time))
    }

    fn two_writers() -> RingEvents {
        let events = RingEvents::default();
        events.add_writer(FIRST);
        events.add_writer(SECOND);
        events
    }

    #[test]
    fn a_reader_observes_events_at_their_positions_in_any_order_of_emission() {
        let events = RingEvents::default();
        events.add_writer(FIRST);
        events.emit(20, FIRST, watermark(2));
        events.emit(10, FIRST, watermark(1));
        assert_eq!((events.has_due(9), events.observe(9)), (false, None));
        assert_eq!(events.observe(10), Some(watermark(1)));
        assert_eq!(events.observe(19), None);
        assert_eq!(events.observe(30), Some(watermark(2)));
        assert!(!events.has_due(u64::MAX - 1));
    }

    #[test]
    fn the_watermark_does_not_move_back_when_an_idle_writer_rejoins() {
        let events = two_writers();
        events.emit(0, FIRST, watermark(5));
        events.emit(0, SECOND, idle(3));
        assert_eq!(events.observe(0), Some(watermark(5)));
        assert_eq!(events.rejoin(SECOND), Timestamp(5));
        events.emit(1, FIRST, watermark(9));
        assert_eq!(events.observe(1), None);
        events.emit(2, SECOND, watermark(7));
        assert_eq!(events.observe(2), Some(watermark(7)));
        // Its idleness may lie before readers still.
        events.emit(4, SECOND, idle(7));
        assert_eq!(events.rejoin(SECOND), Timestamp(7));
        assert_eq!(events.observe(4), None);
    }

    #[test]
    fn the_watermark_is_the_minimum_of_all_writers() {
        let events = two_writers();
        events.emit(0, FIRST, watermark(5));
        assert_eq!(events.observe(0), None, "the other has emitted nothing");
        events.emit(0, SECOND, watermark(3));
        assert_eq!(events.observe(0), Some(watermark(3)));
        events.emit(1, SECOND, watermark(9));
        assert_eq!(events.observe(1), Some(watermark(5)));
    }

    #[test]
    fn repeated_events_take_no_more_memory() {
        let events = two_writers();
        for time in 0..100 {
            events.emit(5, FIRST, watermark(time));
            events.emit(5, SECOND, idle(time));
            events.emit(6, FIRST, watermark(time + 1));
        }
        assert_eq!(events.state.lock().waiting.len(), 3);
        assert_eq!(events.observe(5), Some(watermark(99)));
        assert_eq!(events.observe(6), Some(watermark(100)));
    }

    /// Instances in turn share a writer, and the later one found nothing to write. The last windows stayed open.
    #[test]
    fn an_empty_earlier_slice_does_not_hide_the_event_of_a_later_slice() {
        let events = RingEvents::default();
        events.add_writer(FIRST);
        let end = |slice, room: Range<u64>, time| {
            let placed = PlacedEvent {
                position: room.start,
                slice,
                writer: FIRST,
                event: watermark(time),
            };
            events.end_slice(Some(placed), room, || ());
        };
        end(8, 8..16, 2);
        end(0, 8..8, 1);
        assert_eq!(events.observe(8), Some(watermark(2)));
        // The room was given back, so that this slice begins there, too.
        end(8, 8..16, 3);
        assert_eq!(events.observe(8), Some(watermark(3)));
        // An earlier slice ends within its room, and another one begins there.
        end(24, 24..32, 5);
        end(16, 20..24, 4);
        end(20, 20..28, 6);
        assert_eq!(events.observe(20), Some(watermark(6)));
    }

    #[test]
    fn a_watermark_that_one_reader_observed_is_visible_to_all() {
        let events = RingEvents::default();
        events.add_writer(FIRST);
        events.emit(10, FIRST, watermark(1));
        assert_eq!(events.time(), Timestamp(i64::MIN));
        assert_eq!(events.observe(10), Some(watermark(1)));
        assert_eq!((events.observe(10), events.time()), (None, Timestamp(1)));
    }

    #[test]
    fn readers_do_not_wait_for_idle_or_ended_writers() {
        let events = two_writers();
        events.emit(0, FIRST, watermark(5));
        events.emit(0, SECOND, idle(3));
        assert_eq!(events.observe(0), Some(watermark(5)));
        events.emit(1, SECOND, watermark(4));
        assert_eq!(events.observe(1), None, "time does not go back");
        events.emit(2, SECOND, ControlEvent::End);
        events.emit(2, FIRST, watermark(6));
        assert_eq!(events.observe(2), Some(watermark(6)));
    }

    #[test]
    fn the_highest_watermark_counts_when_all_writers_are_idle() {
        let events = two_writers();
        events.emit(0, FIRST, idle(5));
        events.emit(0, SECOND, idle(8));
        assert_eq!(events.observe(0), Some(idle(8)));
        events.emit(0, FIRST, watermark(6));
        assert_eq!(events.observe(0), Some(watermark(8)));
    }

    #[test]
    fn readers_of_two_rings_with_the_same_events_can_end_at_different_times() {
        for rejoins in [false, true] {
            let rings = [two_writers(), two_writers()];
            for events in &rings {
                events.emit(0, FIRST, idle(5));
                events.emit(0, SECOND, idle(8));
            }
            // One reader looks before the first writer has items again, and the other one behind that.
            assert_eq!(rings[0].observe(0), Some(idle(8)));
            for events in &rings {
                if rejoins {
                    events.rejoin(FIRST);
                }
                events.emit(1, FIRST, watermark(6));
            }
            assert_eq!(rings[0].observe(1), Some(watermark(8)));
            assert_eq!(rings[1].observe(1), Some(watermark(6)));
            for events in &rings {
                events.emit(1, SECOND, idle(8));
                events.observe(1);
                assert!(!events.has_due(u64::MAX - 1));
            }
            assert_eq!(rings.map(|it| it.time()), [8, 6].map(Timestamp));
        }
    }

    #[test]
    fn after_a_common_stall_readers_wait_for_every_writer_until_it_is_idle_again() {
        let events = two_writers();
        events.emit(0, FIRST, idle(5));
        events.emit(0, SECOND, idle(3));
        assert_eq!(events.observe(0), Some(idle(5)));
        events.emit(0, FIRST, idle(5));
        assert_eq!(
            events.observe(0),
            Some(idle(5)),
            "it is emitted again further on"
        );
        events.emit(0, FIRST, watermark(60));
        assert_eq!(events.observe(0), Some(watermark(5)));
        events.emit(0, SECOND, watermark(9));
        assert_eq!(events.observe(0), Some(watermark(9)));
        events.emit(0, FIRST, idle(60));
        events.emit(0, SECOND, idle(9));
        assert_eq!(events.observe(0), Some(idle(60)));
        events.emit(0, FIRST, watermark(70));
        assert_eq!(events.observe(0), Some(watermark(60)));
        events.emit(0, SECOND, idle(9));
        assert_eq!(events.observe(0), Some(watermark(70)));
    }
}
