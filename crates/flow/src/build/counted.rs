//! The operators with count windows.

use std::fmt::Debug;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::keyed::Keyed;
use crate::build::operators::Operators;
use crate::counted::{CountRecord, CountSizes, CountStep, CountWindow};
use crate::error::FlowError;
use crate::ranks::message::Message;
use crate::run::settings::Order;
use crate::stage::chain::{Chain, Same};
use crate::stage::ring_input::RingInput;
use crate::windows::{Aggregate, All, Key};

/// A stage that emits the results of count windows.
type Counted<K, O> = Operators<RingInput<CountWindow<K, O>>, Same>;

impl<I, C, T, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Message + Clone + Debug,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Emits, after each `slide` items of a key, the aggregate of its last `size` items: count windows, in Flink `countWindow`.
    /// With `slide` equal to `size` the windows are tumbling; with a larger `slide` they leave items out. A stage of its own,
    /// named `name`, and a state element of this name. The aggregate is any of [`windows`](crate::windows), or a tuple of
    /// several.
    ///
    /// The first windows of a key have fewer items than `size` where `slide` is smaller: [`CountWindow::events`] is their
    /// number. Items behind the last end of a window give no result at the end of a bounded input: the state has them. A flow that
    /// is stopped goes on with them when it resumes.
    ///
    /// Items of a key count in the order in which they arrive: those of one source in the source's order, those of several in
    /// any. This needs [`Order::Kept`]; [`run`](Flow::run) fails otherwise, and if a size is 0.
    ///
    /// # Costs
    ///
    /// An item costs about the same for each size: each fragment between two ends of windows is merged three times. Where `size`
    /// is larger than `slide`, the state of a key has `size / slide` fragments, or twice as many if `slide` does not divide
    /// `size`; memory has up to two states of the aggregate for each. A checkpoint writes the changed part of them: 16
    /// fragments at most, and those that are new.
    ///
    /// If a flow resumes with other sizes, each key begins anew with its next item.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::{Max, Sum};
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("readings");
    /// let whole = flow.partial::<u64>("whole");
    /// // Sensor 0 has the readings 0, 2, 4, …, and sensor 1 has 1, 3, 5, ….
    /// flow.source("readings", Generator::new(|number| number).limit(1_000))
    ///     .key_by(|number| number % 2)
    ///     .count_windows("recent", 100, 10, (Sum::of(|number: &u64| *number), Max::of(|number: &u64| *number)))
    ///     .filter(|window| window.events == 100)
    ///     .map(|window| {
    ///         let (sum, newest) = window.value;
    ///         (sum, 100 * newest.unwrap() - 99 * 100)
    ///     })
    ///     .filter(|(sum, expected)| sum == expected)
    ///     .fold_local(&whole, |whole, _| *whole += 1);
    /// flow.run()?.join()?;
    /// // Both keys have 500 items, and a window ends after each 10 of them.
    /// assert_eq!(whole.merged(), 2 * (50 - 9));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn count_windows<A>(
        self,
        name: &str,
        size: u64,
        slide: u64,
        aggregate: A,
    ) -> Counted<K, A::Out>
    where
        A: Aggregate<T>,
    {
        let (flow, sizes) = self.operators.flow.for_count_windows(name, size, slide);
        let maps = flow
            .of_operator()
            .maps::<K, Option<u64>, CountRecord<A::State>>(name);
        let step = CountStep::new(sizes, aggregate);
        self.update(name, &maps, move |key, mut records, item, emit| {
            step.apply(key, &mut records, item, emit);
        })
    }
}

impl<I, C> Operators<I, C>
where
    I: Entry,
    C: Chain<I::Item, Out: Message + Clone + Debug>,
{
    /// As [`Keyed::count_windows`], over all items of all ranks together, which go to one owner. Their order is the one in which
    /// they arrive there: over one source it is the source's own.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::Mean;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("numbers");
    /// let sum = flow.partial::<u64>("sum");
    /// flow.source("numbers", Generator::new(|number| number).limit(35))
    ///     .count_windows("tens", 10, 10, Mean::of(|number: &u64| *number))
    ///     .fold_local(&sum, |sum, window| *sum += window.value.ceil() as u64);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 5 + 15 + 25);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn count_windows<A>(
        self,
        name: &str,
        size: u64,
        slide: u64,
        aggregate: A,
    ) -> Counted<All, A::Out>
    where
        A: Aggregate<C::Out>,
    {
        self.all().count_windows(name, size, slide, aggregate)
    }
}

impl Flow {
    /// Returns another handle of the flow, for the state of an operator with count windows: its elements have no lifetime. Returns
    /// the sizes, too. The flow does not run if they are not possible, nor with [`Order::Free`]. For functions of
    /// [`counted`](crate::counted); the operators do this themselves.
    pub fn for_count_windows(&self, operator: &str, size: u64, slide: u64) -> (Flow, CountSizes) {
        self.agree(format!("{operator}: {size} items by {slide}"));
        let sizes = CountSizes::new(size, slide);
        let why = match self.settings.order {
            _ if sizes.is_none() => "their size and slide are at least one item",
            Order::Free => "they hold the last items of a key, which needs Order::Kept",
            Order::Kept => "",
        };
        if !why.is_empty() {
            self.refuse_windows(operator, why);
        }
        // Of a flow that does not run.
        let sizes = sizes.unwrap_or(CountSizes::ONE);
        (self.without_lifetime(), sizes)
    }

    /// Notes that an operator cannot have its windows.
    pub(super) fn refuse_windows(&self, operator: &str, why: &'static str) {
        let fault = FlowError::Windows {
            flow: self.name(),
            operator: operator.to_owned(),
            why,
        };
        self.plan().faults.push(fault);
    }
}
