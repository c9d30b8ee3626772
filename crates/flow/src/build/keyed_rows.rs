//! Operators by key that follow the changes of rows.

use std::fmt::Debug;

use crate::build::changes::Changes;
use crate::build::entry::Entry;
use crate::build::keyed::Keyed;
use crate::build::operators::Operators;
use crate::changes::{self, Rank, RankedRow, RowChange, RowPlace, RunningAggregate, Upsert};
use crate::ranks::message::Message;
use crate::stage::chain::{Chain, Emit};
use crate::windows::{Key, Retract};

/// A change stream that is routed by a key of its rows. Its operators take back the rows that changes take back.
///
/// A change that takes back a row which the operator does not have changes nothing. The first one is logged as a warning with
/// the operator's name, and all are counted in the state element `<name>.unmatched`, under the key `count`.
#[must_use = "operators whose results go nowhere do not run"]
pub struct KeyedRows<I: Entry, C: Chain<I::Item>, F> {
    operators: Operators<I, C>,
    key: F,
}

impl<I, C, R> Operators<I, C>
where
    I: Entry,
    C: Chain<I::Item, Out = RowChange<R>>,
    R: Message + Clone + Debug,
{
    /// Routes the changes by a key of their rows, to operators that follow the changes.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::{Count, Sum};
    /// use millstream_flow::{Flow, RowChange};
    ///
    /// let flow = Flow::new("orders");
    /// let changes = flow.partial::<u64>("changes");
    /// let orders = [("ann", 5), ("ben", 2), ("ann", 4)];
    /// flow.source("orders", Generator::new(move |number| orders[number as usize]).limit(3))
    ///     .map(|(user, price)| (user.to_string(), *price))
    ///     .key_by(|(user, _)| user.clone())
    ///     .running("spent", Sum::of(|(_, price): &(String, u64)| *price))
    ///     // The number of users by the digits of what they have spent.
    ///     .key_rows(|(_, spent)| spent.to_string().len())
    ///     .running("users", Count)
    ///     .fold_local(&changes, |changes, _| *changes += 1);
    /// let running = flow.run()?;
    /// running.join()?;
    /// let users = running.state("users").unwrap();
    /// assert_eq!(users.get("1").unwrap()["rows"], 2);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn key_rows<K, F>(self, key: F) -> KeyedRows<I, C, F>
    where
        K: Key,
        F: Fn(&R) -> K + Send + Sync + 'static,
    {
        KeyedRows {
            operators: self,
            key,
        }
    }

    /// Leaves the former rows of updates out, for a consumer that knows rows by a key: a table, or a keyed topic.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::Count;
    /// use millstream_flow::{Flow, Upsert};
    ///
    /// let flow = Flow::new("numbers");
    /// let table = flow.values::<u64, u64>("table");
    /// let nothing = flow.partial::<u64>("nothing");
    /// flow.source("numbers", Generator::new(|number| number % 3).limit(10))
    ///     .key_by(|number| *number)
    ///     .running("counts", Count)
    ///     .upserts()
    ///     .key_by(|upsert| upsert.row().0)
    ///     .update("store", &table, |_, value, upsert, _: &mut millstream_flow::Emit<u64>| match upsert {
    ///         Upsert::Put((_, count)) => *value = Some(*count),
    ///         Upsert::Delete(_) => *value = None,
    ///     })
    ///     .fold_local(&nothing, |_, _| ());
    /// flow.run()?.join()?;
    /// assert_eq!((table.get(&0), table.get(&2)), (Some(4), Some(3)));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn upserts(self) -> Operators<I, impl Chain<I::Item, Out = Upsert<R>> + use<I, C, R>> {
        self.flat_map(|change: &RowChange<R>, emit: &mut Emit<'_, Upsert<R>>| {
            if let Some(upsert) = change.as_ref().into_upsert() {
                emit(&upsert.map(R::clone));
            }
        })
    }
}

impl<I, C, T, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Message + Clone + Debug,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Takes each item as an insert of a row, for operators over change streams that have no use for plain items, such as
    /// [`connect`](KeyedRows::connect).
    pub fn inserts(
        self,
    ) -> KeyedRows<I, impl Chain<I::Item, Out = RowChange<T>> + use<I, C, T, K, F>, F> {
        KeyedRows {
            operators: self
                .operators
                .map(|item: &T| RowChange::Insert(item.clone())),
            key: self.key,
        }
    }
}

impl<I, C, R, K, F> KeyedRows<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = RowChange<R>>,
    R: Message + Clone + Debug,
    K: Key,
    F: Fn(&R) -> K + Send + Sync + 'static,
{
    /// Emits the changes of an aggregate of all rows of each key: an insert, updates as the result changes, and a delete when the
    /// key has no row left. Otherwise as [`Keyed::running`]. The aggregate must be able to [take rows back](Retract).
    pub fn running<A>(self, name: &str, aggregate: A) -> Changes<(K, A::Out)>
    where
        A: Retract<R, Out: PartialEq>,
    {
        let flow = self.operators.flow.for_changes(name);
        let values = flow
            .of_operator()
            .values::<K, RunningAggregate<A::State>>(name);
        let step = changes::running_rows(aggregate, flow.unmatched(name));
        self.keyed().update(name, &values, step)
    }

    /// Emits an insert of each key that gets its first row, and a delete when the key has no row left. Otherwise as
    /// [`Keyed::distinct`].
    pub fn distinct(self, name: &str) -> Changes<K> {
        let flow = self.operators.flow.for_changes(name);
        let values = flow.of_operator().values::<K, u64>(name);
        let step = changes::distinct_rows(flow.unmatched(name));
        self.keyed().update(name, &values, step)
    }

    /// Emits the changes of the `count` rows of each key with the highest [scores](Rank). A row is known by all of its content,
    /// so equal rows count as often as they are present. Otherwise as [`Keyed::top`], but the state has all rows of the key,
    /// since a row may come into the top when another one is deleted.
    pub fn top<S, G>(self, name: &str, count: u64, score: G) -> Changes<R>
    where
        S: Rank,
        G: Fn(&R) -> S + Send + Sync + 'static,
    {
        let flow = self.operators.flow.for_changes(name);
        flow.agree(format!("{name}: the top {count}"));
        let maps = flow
            .of_operator()
            .ordered_maps::<K, RowPlace, RankedRow<R>>(name);
        let step = changes::top_rows(count, score);
        let unmatched = flow.unmatched(name);
        self.keyed()
            .update(name, &maps, move |_, mut rows, change, emit| {
                step.apply(&mut rows, change.as_ref(), Some(&unmatched), emit);
            })
    }

    pub(super) fn keyed(self) -> Keyed<I, C, impl Fn(&RowChange<R>) -> K + Send + Sync + 'static> {
        let key = self.key;
        self.operators
            .key_by(move |change: &RowChange<R>| key(change.row()))
    }
}
