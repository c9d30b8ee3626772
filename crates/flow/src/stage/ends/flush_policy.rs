//! The policy by which pre-aggregation passes its partial results on.

use std::time::Duration;

/// Partial results that an instance holds at first.
const PARTIALS_MIN: usize = 8 << 10;

/// Memory of the partial results that an instance holds at most, without the heap memory of keys and states.
const BYTES_MAX: usize = 64 << 20;

/// Holding more partial results pays while fewer events than this come together in each.
const EVENTS_WORTH: u64 = 8;

/// The time that partial results are held at most, so that readers of the state see open windows grow.
const HELD_MAX: Duration = Duration::from_millis(100);

/// Passing on takes at most one part in this many of the time, however many keys there are.
const PASSING_PART: u32 = 16;

/// Decides when the partial results of an instance are passed on to the owners of their keys, before a watermark
/// asks for it.
///
/// With few keys, little memory is enough: many events come together in each partial result. With many keys, a small
/// table would pass on one partial result for almost every event, and each would miss the caches at the key's owner.
/// So the bound doubles as long as too few events come together.
pub struct FlushPolicy {
    partials_max: usize,
    /// The limit up to which `partials_max` may grow.
    partials_limit: usize,
    held_max: Duration,
    /// When all had been passed on last.
    emptied_at: Duration,
    /// The bound was reached: that is why partial results are passed on.
    is_full: bool,
    passing: Option<Passing>,
}

/// The partial results that were passed on since `began_at`.
struct Passing {
    began_at: Duration,
    partials: u64,
    events: u64,
}

impl FlushPolicy {
    /// `limit` returns how many partial results fit into some bytes, and at least its second argument.
    pub fn new(limit: impl FnOnce(usize, usize) -> usize) -> FlushPolicy {
        FlushPolicy {
            partials_max: PARTIALS_MIN,
            partials_limit: limit(BYTES_MAX, PARTIALS_MIN),
            held_max: HELD_MAX,
            emptied_at: Duration::ZERO,
            is_full: false,
            passing: None,
        }
    }

    /// Whether the `partials` held results must be passed on now.
    pub fn is_due(&mut self, partials: usize, now: impl FnOnce() -> Duration) -> bool {
        self.is_full |= partials >= self.partials_max;
        self.is_full || now().saturating_sub(self.emptied_at) >= self.held_max
    }

    /// Some are passed on now. It may take several turns until all are.
    pub fn begin(&mut self, now: impl FnOnce() -> Duration) {
        self.passing.get_or_insert_with(|| Passing {
            began_at: now(),
            partials: 0,
            events: 0,
        });
    }

    /// Records that a partial result of `events` events was passed on.
    #[inline]
    pub fn given(&mut self, events: u64) {
        if let Some(passing) = &mut self.passing {
            passing.partials += 1;
            passing.events = passing.events.saturating_add(events);
        }
    }

    /// All that was due has been passed on; `is_empty` if nothing is held any more.
    pub fn end(&mut self, now: Duration, is_empty: bool) {
        let Some(passing) = self.passing.take() else {
            return;
        };
        let took = now.saturating_sub(passing.began_at);
        self.held_max = HELD_MAX.max(took * PASSING_PART);
        if self.is_full && passing.events < passing.partials.saturating_mul(EVENTS_WORTH) {
            self.partials_max = (self.partials_max * 2).min(self.partials_limit);
        }
        self.is_full = false;
        if is_empty {
            self.emptied_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 4 * PARTIALS_MIN;

    /// Passes on `partials` that are held, to each of which `events` have come together, within `took`.
    fn pass_on(held: &mut FlushPolicy, partials: usize, events: u64, at: Duration, took: Duration) {
        held.begin(|| at);
        (0..partials).for_each(|_| held.given(events));
        held.end(at + took, true);
    }

    #[test]
    fn the_flush_bound_doubles_while_batches_are_small() {
        let mut held = FlushPolicy::new(|_, _| LIMIT);
        let mut bound = PARTIALS_MIN;
        for _ in 0..5 {
            assert!(!held.is_due(bound - 1, || Duration::ZERO));
            assert!(held.is_due(bound, || Duration::ZERO));
            pass_on(&mut held, bound, 1, Duration::ZERO, Duration::ZERO);
            bound = LIMIT.min(2 * bound);
        }
    }

    #[test]
    fn the_flush_bound_stays_while_batches_are_large() {
        let mut held = FlushPolicy::new(|_, _| LIMIT);
        for _ in 0..3 {
            assert!(held.is_due(PARTIALS_MIN, || Duration::ZERO));
            pass_on(&mut held, PARTIALS_MIN, 100, Duration::ZERO, Duration::ZERO);
        }
    }

    #[test]
    fn events_that_are_slow_to_flush_are_flushed_rarely() {
        let mut held = FlushPolicy::new(|_, _| LIMIT);
        let second = Duration::from_secs(1);
        assert!(held.is_due(1, || second));
        pass_on(&mut held, 1, 1, second, second / 4);
        let end = second + second / 4;
        assert!(!held.is_due(1, || end + 3 * second));
        assert!(held.is_due(1, || end + 4 * second));
        pass_on(&mut held, 1, 1, 6 * second, Duration::ZERO);
        assert!(held.is_due(1, || 6 * second + HELD_MAX));
    }
}
