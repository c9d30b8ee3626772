//! Events in time: their due times, and the number that was generated.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::block::Block;
use super::facts::Facts;

/// The most events of one block, all with the same time: they stay in a core's cache until they are
/// read.
pub const BATCH_EVENTS: usize = 256;

/// The time for which a late instance continues after the end: about one turn of the thread that
/// generates its events.
const GRACE: Duration = Duration::from_millis(50);

/// The shortest wait, so that few wake-ups make many events.
const WAIT_MIN: Duration = Duration::from_micros(500);

/// The schedule of an instance's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// The time of events at the start, in milliseconds since 1970 UTC: it advances like a wall
    /// clock, and its start places the windows of the run.
    pub start_ms: i64,
    /// Length of the windows for which the generated events are counted.
    pub window_ms: i64,
    /// Events per second of this instance; 0 for the highest possible rate.
    pub rate: u64,
    /// How long it generates events.
    pub duration_ms: u64,
}

/// The number of generated events in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The start of the window, in milliseconds since 1970 UTC.
    pub window_ms: i64,
    /// The number of events in it.
    pub events: u64,
}

/// The result of [`Feed::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fed {
    /// The block is filled.
    Events,
    /// No event is due for this long.
    Wait(Duration),
    /// The schedule has ended.
    End,
}

/// The events of one instance, as they fall due.
///
/// An event's time is its due time: a late generator adds to the latency of the results. Without a
/// rate events are due when they are requested.
#[derive(Debug, Clone)]
pub struct Feed {
    schedule: Schedule,
    instance: u32,
    position: Position,
}

/// The progress of one instance: another instance that starts from it generates the following
/// events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The number of the next event.
    pub next: u64,
    /// The number of generated events, by window, in order of time.
    pub made: Vec<Made>,
}

impl Feed {
    /// Returns the events of an instance, from its first one on.
    pub fn new(schedule: Schedule, instance: u32) -> Feed {
        Feed {
            schedule,
            instance,
            position: Position::default(),
        }
    }

    /// Fills a block with the events that are due `elapsed` after the start.
    #[inline]
    pub fn next(&mut self, elapsed: Duration, block: &mut Block) -> Fed {
        let (events, time_ms) = match self.schedule.due(elapsed, self.position.next) {
            Due::Events(events, time_ms) => (events, time_ms),
            Due::Later(wait) => return Fed::Wait(wait),
            Due::Never => return Fed::End,
        };
        let instance = self.instance;
        let next = self.position.next;
        let numbers = next..next + events;
        block.fill(numbers.map(|number| Facts::new(instance, number)), time_ms);
        self.position.next += events;
        self.note(time_ms, events);
        Fed::Events
    }

    fn note(&mut self, time_ms: i64, events: u64) {
        let window_ms = time_ms - time_ms.rem_euclid(self.schedule.window_ms);
        let made = &mut self.position.made;
        match made.last_mut() {
            Some(last) if last.window_ms == window_ms => last.events += events,
            _ => made.push(Made { window_ms, events }),
        }
    }

    /// Returns the number of generated events, by window, in order of time.
    pub fn made(&self) -> &[Made] {
        &self.position.made
    }

    /// Returns the progress.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Resumes from the progress of an instance with the same schedule and number. Due times count
    /// from the start of the whole run.
    pub fn go_on_from(&mut self, position: Position) {
        self.position = position;
    }
}

/// The due events.
enum Due {
    /// This many events, with this time.
    Events(u64, i64),
    Later(Duration),
    Never,
}

impl Schedule {
    /// Returns the due events when `made` events were generated before.
    fn due(&self, elapsed: Duration, made: u64) -> Due {
        let duration = Duration::from_millis(self.duration_ms);
        let batch = BATCH_EVENTS as u64;
        if self.rate == 0 {
            return match elapsed < duration {
                true => Due::Events(batch, self.start_ms + elapsed.as_millis() as i64),
                false => Due::Never,
            };
        }
        let total = self.rate * self.duration_ms / 1000;
        if made >= total || elapsed >= duration + GRACE {
            return Due::Never;
        }
        let due = u128::from(self.rate) * elapsed.as_nanos() / 1_000_000_000;
        let due = u64::try_from(due).unwrap_or(u64::MAX).min(total);
        if due <= made {
            let next_ns = (made + 1) * 1_000_000_000 / self.rate;
            return Due::Later(
                Duration::from_nanos(next_ns)
                    .saturating_sub(elapsed)
                    .max(WAIT_MIN),
            );
        }
        let events = (due - made).min(batch);
        // The last of them is due now.
        let time_ms = (made + events) * 1000 / self.rate;
        Due::Events(events, self.start_ms + time_ms as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        start_ms: 5_000,
        window_ms: 10_000,
        rate: 100_000,
        duration_ms: 7_000,
    };

    /// Runs by a clock that advances by a millisecond when nothing is due; returns the number of
    /// events.
    fn run(feed: &mut Feed, mut each: impl FnMut(Duration, &Block)) -> u64 {
        let mut block = Block::default();
        let mut elapsed = Duration::ZERO;
        let mut events = 0;
        loop {
            match feed.next(elapsed, &mut block) {
                Fed::Events => {
                    events += block.events().count() as u64;
                    each(elapsed, &block);
                }
                Fed::Wait(_) => elapsed += Duration::from_millis(1),
                Fed::End => return events,
            }
        }
    }

    #[test]
    fn events_are_generated_at_their_due_times() {
        let mut feed = Feed::new(SCHEDULE, 0);
        let events = run(&mut feed, |elapsed, block| {
            for event in block.events() {
                let made_ms = event.time_ms() - SCHEDULE.start_ms;
                assert!((0..=1).contains(&(elapsed.as_millis() as i64 - made_ms)));
            }
        });
        assert_eq!(events, 700_000);
        let windows: Vec<i64> = feed.made().iter().map(|made| made.window_ms).collect();
        assert_eq!(windows, [0, 10_000]);
        let made: u64 = feed.made().iter().map(|made| made.events).sum();
        assert_eq!(made, events);
    }

    #[test]
    fn a_late_feed_generates_events_with_their_due_times() {
        let mut feed = Feed::new(SCHEDULE, 0);
        let mut block = Block::default();
        assert_eq!(feed.next(Duration::from_secs(3), &mut block), Fed::Events);
        let times: Vec<i64> = block.events().map(|event| event.time_ms()).collect();
        assert_eq!(times, [5_002; BATCH_EVENTS]);
        assert_eq!(feed.next(Duration::from_secs(8), &mut block), Fed::End);
    }

    #[test]
    fn a_feed_continues_from_the_position_of_another() {
        let half = Schedule {
            duration_ms: 3_500,
            ..SCHEDULE
        };
        let mut alone = Feed::new(SCHEDULE, 0);
        let expected = run(&mut alone, |_, _| {});
        let mut first = Feed::new(half, 0);
        let before = run(&mut first, |_, _| {});
        let mut second = Feed::new(SCHEDULE, 0);
        second.go_on_from(first.position().clone());
        let mut times = Vec::new();
        let events = run(&mut second, |_, block| {
            times.extend(block.events().map(|event| event.time_ms()));
        });
        assert_eq!(before + events, expected);
        assert_eq!(second.position(), alone.position());
        assert!(times.iter().all(|time_ms| *time_ms >= 5_000 + 3_500));
    }

    #[test]
    fn without_a_rate_events_are_generated_until_the_time_is_over() {
        let schedule = Schedule {
            rate: 0,
            ..SCHEDULE
        };
        let mut feed = Feed::new(schedule, 0);
        let mut block = Block::default();
        for elapsed_ms in [0, 4_999, 5_000, 6_999] {
            let elapsed = Duration::from_millis(elapsed_ms);
            assert_eq!(feed.next(elapsed, &mut block), Fed::Events);
            let time_ms = block.events().next().map(|event| event.time_ms());
            assert_eq!(time_ms, Some(5_000 + elapsed_ms as i64));
        }
        assert_eq!(feed.next(Duration::from_secs(7), &mut block), Fed::End);
        let made: Vec<u64> = feed.made().iter().map(|made| made.events).collect();
        assert_eq!(made, [2 * BATCH_EVENTS as u64; 2]);
    }
}
