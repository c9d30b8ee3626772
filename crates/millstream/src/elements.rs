//! The operators that change state elements of the engine.

use std::convert::Infallible;
use std::fmt::Debug;
use std::task::Waker;

use millstream_flow::windows::Key;
use millstream_flow::{
    BoxError, Chain, Element, Emit, Entry, Message, PartialElement, RingInput, Same, Sink,
};

use crate::event::{Event, key_bytes};
use crate::flow_builder::Flow;
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
    /// Calls `function` for each item, with the content of its key in a state element of [`Flow::engine`]: of
    /// [`Maps`](millstream_flow::Maps) the key's map, as [`MapOf`](millstream_flow::MapOf); of others likewise. It may change
    /// the content, and emit results, which have the item's time and are written with the key. `name` is the operator's.
    ///
    /// Items of one key come in their order. Several operators may change one element. `element` may also be a tuple of two,
    /// three or four elements, which have to differ: the function gets the tuple of their contents. A panic of `function`
    /// fails the flow, since the content may be half changed.
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let games = node.topic("games").json::<(u64, String, u64)>().create()?;
    /// let played = |player: &str, points| (1, player.to_owned(), points);
    /// games.send([played("ann", 70), played("ben", 90), played("cat", 80), played("ann", 95)])?;
    ///
    /// let flow = Flow::new("games");
    /// let games = flow.read(games.until_now());
    /// let leaders = flow.engine().tops::<u64, u64, String>("leaders", 2);
    /// games
    ///     .key_by(|(game, _, _)| *game)
    ///     .update("play", &leaders, |_game, mut leaders, (_, player, points), emit| {
    ///         if leaders.highest().is_none_or(|(highest, _)| points > highest) {
    ///             emit(&format!("{player} leads with {points} points"));
    ///         }
    ///         leaders.put(points, player);
    ///     })
    ///     .write(node.topic("news").text())
    ///     .run()?;
    /// // Over HTTP: `/state/games/leaders/1`.
    /// assert_eq!(leaders.get(&1), [(95, "ann".to_owned()), (90, "ben".to_owned())]);
    /// assert_eq!(node.topic("news").text().read_all()?.len(), 3);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn update<E, O, G>(
        self,
        name: &str,
        element: &E,
        function: G,
    ) -> Stream<RingInput<Event<O>>, Same, O>
    where
        E: Element<K>,
        O: Debug + Clone + Send + 'static,
        G: Fn(&K, E::Content<'_>, &T, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        let flow = self.stream.flow.clone();
        let stage = flow.stage_name(name);
        let results = self.engine().update(
            &stage,
            element,
            move |key: &K, content, event: &Event<T>, emit: &mut Emit<'_, Event<O>>| {
                function(key, content, &event.item, &mut |result: &O| {
                    emit(&Event {
                        time: event.time,
                        key: key_bytes(key),
                        item: result.clone(),
                    });
                });
            },
        );
        Stream::new(flow, results)
    }

    /// Ends the stream in a state element of [`Flow::engine`]: as [`update`](Self::update), without results.
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let visits = node.topic("visits").json::<(String, u64)>().create()?;
    /// let visit = |user: &str, page| (user.to_owned(), page);
    /// visits.send([visit("ann", 1), visit("ben", 1), visit("ann", 2), visit("ann", 3), visit("ann", 4)])?;
    ///
    /// let flow = Flow::new("visits");
    /// let visits = flow.read(visits.until_now());
    /// let last_pages = flow.engine().lists::<String, u64>("last_pages");
    /// visits
    ///     .key_by(|(user, _)| user.clone())
    ///     .fold("visit", &last_pages, |mut pages, (_, page)| {
    ///         pages.push_back(*page);
    ///         if pages.len() > 3 {
    ///             pages.pop_front();
    ///         }
    ///     })
    ///     .run()?;
    /// assert_eq!(last_pages.items(&"ann".to_owned()), [2, 3, 4]);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn fold<E, G>(self, name: &str, element: &E, step: G) -> Flow
    where
        E: Element<K>,
        G: Fn(E::Content<'_>, &T) + Send + Sync + 'static,
    {
        let step = move |_: &K, content: E::Content<'_>, item: &T, _: &mut Emit<'_, Infallible>| {
            step(content, item);
        };
        self.update(name, element, step).end(name)
    }
}

impl<I, C, T> Stream<I, C, T>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + 'static,
{
    /// Calls `function` for each item, with the instance's replica of a
    /// [`partial_map`](millstream_flow::Flow::partial_map) or [`partial_matrix`](millstream_flow::Flow::partial_matrix) of
    /// [`Flow::engine`]. It may change the replica, and emit results, which have the item's time and key. No key and no
    /// exchange of items is needed; readers get all replicas merged. `name` is the operator's.
    ///
    /// `function` must not read the merged element, since it would wait for itself. Its panic fails the flow.
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let ratings = node.topic("ratings").json::<(String, u64)>().create()?;
    /// let given = [("ann", 1), ("ann", 2), ("ben", 1), ("ben", 2), ("ben", 3), ("cat", 1)];
    /// ratings.send(given.map(|(user, item)| (user.to_owned(), item)))?;
    ///
    /// let flow = Flow::new("shop");
    /// let given = flow.read(ratings.until_now());
    /// let ratings = flow.engine().matrices::<String, u64>("ratings");
    /// // How often two items were rated by the same user.
    /// let together = flow.engine().partial_matrix::<u64, u64>("together");
    /// given
    ///     .key_by(|(user, _)| user.clone())
    ///     .update("rate", &ratings, |_user, mut row, (_, item), emit| {
    ///         row.iter().for_each(|(other, _)| emit(&(*item, *other)));
    ///         row.set(item, 1.0);
    ///     })
    ///     .fold_local("pair", &together, |mut together, (item, other)| {
    ///         together.add(item, other, 1.0);
    ///         together.add(other, item, 1.0);
    ///     })
    ///     .run()?;
    /// // Over HTTP: `/state/shop/together/[1,2]`.
    /// assert_eq!(together.get(&1, &2), 2.0);
    /// let of_cat = ratings.row(&"cat".to_owned());
    /// let recommended = together.multiply(of_cat.iter().map(|(item, rating)| (item, *rating)));
    /// assert_eq!((recommended[&2], recommended[&3]), (2.0, 1.0));
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn update_local<E, O, G>(
        self,
        name: &str,
        element: &E,
        function: G,
    ) -> Stream<RingInput<Event<O>>, impl Chain<Event<O>, Out = Event<O>> + use<I, C, T, E, O, G>, O>
    where
        E: PartialElement,
        O: Debug + Clone + Send + 'static,
        G: Fn(E::Content<'_>, &T, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        let Stream {
            flow, operators, ..
        } = self;
        let stage = flow.stage_name(name);
        let results = operators.update_local(
            &stage,
            element,
            move |replica, event: &Event<T>, emit: &mut Emit<'_, Event<O>>| {
                function(replica, &event.item, &mut |result: &O| {
                    emit(&Event {
                        time: event.time,
                        key: event.key.clone(),
                        item: result.clone(),
                    });
                });
            },
        );
        Stream::new(flow, results)
    }

    /// Ends the stream in a partial element of [`Flow::engine`]: as [`update_local`](Self::update_local), without results.
    pub fn fold_local<E, G>(self, name: &str, element: &E, step: G) -> Flow
    where
        E: PartialElement,
        G: Fn(E::Content<'_>, &T) + Send + Sync + 'static,
    {
        let step = move |replica: E::Content<'_>, item: &T, _: &mut Emit<'_, Infallible>| {
            step(replica, item);
        };
        self.update_local(name, element, step).end(name)
    }
}

impl<I, C, T> Stream<I, C, T>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + 'static,
{
    /// Gives each item to a function, and ends. After a resume the function gets the items since the checkpoint again.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let orders = node.topic("orders").json::<u64>().create()?;
    /// orders.send([3, 5])?;
    /// let sum = Arc::new(AtomicU64::new(0));
    /// let total = Arc::clone(&sum);
    /// Flow::new("sum")
    ///     .read(orders.until_now())
    ///     .for_each("add", move |price| {
    ///         total.fetch_add(*price, Ordering::Relaxed);
    ///     })
    ///     .run()?;
    /// assert_eq!(sum.load(Ordering::Relaxed), 8);
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn for_each<F>(self, name: &str, function: F) -> Flow
    where
        F: Fn(&T) + Send + Sync + 'static,
    {
        self.flat_map(move |item| {
            function(item);
            None::<Infallible>
        })
        .end(name)
    }
}

impl<I, C> Stream<I, C, Infallible>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<Infallible>>,
{
    /// Ends a stream that has no items.
    fn end(self, name: &str) -> Flow {
        let Stream {
            flow, operators, ..
        } = self;
        operators.sink(&flow.stage_name(&format!("{name}/end")), NoItems);
        flow
    }
}

/// The sink of a stream that has no items.
struct NoItems;

impl Sink<Event<Infallible>> for NoItems {
    fn push(&mut self, items: &[Event<Infallible>], _: &Waker) -> Result<usize, BoxError> {
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}
