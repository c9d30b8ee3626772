//! The plain graph of a flow: the builder fills it, and a run takes it over.
//!
//! It does not know the types of items, nor the builder that filled it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::checkpoint::logged_element::LoggedElement;
use crate::checkpoint::participants::Participant;
use crate::checkpoint::trail::Trail;
use crate::doorbell::Doorbell;
use crate::pause::Pause;
use crate::ranks::outlets::Outlets;
use crate::stage::channel::ChannelState;
use crate::stage::contract::Stage;
use crate::state::lookups::LookupElement;
use crate::state::partial::StateReader;
use crate::time::alignment::Step;

/// The elements of a flow.
pub struct Graph {
    /// The flow's name.
    pub name: String,
    pub stages: Vec<Arc<dyn Stage>>,
    pub channels: Vec<Arc<ChannelState>>,
    /// State elements by their names.
    pub states: Vec<(String, Arc<dyn StateReader>)>,
    pub sinks: Vec<Arc<dyn Participant>>,
    /// The state elements that record their changes, and so can have changelogs.
    pub logged: Vec<Arc<LoggedElement>>,
    /// The elements whose values are looked up while the flow runs.
    pub lookups: Vec<LookupElement>,
    /// The connections to other ranks.
    pub exits: Vec<Arc<Outlets>>,
    /// Descriptions of the properties that all ranks must have in common and that the types of the graph do not show.
    pub agreed: Vec<String>,
    /// Wakes workers that sleep.
    pub doorbell: Arc<Doorbell>,
    /// Set when the flow's owner stops it: sources are not read any more.
    pub stopping: Arc<AtomicBool>,
    /// Pauses the sources for a checkpoint.
    pub pause: Arc<Pause>,
    pub step: Step,
    /// The flow's progress at its last checkpoints.
    pub trail: Arc<Trail>,
}

impl Graph {
    /// A graph without elements.
    pub fn new(name: &str, doorbell: Doorbell, trail: Trail) -> Graph {
        Graph {
            name: name.to_owned(),
            stages: Vec::new(),
            channels: Vec::new(),
            states: Vec::new(),
            sinks: Vec::new(),
            logged: Vec::new(),
            lookups: Vec::new(),
            exits: Vec::new(),
            agreed: Vec::new(),
            doorbell: Arc::new(doorbell),
            stopping: Arc::default(),
            pause: Arc::default(),
            step: Step::default(),
            trail: Arc::new(trail),
        }
    }
}
