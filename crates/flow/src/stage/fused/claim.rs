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

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::slice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use millstream_base::{SystemClock, Timestamp};
    use millstream_ring::{Ring, RingConfig};

    use super::*;
    use crate::stage::activation::Activation;
    use crate::stage::chain::Same;
    use crate::stage::channel::{AnyRing, Channel, ChannelState};
    use crate::stage::contract::Activate;
    use crate::stage::ends::outbox::Outbox;
    use crate::stage::ends::to_rings::{ToOne, ToRings};
    use crate::stage::fused::compile::compile;
    use crate::stage::metrics::SLICE_NS;
    use crate::stage::ring_input::RingInput;
    use crate::stage::row::Row;
    use crate::stage::terminal::WritingInstance;
    use crate::time::control_event::WriterId;

    const WRITER: WriterId = 1;

    type Copying = FusedStage<RingInput<u64>, Same, ToRings<u64, ToOne>>;

    fn channel(name: &str) -> Channel<u64> {
        let ring = Ring::new(RingConfig {
            capacity_min: NonZeroUsize::new(64).expect("not zero"),
            capacity_max: NonZeroUsize::new(64).expect("not zero"),
            lanes: NonZeroUsize::MIN,
        });
        let rings: Vec<Arc<dyn AnyRing>> = vec![Arc::new(Arc::clone(&ring))];
        let state = ChannelState::new(name, rings);
        state.add_writer(&[WRITER]);
        state.want_events();
        Channel { ring, state }
    }

    fn outbox(input: Option<&Arc<ChannelState>>, to: &Channel<u64>) -> Outbox<u64> {
        let writer = WRITER;
        Outbox::of_channels(WritingInstance { input, writer }, slice::from_ref(to))
    }

    /// A stage that copies items, in a flow that was stopped.
    fn copying(from: &Channel<u64>, to: &Channel<u64>, instances: usize) -> Copying {
        let instance = || {
            let outbox = outbox(Some(&from.state), to);
            let partitioner = ToOne;
            let terminal = ToRings {
                outbox,
                partitioner,
            };
            (RingInput::new(&from.ring, &from.state, 0), terminal)
        };
        let row = Row {
            name: "copying".to_owned(),
            channel: Some(Arc::clone(&from.state)),
            chain: Same,
            instances: (0..instances).map(|_| instance()).collect(),
            keeps_order: true,
            watermarks: None,
            emits_watermarks: false,
            outputs: vec![Arc::clone(&to.state)],
        };
        compile(row, &Arc::new(AtomicBool::new(true)))
    }

    fn activate(stage: &Copying) -> Option<Activation> {
        let context = Context {
            clock: &SystemClock::default(),
            items: None,
            slice_ns: SLICE_NS,
            rings: 0,
            condemned: &AtomicUsize::new(0),
            dead_letters: None,
        };
        stage.activate(&context).ok()
    }

    /// An instance that came behind the close of its input left the last watermark unread.
    #[test]
    fn a_stage_emits_the_event_behind_its_last_items_before_it_ends() {
        for instances in [1, 2] {
            let (from, to) = (channel("from"), channel("to"));
            let mut writer = outbox(None, &from);
            let stage = copying(&from, &to, instances);
            writer.reserve(1).expect("the ring is empty");
            writer.put(0, 5);
            writer.commit(0, None);
            assert_eq!(activate(&stage), Some(Activation::Done(1)));
            writer.reserve(1).expect("there is room");
            let event = ControlEvent::Watermark(Timestamp(7));
            writer.commit(0, Some(event));
            from.state.close();
            // Once to emit the event, and once to end each instance.
            for _ in 0..=instances {
                assert!(!stage.has_ended());
                assert_eq!(activate(&stage), Some(Activation::Done(0)));
            }
            assert!(stage.has_ended());
            let copy = to.ring.try_read(8).expect("an item");
            assert_eq!(to.state.events[0].observe(copy.end()), Some(event));
        }
    }

    #[test]
    fn instances_of_a_finished_input_without_a_new_event_end_at_once() {
        let (from, to) = (channel("from"), channel("to"));
        let stage = copying(&from, &to, 2);
        from.state.close();
        for _ in 0..2 {
            assert!(!stage.has_ended());
            assert_eq!(activate(&stage), Some(Activation::Done(0)));
        }
        assert!(stage.has_ended());
        assert!(!to.state.events[0].has_due(to.ring.read_to()));
    }
}
