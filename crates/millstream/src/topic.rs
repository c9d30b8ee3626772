//! Topics, and the types of their values.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Debug};

use millstream_base::key::decode_key;
use millstream_flow::windows::Key;
use millstream_flow::{BoxError, Emit, PartialState};
use millstream_log::{CLEANUP_POLICY, COMPACT, DELETE, SECONDARY, Share};

use crate::codec::{Codec, Encode, Json, Postcard, Raw, Text};
use crate::error::Error;
use crate::node::{End, Node};

/// A topic of a node whose values have the type of the codec `C`. A clone is another handle of the same topic.
#[derive(Clone)]
pub struct Topic<C> {
    pub(crate) node: Node,
    pub(crate) name: String,
    pub(crate) codec: C,
    pub(crate) settings: TopicSettings,
    pub(crate) end: End,
}

/// The settings of a topic that an application makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicSettings {
    pub partitions: u32,
    /// Under Kafka's names.
    pub settings: BTreeMap<String, String>,
}

impl Default for TopicSettings {
    fn default() -> Self {
        TopicSettings {
            partitions: 1,
            settings: BTreeMap::new(),
        }
    }
}

impl Topic<Raw> {
    pub(crate) fn new(node: Node, name: &str) -> Self {
        Topic {
            node,
            name: name.to_owned(),
            codec: Raw,
            settings: TopicSettings::default(),
            end: End::Never,
        }
    }

    /// Values are JSON text.
    pub fn json<T>(self) -> Topic<Json<T>> {
        self.codec(Json::default())
    }

    /// Values are postcard, a small binary format that only Rust programs read.
    pub fn postcard<T>(self) -> Topic<Postcard<T>> {
        self.codec(Postcard::default())
    }

    /// Values are UTF-8 text.
    pub fn text(self) -> Topic<Text> {
        self.codec(Text)
    }

    /// Values are bytes, as without any codec.
    pub fn bytes(self) -> Topic<Raw> {
        self
    }

    /// Decodes and encodes values with a codec of the application.
    pub fn codec<C>(self, codec: C) -> Topic<C> {
        Topic {
            node: self.node,
            name: self.name,
            codec,
            settings: self.settings,
            end: self.end,
        }
    }
}

impl<C> Topic<C> {
    /// Returns the topic's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the number of partitions that the topic gets when it is made; 1 by default.
    #[must_use]
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.settings.partitions = partitions;
        self
    }

    /// Sets a setting, under Kafka's name, that the topic gets when it is made, such as `cleanup.policy`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings
            .settings
            .insert(name.to_owned(), value.to_owned());
        self
    }

    /// Ends the reading at the topic's present end; without this a flow waits for further records.
    #[must_use]
    pub fn until_now(mut self) -> Self {
        self.end = End::Now;
        self
    }

    /// Makes the topic, unless it exists: then its settings stay.
    ///
    /// # Errors
    /// When the node refuses the name or the settings.
    pub fn create(self) -> Result<Self, Error> {
        self.ensure()?;
        Ok(self)
    }

    pub(crate) fn ensure(&self) -> Result<(), Error> {
        let made = self.node.ensure(&self.name, &self.settings);
        made.map_err(|error| self.error(error))
    }

    /// As [`ensure`](Self::ensure), for a topic that keeps the newest record of each key.
    pub(crate) fn ensure_keyed(&mut self) -> Result<(), Error> {
        let policy = self.settings.settings.entry(CLEANUP_POLICY.to_owned());
        policy.or_insert_with(|| COMPACT.to_owned());
        self.ensure()?;
        let policy = self.cleanup_policy()?;
        match is_keyed(&policy) {
            true => Ok(()),
            false => Err(self.error(
                format!(
                    "its setting {CLEANUP_POLICY} is {policy:?}, so it cannot take rows by key: set it to {COMPACT:?}, or write \
                     the changes with `write`"
                )
                .into(),
            )),
        }
    }

    /// As [`ensure`](Self::ensure), for a topic that keeps each record, also an older one of a key.
    pub(crate) fn ensure_not_keyed(&self) -> Result<(), Error> {
        self.ensure()?;
        let policy = self.cleanup_policy()?;
        match is_keyed(&policy) {
            false => Ok(()),
            true => Err(self.error(
                format!(
                    "its setting {CLEANUP_POLICY} is {policy:?}, so it keeps the newest change of a key, and not its row: write \
                     the rows with `write_rows`, or the changes to a topic with the policy {DELETE:?}"
                )
                .into(),
            )),
        }
    }

    /// Checks that the topic exists, and that its records are found by key.
    pub(crate) fn check_keyed(&self) -> Result<(), Error> {
        let policy = self.cleanup_policy()?;
        match is_keyed(&policy) {
            true => Ok(()),
            false => Err(self.error(
                format!(
                    "its setting {CLEANUP_POLICY} is {policy:?}, so its values are not found by key: set it to {COMPACT:?}"
                )
                .into(),
            )),
        }
    }

    /// As [`check_keyed`](Self::check_keyed), with an index of secondary keys.
    pub(crate) fn check_index(&self, index: &str) -> Result<(), Error> {
        self.check_keyed()?;
        let indexes = self.node.setting(&self.name, SECONDARY);
        let indexes = indexes.map_err(|error| self.error(error))?;
        let indexes = indexes.unwrap_or_default();
        match indexes.split(',').any(|name| name.trim() == index) {
            true => Ok(()),
            false => Err(self.error(
                format!(
                    "its setting {SECONDARY} is {indexes:?}, so it has no index of secondary keys named {index:?}: add it there"
                )
                .into(),
            )),
        }
    }

    /// As [`ensure_keyed`](Self::ensure_keyed), with an index of secondary keys.
    pub(crate) fn ensure_indexed(&mut self, index: &str) -> Result<(), Error> {
        let indexes = self.settings.settings.entry(SECONDARY.to_owned());
        indexes.or_insert_with(|| index.to_owned());
        self.ensure_keyed()?;
        self.check_index(index)
    }

    /// Returns the setting `cleanup.policy` of the topic, which exists.
    fn cleanup_policy(&self) -> Result<String, Error> {
        let policy = self.node.setting(&self.name, CLEANUP_POLICY);
        let policy = policy.map_err(|error| self.error(error))?;
        Ok(policy.unwrap_or_else(|| DELETE.to_owned()))
    }

    pub(crate) fn error(&self, error: BoxError) -> Error {
        Error::Topic {
            topic: self.name.clone(),
            error,
        }
    }
}

impl<C: Codec> Topic<C> {
    /// Appends values without keys to the topic, which must exist. Returns when they are as durable as the topic's
    /// setting asks.
    ///
    /// # Errors
    /// When the node refuses, or a value cannot be encoded; then those before it are stored.
    pub fn send<T>(&self, values: impl IntoIterator<Item = T>) -> Result<(), Error>
    where
        C: Encode<T>,
    {
        let mut records = values.into_iter().map(|value| {
            let mut bytes = Vec::new();
            self.codec.encode(&value, &mut bytes)?;
            Ok(bytes)
        });
        let sent = self.node.send(&self.name, &mut records);
        sent.map_err(|error| self.error(error))
    }

    /// Returns the committed values that the topic holds now; the values of each partition are in order.
    ///
    /// # Errors
    /// When the topic is missing, or the codec cannot read a value.
    pub fn read_all(&self) -> Result<Vec<C::Item>, Error> {
        let sources = self.node.sources(&self.name, End::Now, Share::ALL);
        let sources = sources.map_err(|error| self.error(error))?;
        let codec = self.codec.clone();
        let flow = millstream_flow::Flow::new(&self.name);
        let values = flow.partial::<Values<C::Item>>("values");
        let flow = flow
            .sources("read", sources)
            .each(move |record, emit: &mut Emit<C::Item>| {
                record.value.map_or(Ok(()), |value| {
                    emit(&codec.decode(value)?);
                    Ok(())
                })
            })
            .fold_local(&values, |values, value| values.0.push(value.clone()));
        flow.run()?.join()?;
        Ok(values.merged().0)
    }

    /// Returns the committed values of a keyed topic, each with its key: the last record of each key, in no particular
    /// order. Keys are read as [`encode_key`](millstream_base::key::encode_key) writes them; a string is its text.
    ///
    /// # Errors
    /// When the topic is missing, the codec cannot read a value, or a key is not of this type.
    pub fn read_keys<K: Key + Debug>(&self) -> Result<HashMap<K, C::Item>, Error> {
        let sources = self.node.sources(&self.name, End::Now, Share::ALL);
        let sources = sources.map_err(|error| self.error(error))?;
        let codec = self.codec.clone();
        let flow = millstream_flow::Flow::new(&self.name);
        let values = flow.partial::<Values<(K, Option<C::Item>)>>("values");
        let flow = flow
            .sources("read", sources)
            .each(move |record, emit: &mut Emit<(K, Option<C::Item>)>| {
                let key = decode_key(record.key.ok_or("the record has no key")?)?;
                let value = record.value.map(|value| codec.decode(value));
                emit(&(key, value.transpose()?));
                Ok(())
            })
            .fold_local(&values, |values, value| values.0.push(value.clone()));
        flow.run()?.join()?;
        let mut last = HashMap::new();
        for (key, value) in values.merged().0 {
            match value {
                Some(value) => drop(last.insert(key, value)),
                None => drop(last.remove(&key)),
            }
        }
        Ok(last)
    }
}

/// Whether a topic with this `cleanup.policy` keeps the newest record of each key.
fn is_keyed(policy: &str) -> bool {
    policy.split(',').any(|item| item.trim() == COMPACT)
}

/// Values in the order in which they were read.
struct Values<T>(Vec<T>);

impl<T> Default for Values<T> {
    fn default() -> Self {
        Values(Vec::new())
    }
}

impl<T: Clone + Send + 'static> PartialState for Values<T> {
    fn merge(&mut self, part: &Self) {
        self.0.extend_from_slice(&part.0);
    }

    /// The values have no keys.
    fn get(_: &[&Self], _: &str) -> Option<serde_json::Value> {
        None
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }
}

impl<C> fmt::Debug for Topic<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
