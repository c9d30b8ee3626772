//! Nodes: the log in this process, or a server.

use std::path::PathBuf;
use std::sync::Arc;

use millstream_base::{Clock, ProducerId, SystemClock};
use millstream_client::{
    Client, ClientConfig, ClientError, ConsumerConfig, Producer, ProducerConfig, ProducerRecord,
    ResponseError,
};
use millstream_connect::{
    AnyKeys, AnySource, DeadLetterStream, EncodedRecord, LogCheckpoints, LogKeys, Network,
    ServerCheckpoints, ServerEnd, ServerKeys, ServerSink, ServerSource, StreamProducer, StreamSink,
    StreamSource, stream_or_create,
};
use millstream_flow::{BoxError, Checkpoints, DeadLetters, Sink};
use millstream_log::{Log, LogConfig, LogError, Share, Stream, StreamConfig};

use crate::codec::Raw;
use crate::error::Error;
use crate::topic::{Topic, TopicSettings};

/// The place of an application's topics: a data directory that this process opens, or a server. Everything else of an
/// application is the same in both places. A clone is another handle of the same node.
#[derive(Clone)]
pub struct Node {
    place: Place,
}

#[derive(Clone)]
enum Place {
    Log(Log),
    Server(Arc<Server>),
}

struct Server {
    config: ClientConfig,
    client: Client,
    network: Network,
}

/// An encoded record that waits to be stored.
pub(crate) type Encoder<T> = Box<dyn FnMut(&T, &mut EncodedRecord) + Send>;

impl Node {
    /// Opens a data directory in this process, and makes it if it is missing. Only one process at a time opens it.
    ///
    /// # Errors
    /// When another process has it open, or the disk refuses.
    pub fn embedded(dir: impl Into<PathBuf>) -> Result<Node, Error> {
        let dir = dir.into();
        let log = Log::open(LogConfig::new(&dir)).map_err(|error| Error::Open { dir, error })?;
        Ok(Node::of_log(&log))
    }

    /// Returns the node of a log that is open in this process.
    pub fn of_log(log: &Log) -> Node {
        Node {
            place: Place::Log(log.clone()),
        }
    }

    /// Returns the node of a server at `HOST:PORT`, which must answer now.
    ///
    /// # Errors
    /// When no server answers.
    pub fn connect(server: &str) -> Result<Node, Error> {
        Node::connect_with(ClientConfig::new(server))
    }

    /// As [`connect`](Self::connect), with a login, TLS or other time-outs.
    ///
    /// # Errors
    /// When no server answers, or it refuses the login.
    pub fn connect_with(config: ClientConfig) -> Result<Node, Error> {
        let client = Client::new(config.clone());
        let network = Network::start("millstream-node")?;
        let answered = network.wait(async { client.any().await.map(drop) });
        answered.map_err(|error| Error::Server {
            server: config.servers.join(","),
            error,
        })?;
        let server = Arc::new(Server {
            config,
            client,
            network,
        });
        Ok(Node {
            place: Place::Server(server),
        })
    }

    /// Returns a topic's handle, whether it exists yet or not. Its values are bytes until the handle gets a codec, such
    /// as [`json`](Topic::json).
    pub fn topic(&self, name: &str) -> Topic<Raw> {
        Topic::new(self.clone(), name)
    }

    /// Returns the log, if it is open in this process.
    pub(crate) fn log(&self) -> Option<&Log> {
        match &self.place {
            Place::Log(log) => Some(log),
            Place::Server(_) => None,
        }
    }

    /// Makes a topic unless it exists.
    pub(crate) fn ensure(&self, topic: &str, settings: &TopicSettings) -> Result<(), BoxError> {
        let config = StreamConfig {
            streamlets: settings.partitions,
            settings: settings.settings.clone(),
            ..StreamConfig::default()
        };
        match &self.place {
            Place::Log(log) => drop(log.stream_or_create(topic, config)?),
            Place::Server(server) => {
                let created = stream_or_create(&server.client, topic, &config);
                server.network.wait(created)?;
            }
        }
        Ok(())
    }

    /// Returns a setting of a topic that exists, under Kafka's name; `None` if it has its default.
    pub(crate) fn setting(&self, topic: &str, name: &str) -> Result<Option<String>, BoxError> {
        match &self.place {
            Place::Log(log) => {
                let stream = stream(log, topic)?;
                Ok(stream.config().settings.remove(name))
            }
            Place::Server(server) => {
                let names = [name];
                let settings = server.client.settings(topic, &names);
                let settings = server.network.wait(settings);
                Ok(settings
                    .map_err(|error| of_server(topic, error))?
                    .remove(name))
            }
        }
    }

    /// Returns the look-ups of a keyed topic.
    pub(crate) fn keys(&self, topic: &str) -> Result<AnyKeys, BoxError> {
        Ok(match &self.place {
            Place::Log(log) => LogKeys::new(&stream(log, topic)?)?.into(),
            Place::Server(server) => ServerKeys::connect(&server.config, topic)?.into(),
        })
    }

    /// Returns the sources of a share of a topic's partitions. It is one source: so the records of a partition stay in
    /// their order, and the flow resumes on any number of workers.
    pub(crate) fn sources(
        &self,
        topic: &str,
        end: End,
        share: Share,
    ) -> Result<Vec<AnySource>, BoxError> {
        match &self.place {
            Place::Log(log) => {
                let stream = stream(log, topic)?;
                let source = StreamSource::of_share(&stream, share);
                if end == End::Now {
                    source.ending().end_at_durable_head();
                }
                Ok(vec![source.into()])
            }
            Place::Server(server) => {
                let end = match end {
                    End::Never => ServerEnd::Never,
                    End::Now => ServerEnd::Now,
                };
                let known = server.network.wait(server.client.topic(topic));
                known.map_err(|error| of_server(topic, error))?;
                let (server, consumer) = (&server.config, ConsumerConfig::default());
                let sources = ServerSource::of_share(server, &consumer, topic, share, 1, end)?;
                Ok(sources.into_iter().map(AnySource::from).collect())
            }
        }
    }

    /// Returns a sink into a topic that exists.
    pub(crate) fn sink<T: 'static>(
        &self,
        topic: &str,
        encode: Encoder<T>,
    ) -> Result<Box<dyn Sink<T>>, BoxError> {
        Ok(match &self.place {
            Place::Log(log) => Box::new(StreamSink::new(&log.stream(topic)?, encode)?),
            Place::Server(server) => Box::new(ServerSink::new(&server.config, topic, encode)?),
        })
    }

    /// Returns the store of a flow's checkpoints.
    pub(crate) fn checkpoints(&self, flow: &str) -> Result<Arc<dyn Checkpoints>, BoxError> {
        Ok(match &self.place {
            Place::Log(log) => Arc::new(LogCheckpoints::new(log, flow)),
            Place::Server(server) => Arc::new(ServerCheckpoints::new(&server.config, flow)?),
        })
    }

    /// Returns the store of a flow's dead letters, in this topic or in the flow's own.
    pub(crate) fn dead_letters(
        &self,
        flow: &str,
        topic: Option<&str>,
    ) -> Result<Arc<dyn DeadLetters>, BoxError> {
        let letters = match &self.place {
            Place::Log(log) => DeadLetterStream::new(log, flow),
            Place::Server(server) => DeadLetterStream::of_server(&server.config, flow)?,
        };
        Ok(Arc::new(match topic {
            Some(topic) => letters.in_stream(topic),
            None => letters,
        }))
    }

    /// Stores values without keys in a topic, and returns when they are as durable as the topic's setting asks.
    pub(crate) fn send(
        &self,
        topic: &str,
        values: &mut dyn Iterator<Item = Result<Vec<u8>, BoxError>>,
    ) -> Result<(), BoxError> {
        match &self.place {
            Place::Log(log) => {
                let mut producer = StreamProducer::new(&log.stream(topic)?, ProducerId::NONE)?;
                let clock = SystemClock::default();
                for value in values {
                    producer.push(clock.now(), None, Some(&value?), &[])?;
                }
                Ok(producer.flush()?)
            }
            Place::Server(server) => server.network.wait(async {
                let producer = Producer::new(&server.client, ProducerConfig::default());
                for value in values {
                    let value = value?;
                    let record = ProducerRecord {
                        topic,
                        value: Some(&value),
                        ..ProducerRecord::default()
                    };
                    producer.send(record).await?;
                }
                Ok(producer.flush().await?)
            }),
        }
    }
}

/// The end of reading a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Never: the flow waits for further records.
    Never,
    /// At the present end of the topic.
    Now,
}

/// Returns a stream that an application reads.
fn stream(log: &Log, topic: &str) -> Result<Stream, BoxError> {
    log.stream(topic).map_err(|error| match error {
        LogError::UnknownStream { .. } => missing(topic),
        error => error.into(),
    })
}

fn of_server(topic: &str, error: ClientError) -> BoxError {
    match error.response_error() {
        Some(ResponseError::UnknownTopicOrPartition) => missing(topic),
        _ => error.into(),
    }
}

/// The error of reading a topic that does not exist.
fn missing(topic: &str) -> BoxError {
    format!("it does not exist: send its first record, or make it with `millstream stream create {topic}`").into()
}
