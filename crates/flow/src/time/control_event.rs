//! Marks: what writers of a ring say about time, in between the items.
//!
//! A mark lies beside the ring, at the position where the slice ends that it came with. Whoever reads
//! up to there meets it: what the writer wrote before the mark has been read by then, and what it
//! writes afterwards has not.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use millstream_base::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// What a writer says about the items that it will write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlEvent {
    /// None of them is earlier.
    Watermark(Timestamp),
    /// There are none for the time being, so nobody is to wait for them; time has come so far.
    Idle(Timestamp),
    /// There are none any more.
    End,
}

/// The marks of one ring, and what they come to.
///
/// They are said before the slice is committed, so that a reader that finds the items finds the marks.
pub struct RingEvents {
    /// Where the first mark lies that nobody has met, `u64::MAX` for none. Written under the lock.
    first: AtomicU64,
    /// How far time has come by what was last told to readers. Written under the lock.
    time: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By position.
    waiting: VecDeque<Said>,
    writers: Vec<Writer>,
    /// What was last told to readers.
    observed: Option<ControlEvent>,
}

impl State {
    /// Keeps a mark until readers meet it. A mark that its writer said before at the same place is replaced: a writer
    /// without items takes no more memory.
    fn insert(&mut self, position: u64, writer: WriterId, event: ControlEvent) {
        let behind = self.waiting.iter().rev();
        let behind = behind.take_while(|other| other.position > position);
        let index = self.waiting.len() - behind.count();
        let before = self.waiting.range_mut(..index).rev();
        let mut here = before.take_while(|other| other.position == position);
        match here.find(|other| other.writer == writer) {
            Some(before) => before.event = event,
            None => {
                let said = Said {
                    position,
                    writer,
                    event,
                };
                self.waiting.insert(index, said);
            }
        }
    }

    /// Moves the marks in `room` to its start. Returns whether there were any.
    fn move_to_start(&mut self, room: &Range<u64>) -> bool {
        let stay = self
            .waiting
            .partition_point(|said| said.position <= room.start);
        let behind = self.waiting.iter_mut().skip(stay);
        let mut has_moved = false;
        for said in behind.take_while(|said| said.position <= room.end) {
            said.position = room.start;
            has_moved = true;
        }
        has_moved
    }
}

struct Writer {
    id: WriterId,
    /// What it has said last.
    event: ControlEvent,
    /// It is idle, as all were: now that another goes on, it is waited for until it says again that it is
    /// idle. What has stalled all of them may be over for each at another moment.
    may_go_on: bool,
}

impl Writer {
    /// What it says of time.
    fn standing(&self) -> ControlEvent {
        match self.event {
            ControlEvent::Idle(time) if self.may_go_on => ControlEvent::Watermark(time),
            event => event,
        }
    }
}

struct Said {
    position: u64,
    writer: WriterId,
    event: ControlEvent,
}

/// Who says something: an instance of a stage, or all of its instances where they share what they
/// read, since their results come in the order of what was read.
pub type WriterId = u32;

/// Before a writer has said anything.
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
    /// Somebody who will say something: readers wait for it.
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

    /// A writer says something behind what it has written before `position` of the ring.
    pub fn emit(&self, position: u64, writer: WriterId, event: ControlEvent) {
        self.end_slice(Some((writer, event)), position..position, || ());
    }

    /// A writer ends a slice by `end`, which gives back `room`, the empty rest of the slice. The writer's mark lies at the
    /// start of the room. Marks of other writers that wrote no items behind the room lie in it or at its end; they move to
    /// its start too. Else no reader would meet them until the ring holds more items.
    pub fn end_slice(
        &self,
        said: Option<(WriterId, ControlEvent)>,
        room: Range<u64>,
        end: impl FnOnce(),
    ) {
        // Until the lock is free no writer says anything of room that it reserves here from now on.
        let mut state = self.state.lock();
        if let Some((writer, event)) = said {
            state.insert(room.start, writer, event);
            self.note_first(&state);
        }
        end();
        if !room.is_empty() && state.move_to_start(&room) {
            self.note_first(&state);
        }
    }

    /// Whether a reader that has read up to `position` meets a mark.
    pub fn has_due(&self, position: u64) -> bool {
        self.first.load(Ordering::Acquire) <= position
    }

    /// For a reader that has read up to `position`: what the marks up to there come to, if that
    /// is new.
    pub fn observe(&self, position: u64) -> Option<ControlEvent> {
        if !self.has_due(position) {
            return None;
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut is_idle_again = false;
        while let Some(said) = state.waiting.pop_front_if(|said| said.position <= position) {
            is_idle_again |= matches!(said.event, ControlEvent::Idle(_));
            note(&mut state.writers, &said);
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

    /// How far time has come, whichever reader it was told.
    pub fn time(&self) -> Timestamp {
        Timestamp(self.time.load(Ordering::Acquire))
    }

    /// As [`time`](RingMarks::time), once any time was told.
    pub fn time_if_any(&self) -> Option<Timestamp> {
        Some(self.time()).filter(|time| *time > Timestamp(i64::MIN))
    }

    fn note_first(&self, state: &State) {
        let first = state.waiting.front();
        let position = first.map_or(u64::MAX, |said| said.position);
        self.first.store(position, Ordering::Release);
    }
}

/// Notes what a writer has said.
fn note(writers: &mut [Writer], said: &Said) {
    let goes_on = matches!(said.event, ControlEvent::Watermark(_));
    let are_silent = || {
        let mut events = writers.iter().map(Writer::standing);
        events.all(|event| !matches!(event, ControlEvent::Watermark(_)))
    };
    if goes_on && are_silent() {
        for writer in writers.iter_mut() {
            // One that has never said anything has nothing to go on with.
            writer.may_go_on = writer.event != ControlEvent::Idle(Timestamp(i64::MIN));
        }
    }
    if let Some(writer) = writers.iter_mut().find(|writer| writer.id == said.writer) {
        (writer.event, writer.may_go_on) = (said.event, false);
    }
}

/// What several writers come to: the least watermark of those that are not idle. When all are, time
/// has come as far as for the last of them. It never goes back, whoever is heard of again.
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
        // The end of the ring tells so.
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
    fn marks_are_met_where_they_lie_in_whatever_order_they_are_said() {
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
    fn time_is_what_the_last_of_the_writers_says() {
        let events = two_writers();
        events.emit(0, FIRST, watermark(5));
        assert_eq!(events.observe(0), None, "the other has said nothing");
        events.emit(0, SECOND, watermark(3));
        assert_eq!(events.observe(0), Some(watermark(3)));
        events.emit(1, SECOND, watermark(9));
        assert_eq!(events.observe(1), Some(watermark(5)));
    }

    #[test]
    fn what_is_said_again_and_again_takes_no_more_memory() {
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

    #[test]
    fn what_one_reader_was_told_all_can_see() {
        let events = RingEvents::default();
        events.add_writer(FIRST);
        events.emit(10, FIRST, watermark(1));
        assert_eq!(events.time(), Timestamp(i64::MIN));
        assert_eq!(events.observe(10), Some(watermark(1)));
        assert_eq!((events.observe(10), events.time()), (None, Timestamp(1)));
    }

    #[test]
    fn nobody_waits_for_who_is_idle_or_has_ended() {
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
    fn when_all_are_idle_time_has_come_as_far_as_for_the_last() {
        let events = two_writers();
        events.emit(0, FIRST, idle(5));
        events.emit(0, SECOND, idle(8));
        assert_eq!(events.observe(0), Some(idle(8)));
        events.emit(0, FIRST, watermark(6));
        assert_eq!(events.observe(0), Some(watermark(8)));
    }

    #[test]
    fn when_one_goes_on_after_all_were_idle_the_others_are_waited_for_until_they_are_idle_again() {
        let events = two_writers();
        events.emit(0, FIRST, idle(5));
        events.emit(0, SECOND, idle(3));
        assert_eq!(events.observe(0), Some(idle(5)));
        events.emit(0, FIRST, idle(5));
        assert_eq!(
            events.observe(0),
            Some(idle(5)),
            "it is said again further on"
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
