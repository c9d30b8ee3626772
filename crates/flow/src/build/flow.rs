//! Building a flow: the typed API.

use std::sync::Arc;
use std::task::Waker;

use crate::checkpoint::participants::DeadLetterParticipant;
use crate::error::FlowError;
use crate::graph::Graph;
use crate::run::begin;
use crate::run::doorbell::Doorbell;
use crate::run::running::Running;
use crate::settings::FlowSettings;
use crate::time::control_event::WriterId;

/// A dataflow graph that is being built; [`run`](Flow::run) starts it.
pub struct Flow {
    pub(crate) graph: Graph,
    pub(crate) settings: FlowSettings,
    /// Stages that were begun and have no end yet.
    pub(crate) open: Vec<String>,
    /// Joins of two streams that have no second one yet.
    pub(crate) one_sided: Vec<String>,
    /// Errors that the builder found, the first one first.
    pub(crate) faults: Vec<FlowError>,
    /// The next free id of a writer of control events.
    pub(crate) writers: WriterId,
    /// For how long after the ends of windows, of those that there are so far, their results may come again.
    pub(crate) updates_for_ms: i64,
}

impl Flow {
    /// An empty flow.
    pub fn new(name: &str) -> Self {
        Flow::with_settings(name, FlowSettings::default())
    }

    /// An empty flow with other than the default settings.
    pub fn with_settings(name: &str, settings: FlowSettings) -> Self {
        let doorbell = Doorbell::new(Arc::clone(&settings.clock));
        Flow {
            graph: Graph::new(name, doorbell),
            settings,
            open: Vec::new(),
            one_sided: Vec::new(),
            faults: Vec::new(),
            writers: 0,
            updates_for_ms: 0,
        }
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// When the graph is not whole, or there are no threads to run it.
    pub fn run(self) -> Result<Running, FlowError> {
        let ranks = self.settings.ranks.clone();
        self.start().inspect_err(|error| {
            // The others wait for this one.
            if ranks.count() > 1 {
                ranks.fail(&error.to_string());
            }
        })
    }

    fn start(mut self) -> Result<Running, FlowError> {
        if let Some(letters) = &self.settings.dead_letters {
            self.graph
                .sinks
                .push(Arc::new(DeadLetterParticipant::new(letters)));
        }
        self.check()?;
        let purpose = begin::begin(&self.graph, &self.settings)?;
        Running::start(self.graph, self.settings, purpose)
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.graph.doorbell))
    }
}
