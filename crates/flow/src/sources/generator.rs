//! Items made by a function.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use millstream_base::Clock;

use crate::error::BoxError;
use crate::sources::source::{Output, Source, SourceStatus};
use crate::time::partitions::SourcePartitions;

/// The pause of a generator with a rate that is ahead of it.
const PAUSE: Duration = Duration::from_millis(1);

/// Gives `make(0)`, `make(1)`, … without end, unless [limited](Generator::limit), and as fast as
/// the flow takes them, unless a [rate](Generator::rate) is set.
pub struct Generator<F> {
    make: F,
    /// The first item of this run.
    first: u64,
    next: u64,
    limit: u64,
    rate: Option<Rate>,
}

struct Rate {
    per_second: f64,
    clock: Arc<dyn Clock>,
    /// The time of the first item.
    started_at: Option<Duration>,
}

impl<F> Generator<F> {
    /// A source of `make`'s results.
    pub fn new(make: F) -> Self {
        Generator {
            make,
            first: 0,
            next: 0,
            limit: u64::MAX,
            rate: None,
        }
    }

    /// Ends after `items`.
    #[must_use]
    pub fn limit(mut self, items: u64) -> Self {
        self.limit = items;
        self
    }

    /// Gives `per_second` items a second of `clock`, which has to be the flow's. After a hold-up
    /// it catches up.
    #[must_use]
    pub fn rate(mut self, per_second: f64, clock: Arc<dyn Clock>) -> Self {
        self.rate = Some(Rate {
            per_second,
            clock,
            started_at: None,
        });
        self
    }
}

impl<T: Send + 'static, F: FnMut(u64) -> T + Send + 'static> Source for Generator<F> {
    type Item = T;

    fn partitions(&self) -> SourcePartitions<'_, T> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<T>,
        budget: usize,
        _waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let mut end = self.limit.min(self.next.saturating_add(budget as u64));
        if let Some(rate) = &mut self.rate {
            let now = rate.clock.monotonic();
            let started_at = *rate.started_at.get_or_insert(now);
            // Saturates beyond u64.
            let due = ((now - started_at).as_secs_f64() * rate.per_second) as u64;
            end = end.min(self.first.saturating_add(due));
            if end <= self.next && self.next < self.limit {
                return Ok(SourceStatus::IdleUntil(now + PAUSE));
            }
        }
        out.extend((self.next..end).map(&mut self.make));
        self.next = end;
        match end == self.limit {
            true => Ok(SourceStatus::End),
            false => Ok(SourceStatus::Ready),
        }
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(self.next.to_le_bytes().to_vec())
    }

    /// A rate counts from the item that comes next.
    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let saved = saved
            .try_into()
            .map_err(|_| "a generator's position has 8 bytes")?;
        self.next = u64::from_le_bytes(saved);
        self.first = self.next;
        Ok(())
    }
}
