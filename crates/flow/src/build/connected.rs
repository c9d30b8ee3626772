//! Two streams with keys of one type, as one stream by key.

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::keyed::Keyed;
use crate::build::operators::Operators;
use crate::build::values::{Owned, Partitions};
use crate::error::FlowError;
use crate::ranks::message::Message;
use crate::stage::chain::{Chain, Emit, Same};
use crate::stage::ring_input::RingInput;
use crate::state::element::Element;
use crate::state::timers::{Fired, Timers, TimersOf};
use crate::windows::Key;

/// An item of one of two streams: see [`Keyed::connect`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side<L, R> {
    /// Of the first stream.
    First(L),
    /// Of the second stream.
    Second(R),
}

/// Two streams whose items meet by key: see [`Keyed::connect`].
#[must_use = "operators whose results go nowhere do not run"]
pub struct Connected<K, L, R> {
    flow: Flow,
    /// The second stream's flow, which has to be the same.
    second_flow: Flow,
    /// Each ends a stream in the partitions of an operator of this name.
    ends: [EndStream<K, Side<L, R>>; 2],
}

/// Ends a stream in the partitions of an operator. The channel to other ranks has this name.
type EndStream<K, M> = Box<dyn FnOnce(&str, &Partitions<K, M>)>;

impl<I, C, L, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = L>,
    L: Message + Clone + Debug,
    K: Key,
    F: Fn(&L) -> K + Send + Sync + 'static,
{
    /// Connects the stream, as the first one, with a second one by keys of the same type; in Flink `connect`, and the operators
    /// behind it are a `KeyedCoProcessFunction`. Items of both streams go straight to the rank and partition that own their key.
    ///
    /// Items of one key and stream come in their order; those of different streams come as they arrive, and in another run in
    /// another order. The watermark is the lower one of both streams.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow, Side};
    ///
    /// let flow = Flow::new("limits");
    /// // Of each user the limit and the sum of orders.
    /// let users = flow.values::<String, (u64, u64)>("users");
    /// let above = flow.partial::<u64>("above");
    /// let limits = [("ann", 10), ("ben", 5)];
    /// let limits = flow
    ///     .source("limits", Generator::new(move |number| limits[number as usize]).limit(2))
    ///     .map(|(user, limit)| (user.to_string(), *limit))
    ///     .key_by(|(user, _)| user.clone());
    /// let orders = [("ann", 4), ("ben", 6), ("ann", 3)];
    /// flow.source("orders", Generator::new(move |number| orders[number as usize]).limit(3))
    ///     .map(|(user, price)| (user.to_string(), *price))
    ///     .key_by(|(user, _)| user.clone())
    ///     .connect(limits)
    ///     .update("check", &users, |user, value, item, emit: &mut Emit<String>| {
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
    ///     .fold_local(&above, |count, _user| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(users.get(&"ann".to_owned()), Some((10, 7)));
    /// assert_eq!(above.merged(), 1);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn connect<J, D, R, G>(self, second: Keyed<J, D, G>) -> Connected<K, L, R>
    where
        J: Entry,
        D: Chain<J::Item, Out = R>,
        R: Message + Clone + Debug,
        G: Fn(&R) -> K + Send + Sync + 'static,
    {
        Connected {
            flow: self.operators.flow.clone(),
            second_flow: second.operators.flow.clone(),
            ends: [
                Box::new(|name, partitions| {
                    let content = |item: &L| Side::First(item.clone());
                    self.end_in_partitions(name, partitions, content);
                }),
                Box::new(|name, partitions| {
                    let content = |item: &R| Side::Second(item.clone());
                    second.end_in_partitions(name, partitions, content);
                }),
            ],
        }
    }
}

impl<K, L, R> Connected<K, L, R>
where
    K: Key,
    L: Message + Clone,
    R: Message + Clone,
{
    /// Calls `function` for each item of both streams, as [`Keyed::update`] does for those of one.
    pub fn update<E, O, G>(
        self,
        name: &str,
        element: &E,
        function: G,
    ) -> Operators<RingInput<O>, Same>
    where
        E: Element<K>,
        O: Clone + Send + 'static,
        G: Fn(&K, E::Content<'_>, &Side<L, R>, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        let partitions = self.flow.partitions_of(name, element);
        self.exchange(name, partitions)
            .update(name, element, function)
    }

    /// Calls `on_item` for each item of both streams, and `on_timer` for each timer that fires, as [`Keyed::process`] does for
    /// items of one stream.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow, Side, Watermarks};
    ///
    /// // Orders that are not paid within 50 ms.
    /// let flow = Flow::new("orders");
    /// let open = flow.values::<u64, bool>("open");
    /// let deadlines = flow.timers::<u64, ()>("deadlines");
    /// let unpaid = flow.partial::<u64>("unpaid");
    /// let in_order = Watermarks::bounded(Duration::ZERO);
    /// let payments = flow
    ///     .source("payments", Generator::new(|number| number * 2).limit(5))
    ///     .watermarks(|order| Timestamp(*order as i64 * 10 + 5), in_order)
    ///     .key_by(|order| *order);
    /// flow.source("orders", Generator::new(|number| number).limit(10))
    ///     .watermarks(|order| Timestamp(*order as i64 * 10), in_order)
    ///     .key_by(|order| *order)
    ///     .connect(payments)
    ///     .process(
    ///         "watch",
    ///         &open,
    ///         &deadlines,
    ///         |order, is_open, timers, item, _emit: &mut Emit<u64>| match item {
    ///             // The payment may have come before its order.
    ///             Side::First(_) if is_open.take() == Some(false) => {}
    ///             Side::First(_) => {
    ///                 *is_open = Some(true);
    ///                 timers.set_event(Timestamp(*order as i64 * 10 + 50), &());
    ///             }
    ///             Side::Second(_) if is_open.take() == Some(true) => {
    ///                 timers.cancel_event(Timestamp(*order as i64 * 10 + 50), &());
    ///             }
    ///             Side::Second(_) => *is_open = Some(false),
    ///         },
    ///         |order, is_open, _timers, _deadline, emit| {
    ///             *is_open = None;
    ///             emit(order);
    ///         },
    ///     )
    ///     .fold_local(&unpaid, |count, _order| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(unpaid.merged(), 5);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn process<S, U, O, G, H>(
        self,
        name: &str,
        state: &S,
        timers: &Timers<K, U>,
        on_item: G,
        on_timer: H,
    ) -> Operators<RingInput<O>, Same>
    where
        S: Element<K>,
        U: Key,
        O: Clone + Send + 'static,
        G: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &Side<L, R>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
        H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &Fired<U>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
    {
        let partitions = self.flow.partitions_of(name, state);
        self.flow.reserve_timers(name, timers, partitions);
        self.exchange(name, partitions)
            .process(name, state, timers, on_item, on_timer)
    }

    /// Returns the flow.
    pub(super) fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Ends both streams in exchanges, and begins the stage `name` with an instance for each partition.
    pub(super) fn exchange(self, name: &str, partitions: usize) -> Owned<K, Side<L, R>> {
        let Connected {
            flow,
            second_flow,
            ends: [first, second],
        } = self;
        if !flow.is_same(&second_flow) {
            // Neither runs: one would wait for the other.
            for flow in [&flow, &second_flow] {
                let fault = FlowError::ForeignStream {
                    flow: flow.name(),
                    operator: name.to_owned(),
                };
                flow.plan().faults.push(fault);
            }
        }
        let partitions = Partitions::new(&flow, name, partitions);
        first(&format!("{name}/first"), &partitions);
        second(&format!("{name}/second"), &partitions);
        partitions.begin(&flow, name)
    }
}
