//! A stream of a server as the sink of a flow.

use std::sync::Arc;
use std::task::Waker;

use millstream_base::{Clock, SystemClock};
use millstream_client::{
    Client, ClientConfig, ClientError, Producer, ProducerConfig, ProducerRecord,
    TransactionalProducer,
};
use millstream_flow::{BoxError, Sink, SinkStart};

use crate::network::{Network, Work, poll};
use crate::server_transactions::{NamedTransaction, Transactions, aborted};
use crate::sink::EncodedRecord;

/// Sends the results of a flow to a stream of a server: `encode` turns an item into a record, and the record's key decides
/// its partition, as Kafka's own clients choose it. A record without a key goes to any.
///
/// With checkpoints, readers of committed records see each result *exactly once*, for any operators between sources and
/// sink, on any number of ranks. The sink sends results in transactions, one for each checkpoint, which are
/// [committed](Sink::commit) as soon as the checkpoint is complete on all ranks; so readers see them about one
/// checkpoint interval later. The transactions have no timeout (two-phase commit): one that a checkpoint names waits
/// without a limit until the flow is started again and decides it. Until then readers of committed records wait, too.
/// The transactional ids begin with `flow/`, the names of flow and sink, and the rank; the user needs the rights
/// `Write` and `TwoPhaseCommit` to them. A broker that does not know two-phase commit aborts a transaction that is not
/// decided within 15 minutes; the sink warns of that when it begins.
///
/// Without checkpoints each result is stored *at least once*: it is stored before sources commit.
///
/// The sink calls `encode` again for an item that found no room. A record's timestamp is the present time, unless
/// `encode` sets it.
///
/// ```no_run
/// use millstream_client::ClientConfig;
/// use millstream_connect::{EncodedRecord, ServerSink};
/// use millstream_flow::Flow;
/// use millstream_flow::sources::Generator;
///
/// let server = ClientConfig::new("127.0.0.1:9092");
/// let sink = ServerSink::new(&server, "squares", |(number, square): &(u64, u64), record: &mut EncodedRecord| {
///     record.key.extend(number.to_be_bytes());
///     record.value.extend(square.to_string().bytes());
/// })?;
/// let flow = Flow::new("squares");
/// flow.source("numbers", Generator::new(|number| (number, number * number)).limit(3)).sink("squares", sink);
/// flow.run()?.join()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct ServerSink<F> {
    stream: Arc<str>,
    client: Client,
    config: ProducerConfig,
    encode: F,
    record: EncodedRecord,
    way: Option<Way>,
    /// Waits for memory, or for everything to be stored.
    room: Option<Work<()>>,
    flush: Option<Work<()>>,
    /// Whether further records came after the flush had begun.
    is_flush_old: bool,
    clock: SystemClock,
    /// The thread on which the client works. Last, so that tasks in progress end before it.
    network: Arc<Network>,
}

/// The kind of producer that sends the records.
enum Way {
    Plain(Arc<Producer>),
    Transactions(Transactions),
}

/// The producer that takes the next records.
#[derive(Clone)]
enum Taker {
    Plain(Arc<Producer>),
    Transaction(Arc<TransactionalProducer>),
}

impl Taker {
    fn offer(&self, record: &ProducerRecord<'_>) -> Result<bool, ClientError> {
        match self {
            Taker::Plain(producer) => producer.offer(record),
            Taker::Transaction(producer) => producer.offer(record),
        }
    }

    async fn room(self, stream: Arc<str>) -> Result<(), ClientError> {
        match self {
            Taker::Plain(producer) => producer.room(&stream).await,
            Taker::Transaction(producer) => producer.room(&stream).await,
        }
    }

    async fn flush(self) -> Result<(), ClientError> {
        match self {
            Taker::Plain(producer) => producer.flush().await,
            Taker::Transaction(producer) => producer.flush().await,
        }
    }
}

/// Why a flow cannot write to a server's stream.
#[derive(Debug, Clone, thiserror::Error)]
#[error("stream {stream}: {error}")]
pub struct ServerSinkError {
    /// The stream.
    pub stream: String,
    /// The client's error.
    pub error: Arc<ClientError>,
}

impl<F> ServerSink<F> {
    /// Returns a sink into an existing stream.
    ///
    /// # Errors
    /// When there is no such stream, no server answers, or the thread for the network cannot be started.
    pub fn new(server: &ClientConfig, stream: &str, encode: F) -> Result<Self, BoxError> {
        ServerSink::with_config(server, ProducerConfig::default(), stream, encode)
    }

    /// The same, with other than the default settings of the producer.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_config(
        server: &ClientConfig,
        config: ProducerConfig,
        stream: &str,
        encode: F,
    ) -> Result<Self, BoxError> {
        let network = Arc::new(Network::start("millstream-sink")?);
        let client = Client::new(server.clone());
        let topic = network.wait(client.topic(stream));
        topic.map_err(|error| sink_error(stream, error))?;
        Ok(ServerSink::of_client(
            client, network, config, stream, encode,
        ))
    }

    /// The same, with the caller's client and thread, into a stream that is known to exist.
    pub(crate) fn of_client(
        client: Client,
        network: Arc<Network>,
        config: ProducerConfig,
        stream: &str,
        encode: F,
    ) -> Self {
        ServerSink {
            stream: stream.into(),
            client,
            config,
            encode,
            record: EncodedRecord::default(),
            way: None,
            room: None,
            flush: None,
            is_flush_old: false,
            clock: SystemClock::default(),
            network,
        }
    }

    /// Gives up the open transaction after an error, so that the sink takes records again. They count with a later
    /// transaction, or never.
    pub(crate) fn give_up(&mut self) {
        self.room = None;
        self.flush = None;
        self.is_flush_old = false;
        if let Some(Way::Transactions(transactions)) = &mut self.way {
            transactions.fail();
        }
    }

    /// Returns a transaction that was aborted by force although a checkpoint names it. Called before
    /// [`recover`](Sink::recover), which begins later ones.
    pub(crate) fn aborted(&self, prepared: Option<&[u8]>) -> Result<Option<String>, BoxError> {
        let prepared: Vec<NamedTransaction> = match prepared {
            Some(prepared) => postcard::from_bytes(prepared)?,
            None => Vec::new(),
        };
        let aborted = self.network.wait(aborted(&self.client, &prepared));
        aborted.map_err(|error| self.error(error))
    }

    fn error(&self, error: ClientError) -> BoxError {
        sink_error(&self.stream, error).into()
    }

    /// Returns the producer for the next records; `None` while the sink has to wait.
    fn taker(&mut self, waker: &Waker) -> Result<Option<Taker>, ClientError> {
        if self.room.is_some() {
            match poll(&mut self.room) {
                Some(result) => result?,
                None => return Ok(None),
            }
        }
        match &mut self.way {
            None => Err(ClientError::Closed),
            Some(Way::Plain(producer)) => match producer.error() {
                Some(error) => Err(error),
                None => Ok(Some(Taker::Plain(Arc::clone(producer)))),
            },
            Some(Way::Transactions(transactions)) => {
                transactions.open(&self.network, &self.client, &self.config, waker)?;
                Ok(transactions.open.clone().map(Taker::Transaction))
            }
        }
    }

    /// Returns the producer that has taken records, and may still have to store them.
    fn taken(&self) -> Option<Taker> {
        match self.way.as_ref()? {
            Way::Plain(producer) => Some(Taker::Plain(Arc::clone(producer))),
            Way::Transactions(transactions) => transactions.open.clone().map(Taker::Transaction),
        }
    }
}

impl<T, F> Sink<T> for ServerSink<F>
where
    F: FnMut(&T, &mut EncodedRecord) + Send + 'static,
{
    fn push(&mut self, items: &[T], waker: &Waker) -> Result<usize, BoxError> {
        let taker = self.taker(waker);
        let Some(taker) = taker.map_err(|error| self.error(error))? else {
            return Ok(0);
        };
        for (taken, item) in items.iter().enumerate() {
            self.record.begin(self.clock.now());
            (self.encode)(item, &mut self.record);
            let headers = self.record.headers();
            let record = ProducerRecord {
                topic: &self.stream,
                timestamp: Some(self.record.timestamp),
                key: self.record.key(),
                value: self.record.value(),
                headers: &headers,
                ..ProducerRecord::default()
            };
            if !taker.offer(&record).map_err(|error| self.error(error))? {
                let room = taker.room(Arc::clone(&self.stream));
                self.room = Some(Work::start(&self.network, waker, room));
                return Ok(taken);
            }
            self.is_flush_old = true;
        }
        Ok(items.len())
    }

    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        if let Some(result) = poll(&mut self.flush) {
            result.map_err(|error| self.error(error))?;
            if !self.is_flush_old {
                return Ok(true);
            }
        }
        if self.flush.is_none() {
            let Some(taker) = self.taken() else {
                return Ok(true);
            };
            self.is_flush_old = false;
            self.flush = Some(Work::start(&self.network, waker, taker.flush()));
        }
        Ok(false)
    }

    fn waits_for_commit(&self) -> bool {
        true
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        let (client, config) = (&self.client, &self.config);
        if !start.takes_checkpoints {
            let producer = async { Ok::<_, ClientError>(Producer::new(client, config.clone())) };
            let producer = self.network.wait(producer);
            let producer = producer.map_err(|error| self.error(error))?;
            self.way = Some(Way::Plain(Arc::new(producer)));
            return Ok(());
        }
        let prepared: Vec<NamedTransaction> = match start.prepared {
            Some(prepared) => postcard::from_bytes(prepared)?,
            None => Vec::new(),
        };
        let recovered = Transactions::recover(&self.network, client, config, start, &prepared);
        let recovered = recovered.map_err(|error| self.error(error))?;
        self.way = Some(Way::Transactions(recovered));
        Ok(())
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        let Some(Way::Transactions(transactions)) = &mut self.way else {
            return Ok(Vec::new());
        };
        let prepared = transactions.prepare(checkpoint);
        prepared.map_err(|error| sink_error(&self.stream, error))?;
        Ok(postcard::to_stdvec(&transactions.named())?)
    }

    fn commit(&mut self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        let Some(Way::Transactions(transactions)) = &mut self.way else {
            return Ok(true);
        };
        let committed = transactions.commit(&self.network, checkpoint, waker);
        Ok(committed.map_err(|error| sink_error(&self.stream, error))?)
    }
}

fn sink_error(stream: &str, error: ClientError) -> ServerSinkError {
    ServerSinkError {
        stream: stream.to_owned(),
        error: Arc::new(error),
    }
}
