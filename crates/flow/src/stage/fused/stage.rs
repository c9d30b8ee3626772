//! A stage of operators that are compiled into one loop.

use std::any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::checkpoint::shard::Saved;
use crate::error::{BoxError, Failure};
use crate::ranks::outlets::Outlets;
use crate::sources::positions::{self, Position, Positions};
use crate::stage::chain::Chain;
use crate::stage::channel::ChannelState;
use crate::stage::contract::{Activation, Context, Held, Killed, Rest, Stage};
use crate::stage::dead_letter::DEAD_LETTERS;
use crate::stage::input::{Input, Took};
use crate::stage::item_loop::{Progress, Work};
use crate::stage::metrics::Counters;
use crate::stage::rejected::Rejected;
use crate::stage::terminal::{End, InputEnd, Terminal};
use crate::stage::user_code::Label;
use crate::time::alignment::Aligned;
use crate::time::control_events::Mark;
use crate::time::gauge::{SourceTime, TimeGauge};
use crate::time::stage_time::StageTime;

/// A source that has given something without a break for so long has more, enough for another worker.
const RICH_NS: u64 = 400_000;

/// A source is asked again within an activation until it has lasted so long. Asking for little at a time keeps items in a
/// core's first cache from the source to the window, and an activation costs as much for many items as for few.
const ASKING_NS: u64 = 20_000;

/// What is assumed of a stage that has not worked yet.
const UNKNOWN_ITEM_NS: f64 = 1_000.0;

/// A stage has several instances, so that several workers can be in it at once; each instance has
/// one worker at a time.
pub struct FusedStage<I, C, T> {
    pub name: String,
    pub chain: C,
    pub instances: Vec<Slot<I, T>>,
    /// Where the next activation begins to look for an instance that is free.
    pub turn: AtomicUsize,
    /// Instances that workers are in.
    pub busy: AtomicUsize,
    /// Since when the source has always had something to give, in nanoseconds of the flow's clock; 0 if
    /// it was idle when it was last asked, and for stages that read a ring.
    pub giving_since_ns: AtomicU64,
    /// Instances that could pass on more of what former slices left behind. Written by their workers after each
    /// activation.
    pub having_more: AtomicUsize,
    /// It was found without room for its results when it was last looked at.
    pub is_blocked: AtomicBool,
    /// Instances that have not ended. Each is counted down once, by the worker that ends it.
    pub live: AtomicUsize,
    /// Held while a slice is read and room for its results reserved, so that results come in the
    /// order of the items. Only where the instances share a ring whose order counts.
    pub order: Option<Mutex<()>>,
    /// 1 + how often the doorbell had been rung when the source was last found idle.
    pub idle_since: AtomicU64,
    pub tells_time: bool,
    pub watched: WatchedSource,
    pub input: Option<Arc<ChannelState>>,
    pub outputs: Vec<Arc<ChannelState>>,
    pub stopping: Arc<AtomicBool>,
    pub counters: Counters,
}

/// What can be seen of a source's instances while workers are in them.
#[derive(Default)]
pub struct WatchedSource {
    /// Of each instance; empty where the stage does not tell the time.
    times: Vec<Arc<TimeGauge>>,
    idle_after: Duration,
    /// Of each instance that knows it.
    positions: Vec<Arc<dyn Positions>>,
}

impl WatchedSource {
    /// Another instance.
    pub fn add(&mut self, input: &impl Input, time: &StageTime) {
        if let Some(idle_after) = time.idle_after_if_told() {
            self.idle_after = idle_after;
            self.times.push(Arc::clone(time.gauge()));
        }
        self.positions.extend(input.positions());
    }
}

/// The place of an instance.
pub struct Slot<I, T> {
    instance: Mutex<Instance<I, T>>,
    /// A worker came while another was in the instance, and went to sleep perhaps: who leaves the
    /// instance without having found anything to do looks again. Set by those who find it locked,
    /// taken back by who leaves.
    missed: AtomicBool,
}

impl<I, T> Slot<I, T> {
    pub fn new(instance: Instance<I, T>) -> Self {
        Slot {
            instance: Mutex::new(instance),
            missed: AtomicBool::new(false),
        }
    }

    /// The instance, unless another worker is in it, who then knows that it was missed.
    fn enter(&self) -> Option<MutexGuard<'_, Instance<I, T>>> {
        self.instance.try_lock().or_else(|| {
            self.missed.store(true, Ordering::Relaxed);
            // Either the other worker has left by now, or it will see the mark: one of the two fences
            // comes first.
            fence(Ordering::SeqCst);
            self.instance.try_lock()
        })
    }

    /// Whether it was missed by another worker. The caller has left it.
    fn was_missed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.missed.load(Ordering::Relaxed) && self.missed.swap(false, Ordering::Relaxed)
    }
}

/// What an instance has in hand stays in it when its worker dies; the next one goes on with it.
pub struct Instance<I, T> {
    input: I,
    terminal: T,
    /// There are items in hand.
    is_working: bool,
    progress: Progress,
    /// Items of this activation that are finished and dropped.
    dropped: usize,
    time: StageTime,
    /// What the input said behind the items in hand.
    met: Option<Mark>,
    ended: bool,
    /// It counts in the stage's `having_more`.
    has_more: bool,
    /// It has failed, and is left as it is: no checkpoint is taken of what may be half changed.
    is_broken: bool,
}

impl<I, T> Instance<I, T> {
    pub fn new(input: I, terminal: T, time: StageTime) -> Self {
        Instance {
            time,
            met: None,
            input,
            terminal,
            is_working: false,
            progress: Progress::default(),
            dropped: 0,
            ended: false,
            has_more: false,
            is_broken: false,
        }
    }
}

impl<I: Input, T: End> Instance<I, T> {
    /// Whether it has nothing in hand and nothing left to do that is part of the cut `number`.
    fn is_at_rest(&self, number: u64) -> bool {
        // A mark or an end that it has yet to pass on would release windows while the cut is taken, or behind it.
        let has_to_say = !self.ended && (self.input.is_finished() || self.input.meets_mark());
        !self.is_working
            && !self.is_broken
            && !has_to_say
            && self.input.is_at_rest(number)
            && self.terminal.is_at_rest()
    }
}

/// The first instances of a stage: no worker is in them, nor can come into them.
struct HeldStage<'s, I, C, T> {
    stage: &'s FusedStage<I, C, T>,
    instances: Vec<MutexGuard<'s, Instance<I, T>>>,
}

impl<I: Input, C, T: End> Held for HeldStage<'_, I, C, T> {
    fn is_at_rest(&self, number: u64) -> bool {
        let input = self.stage.input.as_ref();
        input.is_none_or(|input| input.is_empty())
            && self.instances.iter().all(|it| it.is_at_rest(number))
    }

    fn let_go(self: Box<Self>) -> bool {
        let slots = &self.stage.instances[..self.instances.len()];
        drop(self.instances);
        // All of them: each forgets that it was missed.
        let missed = slots.iter().filter(|slot| slot.was_missed());
        missed.count() > 0
    }
}

/// What became of an attempt to get items in hand.
enum Claim {
    Work,
    /// There are no items, but something is to be said.
    Say(Mark),
    Blocked,
    Idle,
    End,
}

impl<I, C, T> FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    /// Names what is saved of an instance.
    fn element(&self, instance: usize, part: &str) -> String {
        format!("stage/{}/{instance}/{part}", self.name)
    }

    /// Of how many sources something is saved, if those there are now can go on from it.
    fn saved_sources(&self, saved: &Saved) -> Result<usize, BoxError> {
        let is_saved = |index: &usize| saved.get(&self.element(*index, "source")).is_ok();
        let count = (0..).take_while(is_saved).count();
        let mut instances = self.instances.iter();
        let share = |slot: &Slot<I, T>| slot.instance.lock().input.shares_position();
        match count == self.instances.len() || (count > 0 && instances.all(share)) {
            true => Ok(count),
            false => Err(format!(
                "there were {count} sources and there are {} now, which cannot go on from where others were; start it with as many instances as before",
                self.instances.len()
            )
            .into()),
        }
    }

    /// Activates an instance; no other worker goes on with one that has failed.
    fn try_activate(
        &self,
        context: &Context<'_>,
        instance: &mut Instance<I, T>,
    ) -> Result<Activation, Failure> {
        if instance.is_broken {
            return Ok(Activation::Blocked);
        }
        let activate = AssertUnwindSafe(|| self.activate_instance(context, instance));
        let activation = panic::catch_unwind(activate);
        let is_whole = match &activation {
            Ok(activation) => activation.is_ok(),
            Err(panic) => panic.is::<Killed>(),
        };
        instance.is_broken = !is_whole;
        activation.unwrap_or_else(|panic| panic::resume_unwind(panic))
    }

    fn activate_instance(
        &self,
        context: &Context<'_>,
        instance: &mut Instance<I, T>,
    ) -> Result<Activation, Failure> {
        if instance.ended {
            return Ok(Activation::Ended);
        }
        let started_ns = context.now_ns();
        if !instance.is_working {
            match self.claim(context, instance)? {
                Claim::Work => {
                    instance.is_working = true;
                    instance.progress = Progress::default();
                    instance.dropped = 0;
                }
                Claim::Say(mark) => {
                    let results = instance
                        .terminal
                        .commit(instance.input.stamp(), Some(mark))?;
                    self.counters.add_out(results);
                    return Ok(Activation::Done(0));
                }
                Claim::Blocked => return Ok(Activation::Blocked),
                Claim::Idle => {
                    return Ok(match instance.terminal.pause()? {
                        true => Activation::Idle,
                        false => Activation::Blocked,
                    });
                }
                Claim::End => return self.end(instance),
            }
        }
        instance.time.begin(|| context.clock.now());
        let mark = loop {
            self.work(context, instance)?;
            let met = instance.met.take();
            let asked_at = self.asked_at(instance);
            let now = || asked_at.unwrap_or_else(|| context.clock.monotonic());
            let mark = instance.time.after_items(met, now);
            if mark.is_some() || !self.takes_again(context, instance, started_ns)? {
                break mark;
            }
        };
        let items = instance.dropped + instance.progress.items;
        let results = instance.terminal.commit(instance.input.stamp(), mark)?;
        instance.is_working = false;
        let now_ns = context.now_ns();
        self.drop_items(instance, || now_ns);
        self.counters.add_slice(items, results, now_ns - started_ns);
        if let Some(channel) = &self.input {
            channel.set_reader_ns(self.counters.item_ns() as u64);
        }
        Ok(Activation::Done(items))
    }

    /// When a source was asked for the items in hand: just now, which costs no further look at the clock.
    fn asked_at(&self, instance: &mut Instance<I, T>) -> Option<Duration> {
        let [items, _] = instance.input.parts();
        // A source that had something to do but nothing to give has not set the stamp.
        let is_known = self.is_source() && !items.is_empty();
        is_known.then(|| Duration::from_nanos(instance.input.stamp()))
    }

    /// Drops the items in hand, which are finished.
    fn drop_items(&self, instance: &mut Instance<I, T>, now_ns: impl Fn() -> u64) {
        let Instance {
            input, terminal, ..
        } = instance;
        // Here records come to their end: in a sink, in a state, or in a window, whose results are not theirs.
        if self.outputs.is_empty() || terminal.goes_by_time() {
            input.sample(|stamp, records| {
                let latency_ns = now_ns().saturating_sub(stamp);
                let mut latency = self.counters.latency().lock();
                latency.saturating_record_n(latency_ns, records);
            });
        }
        input.done();
    }

    /// Asks a source for more once the items in hand are finished, if their results need no room before they are
    /// committed and nothing is to be said behind them; `false` where the activation is to end.
    fn takes_again(
        &self,
        context: &Context<'_>,
        instance: &mut Instance<I, T>,
        started_ns: u64,
    ) -> Result<bool, Failure> {
        if !self.is_source() || !instance.terminal.takes_any() {
            return Ok(false);
        }
        let readable = instance.input.readable();
        // When the source was asked last: that costs no further look at the clock.
        let is_over = instance.input.stamp().saturating_sub(started_ns) > ASKING_NS;
        if is_over || readable == 0 || instance.time.is_held() {
            return Ok(false);
        }
        self.drop_items(instance, || context.now_ns());
        instance.dropped += instance.progress.items;
        instance.progress = Progress::default();
        let took = instance.input.take(self.budget(context).min(readable))?;
        // A source that had something to do but nothing to give has not set the stamp.
        let [items, _] = instance.input.parts();
        Ok(took == Took::Items && !items.is_empty())
    }

    /// Whether it reads a source, not what other stages or ranks have written.
    fn is_source(&self) -> bool {
        self.input.is_none() && !I::IS_REMOTE
    }

    /// How many items an activation is to take.
    fn budget(&self, context: &Context<'_>) -> usize {
        let wanted = context.items.map(|items| items.max(1));
        wanted.unwrap_or_else(|| self.counters.budget())
    }

    /// Notes whether the instance has left something behind, so that schedulers see work where nothing is readable.
    fn count_more(&self, instance: &mut Instance<I, T>) {
        let has_more = instance.terminal.has_more();
        if has_more == std::mem::replace(&mut instance.has_more, has_more) {
            return;
        }
        match has_more {
            true => self.having_more.fetch_add(1, Ordering::Relaxed),
            false => self.having_more.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Gets items in hand, and room for their results.
    fn claim(
        &self,
        context: &Context<'_>,
        instance: &mut Instance<I, T>,
    ) -> Result<Claim, Failure> {
        let Instance {
            input,
            terminal,
            time,
            met,
            ..
        } = instance;
        let _order = self.order.as_ref().map(Mutex::lock);
        let readable = input.readable();
        if readable == 0 {
            if input.is_finished() {
                return Ok(Claim::End);
            }
            if !input.meets_mark() {
                return Ok(Claim::Idle);
            }
            if terminal.reserve(1)?.is_none() {
                return Ok(Claim::Blocked);
            }
            let mark = input.meet_mark();
            time.meet(mark);
            return Ok(mark.map_or_else(
                || {
                    terminal.cancel();
                    Claim::Idle
                },
                Claim::Say,
            ));
        }
        if time.is_held() {
            return Ok(Claim::Idle);
        }
        let items = self.budget(context).min(readable);
        let selectivity = self.counters.selectivity();
        let expected = (items as f64 * selectivity).ceil() as usize + 1;
        let Some(room) = terminal.reserve(expected)? else {
            return Ok(Claim::Blocked);
        };
        let items = match room < expected {
            true => ((room as f64 / selectivity) as usize).clamp(1, items),
            false => items,
        };
        // What lies before the items, whoever met it.
        let before = input.meet_mark();
        time.reach(input.time());
        time.align_lanes(|| context.clock.monotonic());
        let took = input.take(items)?;
        if let Took::Items = took {
            *met = input.meet_mark().or(before);
            return Ok(Claim::Work);
        }
        if let Some(mark) = before {
            return Ok(Claim::Say(mark));
        }
        if let Took::Idle = took {
            let now = context.clock.monotonic();
            let told_at = time.silent(now);
            if let Some(mark) = time.tell_silence(now) {
                return Ok(Claim::Say(mark));
            }
            if let Some(told_at) = told_at {
                input.wake_at(told_at);
            }
        }
        terminal.cancel();
        Ok(match took {
            Took::End => Claim::End,
            _ => Claim::Idle,
        })
    }

    /// Processes the items in hand.
    fn work(&self, context: &Context<'_>, instance: &mut Instance<I, T>) -> Result<(), Failure> {
        let Instance {
            input,
            terminal,
            progress,
            time,
            ..
        } = instance;
        let work = Work {
            name: &self.name,
            chain: &self.chain,
            terminal,
            time,
            progress,
        };
        work.finish(
            input.parts(),
            |item| {
                if let Some(lane) = input.lane_of(item) {
                    time.enter_lane(lane, || context.clock.monotonic());
                }
                item
            },
            || context.die_if_condemned(),
            |rejected| self.keep(context, rejected),
        )
    }

    /// Makes dead letters of what is rejected.
    #[cold]
    fn keep(&self, context: &Context<'_>, rejected: Vec<Rejected>) -> Result<(), Failure> {
        self.counters.add_dead_letters(rejected.len());
        let Some(dead_letters) = context.dead_letters else {
            let first = rejected.into_iter().next();
            return first.map_or(Ok(()), |rejected| Err(rejected.into_failure()));
        };
        let letters: Vec<_> = rejected.iter().map(Rejected::letter).collect();
        let label = Label(DEAD_LETTERS.into());
        let kept = label.run(|| dead_letters.put(&letters));
        kept.map_err(|error| Failure::Error {
            operator: label.0,
            error,
        })
    }

    fn end_outputs(&self) {
        self.outputs.iter().for_each(|channel| channel.end_writer());
    }

    fn end(&self, instance: &mut Instance<I, T>) -> Result<Activation, Failure> {
        let end = match self.stopping.load(Ordering::Relaxed) {
            true => InputEnd::Stopped,
            false => InputEnd::Complete,
        };
        let Some(results) = instance.terminal.finish(end)? else {
            return Ok(Activation::Blocked);
        };
        self.counters.add_out(results);
        instance.ended = true;
        instance.time.end();
        instance.time.gauge().set_ended();
        if self.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end_outputs();
        }
        Ok(Activation::Done(0))
    }
}

/// Counts the workers in a stage.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn enter(busy: &'a AtomicUsize) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Busy(busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<I, C, T> Stage for FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn activate(&self, context: &Context<'_>) -> Result<Activation, Failure> {
        if self.has_ended() {
            return Ok(Activation::Ended);
        }
        let _busy = Busy::enter(&self.busy);
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let (mut is_blocked, mut is_contended) = (false, false);
        for index in 0..self.instances.len() {
            let slot = &self.instances[first.wrapping_add(index) % self.instances.len()];
            loop {
                // An instance that another worker is in is left to that worker.
                let Some(mut instance) = slot.enter() else {
                    is_contended = true;
                    break;
                };
                let activation = self.try_activate(context, &mut instance)?;
                self.count_more(&mut instance);
                drop(instance);
                if let Activation::Done(_) = activation {
                    self.is_blocked.store(false, Ordering::Relaxed);
                    if self.input.is_none() && self.giving_since_ns.load(Ordering::Relaxed) == 0 {
                        self.giving_since_ns
                            .store(context.now_ns(), Ordering::Relaxed);
                    }
                    self.counters.add_activation(activation);
                    return Ok(activation);
                }
                if !slot.was_missed() {
                    is_blocked |= activation == Activation::Blocked;
                    break;
                }
            }
        }
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
        let activation = if is_blocked {
            Activation::Blocked
        } else if self.has_ended() {
            Activation::Ended
        } else {
            if !is_contended {
                self.idle_since.store(context.rings + 1, Ordering::Relaxed);
                self.giving_since_ns.store(0, Ordering::Relaxed);
            }
            Activation::Idle
        };
        self.counters.add_activation(activation);
        Ok(activation)
    }

    fn readable(&self, rings: u64) -> usize {
        match &self.input {
            Some(channel) => {
                let more = self.having_more.load(Ordering::Relaxed);
                channel.readable().max(more)
            }
            None if self.has_ended() => 0,
            None if self.idle_since.load(Ordering::Relaxed) == rings + 1 => 0,
            None => self.counters.budget(),
        }
    }

    fn waiting_ns(&self, rings: u64, now_ns: u64) -> f64 {
        let giving_since_ns = self.giving_since_ns.load(Ordering::Relaxed);
        if giving_since_ns > 0 && now_ns.saturating_sub(giving_since_ns) > RICH_NS {
            return RICH_NS as f64;
        }
        let item_ns = match self.counters.item_ns() {
            0.0 => UNKNOWN_ITEM_NS,
            item_ns => item_ns,
        };
        self.readable(rings) as f64 * item_ns
    }

    fn has_free_instance(&self) -> bool {
        !self.is_blocked.load(Ordering::Relaxed)
            && self.busy.load(Ordering::Relaxed) < self.live.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    fn goes_by_time(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|slot| slot.instance.lock().terminal.goes_by_time())
    }

    fn tells_time(&self) -> bool {
        self.tells_time
    }

    fn source_times(&self) -> Option<(Vec<SourceTime>, Duration)> {
        let times = self.watched.times.iter().filter_map(|time| time.read());
        (!self.watched.times.is_empty()).then(|| (times.collect(), self.watched.idle_after))
    }

    fn positions(&self) -> Option<Vec<Position>> {
        let positions = self.watched.positions.iter();
        (!self.watched.positions.is_empty())
            .then(|| positions::all(positions.map(|source| &**source)))
    }

    fn describe(&self) -> String {
        let read = self.input.as_ref().map_or("", |input| &input.name);
        let written: Vec<_> = self
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        let code = any::type_name::<(I, C, T)>();
        format!("{} reads \"{read}\", writes {written:?}: {code}", self.name)
    }

    fn has_ended(&self) -> bool {
        self.live.load(Ordering::Acquire) == 0
    }

    fn begin(&self) {
        if self.instances.is_empty() {
            self.end_outputs();
        }
    }

    fn close(&self) {
        for slot in &self.instances {
            slot.instance.lock().input.close();
        }
    }

    fn hold(&self) -> Result<Box<dyn Held + '_>, Rest> {
        let instances: Vec<_> = self.instances.iter().map_while(Slot::enter).collect();
        let is_whole = instances.len() == self.instances.len();
        let stage = self;
        let held = Box::new(HeldStage { stage, instances });
        match is_whole {
            true => Ok(held),
            false if held.let_go() => Err(Rest::Missed),
            false => Err(Rest::Busy),
        }
    }

    fn save(&self, saved: &mut Saved) -> Result<(), Failure> {
        for (index, slot) in self.instances.iter().enumerate() {
            let mut instance = slot.instance.lock();
            if let Some(bytes) = instance.input.save()? {
                saved.put(self.element(index, "source"), bytes);
                saved.put(self.element(index, "time"), instance.time.save());
            }
        }
        Ok(())
    }

    fn restore(&self, saved: &Saved) -> Result<(), BoxError> {
        let is_source = self.is_source();
        let sources = match is_source {
            true => self.saved_sources(saved)?,
            false => 0,
        };
        for (index, slot) in self.instances.iter().enumerate() {
            let mut instance = slot.instance.lock();
            if is_source {
                let from = index % sources;
                let source = saved.get(&self.element(from, "source"))?;
                instance.input.restore(source)?;
                let time = saved.get(&self.element(from, "time"))?;
                instance.time.restore(time)?;
            }
        }
        Ok(())
    }

    fn outlets(&self) -> Vec<Arc<Outlets>> {
        let first = self.instances.first();
        first.map_or_else(Vec::new, |slot| slot.instance.lock().terminal.outlets())
    }

    fn inlet(&self) -> Option<Arc<Outlets>> {
        self.instances.first()?.instance.lock().input.inlet()
    }

    fn instances(&self) -> usize {
        self.instances.len()
    }

    fn skew_max_ms(&self) -> Option<i64> {
        self.instances.first()?.instance.lock().time.skew_max_ms()
    }

    fn align(&self, places: &mut dyn Iterator<Item = Aligned>) {
        for (slot, place) in self.instances.iter().zip(places) {
            slot.instance.lock().time.align(place);
        }
    }

    fn wants_commits(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|slot| slot.instance.lock().input.wants_commits())
    }

    fn commit(&self) -> Result<(), Failure> {
        let mut instances = self.instances.iter();
        instances.try_for_each(|slot| slot.instance.lock().input.commit())
    }

    fn input(&self) -> Option<&Arc<ChannelState>> {
        self.input.as_ref()
    }

    fn outputs(&self) -> &[Arc<ChannelState>] {
        &self.outputs
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
