//! The unit that workers activate: an input, a chain of fused operators, and where its results go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::chain::Chain;
use crate::error::Failure;
use crate::input::{Input, Read};
use crate::metrics::Counters;
use crate::terminal::{InputEnd, Slice, Terminal};

/// What an activation achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// It processed so many items.
    Done(usize),
    /// There is no room downstream.
    Blocked,
    /// There is nothing to read.
    Idle,
    /// There will never be anything to read again.
    Ended,
}

pub trait Stage: Send + Sync {
    fn name(&self) -> &str;

    /// Processes up to about `budget` items. Never waits. Several workers may do so at once.
    fn activate(&self, budget: usize) -> Result<Activation, Failure>;

    fn counters(&self) -> &Counters;
}

/// A stage has several instances, so that several workers can be in it at once; each instance has
/// one worker at a time.
pub struct FusedStage<I, C, T> {
    name: String,
    chain: C,
    instances: Vec<Mutex<Instance<I, T>>>,
    /// Where the next activation begins to look for an instance that is free.
    turn: AtomicUsize,
    /// Instances that have not ended. Each is counted down once, by the worker that ends it.
    live: AtomicUsize,
    stopping: Arc<AtomicBool>,
    counters: Counters,
}

struct Instance<I, T> {
    input: I,
    terminal: T,
    ended: bool,
}

impl<I, C, T> FusedStage<I, C, T> {
    pub fn new(
        name: String,
        chain: C,
        instances: impl IntoIterator<Item = (I, T)>,
        stopping: Arc<AtomicBool>,
    ) -> Self {
        let instances: Vec<_> = instances
            .into_iter()
            .map(|(input, terminal)| {
                Mutex::new(Instance {
                    input,
                    terminal,
                    ended: false,
                })
            })
            .collect();
        FusedStage {
            name,
            chain,
            live: AtomicUsize::new(instances.len()),
            instances,
            turn: AtomicUsize::new(0),
            stopping,
            counters: Counters::default(),
        }
    }
}

impl<I, C, T> FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    fn activate_instance(
        &self,
        instance: &mut Instance<I, T>,
        budget: usize,
    ) -> Result<Activation, Failure> {
        if instance.ended {
            return Ok(Activation::Ended);
        }
        if !instance.terminal.drain()? {
            return Ok(Activation::Blocked);
        }
        let Instance {
            input, terminal, ..
        } = instance;
        let read = input.read(budget, |parts| {
            let mut slice = terminal.begin();
            for item in parts.into_iter().flatten() {
                self.chain.process(item, &mut |result| slice.take(result));
            }
            slice.commit()
        })?;
        self.counters.add_out(terminal.take_count());
        match read {
            Read::Items(count) => {
                self.counters.add_in(count);
                Ok(Activation::Done(count))
            }
            Read::Idle => {
                terminal.pause()?;
                Ok(Activation::Idle)
            }
            Read::End => {
                let end = match self.stopping.load(Ordering::Relaxed) {
                    true => InputEnd::Stopped,
                    false => InputEnd::Complete,
                };
                let is_finished = terminal.finish(end)?;
                self.counters.add_out(terminal.take_count());
                if !is_finished {
                    return Ok(Activation::Blocked);
                }
                instance.ended = true;
                if self.live.fetch_sub(1, Ordering::AcqRel) == 1 {
                    instance.terminal.close();
                }
                Ok(Activation::Ended)
            }
        }
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

    fn activate(&self, budget: usize) -> Result<Activation, Failure> {
        if self.live.load(Ordering::Acquire) == 0 {
            return Ok(Activation::Ended);
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut is_blocked = false;
        for index in 0..self.instances.len() {
            // An instance that another worker is in is left to that worker.
            let index = first.wrapping_add(index) % self.instances.len();
            let Some(mut instance) = self.instances[index].try_lock() else {
                continue;
            };
            match self.activate_instance(&mut instance, budget)? {
                Activation::Done(count) => {
                    self.counters.add_activation(Activation::Done(count));
                    return Ok(Activation::Done(count));
                }
                Activation::Blocked => is_blocked = true,
                Activation::Idle | Activation::Ended => {}
            }
        }
        let activation = if is_blocked {
            Activation::Blocked
        } else if self.live.load(Ordering::Acquire) == 0 {
            Activation::Ended
        } else {
            Activation::Idle
        };
        self.counters.add_activation(activation);
        Ok(activation)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
