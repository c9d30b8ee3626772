//! The stages that lead to a stage.

use std::sync::Arc;

use crate::stage::channel::ChannelState;
use crate::stage::contract::Stage;

/// Lets control events through on every channel that leads to a stage which needs event time. Items in a cycle have
/// no order that an event could have a place in: windows behind a cycle close at the end.
pub fn want_events(stages: &[Arc<dyn Stage>]) {
    for stage in stages.iter().filter(|stage| stage.closes_by_time()) {
        let on_the_way = before(stages, stage);
        let inputs = on_the_way
            .into_iter()
            .chain([stage])
            .filter_map(|stage| stage.input());
        inputs
            .filter(|input| !input.is_in_cycle())
            .for_each(|input| input.want_events());
    }
}

/// The stages that lead to `stage`, except for those before a cycle.
pub fn before<'a>(stages: &'a [Arc<dyn Stage>], stage: &Arc<dyn Stage>) -> Vec<&'a Arc<dyn Stage>> {
    upstream_where(stages, stage, |input| !input.is_in_cycle())
}

/// All stages that lead to `stage`.
pub fn all_before<'a>(
    stages: &'a [Arc<dyn Stage>],
    stage: &Arc<dyn Stage>,
) -> Vec<&'a Arc<dyn Stage>> {
    upstream_where(stages, stage, |_| true)
}

fn upstream_where<'a>(
    stages: &'a [Arc<dyn Stage>],
    stage: &Arc<dyn Stage>,
    is_followed: impl Fn(&ChannelState) -> bool,
) -> Vec<&'a Arc<dyn Stage>> {
    let mut found: Vec<&Arc<dyn Stage>> = Vec::new();
    let mut inputs: Vec<Arc<ChannelState>> = stage.input().cloned().into_iter().collect();
    while let Some(input) = inputs.pop() {
        if !is_followed(&input) {
            continue;
        }
        for writer in stages {
            let writes = |output: &Arc<ChannelState>| Arc::ptr_eq(output, &input);
            let is_new = !found.iter().any(|known| Arc::ptr_eq(known, writer));
            if writer.outputs().iter().any(writes) && is_new {
                found.push(writer);
                inputs.extend(writer.input().cloned());
            }
        }
    }
    found
}
