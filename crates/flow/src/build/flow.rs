//! Building a flow: the typed API.

use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::build::plan::Plan;
use crate::checkpoint::participants::DeadLetterParticipant;
use crate::error::FlowError;
use crate::ranks::asking::Lines;
use crate::ranks::references::References;
use crate::run::begin;
use crate::run::running::Running;
use crate::run::settings::FlowSettings;
use crate::state::value_encoding::Encoding;

/// A dataflow graph that is being built; [`run`](Flow::run) starts it. A clone is another handle of the same graph.
#[derive(Clone)]
pub struct Flow {
    pub(crate) settings: Arc<FlowSettings>,
    plan: Arc<Mutex<Plan>>,
    /// Of the state elements that are added by this handle; `None` for ever.
    pub(super) lifetime: Option<Duration>,
    /// Of the same: the format of their values in a changelog.
    pub(super) encoding: Encoding,
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
            lifetime: None,
            encoding: Encoding::Json,
        }
    }

    /// Returns the flow's name.
    pub fn name(&self) -> String {
        self.plan().graph.name.clone()
    }

    /// Returns another handle of the flow, which adds state elements with a lifetime: an entry that was not changed for this time
    /// is absent, as if it had been removed. Functions, readers and checkpoints do not see it, and it leaves memory and the
    /// changelog. In Flink it is the time-to-live of state.
    ///
    /// Each entry of [`maps`](Self::maps), [`ordered_maps`](Self::ordered_maps), [`sets`](Self::sets) and
    /// [`matrices`](Self::matrices) has a time of its own; of the other elements each key. It begins anew with each change: a
    /// call of an [`update`](crate::Keyed::update) of [`values`](Self::values), [`counters`](Self::counters),
    /// [`vectors`](Self::vectors) and [`tops`](Self::tops) is one, whatever it does, and so is each call of `get_mut` and the
    /// like for an entry. Reads are none. While a function is called, time stands still.
    ///
    /// Time is the wall clock of [`FlowSettings::clock`](crate::FlowSettings::clock), in milliseconds, and passes while the
    /// flow is stopped. Where the clock goes back, the element's time stands still until the clock has caught up. A changed
    /// lifetime counts from the last changes of entries that have not ended by then. An element that had no lifetime in a
    /// checkpoint cannot be resumed with one, nor the other way round.
    ///
    /// [`lists`](Self::lists), windows and partial elements cannot have a lifetime, nor can one be zero:
    /// [`run`](Self::run) fails then.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("logins");
    /// let visits = flow.lifetime(Duration::from_secs(3600)).values::<u64, u64>("visits");
    /// flow.source("users", Generator::new(|number| number % 3).limit(9))
    ///     .key_by(|user| *user)
    ///     .count("count", &visits);
    /// flow.run()?.join()?;
    /// // For an hour.
    /// assert_eq!(visits.get(&2), Some(3));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn lifetime(&self, lifetime: Duration) -> Flow {
        Flow {
            lifetime: Some(lifetime),
            ..self.clone()
        }
    }

    /// Returns another handle of the flow, which adds state elements that operators keep for themselves.
    pub(super) fn of_operator(&self) -> Flow {
        Flow {
            encoding: Encoding::Postcard,
            ..self.clone()
        }
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

    /// Returns the values that items on other ranks may refer to, which exchanges that are added from now on know; `None` if
    /// there is no other rank.
    pub(crate) fn references(&self) -> Option<Arc<References>> {
        let FlowSettings { ranks, clock, .. } = &*self.settings;
        if ranks.count() == 1 {
            return None;
        }
        let mut plan = self.plan();
        let references = plan
            .references
            .get_or_insert_with(|| References::new(ranks, clock));
        Some(Arc::clone(references))
    }

    /// Takes the plan out, and leaves one that cannot run: its operators would wake the workers of no flow.
    pub(crate) fn take(&self) -> Plan {
        let flow = self.name();
        let mut rest = Plan::new(&flow, &self.settings);
        rest.faults.push(FlowError::HasRun { flow });
        mem::replace(&mut *self.plan(), rest)
    }

    /// Whether it is another handle of the same graph.
    pub(super) fn is_same(&self, other: &Flow) -> bool {
        Arc::ptr_eq(&self.plan, &other.plan)
    }

    /// Locks the plan until the end of the statement. User code never runs under this lock.
    pub(crate) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.plan().graph.doorbell))
    }
}
