//! Two streams that are joined by key and window.

use std::fmt::Debug;

use millstream_base::Timestamp;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::keyed::{Keyed, Panes};
use crate::build::operators::Operators;
use crate::ranks::message::Message;
use crate::stage::attempt::Attempt;
use crate::stage::chain::{Chain, Same};
use crate::stage::ring_input::RingInput;
use crate::stage::user_code::Label;
use crate::state::windowed::Windowed;
use crate::windows::{Joined, Key, OneSide, WindowResult, WindowTotals, Windows};

/// A join of two streams by key and window, which [`Flow::window_join`] begins: the first stream continues from it
/// with [`join`](Keyed::join), the second ends in it with [`to_join`](Keyed::to_join). A clone is another handle of
/// the same join.
pub struct WindowJoin<K, L, R>
where
    L: Message + Clone,
    R: Message + Clone,
{
    name: String,
    windows: Windowed<K, Joined<L, R>>,
    panes: Panes<K, (Vec<L>, Vec<R>)>,
}

/// The items that both streams have of a key in a window.
type Both<K, L, R> = WindowResult<K, (Vec<L>, Vec<R>)>;

/// Keys whose last window can be read when it is over: none, since the window's items would be retained for that.
const REMEMBERED_KEYS: usize = 0;

impl Flow {
    /// Begins a join of two streams by key, within each of some windows: tumbling, sliding or session. Keys of both
    /// streams have one type. A session is one of both streams: it ends when neither has an item of the key
    /// for its gap. State that is readable under `name` has the items of the windows that are open.
    ///
    /// Both streams need watermarks. A window is joined when event time has passed its end in both streams, so
    /// the items of the faster one wait: memory holds every item of both until its last window is over. The
    /// pairs of one key and window are made at once. A window that comes again, updated by late items, gives all of its
    /// pairs again; a session may do so where no lateness is allowed.
    ///
    /// ```
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::Windows;
    /// use millstream_flow::{Flow, Watermarks};
    /// use std::time::Duration;
    ///
    /// // An order every 10 ms; all but every fourth are paid 5 ms later.
    /// let orders = Generator::new(|id| (id, id as i64 * 10)).limit(100);
    /// let payments = Generator::new(|number| (number / 3 * 4 + number % 3, number)).limit(75);
    /// let paid_at = |(order, _): &(u64, u64)| Timestamp(*order as i64 * 10 + 5);
    /// let in_order = Watermarks::bounded(Duration::ZERO);
    ///
    /// let flow = Flow::new("shop");
    /// let [paid, unpaid] = ["paid", "unpaid"].map(|name| flow.partial::<u64>(name));
    /// let bills = flow.window_join("bills", Windows::tumbling(100));
    /// flow.source("payments", payments)
    ///     .watermarks(paid_at, in_order)
    ///     .key_by(|(order, _)| *order)
    ///     .to_join(&bills, paid_at);
    /// flow.source("orders", orders)
    ///     .watermarks(|(_, time)| Timestamp(*time), in_order)
    ///     .key_by(|(id, _)| *id)
    ///     .join(&bills, |(_, time)| Timestamp(*time))
    ///     .left_outer(|_order, payment| payment.is_some())
    ///     .fork(&["paid", "unpaid"], |is_paid| usize::from(!is_paid), |branch, orders| {
    ///         orders.fold_local([&paid, &unpaid][branch], |count, _| *count += 1)
    ///     });
    /// flow.run()?.join()?;
    /// assert_eq!((paid.merged(), unpaid.merged()), (75, 25));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn window_join<K, L, R>(&self, name: &str, windows: Windows) -> WindowJoin<K, L, R>
    where
        K: Key,
        L: Message + Clone,
        R: Message + Clone,
    {
        self.plan().one_sided.push(name.to_owned());
        let windows = self.windows(name, windows, Joined::new(), REMEMBERED_KEYS);
        self.add_state(name, windows.clone());
        WindowJoin {
            name: name.to_owned(),
            windows,
            panes: Panes::new(self, name),
        }
    }
}

impl<K, L, R> WindowJoin<K, L, R>
where
    K: Key,
    L: Message + Clone,
    R: Message + Clone,
{
    /// The sums of both streams at this moment.
    pub fn totals(&self) -> WindowTotals {
        self.windows.totals()
    }

    /// Items of both streams that are in none of the windows since their time was over.
    pub fn late_events(&self) -> u64 {
        self.windows.late_events()
    }
}

impl<K, L, R> Clone for WindowJoin<K, L, R>
where
    L: Message + Clone,
    R: Message + Clone,
{
    fn clone(&self) -> Self {
        WindowJoin {
            name: self.name.clone(),
            windows: self.windows.clone(),
            panes: self.panes.clone(),
        }
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
    /// Ends the stream as the second one of a join. Several streams may end in it: then the second one is all of
    /// them.
    pub fn to_join<L, E>(self, join: &WindowJoin<K, L, T>, time: E) -> Flow
    where
        L: Message + Clone,
        E: Fn(&T) -> Timestamp + Send + Sync + 'static,
    {
        let exchange = format!("{}/{}", join.name, self.operators.stage);
        let put: fn(&mut (Vec<L>, Vec<T>), &T) = |(_, rights), item| rights.push(item.clone());
        let spec = join.windows.spec.with(OneSide { put });
        let flow = self.end_in_panes("to_join", &exchange, spec, &join.panes, time);
        flow.plan().one_sided.retain(|name| *name != join.name);
        flow
    }

    /// Joins the stream, as the first one, with the [second](Keyed::to_join): gives the items that both have of
    /// a key in a window, each stream's in no particular order, when event time has passed the end of the window in both. Behind it
    /// [`inner`](Operators::inner) and the outer joins make pairs of them; the lists themselves serve for all
    /// else, as a join that depends on how many there are.
    pub fn join<R, E>(
        self,
        join: &WindowJoin<K, T, R>,
        time: E,
    ) -> Operators<RingInput<Both<K, T, R>>, Same>
    where
        R: Message + Clone,
        E: Fn(&T) -> Timestamp + Send + Sync + 'static,
    {
        self.operators.flow.reserve(&join.windows.spec, &join.name);
        let exchange = format!("{}/{}", join.name, self.operators.stage);
        let put: fn(&mut (Vec<T>, Vec<R>), &T) = |(lefts, _), item| lefts.push(item.clone());
        let spec = join.windows.spec.with(OneSide { put });
        let flow = self.end_in_panes("join", &exchange, spec, &join.panes, time);
        join.panes.windows(&flow, &join.name, &join.windows)
    }
}

impl<I, C, K, L, R> Operators<I, C>
where
    I: Entry,
    C: Chain<I::Item, Out = Both<K, L, R>>,
    K: Key,
    L: Message + Debug,
    R: Message + Debug,
{
    /// Makes an item of each pair that a [windowed join](Keyed::join) has: one of each stream, of one key, in one
    /// window. In sliding windows a pair comes once for each window that both are in. A pair that makes
    /// `function` panic twice becomes a dead letter; the others go their way.
    pub fn inner<U, F>(
        self,
        function: F,
    ) -> Operators<I, impl Chain<I::Item, Out = U> + use<I, C, K, L, R, U, F>>
    where
        F: Fn(&L, &R) -> U + Send + Sync + 'static,
        U: 'static,
    {
        self.pairs("inner", move |left, right| Some(function(left?, right?)))
    }

    /// As [`inner`](Operators::inner), and makes an item of each of the first stream that has no partner in a
    /// window.
    pub fn left_outer<U, F>(
        self,
        function: F,
    ) -> Operators<I, impl Chain<I::Item, Out = U> + use<I, C, K, L, R, U, F>>
    where
        F: Fn(&L, Option<&R>) -> U + Send + Sync + 'static,
        U: 'static,
    {
        self.pairs("left_outer", move |left, right| {
            Some(function(left?, right))
        })
    }

    /// As [`inner`](Operators::inner), and makes an item of each of the second stream that has no partner in a
    /// window.
    pub fn right_outer<U, F>(
        self,
        function: F,
    ) -> Operators<I, impl Chain<I::Item, Out = U> + use<I, C, K, L, R, U, F>>
    where
        F: Fn(Option<&L>, &R) -> U + Send + Sync + 'static,
        U: 'static,
    {
        self.pairs("right_outer", move |left, right| {
            Some(function(left, right?))
        })
    }

    /// As [`inner`](Operators::inner), and makes an item of each of either stream that has no partner in a
    /// window. At least one of the two that `function` gets is there.
    pub fn full_outer<U, F>(
        self,
        function: F,
    ) -> Operators<I, impl Chain<I::Item, Out = U> + use<I, C, K, L, R, U, F>>
    where
        F: Fn(Option<&L>, Option<&R>) -> U + Send + Sync + 'static,
        U: 'static,
    {
        self.pairs("full_outer", move |left, right| Some(function(left, right)))
    }

    fn pairs<U, F>(
        self,
        kind: &str,
        function: F,
    ) -> Operators<I, impl Chain<I::Item, Out = U> + use<I, C, K, L, R, U, F>>
    where
        F: Fn(Option<&L>, Option<&R>) -> Option<U> + Send + Sync + 'static,
        U: 'static,
    {
        self.add(kind, |before, label| Pairs {
            before,
            function,
            label,
        })
    }
}

/// Makes pairs of the items of both streams: `function` makes none of those that a kind of join leaves out.
struct Pairs<C, F> {
    before: C,
    function: F,
    label: Label,
}

impl<In: ?Sized, C, K, L, R, U, F> Chain<In> for Pairs<C, F>
where
    C: Chain<In, Out = Both<K, L, R>>,
    L: Debug,
    R: Debug,
    F: Fn(Option<&L>, Option<&R>) -> Option<U> + Send + Sync + 'static,
    U: 'static,
{
    type Out = U;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&U)) {
        self.before.process(attempt, item, &mut |window| {
            let (lefts, rights) = &window.value;
            let mut pair = |left: Option<&L>, right: Option<&R>| {
                let function = || (self.function)(left, right);
                if let Some(Some(result)) = attempt.call(&self.label, &(left, right), function) {
                    out(&result);
                }
            };
            for left in lefts {
                rights
                    .iter()
                    .for_each(|right| pair(Some(left), Some(right)));
                if rights.is_empty() {
                    pair(Some(left), None);
                }
            }
            if lefts.is_empty() {
                rights.iter().for_each(|right| pair(None, Some(right)));
            }
        });
    }
}
