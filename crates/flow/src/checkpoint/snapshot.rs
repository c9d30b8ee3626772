//! The content of a checkpoint: the elements of a flow while all are at rest.

use std::fmt;
use std::sync::Arc;

use crate::checkpoint::logged_element::LoggedElement;
use crate::checkpoint::participants::Participant;
use crate::checkpoint::shard::PendingShard;
use crate::checkpoint::trail::Trail;
use crate::error::{BoxError, Failure};
use crate::stage::contract::{Rest, Stage};
use crate::stage::saved::{Saved, is_watermark, source_of};
use crate::stage::user_code::Label;
use crate::state::partial::StateReader;
use crate::topology::cycles::Cycle;
use crate::topology::watermark::watermark_of;

/// The elements of a flow that a snapshot is taken of.
pub struct Elements<'a> {
    pub stages: &'a [Arc<dyn Stage>],
    pub cycles: &'a [Cycle],
    pub states: &'a [(String, Arc<dyn StateReader>)],
    pub sinks: &'a [Arc<dyn Participant>],
    /// State elements whose changes are noted, and that can have changelogs.
    pub logged: &'a [Arc<LoggedElement>],
    pub trail: &'a Trail,
}

impl Elements<'_> {
    /// Saves the data that they need to resume from here. All stages are at rest.
    pub fn save(&self, checkpoint: u64) -> Result<PendingShard, Failure> {
        let mut pending = PendingShard::default();
        let saved = &mut pending.saved;
        for sink in self.sinks {
            saved.put(sink_element(sink.name()), sink.prepare(checkpoint)?);
        }
        for stage in self.stages {
            stage.save(saved)?;
        }
        let logged = self.logged.iter().filter(|element| element.is_open());
        let is_logged = |name: &str| logged.clone().any(|element| element.name() == name);
        for (name, state) in self.states.iter().filter(|(name, _)| !is_logged(name)) {
            let label = Label(name.as_str().into());
            let state = label.run(|| Ok::<_, BoxError>((state.save()?, state.types())));
            let (bytes, types) = state.map_err(|error| Failure::Error {
                operator: label.0,
                error,
            })?;
            saved.put(state_element(name), bytes);
            saved.put(types_element(name), types.into_bytes());
        }
        for element in self.logged {
            if let Some(sample) = element.sample() {
                saved.put(sample_element(element.name()), sample);
            }
        }
        for element in self.logged {
            let name = element.name();
            let head = element.head(checkpoint)?;
            pending
                .passed
                .push(head.as_ref().and_then(|head| head.passed));
            let Some(head) = head else {
                continue;
            };
            saved.put(head_element(name), head.bytes);
            let mut states = self.states.iter();
            if let Some((_, state)) = states.find(|(state, _)| state == name) {
                let types = Label(name.into()).run(|| state.types());
                saved.put(types_element(name), types.into_bytes());
            }
        }
        for element in self.logged.iter().filter(|element| !element.is_open()) {
            element.cut(checkpoint);
        }
        for element in logged {
            pending.defer(
                changelog_element(element.name()),
                element.cut_changes(checkpoint),
            );
        }
        let positions = self.stages.iter().filter_map(|stage| stage.positions());
        let watermark = watermark_of(self.stages);
        self.trail
            .cut(checkpoint, positions.flatten().collect(), watermark);
        Ok(pending)
    }
}

pub fn commit(stages: &[Arc<dyn Stage>]) -> Result<(), Failure> {
    stages.iter().try_for_each(|stage| stage.commit())
}

// Elements of stages have names that begin with `stage/`: `stage::saved` has them.
const SINK: &str = "sink/";
const STATE: &str = "state/";
const CHANGELOG: &str = "changelog/";
const SAMPLE: &str = "sample/";
const TYPES: &str = "types/";
const HEAD: &str = "head/";

/// Names the saved bytes of a sink.
pub fn sink_element(name: &str) -> String {
    format!("{SINK}{name}")
}

/// Names the saved bytes of a state element that is saved whole.
pub fn state_element(name: &str) -> String {
    format!("{STATE}{name}")
}

/// Names the bytes by which a changelog names the changes of a state element.
pub fn changelog_element(name: &str) -> String {
    format!("{CHANGELOG}{name}")
}

/// Names an entry of a state element with a value for each key, as changelogs have it: it shows a change of types.
pub fn sample_element(name: &str) -> String {
    format!("{SAMPLE}{name}")
}

/// Names the types of a state element that is saved whole.
pub fn types_element(name: &str) -> String {
    format!("{TYPES}{name}")
}

/// Names what a shard has of a state element beside its changelog.
pub fn head_element(name: &str) -> String {
    format!("{HEAD}{name}")
}

/// An element of a flow, to which a shard has bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowElement<'a> {
    /// By the name of its stage.
    Source(&'a str),
    State(&'a str),
    Sink(&'a str),
    /// By the name of the bytes: no program of this version stores any like that.
    Unknown(&'a str),
}

impl fmt::Display for FlowElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlowElement::Source(name) => write!(f, "source \"{name}\""),
            FlowElement::State(name) => write!(f, "state \"{name}\""),
            FlowElement::Sink(name) => write!(f, "sink \"{name}\""),
            FlowElement::Unknown(name) => write!(f, "\"{name}\""),
        }
    }
}

/// Returns the element of the flow that has these bytes in a shard. `None` for those that only describe others, and for
/// watermarks, which belong to state.
pub fn flow_element(element: &str) -> Option<FlowElement<'_>> {
    let describes = |prefix: &&str| element.starts_with(*prefix);
    if [SAMPLE, TYPES, HEAD].iter().any(describes) || is_watermark(element) {
        return None;
    }
    let of_state = element.strip_prefix(STATE);
    let state = of_state.or_else(|| element.strip_prefix(CHANGELOG));
    let sink = || element.strip_prefix(SINK).map(FlowElement::Sink);
    let source = || source_of(element).map(FlowElement::Source);
    let found = state.map(FlowElement::State).or_else(sink).or_else(source);
    Some(found.unwrap_or(FlowElement::Unknown(element)))
}

/// Returns a state element of a shard whose changes are in a changelog, if there is one.
pub fn first_logged(saved: &Saved) -> Option<&str> {
    saved.names().find_map(|name| name.strip_prefix(CHANGELOG))
}

/// Checks whether all stages are at rest while their sources pause: they have no items in flight and no work left. From
/// then on they do not change before the snapshot, whatever other workers try. All stages are locked at once; visited one
/// after another, they would show a state that never existed at one moment.
pub fn rest(stages: &[Arc<dyn Stage>], cycles: &[Cycle], number: u64) -> Rest {
    let mut held = Vec::with_capacity(stages.len());
    let mut rest = Rest::Quiet;
    for stage in stages {
        match stage.hold() {
            Ok(stage) => held.push(stage),
            Err(why) => {
                rest = why;
                break;
            }
        }
    }
    if rest == Rest::Quiet {
        let are_at_rest = held.iter().all(|stage| stage.is_at_rest(number));
        // A finished cycle ends its stages as soon as a worker closes it.
        if !are_at_rest || cycles.iter().any(Cycle::is_over) {
            rest = Rest::Busy;
        }
    }
    for stage in held {
        if stage.let_go() {
            rest = Rest::Missed;
        }
    }
    rest
}
