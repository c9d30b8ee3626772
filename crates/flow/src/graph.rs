//! Building a flow: the typed API.

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::thread;

use hashbrown::{DefaultHashBuilder, HashSet};
use millstream_base::{Clock, SystemClock, Timestamp};
use millstream_ring::Ring;
use parking_lot::Mutex;
use serde::Serialize;

use crate::chain::{Chain, Emit, Filter, FlatMap, Label, Map, Same};
use crate::doorbell::Doorbell;
use crate::error::FlowError;
use crate::input::{Input, RingInput, SourceInput};
use crate::pool::Running;
use crate::sink::Sink;
use crate::source::{Output, Source};
use crate::stage::{FusedStage, Stage};
use crate::state::{Partial, PartialState, StateReader};
use crate::terminal::{Outbox, Terminal, ToPartitions, ToRing, ToSink, ToState};
use crate::window::{Key, ToWindows, TumblingWindows, WindowResult, Windowed};

/// What a flow takes from its surroundings. The defaults are right for most.
#[derive(Clone)]
pub struct FlowSettings {
    /// Worker threads; as many as there are cores by default.
    pub workers: NonZeroUsize,
    /// Room of the rings between stages, in items; 1024 by default.
    pub ring_items: NonZeroUsize,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
}

impl Default for FlowSettings {
    fn default() -> Self {
        const RING_ITEMS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
        FlowSettings {
            workers: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            ring_items: RING_ITEMS,
            clock: Arc::new(SystemClock::default()),
        }
    }
}

/// A dataflow graph that is being built; [`run`](Flow::run) starts it.
pub struct Flow {
    pub(crate) name: String,
    pub(crate) settings: FlowSettings,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) stages: Vec<Arc<dyn Stage>>,
    pub(crate) states: Vec<(String, Arc<dyn StateReader>)>,
    /// Stages that were begun and have no end yet.
    open: Vec<String>,
}

impl Flow {
    /// An empty flow.
    pub fn new(name: &str) -> Self {
        Flow::with_settings(name, FlowSettings::default())
    }

    /// An empty flow with other than the default settings.
    pub fn with_settings(name: &str, settings: FlowSettings) -> Self {
        Flow {
            name: name.to_owned(),
            doorbell: Arc::new(Doorbell::new(Arc::clone(&settings.clock))),
            settings,
            stopping: Arc::default(),
            stages: Vec::new(),
            states: Vec::new(),
            open: Vec::new(),
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
                doorbell: Arc::clone(&self.doorbell),
                waker: self.waker(),
                stopping: Arc::clone(&self.stopping),
                output: Output::default(),
                ended: false,
            })
            .collect();
        Operators::begin(self, name, inputs)
    }

    /// A state element of which each worker changes a part of its own, readable under `name`.
    pub fn partial<S: PartialState>(&mut self, name: &str) -> Partial<S> {
        let state = Partial::default();
        self.add_state(name, state.clone());
        state
    }

    /// A state element of windows by key, readable under `name`.
    ///
    /// # Panics
    /// When `windows.size_ms` is less than 1.
    pub fn windowed<K, A>(&mut self, name: &str, windows: TumblingWindows) -> Windowed<K, A>
    where
        K: Key,
        A: Default + Clone + Serialize + Send + 'static,
    {
        let state = Windowed::new(windows);
        self.add_state(name, state.clone());
        state
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// When the graph is not whole, or there are no threads to run it.
    pub fn run(self) -> Result<Running, FlowError> {
        if let Some(operator) = self.open.first() {
            return Err(FlowError::Unconnected {
                flow: self.name,
                operator: operator.clone(),
            });
        }
        if self.stages.is_empty() {
            return Err(FlowError::Empty { flow: self.name });
        }
        if let Some(name) = self.duplicate_name() {
            return Err(FlowError::DuplicateName {
                flow: self.name,
                name,
            });
        }
        Running::start(self)
    }

    fn duplicate_name(&self) -> Option<String> {
        let mut seen = HashSet::new();
        let stages = self.stages.iter().map(|stage| ("stage", stage.name()));
        let states = self.states.iter().map(|(name, _)| ("state", name.as_str()));
        let (_, name) = stages
            .chain(states)
            .find(|element| !seen.insert(*element))?;
        Some(name.to_owned())
    }

    fn add_state(&mut self, name: &str, state: impl StateReader + 'static) {
        self.states.push((name.to_owned(), Arc::new(state)));
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.doorbell))
    }

    fn ring<T>(&self) -> Arc<Ring<T>> {
        Arc::new(Ring::new(self.settings.ring_items.get(), self.waker()))
    }
}

/// The end of a graph that is being built: a stage that reads `I` and hands what comes out of its
/// operators `C` to whatever is added next.
///
/// Operators get their items by reference. All operators up to the next
/// [`boundary`](Operators::boundary), [`key_by`](Operators::key_by) or end are compiled into one
/// loop.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Operators<'f, I: Input, C: Chain<I::Item>> {
    flow: &'f mut Flow,
    stage: String,
    inputs: Vec<I>,
    chain: C,
    /// How many operators the stage has.
    operators: usize,
}

impl<'f, I: Input> Operators<'f, I, Same>
where
    I::Item: 'static,
{
    fn begin(flow: &'f mut Flow, stage: &str, inputs: Vec<I>) -> Self {
        flow.open.push(stage.to_owned());
        Operators {
            flow,
            stage: stage.to_owned(),
            inputs,
            chain: Same,
            operators: 0,
        }
    }
}

impl<'f, I: Input, C: Chain<I::Item>> Operators<'f, I, C> {
    /// Turns each item into another.
    pub fn map<U, F>(self, function: F) -> Operators<'f, I, Map<C, F, U>>
    where
        F: Fn(&C::Out) -> U + Send + Sync + 'static,
        U: 'static,
    {
        self.add("map", |before, label| Map {
            before,
            function,
            label,
            result: PhantomData,
        })
    }

    /// Lets pass the items for which `function` holds.
    pub fn filter<F>(self, function: F) -> Operators<'f, I, Filter<C, F>>
    where
        F: Fn(&C::Out) -> bool + Send + Sync + 'static,
    {
        self.add("filter", |before, label| Filter {
            before,
            function,
            label,
        })
    }

    /// Turns each item into any number of others, which may be parts of it: `U` may be `[u8]`.
    pub fn flat_map<U, F>(self, function: F) -> Operators<'f, I, FlatMap<C, F, U>>
    where
        F: Fn(&C::Out, &mut Emit<'_, U>) + Send + Sync + 'static,
        U: ?Sized + 'static,
    {
        self.add("flat_map", |before, label| FlatMap {
            before,
            function,
            label,
            result: PhantomData,
        })
    }

    /// Ends the stage and begins another of this name, joined by a ring.
    pub fn boundary(self, name: &str) -> Operators<'f, RingInput<C::Out>, Same>
    where
        C::Out: Clone + Send + Sized + 'static,
    {
        let ring = self.flow.ring();
        let rings: Arc<[_]> = Arc::new([Arc::clone(&ring)]);
        let flow = self.end(|| ToRing(Outbox::new(Arc::clone(&rings))));
        let readers = flow.settings.workers.get();
        let inputs = (0..readers).map(|_| RingInput {
            ring: Arc::clone(&ring),
        });
        Operators::begin(flow, name, inputs.collect())
    }

    /// Routes the items by their key, so that all items of a key meet in one place.
    pub fn key_by<K, F>(self, key: F) -> Keyed<'f, I, C, F>
    where
        C::Out: Sized,
        F: Fn(&C::Out) -> K + Send + Sync + 'static,
    {
        Keyed {
            operators: self,
            key,
        }
    }

    /// Ends the graph in a partial state: `step` takes each item into a part of it.
    pub fn fold_local<S, F>(self, state: &Partial<S>, step: F)
    where
        S: PartialState,
        F: Fn(&mut S, &C::Out) + Send + Sync + 'static,
    {
        let step = Arc::new(step);
        let label = self.label("fold_local");
        self.end(|| ToState {
            part: state.add_part(),
            step: Arc::clone(&step),
            label: label.clone(),
        });
    }

    /// Ends the graph in a sink.
    pub fn sink<K>(self, name: &str, sink: K)
    where
        C::Out: Clone + Send + Sized + 'static,
        K: Sink<C::Out>,
    {
        let sink = Arc::new(Mutex::new(sink));
        let label = Label(name.into());
        let waker = self.flow.waker();
        self.end(|| ToSink {
            sink: Arc::clone(&sink),
            waker: waker.clone(),
            label: label.clone(),
            waiting: Vec::new(),
            count: 0,
            unflushed: false,
        });
    }

    fn add<D: Chain<I::Item>>(
        mut self,
        kind: &str,
        fuse: impl FnOnce(C, Label) -> D,
    ) -> Operators<'f, I, D> {
        self.operators += 1;
        let label = self.label(kind);
        Operators {
            flow: self.flow,
            stage: self.stage,
            inputs: self.inputs,
            chain: fuse(self.chain, label),
            operators: self.operators,
        }
    }

    /// Names an operator by its stage and its place in it.
    fn label(&self, kind: &str) -> Label {
        Label(format!("{}/{}.{kind}", self.stage, self.operators).into())
    }

    /// Adds the stage to the flow, with a terminal for each of its instances.
    fn end<T: Terminal<C::Out>>(self, mut terminal: impl FnMut() -> T) -> &'f mut Flow {
        let flow = self.flow;
        flow.open.pop();
        let instances = self.inputs.into_iter();
        flow.stages.push(Arc::new(FusedStage::new(
            self.stage,
            self.chain,
            instances.map(|input| (input, terminal())),
            Arc::clone(&flow.stopping),
        )));
        flow
    }
}

/// Operators whose results are routed by a key.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Keyed<'f, I: Input, C: Chain<I::Item>, F> {
    operators: Operators<'f, I, C>,
    key: F,
}

impl<'f, I, C, T, K, F> Keyed<'f, I, C, F>
where
    I: Input,
    C: Chain<I::Item, Out = T>,
    T: Clone + Send + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Adds each item to the window of its key that `time` lies in. A stage of its own, named
    /// `name`; what comes out are the windows as they close.
    pub fn fold_in_windows<A, E, G>(
        self,
        name: &str,
        state: &Windowed<K, A>,
        time: E,
        step: G,
    ) -> Operators<'f, RingInput<WindowResult<K, A>>, Same>
    where
        A: Default + Clone + Serialize + Send + 'static,
        E: Fn(&T) -> Timestamp + Send + Sync + 'static,
        G: Fn(&mut A, &T) + Send + Sync + 'static,
    {
        let partitioned = self.partition(name);
        let label = partitioned.label("fold_in_windows");
        let (time, step) = (Arc::new(time), Arc::new(step));
        let results = partitioned.flow.ring();
        let rings: Arc<[_]> = Arc::new([Arc::clone(&results)]);
        let flow = partitioned.end(|| ToWindows {
            windows: state.windows,
            partition: state.add_partition(),
            time: Arc::clone(&time),
            step: Arc::clone(&step),
            label: label.clone(),
            outbox: Outbox::new(Arc::clone(&rings)),
            item: PhantomData,
        });
        let reader = RingInput { ring: results };
        Operators::begin(flow, &format!("{name}/results"), vec![reader])
    }

    /// Counts the items of each key in windows; like
    /// [`fold_in_windows`](Keyed::fold_in_windows).
    pub fn count_in_windows<E>(
        self,
        name: &str,
        state: &Windowed<K, u64>,
        time: E,
    ) -> Operators<'f, RingInput<WindowResult<K, u64>>, Same>
    where
        E: Fn(&T) -> Timestamp + Send + Sync + 'static,
    {
        self.fold_in_windows(name, state, time, |count, _| *count += 1)
    }

    /// Ends the stage and begins another, which has an instance and a ring per partition.
    fn partition(self, name: &str) -> Operators<'f, RingInput<(K, T)>, Same> {
        let operators = self.operators;
        let partitions = operators.flow.settings.workers.get();
        let rings: Vec<_> = (0..partitions).map(|_| operators.flow.ring()).collect();
        let rings: Arc<[_]> = rings.into();
        let label = operators.label("key_by");
        let key = Arc::new(self.key);
        let hasher = DefaultHashBuilder::default();
        let flow = operators.end(|| ToPartitions {
            outbox: Outbox::new(Arc::clone(&rings)),
            key: Arc::clone(&key),
            label: label.clone(),
            hasher: hasher.clone(),
        });
        let inputs = rings.iter().map(|ring| RingInput {
            ring: Arc::clone(ring),
        });
        Operators::begin(flow, name, inputs.collect())
    }
}
