//! The servers of a cluster: their addresses, and the leader of each partition.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use millstream_wire::messages::FindCoordinatorRequest;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::{BrokerId, MetadataRequest, TopicName};
use millstream_wire::{MetadataResponse, Question, ResponseError, StrBytes, Uuid};
use parking_lot::Mutex;

use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::offsets::TopicPartition;

/// The key type by which FindCoordinator looks up a group.
const KEY_TYPE_GROUP: i8 = 0;
const KEY_TYPE_TRANSACTION: i8 = 1;

/// The right to look up a stream.
pub(crate) const DESCRIBE: &str = "Describe, which Read and Write include";

/// A cluster, with one connection to each server that has been asked something. A clone is another
/// handle of the same.
///
/// A server answers the requests of one connection in their order. A caller with slow requests, for
/// example a consumer, therefore needs a client of its own ([`separate`](Self::separate)).
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: ClientConfig,
    /// Written by each task that learns of a change; never locked across an await.
    known: Mutex<Known>,
    /// Open connections by address. The opening task holds an entry's lock, so that there is only
    /// one connection for each address.
    connections: Mutex<HashMap<Arc<str>, Arc<Slot>>>,
}

type Slot = tokio::sync::Mutex<Option<Arc<Connection>>>;

#[derive(Debug, Default)]
struct Known {
    /// The number of the server that creates and deletes topics.
    controller: Option<i32>,
    /// Addresses of the servers by their numbers.
    servers: HashMap<i32, Arc<str>>,
    topics: HashMap<Arc<str>, Arc<Topic>>,
}

/// The metadata of a topic.
#[derive(Debug, Clone)]
pub struct Topic {
    /// The topic's name.
    pub name: Arc<str>,
    /// The topic's id, which a new topic of the same name does not share.
    pub id: Uuid,
    /// The number of the server that leads each partition; `None` while it has no leader.
    pub leaders: Vec<Option<i32>>,
    /// The leader epoch of each partition; -1 if the server did not send it.
    pub(crate) epochs: Vec<i32>,
}

impl Client {
    /// Returns a client of these servers. It sends nothing yet.
    pub fn new(config: ClientConfig) -> Client {
        Client {
            shared: Arc::new(Shared {
                config,
                known: Mutex::default(),
                connections: Mutex::default(),
            }),
        }
    }

    /// Returns the client's settings.
    pub fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    /// Returns a client of the same servers, with connections of its own.
    pub fn separate(&self) -> Client {
        Client::new(self.config().clone())
    }

    /// Returns a connection to any of the servers.
    ///
    /// # Errors
    /// The last server's error, if none of those in the settings can be reached.
    pub async fn any(&self) -> Result<Arc<Connection>, ClientError> {
        let mut last = ClientError::Closed;
        for address in &self.config().servers {
            match self.connection(&Arc::from(address.as_str())).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the connection to the server of this number.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn server(&self, number: i32) -> Result<Arc<Connection>, ClientError> {
        let address = self.address_of(number).await?;
        self.connection(&address).await
    }

    /// Returns an exclusive connection to the server of this number, which closes when it is
    /// dropped.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub(crate) async fn own_connection(&self, number: i32) -> Result<Connection, ClientError> {
        let address = self.address_of(number).await?;
        Connection::open(&address, self.config()).await
    }

    /// Returns an exclusive connection to any of the servers, which closes when it is dropped.
    ///
    /// # Errors
    /// The last server's error, if none of those in the settings can be reached.
    pub(crate) async fn own_of_any(&self) -> Result<Connection, ClientError> {
        let mut last = ClientError::Closed;
        for address in &self.config().servers {
            match Connection::open(address, self.config()).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn address_of(&self, number: i32) -> Result<Arc<str>, ClientError> {
        if let Some(address) = self.address(number) {
            return Ok(address);
        }
        self.refresh(&[]).await?;
        self.address(number).ok_or_else(|| ClientError::NoLeader {
            what: format!("server {number}"),
        })
    }

    /// Returns the addresses of the servers of the last look-up, by their numbers.
    pub(crate) fn known_servers(&self) -> BTreeMap<i32, String> {
        let known = self.shared.known.lock();
        let servers = known.servers.iter();
        servers
            .map(|(number, address)| (*number, address.to_string()))
            .collect()
    }

    fn address(&self, number: i32) -> Option<Arc<str>> {
        self.shared.known.lock().servers.get(&number).cloned()
    }

    async fn connection(&self, address: &Arc<str>) -> Result<Arc<Connection>, ClientError> {
        let slot = {
            let mut connections = self.shared.connections.lock();
            Arc::clone(connections.entry(Arc::clone(address)).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(Connection::open(address, self.config()).await?);
        *slot = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Sends a request to any of the servers and returns the answer.
    ///
    /// # Errors
    /// When none can be reached, or it does not answer.
    pub async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer, ClientError> {
        self.any().await?.ask(question).await
    }

    /// Returns the metadata of a topic, from the cache or from a server.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn topic(&self, name: &str) -> Result<Arc<Topic>, ClientError> {
        if let Some(topic) = self.known_topic(name) {
            return Ok(topic);
        }
        self.refresh(&[name]).await?;
        self.known_topic(name).ok_or_else(|| ClientError::Protocol {
            address: self.config().servers.join(","),
            what: format!("it was asked for topic {name}, and described others"),
        })
    }

    /// Returns the server that leads a partition. A partition that the cache lacks causes a new
    /// look-up, since streams grow.
    ///
    /// # Errors
    /// When the partition has no leader, or does not exist.
    pub(crate) async fn leader_of(&self, place: &TopicPartition) -> Result<i32, ClientError> {
        let known = self.topic(&place.topic).await?;
        match known.leader(place.partition) {
            Err(error) if error.is_unknown_stream() => {
                self.refresh(&[&place.topic]).await?;
                self.topic(&place.topic).await?.leader(place.partition)
            }
            leader => leader,
        }
    }

    pub(crate) fn known_topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.shared.known.lock().topics.get(name).cloned()
    }

    /// Looks up the leaders of the topics' partitions again.
    ///
    /// # Errors
    /// When no server answers, or there is no topic of this name.
    pub async fn refresh(&self, topics: &[&str]) -> Result<(), ClientError> {
        let refused = self.look_up(topics).await?.pop();
        refused.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// As [`refresh`](Self::refresh); returns the topics that the server does not describe, each
    /// with the reason.
    pub(crate) async fn look_up(
        &self,
        topics: &[&str],
    ) -> Result<Vec<(Arc<str>, ClientError)>, ClientError> {
        let asked = topics
            .iter()
            .map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(name))));
        let request = MetadataRequest::default()
            .with_topics(Some(asked.collect()))
            .with_allow_auto_topic_creation(false);
        Ok(self.learn(self.ask(request).await?))
    }

    fn learn(&self, answer: MetadataResponse) -> Vec<(Arc<str>, ClientError)> {
        let mut known = self.shared.known.lock();
        known.servers = answer
            .brokers
            .iter()
            .map(|server| {
                let address = match server.host.contains(':') {
                    true => format!("[{}]:{}", server.host, server.port),
                    false => format!("{}:{}", server.host, server.port),
                };
                (server.node_id.0, address.into())
            })
            .collect();
        known.controller = Some(answer.controller_id.0).filter(|number| *number >= 0);
        let mut refused = Vec::new();
        for topic in answer.topics {
            let name: Arc<str> = topic.name.as_ref().map_or("", |name| name.as_str()).into();
            let what = format!("topic {name}");
            if let Some(error) = ClientError::of_code(topic.error_code, None, what) {
                known.topics.remove(&name);
                refused.push((name, error.needing(DESCRIBE)));
                continue;
            }
            let mut leaders = vec![None; topic.partitions.len()];
            let mut epochs = vec![-1; leaders.len()];
            for partition in &topic.partitions {
                let index = usize::try_from(partition.partition_index).ok();
                let BrokerId(leader) = partition.leader_id;
                if let Some(index) = index.filter(|index| *index < leaders.len()) {
                    leaders[index] = (leader >= 0).then_some(leader);
                    epochs[index] = partition.leader_epoch;
                }
            }
            let topic = Topic {
                name: Arc::clone(&name),
                id: topic.topic_id,
                leaders,
                epochs,
            };
            known.topics.insert(name, Arc::new(topic));
        }
        refused
    }

    /// Returns a connection to the server that creates and deletes topics.
    ///
    /// # Errors
    /// When no server knows it, or it cannot be reached.
    pub(crate) async fn controller(&self) -> Result<Arc<Connection>, ClientError> {
        self.refresh(&[]).await?;
        let controller = self.shared.known.lock().controller;
        let number = controller.ok_or_else(|| ClientError::NoLeader {
            what: "the cluster".to_owned(),
        })?;
        self.server(number).await
    }

    /// Returns a connection to the coordinator of a group.
    ///
    /// # Errors
    /// When no server knows it, or it cannot be reached.
    pub(crate) async fn coordinator(&self, group: &str) -> Result<Arc<Connection>, ClientError> {
        self.coordinator_of(KEY_TYPE_GROUP, group, format!("group {group}"))
            .await
    }

    /// Returns a connection to the coordinator of a transactional id.
    ///
    /// # Errors
    /// When no server knows it, or it cannot be reached.
    pub(crate) async fn transaction_coordinator(
        &self,
        id: &str,
    ) -> Result<Arc<Connection>, ClientError> {
        self.coordinator_of(KEY_TYPE_TRANSACTION, id, format!("transactional id {id}"))
            .await
    }

    async fn coordinator_of(
        &self,
        kind: i8,
        key: &str,
        what: String,
    ) -> Result<Arc<Connection>, ClientError> {
        let request = FindCoordinatorRequest::default()
            .with_key_type(kind)
            .with_coordinator_keys(vec![text(key)]);
        let answer = self.ask(request).await?;
        let Some(found) = answer.coordinators.first() else {
            return Err(ClientError::NoLeader { what });
        };
        let what = format!("the coordinator of {what}");
        let right = match kind {
            KEY_TYPE_GROUP => "Describe, which Read includes",
            _ => "Describe, which Write includes",
        };
        ClientError::check(found.error_code, found.error_message.as_deref(), what)
            .map_err(|error| error.needing(right))?;
        self.server(found.node_id.0).await
    }

    /// Returns connections to all servers of the cluster.
    ///
    /// # Errors
    /// When none answers, or one of them cannot be reached.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<Connection>>, ClientError> {
        self.refresh(&[]).await?;
        let numbers: Vec<i32> = self.shared.known.lock().servers.keys().copied().collect();
        let mut connections = Vec::with_capacity(numbers.len());
        for number in numbers {
            connections.push(self.server(number).await?);
        }
        Ok(connections)
    }
}

impl Topic {
    /// Returns the topic's partitions.
    pub fn partitions(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        (0..)
            .take(self.leaders.len())
            .map(|partition| TopicPartition {
                topic: Arc::clone(&self.name),
                partition,
            })
    }

    /// Fails if `now`, the present topic of this name, is another topic.
    pub(crate) fn check_same(&self, now: &Topic) -> Result<(), ClientError> {
        match self.id == now.id {
            true => Ok(()),
            false => Err(ClientError::MadeAgain {
                stream: self.name.to_string(),
            }),
        }
    }

    /// Returns the leader epoch of a partition; -1 if it is not known.
    pub(crate) fn epoch(&self, partition: i32) -> i32 {
        let index = usize::try_from(partition).ok();
        let epoch = index.and_then(|index| self.epochs.get(index).copied());
        epoch.unwrap_or(-1)
    }

    /// Returns the server that leads a partition.
    ///
    /// # Errors
    /// When the partition has no leader, or does not exist.
    pub(crate) fn leader(&self, partition: i32) -> Result<i32, ClientError> {
        let index = usize::try_from(partition).ok();
        let leader = index.and_then(|index| self.leaders.get(index).copied());
        let leader = leader.ok_or_else(|| ClientError::Refused {
            what: format!("partition {partition} of {}", self.name),
            error: ResponseError::UnknownTopicOrPartition,
            message: Some(format!("there are only {}", self.leaders.len())),
        })?;
        leader.ok_or_else(|| ClientError::NoLeader {
            what: format!("partition {partition} of {}", self.name),
        })
    }
}

/// Converts text to the type that requests carry.
pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Converts a topic's name to the type that requests carry.
pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}
