//! Operators that follow change streams, and their end in a keyed topic.

use std::fmt::Debug;
use std::sync::Arc;

use millstream_flow::changes::{self, Rank, RankedRow, RowChange, RowPlace, RunningAggregate};
use millstream_flow::windows::{Key, Retract};
use millstream_flow::{Chain, Emit, Entry, Message};

use super::Results;
use crate::codec::Encode;
use crate::event::{Event, key_bytes, upsert_of};
use crate::flow_builder::Flow;
use crate::keyed::Keyed;
use crate::stream::Stream;
use crate::topic::Topic;

/// A change stream that is grouped by a key of its rows. Its operators take back the rows that changes take back. A change that
/// takes back a row which the operator does not have changes nothing: the first one is logged, and the state
/// `<name>.unmatched` counts them.
#[must_use = "operators whose results go nowhere do not run"]
pub struct KeyedRows<I, C, R, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<RowChange<R>>>,
{
    stream: Stream<I, C, RowChange<R>>,
    key: F,
}

impl<I, C, R> Stream<I, C, RowChange<R>>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<RowChange<R>>>,
    R: Message + Debug + Clone,
{
    /// Groups the changes by a key of their rows, for operators that follow the changes.
    ///
    /// ```
    /// use millstream::flow::windows::{All, Sum};
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// let order = |user: &str, price| (user.to_owned(), price);
    /// orders.send([order("ada", 3), order("bob", 5), order("cat", 4), order("ada", 4)])?;
    /// let best = node.topic("best").json::<u64>();
    ///
    /// // The two users that have spent the most, at each moment.
    /// Flow::new("best")
    ///     .read(orders.until_now())
    ///     .key_by(|(user, _)| user.clone())
    ///     .running("totals", Sum::of(|(_, price): &(String, u64)| *price))
    ///     .key_rows(|_| All)
    ///     .top("top", 2, |(_, sum)| *sum)
    ///     .write_rows(best.clone(), |(user, sum)| (user.clone(), *sum))
    ///     .run()?;
    /// let best = best.read_keys::<String>()?;
    /// assert_eq!((best.len(), best["ada"], best["bob"]), (2, 7, 5));
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn key_rows<K, F>(self, key: F) -> KeyedRows<I, C, R, F>
    where
        K: Key,
        F: Fn(&R) -> K + Send + Sync + 'static,
    {
        KeyedRows { stream: self, key }
    }

    /// Keeps a keyed topic equal to the rows: writes each new row as the value of its key, deletes the key of a row that is
    /// deleted, and leaves the former rows of updates out. `row` returns the key and the value of a row; no two rows of
    /// the result may have the same key at one time. The topic is made if it is missing; the flow does not start if it is
    /// there, and its `cleanup.policy` does not contain `compact`.
    ///
    /// [`write`](Stream::write) stores all changes with their kinds instead, in a topic that is not keyed.
    pub fn write_rows<K, V, D, G>(self, topic: Topic<D>, row: G) -> Flow
    where
        K: Key,
        D: Encode<V>,
        G: Fn(&R) -> (K, V) + Send + Sync + 'static,
    {
        let codec = topic.codec.clone();
        let encoded = self.operators.each(
            move |event: &Event<RowChange<R>>, emit: &mut Emit<'_, Event<Option<Vec<u8>>>>| {
                let (key, value) = row(event.item.row());
                let item = match &event.item {
                    RowChange::Insert(_) | RowChange::UpdateAfter(_) => {
                        let mut bytes = Vec::new();
                        codec.encode(&value, &mut bytes)?;
                        Some(bytes)
                    }
                    RowChange::UpdateBefore(_) => return Ok(()),
                    RowChange::Delete(_) => None,
                };
                let key = key_bytes(&key).ok_or("the key of the row has no canonical bytes")?;
                emit(&Event {
                    time: event.time,
                    key: Some(key),
                    item,
                });
                Ok(())
            },
        );
        let ensure = |topic: &mut Topic<D>| topic.ensure_keyed();
        self.flow.end(encoded, topic, ensure, Box::new(upsert_of))
    }
}

impl<I, C, R, K, F> KeyedRows<I, C, R, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<RowChange<R>>>,
    R: Message + Debug + Clone,
    K: Key + Debug,
    F: Fn(&R) -> K + Send + Sync + 'static,
{
    /// Emits the changes of an aggregate of all rows of each key, under this name: an insert, updates, and a delete when the key
    /// has no row left. The aggregate must be able to [take rows back](Retract).
    pub fn running<A>(self, name: &str, aggregate: A) -> Results<RowChange<(K, A::Out)>>
    where
        A: Retract<R, Out: PartialEq + Debug>,
    {
        let engine = self.stream.flow.begun().for_changes(name);
        let values = engine.values::<K, RunningAggregate<A::State>>(name);
        let step = changes::running_rows(aggregate, engine.unmatched(name));
        self.keyed().update(name, &values, step)
    }

    /// Emits an insert of each key that gets its first row, and a delete when the key has no row left.
    pub fn distinct(self, name: &str) -> Results<RowChange<K>> {
        let engine = self.stream.flow.begun().for_changes(name);
        let values = engine.values::<K, u64>(name);
        let step = changes::distinct_rows(engine.unmatched(name));
        self.keyed().update(name, &values, step)
    }

    /// Emits the changes of the `count` rows of each key with the highest [scores](Rank): inserts and deletes. State of this
    /// name has all rows; it is as [`millstream_flow::KeyedRows::top`] describes.
    pub fn top<S, G>(self, name: &str, count: u64, score: G) -> Results<RowChange<R>>
    where
        S: Rank,
        G: Fn(&R) -> S + Send + Sync + 'static,
    {
        let engine = self.stream.flow.begun().for_changes(name);
        let maps = engine.ordered_maps::<K, RowPlace, RankedRow<R>>(name);
        let step = changes::top_rows(count, score);
        let unmatched = engine.unmatched(name);
        self.keyed()
            .update(name, &maps, move |_, mut rows, change, emit| {
                step.apply(&mut rows, change.as_ref(), Some(&unmatched), emit);
            })
    }

    pub(crate) fn keyed(
        self,
    ) -> Keyed<I, C, RowChange<R>, impl Fn(&RowChange<R>) -> K + Send + Sync + 'static> {
        let key = self.key;
        Keyed {
            stream: self.stream,
            key: Arc::new(move |change: &RowChange<R>| key(change.row())),
        }
    }
}
