//! The operators with processing-time windows.

use std::fmt::Debug;
use std::sync::Arc;

use crate::build::entry::Entry;
use crate::build::keyed::Keyed;
use crate::build::operators::Operators;
use crate::clocked::{ClockRecord, ClockStep};
use crate::ranks::message::Message;
use crate::stage::chain::{Chain, Same};
use crate::stage::ring_input::RingInput;
use crate::windows::{Aggregate, All, ClockWindows, Key, WindowResult, Windows};

/// A stage that emits the results of windows.
type Results<K, O> = Operators<RingInput<WindowResult<K, O>>, Same>;

impl<I, C, T, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Message + Clone + Debug,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Adds each item to the windows of its key that are open when the item arrives: windows of processing time, by the wall clock
    /// of [`FlowSettings::clock`](crate::FlowSettings::clock). A result is emitted when the clock reaches the window's end, also
    /// while no items come. Windows are tumbling, sliding or sessions. No item is late, and no watermarks are needed; other runs
    /// over the same input give other windows. A stage of its own, named `name`, and state elements of this name and of
    /// `<name>.timers`.
    ///
    /// At the end of a bounded input all open windows are emitted at once, and no item is lost. A flow that is stopped leaves them
    /// open. Those that ended while it was stopped are emitted when it resumes, before new items count.
    ///
    /// Where the clock is set back, items count in windows of past times, which open again: then a window may have a further
    /// result. Each item is in as many results of tumbling windows or sessions as without the change: in one. An open session goes
    /// on until the clock has passed its last item by the gap. Where the clock is set forward, windows end within some seconds.
    ///
    /// A window of sliding windows is made of `size / slide` panes, which are merged when it ends. If a flow resumes with other
    /// windows, items of open ones count in the new windows that hold the start of their pane.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::{Count, Windows};
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("visits");
    /// let counted = flow.partial::<u64>("counted");
    /// flow.source("visits", Generator::new(|number| number).limit(1_000))
    ///     .key_by(|number| number % 3)
    ///     .clock_windows("visits by minute", Windows::tumbling(60_000), Count)
    ///     .fold_local(&counted, |counted, window| {
    ///         assert_eq!(window.end.0 - window.start.0, 60_000);
    ///         *counted += window.value;
    ///     });
    /// flow.run()?.join()?;
    /// assert_eq!(counted.merged(), 1_000);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn clock_windows<A>(self, name: &str, windows: Windows, aggregate: A) -> Results<K, A::Out>
    where
        A: Aggregate<T>,
    {
        let flow = self.operators.flow.without_lifetime();
        flow.agree(format!("{name}: {windows} of the wall clock"));
        let windows = windows.of_clock().unwrap_or_else(|why| {
            flow.refuse_windows(name, why);
            // Of a flow that does not run.
            ClockWindows::Session { gap_ms: 1 }
        });
        let records = flow
            .of_operator()
            .ordered_maps::<K, Option<i64>, ClockRecord<A::State>>(name);
        let timers = flow.timers::<K, ()>(&format!("{name}.timers"));
        let step = Arc::new(ClockStep::new(windows, aggregate));
        let on_timer = Arc::clone(&step);
        self.process(
            name,
            &records,
            &timers,
            move |key, mut records, timers, item, emit| {
                step.on_item(key, &mut records, timers, item, emit);
            },
            move |key, mut records, timers, fired, emit| {
                on_timer.on_timer(key, &mut records, timers, fired, emit);
            },
        )
    }
}

impl<I, C> Operators<I, C>
where
    I: Entry,
    C: Chain<I::Item, Out: Message + Clone + Debug>,
{
    /// As [`Keyed::clock_windows`], over all items of all ranks together, which go to one owner.
    pub fn clock_windows<A>(
        self,
        name: &str,
        windows: Windows,
        aggregate: A,
    ) -> Results<All, A::Out>
    where
        A: Aggregate<C::Out>,
    {
        self.all().clock_windows(name, windows, aggregate)
    }
}
