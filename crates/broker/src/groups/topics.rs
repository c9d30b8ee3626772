//! The topics of the broker, as far as groups need them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{TopicId, TopicName};

/// A topic that members may subscribe to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: TopicName,
    /// Its id; a topic that is deleted and created again has another.
    pub id: TopicId,
    /// How many partitions it has; they are numbered from 0.
    pub partitions: i32,
}

/// Tests whether a client may see a topic.
pub type Sees<'a> = Box<dyn Fn(&TopicName) -> bool + 'a>;

/// The access rules for topics.
pub trait TopicAccess: fmt::Debug + Send + Sync {
    /// Returns the topics that a client of this name, from this host, may see; `None` for all topics.
    fn of(&self, principal: &str, host: &str) -> Option<Sees<'_>>;
}

/// Lets every client see all topics.
#[derive(Debug)]
struct Open;

impl TopicAccess for Open {
    fn of(&self, _principal: &str, _host: &str) -> Option<Sees<'_>> {
        None
    }
}

/// All topics, and the access rules for them.
#[derive(Debug)]
pub(super) struct Topics {
    by_name: BTreeMap<TopicName, Topic>,
    names: BTreeMap<TopicId, TopicName>,
    pub access: Arc<dyn TopicAccess>,
}

impl Default for Topics {
    fn default() -> Topics {
        Topics {
            by_name: BTreeMap::new(),
            names: BTreeMap::new(),
            access: Arc::new(Open),
        }
    }
}

impl Topics {
    pub fn put(&mut self, topic: Topic) {
        self.remove(&topic.name);
        self.names.insert(topic.id, topic.name.clone());
        self.by_name.insert(topic.name.clone(), topic);
    }

    pub fn remove(&mut self, name: &TopicName) {
        if let Some(topic) = self.by_name.remove(name) {
            self.names.remove(&topic.id);
        }
    }

    pub fn get(&self, name: &TopicName) -> Option<&Topic> {
        self.by_name.get(name)
    }

    pub fn name(&self, id: TopicId) -> Option<&TopicName> {
        self.names.get(&id)
    }

    /// The names of all topics.
    pub fn all(&self) -> impl Iterator<Item = &TopicName> {
        self.by_name.keys()
    }
}
