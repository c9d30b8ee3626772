//! A stream of a server as the sink of a flow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use millstream_base::{Clock, ProducerEpoch, ProducerId, SystemClock};
use millstream_client::{
    Client, ClientConfig, ClientError, Producer, ProducerConfig, ProducerRecord, TransactionConfig,
    TransactionIdentity, TransactionalProducer,
};
use millstream_flow::{BoxError, Sink, SinkStart};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::flow_transactions::FlowTransactionId;
use crate::network::Network;
use crate::sink::EncodedRecord;

/// Transactions of one sink that are not decided, and the one that is open. Beyond that the flow waits for
/// checkpoints to be complete.
const TRANSACTIONS_MAX: usize = 8;

/// The timeout of transactions where the server does not know two-phase commit: the longest that Apache Kafka allows, if
/// its settings are the usual ones.
const TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);

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

/// The transactions of one sink, each with a producer of its own.
struct Transactions {
    /// All but the last part of the transactional ids.
    id: FlowTransactionId,
    /// Takes records, if one was needed since the last checkpoint.
    open: Option<Arc<TransactionalProducer>>,
    /// By checkpoint.
    prepared: VecDeque<Prepared>,
    /// Without a transaction.
    free: Vec<Arc<TransactionalProducer>>,
    /// Makes one more.
    making: Option<Work<TransactionalProducer>>,
    /// The number of slots.
    count: usize,
    /// The worker that waits for a free slot.
    waker: Option<Waker>,
}

struct Prepared {
    checkpoint: u64,
    producer: Arc<TransactionalProducer>,
    named: NamedTransaction,
    commit: Option<Work<()>>,
}

/// The identity of a transaction in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NamedTransaction {
    id: String,
    producer: i64,
    epoch: i16,
}

impl NamedTransaction {
    fn identity(&self) -> TransactionIdentity {
        TransactionIdentity {
            producer: ProducerId(self.producer),
            epoch: ProducerEpoch(self.epoch),
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

/// A task on the network thread, which wakes a worker when it ends.
struct Work<T>(oneshot::Receiver<Result<T, ClientError>>);

impl<T: Send + 'static> Work<T> {
    fn start(
        network: &Network,
        waker: &Waker,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    ) -> Work<T> {
        let (sender, receiver) = oneshot::channel();
        let waker = waker.clone();
        network.spawn(async move {
            // A sink that is gone does not want it.
            let _ = sender.send(work.await);
            waker.wake();
        });
        Work(receiver)
    }

    /// Returns the task's result; `None` while it runs.
    fn done(&mut self) -> Option<Result<T, ClientError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(ClientError::Closed)),
        }
    }
}

/// Looks whether work is done; takes it away then.
fn poll<T: Send + 'static>(work: &mut Option<Work<T>>) -> Option<Result<T, ClientError>> {
    let done = work.as_mut()?.done();
    if done.is_some() {
        *work = None;
    }
    done
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
        Ok(ServerSink {
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
        })
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
        let id = FlowTransactionId::of(start);
        let prepared: Vec<NamedTransaction> = match start.prepared {
            Some(prepared) => postcard::from_bytes(prepared)?,
            None => Vec::new(),
        };
        let (client, config) = (&self.client, &self.config);
        if !start.takes_checkpoints {
            let producer = async { Ok::<_, ClientError>(Producer::new(client, config.clone())) };
            let producer = self.network.wait(producer);
            let producer = producer.map_err(|error| self.error(error))?;
            self.way = Some(Way::Plain(Arc::new(producer)));
            return Ok(());
        }
        let recovered = self
            .network
            .wait(recover(client, config, &id, start.ranks, &prepared));
        let free = recovered.map_err(|error| self.error(error))?;
        self.way = Some(Way::Transactions(Transactions {
            id,
            open: None,
            prepared: VecDeque::new(),
            count: free.len(),
            free,
            making: None,
            waker: None,
        }));
        Ok(())
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        let Some(Way::Transactions(transactions)) = &mut self.way else {
            return Ok(Vec::new());
        };
        let prepared = transactions.prepare(checkpoint);
        prepared.map_err(|error| sink_error(&self.stream, error))?;
        let named = transactions.prepared.iter().map(|it| &it.named);
        Ok(postcard::to_stdvec(&named.collect::<Vec<_>>())?)
    }

    fn commit(&mut self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        let Some(Way::Transactions(transactions)) = &mut self.way else {
            return Ok(true);
        };
        let committed = transactions.commit(&self.network, checkpoint, waker);
        Ok(committed.map_err(|error| sink_error(&self.stream, error))?)
    }
}

impl Transactions {
    /// Opens a transaction, unless one is open or has to be waited for.
    fn open(
        &mut self,
        network: &Network,
        client: &Client,
        config: &ProducerConfig,
        waker: &Waker,
    ) -> Result<(), ClientError> {
        if self.open.is_some() {
            return Ok(());
        }
        if let Some(made) = poll(&mut self.making) {
            self.free.push(Arc::new(made?));
        }
        if let Some(producer) = self.free.pop() {
            producer.begin()?;
            self.open = Some(producer);
            return Ok(());
        }
        if self.making.is_none() && self.count < TRANSACTIONS_MAX {
            let made = make(client.clone(), config.clone(), self.id.slot(self.count));
            self.making = Some(Work::start(network, waker, made));
            self.count += 1;
        }
        self.waker = Some(waker.clone());
        Ok(())
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<(), ClientError> {
        let Some(producer) = &self.open else {
            return Ok(());
        };
        // A transaction without records stays open.
        let Some(identity) = producer.prepared()? else {
            return Ok(());
        };
        let named = NamedTransaction {
            id: producer.id().to_owned(),
            producer: identity.producer.0,
            epoch: identity.epoch.0,
        };
        if let Some(producer) = self.open.take() {
            self.prepared.push_back(Prepared {
                checkpoint,
                producer,
                named,
                commit: None,
            });
        }
        Ok(())
    }

    fn commit(
        &mut self,
        network: &Network,
        checkpoint: u64,
        waker: &Waker,
    ) -> Result<bool, ClientError> {
        let mut left = VecDeque::new();
        let mut is_done = true;
        for mut prepared in self.prepared.drain(..) {
            if prepared.checkpoint > checkpoint {
                left.push_back(prepared);
                continue;
            }
            match poll(&mut prepared.commit) {
                Some(result) => {
                    result?;
                    self.free.push(prepared.producer);
                    self.waker.take().inspect(Waker::wake_by_ref);
                    continue;
                }
                None if prepared.commit.is_none() => {
                    let producer = Arc::clone(&prepared.producer);
                    let commit = async move { producer.commit().await };
                    prepared.commit = Some(Work::start(network, waker, commit));
                }
                None => {}
            }
            is_done = false;
            left.push_back(prepared);
        }
        self.prepared = left;
        Ok(is_done)
    }
}

/// Begins as the producer of a transactional id.
async fn make(
    client: Client,
    config: ProducerConfig,
    id: String,
) -> Result<TransactionalProducer, ClientError> {
    let mut transaction = TransactionConfig {
        id,
        timeout: TIMEOUT_MAX,
        two_phase: true,
    };
    let made = TransactionalProducer::new(&client, config.clone(), transaction.clone()).await;
    if !matches!(made, Err(ClientError::NoTwoPhaseCommit { .. })) {
        return made;
    }
    transaction.two_phase = false;
    TransactionalProducer::new(&client, config, transaction).await
}

/// Decides the transactions that an earlier run of a rank left open: commits those that the checkpoint names, and
/// aborts all others, fencing their producers. Returns new ones in their place.
async fn recover(
    client: &Client,
    config: &ProducerConfig,
    id: &FlowTransactionId,
    ranks: u32,
    prepared: &[NamedTransaction],
) -> Result<Vec<Arc<TransactionalProducer>>, ClientError> {
    for named in prepared {
        let found = client.transaction(&named.id).await?;
        // A transaction that is no longer open is committed, unless an administrator has aborted it.
        match found {
            Some(found) if found.is_open() && found.identity == named.identity() => {
                client
                    .end_transaction(&named.id, named.identity(), true)
                    .await?;
            }
            Some(found) if found.was_aborted(named.identity()) => tracing::warn!(
                "transaction {} was aborted by force: the results in it are lost",
                named.id
            ),
            _ => {}
        }
    }
    let mut free = Vec::new();
    let known = client.transactions().await?;
    let own: Vec<_> = known
        .iter()
        .filter(|it| id.is_heir_of(&it.id, ranks))
        .collect();
    // Begin the first one in any case, so that the server's refusal shows at the start.
    for slot in 0..TRANSACTIONS_MAX {
        let name = id.slot(slot);
        if slot > 0 && !own.iter().any(|known| known.id == name) {
            break;
        }
        let producer = make(client.clone(), config.clone(), name).await?;
        if slot == 0 && !producer.has_two_phases() {
            tracing::warn!(
                "the server does not know two-phase commit (KIP-939): it aborts results of {id} that a checkpoint names and that are not committed within {TIMEOUT_MAX:?}, so a flow that stands still for longer loses them"
            );
        }
        free.push(Arc::new(producer));
    }
    // Of ranks that there are no more.
    for other in own {
        if !free.iter().any(|producer| producer.id() == other.id) {
            client.fence_producers(&other.id).await?;
        }
    }
    Ok(free)
}

fn sink_error(stream: &str, error: ClientError) -> ServerSinkError {
    ServerSinkError {
        stream: stream.to_owned(),
        error: Arc::new(error),
    }
}
