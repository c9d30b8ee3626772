//! The state elements of a flow.

use std::sync::Arc;

use crate::build::flow::Flow;
use crate::checkpoint::logged_element::LoggedElement;
use crate::error::FlowError;
use crate::state::element::Element;
use crate::state::lockable::are_different;
use crate::state::partial::{Partial, PartialState, StateReader};
use crate::state::windowed::{REMEMBERED_KEYS, WindowSpec, Windowed};
use crate::windows::{Combine, Key, Windows};

impl Flow {
    /// Adds a state element that is readable under `name`. Each instance changes a share of its own.
    pub fn partial<S: PartialState>(&self, name: &str) -> Partial<S> {
        self.refuse_lifetime(name);
        let state = Partial::default();
        self.add_state(name, state.clone());
        state
    }

    /// Adds a state element of the caller's own, readable under `name` and saved in checkpoints. Only operators of
    /// the flow may change it while the flow runs: checkpoints are taken while none is at work.
    pub fn state(&self, name: &str, state: impl StateReader + 'static) {
        self.refuse_lifetime(name);
        self.add_state(name, state);
    }

    /// Adds a state element that is readable under `name`: for each key, the `aggregate` of its items over each of
    /// some windows.
    pub fn windowed<K: Key, A: Combine>(
        &self,
        name: &str,
        windows: Windows,
        aggregate: A,
    ) -> Windowed<K, A> {
        self.refuse_lifetime(name);
        let state = self.windows(name, windows, aggregate, REMEMBERED_KEYS);
        self.add_state(name, state.clone());
        state
    }

    /// The same, where it is not readable yet, and another number of keys is remembered.
    pub(crate) fn windows<K: Key, A: Combine>(
        &self,
        name: &str,
        windows: Windows,
        aggregate: A,
        remembered_keys: usize,
    ) -> Windowed<K, A> {
        self.plan()
            .graph
            .agreed
            .push(format!("{name}: {windows:?}"));
        let mut plan = self.plan();
        plan.updates_for_ms = plan.updates_for_ms.max(windows.updates_for_ms());
        drop(plan);
        let ranks = (self.settings.ranks.rank(), self.settings.ranks.count());
        let windows = Windowed::new(windows, aggregate, remembered_keys, ranks);
        let logged = LoggedElement::new(name, Arc::new(windows.clone()));
        self.plan().graph.logged.push(Arc::new(logged));
        windows
    }

    pub(crate) fn add_state(&self, name: &str, state: impl StateReader + 'static) {
        let state = (name.to_owned(), Arc::new(state) as Arc<dyn StateReader>);
        self.plan().graph.states.push(state);
    }

    /// Reserves a state of windows for the operator `name`, or notes the fault.
    pub(crate) fn reserve<A>(&self, spec: &WindowSpec<A>, name: &str) {
        if !spec.reserve() {
            let fault = FlowError::StateTaken {
                flow: self.name(),
                operator: name.to_owned(),
            };
            self.plan().faults.push(fault);
        }
    }

    /// Returns the number of partitions of the elements of the operator `name`. Notes a fault if they do not go together.
    pub(super) fn partitions_of<K, E: Element<K>>(&self, name: &str, element: &E) -> usize {
        let (count, why) = match element.partitions() {
            Some(count) if are_different(&element.partition(0)) => return count,
            Some(count) => (count, "one is there twice; name each once"),
            None => (
                1,
                "they belong to different flows; add all of them to this one",
            ),
        };
        let fault = FlowError::Elements {
            flow: self.name(),
            operator: name.to_owned(),
            why,
        };
        self.plan().faults.push(fault);
        count
    }
}
