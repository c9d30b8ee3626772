//! The workers of a running flow.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millstream_base::Clock;
use parking_lot::Mutex;
use serde::Serialize;

use crate::chain::Label;
use crate::doorbell::Doorbell;
use crate::error::{Failure, FlowError};
use crate::graph::Flow;
use crate::metrics::StageMetrics;
use crate::stage::{Activation, Stage};
use crate::state::StateReader;

/// How many items a stage may process before its worker looks at the next stage.
const BUDGET_ITEMS: usize = 256;

/// A flow at work. Share it in an `Arc`: every method takes `&self`. Dropped, the flow ends where
/// it stands.
pub struct Running {
    shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// What a flow did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The flow.
    pub flow: String,
    /// Whether it was stopped before its input ended.
    pub is_stopped: bool,
    /// From the start to the end of the last worker.
    pub duration: Duration,
    /// Its stages, in the order of the graph.
    pub stages: Vec<StageMetrics>,
}

struct Shared {
    name: String,
    clock: Arc<dyn Clock>,
    doorbell: Arc<Doorbell>,
    stages: Vec<Arc<dyn Stage>>,
    states: Vec<(String, Arc<dyn StateReader>)>,
    /// Sources are not read any more; what they gave is still worked off.
    stopping: Arc<AtomicBool>,
    /// Workers leave at the next chance.
    leaving: AtomicBool,
    /// The first one is what counts.
    error: Mutex<Option<FlowError>>,
    started_at: Duration,
    /// When the last worker left.
    ended_at: Mutex<Option<Duration>>,
    /// Workers that have not left.
    at_work: AtomicUsize,
}

impl Running {
    pub(crate) fn start(flow: Flow) -> Result<Running, FlowError> {
        let workers = flow.settings.workers.get();
        let shared = Arc::new(Shared {
            name: flow.name,
            started_at: flow.settings.clock.monotonic(),
            clock: flow.settings.clock,
            doorbell: flow.doorbell,
            stages: flow.stages,
            states: flow.states,
            stopping: flow.stopping,
            leaving: AtomicBool::new(false),
            error: Mutex::new(None),
            ended_at: Mutex::new(None),
            at_work: AtomicUsize::new(workers),
        });
        let running = Running {
            shared: Arc::clone(&shared),
            workers: Mutex::new(Vec::with_capacity(workers)),
        };
        for index in 0..workers {
            let shared = Arc::clone(&shared);
            let worker = thread::Builder::new()
                .name(format!("{}-{index}", shared.name))
                .spawn(move || {
                    work(&shared, index);
                    shared.leave();
                })
                .map_err(|error| FlowError::Worker {
                    flow: running.shared.name.clone(),
                    error: Arc::new(error),
                })?;
            running.workers.lock().push(worker);
        }
        Ok(running)
    }

    /// The name of the flow.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Reads no more from the sources. What they have given is worked off; windows stay open.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.doorbell.ring_all();
    }

    /// Whether all workers have left: the input has ended, or the flow was stopped or has failed.
    pub fn is_finished(&self) -> bool {
        self.shared.at_work.load(Ordering::Acquire) == 0
    }

    /// Waits for the end of the flow.
    ///
    /// # Errors
    /// Why the flow failed.
    pub fn join(&self) -> Result<Summary, FlowError> {
        for worker in self.workers.lock().drain(..) {
            // A worker catches what its stages throw.
            if let Err(panic) = worker.join() {
                panic::resume_unwind(panic);
            }
        }
        if let Some(error) = &*self.shared.error.lock() {
            return Err(error.clone());
        }
        let ended_at = self.shared.ended_at.lock().unwrap_or_default();
        Ok(Summary {
            flow: self.shared.name.clone(),
            is_stopped: self.shared.stopping.load(Ordering::Relaxed),
            duration: ended_at.saturating_sub(self.shared.started_at),
            stages: self.metrics(),
        })
    }

    /// What each stage has done so far, in the order of the graph.
    pub fn metrics(&self) -> Vec<StageMetrics> {
        let stages = self.shared.stages.iter();
        stages
            .map(|stage| stage.counters().read(stage.name()))
            .collect()
    }

    /// The state element of this name.
    pub fn state(&self, name: &str) -> Option<Arc<dyn StateReader>> {
        let mut states = self.shared.states.iter();
        let (_, state) = states.find(|(state, _)| state == name)?;
        Some(Arc::clone(state))
    }

    /// The names of all state elements.
    pub fn state_names(&self) -> impl Iterator<Item = &str> {
        self.shared.states.iter().map(|(name, _)| name.as_str())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.leaving.store(true, Ordering::Relaxed);
        self.shared.doorbell.ring_all();
        for worker in self.workers.get_mut().drain(..) {
            // A panic of a worker has no one left to hear of it.
            let _ = worker.join();
        }
    }
}

/// Activates the stages in turn until all have ended.
fn work(shared: &Shared, worker: usize) {
    // Workers begin at different stages, to meet less.
    let mut turn = worker;
    loop {
        let rings = shared.doorbell.rings();
        let mut is_busy = false;
        let mut ended = 0;
        for _ in 0..shared.stages.len() {
            if shared.leaving.load(Ordering::Relaxed) {
                return;
            }
            let stage = &shared.stages[turn % shared.stages.len()];
            turn += 1;
            match shared.activate(&**stage) {
                Ok(Activation::Done(_)) => is_busy = true,
                Ok(Activation::Blocked | Activation::Idle) => {}
                Ok(Activation::Ended) => ended += 1,
                Err(error) => return shared.fail(error),
            }
        }
        if ended == shared.stages.len() {
            // Sleeping workers have not seen the end.
            shared.doorbell.ring_all();
            return;
        }
        if !is_busy {
            shared.doorbell.wait(rings);
        }
    }
}

impl Shared {
    fn activate(&self, stage: &dyn Stage) -> Result<Activation, FlowError> {
        // What the panic left half done is not touched again: the flow fails.
        panic::catch_unwind(AssertUnwindSafe(|| stage.activate(BUDGET_ITEMS)))
            .map_err(|panic| FlowError::Panicked {
                flow: self.name.clone(),
                operator: match Label::take_panicked() {
                    Some(operator) => operator.to_string(),
                    None => stage.name().to_owned(),
                },
                message: panic_message(&*panic),
            })?
            .map_err(|Failure { operator, error }| FlowError::Operator {
                flow: self.name.clone(),
                operator: operator.to_string(),
                error: error.into(),
            })
    }

    fn fail(&self, error: FlowError) {
        self.error.lock().get_or_insert(error);
        self.leaving.store(true, Ordering::Relaxed);
        self.doorbell.ring_all();
    }

    fn leave(&self) {
        *self.ended_at.lock() = Some(self.clock.monotonic());
        self.at_work.fetch_sub(1, Ordering::AcqRel);
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    if let Some(message) = panic.downcast_ref::<&str>() {
        (*message).to_owned()
    } else if let Some(message) = panic.downcast_ref::<String>() {
        message.clone()
    } else {
        "(no message)".to_owned()
    }
}
