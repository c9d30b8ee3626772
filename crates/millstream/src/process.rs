//! The operator with state and timers by key.

use std::fmt::Debug;

use millstream_base::Timestamp;
use millstream_flow::windows::Key;
use millstream_flow::{Chain, Element, Emit, Entry, Fired, Message, RingInput, Timers, TimersOf};

use crate::event::{Event, key_bytes};
use crate::keyed::Keyed;
use crate::stream::Stream;

impl<I, C, T, K, F> Keyed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Message + Debug + Clone,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Calls `on_item` for each item, with its event time, and `on_timer` for each timer that fires. Both get the content of
    /// the key in a state element of [`Flow::engine`](crate::Flow::engine), or in a tuple of them, and the key's timers, and may
    /// change both and emit results. A result has the time of the item or of the timer, and is written with the key. `name` is
    /// the operator's. Otherwise as [`process`](millstream_flow::Keyed::process) of the engine, which says when timers fire.
    ///
    /// ```
    /// use millstream::{Flow, Node, Timestamp, out_of_order, secs};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let readings = node.topic("readings").json::<(u64, Timestamp)>().create()?;
    /// readings.send([(1, Timestamp(1_000)), (2, Timestamp(2_000)), (1, Timestamp(50_000))])?;
    ///
    /// let flow = Flow::new("sensors");
    /// let readings = flow.read(readings.until_now()).event_time(|(_, time)| *time, out_of_order(secs(5)));
    /// let newest = flow.engine().values::<u64, Timestamp>("newest");
    /// let silences = flow.engine().timers::<u64, Timestamp>("silences");
    /// readings
    ///     .key_by(|(sensor, _)| *sensor)
    ///     .process(
    ///         "watch",
    ///         &newest,
    ///         &silences,
    ///         |_sensor, newest, timers, reading, _emit| {
    ///             *newest = (*newest).max(Some(reading.time));
    ///             timers.set_event(Timestamp(reading.time.0 + 60_000), &reading.time);
    ///         },
    ///         // A minute after a reading: was it the last one?
    ///         |sensor, newest, _timers, fired, emit| {
    ///             if *newest == Some(fired.tag) {
    ///                 emit(&(*sensor, fired.tag));
    ///             }
    ///         },
    ///     )
    ///     .write(node.topic("silent").json())
    ///     .run()?;
    /// let mut silent = node.topic("silent").json::<(u64, Timestamp)>().read_all()?;
    /// silent.sort_unstable();
    /// assert_eq!(silent, [(1, Timestamp(50_000)), (2, Timestamp(2_000))]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn process<S, U, O, G, H>(
        self,
        name: &str,
        state: &S,
        timers: &Timers<K, U>,
        on_item: G,
        on_timer: H,
    ) -> Stream<
        RingInput<Event<O>>,
        impl Chain<Event<O>, Out = Event<O>> + use<I, C, T, K, F, S, U, O, G, H>,
        O,
    >
    where
        S: Element<K>,
        U: Key,
        O: Debug + Clone + Send + 'static,
        G: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &Event<T>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
        H: Fn(&K, S::Content<'_>, &mut TimersOf<'_, K, U>, &Fired<U>, &mut Emit<'_, O>)
            + Send
            + Sync
            + 'static,
    {
        let flow = self.stream.flow.clone();
        let stage = flow.stage_name(name);
        let results = self.engine().process(
            &stage,
            state,
            timers,
            move |key: &K, content, timers, event: &Event<T>, emit: &mut Emit<'_, Event<O>>| {
                let emit: &mut Emit<'_, O> = &mut |result| emit(&of_key(key, event.time, result));
                on_item(key, content, timers, event, emit);
            },
            move |key: &K, content, timers, fired, emit| {
                let emit: &mut Emit<'_, O> = &mut |result| emit(&of_key(key, fired.time, result));
                on_timer(key, content, timers, fired, emit);
            },
        );
        Stream::new(flow, results)
    }
}

/// Returns a result for a key.
pub(crate) fn of_key<K: Key, O: Clone>(key: &K, time: Timestamp, result: &O) -> Event<O> {
    Event {
        time,
        key: key_bytes(key),
        item: result.clone(),
    }
}
