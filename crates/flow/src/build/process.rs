//! The operator with state and timers by key.

use std::fmt::Debug;
use std::sync::Arc;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::keyed::Keyed;
use crate::build::operators::Operators;
use crate::build::values::Owned;
use crate::error::FlowError;
use crate::ranks::message::Message;
use crate::stage::chain::{Chain, Emit, Same};
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::steps::Steps;
use crate::stage::ends::to_process::{ProcessTime, Release, ToProcess};
use crate::stage::ring_input::RingInput;
use crate::state::element::Element;
use crate::state::timers::{Fired, Timers, TimersOf};
use crate::windows::Key;

impl Flow {
    /// Adds a state element that is readable under `name`: the timers of each key, for one [`process`](Keyed::process). A
    /// checkpoint has it as [`values`](Self::values), timer by timer. All timers are in memory.
    pub fn timers<K: Key, T: Key>(&self, name: &str) -> Timers<K, T> {
        let timers = Timers::new(&self.lasting_place(name));
        self.add_values(name, &timers.values);
        timers
    }

    /// Reserves timers for the operator `name`, or notes the fault.
    pub(super) fn reserve_timers<K: Key, T: Key>(
        &self,
        name: &str,
        timers: &Timers<K, T>,
        partitions: usize,
    ) {
        let why = match timers.reserve() {
            false => "its timers belong to another operator; add timers of its own",
            true if timers.values.tables().len() != partitions => {
                "they belong to different flows; add all of them to this one"
            }
            true => return,
        };
        let fault = FlowError::Elements {
            flow: self.name(),
            operator: name.to_owned(),
            why,
        };
        self.plan().faults.push(fault);
    }
}

impl<I, C, T, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Clone + Debug + Send + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Calls `on_item` for each item, and `on_timer` for each timer that fires, with the content of the key in a state element,
    /// or in a tuple of two, three or four, and with the key's timers. Both functions may change the content, set and cancel
    /// timers, and emit results. In Flink it is a `KeyedProcessFunction`. Items go to the rank and partition that own their
    /// key. A stage of its own, named `name`.
    ///
    /// Items of one key come in their order, and no two calls for one key happen at once. A panic of a function fails the
    /// flow, as in an [`update`](Self::update).
    ///
    /// # Timers of event time
    ///
    /// A timer fires once the watermark has reached its time, in the order of times, then of the keys'
    /// [canonical bytes](millstream_base::key) and of those of the tags; before the items behind the watermark, and before the
    /// watermark goes on to the next stage. A timer at a time that the watermark has passed fires at once. At the end of a
    /// bounded input the watermark is `i64::MAX`, so all fire. A function that sets a next timer whenever one fires should not
    /// do so then, or the flow has no end. A flow that is stopped leaves timers set that are not due.
    ///
    /// Without [`watermarks`](Operators::watermarks) timers of event time fire at the end of the input alone. Either all sources
    /// that lead here emit them, or none does; otherwise [`run`](Flow::run) fails.
    ///
    /// # Timers of the wall clock
    ///
    /// A timer fires once [`FlowSettings::clock`](crate::FlowSettings::clock) has reached its time, also while no items come.
    /// Where the clock is set back, timers wait until it has caught up. Where it is set forward, those that are due fire within
    /// some seconds. They wait while a checkpoint is taken. Those that came due while a flow was stopped fire when it resumes.
    /// Those that are set when a bounded input ends do not fire.
    ///
    /// # Many timers
    ///
    /// A timer is set once, however often it is set with the same time and tag, and costs the same, however many are set. Up to
    /// 64 fire in one step, and other stages have their turn between steps; items of the partition wait for the last one. No
    /// checkpoint is taken between the steps of a release by event time. So a function that always sets a timer of event time in
    /// the past holds up items and checkpoints for ever, and neither other stages nor the stop of the flow.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow, Watermarks};
    ///
    /// // Counts the clicks of each user's visits. A visit ends 10 s after its last click.
    /// let flow = Flow::new("visits");
    /// let visits = flow.values::<String, (u64, i64)>("visits");
    /// let ends = flow.timers::<String, ()>("ends");
    /// let counted = flow.partial::<u64>("counted");
    /// let clicks = [("ann", 0), ("ben", 1_000), ("ann", 4_000), ("ann", 9_000), ("ben", 30_000)];
    /// let click = move |number| {
    ///     let (user, time): (&str, i64) = clicks[number as usize];
    ///     (user.to_owned(), time)
    /// };
    /// flow.source("clicks", Generator::new(click).limit(5))
    ///     .watermarks(|(_, time)| Timestamp(*time), Watermarks::bounded(Duration::ZERO))
    ///     .key_by(|(user, _)| user.clone())
    ///     .process(
    ///         "count",
    ///         &visits,
    ///         &ends,
    ///         |_user, visit, timers, (_, time), _emit: &mut Emit<(String, u64)>| {
    ///             let (clicks, end) = visit.get_or_insert_default();
    ///             timers.cancel_event(Timestamp(*end), &());
    ///             *clicks += 1;
    ///             *end = time + 10_000;
    ///             timers.set_event(Timestamp(*end), &());
    ///         },
    ///         |user, visit, _timers, _fired, emit| {
    ///             if let Some((clicks, _)) = visit.take() {
    ///                 emit(&(user.clone(), clicks));
    ///             }
    ///         },
    ///     )
    ///     .fold_local(&counted, |sum, (_user, clicks)| *sum += clicks);
    /// let running = flow.run()?;
    /// running.join()?;
    /// assert_eq!(counted.merged(), 5);
    /// assert_eq!((visits.get(&"ann".to_owned()), ends.len()), (None, 0));
    /// // Over HTTP a timer that is set: `/state/visits/ends/["event",19000,"ann",null]`.
    /// assert_eq!(running.state("ends").map(|timers| timers.keys(10).len()), Some(0));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    ///
    /// Results of several kinds are an enum, and [`fork`](Operators::fork) or [`split`](Operators::split) lead each kind on its
    /// way, as a side output does in Flink:
    ///
    /// ```
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// #[derive(Debug, Clone)]
    /// enum Outcome {
    ///     Paid(u64),
    ///     Unpaid(u64),
    /// }
    ///
    /// let flow = Flow::new("orders");
    /// let open = flow.values::<u64, u64>("open");
    /// let deadlines = flow.timers::<u64, ()>("deadlines");
    /// let [paid, unpaid] = ["paid", "unpaid"].map(|name| flow.partial::<u64>(name));
    /// // An order and its payment have the same number; orders 7 to 9 are not paid.
    /// let events = Generator::new(|event| (event % 10, event / 10)).limit(17);
    /// flow.source("events", events)
    ///     .key_by(|(order, _)| *order)
    ///     .process(
    ///         "settle",
    ///         &open,
    ///         &deadlines,
    ///         |order, open, timers, (_, kind), emit: &mut Emit<Outcome>| match kind {
    ///             0 => {
    ///                 *open = Some(*order);
    ///                 timers.set_event(Timestamp(1_000), &());
    ///             }
    ///             _ => {
    ///                 *open = None;
    ///                 timers.cancel_event(Timestamp(1_000), &());
    ///                 emit(&Outcome::Paid(*order));
    ///             }
    ///         },
    ///         |order, open, _timers, _fired, emit| {
    ///             *open = None;
    ///             emit(&Outcome::Unpaid(*order));
    ///         },
    ///     )
    ///     .fork(
    ///         &["paid", "unpaid"],
    ///         |outcome| usize::from(matches!(outcome, Outcome::Unpaid(_))),
    ///         |branch, outcomes| {
    ///             let counts = if branch == 0 { &paid } else { &unpaid };
    ///             outcomes.fold_local(counts, |count, _| *count += 1)
    ///         },
    ///     );
    /// flow.run()?.join()?;
    /// assert_eq!((paid.merged(), unpaid.merged()), (7, 3));
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
        T: Message,
        S: Element<K>,
        U: Key,
        O: Clone + Send + 'static,
        G: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &T, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
        H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &Fired<U>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
    {
        let flow = &self.operators.flow;
        let partitions = flow.partitions_of(name, state);
        flow.reserve_timers(name, timers, partitions);
        let owned = self.exchange(name, partitions, T::clone);
        owned.process(name, state, timers, on_item, on_timer)
    }
}

impl<K: Key, T: Message + Clone> Owned<K, T> {
    /// Ends the stage in a [`process`](Keyed::process), for which the timers were reserved.
    pub(super) fn process<S, U, O, G, H>(
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
        G: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &T, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
        H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &Fired<U>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
    {
        let on_item = move |key: &K,
                            content: S::Content<'_>,
                            timers: &mut TimersOf<'_, K, U>,
                            item: &T,
                            _: &mut Steps<()>,
                            emit: &mut Emit<'_, O>| {
            on_item(key, content, timers, item, emit);
        };
        self.process_in_steps(name, state, timers, on_item, on_timer, false)
    }

    /// As [`process`](Self::process). The function of items may stop within an item when results have no more room: see
    /// [`Steps`]. Without watermarks, where the operator needs them, the flow does not begin.
    pub(super) fn process_in_steps<S, U, O, P, G, H>(
        self,
        name: &str,
        state: &S,
        timers: &Timers<K, U>,
        on_item: G,
        on_timer: H,
        needs_watermarks: bool,
    ) -> Operators<RingInput<O>, Same>
    where
        S: Element<K>,
        U: Key,
        O: Clone + Send + 'static,
        P: Send + 'static,
        G: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &T, &mut Steps<P>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
        H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &Fired<U>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
    {
        let flow = self.flow.clone();
        let results_name = format!("{name}/results");
        let results = flow.channel(&results_name);
        let channels = [results.clone()];
        let label = self.label("process");
        let functions = Arc::new((on_item, on_timer));
        let plan = flow.plan();
        let doorbell = Arc::clone(&plan.graph.doorbell);
        let stopping = Arc::clone(&plan.graph.stopping);
        let pause = Arc::clone(&plan.graph.pause);
        drop(plan);
        let clock = &flow.settings.clock;
        let tables = timers.values.tables().len();
        let mut indexes = 0..self.inputs.len();
        let ended = self.end(&[&results.state], |writing| {
            let index = indexes.next().expect("each partition has an instance");
            // They differ where the flow has a fault, and does not run.
            let timers = timers.table(index.min(tables - 1));
            ToProcess {
                state: state.clone(),
                tables: (state.partition(index), timers),
                functions: Arc::clone(&functions),
                label: label.clone(),
                outbox: Outbox::of_channels(writing, &channels),
                time: ProcessTime::new(
                    Arc::clone(clock),
                    Arc::clone(&doorbell),
                    Arc::clone(&stopping),
                    Arc::clone(&pause),
                ),
                needs_watermarks,
                missing: None,
                steps: Steps::default(),
                release: Release::default(),
                stamp: 0,
            }
        });
        ended.stage(&results_name, &results)
    }
}
