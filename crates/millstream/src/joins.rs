//! Joins of two streams by key, without windows.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::changes::{RowChange, Upsert};
use millstream_flow::windows::Key;
use millstream_flow::{
    Around, Chain, ChangeItem, Element, Emit, Entry, Fired, InTime, Message, OrLate, RingInput,
    Same, Side, Timers, TimersOf, Version,
};

use crate::changes::Results;
use crate::changes::rows::KeyedRows;
use crate::event::{Event, key_bytes};
use crate::flow_builder::Flow;
use crate::keyed::Keyed;
use crate::process::of_key;
use crate::stream::Stream;

/// Two streams whose items meet by key: see [`Keyed::connect`].
#[must_use = "operators whose results go nowhere do not run"]
pub struct Connected<K, T, U> {
    flow: Flow,
    streams: millstream_flow::Connected<K, Event<T>, Event<U>>,
    key: KeyOf<T>,
}

/// Returns the bytes of the key of an item of the first stream, by which results are written.
type KeyOf<T> = Box<dyn Fn(&T) -> Option<Box<[u8]>> + Send + Sync>;

/// An item that a join by event time emits: an event, or one that came too late.
type Joined<T, U, R> = OrLate<Side<Event<T>, Event<U>>, Event<R>>;

/// The results of a join by event time.
type JoinResults<T, U, R> = Stream<RingInput<Joined<T, U, R>>, InTime<Same>, R>;

impl<I, C, T, K, F> Keyed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Message + Debug + Clone,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Connects the stream, as the first one, with a second one by keys of the same type, for operators over both: joins by event
    /// time, or an [`update`](Connected::update) or a [`process`](Connected::process) of your own. Otherwise as
    /// [`connect`](millstream_flow::Keyed::connect) of the engine.
    pub fn connect<J, D, U, G>(self, second: Keyed<J, D, U, G>) -> Connected<K, T, U>
    where
        J: Entry,
        D: Chain<J::Item, Out = Event<U>>,
        U: Message + Debug + Clone,
        G: Fn(&U) -> K + Send + Sync + 'static,
    {
        let key = Arc::clone(&self.key);
        Connected {
            flow: self.stream.flow.clone(),
            streams: self.engine().connect(second.engine()),
            key: Box::new(move |item| key_bytes(&key(item))),
        }
    }

    /// Takes each item as an insert of a row, to [join](KeyedRows::connect) the stream with a change stream or another one.
    #[expect(clippy::type_complexity, reason = "an opaque type cannot have a name")]
    pub fn inserts(
        self,
    ) -> KeyedRows<
        I,
        impl Chain<I::Item, Out = Event<RowChange<T>>> + use<I, C, T, K, F>,
        T,
        impl Fn(&T) -> K + Send + Sync + use<I, C, T, K, F>,
    > {
        let key = self.key;
        let changes = self.stream.map(|item| RowChange::Insert(item.clone()));
        changes.key_rows(move |item: &T| key(item))
    }
}

impl<K, T, U> Connected<K, T, U>
where
    K: Key,
    T: Message + Debug + Clone,
    U: Message + Debug + Clone,
{
    /// Calls `function` for each item of both streams, as [`Keyed::update`] does for those of one.
    ///
    /// ```
    /// use millstream::flow::Side;
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// let limits = node.topic("limits").json::<(String, u64)>().create()?;
    /// let of = |user: &str, number| (user.to_owned(), number);
    /// orders.send([of("ann", 4), of("ben", 6), of("ann", 3)])?;
    /// limits.send([of("ann", 10), of("ben", 5)])?;
    ///
    /// let flow = Flow::new("limits");
    /// let limits = flow.read(limits.until_now()).key_by(|(user, _)| user.clone());
    /// let orders = flow.read(orders.until_now()).key_by(|(user, _)| user.clone());
    /// // Of each user the limit and the sum of orders.
    /// let users = flow.engine().values::<String, (u64, u64)>("users");
    /// orders
    ///     .connect(limits)
    ///     .update("check", &users, |user, value, item, emit| {
    ///         let (limit, sum) = value.get_or_insert((u64::MAX, 0));
    ///         let was_above = *sum > *limit;
    ///         match item {
    ///             Side::First((_, price)) => *sum += price,
    ///             Side::Second((_, new)) => *limit = *new,
    ///         }
    ///         if !was_above && *sum > *limit {
    ///             emit(user);
    ///         }
    ///     })
    ///     .write(node.topic("above").text())
    ///     .run()?;
    /// assert_eq!(users.get(&"ann".to_owned()), Some((10, 7)));
    /// assert_eq!(node.topic("above").text().read_all()?, ["ben"]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn update<E, O, G>(self, name: &str, element: &E, function: G) -> Results<O>
    where
        E: Element<K>,
        O: Debug + Clone + Send + 'static,
        G: Fn(&K, E::Content<'_>, Side<&T, &U>, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        let stage = self.flow.stage_name(name);
        let results = self.streams.update(
            &stage,
            element,
            move |key: &K,
                  content,
                  item: &Side<Event<T>, Event<U>>,
                  emit: &mut Emit<'_, Event<O>>| {
                let (time, item) = match item {
                    Side::First(event) => (event.time, Side::First(&event.item)),
                    Side::Second(event) => (event.time, Side::Second(&event.item)),
                };
                let emit: &mut Emit<'_, O> = &mut |result| emit(&of_key(key, time, result));
                function(key, content, item, emit);
            },
        );
        Stream::new(self.flow, results)
    }

    /// Calls `on_item` for each item of both streams, with its event time, and `on_timer` for each timer that fires, as
    /// [`Keyed::process`] does for items of one stream.
    pub fn process<S, V, O, G, H>(
        self,
        name: &str,
        state: &S,
        timers: &Timers<K, V>,
        on_item: G,
        on_timer: H,
    ) -> Results<O>
    where
        S: Element<K>,
        V: Key,
        O: Debug + Clone + Send + 'static,
        G: Fn(
                &K,
                S::Content<'_>,
                &mut TimersOf<'_, K, V>,
                &Side<Event<T>, Event<U>>,
                &mut Emit<'_, O>,
            ) + Send
            + Sync
            + 'static,
        H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, V>, &Fired<V>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
    {
        let stage = self.flow.stage_name(name);
        let results = self.streams.process(
            &stage,
            state,
            timers,
            move |key: &K,
                  content,
                  timers,
                  item: &Side<Event<T>, Event<U>>,
                  emit: &mut Emit<'_, Event<O>>| {
                let time = match item {
                    Side::First(event) => event.time,
                    Side::Second(event) => event.time,
                };
                let emit: &mut Emit<'_, O> = &mut |result| emit(&of_key(key, time, result));
                on_item(key, content, timers, item, emit);
            },
            move |key: &K, content, timers, fired, emit| {
                let emit: &mut Emit<'_, O> = &mut |result| emit(&of_key(key, fired.time, result));
                on_timer(key, content, timers, fired, emit);
            },
        );
        Stream::new(self.flow, results)
    }

    /// Joins each item of the first stream, at the time `t`, with those of the second stream of the same key whose times lie from
    /// `t + interval.start()` to `t + interval.end()`, in milliseconds. `function` makes an item of each pair, whose time is the
    /// later one of both. The items that may still get partners are state that is readable as `<name>.first` and
    /// `<name>.second`. Otherwise as [`interval_join`](millstream_flow::Connected::interval_join) of the engine.
    ///
    /// ```
    /// use millstream::{Flow, Node, Timestamp, out_of_order, secs};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(u64, i64)>().create()?;
    /// let payments = node.topic("payments").json::<(u64, i64)>().create()?;
    /// orders.send([(1, 1_000), (2, 2_000), (3, 3_000)])?;
    /// payments.send([(1, 4_000), (2, 90_000)])?;
    ///
    /// // Payments within a minute.
    /// let flow = Flow::new("orders");
    /// let [orders, payments] = [orders, payments].map(|topic| {
    ///     flow.read(topic.until_now())
    ///         .event_time(|(_, time)| Timestamp(*time), out_of_order(secs(5)))
    ///         .key_by(|(order, _)| *order)
    /// });
    /// orders
    ///     .connect(payments)
    ///     .interval_join("paid", 0..=60_000, |order, payment| (order.0, payment.1 - order.1))
    ///     .write(node.topic("paid").json())
    ///     .run()?;
    /// assert_eq!(node.topic("paid").json::<(u64, i64)>().read_all()?, [(1, 3_000)]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn interval_join<R, G>(
        self,
        name: &str,
        interval: RangeInclusive<i64>,
        function: G,
    ) -> JoinResults<T, U, R>
    where
        R: Debug + Clone + Send + 'static,
        G: Fn(&T, &U) -> R + Send + Sync + 'static,
    {
        let Connected { flow, streams, key } = self;
        let joined = streams.interval_join(
            &flow.stage_name(name),
            interval,
            |event| event.time,
            |event| event.time,
            move |first, second| Event {
                time: first.time.max(second.time),
                key: key(&first.item),
                item: function(&first.item, &second.item),
            },
        );
        Stream::new(flow, joined)
    }
}

impl<K, T, R> Connected<K, T, Upsert<R>>
where
    K: Key,
    T: Message + Debug + Clone,
    R: Message + Debug + Clone,
{
    /// Joins each item of the first stream with the row that was valid at the item's time: of the second stream's upserts with the
    /// same key the latest one whose time is not later. Items without a valid row are left out. `function` makes an item of each
    /// pair, with the time of the first stream's item. Otherwise as
    /// [`temporal_join`](millstream_flow::Connected::temporal_join) of the engine.
    ///
    /// ```
    /// use millstream::flow::Upsert;
    /// use millstream::{Flow, Node, Timestamp, out_of_order, secs};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64, i64)>().create()?;
    /// let rates = node.topic("rates").json::<(String, u64, i64)>().create()?;
    /// let of = |currency: &str, number, time| (currency.to_owned(), number, time);
    /// orders.send([of("EUR", 10, 1_500), of("EUR", 20, 2_500), of("YEN", 5, 2_600)])?;
    /// rates.send([of("EUR", 3, 1_000), of("EUR", 4, 2_000)])?;
    ///
    /// let flow = Flow::new("orders");
    /// let [orders, rates] = [orders, rates].map(|topic| {
    ///     flow.read(topic.until_now())
    ///         .event_time(|(_, _, time)| Timestamp(*time), out_of_order(secs(5)))
    /// });
    /// let rates = rates
    ///     .map(|rate| Upsert::Put(rate.clone()))
    ///     .key_by(|rate| rate.row().0.clone());
    /// orders
    ///     .key_by(|(currency, _, _)| currency.clone())
    ///     .connect(rates)
    ///     .temporal_join("converted", |(_, amount, _), (_, rate, _)| amount * rate)
    ///     .write(node.topic("converted").json())
    ///     .run()?;
    /// assert_eq!(node.topic("converted").json::<u64>().read_all()?, [30, 80]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn temporal_join<O, G>(self, name: &str, function: G) -> JoinResults<T, Upsert<R>, O>
    where
        O: Debug + Clone + Send + 'static,
        G: Fn(&T, &R) -> O + Send + Sync + 'static,
    {
        let Connected { flow, streams, key } = self;
        let joined = streams.temporal_join(
            &flow.stage_name(name),
            |event| event.time,
            |event| event.time,
            move |event, row| Event {
                time: event.time,
                key: key(&event.item),
                item: function(&event.item, row),
            },
        );
        Stream::new(flow, joined)
    }

    /// As [`temporal_join`](Self::temporal_join), and `function` gets items without a valid row as well.
    pub fn left_outer_temporal_join<O, G>(
        self,
        name: &str,
        function: G,
    ) -> JoinResults<T, Upsert<R>, O>
    where
        O: Debug + Clone + Send + 'static,
        G: Fn(&T, Option<&R>) -> O + Send + Sync + 'static,
    {
        let Connected { flow, streams, key } = self;
        let joined = streams.left_outer_temporal_join(
            &flow.stage_name(name),
            |event| event.time,
            |event| event.time,
            move |event, row| Event {
                time: event.time,
                key: key(&event.item),
                item: function(&event.item, row),
            },
        );
        Stream::new(flow, joined)
    }
}

/// The second stream of a temporal join.
impl<R: Message + Debug + Clone> Version for Event<Upsert<R>> {
    type Row = R;

    fn row(&self) -> Option<&R> {
        Version::row(&self.item)
    }
}

/// Two change streams whose rows are about to be joined by key: see [`KeyedRows::connect`].
#[must_use = "operators whose results go nowhere do not run"]
pub struct RowJoin<K, L, R> {
    flow: Flow,
    join: millstream_flow::RowJoin<K, Event<RowChange<L>>, Event<RowChange<R>>>,
}

impl<I, C, L, K, F> KeyedRows<I, C, L, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<RowChange<L>>>,
    L: Message + Debug + Clone,
    K: Key + Debug,
    F: Fn(&L) -> K + Send + Sync + 'static,
{
    /// Connects the change stream, as the first one, with a second one, for a join of their rows by key over all time. A stream
    /// of plain items joins as [`Keyed::inserts`]. A change of a result has the time of the change that made it. Otherwise as
    /// [`connect`](millstream_flow::KeyedRows::connect) of the engine.
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(u64, String)>().create()?;
    /// let payments = node.topic("payments").json::<(u64, u64)>().create()?;
    /// orders.send([(1, "ann".to_owned()), (2, "ben".to_owned())])?;
    /// payments.send([(1, 70)])?;
    /// let paid = node.topic("paid").json::<(String, Option<u64>)>();
    ///
    /// let flow = Flow::new("orders");
    /// let payments = flow.read(payments.until_now()).key_by(|(order, _)| *order).inserts();
    /// flow.read(orders.until_now())
    ///     .key_by(|(order, _)| *order)
    ///     .inserts()
    ///     .connect(payments)
    ///     .left_outer("joined")
    ///     .write_rows(paid.clone(), |((order, user), payment)| {
    ///         (*order, (user.clone(), payment.map(|(_, price)| price)))
    ///     })
    ///     .run()?;
    /// let paid = paid.read_keys::<u64>()?;
    /// assert_eq!(paid[&1], ("ann".to_owned(), Some(70)));
    /// assert_eq!(paid[&2], ("ben".to_owned(), None));
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn connect<J, D, R, G>(self, second: KeyedRows<J, D, R, G>) -> RowJoin<K, L, R>
    where
        J: Entry,
        D: Chain<J::Item, Out = Event<RowChange<R>>>,
        R: Message + Debug + Clone,
        G: Fn(&R) -> K + Send + Sync + 'static,
    {
        let Connected { flow, streams, .. } = self.keyed().connect(second.keyed());
        RowJoin {
            flow,
            join: streams.rows(),
        }
    }
}

impl<K, L, R> RowJoin<K, L, R>
where
    K: Key,
    L: Message + Debug + Clone,
    R: Message + Debug + Clone,
{
    /// Forgets rows that have not changed for this time: see [`lifetime`](millstream_flow::RowJoin::lifetime) of the engine.
    pub fn lifetime(self, lifetime: Duration) -> Self {
        RowJoin {
            join: self.join.lifetime(lifetime),
            ..self
        }
    }

    /// Emits the changes of all pairs of rows, under this name.
    pub fn inner(self, name: &str) -> Results<RowChange<(L, R)>> {
        let stage = self.flow.stage_name(name);
        Stream::new(self.flow, self.join.inner(&stage))
    }

    /// As [`inner`](Self::inner), of the rows that `pair` makes of two partners; `None` leaves them out. It returns the same for
    /// the same rows: with it, results are taken back as well.
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// let limits = node.topic("limits").json::<(String, u64)>().create()?;
    /// orders.send([("ann", 40), ("ben", 70), ("ann", 90)].map(|(user, price)| (user.to_owned(), price)))?;
    /// limits.send([("ann", 50), ("ben", 50)].map(|(user, limit)| (user.to_owned(), limit)))?;
    ///
    /// let flow = Flow::new("too-much");
    /// let limits = flow.read(limits.until_now()).key_by(|(user, _)| user.clone()).inserts();
    /// let too_much = node.topic("too-much").json::<(String, u64)>();
    /// flow.read(orders.until_now())
    ///     .key_by(|(user, _)| user.clone())
    ///     .inserts()
    ///     .connect(limits)
    ///     .inner_with("orders", |(user, price), (_, limit)| {
    ///         (price > limit).then(|| (user.clone(), price - limit))
    ///     })
    ///     .map(|change| change.row().clone())
    ///     .write(too_much.clone())
    ///     .run()?;
    /// let mut found = too_much.read_all()?;
    /// found.sort();
    /// assert_eq!(found, [("ann".to_owned(), 40), ("ben".to_owned(), 20)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn inner_with<O, F>(self, name: &str, pair: F) -> Results<RowChange<O>>
    where
        O: Debug + Clone + Send + 'static,
        F: Fn(&L, &R) -> Option<O> + Send + Sync + 'static,
    {
        let stage = self.flow.stage_name(name);
        Stream::new(self.flow, self.join.inner_with(&stage, pair))
    }

    /// As [`inner`](Self::inner), and each row of the first stream that has no partner is a result alone.
    pub fn left_outer(self, name: &str) -> Results<RowChange<(L, Option<R>)>> {
        let stage = self.flow.stage_name(name);
        Stream::new(self.flow, self.join.left_outer(&stage))
    }

    /// As [`inner`](Self::inner), and each row of the second stream that has no partner is a result alone.
    pub fn right_outer(self, name: &str) -> Results<RowChange<(Option<L>, R)>> {
        let stage = self.flow.stage_name(name);
        Stream::new(self.flow, self.join.right_outer(&stage))
    }

    /// As [`inner`](Self::inner), and each row of either stream that has no partner is a result alone.
    pub fn full_outer(self, name: &str) -> Results<RowChange<(Option<L>, Option<R>)>> {
        let stage = self.flow.stage_name(name);
        Stream::new(self.flow, self.join.full_outer(&stage))
    }
}

/// The time and the key of an event.
pub struct TimeAndKey {
    time: Timestamp,
    key: Option<Box<[u8]>>,
}

impl Around for TimeAndKey {
    type Of<T: Clone + Send + 'static> = Event<T>;

    fn of<T: Clone + Send + 'static>(&self, item: T) -> Event<T> {
        Event {
            time: self.time,
            key: self.key.clone(),
            item,
        }
    }
}

impl<R: Message + Debug + Clone> ChangeItem for Event<RowChange<R>> {
    type Row = R;
    type Around = TimeAndKey;

    fn change(&self) -> RowChange<&R> {
        self.item.as_ref()
    }

    fn around<K: Key>(&self, key: &K) -> TimeAndKey {
        TimeAndKey {
            time: self.time,
            key: key_bytes(key),
        }
    }
}
