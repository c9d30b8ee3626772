//! A fused stage as a node of the graph.

use std::any;
use std::sync::Arc;

use crate::ranks::outlets::Outlets;
use crate::stage::chain::Chain;
use crate::stage::channel::ChannelState;
use crate::stage::contract::Node;
use crate::stage::fused::stage::FusedStage;
use crate::stage::input::Input;
use crate::stage::terminal::Terminal;

impl<I, C, T> Node for FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn describe(&self) -> String {
        let read = self.input.as_ref().map_or("", |input| &input.name);
        let written: Vec<_> = self
            .outputs
            .iter()
            .map(|output| output.name.as_str())
            .collect();
        let code = any::type_name::<(I, C, T)>();
        format!("{} reads \"{read}\", writes {written:?}: {code}", self.name)
    }

    fn input(&self) -> Option<&Arc<ChannelState>> {
        self.input.as_ref()
    }

    fn outputs(&self) -> &[Arc<ChannelState>] {
        &self.outputs
    }

    fn outlets(&self) -> Vec<Arc<Outlets>> {
        let first = self.instances.first();
        first.map_or_else(Vec::new, |slot| slot.instance.lock().terminal.outlets())
    }

    fn inlet(&self) -> Option<Arc<Outlets>> {
        self.instances.first()?.instance.lock().input.inlet()
    }

    fn instances(&self) -> usize {
        self.instances.len()
    }

    fn closes_by_time(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|slot| slot.instance.lock().terminal.closes_by_time())
    }

    fn needs_watermarks(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|slot| slot.instance.lock().terminal.needs_watermarks())
    }

    fn emits_watermarks(&self) -> bool {
        self.emits_watermarks
    }
}
