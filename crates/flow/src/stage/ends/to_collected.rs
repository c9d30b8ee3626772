//! The end in windows that have all of their events, which gives them to the next stage.

use std::fmt::Debug;
use std::mem;
use std::sync::Arc;

use millstream_base::Timestamp;

use crate::error::Failure;
use crate::parts::{Parts, Shown};
use crate::stage::attempt::Attempt;
use crate::stage::ends::outbox::Outbox;
use crate::stage::late_item::LateItem;
use crate::stage::rejected::Rejected;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::state::collected::{CollectedState, Retained};
use crate::state::late::LateTo;
use crate::time::control_event::ControlEvent;
use crate::windows::{EventStore, WindowEvents};

/// The most windows to emit in one step, so that other stages are not delayed.
const WINDOWS_AT_ONCE: usize = 64;

pub struct ToCollected<T: Parts, L> {
    pub state: Arc<CollectedState>,
    pub store: EventStore<T>,
    pub outbox: Outbox<WindowEvents<T>>,
    /// The destination of late events.
    pub late_to: LateTo,
    /// The flow has asked for that, so it is not reported.
    pub is_late_expected: bool,
    /// The channel of late events, if they go to one.
    pub late: Option<Late<T, L>>,
    pub label: Label,
    /// The event to emit behind the windows that it closes.
    pub waiting: Option<ControlEvent>,
    /// Windows that were sent and not yet counted.
    pub sent: usize,
    /// The figures that `state` has of this operator.
    pub published: Retained,
    /// When the newest item entered the flow.
    pub stamp: u64,
    pub has_ended: bool,
}

/// The way of events that come too late.
pub struct Late<T: Parts, L> {
    pub outbox: Outbox<L>,
    pub function: Arc<LateFunction<T, L>>,
    pub waiting: Vec<L>,
    /// The control event to emit behind these.
    pub event: Option<ControlEvent>,
}

pub type LateFunction<T, L> = dyn Fn(&<T as Parts>::Part<'_>) -> L + Send + Sync;

impl<T, L> ToCollected<T, L>
where
    T: Parts + Send + Sync,
    L: Send + 'static,
{
    /// Sends the windows that are due; `false` while there is no room for all of them.
    fn send(&mut self) -> bool {
        if !self.late.as_mut().is_none_or(|late| late.send(self.stamp)) {
            return false;
        }
        while self.waiting.is_some() || self.store.has_changed() {
            if self.outbox.reserve(WINDOWS_AT_ONCE).is_none() {
                return false;
            }
            let mut windows = std::iter::from_fn(|| self.store.release()).take(WINDOWS_AT_ONCE);
            let sent = windows
                .by_ref()
                .map(|window| self.outbox.put(0, window))
                .count();
            let is_all = sent < WINDOWS_AT_ONCE;
            let event = self.waiting.filter(|_| is_all);
            self.outbox.commit(self.stamp, event);
            self.sent += sent;
            if is_all {
                self.waiting = None;
            }
        }
        true
    }
}

impl<T: Parts, L> ToCollected<T, L> {
    /// Publishes the figures of the retained items in `state`.
    fn publish(&mut self) {
        let kept = Retained {
            items: self.store.items() as u64,
            events: self.store.events(),
        };
        self.state
            .replace(mem::replace(&mut self.published, kept), kept);
    }
}

impl<T: Parts, L> Late<T, L> {
    fn send(&mut self, stamp: u64) -> bool {
        let event = self.event.filter(|_| self.outbox.wants_events());
        if self.waiting.is_empty() && event.is_none() {
            return true;
        }
        if self.outbox.reserve(self.waiting.len().max(1)).is_none() {
            return false;
        }
        self.event = None;
        self.waiting
            .drain(..)
            .for_each(|item| self.outbox.put(0, item));
        self.outbox.commit(stamp, event);
        true
    }
}

impl<T, L> End for ToCollected<T, L>
where
    T: Parts + Clone + Debug + Send + Sync,
    L: Send + 'static,
{
    fn closes_by_time(&self) -> bool {
        true
    }

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.send().then_some(results))
    }

    fn cancel(&mut self) {}

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        self.stamp = stamp;
        if let Some(ControlEvent::Watermark(time) | ControlEvent::Idle(time)) = event {
            self.store.advance(time);
            self.waiting = event;
            if let Some(late) = &mut self.late {
                late.event = event;
            }
        }
        self.send();
        self.publish();
        Ok(self.take_sent())
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        Ok(self.send())
    }

    fn take_sent(&mut self) -> usize {
        mem::take(&mut self.sent)
    }

    fn take_progress(&mut self) -> bool {
        let late = self.late.as_mut();
        let has_late_progress = late.is_some_and(|late| late.outbox.take_progress());
        self.outbox.take_progress() | has_late_progress
    }

    fn is_at_rest(&self) -> bool {
        let late = self.late.as_ref();
        let is_sent = self.waiting.is_none() && !self.store.has_changed();
        is_sent && late.is_none_or(|late| late.waiting.is_empty())
    }

    /// The end of a bounded input closes all windows; a flow that is stopped leaves them open.
    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        if end == InputEnd::Complete && !self.has_ended {
            self.has_ended = true;
            self.store.advance(Timestamp(i64::MAX));
            self.waiting = Some(ControlEvent::End);
        }
        let is_sent = self.send();
        self.publish();
        let late = self.late.as_mut();
        let is_finished = is_sent && late.is_none_or(|late| late.outbox.finish(end));
        Ok(is_finished.then(|| self.take_sent()))
    }
}

impl<T, L> Terminal<T> for ToCollected<T, L>
where
    T: Parts + Clone + Debug + Send + Sync,
    L: Send + 'static,
{
    type Slice<'a> = &'a mut Self;

    fn begin(&mut self) -> &mut Self {
        self
    }
}

impl<T, L> Slice<T> for &mut ToCollected<T, L>
where
    T: Parts + Clone + Debug,
{
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        let (mut late, mut rejected) = (Vec::new(), Vec::new());
        let mut first = None;
        let operator = &self.label.0;
        let found = attempt.call(&self.label, item, || {
            let found = self.store.find(item, |part, time| {
                let watermark = self.store.watermark();
                let why = LateItem::new(&self.store.windows(), time, watermark, attempt.time());
                first.get_or_insert(why);
                match self.late_to {
                    LateTo::Dropped => {}
                    LateTo::Channel => {
                        late.extend(self.late.as_ref().map(|late| (late.function)(part)));
                    }
                    LateTo::DeadLetters => {
                        let mut letter = Rejected::late(operator, &Shown::<T>(part), why.into());
                        letter.origin = item.origin(part).map(Arc::new);
                        rejected.push(letter);
                    }
                }
            });
            (item.clone(), found)
        });
        let Some((kept, found)) = found else {
            return;
        };
        if let Some(fault) = item.fault() {
            return attempt.reject(&self.label, item, fault);
        }
        self.state.late.add(found.late());
        if let Some(first) = first.filter(|_| !self.is_late_expected) {
            self.state.late.warn_once(operator, first, self.late_to);
        }
        for rejected in rejected {
            attempt.reject_late(rejected);
        }
        if let Some(to) = &mut self.late {
            to.waiting.append(&mut late);
        }
        attempt.change(&self.label, || self.store.keep(kept, found));
    }
}
