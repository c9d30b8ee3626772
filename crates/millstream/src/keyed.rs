//! Streams by key, and their windows.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use millstream_flow::windows::{
    Aggregate, All, Combine, Count, Fold, Key, Number, Sum, WindowResult, Windows, fold,
};
use millstream_flow::{
    Chain, Emit, Entry, KeyedItem, Message, RingInput, Value, Values, WithValue,
};

use crate::codec::Encode;
use crate::event::{Event, key_bytes};
use crate::flow_builder::Flow;
use crate::stream::Stream;
use crate::topic::Topic;

/// A stream whose items are grouped by a key.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Keyed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
{
    pub(crate) stream: Stream<I, C, T>,
    pub(crate) key: Arc<F>,
}

/// A stream by key that is about to change a value for each key.
#[must_use = "operators whose results go nowhere do not run"]
pub struct KeyedState<I, C, T, F, V>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
{
    keyed: Keyed<I, C, T, F>,
    name: String,
    value: PhantomData<fn() -> V>,
}

/// A stream by key whose items are about to be aggregated in windows.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Windowed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
{
    keyed: Keyed<I, C, T, F>,
    windows: Windows,
}

/// An aggregate over windows, which still needs its name.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Aggregated<I, C, T, F, A>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
{
    windowed: Windowed<I, C, T, F>,
    aggregate: A,
}

/// An aggregate over the items of events.
pub struct OfItem<A>(pub(crate) A);

impl<A: Combine> Combine for OfItem<A> {
    type State = A::State;
    type Out = A::Out;

    fn empty(&self) -> A::State {
        self.0.empty()
    }

    fn merge(&self, state: &mut A::State, other: &A::State) {
        self.0.merge(state, other);
    }

    fn result(&self, state: &A::State, events: u64) -> A::Out {
        self.0.result(state, events)
    }
}

impl<T, A: Aggregate<T>> Aggregate<Event<T>> for OfItem<A> {
    #[inline]
    fn add(&self, state: &mut A::State, event: &Event<T>) {
        self.0.add(state, &event.item);
    }
}

/// The row of operators in which the results of windows come.
pub(crate) type Results<K, O> = RingInput<WindowResult<K, O>>;

impl<I, C, T, K, F> Keyed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + Clone + Send + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Collects the items of each key in windows of event time: see [`tumbling`](crate::tumbling) and
    /// [`sliding`](crate::sliding).
    pub fn window(self, windows: Windows) -> Windowed<I, C, T, F> {
        Windowed {
            keyed: self,
            windows,
        }
    }

    /// Keeps a value of type `V` for each key, under this name: `/state/<flow>/<name>/<key>` answers it, and the keyed
    /// topic `<flow>.state.<name>` holds the values of the last checkpoint. Maps, lists and other elements are those of
    /// [`Flow::engine`].
    pub fn state<V>(self, name: &str) -> KeyedState<I, C, T, F, V> {
        KeyedState {
            keyed: self,
            name: name.to_owned(),
            value: PhantomData,
        }
    }

    /// Writes the items to a topic with their keys, in place of those that they had: the key of an item decides its partition.
    /// Otherwise as [`Stream::write`].
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// orders.send([("ada".to_owned(), 3), ("bob".to_owned(), 5)])?;
    /// let by_user = node.topic("by_user").json::<(String, u64)>().partitions(4);
    ///
    /// Flow::new("partition")
    ///     .read(orders.until_now())
    ///     .key_by(|(user, _)| user.clone())
    ///     .write(by_user.clone())
    ///     .run()?;
    /// assert_eq!(by_user.read_keys::<String>()?["bob"].1, 5);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn write<D: Encode<T>>(self, topic: Topic<D>) -> Flow {
        let key = self.key;
        let Stream {
            flow, operators, ..
        } = self.stream;
        let operators = operators.map(move |event: &Event<T>| Event {
            key: key_bytes(&key(&event.item)),
            ..event.clone()
        });
        Stream::new(flow, operators).write(topic)
    }

    /// Turns each item into another, with its key, on the rank that owns the key: there, handles of state elements have the
    /// content of this key, also those of other flows of a [`Job`](crate::Job) on the same ranks. Items of one key come in their
    /// order.
    ///
    /// ```
    /// use millstream::{Flow, Job, Node, Request, Response};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, String)>().create()?;
    /// let carts = Flow::new("carts");
    /// let orders = carts.read(orders);
    /// let items = carts.engine().sets::<String, String>("items");
    /// let carts = orders
    ///     .key_by(|(user, _)| user.clone())
    ///     .fold("add", &items, |mut items, (_, item)| drop(items.insert(item)));
    /// let serving = Flow::new("cart")
    ///     .requests()
    ///     .key_by(|call| call.segment(0).unwrap_or_default())
    ///     .map(move |user, call| call.reply(Response::json(&items.elements(user))))
    ///     .respond();
    /// let job = Job::from([carts, serving]).start()?;
    /// let requests = job.requests("cart").expect("this flow takes requests");
    /// assert_eq!(requests.call(Request::get("/ann")).wait().unwrap().body_text(), Some("[]"));
    /// # Ok::<(), millstream::Error>(())
    /// ```
    #[expect(clippy::type_complexity, reason = "an opaque type cannot have a name")]
    pub fn map<O, G>(
        self,
        function: G,
    ) -> Stream<
        RingInput<KeyedItem<K, Event<T>>>,
        impl Chain<KeyedItem<K, Event<T>>, Out = Event<O>> + use<I, C, T, K, F, O, G>,
        O,
    >
    where
        T: Message,
        K: Debug,
        O: Debug + 'static,
        G: Fn(&K, &T) -> O + Send + Sync + 'static,
    {
        let flow = self.stream.flow.clone();
        let stage = flow.stage_name("key_by");
        let results = self
            .engine()
            .map(&stage, move |key: &K, event: &Event<T>| Event {
                time: event.time,
                key: key_bytes(key),
                item: function(key, &event.item),
            });
        Stream::new(flow, results)
    }

    /// As [`map`](Self::map), with the value of the key in an element of another flow of the [`Job`](crate::Job). If the value is not
    /// in memory, the operator reads it meanwhile, and its worker goes on with other work. An item whose value cannot be read becomes
    /// a dead letter.
    ///
    /// ```
    /// use millstream::{Flow, Job, Node, Request, Response};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// let sums = Flow::new("sums");
    /// let orders = sums.read(orders);
    /// let spent = sums.engine().values::<String, u64>("spent");
    /// let sums = orders.key_by(|(user, _)| user.clone()).fold("spend", &spent, |spent, (_, price)| {
    ///     *spent = Some(spent.unwrap_or(0) + price);
    /// });
    /// let serving = Flow::new("spent")
    ///     .requests()
    ///     .key_by(|call| call.segment(0).unwrap_or_default())
    ///     .read("find", &spent, |_user, spent, call| call.reply(Response::json(&spent)))
    ///     .respond();
    /// let job = Job::from([sums, serving]).start()?;
    /// let requests = job.requests("spent").expect("this flow takes requests");
    /// assert_eq!(requests.call(Request::get("/ann")).wait().unwrap().body_text(), Some("null"));
    /// # Ok::<(), millstream::Error>(())
    /// ```
    #[expect(clippy::type_complexity, reason = "an opaque type cannot have a name")]
    pub fn read<V, O, G>(
        self,
        name: &str,
        values: &Values<K, V>,
        function: G,
    ) -> Stream<
        RingInput<WithValue<K, Event<T>, V>>,
        impl Chain<WithValue<K, Event<T>, V>, Out = Event<O>> + use<I, C, T, K, F, V, O, G>,
        O,
    >
    where
        T: Message,
        K: Debug,
        V: Value,
        O: Debug + 'static,
        G: Fn(&K, Option<&V>, &T) -> O + Send + Sync + 'static,
    {
        let flow = self.stream.flow.clone();
        let stage = flow.stage_name(name);
        let results = self.engine().read(
            &stage,
            values,
            move |key: &K, value: Option<&V>, event: &Event<T>| Event {
                time: event.time,
                key: key_bytes(key),
                item: function(key, value, &event.item),
            },
        );
        Stream::new(flow, results)
    }

    /// Returns the engine's stream by key.
    pub(crate) fn engine(
        self,
    ) -> millstream_flow::Keyed<I, C, impl Fn(&Event<T>) -> K + Send + Sync + 'static> {
        let key = self.key;
        self.stream
            .operators
            .key_by(move |event: &Event<T>| key(&event.item))
    }
}

impl<I, C, T, K, F, V> KeyedState<I, C, T, F, V>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Message + Debug + Clone,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
    V: Value,
{
    /// Calls `function` for each item with its key's value, which is `None` if the key has none. It may set, change or
    /// remove the value, and emit results, which have the item's time and are written with the key.
    ///
    /// Items of one key come in their order. A panic of `function` fails the flow, since the value may be half changed.
    pub fn update<O, G>(
        self,
        function: G,
    ) -> Stream<
        RingInput<Event<O>>,
        impl Chain<Event<O>, Out = Event<O>> + use<I, C, T, K, F, V, O, G>,
        O,
    >
    where
        O: Debug + Clone + Send + 'static,
        G: Fn(&K, &mut Option<V>, &T, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        let flow = self.keyed.stream.flow.begun();
        let values = flow.values::<K, V>(&self.name);
        self.keyed.update(&self.name, &values, function)
    }

    /// Adds each item to its key's value, which begins as the default.
    pub fn fold<G>(self, step: G) -> Flow
    where
        V: Default,
        G: Fn(&mut V, &T) + Send + Sync + 'static,
    {
        let flow = self.keyed.stream.flow.clone();
        let values = flow.begun().values::<K, V>(&self.name);
        let stage = flow.stage_name(&self.name);
        let step = move |value: &mut V, event: &Event<T>| step(value, &event.item);
        self.keyed.engine().fold(&stage, &values, step);
        flow
    }
}

impl<I, C, T, K, F> KeyedState<I, C, T, F, u64>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + Clone + Send + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Counts the items of each key. Only the keys go to the ranks that own them.
    pub fn count(self) -> Flow {
        let flow = self.keyed.stream.flow.clone();
        let values = flow.begun().values::<K, u64>(&self.name);
        let stage = flow.stage_name(&self.name);
        self.keyed.engine().count(&stage, &values);
        flow
    }
}

impl<I, C, T, K, F> Windowed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + Clone + Send + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Counts the items.
    pub fn count(self) -> Aggregated<I, C, T, F, Count> {
        self.aggregate(Count)
    }

    /// Adds up the numbers that `value` returns.
    pub fn sum<G, V>(self, value: G) -> Aggregated<I, C, T, F, Sum<G, V>>
    where
        G: Fn(&T) -> V + Send + Sync + 'static,
        V: Number,
    {
        self.aggregate(Sum::of(value))
    }

    /// Adds each item to a state: `add` adds an item, `merge` another state of the same window.
    pub fn fold<S, E, G, M>(
        self,
        empty: E,
        add: G,
        merge: M,
    ) -> Aggregated<I, C, T, F, Fold<E, G, M>>
    where
        E: Fn() -> S + Send + Sync + 'static,
        G: Fn(&mut S, &T) + Send + Sync + 'static,
        M: Fn(&mut S, &S) + Send + Sync + 'static,
    {
        self.aggregate(fold(empty, add, merge))
    }

    /// Aggregates the items by any aggregate of [`millstream_flow::windows`], or a tuple of several.
    pub fn aggregate<A>(self, aggregate: A) -> Aggregated<I, C, T, F, A> {
        Aggregated {
            windowed: self,
            aggregate,
        }
    }

    /// Joins the items of two streams that have the same key and window: `function` makes an item of each pair. The
    /// items of open windows are state that is readable as `name`.
    #[expect(
        clippy::type_complexity,
        reason = "the type of a row names all of its operators"
    )]
    pub fn join<J, D, U, G, H, R>(
        self,
        name: &str,
        other: Keyed<J, D, U, G>,
        function: H,
    ) -> Stream<
        RingInput<WindowResult<K, (Vec<Event<T>>, Vec<Event<U>>)>>,
        impl Chain<WindowResult<K, (Vec<Event<T>>, Vec<Event<U>>)>, Out = Event<R>>
        + use<I, C, T, K, F, J, D, U, G, H, R>,
        R,
    >
    where
        J: Entry,
        D: Chain<J::Item, Out = Event<U>>,
        U: Debug + Clone + Send + Message,
        T: Message,
        G: Fn(&U) -> K + Send + Sync + 'static,
        H: Fn(&T, &U) -> R + Send + Sync + 'static,
        R: Debug + 'static,
    {
        let flow = self.keyed.stream.flow.clone();
        let join = flow
            .begun()
            .window_join(&flow.stage_name(name), self.windows);
        other.engine().to_join(&join, |event: &Event<U>| event.time);
        let key = Arc::clone(&self.keyed.key);
        let joined = self
            .keyed
            .engine()
            .join(&join, |event: &Event<T>| event.time)
            .inner(move |left: &Event<T>, right: &Event<U>| Event {
                time: left.time.max(right.time),
                key: key_bytes(&key(&left.item)),
                item: function(&left.item, &right.item),
            });
        Stream::new(flow, joined)
    }

    /// Calls `function` with the items of both streams that have one key and one window, each stream's in no particular
    /// order, and gives any number of items: a join that depends on how many there are. One of the lists may be empty.
    /// Results have the time of the window's end. The items of open windows are state that is readable as `name`.
    ///
    /// ```
    /// use millstream::{Flow, Node, Timestamp, out_of_order, secs, tumbling};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(u64, i64)>().create()?;
    /// orders.send([(1, 1_000), (2, 2_000)])?;
    /// let payments = node.topic("payments").json::<(u64, i64)>().create()?;
    /// payments.send([(2, 3_000), (2, 4_000)])?;
    /// let unpaid = node.topic("unpaid").json::<u64>();
    ///
    /// let flow = Flow::new("unpaid");
    /// let payments = flow
    ///     .read(payments.until_now())
    ///     .event_time(|(_, time)| Timestamp(*time), out_of_order(secs(5)))
    ///     .key_by(|(order, _)| *order);
    /// flow.read(orders.until_now())
    ///     .event_time(|(_, time)| Timestamp(*time), out_of_order(secs(5)))
    ///     .key_by(|(order, _)| *order)
    ///     .window(tumbling(secs(10)))
    ///     .co_group("paid_orders", payments, |orders, payments| {
    ///         let unpaid = orders.first().filter(|_| payments.is_empty());
    ///         unpaid.map(|order| order.item.0)
    ///     })
    ///     .write(unpaid.clone())
    ///     .run()?;
    /// assert_eq!(unpaid.read_all()?, [1]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    #[expect(
        clippy::type_complexity,
        reason = "the type of a row names all of its operators"
    )]
    pub fn co_group<J, D, U, G, H, R, O>(
        self,
        name: &str,
        other: Keyed<J, D, U, G>,
        function: H,
    ) -> Stream<
        RingInput<WindowResult<K, (Vec<Event<T>>, Vec<Event<U>>)>>,
        impl Chain<WindowResult<K, (Vec<Event<T>>, Vec<Event<U>>)>, Out = Event<R>>
        + use<I, C, T, K, F, J, D, U, G, H, R, O>,
        R,
    >
    where
        J: Entry,
        D: Chain<J::Item, Out = Event<U>>,
        U: Debug + Clone + Send + Message,
        T: Message,
        K: Debug,
        G: Fn(&U) -> K + Send + Sync + 'static,
        H: Fn(&[Event<T>], &[Event<U>]) -> O + Send + Sync + 'static,
        O: IntoIterator<Item = R> + 'static,
        R: Debug + 'static,
    {
        let flow = self.keyed.stream.flow.clone();
        let join = flow
            .begun()
            .window_join(&flow.stage_name(name), self.windows);
        other.engine().to_join(&join, |event: &Event<U>| event.time);
        let groups = self
            .keyed
            .engine()
            .join(&join, |event: &Event<T>| event.time)
            .flat_map(
                move |window: &WindowResult<K, (Vec<Event<T>>, Vec<Event<U>>)>,
                      emit: &mut Emit<'_, Event<R>>| {
                    let (firsts, seconds) = &window.value;
                    for item in function(firsts, seconds) {
                        emit(&Event {
                            time: window.end,
                            key: key_bytes(&window.key),
                            item,
                        });
                    }
                },
            );
        Stream::new(flow, groups)
    }
}

impl<I, C, T, K, F, A> Aggregated<I, C, T, F, A>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + Clone + Send + 'static,
    K: Key + Debug,
    F: Fn(&T) -> K + Send + Sync + 'static,
    A: Aggregate<T, Out: Debug>,
{
    /// Names the state: the newest window of each key is readable at `/state/<flow>/<name>/<key>`, and the windows are
    /// part of checkpoints under this name. Results come when event time has passed the end of their window.
    #[expect(
        clippy::type_complexity,
        reason = "the type of a row names all of its operators"
    )]
    pub fn serve_as(
        self,
        name: &str,
    ) -> Stream<
        Results<K, A::Out>,
        impl Chain<WindowResult<K, A::Out>, Out = Event<WindowResult<K, A::Out>>>
        + use<I, C, T, K, F, A>,
        WindowResult<K, A::Out>,
    > {
        let Windowed { keyed, windows } = self.windowed;
        let flow = keyed.stream.flow.clone();
        let engine = flow.begun();
        let state = engine.windowed(name, windows, OfItem(self.aggregate));
        let stage = flow.stage_name(name);
        let results = keyed
            .engine()
            .aggregate(&stage, &state, |event| event.time)
            .map(|window: &WindowResult<K, A::Out>| Event {
                time: window.end,
                key: key_bytes(&window.key),
                item: window.clone(),
            });
        Stream::new(flow, results)
    }
}

/// The windows with the highest scores, among those that end at one moment.
type Highest<K, O> = WindowResult<All, Vec<WindowResult<K, O>>>;

impl<I, C, K, O> Stream<I, C, WindowResult<K, O>>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<WindowResult<K, O>>>,
    K: Key + Debug,
    O: Message + Clone + Debug,
{
    /// Gives the `count` windows with the highest scores among those that end at the same moment, the highest first.
    /// State that is readable as `name`, at the key `all`, has the newest ones.
    #[expect(
        clippy::type_complexity,
        reason = "the type of a row names all of its operators"
    )]
    pub fn top<S, F>(
        self,
        name: &str,
        count: usize,
        score: F,
    ) -> Stream<
        RingInput<Highest<K, O>>,
        impl Chain<Highest<K, O>, Out = Event<Highest<K, O>>> + use<I, C, K, O, S, F>,
        Highest<K, O>,
    >
    where
        S: Clone + PartialOrd + Message,
        F: Fn(&WindowResult<K, O>) -> S + Clone + Send + Sync + 'static,
    {
        let Stream {
            flow, operators, ..
        } = self;
        let stage = flow.stage_name(name);
        let highest = operators
            .map(|event: &Event<WindowResult<K, O>>| event.item.clone())
            .top(&stage, count, score)
            .boundary(&flow.stage_name(&format!("{name}/highest")))
            .map(|highest: &Highest<K, O>| Event {
                time: highest.end,
                key: None,
                item: highest.clone(),
            });
        Stream::new(flow, highest)
    }
}
