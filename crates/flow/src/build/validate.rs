//! The conditions that a whole graph must meet before it can run.

use std::sync::Arc;

use hashbrown::HashSet;

use crate::build::flow::Flow;
use crate::error::FlowError;
use crate::settings::Order;
use crate::stage::contract::Stage;
use crate::stage::upstream::before;

impl Flow {
    pub(crate) fn check(&self) -> Result<(), FlowError> {
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
        self.check_time()
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
    fn check_time(&self) -> Result<(), FlowError> {
        for stage in self
            .graph
            .stages
            .iter()
            .filter(|stage| stage.closes_by_time())
        {
            if self.settings.order == Order::Free {
                return Err(FlowError::TimeWithoutOrder {
                    flow: self.graph.name.clone(),
                    operator: stage.name().to_owned(),
                });
            }
            let mut silent = before(&self.graph.stages, stage)
                .into_iter()
                .filter(|before| before.input().is_none() && !before.emits_watermarks());
            if let Some(source) = silent.next() {
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
