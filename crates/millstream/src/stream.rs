//! Streams: rows of operators over events.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use millstream_base::Timestamp;
use millstream_connect::AnySource;
use millstream_flow::windows::Key;
use millstream_flow::{
    Chain, Emit, Entry, Operators, RingInput, RowStart, Same, SourceInput, Watermarks,
};

use crate::codec::Encode;
use crate::event::{EncodedEvent, Event, record_of};
use crate::flow_builder::Flow;
use crate::keyed::Keyed;
use crate::topic::Topic;

/// Returns the event time of an item.
pub(crate) type TimeOf<T> = Box<dyn Fn(&T) -> Timestamp + Send + Sync>;

/// Items with event times, and the operators so far.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Stream<I, C, T>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
{
    pub(crate) flow: Flow,
    pub(crate) operators: Operators<I, C>,
    /// Where the decoder of the topic looks for the event time, as long as its items are those of the topic.
    time: Option<Arc<OnceLock<TimeOf<T>>>>,
}

impl<C, T> Stream<SourceInput<AnySource>, C, T>
where
    C: Chain<<SourceInput<AnySource> as RowStart>::Item, Out = Event<T>>,
    T: Debug + Clone + 'static,
{
    /// Sets the event time of each item, and by how much items may be out of order: see [`out_of_order`](crate::out_of_order). Windows
    /// further on close by it.
    pub fn event_time<F>(
        self,
        time: F,
        watermarks: Watermarks,
    ) -> Stream<
        SourceInput<AnySource>,
        impl Chain<<SourceInput<AnySource> as RowStart>::Item, Out = Event<T>> + use<C, T, F>,
        T,
    >
    where
        F: Fn(&T) -> Timestamp + Send + Sync + 'static,
    {
        let time: Arc<F> = Arc::new(time);
        let decoders = Arc::clone(&time);
        // The decoder sets it where it can; behind an operator that makes other items, each event is made anew.
        let is_set = match self.time {
            Some(decoder) => decoder.set(Box::new(move |item| decoders(item))).is_ok(),
            None => false,
        };
        let operators = self
            .operators
            .flat_map(
                move |event: &Event<T>, emit: &mut Emit<Event<T>>| match is_set {
                    true => emit(event),
                    false => emit(&Event {
                        time: time(&event.item),
                        ..event.clone()
                    }),
                },
            )
            .watermarks(|event| event.time, watermarks);
        Stream::new(self.flow, operators, None)
    }
}

impl<I, C, T> Stream<I, C, T>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + 'static,
{
    pub(crate) fn new(
        flow: Flow,
        operators: Operators<I, C>,
        time: Option<Arc<OnceLock<TimeOf<T>>>>,
    ) -> Self {
        Stream {
            flow,
            operators,
            time,
        }
    }

    /// Turns each item into another.
    pub fn map<U, F>(
        self,
        function: F,
    ) -> Stream<I, impl Chain<I::Item, Out = Event<U>> + use<I, C, T, U, F>, U>
    where
        F: Fn(&T) -> U + Send + Sync + 'static,
        U: Debug + 'static,
    {
        let operators = self.operators.map(move |event: &Event<T>| Event {
            time: event.time,
            key: event.key.clone(),
            item: function(&event.item),
        });
        Stream::new(self.flow, operators, None)
    }

    /// Lets pass the items for which `function` holds.
    pub fn filter<F>(
        self,
        function: F,
    ) -> Stream<I, impl Chain<I::Item, Out = Event<T>> + use<I, C, T, F>, T>
    where
        F: Fn(&T) -> bool + Send + Sync + 'static,
    {
        let operators = self
            .operators
            .filter(move |event: &Event<T>| function(&event.item));
        // The decoder would ask for the time of items that are not wanted.
        Stream::new(self.flow, operators, None)
    }

    /// Turns each item into any number of others, which have its time and key.
    pub fn flat_map<U, F, R>(
        self,
        function: F,
    ) -> Stream<I, impl Chain<I::Item, Out = Event<U>> + use<I, C, T, U, F, R>, U>
    where
        F: Fn(&T) -> R + Send + Sync + 'static,
        R: IntoIterator<Item = U> + 'static,
        U: Debug + 'static,
    {
        let operators =
            self.operators
                .flat_map(move |event: &Event<T>, emit: &mut Emit<Event<U>>| {
                    for item in function(&event.item) {
                        emit(&Event {
                            time: event.time,
                            key: event.key.clone(),
                            item,
                        });
                    }
                });
        Stream::new(self.flow, operators, None)
    }

    /// Gives each item to `N` streams: for several computations over the same items.
    pub fn fork<const N: usize>(self) -> [Stream<RingInput<Event<T>>, Same, T>; N]
    where
        T: Clone + Send,
    {
        let Stream {
            flow, operators, ..
        } = self;
        let engine = flow.begun();
        let names: [String; N] = std::array::from_fn(|_| flow.stage_name("fork"));
        let channels = names.map(|name| (engine.channel::<Event<T>>(&name), name));
        operators.to_all(&channels.each_ref().map(|(channel, _)| channel.clone()));
        channels
            .map(|(channel, name)| Stream::new(flow.clone(), engine.stage(&name, &channel), None))
    }

    /// Groups the items by a key: all items of a key meet in one place.
    pub fn key_by<K, F>(self, key: F) -> Keyed<I, C, T, F>
    where
        K: Key,
        F: Fn(&T) -> K + Send + Sync + 'static,
    {
        Keyed {
            stream: self,
            key: Arc::new(key),
        }
    }

    /// Writes the items to a topic of any node, which is made if it is missing, with their keys and times. Readers
    /// of committed records see each result once, about a second later.
    pub fn write<D: Encode<T>>(self, topic: Topic<D>) -> Flow {
        let Stream {
            flow, operators, ..
        } = self;
        if let Err(error) = topic.ensure() {
            flow.fault(error);
        }
        let sink = topic.node.sink(&topic.name, Box::new(record_of));
        let codec = topic.codec.clone();
        let encoded = operators.each(move |event: &Event<T>, emit: &mut Emit<EncodedEvent>| {
            let mut item = Vec::new();
            codec.encode(&event.item, &mut item)?;
            emit(&Event {
                time: event.time,
                key: event.key.clone(),
                item,
            });
            Ok(())
        });
        let name = flow.stage_name(&topic.name);
        match sink {
            Ok(sink) => drop(encoded.sink(&name, sink)),
            Err(error) => flow.fault(topic.error(error)),
        }
        flow
    }
}
