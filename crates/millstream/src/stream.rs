//! Streams: rows of operators over events.

use std::any;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use millstream_base::Timestamp;
use millstream_flow::changes::RowChange;
use millstream_flow::windows::Key;
use millstream_flow::{
    Boxed, Chain, Emit, Entry, Operators, RingInput, Same, Source, SourceInput, Table, Watermarks,
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
    /// The decoder of the topic, if it is in the same row; it decodes only the fields that the operators need.
    pub(crate) decoder: Decoder<T>,
}

/// A stream whose type can be named, so that functions can return and take it: [`Stream::boxed`] makes it.
pub type Pipeline<T> = Stream<Boxed<Event<T>>, Same, T>;

/// The fields that a topic's decoder reads of a record beside its value; shared with later operators while a flow is built.
pub(crate) struct Decoder<T> {
    /// The event time of an item, unless it is its record's; `None` once the items are no longer the topic's.
    pub time: Option<Arc<OnceLock<TimeOf<T>>>>,
    /// Whether the key of a record is not needed, since a later operator replaces it.
    pub leaves_keys_out: Arc<AtomicBool>,
}

impl<T> Decoder<T> {
    /// Returns the decoder for operators whose items are no longer the topic's.
    fn behind<U>(self) -> Decoder<U> {
        Decoder {
            time: None,
            leaves_keys_out: self.leaves_keys_out,
        }
    }
}

impl<T> Default for Decoder<T> {
    fn default() -> Self {
        Decoder {
            time: None,
            leaves_keys_out: Arc::default(),
        }
    }
}

impl<S, C, T> Stream<SourceInput<S>, C, T>
where
    S: Source,
    C: Chain<S::Item, Out = Event<T>>,
    T: Debug + Clone + 'static,
{
    /// Sets the event time of each item, and by how much items may be out of order: see [`out_of_order`](crate::out_of_order). Windows
    /// further on close by it.
    pub fn event_time<F>(
        self,
        time: F,
        watermarks: Watermarks,
    ) -> Stream<SourceInput<S>, impl Chain<S::Item, Out = Event<T>> + use<S, C, T, F>, T>
    where
        F: Fn(&T) -> Timestamp + Send + Sync + 'static,
    {
        let time: Arc<F> = Arc::new(time);
        let decoders = Arc::clone(&time);
        // The decoder sets it where it can; behind an operator that makes other items, each event is made anew.
        let is_set = match &self.decoder.time {
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
        Stream::with_decoder(self.flow, operators, self.decoder.behind())
    }
}

impl<I, C, T> Stream<I, C, T>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + 'static,
{
    /// Returns a stream whose items come from other operators.
    pub(crate) fn new(flow: Flow, operators: Operators<I, C>) -> Self {
        Stream::with_decoder(flow, operators, Decoder::default())
    }

    /// Returns a stream that still has the decoder of a topic in its row of operators.
    pub(crate) fn with_decoder(
        flow: Flow,
        operators: Operators<I, C>,
        decoder: Decoder<T>,
    ) -> Self {
        Stream {
            flow,
            operators,
            decoder,
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
        Stream::with_decoder(self.flow, operators, self.decoder.behind())
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
        Stream::with_decoder(self.flow, operators, self.decoder.behind())
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
        Stream::with_decoder(self.flow, operators, self.decoder.behind())
    }

    /// Joins each item with the row of a table that `key` leads to. Items without one are dropped. The table is the same in
    /// all instances of the operator, and the program can [load](Table::load) it anew while the flow runs.
    ///
    /// ```
    /// use millstream::flow::Table;
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// let order = |item: &str, count| (item.to_owned(), count);
    /// orders.send([order("tea", 2), order("air", 9), order("milk", 3)])?;
    /// let prices = Table::new([("tea".to_owned(), 4), ("milk".to_owned(), 1)]);
    ///
    /// let bills = node.topic("bills").json::<u64>();
    /// Flow::new("bills")
    ///     .read(orders.until_now())
    ///     .lookup(&prices, |(item, _)| item.clone(), |(_, count), price| count * price)
    ///     .write(bills.clone())
    ///     .run()?;
    /// assert_eq!(bills.read_all()?, [8, 3]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn lookup<K, V, U, F, G>(
        self,
        table: &Table<K, V>,
        key: F,
        function: G,
    ) -> Stream<I, impl Chain<I::Item, Out = Event<U>> + use<I, C, T, K, V, U, F, G>, U>
    where
        K: Hash + Eq + Send + Sync + 'static,
        V: Send + Sync + 'static,
        F: Fn(&T) -> K + Send + Sync + 'static,
        G: Fn(&T, &V) -> U + Send + Sync + 'static,
        U: Debug + 'static,
    {
        let operators = self.operators.join(
            table,
            move |event: &Event<T>| key(&event.item),
            move |event: &Event<T>, row: &V| Event {
                time: event.time,
                key: event.key.clone(),
                item: function(&event.item, row),
            },
        );
        Stream::with_decoder(self.flow, operators, self.decoder.behind())
    }

    /// Hides the types of the operators so far, so that a function can return the stream as a [`Pipeline`]. The operators behind
    /// the box are still in the same stage. The price is a copy of each item and a virtual call for each batch of them: see
    /// [`millstream_flow::Operators::boxed`].
    ///
    /// ```
    /// use millstream::{Flow, Node, Pipeline};
    ///
    /// fn words(lines: Pipeline<String>) -> Pipeline<String> {
    ///     lines.flat_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>()).boxed()
    /// }
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let lines = node.topic("lines").text().create()?;
    /// lines.send(["a pear", "an apple"])?;
    /// let topic = node.topic("words").text();
    /// let lines = Flow::new("words").read(lines.until_now()).boxed();
    /// words(lines).write(topic.clone()).run()?;
    /// assert_eq!(topic.read_all()?, ["a", "pear", "an", "apple"]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn boxed(self) -> Pipeline<T>
    where
        T: Clone + Send,
    {
        Stream::with_decoder(self.flow, self.operators.boxed(), self.decoder.behind())
    }

    /// Gives each item to `N` streams: for several computations over the same items. `N` is at least 1; else the flow does not
    /// begin, with [`FlowError::NoOutputs`](millstream_flow::FlowError::NoOutputs).
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
        channels.map(|(channel, name)| Stream::new(flow.clone(), engine.stage(&name, &channel)))
    }

    /// Groups the items by a key: all items of a key meet in one place.
    pub fn key_by<K, F>(self, key: F) -> Keyed<I, C, T, F>
    where
        K: Key,
        F: Fn(&T) -> K + Send + Sync + 'static,
    {
        self.decoder.leaves_keys_out.store(true, Ordering::Relaxed);
        Keyed {
            stream: self,
            key: Arc::new(key),
        }
    }

    /// Writes the items to a topic of any node, which is made if it is missing, with their keys and times. Readers
    /// of committed records see each result once, about a second later.
    ///
    /// Changes of rows ([`RowChange`]) are stored with their kinds. The flow does not start if their topic is
    /// keyed, since the newest change of a key is not its row: [`write_rows`](Self::write_rows) writes the rows.
    pub fn write<D: Encode<T>>(self, topic: Topic<D>) -> Flow {
        let codec = topic.codec.clone();
        let encoded =
            self.operators
                .each(move |event: &Event<T>, emit: &mut Emit<EncodedEvent>| {
                    let mut item = Vec::new();
                    codec.encode(&event.item, &mut item)?;
                    emit(&Event {
                        time: event.time,
                        key: event.key.clone(),
                        item,
                    });
                    Ok(())
                });
        let ensure = |topic: &mut Topic<D>| match is_change::<T>() {
            true => topic.ensure_not_keyed(),
            false => topic.ensure(),
        };
        self.flow.end(encoded, topic, ensure, Box::new(record_of))
    }
}

/// Whether items of this type are changes of rows, of any type. The rows' types are not known where a stream ends, so this
/// compares the names of the types.
fn is_change<T>() -> bool {
    let path = |name: &'static str| name.split('<').next();
    path(any::type_name::<T>()) == path(any::type_name::<RowChange<()>>())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millstream_base::ProducerId;
    use millstream_connect::StreamProducer;
    use millstream_log::{Log, LogConfig};
    use parking_lot::Mutex;

    use super::*;
    use crate::node::Node;

    /// Returns the keys that the operators behind a topic get.
    fn keys(is_keyed_anew: bool) -> Vec<Option<Box<[u8]>>> {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::new(dir.path())).unwrap();
        let node = Node::of_log(&log);
        let words = node.topic("words").text().create().unwrap();
        let stream = log.stream("words").unwrap();
        let mut producer = StreamProducer::new(&stream, ProducerId::NONE).unwrap();
        (producer.push(Timestamp(0), Some(b"key"), Some(b"word"), &[])).unwrap();
        producer.flush().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let keys = Arc::clone(&seen);
        let Stream {
            flow,
            operators,
            decoder,
        } = Flow::new("keys").read(words.until_now());
        let operators = operators.map(move |event: &Event<String>| {
            keys.lock().push(event.key.clone());
            event.clone()
        });
        let stream = Stream::with_decoder(flow, operators, decoder).map(String::clone);
        let copy = node.topic("copy").text();
        match is_keyed_anew {
            true => stream
                .key_by(String::len)
                .state::<u64>("lengths")
                .update(|_, _, word, emit| emit(word))
                .write(copy),
            false => stream.write(copy),
        }
        .run()
        .unwrap();
        seen.lock().clone()
    }

    #[test]
    fn a_decoder_skips_the_key_when_the_stream_sets_another() {
        assert_eq!(keys(false), [Some(Box::from(b"key".as_slice()))]);
        assert_eq!(keys(true), [None]);
    }

    #[test]
    fn changes_of_rows_of_any_type_are_found() {
        assert!(is_change::<RowChange<u64>>());
        assert!(is_change::<RowChange<(String, Option<Vec<u8>>)>>());
        assert!(is_change::<RowChange<RowChange<u64>>>());
        assert!(!is_change::<u64>());
        assert!(!is_change::<(RowChange<u64>, u64)>());
        assert!(!is_change::<Vec<RowChange<u64>>>());
    }
}
