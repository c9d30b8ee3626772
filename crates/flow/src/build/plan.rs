//! The graph that the builder fills, and the conditions that it must meet before it can run.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use hashbrown::HashSet;

use crate::checkpoint::trail::Trail;
use crate::doorbell::Doorbell;
use crate::error::FlowError;
use crate::graph::Graph;
use crate::ranks::references::References;
use crate::run::settings::{FlowSettings, Order};
use crate::stage::channel::ChannelState;
use crate::stage::contract::Stage;
use crate::time::control_event::WriterId;
use crate::topology::upstream::before;

/// A graph under construction.
pub struct Plan {
    pub graph: Graph,
    /// Stages that were begun and have no end yet.
    pub open: Vec<String>,
    /// Joins of two streams that have no second one yet.
    pub one_sided: Vec<String>,
    /// By the names of branches that have ended: the channels that they write.
    pub branch_outputs: HashMap<String, Vec<Arc<ChannelState>>>,
    /// By the names of stages: closures that end the operators before each box, the last box last.
    pub boxed: HashMap<String, Vec<Box<dyn Any + Send>>>,
    /// The values that items on other ranks may refer to; `None` if there cannot be any.
    pub references: Option<Arc<References>>,
    /// Errors that the builder found, the first one first.
    pub faults: Vec<FlowError>,
    /// The next free id of a writer of control events.
    pub writers: WriterId,
    /// The longest time for which windows so far may emit their results again after their ends.
    pub updates_for_ms: i64,
}

impl Plan {
    /// A plan without elements.
    pub fn new(name: &str, settings: &FlowSettings) -> Plan {
        let doorbell = Doorbell::new(Arc::clone(&settings.clock));
        Plan {
            graph: Graph::new(name, doorbell, Trail::new(&settings.clock)),
            open: Vec::new(),
            one_sided: Vec::new(),
            branch_outputs: HashMap::new(),
            boxed: HashMap::new(),
            references: None,
            faults: Vec::new(),
            writers: 0,
            updates_for_ms: 0,
        }
    }

    /// Checks that the graph is whole.
    ///
    /// # Errors
    /// When it is not: the error names the operator.
    pub fn check(&self, order: Order) -> Result<(), FlowError> {
        if let Some(fault) = self.faults.first() {
            return Err(fault.clone());
        }
        if let Some(operator) = self.open.first() {
            return Err(FlowError::Unconnected {
                flow: self.graph.name.clone(),
                operator: operator.clone(),
            });
        }
        if self.graph.stages.is_empty() {
            return Err(FlowError::Empty {
                flow: self.graph.name.clone(),
            });
        }
        if let Some(name) = self.duplicate_name() {
            return Err(FlowError::DuplicateName {
                flow: self.graph.name.clone(),
                name,
            });
        }
        if let Some(join) = self.one_sided.first() {
            let (flow, join) = (self.graph.name.clone(), join.clone());
            return Err(FlowError::OneSided { flow, join });
        }
        self.check_channels()?;
        self.check_time(order)
    }

    fn duplicate_name(&self) -> Option<String> {
        let mut seen = HashSet::new();
        let stages = self
            .graph
            .stages
            .iter()
            .map(|stage| ("stage", stage.name()));
        let states = self
            .graph
            .states
            .iter()
            .map(|(name, _)| ("state", name.as_str()));
        let sinks = self.graph.sinks.iter().map(|sink| ("sink", sink.name()));
        let (_, name) = stages
            .chain(states)
            .chain(sinks)
            .find(|element| !seen.insert(*element))?;
        Some(name.to_owned())
    }

    fn check_channels(&self) -> Result<(), FlowError> {
        for channel in &self.graph.channels {
            let reads = |stage: &&Arc<dyn Stage>| {
                stage
                    .input()
                    .is_some_and(|input| Arc::ptr_eq(input, channel))
            };
            let readers = self.graph.stages.iter().filter(reads).count();
            let writers = channel.writers();
            if writers == 0 || readers != 1 {
                return Err(FlowError::Channel {
                    flow: self.graph.name.clone(),
                    channel: channel.name.clone(),
                    writers,
                    readers,
                });
            }
        }
        Ok(())
    }

    /// Checks that windows get watermarks: all sources that lead there emit them, and items do not overtake
    /// watermarks.
    fn check_time(&self, order: Order) -> Result<(), FlowError> {
        for stage in self
            .graph
            .stages
            .iter()
            .filter(|stage| stage.closes_by_time())
        {
            if order == Order::Free {
                return Err(FlowError::TimeWithoutOrder {
                    flow: self.graph.name.clone(),
                    operator: stage.name().to_owned(),
                });
            }
            let (timed, silent): (Vec<_>, Vec<_>) = before(&self.graph.stages, stage)
                .into_iter()
                .filter(|before| before.input().is_none() && before.inlet().is_none())
                .partition(|source| source.emits_watermarks());
            // A source without watermarks would hold back those of the others for ever.
            let are_needed = stage.needs_watermarks() || !timed.is_empty();
            if let Some(source) = silent.first().filter(|_| are_needed) {
                return Err(FlowError::NoWatermarks {
                    flow: self.graph.name.clone(),
                    operator: stage.name().to_owned(),
                    source_stage: source.name().to_owned(),
                });
            }
        }
        Ok(())
    }
}
