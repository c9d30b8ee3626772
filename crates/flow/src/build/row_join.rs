//! The join of two change streams by key.

use std::fmt::Debug;
use std::time::Duration;

use crate::build::connected::{Connected, Side};
use crate::build::entry::Entry;
use crate::build::keyed_rows::KeyedRows;
use crate::build::operators::Operators;
use crate::changes::RowChange;
use crate::joins::change_item::{Around, ChangeItem};
use crate::joins::row_pairs::{EmitChange, Joining, KeptRow, RowId};
use crate::ranks::message::Message;
use crate::stage::chain::{Chain, Emit, Same};
use crate::stage::ends::steps::Steps;
use crate::stage::ring_input::RingInput;
use crate::windows::Key;

/// Two change streams whose rows are about to be joined by key: see [`KeyedRows::connect`].
#[must_use = "operators whose results go nowhere do not run"]
pub struct RowJoin<K, A, B> {
    streams: Connected<K, A, B>,
    lifetime: Option<Duration>,
}

/// A stage that emits changes of rows `O`, in items as those of the change stream `A`.
type Joined<A, O> =
    Operators<RingInput<<<A as ChangeItem>::Around as Around>::Of<RowChange<O>>>, Same>;

/// A pair of rows, of which one may be absent.
type OuterPair<A, B> = (
    Option<<A as ChangeItem>::Row>,
    Option<<B as ChangeItem>::Row>,
);

impl<I, C, L, K, F> KeyedRows<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = RowChange<L>>,
    L: Message + Clone + Debug,
    K: Key,
    F: Fn(&L) -> K + Send + Sync + 'static,
{
    /// Connects the change stream, as the first one, with a second one, for a join of their rows by key over all time: each row
    /// has all rows of the other stream with the same key as partners. The kinds of joins are those of SQL:
    /// [`inner`](RowJoin::inner), [`left_outer`](RowJoin::left_outer), [`right_outer`](RowJoin::right_outer) and
    /// [`full_outer`](RowJoin::full_outer). A stream of plain items joins as [`Keyed::inserts`](crate::Keyed::inserts). In Flink
    /// it is a regular join.
    ///
    /// Results are changes again, inserts and deletes; applied in their order, they give the join of the rows at each moment. So
    /// the result of a join may go to the next one, by another key: joins of any number of streams are joins in a row.
    ///
    /// Keys are compared as values: unlike `NULL` in SQL, a key `None` equals itself. Leave rows without a key out first, or give
    /// each a key of its own, where they have no partners.
    ///
    /// When a row moves to another key, its former results are deleted in one partition, and its new ones inserted in another one.
    /// These changes come in any order. So where results go to a keyed topic, the key of the topic has to determine that of the join.
    ///
    /// A row is known by all of its content, and equal rows count as often as they are present. A change that takes back a row
    /// which is not there changes nothing; the state element `<name>.unmatched` counts these changes. The state elements
    /// `<name>.first` and `<name>.second`, [ordered maps](crate::Flow::ordered_maps), have an entry for each different row of a
    /// stream: they grow with the streams, unless the join has a [lifetime](RowJoin::lifetime).
    ///
    /// A change of a row costs as much as the row has partners. Of a million partners the results go out in steps, as later stages
    /// take them, in bounded memory; other items of the partition and checkpoints wait for the last step.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flow, RowChange};
    ///
    /// let flow = Flow::new("orders");
    /// let sums = flow.values::<String, i64>("sums");
    /// // Of each user the town; ann moves.
    /// let towns = |user: &str, town: &str| (user.to_owned(), town.to_owned());
    /// let towns = [
    ///     RowChange::Insert(towns("ann", "Rome")),
    ///     RowChange::Insert(towns("ben", "Oslo")),
    ///     RowChange::UpdateBefore(towns("ann", "Rome")),
    ///     RowChange::UpdateAfter(towns("ann", "Oslo")),
    /// ];
    /// let towns = flow
    ///     .source("towns", Generator::new(move |number| towns[number as usize].clone()).limit(4))
    ///     .key_rows(|(user, _)| user.clone());
    /// let orders = [("ann", 4), ("ben", 6), ("ann", 3), ("cat", 8)];
    /// flow.source("orders", Generator::new(move |number| orders[number as usize]).limit(4))
    ///     .map(|(user, price)| (user.to_string(), *price))
    ///     .key_by(|(user, _)| user.clone())
    ///     .inserts()
    ///     .connect(towns)
    ///     .inner("ordered")
    ///     .key_by(|change| change.row().1.1.clone())
    ///     .fold("add", &sums, |sum, change| *sum += change.weight() * change.row().0.1);
    /// flow.run()?.join()?;
    /// assert_eq!(sums.get(&"Oslo".to_owned()), Some(13));
    /// assert_eq!(sums.get(&"Rome".to_owned()).unwrap_or(0), 0);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn connect<J, D, R, G>(
        self,
        second: KeyedRows<J, D, G>,
    ) -> RowJoin<K, RowChange<L>, RowChange<R>>
    where
        J: Entry,
        D: Chain<J::Item, Out = RowChange<R>>,
        R: Message + Clone + Debug,
        G: Fn(&R) -> K + Send + Sync + 'static,
    {
        self.keyed().connect(second.keyed()).rows()
    }
}

impl<K, A, B> Connected<K, A, B> {
    /// Joins the rows of items that have changes.
    #[doc(hidden)]
    pub fn rows(self) -> RowJoin<K, A, B> {
        RowJoin {
            streams: self,
            lifetime: None,
        }
    }
}

impl<K, A, B> RowJoin<K, A, B>
where
    K: Key,
    A: ChangeItem,
    B: ChangeItem<Around = A::Around>,
{
    /// Forgets rows that have not changed for this time by the wall clock, as [`Flow::lifetime`](crate::Flow::lifetime) describes.
    /// A row changes when it is inserted or deleted, and where it is a result alone, when its first partner comes or the last one
    /// goes. A row that is forgotten has no partners any more; its results are not taken back, so the join is no longer exact. A
    /// change that takes the row back later is one without a match.
    pub fn lifetime(self, lifetime: Duration) -> Self {
        RowJoin {
            lifetime: Some(lifetime),
            ..self
        }
    }

    /// Emits the changes of all pairs of rows. A stage of its own, named `name`.
    pub fn inner(self, name: &str) -> Joined<A, (A::Row, B::Row)> {
        self.join(name, "inner", [false, false], |first, second| {
            Some((first?.clone(), second?.clone()))
        })
    }

    /// As [`inner`](Self::inner), of the rows that `pair` makes of two partners; `None` leaves them out. It returns the same
    /// for the same rows: with it, results are taken back as well.
    ///
    /// Results that are large cost a copy of both rows for each pair; this copies only those fields that go on.
    pub fn inner_with<O, F>(self, name: &str, pair: F) -> Joined<A, O>
    where
        O: Clone + Send + 'static,
        F: Fn(&A::Row, &B::Row) -> Option<O> + Send + Sync + 'static,
    {
        self.join(name, "inner", [false, false], move |first, second| {
            pair(first?, second?)
        })
    }

    /// As [`inner`](Self::inner), and each row of the first stream that has no partner is a result alone.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// // Of ten orders those with even numbers are paid.
    /// let flow = Flow::new("orders");
    /// let unpaid = flow.values::<u64, i64>("unpaid");
    /// let payments = flow
    ///     .source("payments", Generator::new(|number| number * 2).limit(5))
    ///     .key_by(|order| *order)
    ///     .inserts();
    /// flow.source("orders", Generator::new(|number| number).limit(10))
    ///     .key_by(|order| *order)
    ///     .inserts()
    ///     .connect(payments)
    ///     .left_outer("joined")
    ///     .filter(|change| change.row().1.is_none())
    ///     .key_by(|_| 0)
    ///     .fold("count", &unpaid, |count, change| *count += change.weight());
    /// flow.run()?.join()?;
    /// assert_eq!(unpaid.get(&0), Some(5));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn left_outer(self, name: &str) -> Joined<A, (A::Row, Option<B::Row>)> {
        self.join(name, "left_outer", [true, false], |first, second| {
            Some((first?.clone(), second.cloned()))
        })
    }

    /// As [`inner`](Self::inner), and each row of the second stream that has no partner is a result alone.
    pub fn right_outer(self, name: &str) -> Joined<A, (Option<A::Row>, B::Row)> {
        self.join(name, "right_outer", [false, true], |first, second| {
            Some((first.cloned(), second?.clone()))
        })
    }

    /// As [`inner`](Self::inner), and each row of either stream that has no partner is a result alone.
    pub fn full_outer(self, name: &str) -> Joined<A, OuterPair<A, B>> {
        self.join(name, "full_outer", [true, true], |first, second| {
            Some((first.cloned(), second.cloned()))
        })
    }

    fn join<O, F>(
        self,
        name: &str,
        kind: &str,
        [is_first_outer, is_second_outer]: [bool; 2],
        pair: F,
    ) -> Joined<A, O>
    where
        O: Clone + Send + 'static,
        F: Fn(Option<&A::Row>, Option<&B::Row>) -> Option<O> + Send + Sync + 'static,
    {
        let RowJoin { streams, lifetime } = self;
        let flow = streams.flow().for_changes(name);
        flow.agree(format!("{name}: {kind}, with a lifetime of {lifetime:?}"));
        let unmatched = flow.unmatched(name);
        let of_rows = flow.of_operator();
        let of_rows = lifetime.map_or(of_rows.clone(), |lifetime| of_rows.lifetime(lifetime));
        let state = (
            of_rows.ordered_maps::<K, RowId, KeptRow<A::Row>>(&format!("{name}.first")),
            of_rows.ordered_maps::<K, RowId, KeptRow<B::Row>>(&format!("{name}.second")),
        );
        let partitions = flow.partitions_of(name, &state);
        streams.exchange(name, partitions).update_in_steps(
            name,
            &state,
            move |key: &K,
                  (mut firsts, mut seconds),
                  item: &Side<A, B>,
                  steps: &mut Steps<_>,
                  emit: &mut Emit<'_, _>| match item {
                Side::First(item) => {
                    let around = item.around(key);
                    let joining = Joining {
                        pair: |first: Option<&A::Row>, second: Option<&B::Row>| pair(first, second),
                        is_outer: is_first_outer,
                        is_other_outer: is_second_outer,
                        unmatched: &unmatched,
                    };
                    let emit: &mut EmitChange<'_, O> = &mut |change| emit(&around.of(change));
                    joining.apply(item.change(), &mut firsts, &mut seconds, steps, emit);
                }
                Side::Second(item) => {
                    let around = item.around(key);
                    let joining = Joining {
                        pair: |second: Option<&B::Row>, first: Option<&A::Row>| pair(first, second),
                        is_outer: is_second_outer,
                        is_other_outer: is_first_outer,
                        unmatched: &unmatched,
                    };
                    let emit: &mut EmitChange<'_, O> = &mut |change| emit(&around.of(change));
                    joining.apply(item.change(), &mut seconds, &mut firsts, steps, emit);
                }
            },
        )
    }
}
