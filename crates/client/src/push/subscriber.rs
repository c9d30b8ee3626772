//! Subscribers that wait on their own threads.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Cursor, Offset};
use millstream_record::{Decompressor, Filter, Record};
use millstream_wire::native::{
    CommitCursorsRequest, SubscribedLane, SubscribedSharedGroup, SubscribedSource,
};

use super::session::{Delivered, Piece, Session, SharedSource, Terms};
use crate::client::{Client, text};
use crate::error::ClientError;
use crate::offsets::{Isolation, Start, TopicPartition};

/// The settings of local subscribers.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Selects the records to return; all without it.
    pub filter: Option<Filter>,
    /// The approximate number of bytes returned at once; a larger chunk comes whole.
    pub piece_bytes_max: usize,
    /// The approximate number of bytes that each subscriber may hold.
    pub ahead_bytes: usize,
}

impl Default for LocalConfig {
    fn default() -> Self {
        LocalConfig {
            filter: None,
            piece_bytes_max: 1 << 20,
            ahead_bytes: 16 << 20,
        }
    }
}

/// The records that a subscriber reads.
#[derive(Debug, Clone)]
pub enum LocalSource {
    /// Partitions, each from a position on.
    Partitions(Vec<(TopicPartition, Start)>),
    /// Groups of a stream, each of which goes to one consumer of the shared group.
    SharedGroup {
        /// The stream's name.
        stream: String,
        /// The name of the shared group.
        shared_group: String,
        /// The consumer's name, unique within the shared group.
        consumer: String,
    },
}

/// Reads chunks in place in the memory of a server on this machine. It waits on the caller's thread, asleep, and the
/// server wakes that thread directly: this gives the lowest latency.
///
/// It returns only committed records. The runtime in which it was made has to run meanwhile: a task there detects
/// that a server was killed.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::time::Duration;
///
/// use millstream_client::{
///     Client, ClientConfig, LocalConfig, LocalSource, Decompressor, Start, TopicPartition,
/// };
///
/// # use std::sync::Arc;
/// # use millstream_base::{ByteSize, SystemRandom, TcpNetwork, Timestamp};
/// # use millstream_broker::{BrokerConfig, Server};
/// # use millstream_log::{Log, LogConfig};
/// # let dir = tempfile::tempdir()?;
/// # let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20)))?;
/// # let mut config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
/// # config.local_socket = Some(dir.path().to_owned());
/// # let server = Server::start(&TcpNetwork, config, log.clone(), Arc::clone(log.clock()), Arc::new(SystemRandom))?;
/// # let address = server.local_address().to_string();
/// # let lane = log.create_stream("greetings", Default::default())?.partition(0)?;
/// # let mut builder = millstream_record::ChunkBuilder::new(Default::default());
/// # builder.push(Timestamp(0), None, Some(b"hello"), &[])?;
/// # lane.acknowledge(&lane.append(builder.finish(None)?)?)?;
/// let runtime = tokio::runtime::Runtime::new()?;
/// let client = Client::new(ClientConfig::new(address));
/// let place = TopicPartition { topic: "greetings".into(), partition: 0 };
/// let sources = [LocalSource::Partitions(vec![(place, Start::Earliest)])];
/// let config = LocalConfig::default();
/// let subscribers = runtime.block_on(client.subscribe_local(&config, &sources))?;
/// for mut subscriber in subscribers {
///     let thread = std::thread::spawn(move || {
///         let pushed = subscriber.take(Duration::from_secs(60))?.expect("it was there");
///         pushed.each(&mut Decompressor::default(), |record| {
///             assert_eq!(record.value, Some(&b"hello"[..]));
///             ControlFlow::Continue(())
///         })
///     });
///     thread.join().expect("it does not panic")?;
/// }
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LocalSubscriber {
    source: SharedSource,
    reads: Reads,
}

/// A subscriber's source, as it is sent to the server.
#[derive(Debug)]
enum Reads {
    Partitions(Vec<TopicPartition>),
    SharedGroup {
        /// Sends commits: the subscription's own connection waits for its end.
        client: Client,
        request: CommitCursorsRequest,
        /// A cursor that names only the stream.
        stream: Cursor,
        name: Arc<str>,
    },
}

/// Records of one partition, in their order, in place in the server's memory. They stay there until this is dropped,
/// but not forever: the server takes back memory that a client holds for minutes, or for a second when memory is short.
#[derive(Debug)]
pub struct Pushed {
    place: TopicPartition,
    piece: Piece,
}

impl Client {
    /// Subscribes at a server on this machine, which must run as the same user and share its memory: the client must
    /// have no quota for reading, and the right to read every stream. Returns a subscriber for each source, to be used
    /// on a thread of its own. Together they are one subscription, which ends when all are dropped. A subscriber that
    /// stops taking, or is dropped before the others, may hold memory that the server takes back, which ends the
    /// subscription for all.
    ///
    /// The sources share the memory of the subscription. While it holds some and the server has no more to give, no source
    /// gets chunks, nor notices, until the subscribers finish those that they have.
    ///
    /// # Errors
    /// When the server shares no memory ([`ClientError::NotShared`]), or the stream or partition does not exist.
    pub async fn subscribe_local(
        &self,
        config: &LocalConfig,
        sources: &[LocalSource],
    ) -> Result<Vec<LocalSubscriber>, ClientError> {
        let mut asked = Vec::new();
        let mut reads = Vec::new();
        let mut servers = Vec::new();
        for source in sources {
            let (source, read) = self.local_source(source, &mut servers).await?;
            asked.push(source);
            reads.push(read);
        }
        servers.sort_unstable();
        servers.dedup();
        let server = match servers.as_slice() {
            [] => self.any().await?,
            [server] => self.server(*server).await?,
            _ => {
                return Err(ClientError::NotShared {
                    address: self.config().servers.join(","),
                    why: "several servers lead the partitions; subscribe at each".to_owned(),
                });
            }
        };
        let LocalConfig {
            filter,
            piece_bytes_max,
            ahead_bytes,
        } = config;
        let terms = Terms::new(filter.as_ref(), *piece_bytes_max, *ahead_bytes);
        let sources = Session::begin(&server, self.config(), asked, &terms).await?;
        let both = sources.into_iter().zip(reads);
        Ok(both
            .map(|(source, reads)| LocalSubscriber { source, reads })
            .collect())
    }

    /// Converts a source to its request. Adds the servers that lead it.
    async fn local_source(
        &self,
        source: &LocalSource,
        servers: &mut Vec<i32>,
    ) -> Result<(SubscribedSource, Reads), ClientError> {
        match source {
            LocalSource::Partitions(starts) => {
                let offsets = self.offsets(starts, Isolation::Committed).await?;
                let mut lanes = Vec::new();
                for (place, _) in starts {
                    servers.push(self.leader_of(place).await?);
                    lanes.push(lane(place, offsets.get(place).copied().unwrap_or_default()));
                }
                let source = SubscribedSource {
                    lanes,
                    shared_group: None,
                };
                let places = starts.iter().map(|(place, _)| place.clone());
                Ok((source, Reads::Partitions(places.collect())))
            }
            LocalSource::SharedGroup {
                stream,
                shared_group,
                consumer,
            } => {
                let described = self.stream(stream).await?;
                let source = SubscribedSource {
                    lanes: Vec::new(),
                    shared_group: Some(SubscribedSharedGroup {
                        stream: text(stream),
                        name: text(shared_group),
                        consumer: text(consumer),
                    }),
                };
                let reads = Reads::SharedGroup {
                    client: self.clone(),
                    request: CommitCursorsRequest {
                        shared_group: text(shared_group),
                        consumer: text(consumer),
                        cursors: Vec::new(),
                    },
                    stream: Cursor {
                        stream: described.stream,
                        ..Cursor::default()
                    },
                    name: stream.as_str().into(),
                };
                Ok((source, reads))
            }
        }
    }
}

/// Returns the request for one partition.
pub(crate) fn lane(place: &TopicPartition, offset: Offset) -> SubscribedLane {
    SubscribedLane {
        stream: text(&place.topic),
        // No partition has a number below 0, nor this one.
        partition: u32::try_from(place.partition).unwrap_or(u32::MAX),
        offset,
    }
}

impl LocalSubscriber {
    /// Returns the next records; waits for them on this thread, up to `timeout`. `None` if there are none by then.
    ///
    /// # Errors
    /// When an offset no longer exists (the error has the earliest one), or the stream was deleted: that partition
    /// delivers no more. When the subscription has ended, since the server has, or the subscriber held memory for too
    /// long: subscribe again.
    pub fn take(&mut self, timeout: Duration) -> Result<Option<Pushed>, ClientError> {
        match self.source.take(timeout)? {
            None => Ok(None),
            Some(Delivered::Piece(piece)) => Ok(Some(Pushed {
                place: self.place(piece.place)?,
                piece,
            })),
            Some(Delivered::Refused {
                place,
                code,
                earliest,
            }) => Err(refused(&self.place(place)?, code, None, earliest)),
        }
    }

    fn place(&self, place: u32) -> Result<TopicPartition, ClientError> {
        match &self.reads {
            Reads::Partitions(places) => {
                let found = places.get(place as usize).cloned();
                found.ok_or_else(|| ClientError::Protocol {
                    address: self.source.session().address().to_string(),
                    what: format!("there is no place {place} among {}", places.len()),
                })
            }
            Reads::SharedGroup { name, .. } => Ok(TopicPartition {
                topic: Arc::clone(name),
                partition: i32::try_from(place).unwrap_or(i32::MAX),
            }),
        }
    }

    /// Commits the group's position up to the end of `pushed`; another consumer continues from there if this one fails.
    /// Does nothing without a shared group.
    ///
    /// # Errors
    /// When the server refuses, for example since another consumer has the group now.
    pub async fn commit(&self, pushed: &Pushed) -> Result<(), ClientError> {
        let Reads::SharedGroup {
            client,
            request,
            stream,
            name,
        } = &self.reads
        else {
            return Ok(());
        };
        let cursor = Cursor {
            stream: stream.stream,
            ..pushed.piece.cursor
        };
        let request = CommitCursorsRequest {
            cursors: vec![cursor],
            ..request.clone()
        };
        let answer = client.ask(request).await?;
        let what = || format!("committing {cursor} of {name}");
        ClientError::check(answer.error_code, answer.error_message.as_deref(), what())?;
        for commit in answer.commits {
            ClientError::check(commit.error_code, commit.error_message.as_deref(), what())?;
        }
        Ok(())
    }
}

/// Returns the error with which a partition ends.
pub(crate) fn refused(
    place: &TopicPartition,
    code: i16,
    message: Option<&str>,
    earliest: Offset,
) -> ClientError {
    let out_of_range = format!("the offset is not there; the earliest is {earliest}");
    let message = match code == millstream_wire::ResponseError::OffsetOutOfRange.code() {
        true => Some(out_of_range.as_str()),
        false => message,
    };
    let what = format!("partition {} of {}", place.partition, place.topic);
    let error = ClientError::of_code(code, message, what);
    error.unwrap_or(ClientError::Closed)
}

impl Pushed {
    /// Returns the partition of the records.
    pub fn place(&self) -> &TopicPartition {
        &self.place
    }

    /// Returns the first offset that was requested and not returned before.
    pub fn from(&self) -> Offset {
        self.piece.from
    }

    /// Returns the offset behind the last record.
    pub fn next(&self) -> Offset {
        self.piece.next
    }

    /// Returns the end of the readable records when these were returned.
    pub fn end(&self) -> Offset {
        self.piece.end
    }

    /// Returns whole chunks, in place. There may be none, behind a filter. After reading them, the caller must check
    /// [`is_live`](Self::is_live).
    pub fn bytes(&self) -> &[u8] {
        self.piece.lease.as_ref().map_or(&[], |lease| lease.bytes())
    }

    /// Returns whether all bytes read so far were in place.
    pub fn is_live(&self) -> bool {
        self.piece
            .lease
            .as_ref()
            .is_none_or(|lease| lease.is_live())
    }

    /// Gives each record to `take`, until that breaks. Decompresses compressed ones with `decompressor`.
    ///
    /// # Errors
    /// When the records are damaged; or when the server has taken the memory back: then the last records that `take`
    /// received may be wrong.
    pub fn each(
        &self,
        decompressor: &mut Decompressor,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        match &self.piece.lease {
            Some(lease) => {
                let offsets = self.piece.from..self.piece.next;
                lease.each(offsets, decompressor, &mut take, |damaged| {
                    Err(damaged.in_partition(&self.place))
                })
            }
            None => Ok(()),
        }
    }
}
