//! Claims of items: a batch in hand, with room for its results.

use parking_lot::Mutex;

use crate::error::Failure;
use crate::stage::activation::Context;
use crate::stage::chain::Chain;
use crate::stage::fused::instance::Instance;
use crate::stage::fused::stage::FusedStage;
use crate::stage::input::{Input, Took};
use crate::stage::terminal::Terminal;
use crate::time::control_event::ControlEvent;

/// The outcome of a claim.
pub(super) enum Claim {
    Work,
    /// There are no items, but a control event to emit.
    Emit(ControlEvent),
    Blocked,
    /// There are no items, but other stages may go on now, or this one.
    Passed,
    Idle,
    End,
}

impl<I, C, T> FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    /// Gets items in hand, and room for their results.
    pub(super) fn claim(
        &self,
        context: &Context<'_>,
        instance: &mut Instance<I, T>,
    ) -> Result<Claim, Failure> {
        let Instance {
            input,
            terminal,
            time,
            event_behind,
            ..
        } = instance;
        let _order = self.order.as_ref().map(Mutex::lock);
        let readable = input.readable();
        if readable == 0 {
            // Looked at before the events: a finished input gets no more of them.
            let without_event = match input.is_finished() {
                true => Claim::End,
                false => Claim::Idle,
            };
            if !input.has_due_event() {
                return Ok(without_event);
            }
            if terminal.reserve(1)?.is_none() {
                return Ok(Claim::Blocked);
            }
            let event = input.observe_event();
            time.observe(event);
            if event.is_none() {
                terminal.cancel();
            }
            return Ok(event.map_or(without_event, Claim::Emit));
        }
        if time.is_held() {
            return Ok(Claim::Idle);
        }
        let items = self.budget(context).min(readable);
        let expected = self.expected(items);
        let Some(room) = terminal.reserve(expected)? else {
            return Ok(Claim::Blocked);
        };
        let items = match room < expected {
            true => ((room as f64 / self.counters.selectivity()) as usize).clamp(1, items),
            false => items,
        };
        // The event before the items, whichever instance they belong to.
        let before = input.observe_event();
        let mut items = items;
        if terminal.takes_events_in_turn() {
            if let Some(event) = before {
                time.observe(before);
                return Ok(Claim::Emit(event));
            }
            items = items.min(input.items_before_event());
        }
        time.reach(input.time());
        time.align_partitions(|| context.clock.monotonic());
        let took = input.take(items)?;
        if let Took::Items = took {
            *event_behind = input.observe_event().or(before);
            return Ok(Claim::Work);
        }
        if let Some(event) = before {
            return Ok(Claim::Emit(event));
        }
        if let Took::Idle = took {
            let now = context.clock.monotonic();
            let emit_at = time.silent(now);
            if let Some(event) = time.emit_idle(now) {
                return Ok(Claim::Emit(event));
            }
            if let Some(emit_at) = emit_at {
                input.wake_at(emit_at);
            }
        }
        terminal.cancel();
        Ok(match took {
            Took::End => Claim::End,
            Took::Passed => Claim::Passed,
            _ => Claim::Idle,
        })
    }

    /// Returns the number of results for which `items` items need room, and for an event.
    pub(super) fn expected(&self, items: usize) -> usize {
        (items as f64 * self.counters.selectivity()).ceil() as usize + 1
    }

    /// Returns the number of items that an activation may take.
    pub(super) fn budget(&self, context: &Context<'_>) -> usize {
        let wanted = context.items.map(|items| items.max(1));
        wanted.unwrap_or_else(|| self.counters.budget(context.slice_ns))
    }

    /// Whether it reads a source, not the items of other stages or ranks.
    pub(super) fn is_source(&self) -> bool {
        self.input.is_none() && !I::IS_REMOTE
    }
}
