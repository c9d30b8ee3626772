//! The operators that change state elements by key.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

use millstream_ring::Ring;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::keyed::Keyed;
use crate::build::operators::Operators;
use crate::ranks::message::Message;
use crate::ranks::owners::KeyOwners;
use crate::stage::chain::{Chain, Emit, Same};
use crate::stage::channel::ChannelState;
use crate::stage::ends::keyed_item::{KeyedItem, ToKeyOwner};
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::steps::Steps;
use crate::stage::ends::to_owner::ToOwner;
use crate::stage::ends::to_ranks::ToRanks;
use crate::stage::ends::to_rings::ToRings;
use crate::stage::ends::to_values::ToValues;
use crate::stage::ring_input::RingInput;
use crate::state::element::Element;
use crate::state::values::{Value, Values};
use crate::windows::Key;

impl<I, C, T, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Clone + Debug + Send + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Calls `function` for each item, with the content of the item's key in a state element: of [`Values`] the value, which
    /// is `None` if the key has none; of [`Maps`](crate::Maps) the map, as [`MapOf`](crate::MapOf); of others likewise.
    /// The function may change the content, and emit results. Items go to the rank and partition that own their key. A stage
    /// of its own, named `name`.
    ///
    /// Items of one key come in their order. Several operators may change one element. `element` may also be a tuple of two,
    /// three or four elements, which have to differ: the function gets the tuple of their contents. A panic of `function` fails the
    /// flow, since the content may be half changed; so the function should be sure of its item, and operators before it should
    /// reject items that it cannot process.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("logins");
    /// let failures = flow.values::<String, u32>("failures");
    /// let locked = flow.partial::<u64>("locked");
    /// let attempts = [("ann", false), ("ben", false), ("ann", false), ("ben", true), ("ann", false)];
    /// let attempt = move |number| {
    ///     let (user, succeeds): (&str, bool) = attempts[number as usize];
    ///     (user.to_owned(), succeeds)
    /// };
    /// flow.source("attempts", Generator::new(attempt).limit(5))
    ///     .key_by(|(user, _)| user.clone())
    ///     .update("fail", &failures, |user, count, (_, succeeds), emit: &mut Emit<String>| {
    ///         if *succeeds {
    ///             *count = None;
    ///         } else {
    ///             let count = count.get_or_insert_default();
    ///             *count += 1;
    ///             if *count == 3 {
    ///                 emit(user);
    ///             }
    ///         }
    ///     })
    ///     .fold_local(&locked, |locked, _user| *locked += 1);
    /// let running = flow.run()?;
    /// running.join()?;
    /// assert_eq!(failures.get(&"ann".to_owned()), Some(3));
    /// assert_eq!(failures.get(&"ben".to_owned()), None);
    /// assert_eq!(locked.merged(), 1);
    /// // Over HTTP: `/state/logins/failures/ann`.
    /// assert_eq!(running.state("failures").and_then(|state| state.get("ann")).unwrap(), 3);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    ///
    /// With several elements:
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("carts");
    /// let carts = flow.maps::<u64, u64, u32>("carts");
    /// let sizes = flow.counters::<u64>("sizes");
    /// let full = flow.partial::<u64>("full");
    /// flow.source("items", Generator::new(|number| (number % 2, number % 5)).limit(100))
    ///     .key_by(|(user, _)| *user)
    ///     .update("fill", &(carts, sizes.clone()), |user, (mut cart, mut size), (_, item), emit: &mut Emit<u64>| {
    ///         *cart.or_default(item) += 1;
    ///         if size.add(1) == 40 {
    ///             emit(user);
    ///         }
    ///     })
    ///     .fold_local(&full, |count, _user| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!((full.merged(), sizes.get(&1)), (2, 50));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn update<E, O, G>(
        self,
        name: &str,
        element: &E,
        function: G,
    ) -> Operators<RingInput<O>, Same>
    where
        T: Message,
        E: Element<K>,
        O: Clone + Send + 'static,
        G: Fn(&K, E::Content<'_>, &T, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        let partitions = self.operators.flow.partitions_of(name, element);
        let owned = self.exchange(name, partitions, T::clone);
        owned.update(name, element, function)
    }

    /// Ends the graph in values: `step` adds each item to the value of the item's key, which begins as the default. Else
    /// as [`update`](Keyed::update).
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("sums");
    /// let sums = flow.values::<u64, u64>("sums");
    /// flow.source("numbers", Generator::new(|number| number).limit(10))
    ///     .key_by(|number| number % 3)
    ///     .fold("add", &sums, |sum, number| *sum += number);
    /// flow.run()?.join()?;
    /// assert_eq!(sums.get(&0), Some(0 + 3 + 6 + 9));
    /// assert_eq!(sums.get(&5), None);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn fold<V, G>(self, name: &str, values: &Values<K, V>, step: G) -> Flow
    where
        T: Message,
        V: Value + Default,
        G: Fn(&mut V, &T) + Send + Sync + 'static,
    {
        self.fold_as("fold", name, values, T::clone, step)
    }

    /// Ends the graph in values: counts the items of each key. Only the keys go to their owners.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("words");
    /// let counts = flow.values::<String, u64>("counts");
    /// let words = "to be or not to be".split(' ').map(str::to_owned).collect::<Vec<_>>();
    /// flow.source("words", Generator::new(move |number| words[number as usize].clone()).limit(6))
    ///     .key_by(|word| word.clone())
    ///     .count("count", &counts);
    /// flow.run()?.join()?;
    /// assert_eq!(counts.get(&"be".to_owned()), Some(2));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn count(self, name: &str, values: &Values<K, u64>) -> Flow {
        self.fold_as("count", name, values, |_| (), |count, ()| *count += 1)
    }

    fn fold_as<V, M, G>(
        self,
        kind: &str,
        name: &str,
        values: &Values<K, V>,
        content: impl Fn(&T) -> M + Clone + Send + 'static,
        step: G,
    ) -> Flow
    where
        V: Value + Default,
        M: Message + Clone,
        G: Fn(&mut V, &M) + Send + Sync + 'static,
    {
        let partitions = values.tables().len();
        let owned = self.exchange(name, partitions, content);
        let label = owned.label(kind);
        let function = move |_: &K,
                             value: &mut Option<V>,
                             item: &M,
                             _: &mut Steps<()>,
                             _: &mut Emit<'_, Infallible>| {
            step(value.get_or_insert_default(), item);
        };
        let function = Arc::new(function);
        let mut indexes = 0..partitions;
        owned.end(&[], |_| ToValues {
            element: values.clone(),
            tables: values.partition(indexes.next().expect("each partition has an instance")),
            function: Arc::clone(&function),
            label: label.clone(),
            outbox: None,
            missing: None,
            steps: Steps::default(),
        })
    }

    /// Ends the stage in an exchange, and begins the stage `name` with an instance for each partition.
    pub(super) fn exchange<M: Message + Clone>(
        self,
        name: &str,
        partitions: usize,
        content: impl Fn(&T) -> M + Clone + Send + 'static,
    ) -> Owned<K, M> {
        let partitions = Partitions::new(&self.operators.flow, name, partitions);
        let flow = self.end_in_partitions(name, &partitions, content);
        partitions.begin(&flow, name)
    }

    /// Ends the stage in an exchange. The channel to other ranks is named `exchange`.
    pub(super) fn end_in_partitions<M: Message + Clone>(
        self,
        exchange: &str,
        Partitions { rings, channel }: &Partitions<K, M>,
        content: impl Fn(&T) -> M + Clone + Send + 'static,
    ) -> Flow {
        let Keyed {
            mut operators, key, ..
        } = self;
        let exchange_ends = operators.exchange_ends::<KeyedItem<K, M>>(exchange);
        let owners = KeyOwners::new(exchange_ends.ranks, rings.len());
        let label = operators.label("key_by");
        let key = Arc::new(key);
        let flow = operators.end(&[channel], |writing| {
            let local = Outbox::of_rings(writing, rings, channel);
            let router = ToKeyOwner {
                owners: owners.clone(),
                key: Arc::clone(&key),
                content: content.clone(),
                label: label.clone(),
            };
            ToRanks::new(exchange_ends.exchange(local, writing), router)
        });
        if let Some(received) = exchange_ends.received {
            flow.receive(&format!("{exchange}/received"), received)
                .end(&[channel], |writing| ToRings {
                    outbox: Outbox::of_rings(writing, rings, channel),
                    partitioner: ToOwner {
                        owners: owners.clone(),
                        label: label.clone(),
                    },
                });
        }
        flow
    }
}

/// The rings in which the items of all instances and ranks meet whose keys this rank owns: one for each partition of keys.
pub(super) struct Partitions<K, M> {
    rings: Vec<Arc<Ring<KeyedItem<K, M>>>>,
    channel: Arc<ChannelState>,
}

/// A stage with an instance for each partition of keys.
pub(super) type Owned<K, M> = Operators<RingInput<KeyedItem<K, M>>, Same>;

impl<K: Key, M: Message + Clone> Partitions<K, M> {
    pub fn new(flow: &Flow, name: &str, count: usize) -> Self {
        let (rings, channel) = flow.rings(name, count);
        Partitions { rings, channel }
    }

    /// Begins the stage that reads them.
    pub fn begin(&self, flow: &Flow, name: &str) -> Owned<K, M> {
        let Partitions { rings, channel } = self;
        let inputs = rings.iter().enumerate();
        let inputs = inputs.map(|(index, ring)| RingInput::new(ring, channel, index));
        let mut owned = Operators::begin(flow, name, Some(Arc::clone(channel)), inputs.collect());
        owned.is_shared = false;
        owned
    }
}

impl<K: Key, T: Message + Clone> Owned<K, T> {
    /// Ends the stage in an [`update`](Keyed::update).
    pub(super) fn update<E, O, G>(
        self,
        name: &str,
        element: &E,
        function: G,
    ) -> Operators<RingInput<O>, Same>
    where
        E: Element<K>,
        O: Clone + Send + 'static,
        G: Fn(&K, E::Content<'_>, &T, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        self.update_in_steps::<_, _, (), _>(
            name,
            element,
            move |key: &K, content, item, _, emit| {
                function(key, content, item, emit);
            },
        )
    }

    /// As [`update`](Self::update). The function may stop within an item when results have no more room: see [`Steps`].
    pub(super) fn update_in_steps<E, O, P, G>(
        self,
        name: &str,
        element: &E,
        function: G,
    ) -> Operators<RingInput<O>, Same>
    where
        E: Element<K>,
        O: Clone + Send + 'static,
        P: Send + 'static,
        G: Fn(&K, E::Content<'_>, &T, &mut Steps<P>, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        let results_name = format!("{name}/results");
        let results = self.flow.channel(&results_name);
        let channels = [results.clone()];
        let label = self.label("update");
        let function = Arc::new(function);
        let mut indexes = 0..self.inputs.len();
        let flow = self.end(&[&results.state], |writing| ToValues {
            element: element.clone(),
            tables: element.partition(indexes.next().expect("each partition has an instance")),
            function: Arc::clone(&function),
            label: label.clone(),
            outbox: Some(Outbox::of_channels(writing, &channels)),
            missing: None,
            steps: Steps::default(),
        });
        flow.stage(&results_name, &results)
    }
}
