//! Pre-aggregation: into the panes of this instance, and from there to the owners of the keys.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;

use millstream_base::{Clock, Timestamp};

use crate::error::{BoxError, Failure};
use crate::ranks::outlets::Outlets;
use crate::ranks::owners::KeyOwners;
use crate::stage::attempt::Attempt;
use crate::stage::ends::exchange::Exchange;
use crate::stage::ends::flush_policy::FlushPolicy;
use crate::stage::ends::outbox::Outbox;
use crate::stage::late_item::LateItem;
use crate::stage::rejected::Rejected;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::state::late::LateTo;
use crate::state::windowed::WindowSpec;
use crate::time::alignment::Step;
use crate::time::control_event::ControlEvent;
use crate::windows::{Aggregate, Arrival, Key, LocalPanes, Partial};

/// Partial results that are passed on in one turn, however many there are: other stages have theirs in between.
const TURN_PARTIALS: usize = 8 << 10;

/// The user code for items, and the operator's label.
pub struct PaneCode<F, E> {
    pub key: F,
    pub time: E,
    pub label: Label,
}

pub struct ToPanes<K, T, A: Aggregate<T>, F, E> {
    pub spec: Arc<WindowSpec<A>>,
    pub code: Arc<PaneCode<F, E>>,
    pub panes: LocalPanes<K, A::State>,
    pub exchange: Exchange<Partial<K, A::State>>,
    pub owners: KeyOwners,
    /// The destination of late items.
    pub late_to: LateTo,
    /// The flow has asked for that, so it is not reported.
    pub is_late_expected: bool,
    /// The channel of late items, if they go to one.
    pub late: Option<Outbox<T>>,
    pub late_items: Vec<T>,
    pub step: Step,
    /// Other instances read the same ring: the results of a slice go out in its turn, with the room that was reserved
    /// in its turn.
    pub is_in_turn: bool,
    pub clock: Arc<dyn Clock>,
    pub flush_policy: FlushPolicy,
    /// The watermark to pass on, once there is room.
    pub waiting: PendingFlush,
    /// When the newest item entered the flow.
    pub stamp: u64,
    pub has_ended: bool,
    pub absence: Absence,
    pub item: PhantomData<fn(&T)>,
}

/// The time for which the owners of keys have not waited for an instance, since it was idle.
pub struct Absence {
    /// They may have gone on without it: it has emitted its idleness, and has had no item since.
    is_away: bool,
    /// The latest watermark that they had observed when the instance came back: items that are late by it are late.
    floor: Timestamp,
}

impl Default for Absence {
    /// The flow may have resumed where they had gone on.
    fn default() -> Self {
        Absence {
            is_away: true,
            floor: Timestamp(i64::MIN),
        }
    }
}

/// The flush that waits for room.
#[derive(Default)]
pub struct PendingFlush {
    /// The time up to which panes must be passed on.
    until: Option<Timestamp>,
    event: Option<ControlEvent>,
    /// The same for late items, which have their own way.
    late_event: Option<ControlEvent>,
    /// The last watermark that was passed on.
    emitted: Option<Timestamp>,
    /// Results that were passed on and not yet counted.
    sent: usize,
    /// Whether panes were visited since this was last taken, and there are more: perhaps none of them gave a result.
    has_progress: bool,
}

impl<K, T, A, F, E> ToPanes<K, T, A, F, E>
where
    K: Key,
    T: Clone + Debug + Send + 'static,
    A: Aggregate<T>,
{
    /// Sends the results that are due; `false` when there is no room.
    fn send(&mut self) -> Result<bool, Failure> {
        if !self.send_late(self.waiting.late_event) {
            return Ok(false);
        }
        self.waiting.late_event = None;
        let PendingFlush { until, event, .. } = &self.waiting;
        if until.is_none() && event.is_none() {
            return Ok(true);
        }
        let until = until.unwrap_or(Timestamp(i64::MIN));
        let wanted = (self.panes.len() + 1).min(TURN_PARTIALS);
        if self.exchange.reserve(wanted)?.is_none() {
            return Ok(false);
        }
        let is_done = self.flush(until, TURN_PARTIALS)?;
        // The event comes only behind all partial results of the panes that it closes.
        let event = self.waiting.event.take_if(|_| is_done);
        self.waiting.sent += self.exchange.commit(self.stamp, event)?;
        self.waiting.has_progress |= !is_done;
        if is_done {
            self.waiting.until = None;
        }
        Ok(is_done)
    }

    /// Puts up to `max` partial results into the room that was reserved, and those that go beyond it behind; returns
    /// whether those were all.
    fn flush(&mut self, until: Timestamp, max: usize) -> Result<bool, Failure> {
        let mut result: Result<(), BoxError> = Ok(());
        let (panes, exchange, owners) = (&mut self.panes, &mut self.exchange, &mut self.owners);
        let flush_policy = &mut self.flush_policy;
        flush_policy.begin(|| self.clock.monotonic());
        let is_done = self.code.label.run(|| {
            panes.flush_some(until, max, &mut |partial| {
                flush_policy.given(partial.events);
                if result.is_ok() {
                    let owner = owners.of(&partial.key).map_err(BoxError::from);
                    result = owner.and_then(|owner| exchange.put(owner, partial));
                }
            })
        });
        if is_done {
            flush_policy.end(self.clock.monotonic(), self.panes.is_empty());
        }
        result.map_err(|error| Failure::Error {
            operator: Arc::clone(&self.code.label.0),
            error,
        })?;
        Ok(is_done)
    }

    /// Sends the late items, and emits `event` behind them; `false` when there is no room.
    fn send_late(&mut self, event: Option<ControlEvent>) -> bool {
        let Some(late) = &mut self.late else {
            return true;
        };
        let event = event.filter(|_| late.wants_events());
        if self.late_items.is_empty() && event.is_none() {
            return true;
        }
        let has_room = late.reserve(self.late_items.len().max(1)).is_some();
        if has_room {
            self.commit_late(event);
        }
        has_room
    }

    /// Puts the late items into the room that was reserved.
    fn commit_late(&mut self, event: Option<ControlEvent>) {
        if let Some(late) = &mut self.late {
            self.late_items.drain(..).for_each(|item| late.put(0, item));
            self.waiting.sent += late.commit(self.stamp, event);
        }
    }

    /// Reserves room for the results of a slice, and for its late items. Their number is unknown; more than expected
    /// find a place, too.
    fn reserve_in_turn(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        let late = self.late.as_mut();
        if late.is_some_and(|late| late.reserve(1).is_none()) {
            return Ok(None);
        }
        let room = self.exchange.reserve(results)?;
        if room.is_none() {
            self.cancel_late();
        }
        Ok(room)
    }

    fn cancel_late(&mut self) {
        if let Some(late) = &mut self.late {
            late.cancel();
        }
    }

    /// Notes the event for later, if it makes a difference to any window.
    fn note(&mut self, event: Option<ControlEvent>) {
        self.absence.is_away |= matches!(event, Some(ControlEvent::Idle(_)));
        let time = match event {
            Some(ControlEvent::Watermark(time) | ControlEvent::Idle(time)) => time,
            Some(ControlEvent::End) | None => return,
        };
        let is_watermark = matches!(event, Some(ControlEvent::Watermark(_)));
        let makes_no_difference = self.waiting.emitted.is_some_and(|emitted| {
            let windows = &self.spec.windows;
            // Without panes it may make one to windows further on.
            let are_same = windows.pane_of(emitted).start > Timestamp(i64::MIN)
                && windows.are_same(emitted, time);
            are_same && !self.step.is_reached(emitted, time)
        });
        if is_watermark && makes_no_difference {
            return;
        }
        self.waiting.event = event;
        self.waiting.late_event = event;
        self.waiting.emitted = is_watermark.then_some(time);
        self.waiting.until = self.waiting.until.max(Some(time));
    }
}

impl<K, T, A, F, E> End for ToPanes<K, T, A, F, E>
where
    K: Key,
    T: Clone + Debug + Send + 'static,
    A: Aggregate<T>,
    F: Fn(&T) -> K + Send + Sync + 'static,
    E: Fn(&T) -> Timestamp + Send + Sync + 'static,
{
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        if self.is_in_turn {
            return self.reserve_in_turn(results);
        }
        Ok(self.send()?.then_some(results))
    }

    fn takes_any(&self) -> bool {
        !self.is_in_turn
    }

    fn cancel(&mut self) {
        self.exchange.cancel();
        self.cancel_late();
    }

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        self.stamp = stamp;
        if self.is_in_turn {
            self.absence.is_away |= matches!(event, Some(ControlEvent::Idle(_)));
            self.flush(Timestamp(i64::MAX), usize::MAX)?;
            self.commit_late(event);
            return Ok(self.exchange.commit(stamp, event)? + self.take_sent());
        }
        self.note(event);
        if self
            .flush_policy
            .is_due(self.panes.len(), || self.clock.monotonic())
        {
            self.waiting.until = Some(Timestamp(i64::MAX));
        }
        self.send()?;
        Ok(self.take_sent())
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        if !self.panes.is_empty() {
            self.waiting.until = Some(Timestamp(i64::MAX));
        }
        Ok(self.send()? && self.exchange.pause()?)
    }

    fn has_more(&self) -> bool {
        self.waiting.until.is_some() || self.waiting.event.is_some()
    }

    fn take_sent(&mut self) -> usize {
        mem::take(&mut self.waiting.sent)
    }

    fn take_progress(&mut self) -> bool {
        let late = self.late.as_mut();
        let has_late_progress = late.is_some_and(Outbox::take_progress);
        let has_more = mem::take(&mut self.waiting.has_progress);
        self.exchange.take_progress() | has_late_progress | has_more
    }

    fn waits_outside(&self) -> bool {
        self.exchange.waits_outside()
    }

    fn is_at_rest(&self) -> bool {
        let is_sent = self.waiting.event.is_none() && self.late_items.is_empty();
        self.panes.is_empty() && is_sent && self.exchange.is_at_rest()
    }

    fn outlets(&self) -> Vec<Arc<Outlets>> {
        self.exchange.outlets()
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        let is_sent = self.pause()?;
        let is_finished = is_sent && self.exchange.finish(end, &mut self.has_ended)?;
        let late = self.late.as_mut();
        let is_finished = is_finished && late.is_none_or(|late| late.finish(end));
        Ok(is_finished.then(|| self.take_sent()))
    }
}

impl<K, T, A, F, E> Terminal<T> for ToPanes<K, T, A, F, E>
where
    K: Key,
    T: Clone + Debug + Send + 'static,
    A: Aggregate<T>,
    F: Fn(&T) -> K + Send + Sync + 'static,
    E: Fn(&T) -> Timestamp + Send + Sync + 'static,
{
    type Slice<'a> = PaneSlice<'a, K, T, A, F, E>;

    fn begin(&mut self) -> PaneSlice<'_, K, T, A, F, E> {
        PaneSlice {
            code: &self.code,
            spec: &self.spec,
            panes: &mut self.panes,
            late_to: self.late_to,
            is_late_expected: self.is_late_expected,
            late_items: &mut self.late_items,
            absence: &mut self.absence,
            owners: &self.exchange.local,
        }
    }
}

/// The borrows of the loop over items, made once.
pub struct PaneSlice<'a, K, T, A: Aggregate<T>, F, E> {
    code: &'a PaneCode<F, E>,
    spec: &'a WindowSpec<A>,
    panes: &'a mut LocalPanes<K, A::State>,
    late_to: LateTo,
    is_late_expected: bool,
    /// For late items that go to a channel.
    late_items: &'a mut Vec<T>,
    absence: &'a mut Absence,
    /// The way to the owners of keys on this rank.
    owners: &'a Outbox<Partial<K, A::State>>,
}

impl<K, T, A, F, E> PaneSlice<'_, K, T, A, F, E>
where
    K: Key,
    T: Clone + Debug,
    A: Aggregate<T>,
{
    /// Makes the owners of keys wait for this instance again, which was idle and has an item now.
    #[cold]
    fn come_back(&mut self) {
        let observed = self.owners.rejoin().max(self.spec.resumed_at());
        *self.absence = Absence {
            is_away: false,
            floor: self.absence.floor.max(observed),
        };
    }

    #[cold]
    fn take_late<Try: Attempt>(
        &mut self,
        attempt: &Try,
        item: &T,
        time: Timestamp,
        watermark: Timestamp,
    ) {
        let operator = &self.code.label.0;
        let late = LateItem::new(&self.spec.windows, time, watermark, attempt.time());
        match self.late_to {
            LateTo::Dropped => {}
            LateTo::Channel => self.late_items.push(item.clone()),
            LateTo::DeadLetters => {
                attempt.reject_late(Rejected::late(operator, item, late.into()));
            }
        }
        // After the code that may panic: an item that cannot be copied is a dead letter instead.
        self.spec.late.add(1);
        attempt.time().count_late();
        if !self.is_late_expected {
            self.spec.late.warn_once(operator, late, self.late_to);
        }
    }
}

impl<K, T, A, F, E> Slice<T> for PaneSlice<'_, K, T, A, F, E>
where
    K: Key,
    T: Clone + Debug,
    A: Aggregate<T>,
    F: Fn(&T) -> K,
    E: Fn(&T) -> Timestamp,
{
    #[inline]
    fn take<Try: Attempt>(&mut self, attempt: &Try, item: &T) {
        let PaneCode { key, time, label } = self.code;
        let Some((key, time)) = attempt.call(label, item, || (key(item), time(item))) else {
            return;
        };
        if self.absence.is_away {
            self.come_back();
        }
        let watermark = attempt.time().watermark().max(self.absence.floor);
        let arrival = attempt.change(label, || {
            self.panes
                .add(&self.spec.aggregate, key, time, watermark, item)
        });
        if let Arrival::Late = arrival {
            self.take_late(attempt, item, time, watermark);
        }
    }
}
