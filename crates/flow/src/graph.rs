//! Building a flow: the typed API.

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use millstream_base::{Clock, SystemClock, Timestamp};
use millstream_exchange::Ranks;
use millstream_ring::{Ring, RingConfig};
use parking_lot::Mutex;

use crate::attempt::Label;
use crate::begin;
use crate::chain::{Chain, Each, Emit, Filter, Flat, FlatMap, Join, Map, Same, SeeTime};
use crate::channel::{AnyRing, Channel, ChannelState};
use crate::checkpoint::Checkpointing;
use crate::cuts::Pause;
use crate::dead_letter::DeadLetters;
use crate::doorbell::Doorbell;
use crate::error::{BoxError, FlowError};
use crate::input::{Input, RingInput, SourceInput};
use crate::marks::WriterId;
use crate::metrics::Counters;
use crate::parts::{Flatten, Parts};
use crate::remote::{Meeting, Message, Outlets, RemoteInput};
use crate::routed::Homes;
use crate::running::Running;
use crate::scheduler::{Priority, Scheduler};
use crate::sink::Sink;
use crate::source::{Output, Source};
use crate::stage::{FusedStage, Instance, Slot, Stage};
use crate::state::{Partial, PartialState, StateReader};
use crate::table::Table;
use crate::terminal::{Outbox, Place, Terminal, ToAll, ToRing, ToSink, ToSplit, ToState};
use crate::time::{StageTime, Watermarks};
use crate::windowed::{Key, Windowed};
use crate::windows::{Combine, Windows};

/// What a flow takes from its surroundings. The defaults are right for most.
#[derive(Clone)]
pub struct FlowSettings {
    /// Worker threads at most; as many as there are cores by default. There are fewer while they are
    /// enough for the load.
    pub workers: NonZeroUsize,
    /// Whether the order of items counts; it does by default.
    pub order: Order,
    /// Who is activated next; [`Priority`] by default.
    pub scheduler: Arc<dyn Scheduler>,
    /// How often throughput is measured and the scheduler adjusts; every 500 ms by default.
    pub interval: Duration,
    /// How often sources that keep how far they are do so; every second by default.
    pub commit_interval: Duration,
    /// Room of a ring between stages at most, in items. Rings size themselves: they grow while a
    /// larger one is used, and shrink when they are idle.
    pub ring_items_max: NonZeroUsize,
    /// Takes items that make code of the user panic twice, or for which it answers an error. Without
    /// it they fail the flow.
    pub dead_letters: Option<Arc<dyn DeadLetters>>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Keeps what the flow needs to go on after its end, from time to time; off by default.
    pub checkpoints: Option<Checkpointing>,
    /// What else has to be the same on all ranks, such as the program's version and arguments.
    pub program: String,
    /// The ranks on which the same graph runs, and which of them this is; by default it is alone.
    pub ranks: Ranks,
}

/// Whether a flow keeps the order of its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// What one source gives arrives everywhere in the order in which it was given, even where
    /// several workers process it at once.
    #[default]
    Kept,
    /// Items may overtake each other, so that no worker's results wait for another's.
    Free,
}

impl Default for FlowSettings {
    fn default() -> Self {
        const RING_ITEMS_MAX: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();
        FlowSettings {
            workers: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            order: Order::default(),
            scheduler: Arc::new(Priority::default()),
            interval: Duration::from_millis(500),
            commit_interval: Duration::from_secs(1),
            ring_items_max: RING_ITEMS_MAX,
            dead_letters: None,
            clock: Arc::new(SystemClock::default()),
            checkpoints: None,
            program: String::new(),
            ranks: Ranks::alone(),
        }
    }
}

/// Room of a ring at first.
const RING_ITEMS_MIN: usize = 8;

/// Memory of a ring at most, so that what is handed on is still in the cache when it is read;
/// whatever that is in items, there is room for `RING_ITEMS_MIN`.
const RING_BYTES_MAX: usize = 1 << 20;

/// A dataflow graph that is being built; [`run`](Flow::run) starts it.
pub struct Flow {
    pub(crate) name: String,
    pub(crate) settings: FlowSettings,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) pause: Arc<Pause>,
    pub(crate) stages: Vec<Arc<dyn Stage>>,
    pub(crate) channels: Vec<Arc<ChannelState>>,
    pub(crate) states: Vec<(String, Arc<dyn StateReader>)>,
    /// Stages that were begun and have no end yet.
    pub(crate) open: Vec<String>,
    /// What was found wrong while it was built.
    pub(crate) faults: Vec<FlowError>,
    /// Who says marks so far.
    writers: WriterId,
    /// The ways to other ranks so far.
    pub(crate) exits: Vec<Arc<Outlets>>,
    /// What the types of the graph do not show and has to be the same on all ranks.
    pub(crate) agreed: Vec<String>,
    pub(crate) homes: Homes,
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
            pause: Arc::default(),
            stages: Vec::new(),
            channels: Vec::new(),
            states: Vec::new(),
            open: Vec::new(),
            faults: Vec::new(),
            writers: 0,
            exits: Vec::new(),
            agreed: Vec::new(),
            homes: Homes::default(),
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
                pause: Arc::clone(&self.pause),
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

    /// A state element readable under `name`: of each key, what `aggregate` makes of its items over each
    /// of some windows.
    pub fn windowed<K: Key, A: Combine>(
        &mut self,
        name: &str,
        windows: Windows,
        aggregate: A,
    ) -> Windowed<K, A> {
        let ranks = self.settings.ranks.count();
        self.agreed.push(format!("{name}: {windows:?}"));
        let state = Windowed::new(windows, aggregate, self.homes.clone(), ranks);
        self.add_state(name, state.clone());
        state
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

    fn start(self) -> Result<Running, FlowError> {
        self.check()?;
        let purpose = begin::begin(&self)?;
        Running::start(self, purpose)
    }

    pub(crate) fn add_state(&mut self, name: &str, state: impl StateReader + 'static) {
        self.states.push((name.to_owned(), Arc::new(state)));
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
            doorbell: &self.doorbell,
            stopping: &self.stopping,
            pause: &self.pause,
        };
        let (outlets, inputs) = (meeting.outlets(), meeting.inputs());
        self.exits.push(Arc::clone(&outlets));
        Some((outlets, inputs))
    }

    /// Begins a stage that reads what comes from other ranks.
    pub(crate) fn receive<T: Message>(
        &mut self,
        name: &str,
        inputs: Vec<RemoteInput<T>>,
    ) -> Operators<'_, RemoteInput<T>, Same> {
        Operators {
            tells_time: true,
            ..Operators::begin(self, name, None, inputs)
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.doorbell))
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
        self.channels.push(Arc::clone(&state));
        (rings, state)
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
    pub(crate) flow: &'f mut Flow,
    stage: String,
    /// The channel that the inputs are rings of; none for a source.
    channel: Option<Arc<ChannelState>>,
    pub(crate) inputs: Vec<I>,
    /// Whether they share one ring.
    pub(crate) is_shared: bool,
    chain: C,
    /// How many operators the stage has.
    pub(crate) operators: usize,
    watermarks: Option<Watermarks>,
    /// Whether it says marks, being the first stage.
    tells_time: bool,
}

impl<'f, I: Input> Operators<'f, I, Same>
where
    I::Item: 'static,
{
    pub(crate) fn begin(
        flow: &'f mut Flow,
        stage: &str,
        channel: Option<Arc<ChannelState>>,
        inputs: Vec<I>,
    ) -> Self {
        flow.open.push(stage.to_owned());
        Operators {
            flow,
            stage: stage.to_owned(),
            channel,
            is_shared: I::IS_SHARED,
            inputs,
            chain: Same,
            operators: 0,
            watermarks: None,
            tells_time: false,
        }
    }
}

impl<'f, S: Source, C: Chain<S::Item>> Operators<'f, SourceInput<S>, C> {
    /// Tells how far event time has come: the source's items have the times that `time` gives, and are
    /// out of order by as much as `watermarks` says. Windows further on close by that.
    pub fn watermarks<F>(
        mut self,
        time: F,
        watermarks: Watermarks,
    ) -> Operators<'f, SourceInput<S>, SeeTime<C, F>>
    where
        C::Out: Debug,
        F: Fn(&C::Out) -> Timestamp + Send + Sync + 'static,
    {
        self.watermarks = Some(watermarks);
        self.tells_time = true;
        self.add("watermarks", |before, label| SeeTime {
            before,
            function: time,
            label,
        })
    }
}

impl<'f, I: Input, C: Chain<I::Item>> Operators<'f, I, C> {
    /// Turns each item into another.
    pub fn map<U, F>(self, function: F) -> Operators<'f, I, Map<C, F, U>>
    where
        C::Out: Debug,
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
        C::Out: Debug,
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
        C::Out: Debug,
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

    /// Takes each item apart: as [`flat_map`](Operators::flat_map), where the items themselves say what they
    /// hold, so that all that follows is compiled into one loop with it.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flatten, Flow};
    ///
    /// #[derive(Debug)]
    /// struct Pair([u64; 2]);
    ///
    /// impl Flatten for Pair {
    ///     type Item = u64;
    ///
    ///     fn for_each_item(&self, visit: impl FnMut(&u64)) {
    ///         self.0.iter().for_each(visit);
    ///     }
    /// }
    ///
    /// let mut flow = Flow::new("pairs");
    /// let sum = flow.partial::<u64>("sum");
    /// flow.source("pairs", Generator::new(|number| Pair([number, 1])).limit(10))
    ///     .flatten()
    ///     .fold_local(&sum, |sum, number| *sum += number);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 45 + 10);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn flatten(self) -> Operators<'f, I, Flat<C>>
    where
        C::Out: Flatten + Debug,
    {
        self.add("flatten", |before, label| Flat { before, label })
    }

    /// Turns each part of each item into any number of items, as [`flat_map`](Operators::flat_map)
    /// does with whole items. A part that makes `function` panic twice, or for which it answers an
    /// error, becomes a dead letter; the other parts go their way. What `function` does beside its
    /// results may be done again for the parts before one that it panics on.
    ///
    /// ```
    /// use millstream_base::SystemDisk;
    /// use millstream_flow::sources::{LineFiles, LineLimits};
    /// use millstream_flow::{BoxError, DeadLetter, DeadLetters, Emit, Flow, FlowSettings};
    /// use std::sync::{Arc, Mutex};
    ///
    /// #[derive(Default)]
    /// struct Letters(Mutex<Vec<DeadLetter>>);
    /// impl DeadLetters for Letters {
    ///     fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
    ///         self.0.lock().unwrap().extend_from_slice(letters);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("text");
    /// # std::fs::write(&path, "1\ntwo\n3\n")?;
    /// let files = LineFiles::open(&SystemDisk, [path], LineLimits::default())?;
    /// let letters = Arc::new(Letters::default());
    /// let mut flow = Flow::with_settings("sum", FlowSettings {
    ///     dead_letters: Some(letters.clone()),
    ///     ..FlowSettings::default()
    /// });
    /// let sum = flow.partial::<u64>("sum");
    /// flow.source("read", files)
    ///     .each(|line, emit: &mut Emit<u64>| {
    ///         emit(&str::from_utf8(line)?.parse()?);
    ///         Ok(())
    ///     })
    ///     .fold_local(&sum, |sum, number| *sum += number);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 4);
    /// let letter = &letters.0.lock().unwrap()[0];
    /// assert_eq!(letter.item, r#"b"two""#);
    /// assert_eq!(letter.error, "invalid digit found in string");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn each<U, F>(self, function: F) -> Operators<'f, I, Each<C, F, U>>
    where
        C::Out: Parts + Debug,
        F: Fn(&<C::Out as Parts>::Part<'_>, &mut Emit<'_, U>) -> Result<(), BoxError>
            + Send
            + Sync
            + 'static,
        U: ?Sized + 'static,
    {
        self.add("each", |before, label| Each {
            before,
            function,
            label,
            result: PhantomData,
        })
    }

    /// Joins each item with the row of a table that `key` leads to. Items without one are dropped.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flow, Table};
    ///
    /// let prices = Table::new([("tea", 3), ("milk", 2)]);
    /// let mut flow = Flow::new("bill");
    /// let sum = flow.partial::<u64>("sum");
    /// flow.source("orders", Generator::new(|number| ["tea", "milk", "air"][number as usize % 3]).limit(6))
    ///     .join(&prices, |order| *order, |_, price| *price)
    ///     .fold_local(&sum, |sum, price| *sum += price);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 2 * (3 + 2));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn join<K, V, U, F, G>(
        self,
        table: &Table<K, V>,
        key: F,
        function: G,
    ) -> Operators<'f, I, Join<C, K, V, F, G, U>>
    where
        C::Out: Debug,
        K: Hash + Eq + Send + Sync + 'static,
        V: Send + Sync + 'static,
        F: Fn(&C::Out) -> K + Send + Sync + 'static,
        G: Fn(&C::Out, &V) -> U + Send + Sync + 'static,
        U: 'static,
    {
        let table = table.clone();
        self.add("join", |before, label| Join {
            before,
            table,
            key,
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
        let channel = self.flow.channel(name);
        self.end_in(&channel).stage(name, &channel)
    }

    /// Ends the stage in a channel.
    pub fn to(self, channel: &Channel<C::Out>)
    where
        C::Out: Clone + Send + Sized + 'static,
    {
        self.end_in(channel);
    }

    fn end_in(self, channel: &Channel<C::Out>) -> &'f mut Flow
    where
        C::Out: Clone + Send + Sized + 'static,
    {
        let channels = [channel.clone()];
        self.end(
            &channels.each_ref().map(|channel| &channel.state),
            |place| ToRing(Outbox::of_channels(place, &channels)),
        )
    }

    /// Ends the stage in several channels: each item goes to the one whose index `route` gives.
    pub fn split<F>(self, channels: &[Channel<C::Out>], route: F)
    where
        C::Out: Clone + Debug + Send + Sized + 'static,
        F: Fn(&C::Out) -> usize + Send + Sync + 'static,
    {
        let route = Arc::new(route);
        let label = self.label("split");
        let states: Vec<_> = channels.iter().map(|channel| &channel.state).collect();
        self.end(&states, |place| ToSplit {
            outbox: Outbox::of_channels(place, channels),
            route: Arc::clone(&route),
            label: label.clone(),
        });
    }

    /// Ends the stage in several channels, each of which gets every item: for several operators over the
    /// same items. Items that are handles of something larger are the cheaper.
    pub fn to_all(self, channels: &[Channel<C::Out>])
    where
        C::Out: Clone + Send + Sized + 'static,
    {
        let states: Vec<_> = channels.iter().map(|channel| &channel.state).collect();
        self.end(&states, |place| ToAll(Outbox::of_channels(place, channels)));
    }

    /// Ends the graph in a partial state: `step` takes each item into a part of it.
    pub fn fold_local<S, F>(self, state: &Partial<S>, step: F)
    where
        C::Out: Debug,
        S: PartialState,
        F: Fn(&mut S, &C::Out) + Send + Sync + 'static,
    {
        let step = Arc::new(step);
        let label = self.label("fold_local");
        self.end(&[], |_| ToState {
            part: state.add_part(),
            step: Arc::clone(&step),
            label: label.clone(),
        });
    }

    /// Ends the graph in a sink.
    pub fn sink<K>(mut self, name: &str, sink: K)
    where
        C::Out: Clone + Send + Sized + 'static,
        K: Sink<C::Out>,
    {
        let sink = Arc::new(Mutex::new(sink));
        let label = Label(name.into());
        let waker = self.flow.waker();
        if self.keeps_order() {
            // One worker at a time brings the items, in their order.
            self.inputs.truncate(1);
        }
        self.end(&[], |_| ToSink {
            sink: Arc::clone(&sink),
            waker: waker.clone(),
            label: label.clone(),
            waiting: Vec::new(),
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
            channel: self.channel,
            inputs: self.inputs,
            is_shared: self.is_shared,
            chain: fuse(self.chain, label),
            operators: self.operators,
            watermarks: self.watermarks,
            tells_time: self.tells_time,
        }
    }

    /// Names an operator by its stage and its place in it.
    pub(crate) fn label(&self, kind: &str) -> Label {
        Label(format!("{}/{}.{kind}", self.stage, self.operators).into())
    }

    /// Adds the stage to the flow, with a terminal for each of its instances.
    pub(crate) fn end<T: Terminal<C::Out>>(
        self,
        outputs: &[&Arc<ChannelState>],
        mut terminal: impl FnMut(Place<'_>) -> T,
    ) -> &'f mut Flow {
        let keeps_order = self.keeps_order();
        let flow = self.flow;
        flow.open.pop();
        let count = self.inputs.len();
        let first = flow.writers;
        let writers = match self.is_shared {
            true => first..first + 1,
            false => first..first + count as WriterId,
        };
        flow.writers = writers.end;
        let writers: Vec<_> = writers.collect();
        outputs
            .iter()
            .for_each(|channel| channel.add_writer(&writers));
        let instances = self.inputs.into_iter().zip(writers.iter().cycle());
        let instances: Vec<_> = instances
            .map(|(input, writer)| {
                let place = Place {
                    input: self.channel.as_ref(),
                    writer: *writer,
                };
                let time = StageTime::new(self.watermarks);
                Slot::new(Instance::new(input, terminal(place), time))
            })
            .collect();
        flow.stages.push(Arc::new(FusedStage {
            name: self.stage,
            chain: self.chain,
            live: AtomicUsize::new(instances.len()),
            order: (keeps_order && instances.len() > 1).then(Mutex::default),
            instances,
            turn: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            giving_since_ns: AtomicU64::new(0),
            is_blocked: AtomicBool::new(false),
            idle_since: AtomicU64::new(0),
            tells_time: self.tells_time,
            input: self.channel,
            outputs: outputs.iter().map(|channel| Arc::clone(channel)).collect(),
            stopping: Arc::clone(&flow.stopping),
            counters: Counters::default(),
        }));
        flow
    }

    /// Whether the instances share a ring whose order counts.
    pub(crate) fn keeps_order(&self) -> bool {
        self.is_shared && self.flow.settings.order == Order::Kept
    }
}
