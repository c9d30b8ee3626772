//! Windows that need no event time: by the number of items, and by the wall clock.

use std::fmt::Debug;

use millstream_flow::counted::{CountRecord, CountStep, CountWindow};
use millstream_flow::windows::{Aggregate, Key, WindowResult, Windows};
use millstream_flow::{Chain, Emit, Entry, Message, RingInput, Same};

use crate::event::{Event, key_bytes};
use crate::keyed::{Keyed, OfItem, Results};
use crate::stream::Stream;

/// The results of count windows.
type Counted<K, O> = Stream<RingInput<Event<CountWindow<K, O>>>, Same, CountWindow<K, O>>;

impl<I, C, T, K, F> Keyed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Message + Debug + Clone,
    K: Key + Debug,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Emits, after each `slide` items of a key, the aggregate of its last `size` items, with the time of the last one. With
    /// `slide` equal to `size` the windows are tumbling; with a larger `slide` they leave items out. The aggregate is any of
    /// [`millstream_flow::windows`], or a tuple of several. For windows over all items, key them by
    /// [`All`](millstream_flow::windows::All).
    ///
    /// State of this name has the items since the last window, also when the flow has read its topics to the end. Items
    /// count in the order in which they arrive: in a partition of a topic that of their offsets. Costs and limits are as
    /// [`millstream_flow::Keyed::count_windows`] describes.
    ///
    /// ```
    /// use millstream::flow::windows::Mean;
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let readings = node.topic("readings").json::<(String, f64)>().create()?;
    /// readings.send((0..10).map(|number| ("roof".to_owned(), f64::from(number))))?;
    /// let means = node.topic("means").json::<(u64, f64)>();
    ///
    /// Flow::new("smooth")
    ///     .read(readings.until_now())
    ///     .key_by(|(sensor, _)| sensor.clone())
    ///     .count_windows("last_four", 4, 2, Mean::of(|(_, reading): &(String, f64)| *reading))
    ///     .filter(|window| window.events == 4)
    ///     .map(|window| (window.last, window.value))
    ///     .write(means.clone())
    ///     .run()?;
    /// assert_eq!(means.read_all()?, [(4, 1.5), (6, 3.5), (8, 5.5), (10, 7.5)]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn count_windows<A>(
        self,
        name: &str,
        size: u64,
        slide: u64,
        aggregate: A,
    ) -> Counted<K, A::Out>
    where
        A: Aggregate<T, Out: Debug>,
    {
        let engine = self.stream.flow.begun();
        let (engine, sizes) = engine.for_count_windows(name, size, slide);
        let maps = engine.maps::<K, Option<u64>, CountRecord<A::State>>(name);
        let step = CountStep::new(sizes, aggregate);
        self.update(
            name,
            &maps,
            move |key, mut records, item, emit: &mut Emit<'_, CountWindow<K, A::Out>>| {
                step.apply(key, &mut records, item, emit);
            },
        )
    }

    /// Collects the items of each key in windows of the wall clock: [`tumbling`](crate::tumbling), [`sliding`](crate::sliding)
    /// or [`session`](crate::session). An item is in the windows that are open when it arrives, whatever its event time. A
    /// result comes when the clock reaches the window's end, and has that time. States of this name and of `<name>.timers` have
    /// the open windows.
    ///
    /// When the flow has read its topics to the end, all open windows are emitted. A flow that is stopped leaves them open, and
    /// those that end meanwhile are emitted when it starts again. It is as
    /// [`millstream_flow::Keyed::clock_windows`] describes.
    ///
    /// ```
    /// use millstream::flow::windows::Count;
    /// use millstream::{Flow, Node, secs, tumbling};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let clicks = node.topic("clicks").json::<(String, u64)>().create()?;
    /// let click = |user: &str, page| (user.to_owned(), page);
    /// clicks.send([click("ada", 1), click("bob", 1), click("ada", 2)])?;
    /// let counts = node.topic("counts").json::<(String, u64)>();
    ///
    /// Flow::new("clicks")
    ///     .read(clicks.until_now())
    ///     .key_by(|(user, _)| user.clone())
    ///     .clock_windows("by_hour", tumbling(secs(3_600)), Count)
    ///     .map(|window| (window.key.clone(), window.value))
    ///     .write(counts.clone())
    ///     .run()?;
    /// let counts = counts.read_all()?;
    /// assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 3);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    #[expect(
        clippy::type_complexity,
        reason = "the type of a row names all of its operators"
    )]
    pub fn clock_windows<A>(
        self,
        name: &str,
        windows: Windows,
        aggregate: A,
    ) -> Stream<
        Results<K, A::Out>,
        impl Chain<WindowResult<K, A::Out>, Out = Event<WindowResult<K, A::Out>>>
        + use<I, C, T, K, F, A>,
        WindowResult<K, A::Out>,
    >
    where
        A: Aggregate<T, Out: Debug>,
    {
        let flow = self.stream.flow.clone();
        let stage = flow.stage_name(name);
        let results = self
            .engine()
            .clock_windows(&stage, windows, OfItem(aggregate))
            .map(of_window);
        Stream::new(flow, results)
    }
}

/// Returns a window as an event at its end.
fn of_window<K: Key, O: Clone>(window: &WindowResult<K, O>) -> Event<WindowResult<K, O>> {
    Event {
        time: window.end,
        key: key_bytes(&window.key),
        item: window.clone(),
    }
}
