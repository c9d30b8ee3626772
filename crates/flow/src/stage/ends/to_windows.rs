//! The place of keys: partial results of all instances and ranks are merged, and windows released.

use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use parking_lot::MutexGuard;

use crate::error::Failure;
use crate::stage::attempt::Attempt;
use crate::stage::ends::outbox::Outbox;
use crate::stage::late_item::LatePartial;
use crate::stage::rejected::Rejected;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::state::late::LateTo;
use crate::state::windowed::{SharedStore, WindowSpec};
use crate::time::control_event::ControlEvent;
use crate::windows::{Arrival, Combine, Key, Partial, WindowResult, WindowStore, text_of};

/// Results that go out in one activation: few at first, since few are due as a rule, and twice as many each time that there
/// are more, as long as that takes no longer than [`AT_ONCE`]. However many windows end at once, other stages have their
/// turn in between, and the next one gets slices of this size.
const RESULTS_AT_ONCE: RangeInclusive<usize> = 64..=8 << 10;

/// The code of an aggregate may take long for a result.
const AT_ONCE: Duration = Duration::from_millis(1);

/// The end in the windows of one partition, which gives their results to the next stage.
pub struct ToWindows<K, A: Combine> {
    pub spec: Arc<WindowSpec<A>>,
    pub store: SharedStore<K, A>,
    pub label: Label,
    pub outbox: Outbox<WindowResult<K, A::Out>>,
    /// Items that turn out to be late here become dead letters, unless the flow drops late items.
    pub has_dead_letters: bool,
    pub clock: Arc<dyn Clock>,
    pub release: Release,
    /// When the newest item entered the flow.
    pub stamp: u64,
}

/// The progress of a release of windows.
pub struct Release {
    /// The event time. Windows that it closes may not all be released yet.
    until: Option<Timestamp>,
    /// The event to emit behind the results.
    event: Option<ControlEvent>,
    /// The number of results that go out at once, of [`RESULTS_AT_ONCE`].
    at_once: usize,
    /// Results that were sent and not yet counted.
    sent: usize,
    /// Whether windows were visited since this was last taken, and there are more: perhaps none of them gave a result.
    has_progress: bool,
    has_closed: bool,
}

impl Default for Release {
    /// The flow may have resumed with windows that are due.
    fn default() -> Self {
        Release {
            until: Some(Timestamp(i64::MIN)),
            event: None,
            at_once: *RESULTS_AT_ONCE.start(),
            sent: 0,
            has_progress: false,
            has_closed: false,
        }
    }
}

impl<K: Key, A: Combine> ToWindows<K, A> {
    /// Sends the results that are due; `false` while there are more of them.
    fn send(&mut self) -> bool {
        let Some(until) = self.release.until else {
            return true;
        };
        let (at_once, began_at) = (self.release.at_once, self.clock.monotonic());
        if self.outbox.reserve(at_once).is_none() {
            return false;
        }
        let (aggregate, outbox) = (&self.spec.aggregate, &mut self.outbox);
        let mut store = self.store.lock();
        let is_all = self.label.run(|| {
            store.advance_some(aggregate, until, at_once, &mut |result| {
                outbox.put(0, result);
            })
        });
        drop(store);
        let event = self.release.event.filter(|_| is_all);
        self.release.sent += self.outbox.commit(self.stamp, event);
        if is_all {
            self.release.until = None;
            self.release.at_once = *RESULTS_AT_ONCE.start();
        } else {
            let took = self.clock.monotonic().saturating_sub(began_at);
            let next = if took < AT_ONCE / 2 {
                2 * at_once
            } else {
                at_once / 2
            };
            self.release.at_once = next.clamp(*RESULTS_AT_ONCE.start(), *RESULTS_AT_ONCE.end());
            self.release.has_progress = true;
        }
        is_all
    }
}

impl<K: Key, A: Combine> End for ToWindows<K, A> {
    fn closes_by_time(&self) -> bool {
        true
    }

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.send().then_some(results))
    }

    fn cancel(&mut self) {}

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        self.stamp = stamp;
        let time = match event {
            Some(ControlEvent::Watermark(time) | ControlEvent::Idle(time)) => time,
            // Results may be due by their count.
            Some(ControlEvent::End) | None => self.store.lock().watermark(),
        };
        self.release.until = Some(time);
        self.release.event = event;
        self.send();
        Ok(self.take_sent())
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        Ok(self.send())
    }

    fn has_more(&self) -> bool {
        self.release.until.is_some()
    }

    fn take_sent(&mut self) -> usize {
        mem::take(&mut self.release.sent)
    }

    fn take_progress(&mut self) -> bool {
        self.outbox.take_progress() | mem::take(&mut self.release.has_progress)
    }

    fn is_at_rest(&self) -> bool {
        !self.has_more()
    }

    /// The end of a bounded input closes all windows; a flow that is stopped leaves them open.
    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        if end == InputEnd::Complete && !mem::replace(&mut self.release.has_closed, true) {
            self.store.lock().close();
            self.release.until = Some(Timestamp(i64::MAX));
            self.release.event = Some(ControlEvent::End);
        }
        Ok(self.send().then(|| self.take_sent()))
    }
}

impl<K: Key, A: Combine> Terminal<Partial<K, A::State>> for ToWindows<K, A> {
    type Slice<'a> = WindowSlice<'a, K, A>;

    fn begin(&mut self) -> WindowSlice<'_, K, A> {
        WindowSlice {
            spec: &self.spec,
            label: &self.label,
            has_dead_letters: self.has_dead_letters,
            store: self.store.lock(),
        }
    }
}

/// Holds the partition's lock for the time of one slice.
pub struct WindowSlice<'a, K: Key, A: Combine> {
    spec: &'a WindowSpec<A>,
    label: &'a Label,
    has_dead_letters: bool,
    store: MutexGuard<'a, WindowStore<K, A::State>>,
}

impl<K: Key, A: Combine> Slice<Partial<K, A::State>> for WindowSlice<'_, K, A> {
    #[inline]
    fn take<Try: Attempt>(&mut self, attempt: &Try, partial: &Partial<K, A::State>) {
        let arrival = attempt.change(self.label, || {
            self.store.merge(&self.spec.aggregate, partial.clone())
        });
        if let Arrival::Late = arrival {
            self.take_late(attempt, partial);
        }
    }
}

impl<K: Key, A: Combine> WindowSlice<'_, K, A> {
    /// Takes partial results of a source that was idle, and that time overtook on their way here.
    #[cold]
    fn take_late<Try: Attempt>(&mut self, attempt: &Try, partial: &Partial<K, A::State>) {
        self.spec.late.add(partial.events);
        let key = text_of(&partial.key);
        let late = LatePartial {
            key: key.as_deref(),
            events: partial.events,
            time_max: partial.time_max,
            watermark: self.store.watermark(),
        };
        let to = match self.spec.late.to() {
            LateTo::Channel | LateTo::DeadLetters if self.has_dead_letters => LateTo::DeadLetters,
            _ => LateTo::Dropped,
        };
        if to == LateTo::DeadLetters {
            let error = late.to_string().into();
            attempt.reject_late(Rejected::late(&self.label.0, &late, error));
        }
        self.spec.late.warn_once(&self.label.0, late, to);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::slice;

    use millstream_base::SystemClock;
    use millstream_ring::{Ring, RingConfig};

    use super::*;
    use crate::stage::channel::{AnyRing, Channel, ChannelState};
    use crate::stage::terminal::WritingInstance;
    use crate::state::windowed::Windowed;
    use crate::windows::{Count, Windows};

    #[test]
    fn windows_that_are_due_when_a_flow_resumes_are_released_before_it_is_at_rest() {
        let state = Windowed::new(Windows::tumbling(10), Count, 8, (0, 1));
        let store = state.add_partition();
        let arrival = store.lock().add(&Count, &7_u64, Timestamp(5), &());
        assert_eq!(arrival, Arrival::OnTime);
        store.lock().raise(Timestamp(10));

        let ring = Ring::new(RingConfig {
            capacity_min: NonZeroUsize::new(64).expect("not zero"),
            capacity_max: NonZeroUsize::new(64).expect("not zero"),
            lanes: NonZeroUsize::MIN,
        });
        let rings: Vec<Arc<dyn AnyRing>> = vec![Arc::new(Arc::clone(&ring))];
        let channel = Channel {
            ring: Arc::clone(&ring),
            state: ChannelState::new("results", rings),
        };
        let writing = WritingInstance {
            input: None,
            writer: 1,
        };
        let mut end = ToWindows {
            spec: Arc::clone(&state.spec),
            store,
            label: Label("windows".into()),
            outbox: Outbox::of_channels(writing, slice::from_ref(&channel)),
            has_dead_letters: false,
            clock: Arc::new(SystemClock::default()),
            release: Release::default(),
            stamp: 0,
        };
        assert!(!end.is_at_rest());
        assert!(end.pause().is_ok_and(|is_all| is_all));
        assert!(end.is_at_rest());
        assert_eq!(ring.readable(), 1);
    }
}
