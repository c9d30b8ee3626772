//! Building a flow: the typed API.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::Waker;

use millstream_ring::{Ring, RingConfig};

use crate::build::operators::Operators;
use crate::checkpoint::participants::DeadLetterSink;
use crate::error::FlowError;
use crate::graph::Graph;
use crate::ranks::channel::Meeting;
use crate::ranks::message::Message;
use crate::ranks::outlets::Outlets;
use crate::ranks::remote_input::RemoteInput;
use crate::run::begin;
use crate::run::doorbell::Doorbell;
use crate::run::running::Running;
use crate::settings::{FlowSettings, Order};
use crate::sources::source::{Output, Source};
use crate::stage::chain::Same;
use crate::stage::channel::{AnyRing, Channel, ChannelState};
use crate::stage::ring_input::RingInput;
use crate::stage::source_input::SourceInput;
use crate::stage::user_code::Label;
use crate::state::partial::{Partial, PartialState, StateReader};
use crate::state::windowed::{REMEMBERED_KEYS, WindowSpec, Windowed};
use crate::time::control_events::WriterId;
use crate::windows::{Combine, Key, Windows};

/// Room of a ring at first.
const RING_ITEMS_MIN: usize = 8;

/// Memory of a ring at most, so that what is handed on is still in the cache when it is read;
/// whatever that is in items, there is room for `RING_ITEMS_MIN`.
const RING_BYTES_MAX: usize = 1 << 20;

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

    /// Begins a stage that reads `source`.
    pub fn source<S: Source>(
        &mut self,
        name: &str,
        source: S,
    ) -> Operators<'_, SourceInput<S>, Same> {
        self.sources(name, [source])
    }

    /// Begins a stage that reads several sources; as many workers can be in it at once.
    pub fn sources<S: Source>(
        &mut self,
        name: &str,
        sources: impl IntoIterator<Item = S>,
    ) -> Operators<'_, SourceInput<S>, Same> {
        let inputs = sources
            .into_iter()
            .map(|source| SourceInput {
                source,
                label: Label(name.into()),
                doorbell: Arc::clone(&self.graph.doorbell),
                waker: self.waker(),
                stopping: Arc::clone(&self.graph.stopping),
                pause: Arc::clone(&self.graph.pause),
                clock: Arc::clone(&self.settings.clock),
                output: Output::default(),
                stamp: 0,
                unsampled: 0,
                usual: 0,
                ended: false,
            })
            .collect();
        Operators::begin(self, name, None, inputs)
    }

    /// A channel that stages can write to and one stage reads: for graphs that are merged, split, or
    /// led back.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let mut flow = Flow::new("merge");
    /// let sum = flow.partial::<u64>("sum");
    /// let [even, odd, both] = ["even", "odd", "both"].map(|name| flow.channel::<u64>(name));
    /// flow.source("numbers", Generator::new(|number| number).limit(10))
    ///     .split(&[even.clone(), odd.clone()], |number| (number % 2) as usize);
    /// flow.stage("halve", &even).map(|number| number / 2).to(&both);
    /// flow.stage("keep", &odd).to(&both);
    /// flow.stage("add", &both).fold_local(&sum, |sum, number| *sum += number);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), (0 + 1 + 2 + 3 + 4) + (1 + 3 + 5 + 7 + 9));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    ///
    /// What is written and read has one type:
    ///
    /// ```compile_fail
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let mut flow = Flow::new("merge");
    /// let numbers = flow.channel::<u64>("numbers");
    /// flow.source("one", Generator::new(|number| number)).to(&numbers);
    /// flow.source("other", Generator::new(|number| number.to_string())).to(&numbers);
    /// ```
    pub fn channel<T: Send + 'static>(&mut self, name: &str) -> Channel<T> {
        let (mut rings, state) = self.rings(name, 1);
        Channel {
            ring: rings.remove(0),
            state,
        }
    }

    /// Begins a stage that reads a channel.
    pub fn stage<T: Send + 'static>(
        &mut self,
        name: &str,
        channel: &Channel<T>,
    ) -> Operators<'_, RingInput<T>, Same> {
        let readers = self.settings.workers.get();
        let inputs = (0..readers).map(|_| RingInput::new(&channel.ring, &channel.state, 0));
        let state = Some(Arc::clone(&channel.state));
        Operators::begin(self, name, state, inputs.collect())
    }

    /// A state element of which each worker changes a part of its own, readable under `name`.
    pub fn partial<S: PartialState>(&mut self, name: &str) -> Partial<S> {
        let state = Partial::default();
        self.add_state(name, state.clone());
        state
    }

    /// A state element of the caller's own, readable under `name` and kept in checkpoints. What changes it while the
    /// flow runs has to be an operator of the flow: checkpoints are taken while none is at work.
    pub fn state(&mut self, name: &str, state: impl StateReader + 'static) {
        self.add_state(name, state);
    }

    /// A state element readable under `name`: of each key, what `aggregate` makes of its items over each
    /// of some windows.
    pub fn windowed<K: Key, A: Combine>(
        &mut self,
        name: &str,
        windows: Windows,
        aggregate: A,
    ) -> Windowed<K, A> {
        let state = self.windows(name, windows, aggregate, REMEMBERED_KEYS);
        self.add_state(name, state.clone());
        state
    }

    /// The same, where it is not readable yet, and another number of keys is remembered.
    pub(crate) fn windows<K: Key, A: Combine>(
        &mut self,
        name: &str,
        windows: Windows,
        aggregate: A,
        remembered_keys: usize,
    ) -> Windowed<K, A> {
        self.graph.agreed.push(format!("{name}: {windows:?}"));
        self.updates_for_ms = self.updates_for_ms.max(windows.updates_for_ms());
        let (homes, ranks) = (self.graph.homes.clone(), self.settings.ranks.count());
        Windowed::new(windows, aggregate, remembered_keys, homes, ranks)
    }

    /// Reserves a state of windows for the operator `name`, or notes the fault.
    pub(crate) fn reserve<A>(&mut self, spec: &WindowSpec<A>, name: &str) {
        if !spec.reserve() {
            self.faults.push(FlowError::StateTaken {
                flow: self.graph.name.clone(),
                operator: name.to_owned(),
            });
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
                .push(Arc::new(DeadLetterSink::new(letters)));
        }
        self.check()?;
        let purpose = begin::begin(&self.graph, &self.settings)?;
        Running::start(self.graph, self.settings, purpose)
    }

    pub(crate) fn add_state(&mut self, name: &str, state: impl StateReader + 'static) {
        self.graph.states.push((name.to_owned(), Arc::new(state)));
    }

    /// The two ends of a channel between this rank and each other one; none if there is no other.
    pub(crate) fn meeting<T: Message>(
        &mut self,
        operator: &str,
    ) -> Option<(Arc<Outlets>, Vec<RemoteInput<T>>)> {
        if self.settings.ranks.count() == 1 {
            return None;
        }
        let meeting = Meeting {
            ranks: &self.settings.ranks,
            channel: self.settings.ranks.next_channel(),
            operator: operator.into(),
            clock: &self.settings.clock,
            doorbell: &self.graph.doorbell,
            stopping: &self.graph.stopping,
            pause: &self.graph.pause,
        };
        let outlets = meeting.outlets();
        let inputs = meeting.inputs(&outlets);
        self.graph.exits.push(Arc::clone(&outlets));
        Some((outlets, inputs))
    }

    /// Begins a stage that reads what comes from other ranks.
    pub(crate) fn receive<T: Message>(
        &mut self,
        name: &str,
        inputs: Vec<RemoteInput<T>>,
    ) -> Operators<'_, RemoteInput<T>, Same> {
        let mut operators = Operators::begin(self, name, None, inputs);
        operators.tells_time = true;
        operators
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.graph.doorbell))
    }

    /// So many rings of one channel.
    pub(crate) fn rings<T: Send + 'static>(
        &mut self,
        name: &str,
        count: usize,
    ) -> (Vec<Arc<Ring<T>>>, Arc<ChannelState>) {
        let items_min = NonZeroUsize::new(RING_ITEMS_MIN).expect("not zero");
        let of_memory = NonZeroUsize::new(RING_BYTES_MAX / Ring::<T>::SLOT_BYTES);
        let capacity_max = of_memory
            .unwrap_or(items_min)
            .max(items_min)
            .min(self.settings.ring_items_max);
        let config = RingConfig {
            capacity_min: items_min.min(capacity_max),
            capacity_max,
            lanes: match self.settings.order {
                Order::Kept => NonZeroUsize::MIN,
                Order::Free => self.settings.workers,
            },
        };
        let rings: Vec<_> = (0..count).map(|_| Ring::new(config)).collect();
        let erased = rings
            .iter()
            .map(|ring| -> Arc<dyn AnyRing> { Arc::new(Arc::clone(ring)) });
        let state = ChannelState::new(name, erased.collect());
        self.graph.channels.push(Arc::clone(&state));
        (rings, state)
    }
}
