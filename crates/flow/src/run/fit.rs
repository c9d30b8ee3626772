//! Checks whether a checkpoint fits the program that resumes from it. The check changes nothing.

use std::collections::BTreeSet;

use crate::checkpoint::snapshot::{
    FlowElement, changelog_element, flow_element, sample_element, sink_element, state_element,
    types_element,
};
use crate::error::BoxError;
use crate::graph::Graph;
use crate::stage::saved::Saved;
use crate::stage::user_code::catch;

/// Checks that this rank's shard of a checkpoint fits the program.
///
/// # Errors
/// Names everything that does not fit.
pub fn check_fit(graph: &Graph, saved: &Saved) -> Result<(), BoxError> {
    let mut faults = misplaced(graph, saved);
    faults.extend(changed_sources(graph, saved));
    faults.extend(changed_types(graph, saved)?);
    faults.extend(new_lifetimes(graph, saved));
    faults.extend(changed_values(graph, saved));
    match faults.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "the checkpoint does not fit this program: {}; resume with a program that has the same elements with the same \
             names and types, or start the flow anew: under another name, or without resuming once all of its checkpoints \
             are removed",
            faults.join("; ")
        )
        .into()),
    }
}

/// Returns the elements that only the shard has, and the elements that only the program has. If the run began nevertheless,
/// it would lose the former, with prepared results that no later run would commit.
fn misplaced(graph: &Graph, saved: &Saved) -> Vec<String> {
    let present: BTreeSet<FlowElement<'_>> = elements_of(graph).collect();
    let found: BTreeSet<FlowElement<'_>> = saved.names().filter_map(flow_element).collect();
    let lost = found.difference(&present);
    let lost = lost.filter(|element| !may_be_lost(element, saved));
    let new = present.difference(&found);
    let new = new.filter(|element| !may_be_new(element, graph));
    let lost = list(lost)
        .map(|elements| format!("the checkpoint has {elements}, which the program does not have"));
    let new = list(new)
        .map(|elements| format!("the program has {elements}, of which the checkpoint has nothing"));
    lost.into_iter().chain(new).collect()
}

/// Returns the elements of the program that a checkpoint has something of.
fn elements_of(graph: &Graph) -> impl Iterator<Item = FlowElement<'_>> {
    let sources = graph.stages.iter().filter(|stage| stage.is_saved());
    let sources = sources.map(|stage| FlowElement::Source(stage.name()));
    let states = graph.states.iter();
    let states = states.map(|(name, _)| FlowElement::State(name));
    let sinks = graph
        .sinks
        .iter()
        .map(|sink| FlowElement::Sink(sink.name()));
    sources.chain(states).chain(sinks)
}

/// A sink that prepares nothing has no results that wait for a decision.
fn may_be_lost(element: &FlowElement<'_>, saved: &Saved) -> bool {
    match element {
        FlowElement::Sink(name) => saved.get(&sink_element(name)).is_ok_and(<[u8]>::is_empty),
        FlowElement::Source(_) | FlowElement::State(_) | FlowElement::Unknown(_) => false,
    }
}

fn may_be_new(element: &FlowElement<'_>, graph: &Graph) -> bool {
    let mut sinks = graph.sinks.iter().filter(|sink| sink.may_be_new());
    sinks.any(|sink| *element == FlowElement::Sink(sink.name()))
}

fn list<'a>(elements: impl Iterator<Item = &'a FlowElement<'a>>) -> Option<String> {
    let elements: Vec<_> = elements.map(FlowElement::to_string).collect();
    (!elements.is_empty()).then(|| elements.join(", "))
}

/// Returns the sources that are more or fewer than the shard has, and cannot share their positions.
fn changed_sources(graph: &Graph, saved: &Saved) -> impl Iterator<Item = String> {
    let sources: BTreeSet<_> = saved.names().filter_map(flow_element).collect();
    graph.stages.iter().filter_map(move |stage| {
        let source = FlowElement::Source(stage.name());
        // A missing source is reported as missing.
        let is_saved = sources.contains(&source);
        let checked = is_saved.then(|| catch(|| stage.check(saved)))?;
        Some(format!("{source}: {}", checked.err()?))
    })
}

/// Returns the state elements that were saved whole and have other types now.
fn changed_types(graph: &Graph, saved: &Saved) -> Result<Vec<String>, BoxError> {
    let mut faults = Vec::new();
    for (name, state) in &graph.states {
        // Elements with JSON in a changelog have none, nor have shards of earlier programs.
        let Ok(found) = saved.get(&types_element(name)) else {
            continue;
        };
        let found = std::str::from_utf8(found)?;
        let types = catch(|| Ok(state.types()))?;
        if types != found {
            faults.push(format!(
                "state \"{name}\" has the types {found} in the checkpoint, and {types} in the program"
            ));
        }
    }
    Ok(faults)
}

/// Returns the state elements with a lifetime that had none when the checkpoint was taken. Their values have no times of
/// their last changes, and a value may look like another one with its time. A checkpoint names the types of each element that
/// has a lifetime, also of one without values.
fn new_lifetimes(graph: &Graph, saved: &Saved) -> impl Iterator<Item = String> {
    let lasting = graph.logged.iter().filter(|it| it.has_lifetime());
    lasting.filter_map(|element| {
        let name = element.name();
        let has = |element: String| saved.get(&element).is_ok();
        let is_saved = has(changelog_element(name)) || has(state_element(name));
        (is_saved && !has(types_element(name))).then(|| {
            format!("state \"{name}\" has no lifetime in the checkpoint, and one in the program")
        })
    })
}

/// Returns the state elements with a value for each key in a changelog that the program cannot read.
fn changed_values(graph: &Graph, saved: &Saved) -> impl Iterator<Item = String> {
    graph.logged.iter().filter_map(|element| {
        let name = element.name();
        // The types of one that was saved whole, or has a lifetime, were compared.
        if saved.get(&types_element(name)).is_ok() || element.has_lifetime() {
            return None;
        }
        // Shards of earlier versions have no sample, nor has an empty element.
        let sample = saved.get(&sample_element(name)).ok()?;
        let error = element.check_sample(sample).err()?;
        Some(format!("state \"{name}\": {error}"))
    })
}
