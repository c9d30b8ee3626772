//! Streams that are enriched by the values of a keyed topic.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millstream_flow::windows::Key;
use millstream_flow::{BoxError, Chain, Entry, KeyLookup, Lookups, Message, RingInput, Same};

use crate::codec::Codec;
use crate::event::Event;
use crate::keyed::Keyed;
use crate::stream::Stream;
use crate::topic::Topic;

/// The age of a value from which on it is looked up again, unless the program sets another.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The results of an operator by key.
type Results<T> = Stream<RingInput<Event<T>>, Same, T>;

/// The keys of a topic that has none. A flow with it does not start.
struct NoKeys;

impl KeyLookup for NoKeys {
    fn name(&self) -> String {
        "a topic without keys".to_owned()
    }

    fn get(&self, _: &[Vec<u8>], _: &AtomicBool) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        Err(self.name().into())
    }
}

impl<I, C, T, K, F> Keyed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Message + Debug + Clone,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Makes an item of each item and of the newest value that a keyed topic has for its key; `None` if it has none. In Flink it is a
    /// look-up join. `name` is the operator's.
    ///
    /// The topic is not read as a stream. Values are looked up by key while the flow runs, and memory keeps about 2,048 of them for
    /// each worker, or 32 MiB, for a second: an item may miss a change that is younger. [`enrich_within`](Self::enrich_within) takes
    /// another age. The values are in no checkpoint: a flow that was killed looks them up again, and an item that comes again may see
    /// a newer value than before. [`KeyedRows::connect`](crate::KeyedRows::connect) joins without this, with state of its own.
    ///
    /// The flow does not start if the topic is missing or not keyed, and ends with an error at a value that the codec cannot read.
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let cities = node.topic("cities").json::<(String, String)>().create()?;
    /// let of = |user: &str, city: &str| (user.to_owned(), city.to_owned());
    /// cities.send([of("ada", "Turin"), of("bob", "Oslo"), of("ada", "Namur")])?;
    /// let orders = node.topic("orders").json::<(String, u64)>().create()?;
    /// orders.send([("ada".to_owned(), 3), ("cat".to_owned(), 5)])?;
    ///
    /// // A keyed topic: the city of each user.
    /// let city_of = node.topic("city_of").json::<(String, String)>();
    /// let city_of = city_of.setting("cleanup.policy", "compact");
    /// Flow::new("cities")
    ///     .read(cities.until_now())
    ///     .key_by(|(user, _)| user.clone())
    ///     .write(city_of.clone())
    ///     .run()?;
    ///
    /// let sent = node.topic("sent").json::<(u64, Option<String>)>();
    /// Flow::new("orders")
    ///     .read(orders.until_now())
    ///     .key_by(|(user, _)| user.clone())
    ///     .enrich("find_city", city_of, |(_, price), city| {
    ///         (*price, city.map(|(_, city)| city.clone()))
    ///     })
    ///     .write(sent.clone())
    ///     .run()?;
    /// let mut sent = sent.read_all()?;
    /// // Orders of different users come in any order.
    /// sent.sort();
    /// assert_eq!(sent, [(3, Some("Namur".to_owned())), (5, None)]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn enrich<D, O, G>(self, name: &str, topic: Topic<D>, function: G) -> Results<O>
    where
        D: Codec,
        O: Debug + Clone + Send + 'static,
        G: Fn(&T, Option<&D::Item>) -> O + Send + Sync + 'static,
    {
        self.enrich_within(name, topic, MAX_AGE, function)
    }

    /// As [`enrich`](Self::enrich), with another age from which on a value is looked up again. With an age of zero each item sees a
    /// value that was looked up after it has come to the operator.
    pub fn enrich_within<D, O, G>(
        self,
        name: &str,
        topic: Topic<D>,
        max_age: Duration,
        function: G,
    ) -> Results<O>
    where
        D: Codec,
        O: Debug + Clone + Send + 'static,
        G: Fn(&T, Option<&D::Item>) -> O + Send + Sync + 'static,
    {
        let flow = self.stream.flow.clone();
        let keys = topic.check_keyed().and_then(|()| {
            let keys = topic.node.keys(&topic.name);
            keys.map_err(|error| topic.error(error))
        });
        let keys: Arc<dyn KeyLookup> = match keys {
            Ok(keys) => Arc::new(keys),
            Err(error) => {
                flow.fault(error);
                Arc::new(NoKeys)
            }
        };
        let codec = topic.codec.clone();
        let decode = move |value: &[u8]| codec.decode(value);
        let lookups: Lookups<K, D::Item> = flow.begun().lookups(name, keys, max_age, decode);
        self.update(name, &lookups, move |_, value, item, emit| {
            emit(&function(item, value));
        })
    }
}
