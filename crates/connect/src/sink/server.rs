//! A stream of a server, to write to.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use millstream_base::{ProducerEpoch, ProducerId};
use millstream_client::{
    Client, ClientConfig, ClientError, Producer, ProducerConfig, ProducerRecord, TransactionConfig,
    TransactionIdentity, TransactionalProducer,
};
use millstream_flow::BoxError;
use millstream_record::TransactionEnd;
use serde::{Deserialize, Serialize};

use super::{
    Destination, EncodedRecord, RecordSink, Room, SinkError, TRANSACTIONS_MAX, sink_error,
};
use crate::flow_transactions::FlowTransactionId;
use crate::network::{Network, Work, poll};

/// The timeout of transactions where the server does not know two-phase commit: the longest that Apache Kafka allows, if
/// its settings are the usual ones.
const TIMEOUT_MAX: Duration = Duration::from_secs(15 * 60);

/// A [sink](RecordSink) into a stream of a server.
///
/// Its transactions have no timeout (two-phase commit): one that a checkpoint names waits without a limit until the flow
/// is started again and decides it. The transactional ids begin with `flow/`, the names of flow and sink, and the rank;
/// the user needs the rights `Write` and `TwoPhaseCommit` to them. A broker that does not know two-phase commit aborts a
/// transaction that is not decided within 15 minutes; the sink warns of that when it begins.
///
/// It takes results for stored when the server has answered. So their topic needs the durability `sync`: results in a topic
/// of a weaker one may be lost in a crash although a checkpoint names their transaction.
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
pub type ServerSink<F> = RecordSink<F, ServerDestination>;

/// An error because of which a flow cannot write to a server's stream.
pub type ServerSinkError = SinkError<ClientError>;

/// A stream of a server.
pub struct ServerDestination {
    stream: Arc<str>,
    client: Client,
    config: ProducerConfig,
    /// Makes one more producer.
    making: Option<Work<TransactionalProducer>>,
    /// The thread on which the client works. Last, so that tasks in progress end before it.
    network: Arc<Network>,
}

/// A producer of the client, and its tasks in progress.
pub struct ServerProducer {
    kind: Kind,
    /// Waits for memory, for everything to be stored, or for the end of the transaction.
    room: Option<Work<()>>,
    flush: Option<Work<()>>,
    ending: Option<Work<()>>,
    /// Whether further records came after the flush had begun.
    is_flush_old: bool,
}

#[derive(Clone)]
enum Kind {
    Plain(Arc<Producer>),
    Transactional(Arc<TransactionalProducer>),
}

/// The identity of a transaction in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedTransaction {
    id: String,
    producer: i64,
    epoch: i16,
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
        let destination = ServerDestination {
            stream: stream.into(),
            client,
            config,
            making: None,
            network,
        };
        RecordSink::of(stream, encode, destination)
    }
}

impl Destination for ServerDestination {
    type Producer = ServerProducer;
    type Name = NamedTransaction;
    type Error = ClientError;

    fn plain(&mut self) -> Result<ServerProducer, ClientError> {
        // A producer begins within the runtime.
        let _runtime = self.network.enter();
        let producer = Producer::new(&self.client, self.config.clone());
        Ok(Kind::Plain(Arc::new(producer)).into())
    }

    fn aborted(&self, names: &[NamedTransaction]) -> Result<Option<String>, ClientError> {
        self.network.wait(async {
            for named in names {
                let found = self.client.transaction(&named.id).await?;
                if found.is_some_and(|found| found.was_aborted(named.identity())) {
                    return Ok(Some(format!("transaction {}", named.id)));
                }
            }
            Ok(None)
        })
    }

    /// Fences the producers of earlier runs.
    fn recover(
        &mut self,
        id: &FlowTransactionId,
        ranks: u32,
        names: Vec<NamedTransaction>,
    ) -> Result<Vec<ServerProducer>, ClientError> {
        let (client, config) = (&self.client, &self.config);
        let producers = self
            .network
            .wait(recover(client, config, id, ranks, &names))?;
        Ok(producers.into_iter().map(ServerProducer::from).collect())
    }

    fn producer(
        &mut self,
        id: String,
        waker: &Waker,
    ) -> Result<Option<ServerProducer>, ClientError> {
        if let Some(made) = poll(&mut self.making) {
            return Ok(Some(made?.into()));
        }
        if self.making.is_none() {
            let made = make(self.client.clone(), self.config.clone(), id);
            self.making = Some(Work::start(&self.network, waker, made));
        }
        Ok(None)
    }

    fn begin(&self, producer: &ServerProducer) -> Result<(), ClientError> {
        producer.transactional()?.begin()
    }

    fn has_room(
        &mut self,
        producer: &mut ServerProducer,
        _waker: &Waker,
    ) -> Result<bool, ClientError> {
        if producer.room.is_some() {
            match poll(&mut producer.room) {
                Some(result) => result?,
                None => return Ok(false),
            }
        }
        match &producer.kind {
            Kind::Plain(plain) => plain.error().map_or(Ok(true), Err),
            Kind::Transactional(_) => Ok(true),
        }
    }

    #[inline]
    fn offer(
        &mut self,
        producer: &mut ServerProducer,
        record: &EncodedRecord,
        waker: &Waker,
    ) -> Result<bool, ClientError> {
        let headers = record.headers();
        let record = ProducerRecord {
            topic: &self.stream,
            timestamp: Some(record.timestamp),
            key: record.key(),
            value: record.value(),
            headers: &headers,
            ..ProducerRecord::default()
        };
        let has_room = producer.kind.producer().offer(&record)?;
        if has_room {
            producer.is_flush_old = true;
        } else {
            let (kind, stream) = (producer.kind.clone(), Arc::clone(&self.stream));
            let room = async move { kind.producer().room(&stream).await };
            producer.room = Some(Work::start(&self.network, waker, room));
        }
        Ok(has_room)
    }

    fn flush(&mut self, producer: &mut ServerProducer, waker: &Waker) -> Result<bool, ClientError> {
        if let Some(result) = poll(&mut producer.flush) {
            result?;
            if !producer.is_flush_old {
                return Ok(true);
            }
        }
        if producer.flush.is_none() {
            producer.is_flush_old = false;
            let kind = producer.kind.clone();
            let flush = async move { kind.producer().flush().await };
            producer.flush = Some(Work::start(&self.network, waker, flush));
        }
        Ok(false)
    }

    fn names(&self, producer: &ServerProducer) -> Result<Vec<NamedTransaction>, ClientError> {
        let producer = producer.transactional()?;
        let identity = producer.prepared()?;
        let named = identity.map(|identity| NamedTransaction {
            id: producer.id().to_owned(),
            producer: identity.producer.0,
            epoch: identity.epoch.0,
        });
        Ok(named.into_iter().collect())
    }

    fn end(
        &mut self,
        producer: &mut ServerProducer,
        end: TransactionEnd,
        waker: &Waker,
    ) -> Result<bool, ClientError> {
        if let Some(ended) = poll(&mut producer.ending) {
            ended?;
            return Ok(true);
        }
        if producer.ending.is_none() {
            (producer.room, producer.flush) = (None, None);
            producer.is_flush_old = false;
            let transactional = Arc::clone(producer.transactional()?);
            let ending = async move {
                match end {
                    TransactionEnd::Commit => transactional.commit().await,
                    TransactionEnd::Abort => transactional.abort().await,
                }
            };
            producer.ending = Some(Work::start(&self.network, waker, ending));
        }
        Ok(false)
    }

    /// The client tries again by itself.
    fn room(&self, _error: &ClientError) -> Option<Room> {
        None
    }
}

impl Kind {
    fn producer(&self) -> &Producer {
        match self {
            Kind::Plain(producer) => producer,
            Kind::Transactional(producer) => producer.producer(),
        }
    }
}

impl ServerProducer {
    fn transactional(&self) -> Result<&Arc<TransactionalProducer>, ClientError> {
        match &self.kind {
            Kind::Plain(_) => Err(ClientError::NoTransaction),
            Kind::Transactional(producer) => Ok(producer),
        }
    }
}

impl From<Kind> for ServerProducer {
    fn from(kind: Kind) -> ServerProducer {
        ServerProducer {
            kind,
            room: None,
            flush: None,
            ending: None,
            is_flush_old: false,
        }
    }
}

impl From<TransactionalProducer> for ServerProducer {
    fn from(producer: TransactionalProducer) -> ServerProducer {
        Kind::Transactional(Arc::new(producer)).into()
    }
}

impl NamedTransaction {
    fn identity(&self) -> TransactionIdentity {
        TransactionIdentity {
            producer: ProducerId(self.producer),
            epoch: ProducerEpoch(self.epoch),
        }
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
    names: &[NamedTransaction],
) -> Result<Vec<TransactionalProducer>, ClientError> {
    for named in names {
        let found = client.transaction(&named.id).await?;
        // A transaction that is no longer open is committed, unless an administrator has aborted it.
        if found.is_some_and(|found| found.is_open() && found.identity == named.identity()) {
            client
                .end_transaction(&named.id, named.identity(), true)
                .await?;
        }
    }
    let mut producers: Vec<TransactionalProducer> = Vec::new();
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
        producers.push(producer);
    }
    // Transactions of ranks that no longer exist.
    for other in own {
        if !producers.iter().any(|producer| producer.id() == other.id) {
            client.fence_producers(&other.id).await?;
        }
    }
    Ok(producers)
}
