//! The chunks that a subscription hands out, without the events that only report progress.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millstream_base::{Cursor, Offset};
use millstream_log::{Handed, Listening, LogError, Next, Slice, Subscription, SubscriptionError};

use crate::native::refused::Refused;

/// A consumer whose filter matches nothing gets a progress report after this many skipped bytes.
const PASSED_BYTES_MAX: u64 = 1 << 20;

/// The same, after this time.
const PASSED_MAX: Duration = Duration::from_millis(100);

/// A subscription, in the form that its client sees.
pub struct Outlet {
    subscription: Subscription,
    listening: Option<Listening>,
    /// By place: the progress over records that were not handed out.
    passed: BTreeMap<u32, Progress>,
    passed_bytes: u64,
    /// The time of the first unreported progress.
    passed_since: Instant,
}

/// The next item for a client.
pub enum Delivery {
    /// Chunks, and the progress with them.
    Chunks(Progress, Slice),
    /// Progress without chunks: no record up to there matches.
    Passed(Progress),
    /// The place has ended with an error.
    Refused(RefusedPlace),
    /// Nothing for now.
    Nothing,
    /// Chunks for which there is no memory at the moment.
    Busy,
}

/// The progress of a place.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub place: u32,
    pub from: Offset,
    pub next: Offset,
    pub end: Offset,
    /// The first position of this item.
    pub start: Cursor,
    /// The position after it.
    pub cursor: Cursor,
}

/// The reason why a place has ended.
pub struct RefusedPlace {
    pub place: u32,
    pub refused: Refused,
    /// The earliest stored offset, if the requested one does not exist.
    pub earliest: Offset,
}

impl Progress {
    fn of(handed: &Handed) -> Progress {
        Progress {
            place: handed.place,
            from: handed.from,
            next: handed.next,
            end: handed.end,
            start: handed.chunks.cursor,
            cursor: handed.chunks.next,
        }
    }

    fn bytes(&self) -> u64 {
        self.cursor.position.0.saturating_sub(self.start.position.0)
    }
}

impl Outlet {
    pub fn new(subscription: Subscription) -> Outlet {
        Outlet {
            subscription,
            listening: None,
            passed: BTreeMap::new(),
            passed_bytes: 0,
            passed_since: Instant::now(),
        }
    }

    /// Returns whether the next chunks may take long to find: a filter looks through records.
    pub fn has_filter(&self) -> bool {
        self.subscription.has_filter()
    }

    /// Returns the next item, about `bytes_max` bytes of chunks. Looks at a bounded part of the
    /// stream.
    ///
    /// # Errors
    /// When all places have ended.
    pub fn next(&mut self, bytes_max: usize) -> Result<Delivery, Refused> {
        loop {
            if self.told_in() == Some(Duration::ZERO)
                && let Some((_, progress)) = self.passed.pop_first()
            {
                return Ok(Delivery::Passed(progress));
            }
            match self.subscription.next(bytes_max) {
                Ok(Next::Handed(handed)) => {
                    let mut progress = Progress::of(&handed);
                    if handed.chunks.bytes.is_empty() {
                        self.pass(progress);
                        continue;
                    }
                    if let Some(passed) = self.passed.remove(&progress.place) {
                        progress.from = passed.from;
                    }
                    return Ok(Delivery::Chunks(progress, handed.chunks.bytes));
                }
                Ok(Next::Nothing | Next::End) => return Ok(Delivery::Nothing),
                Ok(Next::Busy) => return Ok(Delivery::Busy),
                Err(SubscriptionError {
                    place: Some(place),
                    error,
                }) => {
                    let earliest = match &error {
                        LogError::OffsetOutOfRange { earliest, .. } => *earliest,
                        _ => Offset(0),
                    };
                    return Ok(Delivery::Refused(RefusedPlace {
                        place,
                        refused: Refused::from(error),
                        earliest,
                    }));
                }
                Err(SubscriptionError { place: None, error }) => return Err(error.into()),
            }
        }
    }

    fn pass(&mut self, progress: Progress) {
        if self.passed.is_empty() {
            self.passed_bytes = 0;
            self.passed_since = Instant::now();
        }
        self.passed_bytes += progress.bytes();
        let passed = self.passed.entry(progress.place).or_insert(progress);
        (passed.next, passed.end) = (progress.next, progress.end);
        passed.cursor = progress.cursor;
    }

    /// Returns the time until the next progress report is due, if there is progress to report.
    pub fn told_in(&self) -> Option<Duration> {
        if self.passed.is_empty() {
            return None;
        }
        Some(match self.passed_bytes >= PASSED_BYTES_MAX {
            true => Duration::ZERO,
            false => PASSED_MAX.saturating_sub(self.passed_since.elapsed()),
        })
    }

    /// Returns whether there may be more by now; otherwise wakes `waker` when there may be.
    pub fn has_more(&mut self, waker: &std::task::Waker) -> bool {
        let Outlet {
            subscription,
            listening,
            ..
        } = self;
        subscription.poll_more(listening, waker).is_ready()
    }
}
