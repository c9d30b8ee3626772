//! A fused stage as workers see it: a worker enters the next free instance.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Failure;
use crate::stage::activation::{Activation, Context, Killed};
use crate::stage::chain::Chain;
use crate::stage::channel::ChannelState;
use crate::stage::contract::Activate;
use crate::stage::fused::instance::Instance;
use crate::stage::fused::stage::FusedStage;
use crate::stage::input::Input;
use crate::stage::metrics::{Counters, SLICE_NS};
use crate::stage::terminal::Terminal;

/// A source that has given items without a break for this long has more, enough for another worker.
const RICH_NS: u64 = 400_000;

/// The assumed time per item of a stage that has not worked yet.
const UNKNOWN_ITEM_NS: f64 = 1_000.0;

impl<I, C, T> Activate for FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    fn begin(&self) {
        if self.instances.is_empty() {
            self.end_outputs();
        }
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
            None => self.counters.budget(SLICE_NS),
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

    fn could_work(&self) -> bool {
        // Room in a cycle depends on the item.
        let has_room = |output: &Arc<ChannelState>| !output.is_full() && !output.is_in_cycle();
        self.outputs.iter().all(has_room)
            && self.instances.iter().any(|slot| {
                slot.instance.try_lock().is_some_and(|instance| {
                    let is_stopped = instance.ended || instance.is_broken;
                    !is_stopped && !instance.terminal.waits_outside() && self.has_input(&instance)
                })
            })
    }

    fn has_ended(&self) -> bool {
        self.live.load(Ordering::Acquire) == 0
    }

    fn close(&self) {
        for slot in &self.instances {
            slot.instance.lock().input.close();
        }
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl<I, C, T> FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    /// Activates an instance; no other worker enters one that has failed.
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
        let activation = activation.unwrap_or_else(|panic| panic::resume_unwind(panic))?;
        // Other stages may have something to do behind results of former slices, though no item was taken.
        Ok(match instance.terminal.take_progress() {
            true if !matches!(activation, Activation::Done(_)) => Activation::Done(0),
            _ => activation,
        })
    }

    /// Whether the instance, which no worker is in, has input; a source has some if it was found blocked.
    fn has_input(&self, instance: &Instance<I, T>) -> bool {
        let Instance {
            input, terminal, ..
        } = instance;
        if instance.is_working || terminal.has_more() {
            return true;
        }
        match &self.input {
            Some(_) => {
                let is_over = input.is_finished() && terminal.is_at_rest();
                input.readable() > 0 || input.has_due_event() || is_over
            }
            None => {
                let is_blocked = self.is_blocked.load(Ordering::Relaxed);
                is_blocked && input.readable() > 0 && !instance.time.is_held()
            }
        }
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
