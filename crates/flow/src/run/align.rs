//! The groups of sources that are aligned: those that lead to the same windows.

use std::sync::Arc;

use crate::ranks::outlets::Outlets;
use crate::stage::contract::Stage;
use crate::time::alignment::{Aligned, Step};
use crate::topology::upstream::all_before;

/// Finds the groups and makes each input a member of one. An input alone in its group is a member too, since its
/// partitions are aligned.
pub fn align(stages: &[Arc<dyn Stage>], step: &Step) {
    let is_source = |stage: &Arc<dyn Stage>| {
        stage.emits_watermarks() && stage.input().is_none() && stage.inlet().is_none()
    };
    let windows = stages.iter().filter(|stage| stage.closes_by_time());
    // The indices of the sources of each group.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for windows in windows {
        let mut group = indices(stages, &all_before(stages, windows));
        group.retain(|index| is_source(&stages[*index]));
        let (joined, others): (Vec<_>, Vec<_>) = groups
            .into_iter()
            .partition(|other| other.iter().any(|source| group.contains(source)));
        group.extend(joined.into_iter().flatten());
        group.sort_unstable();
        group.dedup();
        groups = others;
        groups.push(group);
    }
    for sources in groups {
        let remote = remote_inputs(stages, &sources);
        let local = sources.iter().map(|index| &stages[*index]);
        if !remote.is_empty() {
            let ahead_max_ms = local.clone().filter_map(|stage| stage.skew_max_ms());
            ahead_max_ms.for_each(|ahead_max_ms| step.lessen(ahead_max_ms));
        }
        let inputs: Vec<_> = local.chain(remote).collect();
        let count: usize = inputs.iter().map(|stage| stage.instances()).sum();
        let mut members = Aligned::group(count);
        for stage in inputs {
            stage.align(&mut members);
        }
    }
}

/// Returns the stages that read from the same sources on other ranks, without windows in between.
fn remote_inputs<'a>(stages: &'a [Arc<dyn Stage>], sources: &[usize]) -> Vec<&'a Arc<dyn Stage>> {
    let is_from = |inlet: &Arc<Outlets>| {
        let is_exit = |stage: &&Arc<dyn Stage>| {
            let mut outlets = stage.outlets().into_iter();
            outlets.any(|outlets| Arc::ptr_eq(&outlets, inlet))
        };
        stages.iter().find(is_exit).is_some_and(|exit| {
            let mut before = all_before(stages, exit);
            before.push(exit);
            let is_first = before.iter().all(|stage| stage.inlet().is_none());
            is_first
                && indices(stages, &before)
                    .iter()
                    .any(|stage| sources.contains(stage))
        })
    };
    let is_remote = |stage: &&Arc<dyn Stage>| stage.inlet().is_some_and(|inlet| is_from(&inlet));
    stages.iter().filter(is_remote).collect()
}

fn indices(stages: &[Arc<dyn Stage>], some: &[&Arc<dyn Stage>]) -> Vec<usize> {
    let is_some = |stage: &Arc<dyn Stage>| some.iter().any(|other| Arc::ptr_eq(other, stage));
    let stages = stages.iter().enumerate();
    stages
        .filter(|(_, stage)| is_some(stage))
        .map(|(index, _)| index)
        .collect()
}
