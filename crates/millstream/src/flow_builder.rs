//! Flows: programs over topics.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_connect::{AnyRecords, AnySource, check_flow_name};
use millstream_exchange::Ranks;
use millstream_flow::serving::{Call, RequestSettings, RequestSource, Requests};
use millstream_flow::{
    Chain, Checkpointing, Class, Emit, Entry, FlowSettings, Operators, Resume, Source, SourceInput,
};
use millstream_log::Share;
use parking_lot::Mutex;

use crate::codec::Codec;
use crate::error::Error;
use crate::event::Event;
use crate::logged_letters::LoggedLetters;
use crate::node::{Encoder, End, Node};
use crate::running::{RunningFlow, fail_others};
use crate::stream::{Decoder, Stream};
use crate::topic::Topic;

/// A program over topics: it reads topics, and computes, serves and writes results.
///
/// While there are records, the flow takes a checkpoint in its node every 10 ms to 10 s, as they cost little or much, and
/// readers of committed records see its results. Started again, it goes on from there, however it ended: each
/// record counts once in its state and in the topics that it writes. Records that a codec cannot read, and
/// events that come too late, go to the topic `<flow>.dead_letters`, unless [`dead_letters`](Flow::dead_letters) names
/// another.
///
/// A clone is another handle of the same flow, to read a second topic.
#[derive(Clone)]
pub struct Flow {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    name: String,
    settings: FlowSettings,
    state: Mutex<State>,
}

struct State {
    /// Whether the flow resumes from its checkpoint in the node.
    resume: Resume,
    /// Whether it ends at the present ends of all topics.
    until_now: bool,
    /// The interval of checkpoints; `None` for one that adapts to their cost.
    checkpoint_interval: Option<Duration>,
    /// The topic of dead letters; `None` for the flow's own.
    dead_letters: Option<String>,
    /// Serves HTTP there.
    http: Option<SocketAddr>,
    engine: Option<millstream_flow::Flow>,
    /// Whether the engine's checkpoints and dead letters are in a node.
    has_node: bool,
    request_settings: RequestSettings,
    /// The queue of its requests, if it takes some.
    requests: Option<Requests>,
    /// The first error of a step that could not return it.
    fault: Option<Error>,
    /// Names given to stages and states so far.
    names: Vec<String>,
}

impl Default for State {
    fn default() -> Self {
        State {
            resume: Resume::IfAny,
            until_now: false,
            checkpoint_interval: None,
            dead_letters: None,
            http: None,
            engine: None,
            has_node: false,
            request_settings: RequestSettings::default(),
            requests: None,
            fault: None,
            names: Vec::new(),
        }
    }
}

impl Flow {
    /// Returns an empty flow. Its name also names its checkpoints, its state and its transactions: no two flows of a
    /// node share one. It has 1 to 150 letters, digits, `.`, `_` and `-`; with another name the flow does not start.
    pub fn new(name: &str) -> Flow {
        Flow::with_settings(name, FlowSettings::default())
    }

    /// Returns an empty flow with other than the default settings. Checkpoints and dead letters that they name replace those of the
    /// flow's node.
    pub fn with_settings(name: &str, settings: FlowSettings) -> Flow {
        let state = State {
            fault: check_flow_name(name).err().map(Error::from),
            ..State::default()
        };
        Flow {
            shared: Arc::new(Shared {
                name: name.to_owned(),
                settings,
                state: Mutex::new(state),
            }),
        }
    }

    /// Returns the flow's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Begins with the records of a topic, from the oldest on. The first topic that a flow reads also decides the node
    /// of its checkpoints and dead letters. The topic must exist.
    ///
    /// Records without a value, which delete their keys in keyed topics, give no item. An item's time is its record's,
    /// and no window closes by it: windows need [`event_time`](Stream::event_time).
    pub fn read<C: Codec>(
        &self,
        topic: Topic<C>,
    ) -> Stream<
        SourceInput<AnySource>,
        impl Chain<AnyRecords, Out = Event<C::Item>> + use<C>,
        C::Item,
    > {
        let engine = self.begin(&topic.node);
        let share = self.share();
        let end = match self.is_until_now() {
            true => End::Now,
            false => topic.end,
        };
        let sources = topic.node.sources(&topic.name, end, share);
        let sources = sources.unwrap_or_else(|error| {
            self.fault(topic.error(error));
            Vec::new()
        });
        let decoder = Decoder {
            time: Some(Arc::default()),
            ..Decoder::default()
        };
        let given = decoder.time.clone().unwrap_or_default();
        let leaves_keys_out = Arc::clone(&decoder.leaves_keys_out);
        let codec = topic.codec;
        let name = self.stage_name(&topic.name);
        let operators =
            engine
                .sources(&name, sources)
                .each(move |record, emit: &mut Emit<Event<C::Item>>| {
                    let Some(value) = record.value else {
                        return Ok(());
                    };
                    let item = codec.decode(value)?;
                    let time = given.get().map_or(record.timestamp, |time| time(&item));
                    let key = match leaves_keys_out.load(Ordering::Relaxed) {
                        true => None,
                        false => record.key.map(Box::from),
                    };
                    emit(&Event { time, key, item });
                    Ok(())
                });
        Stream::with_decoder(self.clone(), operators, decoder)
    }

    /// Begins with the items of sources of the program itself, such as a [`Generator`](millstream_flow::sources::Generator), under
    /// this name. As many workers read them at once. Each rank has sources of its own, with its [share](Self::share) of the
    /// items. If they are the flow's first input, the node is that of its checkpoints and dead letters.
    ///
    /// An item has no key, and the time 0 until [`event_time`](Stream::event_time) sets it.
    ///
    /// ```
    /// use millstream::flow::sources::Generator;
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let squares = node.topic("squares").json::<u64>();
    /// let flow = Flow::new("squares");
    /// let (first, step) = (u64::from(flow.share().index), u64::from(flow.share().of));
    /// let numbers = Generator::new(move |turn| first + turn * step).limit((100 - first).div_ceil(step));
    /// flow.sources(&node, "numbers", vec![numbers])
    ///     .map(|number| number * number)
    ///     .write(squares.clone())
    ///     .run()?;
    /// assert_eq!(squares.read_all()?.iter().sum::<u64>(), 328_350);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn sources<S>(
        &self,
        node: &Node,
        name: &str,
        sources: Vec<S>,
    ) -> Stream<SourceInput<S>, impl Chain<S::Item, Out = Event<S::Item>> + use<S>, S::Item>
    where
        S: Source<Item: Debug + Clone>,
    {
        let engine = self.begin(node);
        self.begin_with(&engine, name, sources)
    }

    /// Begins with the items of sources, in a flow whose engine is known.
    fn begin_with<S>(
        &self,
        engine: &millstream_flow::Flow,
        name: &str,
        sources: Vec<S>,
    ) -> Stream<SourceInput<S>, impl Chain<S::Item, Out = Event<S::Item>> + use<S>, S::Item>
    where
        S: Source<Item: Debug + Clone>,
    {
        let name = self.stage_name(name);
        let decoder = Decoder {
            time: Some(Arc::default()),
            ..Decoder::default()
        };
        let given = decoder.time.clone().unwrap_or_default();
        let operators = engine
            .sources(&name, sources)
            .map(move |item: &S::Item| Event {
                time: given.get().map_or(Timestamp(0), |time| time(item)),
                key: None,
                item: item.clone(),
            });
        Stream::with_decoder(self.clone(), operators, decoder)
    }

    /// Begins with requests: a serving flow. Each is a [`Call`], which reads as a [`Request`](crate::Request) and can be
    /// [replied](Call::reply) to behind any operators; [`respond`](Stream::respond) sends the replies. Callers are programs
    /// over HTTP, at `/q/<flow>/…`, and this program, by [`RunningFlow::requests`]. A flow takes requests once.
    ///
    /// If this is the flow's first input, it takes no checkpoints, and items that operators cannot process are logged;
    /// [`node`](Self::node) names a node for both. Requests are in no checkpoint. They are not repeated: a caller learns that
    /// the flow has failed. A serving flow runs until it is stopped.
    ///
    /// On several ranks, each takes requests, and has the state of the keys that it owns. [`key_by`](Stream::key_by) and an operator
    /// behind it send a call to the rank that owns its key; the reply comes back to the rank of the caller. There is no
    /// [streamed](crate::Response::streamed) response from another rank.
    ///
    /// A call has one outcome: the first reply; or an error, at once if the flow drops the call (a filter leaves it out, or an
    /// operator fails for it), after [`time_max`](RequestSettings::time_max), or when the flow ends.
    ///
    /// ```
    /// use millstream::{Flow, Node, Request, Response};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// orders.send([("ann".to_owned(), 3), ("ben".to_owned(), 5), ("ann".to_owned(), 4)])?;
    ///
    /// // Analytics: a sum for each user.
    /// let sums = Flow::new("sums");
    /// let orders = sums.read(orders.until_now());
    /// let spent = sums.engine().values::<String, u64>("spent");
    /// let sums = orders.key_by(|(user, _)| user.clone()).fold("spend", &spent, |spent, (_, price)| {
    ///     *spent = Some(spent.unwrap_or(0) + price);
    /// });
    /// let sums = sums.start()?;
    /// sums.join()?;
    ///
    /// // Serving: over HTTP `/q/spent/ann`.
    /// let serving = Flow::new("spent")
    ///     .requests()
    ///     .map(move |call| {
    ///         let user = call.segment(0).unwrap_or_default();
    ///         call.reply(match spent.get(&user) {
    ///             Some(spent) => Response::json(&spent),
    ///             None => Response::not_found("no such user"),
    ///         })
    ///     })
    ///     .respond()
    ///     .start()?;
    /// let requests = serving.requests().expect("it takes requests");
    /// assert_eq!(requests.call(Request::get("/ann")).wait().unwrap().body_text(), Some("7"));
    /// assert_eq!(requests.call(Request::get("/eve")).wait().unwrap().status_code(), 404);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn requests(
        &self,
    ) -> Stream<SourceInput<RequestSource>, impl Chain<Call, Out = Event<Call>> + use<>, Call> {
        let engine = self.begin_without_node();
        let settings = &self.shared.settings;
        let refuse = |why| {
            let flow = self.shared.name.clone();
            self.fault(Error::Requests { flow, why });
        };
        let mut state = self.shared.state.lock();
        let request_settings = state.request_settings.clone();
        let requests = Requests::new(&engine, request_settings);
        let is_second = state.requests.replace(requests.clone()).is_some();
        drop(state);
        if is_second {
            refuse("it takes requests twice: use one stream of them, and `fork` it");
        }
        let sources = requests.sources(settings.workers.get());
        self.begin_with(&engine, "requests", sources)
    }

    /// Sets the bounds of [requests](Self::requests), their time, and the web sites that may make them; before `requests`.
    #[must_use]
    pub fn request_settings(self, settings: RequestSettings) -> Flow {
        self.shared.state.lock().request_settings = settings;
        self
    }

    /// Names the node of the flow's checkpoints, state and dead letters, for a flow that takes [requests](Self::requests) and
    /// reads no topic before that. Its [`engine`](Self::engine) is there from now on.
    #[must_use]
    pub fn node(self, node: &Node) -> Flow {
        self.begin(node);
        self
    }

    /// Returns the share of the input that this rank reads: all of it, if there is one rank.
    pub fn share(&self) -> Share {
        let ranks = &self.shared.settings.ranks;
        Share {
            index: ranks.rank(),
            of: ranks.count(),
        }
    }

    /// Sets whether the flow resumes from its last checkpoint, before it reads its first topic; by default it does if
    /// there is one.
    #[must_use]
    pub fn resume(self, resume: Resume) -> Flow {
        self.shared.state.lock().resume = resume;
        self
    }

    /// Ends the reading of all topics at their present ends, as [`Topic::until_now`] does for one; set before the
    /// first is read.
    #[must_use]
    pub fn until_now(self) -> Flow {
        self.shared.state.lock().until_now = true;
        self
    }

    /// Sets the time from one checkpoint to the next, before the flow reads its first topic: a short one makes results visible
    /// early, a long one costs less. By default it adapts: from 10 ms to 10 s, at least five times as long as the last
    /// checkpoint took.
    #[must_use]
    pub fn checkpoint_interval(self, interval: Duration) -> Flow {
        self.shared.state.lock().checkpoint_interval = Some(interval);
        self
    }

    /// Names the topic of the flow's dead letters, which is made with the first of them; set before the first topic is
    /// read. Each has its record's key and value, and headers with the error and the origin: topic, partition and offset.
    #[must_use]
    pub fn dead_letters(self, topic: &str) -> Flow {
        let mut state = self.shared.state.lock();
        if state.engine.is_some() {
            state.fault.get_or_insert(Error::Topic {
                topic: topic.to_owned(),
                error: "the flow reads a topic already: name its dead letters before `read`".into(),
            });
        }
        state.dead_letters = Some(topic.to_owned());
        drop(state);
        self
    }

    /// Serves the flow's page, state and metrics over HTTP at this address while it runs. Visitors do not log in: the
    /// flow does not start at an address that other machines reach.
    #[must_use]
    pub fn http(self, address: SocketAddr) -> Flow {
        self.shared.state.lock().http = Some(address);
        self
    }

    /// Returns the engine's flow, to add state elements to: [`maps`](millstream_flow::Flow::maps),
    /// [`sets`](millstream_flow::Flow::sets), [`counters`](millstream_flow::Flow::counters),
    /// [`ordered_maps`](millstream_flow::Flow::ordered_maps), [`lists`](millstream_flow::Flow::lists),
    /// [`vectors`](millstream_flow::Flow::vectors), [`matrices`](millstream_flow::Flow::matrices),
    /// [`tops`](millstream_flow::Flow::tops) and [`values`](millstream_flow::Flow::values) by key, and
    /// [`partial_map`](millstream_flow::Flow::partial_map) and [`partial_matrix`](millstream_flow::Flow::partial_matrix),
    /// of which each instance has a replica. [`Keyed::update`](crate::Keyed::update) and
    /// [`Stream::update_local`] change them. `/state/<flow>/<name>/…` answers them, and the keyed topic
    /// `<flow>.state.<name>` holds them as of the last checkpoint. The element itself is a handle, which the program reads
    /// while the flow runs and after its end.
    ///
    /// The flow reads its first topic before this is called, since its state is in that topic's node; otherwise it does not
    /// start. Only this flow is run, not the engine's.
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, String, u32)>().create()?;
    /// let order = |user: &str, item: &str, count| (user.to_owned(), item.to_owned(), count);
    /// orders.send([order("ann", "tea", 2), order("ben", "cup", 1), order("ann", "cup", 3)])?;
    ///
    /// let flow = Flow::new("shop");
    /// let orders = flow.read(orders.until_now());
    /// let carts = flow.engine().maps::<String, String, u32>("carts");
    /// let filled = orders
    ///     .key_by(|(user, _, _)| user.clone())
    ///     .update("fill", &carts, |_user, mut cart, (_, item, count), emit| {
    ///         *cart.or_default(item) += count;
    ///         emit(&cart.values().sum::<u32>());
    ///     })
    ///     .write(node.topic("cart_sizes").json());
    /// let running = filled.start()?;
    /// running.join()?;
    /// assert_eq!(carts.get(&"ann".to_owned(), &"cup".to_owned()), Some(3));
    /// assert_eq!(carts.entries(&"ben".to_owned()), [("cup".to_owned(), 1)]);
    /// // Over HTTP: `/state/shop/carts/["ann","tea"]`.
    /// assert_eq!(running.state("carts").and_then(|carts| carts.get(r#"["ann","tea"]"#)).unwrap(), 2);
    /// # let mut sizes = node.topic("cart_sizes").json::<u32>().read_all()?;
    /// # sizes.sort_unstable();
    /// # assert_eq!(sizes, [1, 2, 5]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn engine(&self) -> millstream_flow::Flow {
        let mut state = self.shared.state.lock();
        if let Some(engine) = &state.engine {
            return engine.clone();
        }
        let flow = self.shared.name.clone();
        state.fault.get_or_insert(Error::NoEngine { flow });
        // Its elements have the right types, and are never in use.
        millstream_flow::Flow::with_settings(&self.shared.name, self.shared.settings.clone())
    }

    /// Starts the flow, and waits for its end: of all topics that it reads [until now](Topic::until_now), or never.
    ///
    /// # Errors
    /// When a topic is missing, the flow is not whole, or it fails.
    pub fn run(self) -> Result<(), Error> {
        let running = self.start()?;
        running.join()?;
        Ok(())
    }

    /// Starts the flow, and returns it at work. Dropped, it ends where it stands.
    ///
    /// # Errors
    /// As [`run`](Self::run). On several ranks, all flows on these ranks then end with the error.
    pub fn start(self) -> Result<RunningFlow, Error> {
        let ranks = self.ranks().clone();
        let started = self.start_here();
        started.inspect_err(|error| fail_others(&ranks, error))
    }

    fn start_here(self) -> Result<RunningFlow, Error> {
        let mut state = self.shared.state.lock();
        if let Some(fault) = state.fault.take() {
            return Err(fault);
        }
        let engine = state.engine.take().ok_or_else(|| Error::NoInput {
            flow: self.shared.name.clone(),
        })?;
        let (http, requests) = (state.http, state.requests.take());
        drop(state);
        RunningFlow::start(engine, http, requests)
    }

    /// Takes the address of its HTTP server, which the job has in its place.
    pub(crate) fn take_http(&self) -> Option<SocketAddr> {
        self.shared.state.lock().http.take()
    }

    /// Returns the queue of its requests, if it takes some.
    pub(crate) fn request_queue(&self) -> Option<Requests> {
        self.shared.state.lock().requests.clone()
    }

    /// Returns the ranks that run the flow.
    pub(crate) fn ranks(&self) -> &Ranks {
        &self.shared.settings.ranks
    }

    /// Whether the reading of all topics ends at their present ends.
    pub(crate) fn is_until_now(&self) -> bool {
        self.shared.state.lock().until_now
    }

    /// Returns the engine's flow, which the first call makes.
    pub(crate) fn begin(&self, node: &Node) -> millstream_flow::Flow {
        let mut state = self.shared.state.lock();
        if let Some(engine) = state.engine.clone() {
            if !state.has_node {
                let flow = self.shared.name.clone();
                let why = "it reads a topic, and its node was not known at `requests`: call `read` or `node` before `requests`";
                state.fault.get_or_insert(Error::Requests { flow, why });
            }
            return engine;
        }
        let mut settings = self.shared.settings.clone();
        let name = &self.shared.name;
        let mut fault = None;
        if settings.checkpoints.is_none() {
            match node.checkpoints(name) {
                Ok(store) => {
                    settings.checkpoints = Some(Checkpointing {
                        store,
                        interval: state.checkpoint_interval,
                        resume: state.resume,
                    });
                }
                Err(error) => fault = Some(error),
            }
        }
        if settings.dead_letters.is_none() {
            match node.dead_letters(name, state.dead_letters.as_deref()) {
                Ok(letters) => settings.dead_letters = Some(letters),
                Err(error) => fault = Some(error),
            }
        }
        if let Some(error) = fault {
            let topic = name.clone();
            state.fault.get_or_insert(Error::Topic { topic, error });
        }
        let engine = millstream_flow::Flow::with_settings(name, settings);
        state.engine = Some(engine.clone());
        state.has_node = true;
        engine
    }

    /// Returns the engine's flow; if there is none yet, makes one without checkpoints, whose dead letters are logged.
    fn begin_without_node(&self) -> millstream_flow::Flow {
        let mut state = self.shared.state.lock();
        let engine = state.engine.get_or_insert_with(|| {
            let mut settings = self.shared.settings.clone();
            // A caller waits for each of its items.
            settings.class = Class::Critical;
            settings
                .dead_letters
                .get_or_insert_with(|| Arc::new(LoggedLetters));
            millstream_flow::Flow::with_settings(&self.shared.name, settings)
        });
        engine.clone()
    }

    /// As [`engine`](Self::engine), of a flow that reads a topic already.
    pub(crate) fn begun(&self) -> millstream_flow::Flow {
        let state = self.shared.state.lock();
        let engine = state.engine.clone();
        engine.unwrap_or_else(|| unreachable!("a stream begins with a topic"))
    }

    /// Ends operators in a topic, which `ensure` checks and makes if it is missing. `encode` makes the records.
    pub(crate) fn end<I, C, D>(
        self,
        operators: Operators<I, C>,
        mut topic: Topic<D>,
        ensure: impl FnOnce(&mut Topic<D>) -> Result<(), Error>,
        encode: Encoder<C::Out>,
    ) -> Flow
    where
        I: Entry,
        C: Chain<I::Item, Out: Clone + Send + Sized + 'static>,
    {
        if !self.has_fault()
            && let Err(error) = ensure(&mut topic)
        {
            self.fault(error);
        }
        let name = self.stage_name(&topic.name);
        match topic.node.sink(&topic.name, encode) {
            Ok(sink) => drop(operators.sink(&name, sink)),
            Err(error) => self.fault(topic.error(error)),
        }
        self
    }

    /// Returns whether [`start`](Self::start) will return an error: then no topics may be created for the flow.
    fn has_fault(&self) -> bool {
        self.shared.state.lock().fault.is_some()
    }

    /// Notes an error that [`start`](Self::start) returns.
    pub(crate) fn fault(&self, error: Error) {
        self.shared.state.lock().fault.get_or_insert(error);
    }

    /// Returns a name for a stage that no other one of the flow has: `base`, or `base-2` and so on. The same program gives
    /// the same names at each start. States have the names of their stages, and topics those of states.
    pub(crate) fn stage_name(&self, base: &str) -> String {
        let mut state = self.shared.state.lock();
        let mut numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut name = base.to_owned();
        while state.names.contains(&name) {
            name = numbered.next().unwrap_or_default();
        }
        state.names.push(name.clone());
        name
    }
}
