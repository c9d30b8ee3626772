//! Operators by key that make change streams of plain items.

use std::fmt::Debug;

use millstream_base::Timestamp;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::keyed::Keyed;
use crate::build::operators::Operators;
use crate::changes::{
    self, Rank, RankedRow, RowChange, RowPlace, RunningAggregate, Unmatched, Within,
};
use crate::error::FlowError;
use crate::ranks::message::Message;
use crate::run::settings::Order;
use crate::stage::chain::{Chain, Same};
use crate::stage::ring_input::RingInput;
use crate::windows::{Aggregate, Key};

/// A stage that emits changes of rows.
pub(super) type Changes<R> = Operators<RingInput<RowChange<R>>, Same>;

impl<I, C, T, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Message + Clone + Debug,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Emits the changes of an aggregate of all items of each key so far: for the first item of a key an insert, for others an
    /// update, unless the result stays the same. A stage of its own, named `name`, and a state element of this name. The
    /// aggregate is any of [`windows`](crate::windows), or a tuple of several.
    ///
    /// ```
    /// use millstream_flow::changes::RowChange;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::Sum;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("orders");
    /// let lines = flow.partial::<u64>("lines");
    /// let orders = [("ann", 5), ("ben", 2), ("ann", 4)];
    /// flow.source("orders", Generator::new(move |number| orders[number as usize]).limit(3))
    ///     .map(|(user, price)| (user.to_string(), *price))
    ///     .key_by(|(user, _)| user.clone())
    ///     .running("spent", Sum::of(|(_, price): &(String, u64)| *price))
    ///     .filter(|change| {
    ///         let row = |user: &str, sum| (user.to_owned(), sum);
    ///         let expected = [
    ///             RowChange::Insert(row("ann", 5)),
    ///             RowChange::Insert(row("ben", 2)),
    ///             RowChange::UpdateBefore(row("ann", 5)),
    ///             RowChange::UpdateAfter(row("ann", 9)),
    ///         ];
    ///         expected.contains(change)
    ///     })
    ///     .fold_local(&lines, |lines, _| *lines += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(lines.merged(), 4);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn running<A>(self, name: &str, aggregate: A) -> Changes<(K, A::Out)>
    where
        A: Aggregate<T, Out: PartialEq>,
    {
        let flow = self.operators.flow.for_changes(name);
        let values = flow
            .of_operator()
            .values::<K, RunningAggregate<A::State>>(name);
        self.update(name, &values, changes::running(aggregate))
    }

    /// Emits an insert of each key that has an item, once. A stage of its own, named `name`, and a state element of this
    /// name, which keeps each key for ever.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("visits");
    /// let users = flow.partial::<u64>("users");
    /// flow.source("visits", Generator::new(|number| number).limit(1000))
    ///     .key_by(|number| number % 7)
    ///     .distinct("seen")
    ///     .fold_local(&users, |users, _user| *users += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(users.merged(), 7);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn distinct(self, name: &str) -> Changes<K> {
        let flow = self.operators.flow.for_changes(name);
        let values = flow.of_operator().values::<K, u64>(name);
        self.update(name, &values, changes::distinct())
    }

    /// Lets the first item of each key pass, and drops items of the key whose event time is less than `within` away from that of
    /// the newest item that passed. The next item after that begins anew. The results are plain items. A stage of its own,
    /// named `name`, and a state element of this name with a [lifetime](Flow::lifetime), so that it has no keys that were
    /// silent for long: see [`Within`].
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("payments");
    /// let paid = flow.partial::<u64>("paid");
    /// // Each payment is sent twice, a second apart. The same number comes again after an hour.
    /// let payment = |number| (number / 2 % 10, Timestamp(number as i64 * 1_000 + number as i64 / 20 * 3_600_000));
    /// flow.source("payments", Generator::new(payment).limit(40))
    ///     .key_by(|(payment, _)| *payment)
    ///     .deduplicate("once", Duration::from_secs(600), |(_, time)| *time)
    ///     .fold_local(&paid, |paid, _payment| *paid += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(paid.merged(), 20);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn deduplicate<W, E>(self, name: &str, within: W, time: E) -> Operators<RingInput<T>, Same>
    where
        W: Into<Within>,
        E: Fn(&T) -> Timestamp + Send + Sync + 'static,
    {
        let within = within.into();
        let values = self
            .operators
            .flow
            .of_operator()
            .lifetime(within.lifetime)
            .values::<K, Timestamp>(name);
        self.update(name, &values, changes::deduplicate(within.event_time, time))
    }

    /// Emits the changes of the last `count` items of each key: an insert of each item, and before it a delete of the item that
    /// it replaces. A stage of its own, named `name`, and a state element of this name, a [list](Flow::lists).
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flow, RowChange};
    ///
    /// let flow = Flow::new("visits");
    /// let left = flow.partial::<u64>("left");
    /// flow.source("pages", Generator::new(|page| page).limit(10))
    ///     .key_by(|page| page % 2)
    ///     .last("recent", 3)
    ///     .filter(|change| matches!(change, RowChange::Delete(_)))
    ///     .fold_local(&left, |left, change| *left += change.row());
    /// flow.run()?.join()?;
    /// assert_eq!(left.merged(), 0 + 2 + 1 + 3);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn last(self, name: &str, count: usize) -> Changes<T> {
        let flow = self.operators.flow.for_changes(name);
        flow.agree(format!("{name}: the last {count}"));
        let lists = flow.of_operator().lists::<K, T>(name);
        self.update(name, &lists, move |_, mut items, item, emit| {
            changes::last(count, &mut items, item, emit);
        })
    }

    /// Emits the changes of the `count` items of each key with the highest [scores](Rank): inserts and deletes. For the top
    /// of all items, key them by [`All`](crate::windows::All). Items with equal scores are in an arbitrary order, which does not
    /// depend on the order in which they came: make it part of the score where it matters. An item whose score is a NaN is left
    /// out. A stage of its own, named `name`, and a state element of this name, an [ordered map](Flow::ordered_maps).
    ///
    /// State and memory are for the items in the top, and grow as it fills: `count` may be large. The time for an item grows
    /// with the logarithm of that. If a flow resumes with another `count`, the top of a key follows at the key's next item.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::All;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("games");
    /// let sum = flow.values::<u64, i64>("sum");
    /// flow.source("points", Generator::new(|number| number * 7 % 100).limit(100))
    ///     .key_by(|_| All)
    ///     .top("highest", 3, |points| *points)
    ///     .key_by(|_| 0)
    ///     .fold("add", &sum, |sum, change| *sum += change.weight() * *change.row() as i64);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.get(&0), Some(99 + 98 + 97));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn top<S, G>(self, name: &str, count: u64, score: G) -> Changes<T>
    where
        S: Rank,
        G: Fn(&T) -> S + Send + Sync + 'static,
    {
        let flow = self.operators.flow.for_changes(name);
        flow.agree(format!("{name}: the top {count}"));
        let maps = flow
            .of_operator()
            .ordered_maps::<K, RowPlace, RankedRow<T>>(name);
        let step = changes::top(count, score);
        self.update(name, &maps, move |_, mut rows, item, emit| {
            step.apply(&mut rows, RowChange::Insert(item), None, emit);
        })
    }
}

impl Flow {
    /// Returns the counter of retractions that match no row of an operator. It is a state element `<operator>.unmatched` of the
    /// flow, with the number under the key `count`. For functions of [`changes`]; the operators have one themselves.
    pub fn unmatched(&self, operator: &str) -> Unmatched {
        let count = self
            .without_lifetime()
            .partial::<u64>(&format!("{operator}.unmatched"));
        Unmatched::new(operator, count.add_part())
    }

    /// Returns another handle of the flow, for the state of an operator that emits changes of rows: its elements have no lifetime,
    /// and the flow does not run with [`Order::Free`]. For functions of [`changes`]; the operators do this themselves.
    pub fn for_changes(&self, operator: &str) -> Flow {
        if self.settings.order == Order::Free {
            let fault = FlowError::ChangesWithoutOrder {
                flow: self.name(),
                operator: operator.to_owned(),
            };
            self.plan().faults.push(fault);
        }
        self.without_lifetime()
    }

    /// Notes a setting that must be the same on all ranks.
    pub(super) fn agree(&self, setting: String) {
        self.plan().graph.agreed.push(setting);
    }

    pub(super) fn without_lifetime(&self) -> Flow {
        let mut flow = self.clone();
        flow.lifetime = None;
        flow
    }
}
