//! Joins of keyed topics, without state of their own, and the writers of their topics.

use std::fmt::Debug;

use millstream_connect::{EncodedRecord, JoinInput, JoinedRow, KeyJoin, KeyJoinSource};
use millstream_flow::windows::Key;
use millstream_flow::{BoxError, Chain, Emit, Entry, SourceInput};
use millstream_log::Share;
use millstream_record::SECONDARY_KEY_PREFIX;

use crate::codec::{Codec, Encode};
use crate::error::Error;
use crate::event::{EncodedEvent, Event, key_bytes, record_of, upsert_of};
use crate::flow_builder::Flow;
use crate::keyed::Keyed;
use crate::node::End;
use crate::stream::Stream;
use crate::topic::Topic;

impl Flow {
    /// Joins two keyed topics: each record of `left` with the record of `right` whose key is the left one's secondary key of this
    /// `index`. `function` makes a row of both. The result has a row for each key of `left` that has a partner, and follows the
    /// changes of both topics: an item `Some(row)` sets the row of its key, and `None` says that the key has no row, also if it had
    /// none before. [`write_keys`](Stream::write_keys) keeps a keyed topic equal to it.
    ///
    /// The join has no state: it looks up both records by their keys when one has changed, and the left keys of a changed right
    /// record in the index of `left`, which [`write_indexed`](Keyed::write_indexed) fills, as any producer does that sets the header
    /// `k.<index>`. A right record may have any number of left ones: their rows come in slices, between those of other changes, and
    /// memory holds a few hundred rows. Of a record with several secondary keys of the index, the first one counts. Values that end
    /// with their lifetime change the result with the next change of their key, and a flow that was stopped for longer than a topic's
    /// `delete.retention.ms` may miss deletions. In Kafka Streams it is a foreign-key join.
    ///
    /// A row may be newer than the change that led to it, and may come again. Once all changes are read, the result equals the join
    /// of both topics. The flow does not start if a topic is missing or not keyed, or `left` lacks the index. `name` is
    /// the operator's.
    ///
    /// ```
    /// use millstream::{Flow, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let placed = node.topic("placed").json::<(u64, String)>().create()?;
    /// placed.send([(1, "ada".to_owned()), (2, "bob".to_owned()), (3, "ada".to_owned())])?;
    /// let moved = node.topic("moved").json::<(String, String)>().create()?;
    /// let to = |user: &str, city: &str| (user.to_owned(), city.to_owned());
    /// moved.send([to("ada", "Turin"), to("ada", "Namur")])?;
    ///
    /// // Orders by their numbers, with their users as secondary keys; and users by their names.
    /// let orders = node.topic("orders").json::<(u64, String)>();
    /// let users = node.topic("users").json::<(String, String)>();
    /// let flow = Flow::new("tables");
    /// flow.read(placed.until_now())
    ///     .key_by(|(order, _)| *order)
    ///     .write_indexed(orders.clone(), "user", |(_, user)| user.clone());
    /// flow.read(moved.until_now())
    ///     .key_by(|(user, _)| user.clone())
    ///     .write(users.clone().setting("cleanup.policy", "compact"))
    ///     .run()?;
    ///
    /// let cities = node.topic("cities").text();
    /// Flow::new("cities")
    ///     .until_now()
    ///     .join_topics("join", orders, "user", users, |_order, (_, city)| city.clone())
    ///     .write_keys(cities.clone())
    ///     .run()?;
    /// let cities = cities.read_keys::<u64>()?;
    /// assert_eq!((cities.len(), &*cities[&1], &*cities[&3]), (2, "Namur", "Namur"));
    /// # Ok::<(), millstream::Error>(())
    /// ```
    pub fn join_topics<C, D, O, G>(
        &self,
        name: &str,
        left: Topic<C>,
        index: &str,
        right: Topic<D>,
        function: G,
    ) -> Stream<
        SourceInput<KeyJoinSource>,
        impl Chain<JoinedRow, Out = Event<Option<O>>> + use<C, D, O, G>,
        Option<O>,
    >
    where
        C: Codec,
        D: Codec,
        O: Debug + 'static,
        G: Fn(&C::Item, &D::Item) -> O + Send + Sync + 'static,
    {
        let join = self.key_join(index, false);
        self.join_by(name, left, right, join, move |left, right| {
            right.map(|right| function(left, right))
        })
    }

    /// As [`join_topics`](Self::join_topics), with a row for each key of `left`: `function` gets `None` for a record without a
    /// partner.
    pub fn left_outer_join_topics<C, D, O, G>(
        &self,
        name: &str,
        left: Topic<C>,
        index: &str,
        right: Topic<D>,
        function: G,
    ) -> Stream<
        SourceInput<KeyJoinSource>,
        impl Chain<JoinedRow, Out = Event<Option<O>>> + use<C, D, O, G>,
        Option<O>,
    >
    where
        C: Codec,
        D: Codec,
        O: Debug + 'static,
        G: Fn(&C::Item, Option<&D::Item>) -> O + Send + Sync + 'static,
    {
        let join = self.key_join(index, true);
        self.join_by(name, left, right, join, move |left, right| {
            Some(function(left, right))
        })
    }

    fn key_join(&self, index: &str, is_left_outer: bool) -> KeyJoin {
        KeyJoin {
            index: index.to_owned(),
            is_left_outer,
            share: self.share(),
        }
    }

    fn join_by<C, D, O, G>(
        &self,
        name: &str,
        left: Topic<C>,
        right: Topic<D>,
        join: KeyJoin,
        function: G,
    ) -> Stream<
        SourceInput<KeyJoinSource>,
        impl Chain<JoinedRow, Out = Event<Option<O>>> + use<C, D, O, G>,
        Option<O>,
    >
    where
        C: Codec,
        D: Codec,
        O: Debug + 'static,
        G: Fn(&C::Item, Option<&D::Item>) -> Option<O> + Send + Sync + 'static,
    {
        let engine = self.begin(&left.node);
        let source = self.join_source(&left, &right, join);
        let source = source.map_err(|error| self.fault(error));
        let Topic {
            name: left_name,
            codec: left_codec,
            ..
        } = left;
        let Topic {
            name: right_name,
            codec: right_codec,
            ..
        } = right;
        let operators = engine.sources(&self.stage_name(name), source).each(
            move |row: &JoinedRow, emit: &mut Emit<'_, Event<Option<O>>>| {
                let mut item = None;
                if let Some((left_value, right_value)) = &row.values {
                    let left = decode(&left_codec, &left_name, left_value)?;
                    let right = right_value.as_ref();
                    let right = right.map(|value| decode(&right_codec, &right_name, value));
                    item = function(&left, right.transpose()?.as_ref());
                }
                emit(&Event {
                    time: row.time,
                    key: Some(row.key.clone()),
                    item,
                });
                Ok(())
            },
        );
        Stream::new(self.clone(), operators)
    }

    fn join_source<C, D>(
        &self,
        left: &Topic<C>,
        right: &Topic<D>,
        join: KeyJoin,
    ) -> Result<KeyJoinSource, Error> {
        left.check_index(&join.index)?;
        right.check_keyed()?;
        let [left_input, right_input] = [
            self.join_input(left, join.share),
            self.join_input(right, Share::ALL),
        ];
        let source = KeyJoinSource::new(left_input?, right_input?, join);
        source.map_err(|error| left.error(error))
    }

    fn join_input<C>(&self, topic: &Topic<C>, share: Share) -> Result<JoinInput, Error> {
        let end = match self.is_until_now() {
            true => End::Now,
            false => topic.end,
        };
        let input = || -> Result<JoinInput, BoxError> {
            let mut sources = topic.node.sources(&topic.name, end, share)?;
            Ok(JoinInput {
                changes: sources.pop().ok_or("it has no source")?,
                keys: topic.node.keys(&topic.name)?,
            })
        };
        input().map_err(|error| topic.error(error))
    }
}

/// Reads a value of a topic.
fn decode<C: Codec>(codec: &C, topic: &str, value: &[u8]) -> Result<C::Item, BoxError> {
    let item = codec.decode(value);
    item.map_err(|error| format!("topic {topic}: {error}").into())
}

impl<I, C, T> Stream<I, C, Option<T>>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<Option<T>>>,
    T: Debug + 'static,
{
    /// Keeps a keyed topic equal to the items: writes `Some(value)` as the value of its key, and deletes the key of `None`. The topic
    /// is made if it is missing; the flow does not start if it is there, and its `cleanup.policy` does not contain `compact`. An item
    /// without a key becomes a dead letter.
    pub fn write_keys<D: Encode<T>>(self, topic: Topic<D>) -> Flow {
        let codec = topic.codec.clone();
        let encoded = self.operators.each(
            move |event: &Event<Option<T>>, emit: &mut Emit<'_, Event<Option<Vec<u8>>>>| {
                if event.key.is_none() {
                    return Err("the item has no key, so it is the row of none".into());
                }
                let item = event.item.as_ref().map(|item| {
                    let mut bytes = Vec::new();
                    codec.encode(item, &mut bytes).map(|()| bytes)
                });
                emit(&Event {
                    time: event.time,
                    key: event.key.clone(),
                    item: item.transpose()?,
                });
                Ok(())
            },
        );
        let ensure = |topic: &mut Topic<D>| topic.ensure_keyed();
        self.flow.end(encoded, topic, ensure, Box::new(upsert_of))
    }
}

impl<I, C, T, K, F> Keyed<I, C, T, F>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<T>>,
    T: Debug + Clone + Send + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Writes the items with their keys to a keyed topic that also finds them by a secondary key of this `index`, which `secondary`
    /// returns: for [`Flow::join_topics`], or `millstream kv find`. The topic is made if it is missing; the flow does not start if it
    /// is there, and is not keyed or lacks the index.
    pub fn write_indexed<D, S, G>(self, topic: Topic<D>, index: &str, secondary: G) -> Flow
    where
        D: Encode<T>,
        S: Key,
        G: Fn(&T) -> S + Send + Sync + 'static,
    {
        let key = self.key;
        let Stream {
            flow, operators, ..
        } = self.stream;
        let header = format!("{SECONDARY_KEY_PREFIX}{index}").into_bytes();
        let encode = move |indexed: &Indexed, record: &mut EncodedRecord| {
            record_of(&indexed.event, record);
            let secondary = Some(indexed.secondary.to_vec());
            record.headers.push((header.clone(), secondary));
        };
        let codec = topic.codec.clone();
        let encoded = operators.each(move |event: &Event<T>, emit: &mut Emit<'_, Indexed>| {
            let mut item = Vec::new();
            codec.encode(&event.item, &mut item)?;
            let secondary = key_bytes(&secondary(&event.item));
            let key = key_bytes(&key(&event.item));
            emit(&Indexed {
                event: Event {
                    time: event.time,
                    key: Some(key.ok_or("the key has no canonical bytes")?),
                    item,
                },
                secondary: secondary.ok_or("the secondary key has no canonical bytes")?,
            });
            Ok(())
        });
        let ensure = |topic: &mut Topic<D>| topic.ensure_indexed(index);
        flow.end(encoded, topic, ensure, Box::new(encode))
    }
}

/// An encoded event with a secondary key.
#[derive(Debug, Clone)]
struct Indexed {
    event: EncodedEvent,
    secondary: Box<[u8]>,
}
