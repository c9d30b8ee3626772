//! What a subscription hands out, without what tells of progress alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millstream_base::{Cursor, Offset};
use millstream_log::{Handed, Listening, LogError, Next, Slice, Subscription, SubscriptionError};

use crate::native::refused::Refused;

/// Consumers whose filter keeps nothing are told how far it has looked after so many bytes.
const PASSED_BYTES_MAX: u64 = 1 << 20;

/// And after so long.
const PASSED_MAX: Duration = Duration::from_millis(100);

/// A subscription, as a client is told of it.
pub struct Outlet {
    subscription: Subscription,
    listening: Option<Listening>,
    /// By place: how far it has looked where there was nothing to be handed out.
    passed: BTreeMap<u32, Progress>,
    passed_bytes: u64,
    /// When that began.
    passed_since: Instant,
}

/// What a client is told.
pub enum Told {
    /// These chunks.
    Chunks(Progress, Slice),
    /// There is nothing up to there.
    Passed(Progress),
    /// Nothing more comes from this place.
    Refused(RefusedPlace),
    /// Nothing now.
    Nothing,
    /// Something, for which there is no memory.
    Busy,
}

/// How far a place is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub place: u32,
    pub from: Offset,
    pub next: Offset,
    pub end: Offset,
    /// Where it begins.
    pub start: Cursor,
    /// Where it goes on.
    pub cursor: Cursor,
}

/// Why nothing more comes from a place.
pub struct RefusedPlace {
    pub place: u32,
    pub refused: Refused,
    /// The earliest offset that is stored, if it was not there.
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

    /// Whether what comes next takes long to find: a filter looks through records.
    pub fn has_filter(&self) -> bool {
        self.subscription.has_filter()
    }

    /// What comes next, about `bytes_max` bytes of it. Looks at a bounded part of the stream.
    ///
    /// # Errors
    /// When nothing more comes from any place.
    pub fn next(&mut self, bytes_max: usize) -> Result<Told, Refused> {
        loop {
            if self.told_in() == Some(Duration::ZERO)
                && let Some((_, progress)) = self.passed.pop_first()
            {
                return Ok(Told::Passed(progress));
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
                    return Ok(Told::Chunks(progress, handed.chunks.bytes));
                }
                Ok(Next::Nothing | Next::End) => return Ok(Told::Nothing),
                Ok(Next::Busy) => return Ok(Told::Busy),
                Err(SubscriptionError {
                    place: Some(place),
                    error,
                }) => {
                    let earliest = match &error {
                        LogError::OffsetOutOfRange { earliest, .. } => *earliest,
                        _ => Offset(0),
                    };
                    return Ok(Told::Refused(RefusedPlace {
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

    /// When it is to be told that there was nothing, if there is such a place.
    pub fn told_in(&self) -> Option<Duration> {
        if self.passed.is_empty() {
            return None;
        }
        Some(match self.passed_bytes >= PASSED_BYTES_MAX {
            true => Duration::ZERO,
            false => PASSED_MAX.saturating_sub(self.passed_since.elapsed()),
        })
    }

    /// Whether there may be more by now; else `waker` is woken when there may be.
    pub fn has_more(&mut self, waker: &std::task::Waker) -> bool {
        let Outlet {
            subscription,
            listening,
            ..
        } = self;
        subscription.poll_more(listening, waker).is_ready()
    }
}
