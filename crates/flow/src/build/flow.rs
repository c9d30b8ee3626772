//! Building a flow: the typed API.

use std::mem;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

use crate::build::plan::Plan;
use crate::checkpoint::participants::DeadLetterParticipant;
use crate::error::FlowError;
use crate::ranks::asking::Lines;
use crate::run::begin;
use crate::run::running::Running;
use crate::run::settings::FlowSettings;

/// A dataflow graph that is being built; [`run`](Flow::run) starts it. A clone is another handle of the same graph.
#[derive(Clone)]
pub struct Flow {
    pub(crate) settings: Arc<FlowSettings>,
    plan: Arc<Mutex<Plan>>,
}

impl Flow {
    /// An empty flow.
    pub fn new(name: &str) -> Self {
        Flow::with_settings(name, FlowSettings::default())
    }

    /// An empty flow with other than the default settings.
    pub fn with_settings(name: &str, settings: FlowSettings) -> Self {
        let plan = Plan::new(name, &settings);
        Flow {
            settings: Arc::new(settings),
            plan: Arc::new(Mutex::new(plan)),
        }
    }

    /// Returns the flow's name.
    pub fn name(&self) -> String {
        self.plan().graph.name.clone()
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// When the graph is not whole, another handle has run it already, or there are no threads to run it.
    pub fn run(self) -> Result<Running, FlowError> {
        let ranks = &self.settings.ranks;
        self.start().inspect_err(|error| {
            // The others wait for this one.
            if ranks.count() > 1 {
                ranks.fail(&error.to_string());
            }
        })
    }

    fn start(&self) -> Result<Running, FlowError> {
        let mut plan = self.take();
        if let Some(letters) = &self.settings.dead_letters {
            let letters = DeadLetterParticipant::new(letters);
            plan.graph.sinks.push(Arc::new(letters));
        }
        plan.check(self.settings.order)?;
        let has_readers = self.settings.ranks.count() > 1 && !plan.graph.states.is_empty();
        // Before the ranks agree: a rank that begins sooner may ask at once.
        let lines = has_readers.then(|| Lines::new(&self.settings.ranks));
        let purpose = begin::begin(&plan.graph, &self.settings)?;
        let settings = FlowSettings::clone(&self.settings);
        Running::start(plan.graph, settings, purpose, lines)
    }

    /// Takes the plan out, and leaves one that cannot run: its operators would wake the workers of no flow.
    pub(crate) fn take(&self) -> Plan {
        let flow = self.name();
        let mut rest = Plan::new(&flow, &self.settings);
        rest.faults.push(FlowError::HasRun { flow });
        mem::replace(&mut *self.plan(), rest)
    }

    /// Locks the plan until the end of the statement. User code never runs under this lock.
    pub(crate) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.plan().graph.doorbell))
    }
}
