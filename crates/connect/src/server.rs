//! A stream of a server as the source of a flow.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use millstream_base::Offset;
use millstream_client::{
    Client, ClientConfig, ClientError, Consumer, ConsumerConfig, Decompressor, DeliveryMode,
    Fetched, Start, Topic, TopicPartition,
};
use millstream_flow::{
    BoxError, Origin, Output, PartitionId, Partitions, Parts, Position, Positions, Source,
    SourcePartitions, SourceStatus, WouldWait,
};
use millstream_log::Share;
use millstream_record::{ChunkError, Record};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::held_positions;
use crate::held_records::HeldRecords;
use crate::letter::{origin, show_record};
use crate::network::Network;
use crate::saved_positions;
use crate::source_error::SourceError;

/// The most items that wait for a source's turn; the consumer's setting bounds their bytes.
const ITEMS_MAX: usize = 16;

/// The most items that may stay in the consumer's memory: the waiting items, the next one to wait, and the item that the
/// source's stage processes.
const READ_MAX: u32 = ITEMS_MAX as u32 + 2;

/// The interval at which a source asks for the ends of its partitions.
const ENDS_INTERVAL: Duration = Duration::from_secs(1);

/// The longest wait for that answer. Then the ends count as unknown, and no partition is idle.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The end of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEnd {
    /// Never.
    Never,
    /// The end of the committed records when the sources begin.
    Now,
}

/// Reads partitions of a server's stream from the oldest record on. The [consumer's setting](ConsumerConfig::delivery)
/// selects the path of records: pushed through memory that a server on the same machine shares, pushed over the
/// network, or pulled; they are the same records.
///
/// A partition that is too far ahead of others in event time is held
/// ([`Watermarks::skew_max`](millstream_flow::Watermarks::skew_max)): the source keeps its records in memory, up to the
/// partition's share of [`prefetch_bytes`](ConsumerConfig::prefetch_bytes) and the answers in flight, and then reads
/// only the others.
///
/// Only the flow's checkpoints keep the positions: a flow that does not resume reads everything.
/// [`StreamSource`](crate::StreamSource) does the same with log and flow in one process.
///
/// ```no_run
/// use millstream_base::text::is_white_space;
/// use millstream_client::{ClientConfig, ConsumerConfig};
/// use millstream_connect::{ServerEnd, ServerSource};
/// use millstream_flow::{Counts, Emit, Flow};
///
/// let server = ClientConfig::new("127.0.0.1:9092");
/// let sources = ServerSource::of_stream(&server, &ConsumerConfig::default(), "lines", 2, ServerEnd::Now)?;
/// let flow = Flow::new("words");
/// let counts = flow.partial::<Counts>("counts");
/// flow.sources("lines", sources)
///     .each(|record, emit: &mut Emit<[u8]>| {
///         let line = record.value.unwrap_or_default();
///         line.split(is_white_space).for_each(emit);
///         Ok(())
///     })
///     .fold_local(&counts, |counts, word| counts.add(word, 1));
/// flow.run()?.join()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct ServerSource {
    stream: Arc<str>,
    reading: Reading,
    given: Feed,
    /// Records of partitions that are too far ahead of the others.
    held: HeldRecords,
    progress: Progress,
    /// By partition, the leader epoch of the last records that it gave.
    epochs: BTreeMap<i32, i32>,
    fault: Arc<OnceLock<SourceError>>,
    /// The thread on which the consumer works, shared with the other sources.
    network: Arc<Network>,
}

/// The progress of a source, which the network thread knows too. A clone is another handle of it.
#[derive(Clone)]
struct Progress {
    /// By partition, the first offset that the source did not give. Written by the source, and by the network for
    /// partitions that are added; read by those that watch it.
    positions: Arc<Mutex<BTreeMap<i32, Offset>>>,
    /// The end of the committed records by partition, which the server returns from time to time. Written by the network.
    ends: Arc<Mutex<BTreeMap<i32, Offset>>>,
    /// The partitions. The network notes their ends.
    partitions: Partitions,
}

/// The queue of records from the network thread to a source.
struct Feed {
    records: mpsc::Receiver<Given>,
    wishes: watch::Sender<Wishes>,
    /// The source was asked for something.
    has_begun: bool,
}

impl Feed {
    /// The flow begins: from now on records are read.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.wishes.send_modify(|wishes| wishes.has_begun = true);
        }
    }
}

/// A source's requests to its consumer.
#[derive(Default)]
struct Wishes {
    /// The consumer reads nothing before the flow begins.
    has_begun: bool,
    /// These partitions must not be read for now.
    paused: BTreeSet<i32>,
    /// The number of times that records could not be read, which have to come again.
    torn: u64,
}

/// An item from the network thread to a source.
enum Given {
    Records(ServerRecords),
    /// There are partitions that it had not found before, or some have come to be behind their ends, or are not any
    /// more.
    Partitions,
    Error(ClientError),
}

/// The settings of the reading.
struct Reading {
    client: Client,
    consumer: ConsumerConfig,
    /// The stream, with the partitions that it had when it was found.
    topic: Topic,
    share: Share,
    /// The partitions of the share.
    places: Vec<TopicPartition>,
    /// The ends of the partitions when they were found.
    ends: Ends,
    end: ServerEnd,
}

/// The view of a source for its observers.
struct ServerPositions {
    stream: Arc<str>,
    positions: Arc<Mutex<BTreeMap<i32, Offset>>>,
    ends: Arc<Mutex<BTreeMap<i32, Offset>>>,
}

impl Positions for ServerPositions {
    fn try_read(&self) -> Result<Vec<Position>, WouldWait> {
        // The locks are held for a look or a change of a map.
        Ok(self.read())
    }

    fn read(&self) -> Vec<Position> {
        let positions = self.positions.lock().clone();
        let ends = self.ends.lock();
        let position = |(partition, next): (i32, Offset)| Position {
            stream: self.stream.to_string(),
            partition: partition.unsigned_abs(),
            next: next.0,
            // The last answer may be older than the last records.
            end: ends.get(&partition).map(|end| end.0.max(next.0)),
        };
        positions.into_iter().map(position).collect()
    }
}

/// Records of one partition: the items of a [`ServerSource`].
#[derive(Debug)]
pub struct ServerRecords {
    fetched: Fetched,
    /// The number of offsets that it advances the source.
    records: u64,
    /// Later records did not exist when the source began.
    until: Option<Offset>,
    fault: Arc<OnceLock<SourceError>>,
    /// Exists as long as they lie in the memory into which the consumer has read them.
    read: Option<OwnedSemaphorePermit>,
}

impl ServerRecords {
    pub(crate) fn partition(&self) -> i32 {
        self.fetched.partition()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.fetched.bytes()
    }

    /// Behind the last record that is given.
    pub(crate) fn next(&self) -> Offset {
        let next = self.fetched.next();
        self.until.map_or(next, |until| until.min(next))
    }

    fn is_last(&self) -> bool {
        self.until.is_some_and(|until| self.next() >= until)
    }

    /// Copies them into memory of their own.
    pub(crate) fn detach(&mut self) -> Result<(), ClientError> {
        self.fetched.detach()?;
        self.read = None;
        Ok(())
    }
}

impl ServerSource {
    /// Returns sources that share a stream's partitions: of `n` instances, each has every `n`th for itself. Without an
    /// [end](ServerEnd), each also reads the partitions of its share that are added later, from their beginning.
    ///
    /// # Errors
    /// When there is no such stream, no server answers, or the thread for the network cannot be started.
    pub fn of_stream(
        server: &ClientConfig,
        consumer: &ConsumerConfig,
        stream: &str,
        instances: usize,
        end: ServerEnd,
    ) -> Result<Vec<ServerSource>, BoxError> {
        ServerSource::of_share(server, consumer, stream, Share::ALL, instances, end)
    }

    /// As [`of_stream`](Self::of_stream), for a share of the stream's partitions: each rank of a flow reads one of as
    /// many shares as there are ranks.
    ///
    /// # Errors
    /// As [`of_stream`](Self::of_stream).
    pub fn of_share(
        server: &ClientConfig,
        consumer: &ConsumerConfig,
        stream: &str,
        of_rank: Share,
        instances: usize,
        end: ServerEnd,
    ) -> Result<Vec<ServerSource>, BoxError> {
        let instances = u32::try_from(instances.max(1))?;
        let network = Arc::new(Network::start("millstream-source")?);
        let client = Client::new(server.clone());
        let consumer = &ConsumerConfig {
            // A flow fails rather than skip records that retention has deleted.
            reset: None,
            ..consumer.clone()
        };
        let begun = network.wait(async {
            let topic = client.topic(stream).await?;
            let places: Vec<TopicPartition> = topic.partitions().collect();
            let ends = ends(&client, consumer, &places).await?;
            let mut begun = Vec::new();
            for instance in 0..instances {
                let share = Share {
                    index: of_rank.index * instances + instance,
                    of: of_rank.of * instances,
                };
                let is_own = |place: &&TopicPartition| share.has(place.partition.unsigned_abs());
                let places = places.iter().filter(is_own).cloned();
                let places: Vec<TopicPartition> = places.collect();
                let reading = Reading {
                    client: client.clone(),
                    consumer: consumer.clone(),
                    topic: Topic::clone(&topic),
                    ends: ends_of(&places, &ends),
                    end,
                    share,
                    places,
                };
                begun.push((reading.consumer(&BTreeMap::new()).await?, reading));
            }
            Ok::<_, ClientError>(begun)
        });
        let begun = begun.map_err(|error| SourceError::read(stream, error))?;
        let sources = begun.into_iter().map(|(consumer, reading)| {
            let fault = Arc::default();
            let positions = by_partition(&consumer);
            let partitions = Partitions::default();
            reading.find_partitions(&positions, &partitions);
            let positions = Arc::new(Mutex::new(positions));
            let progress = Progress {
                positions,
                ends: Arc::default(),
                partitions,
            };
            ServerSource {
                stream: stream.into(),
                given: reading.start(consumer, &progress, &fault, &network),
                held: HeldRecords::default(),
                reading,
                progress,
                epochs: BTreeMap::new(),
                fault,
                network: Arc::clone(&network),
            }
        });
        Ok(sources.collect())
    }

    pub(crate) fn known_partitions(&self) -> &Partitions {
        &self.progress.partitions
    }

    /// Gives records, and takes note of it. Records behind the end are not given.
    fn give(&mut self, mut records: ServerRecords, out: &mut Output<ServerRecords>) {
        let (partition, next) = (records.partition(), records.next());
        match records.is_last() {
            true => self.progress.partitions.end(partition_id(partition)),
            false => (self.progress.partitions).pass(partition_id(partition), next),
        }
        let before = self.progress.positions.lock().insert(partition, next);
        self.epochs
            .insert(partition, records.fetched.leader_epoch());
        records.records = next.0 - before.unwrap_or_default().min(next).0;
        out.push(records);
    }

    /// Returns whether records directly follow those that it has, and not others that have to come again.
    fn are_next(&self, records: &ServerRecords) -> bool {
        let partition = records.partition();
        let given = || self.progress.positions.lock().get(&partition).copied();
        let next = self.held.end(partition).or_else(given);
        records.fetched.from() <= next.unwrap_or_default()
    }

    /// Gives records that were read, or keeps them if their partition is too far ahead.
    fn receive(&mut self, records: ServerRecords, out: &mut Output<ServerRecords>) {
        if !self.are_next(&records) {
            return;
        }
        let (partition, next) = (records.partition(), records.next());
        let has_others = self.held.end(partition).is_some();
        let readable =
            match has_others || (self.progress.partitions).is_held(partition_id(partition)) {
                true => self
                    .held
                    .keep(records, self.held_bytes_max())
                    .map(|is_full| {
                        (self.progress.partitions).keep(partition_id(partition), next);
                        if is_full {
                            self.pause_full();
                        }
                    }),
                false => records.fetched.check().map(|()| self.give(records, out)),
            };
        if readable.is_err() {
            // The server has taken its memory back: they come again.
            self.given.wishes.send_modify(|wishes| wishes.torn += 1);
        }
    }

    /// Returns the number of bytes that it holds of a partition before it stops reading that.
    fn held_bytes_max(&self) -> usize {
        let partitions = self.progress.positions.lock().len();
        self.reading.consumer.prefetch_bytes / partitions.max(1)
    }

    fn pause_full(&self) {
        let paused = self.held.full().clone();
        self.given
            .wishes
            .send_modify(|wishes| wishes.paused = paused);
    }
}

impl Reading {
    /// A consumer that goes on from these positions, and from the beginning of other partitions.
    async fn consumer(&self, positions: &BTreeMap<i32, Offset>) -> Result<Consumer, ClientError> {
        let start = |place: &TopicPartition| match positions.get(&place.partition) {
            Some(position) => (place.clone(), Start::At(*position)),
            None => (place.clone(), Start::Earliest),
        };
        let starts: Vec<_> = self.places.iter().map(start).collect();
        Consumer::assigned(&self.client, self.consumer.clone(), &starts).await
    }

    /// Asks from time to time for the ends of the partitions, as long as records are read for the source: a partition is
    /// not idle while it holds records that the source has not given, or while the server does not answer.
    fn look_at_ends(
        &self,
        progress: Progress,
        source: mpsc::WeakSender<Given>,
    ) -> impl Future<Output = ()> + use<> {
        let (client, isolation) = (self.client.clone(), self.consumer.isolation);
        let topic = Arc::clone(&self.topic.name);
        let bounds: Option<BTreeMap<i32, Offset>> = (self.end == ServerEnd::Now).then(|| {
            let ends = self.ends.iter();
            ends.map(|(place, end)| (place.partition, *end)).collect()
        });
        async move {
            loop {
                let partitions: Vec<i32> = progress.positions.lock().keys().copied().collect();
                let place = |partition| TopicPartition {
                    topic: Arc::clone(&topic),
                    partition,
                };
                let latest: Vec<_> = partitions
                    .iter()
                    .map(|partition| (place(*partition), Start::Latest))
                    .collect();
                let answer =
                    tokio::time::timeout(ENDS_WITHIN, client.offsets(&latest, isolation)).await;
                let ends = answer.ok().and_then(Result::ok).map(|ends| {
                    let ends = ends.into_iter();
                    ends.map(|(place, end)| (place.partition, end))
                        .collect::<BTreeMap<_, _>>()
                });
                let mut has_changed = false;
                for partition in partitions {
                    let bound = bounds.as_ref().and_then(|ends| ends.get(&partition));
                    let end = ends.as_ref().and_then(|ends| ends.get(&partition));
                    // A bounded source does not read later records.
                    let end = end.map(|end| bound.map_or(*end, |bound| *bound.min(end)));
                    has_changed |= progress.partitions.note_end(partition_id(partition), end);
                }
                // While the server is away, observers see the last answer.
                if let Some(ends) = ends {
                    *progress.ends.lock() = ends;
                }
                match source.upgrade() {
                    // A source that has something to give looks by itself.
                    Some(source) if has_changed => drop(source.try_send(Given::Partitions)),
                    Some(_) => {}
                    None => return,
                }
                tokio::time::sleep(ENDS_INTERVAL).await;
            }
        }
    }

    /// Lets the consumer read in the background.
    fn start(
        &self,
        mut consumer: Consumer,
        progress: &Progress,
        fault: &Arc<OnceLock<SourceError>>,
        network: &Network,
    ) -> Feed {
        let (sender, records) = mpsc::channel(ITEMS_MAX);
        let (wishes, wished) = watch::channel(Wishes::default());
        let ends = match self.end {
            ServerEnd::Never => {
                let (share, progress, wake) = (self.share, progress.clone(), sender.downgrade());
                let accept = move |place: &TopicPartition, held: Range<Offset>| {
                    // Partitions count from zero.
                    let is_own = share.has(place.partition.unsigned_abs());
                    if is_own {
                        let partition = partition_id(place.partition);
                        progress.partitions.add(partition, held.start, held.end);
                        progress
                            .positions
                            .lock()
                            .entry(place.partition)
                            .or_insert(held.start);
                        // A source that has something to give looks by itself.
                        if let Some(wake) = wake.upgrade() {
                            let _ = wake.try_send(Given::Partitions);
                        }
                    }
                    is_own
                };
                let _runtime = network.enter();
                consumer.follow(&self.topic, accept);
                None
            }
            ServerEnd::Now => Some(self.ends.clone()),
        };
        network.spawn(self.look_at_ends(progress.clone(), sender.downgrade()));
        let reader = Reader {
            consumer,
            topic: Arc::clone(&self.topic.name),
            ends,
            fault: Arc::clone(fault),
            sender,
            wishes: wished,
            paused: BTreeSet::new(),
            turns: Arc::new(Semaphore::new(READ_MAX as usize)),
            client: self.client.clone(),
            config: self.consumer.clone(),
            partitions: progress.partitions.clone(),
        };
        network.spawn(reader.run());
        Feed {
            records,
            wishes,
            has_begun: false,
        }
    }

    /// Adds the partitions, which are read from these positions on, to `partitions`.
    fn find_partitions(&self, positions: &BTreeMap<i32, Offset>, partitions: &Partitions) {
        for (place, end) in &self.ends {
            let next = positions.get(&place.partition).copied();
            let (partition, next) = (partition_id(place.partition), next.unwrap_or_default());
            partitions.add(partition, next, *end);
            if self.end == ServerEnd::Now && next >= *end {
                partitions.end(partition);
            }
        }
    }
}

fn partition_id(partition: i32) -> PartitionId {
    // Partitions count from zero.
    PartitionId(partition.unsigned_abs().into())
}

fn by_partition(consumer: &Consumer) -> BTreeMap<i32, Offset> {
    let positions = consumer.positions().into_iter();
    positions
        .map(|(place, position)| (place.partition, position))
        .collect()
}

impl Source for ServerSource {
    type Item = ServerRecords;

    fn partitions(&self) -> SourcePartitions<'_, ServerRecords> {
        SourcePartitions::Many {
            partition_of: |records| partition_id(records.fetched.partition()),
            partitions: &self.progress.partitions,
        }
    }

    /// Counts the records of an item by its offsets.
    fn records_of(&self, item: &ServerRecords) -> u64 {
        item.records
    }

    fn positions(&self) -> Option<Arc<dyn Positions>> {
        Some(Arc::new(ServerPositions {
            stream: Arc::clone(&self.stream),
            positions: Arc::clone(&self.progress.positions),
            ends: Arc::clone(&self.progress.ends),
        }))
    }

    /// Gives at most one item.
    fn poll(
        &mut self,
        out: &mut Output<ServerRecords>,
        _budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        if let Some(fault) = self.fault.get() {
            return Err(fault.clone().into());
        }
        self.given.begin();
        let is_held = |partition| (self.progress.partitions).is_held(partition_id(partition));
        if let Some((records, has_room)) = self.held.take(self.held_bytes_max(), is_held) {
            if has_room {
                self.pause_full();
            }
            self.give(records, out);
            return Ok(SourceStatus::Ready);
        }
        loop {
            let records = &mut self.given.records;
            return match records.poll_recv(&mut Context::from_waker(waker)) {
                Poll::Ready(Some(Given::Records(records))) => {
                    self.receive(records, out);
                    Ok(SourceStatus::Ready)
                }
                Poll::Ready(Some(Given::Partitions)) => continue,
                Poll::Ready(Some(Given::Error(error))) => {
                    Err(SourceError::read(&self.stream, error).into())
                }
                Poll::Ready(None) if self.held.is_empty() => Ok(SourceStatus::End),
                Poll::Ready(None) => Ok(SourceStatus::Idle),
                Poll::Pending => Ok(SourceStatus::Idle),
            };
        }
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        // Nothing counts behind records that could not be read.
        if let Some(fault) = self.fault.get() {
            return Err(fault.clone().into());
        }
        let positions = self.progress.positions.lock().clone().into_iter();
        let positions = positions.map(|(partition, next)| {
            let epoch = self.epochs.get(&partition).copied();
            (partition, (next, epoch.unwrap_or(-1)))
        });
        let positions: saved_positions::PositionsWithEpochs = positions.collect();
        saved_positions::save(*self.reading.topic.id.as_bytes(), positions)
    }

    /// Resumes behind the records of the checkpoint, with partitions that were added since then from their beginning.
    /// If the server no longer holds the next records, the flow fails.
    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let stream = *self.reading.topic.id.as_bytes();
        let saved = saved_positions::restore_of_server(&self.stream, stream, saved)?;
        let saved_at = saved.iter();
        let next = saved_at.map(|(partition, (next, _))| (*partition, *next));
        let next: BTreeMap<i32, Offset> = next.collect();
        let Reading { client, places, .. } = &self.reading;
        let consumer = self.network.wait(async {
            held_positions::check(client, &self.stream, places, &saved).await?;
            let consumer = self.reading.consumer(&next).await;
            consumer.map_err(|error| SourceError::read(&self.stream, error))
        })?;
        let positions = by_partition(&consumer);
        (self.reading).find_partitions(&positions, &self.progress.partitions);
        *self.progress.positions.lock() = positions;
        self.epochs = saved
            .into_iter()
            .map(|(partition, (_, epoch))| (partition, epoch))
            .collect();
        self.held = HeldRecords::default();
        self.given = (self.reading).start(consumer, &self.progress, &self.fault, &self.network);
        Ok(())
    }
}

/// The records, as they lie in the chunks. Chunks that cannot be read end the flow: the source reports it when it
/// is polled next. So this belongs into the source's own stage.
impl Parts for ServerRecords {
    type Part<'a> = Record<'a>;

    fn origin(&self, record: &Record<'_>) -> Option<Origin> {
        let partition = self.fetched.partition().unsigned_abs();
        Some(origin(self.fetched.topic(), partition, record))
    }

    fn show(record: &Record<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_record(record, f)
    }

    #[inline]
    fn for_each_part(&self, mut visit: impl FnMut(&Record<'_>)) {
        let is_behind = |offset| self.until.is_some_and(|until| offset >= until);
        let read = self.fetched.each(&mut Decompressor::default(), |record| {
            if is_behind(record.offset) {
                return ControlFlow::Break(());
            }
            visit(record);
            ControlFlow::Continue(())
        });
        let stream = self.fetched.topic();
        let fault = match read {
            Ok(()) => return,
            Err(ClientError::Damaged { offsets, .. }) if is_behind(offsets.start) => return,
            // A checksum that does not match is no fault of the producer.
            Err(ClientError::Damaged { offsets, error, .. })
                if !matches!(*error, ChunkError::Crc { .. }) =>
            {
                SourceError::Chunk {
                    stream: stream.to_string(),
                    partition: self.fetched.partition().unsigned_abs(),
                    offset: offsets.start,
                    error: *error,
                }
            }
            Err(error) => SourceError::read(stream, error),
        };
        // Only the first fault counts.
        let _ = self.fault.set(fault);
    }

    fn fault(&self) -> Option<BoxError> {
        Some(self.fault.get()?.clone().into())
    }
}

/// The ends of bounded sources, by partition.
type Ends = BTreeMap<TopicPartition, Offset>;

async fn ends(
    client: &Client,
    consumer: &ConsumerConfig,
    places: &[TopicPartition],
) -> Result<Ends, ClientError> {
    let latest: Vec<_> = places
        .iter()
        .map(|place| (place.clone(), Start::Latest))
        .collect();
    let found = client.offsets(&latest, consumer.isolation).await?;
    Ok(found.into_iter().collect())
}

fn ends_of(share: &[TopicPartition], ends: &Ends) -> Ends {
    let end = |place: &TopicPartition| ends.get(place).copied().unwrap_or_default();
    share
        .iter()
        .map(|place| (place.clone(), end(place)))
        .collect()
}

/// Passes the consumer's records to a source, until all have come or the source is gone.
struct Reader {
    consumer: Consumer,
    topic: Arc<str>,
    ends: Option<Ends>,
    fault: Arc<OnceLock<SourceError>>,
    sender: mpsc::Sender<Given>,
    wishes: watch::Receiver<Wishes>,
    /// Partitions that are not read now.
    paused: BTreeSet<TopicPartition>,
    client: Client,
    config: ConsumerConfig,
    partitions: Partitions,
    /// A permit for each item that may stay in the consumer's memory.
    turns: Arc<Semaphore>,
}

impl Reader {
    async fn run(mut self) {
        let source = self.sender.clone();
        tokio::select! {
            () = self.read() => {}
            () = source.closed() => {}
        }
    }

    async fn read(&mut self) {
        let begun = self.wishes.wait_for(|wishes| wishes.has_begun).await;
        if begun.map(|_| ()).is_err() {
            return;
        }
        if let Err(error) = self.find_partitions().await {
            // The consumer runs into the same error, and reports it.
            tracing::debug!(
                "cannot look up the offsets of the partitions of {}: {error}",
                self.topic
            );
        }
        let mut open = self.open();
        loop {
            // More partitions may come where there is no end.
            if self.ends.is_some() && open.is_empty() {
                // Records in the server's memory that could not be read have to come again.
                self.wait_until_done().await;
                open = self.open();
                if open.is_empty() {
                    return;
                }
            }
            let next = tokio::select! {
                next = self.consumer.next() => next,
                changed = self.wishes.changed() => match changed {
                    Ok(()) => {
                        self.follow_wishes().await;
                        continue;
                    }
                    Err(_) => return,
                },
            };
            let Ok(turn) = Arc::clone(&self.turns).acquire_owned().await else {
                return;
            };
            let given = next.map(|fetched| {
                let until = self.end_of(fetched.place());
                if until.is_some_and(|until| fetched.next() >= until) {
                    open.remove(fetched.place());
                }
                Given::Records(ServerRecords {
                    fetched,
                    records: 0,
                    until,
                    fault: Arc::clone(&self.fault),
                    read: Some(turn),
                })
            });
            let is_over = given.is_err();
            let given = given.unwrap_or_else(Given::Error);
            if self.sender.send(given).await.is_err() || is_over {
                return;
            }
        }
    }

    /// Looks up the ends of the partitions again, which may have got records since the source was made: the watermark
    /// waits for all records that they hold when the flow begins. A bounded source still ends at the ends of its first
    /// look.
    async fn find_partitions(&self) -> Result<(), ClientError> {
        if self.ends.is_some() {
            return Ok(());
        }
        let positions = self.consumer.positions();
        let places: Vec<_> = positions.keys().cloned().collect();
        for (place, end) in ends(&self.client, &self.config, &places).await? {
            let next = positions.get(&place).copied().unwrap_or_default();
            self.partitions
                .add(partition_id(place.partition), next, end);
        }
        Ok(())
    }

    fn end_of(&self, place: &TopicPartition) -> Option<Offset> {
        let end = self.ends.as_ref()?.get(place).copied();
        Some(end.unwrap_or_default())
    }

    /// The partitions that are not read up to their ends.
    fn open(&self) -> BTreeSet<TopicPartition> {
        let positions = self.consumer.positions().into_iter();
        let is_open = |(place, next): &(TopicPartition, Offset)| {
            self.end_of(place).is_none_or(|end| *next < end)
        };
        positions.filter(is_open).map(|(place, _)| place).collect()
    }

    /// Waits until nothing that was read lies where the consumer has read it.
    async fn wait_until_done(&self) {
        // They are never closed.
        let _ = self.turns.acquire_many(READ_MAX).await;
    }

    /// The consumer looks by itself, with the next call, whether something has to come again.
    async fn follow_wishes(&mut self) {
        let place = |partition: &i32| TopicPartition {
            topic: Arc::clone(&self.topic),
            partition: *partition,
        };
        let paused: BTreeSet<_> = {
            let wishes = self.wishes.borrow_and_update();
            wishes.paused.iter().map(place).collect()
        };
        let is_pushed = self.config.delivery == DeliveryMode::Push;
        if is_pushed && !paused.is_subset(&self.paused) {
            // The subscription ends, and its memory goes with it.
            self.wait_until_done().await;
        }
        self.consumer.set_paused(paused.clone());
        self.paused = paused;
    }
}
