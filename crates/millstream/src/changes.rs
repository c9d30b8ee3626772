//! Operators that make change streams.

pub mod rows;

use std::fmt::Debug;

use millstream_base::Timestamp;
use millstream_flow::changes::{
    self, Rank, RankedRow, RowChange, RowPlace, RunningAggregate, Within,
};
use millstream_flow::windows::{Aggregate, Key};
use millstream_flow::{Chain, Emit, Entry, Message, RingInput, Same};

use crate::event::{Event, key_bytes};
use crate::keyed::Keyed;
use crate::stream::Stream;

/// The results of an operator by key.
pub(crate) type Results<T> = Stream<RingInput<Event<T>>, Same, T>;

impl<I, C, T, K, F> Keyed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Message + Debug + Clone,
    K: Key + Debug,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Emits the changes of an aggregate of all items of each key so far, under this name: an insert for the first item of a
    /// key, then updates. The aggregate is any of [`millstream_flow::windows`], or a tuple of several.
    ///
    /// A change has the time of the item that made it. [`write`](Stream::write) stores it with its kind, such as
    /// `{"op":"+U","row":["ada",7]}`, and [`write_rows`](Stream::write_rows) changes a row of a keyed topic.
    ///
    /// ```
    /// use millstream::flow::windows::Sum;
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// orders.send([("ada".to_owned(), 3), ("bob".to_owned(), 5), ("ada".to_owned(), 4)])?;
    /// let spent = node.topic("spent").json::<u64>();
    ///
    /// Flow::new("spending")
    ///     .read(orders.until_now())
    ///     .key_by(|(user, _)| user.clone())
    ///     .running("totals", Sum::of(|(_, price): &(String, u64)| *price))
    ///     .write_rows(spent.clone(), |(user, sum)| (user.clone(), *sum))
    ///     .run()?;
    /// assert_eq!(spent.read_keys::<String>()?["ada"], 7);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn running<A>(self, name: &str, aggregate: A) -> Results<RowChange<(K, A::Out)>>
    where
        A: Aggregate<T, Out: PartialEq + Debug>,
    {
        let values = self
            .stream
            .flow
            .begun()
            .for_changes(name)
            .values::<K, RunningAggregate<A::State>>(name);
        self.update(name, &values, changes::running(aggregate))
    }

    /// Emits an insert of each key that has an item, once. State of this name keeps each key for ever.
    pub fn distinct(self, name: &str) -> Results<RowChange<K>> {
        let values = self
            .stream
            .flow
            .begun()
            .for_changes(name)
            .values::<K, u64>(name);
        self.update(name, &values, changes::distinct())
    }

    /// Lets the first item of each key pass, and drops items of the key whose event time is less than `within` away from that of
    /// the newest item that passed. The next item after that begins anew. State of this name forgets silent keys: see
    /// [`Within`].
    ///
    /// ```
    /// use millstream::{Flow, Node, Timestamp, out_of_order, secs};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let payments = node.topic("payments").json::<(u64, i64)>().create()?;
    /// payments.send([(7, 1_000), (8, 1_500), (7, 2_000), (7, 90_000)])?;
    /// let once = node.topic("once").json::<(u64, i64)>();
    ///
    /// Flow::new("once")
    ///     .read(payments.until_now())
    ///     .event_time(|(_, time)| Timestamp(*time), out_of_order(secs(5)))
    ///     .key_by(|(payment, _)| *payment)
    ///     .deduplicate("seen", secs(60))
    ///     .write(once.clone())
    ///     .run()?;
    /// let mut passed = once.read_all()?;
    /// // Payments of different keys come in any order.
    /// passed.sort_unstable();
    /// assert_eq!(passed, [(7, 1_000), (7, 90_000), (8, 1_500)]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn deduplicate(self, name: &str, within: impl Into<Within>) -> Results<T> {
        let within = within.into();
        let flow = self.stream.flow.clone();
        let values = flow
            .begun()
            .lifetime(within.lifetime)
            .values::<K, Timestamp>(name);
        let step = changes::deduplicate(within.event_time, |event: &Event<T>| event.time);
        let results = self.engine().update(
            &flow.stage_name(name),
            &values,
            move |key, newest, event, emit: &mut Emit<'_, Event<T>>| {
                step(key, newest, event, &mut |event: &Event<T>| {
                    emit(&Event {
                        key: key_bytes(key),
                        ..event.clone()
                    });
                });
            },
        );
        Stream::new(flow, results)
    }

    /// Emits the changes of the last `count` items of each key: an insert of each item, and before it a delete of the item that
    /// it replaces. State of this name has the items.
    pub fn last(self, name: &str, count: usize) -> Results<RowChange<T>> {
        let engine = self.stream.flow.begun().for_changes(name);
        let lists = engine.lists::<K, T>(name);
        self.update(name, &lists, move |_, mut items, item, emit| {
            changes::last(count, &mut items, item, emit);
        })
    }

    /// Emits the changes of the `count` items of each key with the highest [scores](Rank): inserts and deletes. For the top
    /// of all items, key them by [`All`](millstream_flow::windows::All). State of this name has the items; it is as
    /// [`millstream_flow::Keyed::top`] describes.
    pub fn top<S, G>(self, name: &str, count: u64, score: G) -> Results<RowChange<T>>
    where
        S: Rank,
        G: Fn(&T) -> S + Send + Sync + 'static,
    {
        let engine = self.stream.flow.begun().for_changes(name);
        let maps = engine.ordered_maps::<K, RowPlace, RankedRow<T>>(name);
        let step = changes::top(count, score);
        self.update(name, &maps, move |_, mut rows, item, emit| {
            step.apply(&mut rows, RowChange::Insert(item), None, emit);
        })
    }
}
