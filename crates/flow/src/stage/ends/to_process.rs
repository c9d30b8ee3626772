//! Items and timers that change the content of their keys in a state element.
//!
//! An instance has the keys of one partition, and one worker at a time: so the functions of a key are never called at once.
//! Timers of event time fire when a watermark has come, before the items behind it are taken and before the watermark is
//! passed on. Each step fires some, so that other stages have their turn however many are due.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use parking_lot::MutexGuard;

use crate::doorbell::Doorbell;
use crate::error::Failure;
use crate::pause::Pause;
use crate::stage::attempt::Attempt;
use crate::stage::chain::Emit;
use crate::stage::ends::keyed_item::KeyedItem;
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::steps::Steps;
use crate::stage::ends::wanted::{WANTED_MAX, Wanted, is_at_hand};
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::state::element::Element;
use crate::state::lockable::{Lockable, Locked};
use crate::state::timers::due::Due;
use crate::state::timers::{Fired, TimeDomain, TimerKey, TimerTable, TimersOf};
use crate::state::values::SharedTable;
use crate::time::control_event::ControlEvent;
use crate::windows::Key;

/// The most timers of each domain that fire in one step, so that other stages are not delayed.
const FIRED_AT_ONCE: usize = 64;

/// A stage looks at the wall clock again after this time, however far its next timer is.
const ALARM_MAX: Duration = Duration::from_secs(3600);

/// The end in one partition of a state element, or of several, and of its timers.
pub struct ToProcess<K: Key, S: Element<K>, T: Key, O, P, G, H> {
    pub state: S,
    /// The content of the keys, and their timers.
    pub tables: (S::Partition, SharedTable<TimerKey<K, T>, bool>),
    /// The functions of items and of timers.
    pub functions: Arc<(G, H)>,
    pub label: Label,
    pub outbox: Outbox<O>,
    pub time: ProcessTime,
    /// Whether all sources that lead here have to emit watermarks, since the operator has no use without event time.
    pub needs_watermarks: bool,
    /// The key at which items or timers have stopped, since its content was not in memory.
    pub missing: Option<K>,
    pub steps: Steps<P>,
    pub release: Release,
    /// When the newest item entered the flow.
    pub stamp: u64,
}

/// The clocks of the functions.
pub struct ProcessTime {
    pub clock: Arc<dyn Clock>,
    /// Rung when the next timer of the wall clock is due.
    pub doorbell: Arc<Doorbell>,
    /// Set when the owner of the flow stops it.
    pub stopping: Arc<AtomicBool>,
    /// While it is on, timers of the wall clock do not fire: a snapshot is taken of stages that were found at rest.
    pub pause: Arc<Pause>,
    /// As its input has it, before the end.
    reached: Timestamp,
    /// The timers that are set. `None` before the table is restored.
    due: Option<Due>,
    /// Whether the input has ended: timers of the wall clock do not fire any more.
    is_over: bool,
}

impl ProcessTime {
    pub fn new(
        clock: Arc<dyn Clock>,
        doorbell: Arc<Doorbell>,
        stopping: Arc<AtomicBool>,
        pause: Arc<Pause>,
    ) -> ProcessTime {
        ProcessTime {
            clock,
            doorbell,
            stopping,
            pause,
            reached: Timestamp(i64::MIN),
            due: None,
            is_over: false,
        }
    }

    /// Returns the watermark; at the end of the input it is at the end of time.
    fn watermark(&self) -> Timestamp {
        match self.is_over {
            true => Timestamp(i64::MAX),
            false => self.reached,
        }
    }

    /// Returns the time of a domain, if timers of it are due. A flow that is stopped leaves those of the wall clock set.
    fn due_until(&self, domain: TimeDomain) -> Option<Timestamp> {
        let next = self.due.as_ref()?.next_time(domain)?;
        let now = match domain {
            TimeDomain::Event => self.watermark(),
            TimeDomain::Clock if self.is_over || self.is_paused() || self.is_stopping() => {
                return None;
            }
            TimeDomain::Clock => self.clock.now(),
        };
        (next <= now).then_some(now)
    }

    fn has_due(&self) -> bool {
        let domains = [TimeDomain::Event, TimeDomain::Clock];
        let mut due = domains.into_iter().filter_map(|it| self.due_until(it));
        due.next().is_some()
    }

    /// Whether timers of event time are due that wait for the next run.
    fn has_left(&self) -> bool {
        let due = self.due.as_ref();
        due.is_some_and(|due| due.has_left(self.watermark()))
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Seen by a worker that enters the instance behind one that has found it at rest: that one has seen the pause.
    fn is_paused(&self) -> bool {
        self.pause.is_on.load(Ordering::SeqCst)
    }

    /// Lets a worker be awake when the next timer of the wall clock is due. It looks again then, since the wall clock may
    /// have been set meanwhile. All workers are woken at the end of a pause.
    fn set_alarm(&self) {
        let is_waiting = !self.is_stopping() && !self.is_paused();
        let due = self.due.as_ref().filter(|_| is_waiting);
        let Some(time) = due.and_then(|due| due.next_time(TimeDomain::Clock)) else {
            return;
        };
        let left_ms = time.0.saturating_sub(self.clock.now().0).max(0);
        let left = Duration::from_millis(left_ms.unsigned_abs()).min(ALARM_MAX);
        self.doorbell.ring_at(self.clock.monotonic() + left);
    }
}

/// The progress of a release of timers.
#[derive(Default)]
pub struct Release {
    /// Timers are due that have not fired, or an event waits.
    is_open: bool,
    /// The event to emit behind the results.
    event: Option<ControlEvent>,
    /// Results that were sent and not yet counted.
    sent: usize,
    /// Whether timers have fired since this was last taken.
    has_progress: bool,
}

impl<K, S, T, O, P, G, H> ToProcess<K, S, T, O, P, G, H>
where
    K: Key,
    S: Element<K>,
    T: Key,
    O: Clone + Send + 'static,
    P: Send + 'static,
    G: Send + Sync + 'static,
    H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, T>, &Fired<T>, &mut Emit<'_, O>)
        + Send
        + Sync
        + 'static,
{
    /// Fires timers that are due, and emits the event that waits for them. Returns whether all have fired.
    fn send(&mut self) -> bool {
        if self.time.due.is_none() {
            self.time.due = Some(Due::of(&self.tables.1.lock()));
        }
        let is_all = self.step();
        self.release.is_open = !is_all;
        if is_all {
            self.time.set_alarm();
        }
        is_all
    }

    fn step(&mut self) -> bool {
        if !self.time.has_due() && self.release.event.is_none() {
            return true;
        }
        if self.is_missing() || self.outbox.reserve(FIRED_AT_ONCE).is_none() {
            return false;
        }
        let mut stamp = self.stamp;
        let mut fired = 0;
        for domain in [TimeDomain::Event, TimeDomain::Clock] {
            let of_domain = self.fire_some(domain);
            fired += of_domain;
            if domain == TimeDomain::Clock && of_domain > 0 {
                stamp = self.time.clock.monotonic().as_nanos() as u64;
            }
        }
        let has_passed = self.time.due_until(TimeDomain::Event).is_none();
        let event = self.release.event.take_if(|_| has_passed);
        // The source emits it again in the run that resumes, where those that were left fire.
        let event = event.filter(|_| !self.time.has_left());
        self.release.sent += self.outbox.commit(stamp, event);
        self.release.has_progress |= fired > 0;
        self.missing.is_none() && !self.time.has_due()
    }

    /// As [`fire`](Self::fire). A flow that is stopped fires the timers that are due, since items behind the watermark wait for
    /// them. A timer up to the watermark that a function of a timer sets meanwhile fires in the next run: so a function that
    /// sets timers for ever does not hold the flow.
    fn fire_some(&mut self, domain: TimeDomain) -> usize {
        let up_to = self.time.is_stopping().then(|| self.time.watermark());
        let leave_new = |due: &mut Option<Due>, up_to| {
            due.iter_mut().for_each(|due| due.leave_new(up_to));
        };
        leave_new(&mut self.time.due, up_to);
        let fired = self.fire(domain);
        leave_new(&mut self.time.due, None);
        fired
    }

    /// Fires some timers of a domain that are due. Returns how many have fired.
    fn fire(&mut self, domain: TimeDomain) -> usize {
        let (now, watermark) = (self.time.due_until(domain), self.time.watermark());
        let (Some(now), Some(due), None) = (now, &mut self.time.due, &self.missing) else {
            return 0;
        };
        let (state, table) = &mut self.tables.lock_all();
        let (outbox, functions) = (&mut self.outbox, &self.functions);
        for fired in 0..FIRED_AT_ONCE {
            let next = due.due::<K, T>(domain, now).next();
            let Some((time, key, tag)) = next else {
                return fired;
            };
            let fired_timer = Fired { domain, time, tag };
            let mut timers = TimersOf {
                table: &mut *table,
                due: &mut *due,
                key: &key,
                clock: &*self.time.clock,
                watermark,
            };
            let called = self.label.change(|| {
                self.state.change(state, &key, |content| {
                    // The function may set it again.
                    timers.cancel(domain, time, &fired_timer.tag);
                    let emit: &mut Emit<'_, O> = &mut |result| outbox.put(0, result.clone());
                    (functions.1)(&key, content, &mut timers, &fired_timer, emit);
                })
            });
            if called.is_none() {
                let keys = due.due::<K, T>(domain, now).map(|(_, key, _)| key);
                let keys = keys.take(WANTED_MAX).filter(|key| !S::is_known(state, key));
                S::want(state, keys.collect());
                self.missing = Some(key);
                return fired;
            }
        }
        FIRED_AT_ONCE
    }
}

impl<K: Key, S: Element<K>, T: Key, O, P, G, H> ToProcess<K, S, T, O, P, G, H> {
    /// Whether the content of the missing key is not in memory yet.
    fn is_missing(&mut self) -> bool {
        let is_missing = !self.is_at_hand();
        if !is_missing {
            self.missing = None;
        }
        is_missing
    }

    /// Whether the content of the key at which items or timers have stopped is in memory.
    fn is_at_hand(&self) -> bool {
        is_at_hand::<K, S>(self.missing.as_ref(), &self.tables.0)
    }
}

impl<K, S, T, O, P, G, H> End for ToProcess<K, S, T, O, P, G, H>
where
    K: Key,
    S: Element<K>,
    T: Key,
    O: Clone + Send + 'static,
    P: Send + 'static,
    G: Send + Sync + 'static,
    H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, T>, &Fired<T>, &mut Emit<'_, O>)
        + Send
        + Sync
        + 'static,
{
    fn closes_by_time(&self) -> bool {
        true
    }

    /// Timers of the wall clock need none.
    fn needs_watermarks(&self) -> bool {
        self.needs_watermarks
    }

    /// A join has removed state by it, and a function may have, too.
    fn watermark(&self) -> Option<Timestamp> {
        Some(self.time.reached)
    }

    fn resume_at(&mut self, watermark: Timestamp) {
        self.time.reached = watermark;
    }

    fn takes_events_in_turn(&self) -> bool {
        true
    }

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(match self.send() {
            true => self.steps.reserve(&mut self.outbox, results),
            false => None,
        })
    }

    fn can_go_on(&self) -> bool {
        self.is_at_hand()
    }

    fn waits_outside(&self) -> bool {
        !self.is_at_hand()
    }

    fn cancel(&mut self) {
        self.outbox.cancel();
    }

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        self.stamp = stamp;
        self.release.sent += self.outbox.commit(stamp, None);
        // The end is emitted behind the last timers: see `finish`.
        if let Some(ControlEvent::Watermark(time) | ControlEvent::Idle(time)) = event {
            self.time.reached = self.time.reached.max(time);
            self.release.event = event;
        }
        // Also without an event: the items may have set timers that are due.
        if self.missing.is_none() {
            self.send();
        }
        Ok(self.take_sent())
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        Ok(self.send())
    }

    fn take_sent(&mut self) -> usize {
        mem::take(&mut self.release.sent)
    }

    fn has_more(&self) -> bool {
        self.release.is_open || self.steps.rest.is_some()
    }

    fn take_progress(&mut self) -> bool {
        self.outbox.take_progress() | mem::take(&mut self.release.has_progress)
    }

    /// A checkpoint is taken before the first timer of a release fires, or behind the last one.
    fn is_at_rest(&self) -> bool {
        !self.release.is_open
    }

    /// The end of a bounded input fires all timers of event time; a flow that is stopped leaves those that are not due.
    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        if end == InputEnd::Complete && !mem::replace(&mut self.time.is_over, true) {
            self.release.event = Some(ControlEvent::End);
        }
        Ok(self.send().then(|| self.take_sent()))
    }
}

impl<K, S, T, I, O, P, G, H> Terminal<KeyedItem<K, I>> for ToProcess<K, S, T, O, P, G, H>
where
    K: Key,
    S: Element<K>,
    T: Key,
    O: Clone + Send + 'static,
    P: Send + 'static,
    G: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, T>, &I, &mut Steps<P>, &mut Emit<'_, O>)
        + Send
        + Sync
        + 'static,
    H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, T>, &Fired<T>, &mut Emit<'_, O>)
        + Send
        + Sync
        + 'static,
{
    type Slice<'a> = ProcessSlice<'a, K, S, T, O, P, G>;

    fn begin(&mut self) -> ProcessSlice<'_, K, S, T, O, P, G> {
        let (state_tables, timer_table) = self.tables.lock_all();
        let watermark = self.time.watermark();
        ProcessSlice {
            state: &self.state,
            due: self.time.due.get_or_insert_with(|| Due::of(&timer_table)),
            state_tables,
            timer_table,
            clock: &*self.time.clock,
            watermark,
            on_item: &self.functions.0,
            label: &self.label,
            outbox: &mut self.outbox,
            is_stopped: false,
            wanted: Wanted::begin(&mut self.missing),
            steps: &mut self.steps,
        }
    }
}

/// Holds the partition's locks for the time of one slice.
pub struct ProcessSlice<'a, K: Key, S: Element<K>, T: Key, O, P, G> {
    state: &'a S,
    state_tables: Locked<'a, S::Partition>,
    timer_table: MutexGuard<'a, TimerTable<K, T>>,
    due: &'a mut Due,
    clock: &'a dyn Clock,
    watermark: Timestamp,
    on_item: &'a G,
    label: &'a Label,
    outbox: &'a mut Outbox<O>,
    is_stopped: bool,
    wanted: Wanted<'a, K>,
    steps: &'a mut Steps<P>,
}

impl<K, S, T, I, O, P, G> Slice<KeyedItem<K, I>> for ProcessSlice<'_, K, S, T, O, P, G>
where
    K: Key,
    S: Element<K>,
    T: Key,
    O: Clone,
    G: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, T>, &I, &mut Steps<P>, &mut Emit<'_, O>),
{
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &KeyedItem<K, I>) {
        let KeyedItem { key, content: item } = item;
        if self.is_stopped {
            let tables = &self.state_tables;
            return self.wanted.add::<S>(attempt, self.label, tables, key);
        }
        let mut timers = TimersOf {
            table: &mut *self.timer_table,
            due: &mut *self.due,
            key,
            clock: self.clock,
            watermark: self.watermark,
        };
        let (tables, outbox, steps) = (&mut self.state_tables, &mut *self.outbox, &mut *self.steps);
        let called = attempt.change(self.label, || {
            self.state.change(tables, key, |content| {
                let emit: &mut Emit<'_, O> = &mut |result| outbox.put(0, result.clone());
                (self.on_item)(key, content, &mut timers, item, steps, emit);
            })
        });
        if called.is_none() {
            let tables = &self.state_tables;
            self.wanted.add::<S>(attempt, self.label, tables, key);
        }
        // Otherwise the item comes again.
        self.is_stopped = called.is_none() || self.steps.rest.is_some();
    }

    #[inline(always)]
    fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    fn end<A: Attempt>(&mut self, _: &A) {
        self.wanted.load::<S>(&mut self.state_tables);
    }
}
