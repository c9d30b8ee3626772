//! One activation of an instance: claim items, process them, commit the results, drop the items.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::Failure;
use crate::sinks::dead_letter::DEAD_LETTERS;
use crate::stage::activation::{Activation, Context};
use crate::stage::chain::Chain;
use crate::stage::fused::claim::Claim;
use crate::stage::fused::instance::Instance;
use crate::stage::fused::stage::FusedStage;
use crate::stage::held_letters::HeldLetters;
use crate::stage::input::{Input, Took};
use crate::stage::item_loop::{BatchProgress, ItemLoop};
use crate::stage::rejected::Rejected;
use crate::stage::terminal::{InputEnd, Terminal};
use crate::stage::user_code::Label;

/// A source is asked again within an activation until the activation has lasted this long. Asking for little at a
/// time keeps items in a core's first cache from the source to the window, and an activation costs as much for many
/// items as for few.
const ASKING_NS: u64 = 20_000;

impl<I, C, T> FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    pub(super) fn activate_instance(
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
                    instance.progress = BatchProgress::default();
                    instance.counted = 0;
                    instance.dropped = 0;
                }
                Claim::Emit(event) => {
                    let results = instance
                        .terminal
                        .commit(instance.input.stamp(), Some(event))?;
                    self.counters.add_out(results);
                    return Ok(Activation::Done(0));
                }
                Claim::Blocked => return Ok(Activation::Blocked),
                Claim::Passed => return Ok(Activation::Done(0)),
                Claim::Idle => {
                    self.store_letters(context, &mut instance.held_letters)?;
                    let is_passed_on = instance.terminal.pause()?;
                    self.counters.add_out(instance.terminal.take_sent());
                    return Ok(match is_passed_on {
                        true => Activation::Idle,
                        false => Activation::Blocked,
                    });
                }
                Claim::End => return self.end(context, instance),
            }
        }
        if instance.is_waiting {
            if !instance.terminal.can_go_on() {
                return Ok(Activation::Idle);
            }
            let rest = instance.in_hand() - instance.progress.items;
            if instance.terminal.reserve(self.expected(rest))?.is_none() {
                return Ok(Activation::Blocked);
            }
            instance.is_waiting = false;
        }
        instance.time.begin(|| context.clock.now());
        let event = loop {
            self.work(context, instance)?;
            if instance.progress.items < instance.in_hand() {
                return self.wait(context, instance, started_ns);
            }
            let event_behind = instance.event_behind.take();
            let asked_at = self.asked_at(instance);
            let now = || asked_at.unwrap_or_else(|| context.clock.monotonic());
            let event = instance.time.after_items(event_behind, now);
            if event.is_some() || !self.takes_again(context, instance, started_ns)? {
                break event;
            }
        };
        let items = instance.dropped + instance.progress.items - instance.counted;
        let results = instance.terminal.commit(instance.input.stamp(), event)?;
        instance.is_working = false;
        let now_ns = context.now_ns();
        self.drop_items(instance, || now_ns);
        self.counters.add_slice(items, results, now_ns - started_ns);
        if let Some(channel) = &self.input {
            channel.set_reader_ns(self.counters.item_ns() as u64);
        }
        if instance.held_letters.is_due(now_ns) {
            self.store_letters(context, &mut instance.held_letters)?;
        }
        Ok(Activation::Done(items))
    }

    /// Passes on the results of the items before the one at which the terminal has stopped.
    #[cold]
    fn wait(
        &self,
        context: &Context<'_>,
        instance: &mut Instance<I, T>,
        started_ns: u64,
    ) -> Result<Activation, Failure> {
        let results = instance.terminal.commit(instance.input.stamp(), None)?;
        instance.is_waiting = true;
        let items = instance.progress.items - instance.counted;
        instance.counted = instance.progress.items;
        let spent_ns = context.now_ns() - started_ns;
        self.counters.add_slice(items, results, spent_ns);
        Ok(match items {
            0 => Activation::Idle,
            items => Activation::Done(items),
        })
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
        // Records end here: in a sink, in a state, or in a window, whose results are records of its own.
        if self.outputs.is_empty() || terminal.closes_by_time() {
            input.sample(|stamp, records| {
                let latency_ns = now_ns().saturating_sub(stamp);
                let mut latency = self.counters.latency().lock();
                latency.saturating_record_n(latency_ns, records);
            });
        }
        input.done();
    }

    /// Asks a source for more once the items in hand are finished, if their results need no room before they are
    /// committed and no control event is due behind them; `false` if the activation must end.
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
        instance.progress = BatchProgress::default();
        let took = instance.input.take(self.budget(context).min(readable))?;
        // A source that had something to do but nothing to give has not set the stamp.
        let [items, _] = instance.input.parts();
        Ok(took == Took::Items && !items.is_empty())
    }

    /// Processes the items in hand.
    fn work(&self, context: &Context<'_>, instance: &mut Instance<I, T>) -> Result<(), Failure> {
        let Instance {
            input,
            terminal,
            progress,
            time,
            held_letters,
            ..
        } = instance;
        let item_loop = ItemLoop {
            name: &self.name,
            chain: &self.chain,
            terminal,
            time,
            progress,
        };
        item_loop.run(
            input.parts(),
            |item| {
                if let Some(partition) = input.partition_of(item) {
                    time.enter_partition(partition, || context.clock.monotonic());
                }
                item
            },
            || context.die_if_condemned(),
            |rejected| self.keep(context, held_letters, rejected),
        )
    }

    /// Makes dead letters of rejected items. Letters of late items only are held until there are many.
    #[cold]
    fn keep(
        &self,
        context: &Context<'_>,
        held: &mut HeldLetters,
        rejected: Vec<Rejected>,
    ) -> Result<(), Failure> {
        self.counters.add_dead_letters(rejected.len());
        if context.dead_letters.is_none() {
            let first = rejected.into_iter().next();
            return first.map_or(Ok(()), |rejected| Err(rejected.into_failure()));
        }
        held.add(&rejected, context.now_ns());
        match held.is_full() || rejected.iter().any(|it| !it.is_late) {
            true => self.store_letters(context, held),
            false => Ok(()),
        }
    }

    fn store_letters(&self, context: &Context<'_>, held: &mut HeldLetters) -> Result<(), Failure> {
        let Some(dead_letters) = context.dead_letters.filter(|_| !held.is_empty()) else {
            return Ok(());
        };
        let letters = held.take();
        let label = Label(DEAD_LETTERS.into());
        let kept = label.run(|| dead_letters.put(&letters));
        kept.map_err(|error| Failure::Error {
            operator: label.0,
            error,
        })
    }

    fn end(
        &self,
        context: &Context<'_>,
        instance: &mut Instance<I, T>,
    ) -> Result<Activation, Failure> {
        self.store_letters(context, &mut instance.held_letters)?;
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
