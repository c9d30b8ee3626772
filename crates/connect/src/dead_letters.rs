//! Dead letters of flows, in streams.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use millstream_base::{Clock, SystemClock};
use millstream_client::{Client, ClientConfig, ClientError, ProducerConfig};
use millstream_flow::{BoxError, DeadLetter, DeadLetters, Sink, SinkStart};
use millstream_log::{Log, LogError, StreamConfig};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::flow_name::check_flow_name;
use crate::letter::{DEAD_LETTERS_SUFFIX, LetterToStore, chunk_bytes, encode};
use crate::network::Network;
use crate::server_streams::stream_or_create;
use crate::sink::{EncodedRecord, ServerSink, SinkError, StreamSink};

/// The longest time that a flow waits for a letter to be stored. It then fails, and resumes from its last checkpoint.
const STORED_WITHIN: Duration = Duration::from_secs(60);

/// Keeps the dead letters of a flow in the stream `<flow>.dead_letters`, or in [another](Self::in_stream), of a log or of
/// a server.
///
/// Each becomes a record. If the flow knows the record that the item was made of, key and value are that record's, so
/// that `millstream flow dead-letters replay` can give it to the flow again; the guide lists the headers, such as
/// `k.operator` (a secondary key) and `error`. Letters are durable before the flow goes on.
///
/// With checkpoints each letter is there *exactly once*, as results are: letters count once their checkpoint is
/// complete, and until then readers of committed records do not see them. Each rank then has a `DeadLetterStream` of
/// its own.
pub struct DeadLetterStream {
    stream: String,
    store: Box<dyn LetterStore>,
    writer: Mutex<Writer>,
    bell: Arc<Bell>,
    clock: SystemClock,
}

#[derive(Default)]
struct Writer {
    /// The start of the flow.
    start: Start,
    /// Open while the stream exists, which is made when there is something to put into it.
    stream: Option<OpenStream>,
    /// Counts the streams that were opened: a deleted one has taken the letters in the sink along.
    opened: u64,
}

/// The content of a [`SinkStart`], without the prepared transactions of an earlier run.
#[derive(Default)]
struct Start {
    flow: String,
    sink: String,
    rank: u32,
    ranks: u32,
    takes_checkpoints: bool,
}

/// A stream that exists.
struct OpenStream {
    sink: Box<dyn Sink<LetterToStore>>,
    /// The largest chunk that it takes, if a larger one is not refused at once but with all letters of its transaction.
    chunk_bytes_max: Option<usize>,
}

/// The log or the server that holds the stream.
trait LetterStore: Send + Sync {
    /// Opens the stream; `None` if there is no stream of this name.
    fn open(&self, stream: &str) -> Result<Option<OpenStream>, BoxError>;

    /// Makes the stream, unless another flow was faster.
    fn create(&self, stream: &str) -> Result<(), BoxError>;
}

impl DeadLetterStream {
    /// Keeps the letters of the flow of this name in a log.
    pub fn new(log: &Log, flow: &str) -> Self {
        let store = LogStore {
            log: log.clone(),
            flow: flow.to_owned(),
        };
        DeadLetterStream::of(flow, store)
    }

    /// Keeps the letters of the flow of this name at a server.
    ///
    /// # Errors
    /// When the thread for the network cannot be started.
    pub fn of_server(server: &ClientConfig, flow: &str) -> Result<Self, BoxError> {
        let store = ServerStore {
            client: Client::new(server.clone()),
            network: Network::start("millstream-dead-letters")?,
            flow: flow.to_owned(),
        };
        Ok(DeadLetterStream::of(flow, store))
    }

    fn of(flow: &str, store: impl LetterStore + 'static) -> Self {
        DeadLetterStream {
            stream: format!("{flow}{DEAD_LETTERS_SUFFIX}"),
            store: Box::new(store),
            writer: Mutex::default(),
            bell: Arc::default(),
            clock: SystemClock::default(),
        }
    }

    /// Keeps the letters in the stream of this name instead; several flows may share it, since each letter names its flow.
    #[must_use]
    pub fn in_stream(mut self, stream: &str) -> Self {
        stream.clone_into(&mut self.stream);
        self
    }

    /// The stream's name.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    fn push(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        letter: &LetterToStore,
    ) -> Result<(), BoxError> {
        let letter = std::slice::from_ref(letter);
        self.wait(writer, |sink, waker| Ok(sink.push(letter, waker)? == 1))
    }

    /// Asks the sink until it is done. In between others may use it: one that commits makes room.
    fn wait(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        mut is_done: impl FnMut(&mut dyn Sink<LetterToStore>, &Waker) -> Result<bool, BoxError>,
    ) -> Result<(), BoxError> {
        let waker = Waker::from(Arc::clone(&self.bell));
        let until = self.clock.monotonic() + STORED_WITHIN;
        let opened = writer.opened;
        loop {
            let rings = self.bell.rings();
            // Another worker may have found that it was deleted, and opened the next one.
            let is_same = writer.opened == opened;
            let open = writer.stream.as_mut().filter(|_| is_same);
            let open = open.ok_or_else(|| LogError::UnknownStream {
                name: self.stream.clone(),
            })?;
            match is_done(&mut *open.sink, &waker) {
                Ok(true) => {
                    waker.wake();
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => {
                    waker.wake();
                    if is_gone(&error) {
                        writer.stream = None;
                    }
                    return Err(error);
                }
            }
            let left = until.saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                return Err(format!(
                    "a dead letter is not stored in stream {} after {STORED_WITHIN:?}: the disk or the server does not \
                     answer, or checkpoints do not become complete; look at them, and resume the flow",
                    self.stream
                )
                .into());
            }
            MutexGuard::unlocked(writer, || self.bell.wait(rings, left));
        }
    }
}

impl DeadLetters for DeadLetterStream {
    fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
        match self.store(letters) {
            Err(error) if is_gone(&error) => self.store(letters),
            stored => stored,
        }
    }

    fn waits_for_commit(&self) -> bool {
        true
    }

    fn recover(&self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        check_flow_name(start.flow)?;
        let mut writer = self.writer.lock();
        let before = writer.start.rank;
        if start.takes_checkpoints && writer.start.takes_checkpoints && before != start.rank {
            return Err(format!(
                "ranks {before} and {} have the same DeadLetterStream; with checkpoints, make one for each rank",
                start.rank
            )
            .into());
        }
        writer.start = Start::of(start);
        writer.open(self.store.open(&self.stream)?);
        // A flow without the stream has prepared transactions, but nothing identifies them.
        let prepared = start.prepared.filter(|prepared| !prepared.is_empty());
        let start = SinkStart { prepared, ..*start };
        match &mut writer.stream {
            Some(open) => open.sink.recover(&start),
            None => Ok(()),
        }
    }

    fn prepare(&self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        self.if_there(|sink| sink.prepare(checkpoint), Vec::new())
    }

    fn commit(&self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        self.if_there(|sink| sink.commit(checkpoint, waker), true)
    }
}

impl DeadLetterStream {
    /// Asks the sink, if the stream is there. It may be deleted while the flow runs: then its letters are not wanted any
    /// more, and those to come go to a new one.
    fn if_there<T>(
        &self,
        ask: impl FnOnce(&mut dyn Sink<LetterToStore>) -> Result<T, BoxError>,
        otherwise: T,
    ) -> Result<T, BoxError> {
        let mut writer = self.writer.lock();
        let Some(open) = &mut writer.stream else {
            return Ok(otherwise);
        };
        match ask(&mut *open.sink) {
            Err(error) if is_gone(&error) => {
                writer.stream = None;
                Ok(otherwise)
            }
            asked => asked,
        }
    }

    fn store(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
        let mut writer = self.writer.lock();
        if writer.stream.is_none() {
            self.store.create(&self.stream)?;
            let mut opened = self.store.open(&self.stream)?;
            if let Some(open) = &mut opened {
                open.sink.recover(&writer.start.without_prepared())?;
            }
            writer.open(opened);
        }
        let chunk_bytes_max = writer.stream.as_ref().and_then(|open| open.chunk_bytes_max);
        for letter in letters {
            let mut letter = LetterToStore::new(letter);
            if let Some(bytes_max) = chunk_bytes_max.filter(|_| letter.holds_record) {
                letter.holds_record = chunk_bytes(&writer.start.flow, &letter)? <= bytes_max;
            }
            let pushed = self.push(&mut writer, &letter);
            let is_too_large =
                |error: &BoxError| matches!(cause(error), Some(LogError::ChunkTooLarge { .. }));
            match pushed {
                Err(error) if letter.holds_record && is_too_large(&error) => {
                    letter.holds_record = false;
                    self.push(&mut writer, &letter)?;
                }
                pushed => pushed?,
            }
        }
        self.wait(&mut writer, |sink, waker| sink.flush(waker))
    }
}

impl Writer {
    fn open(&mut self, stream: Option<OpenStream>) {
        self.stream = stream;
        self.opened += 1;
    }
}

impl Start {
    fn of(start: &SinkStart<'_>) -> Start {
        Start {
            flow: start.flow.to_owned(),
            sink: start.sink.to_owned(),
            rank: start.rank,
            ranks: start.ranks,
            takes_checkpoints: start.takes_checkpoints,
        }
    }

    fn without_prepared(&self) -> SinkStart<'_> {
        SinkStart {
            flow: &self.flow,
            sink: &self.sink,
            rank: self.rank,
            ranks: self.ranks,
            takes_checkpoints: self.takes_checkpoints,
            prepared: None,
        }
    }
}

struct LogStore {
    log: Log,
    flow: String,
}

impl LetterStore for LogStore {
    fn open(&self, stream: &str) -> Result<Option<OpenStream>, BoxError> {
        let stream = match self.log.stream(stream) {
            Ok(stream) => stream,
            Err(LogError::UnknownStream { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut sink = StreamSink::new(&stream, encoder(&self.flow))?;
        // A worker that stores a letter waits in place, so not as long as a disk may be full.
        sink.fail_on_full_disk();
        Ok(Some(OpenStream {
            sink: Box::new(sink),
            chunk_bytes_max: None,
        }))
    }

    fn create(&self, stream: &str) -> Result<(), BoxError> {
        self.log.stream_or_create(stream, StreamConfig::default())?;
        Ok(())
    }
}

struct ServerStore {
    client: Client,
    network: Network,
    flow: String,
}

impl LetterStore for ServerStore {
    fn open(&self, stream: &str) -> Result<Option<OpenStream>, BoxError> {
        let chunk_bytes_max = match self.network.wait(self.client.stream(stream)) {
            Ok(described) => Some(described.chunk_bytes_max.as_usize()),
            Err(error) if error.is_unknown_stream() => return Ok(None),
            // Apache Kafka returns it only to users with the right DescribeConfigs.
            Err(error) if error.is_denied() => None,
            Err(error) => return Err(error.into()),
        };
        let mut producer = ProducerConfig::default();
        if let Some(bytes_max) = chunk_bytes_max {
            producer.batch_bytes = producer.batch_bytes.min(bytes_max);
        }
        let (server, encode) = (self.client.config(), encoder(&self.flow));
        let sink = ServerSink::with_config(server, producer, stream, encode)?;
        Ok(Some(OpenStream {
            sink: Box::new(sink),
            chunk_bytes_max,
        }))
    }

    fn create(&self, stream: &str) -> Result<(), BoxError> {
        let config = StreamConfig::default();
        let created = stream_or_create(&self.client, stream, &config);
        Ok(self.network.wait(created)?)
    }
}

/// Returns whether the stream was deleted.
fn is_gone(error: &BoxError) -> bool {
    matches!(cause(error), Some(LogError::UnknownStream { .. }))
        || cause(error).is_some_and(ClientError::is_unknown_stream)
}

fn cause<E: std::error::Error + 'static>(error: &BoxError) -> Option<&E> {
    let of_sink = error.downcast_ref::<SinkError<E>>();
    of_sink.map(|it| &it.error).or(error.downcast_ref())
}

fn encoder(flow: &str) -> impl FnMut(&LetterToStore, &mut EncodedRecord) + Send + 'static {
    let flow = flow.to_owned();
    move |letter, record| encode(&flow, letter, record)
}

/// Wakes all workers that wait for the sink: one may have taken the result of a call that another one began.
#[derive(Default)]
struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    fn rings(&self) -> u64 {
        *self.rings.lock()
    }

    /// Waits until it has rung more often than `rings`, at most for `time_max`. May return earlier.
    fn wait(&self, rings: u64, time_max: Duration) {
        let mut present = self.rings.lock();
        if *present == rings {
            self.rung.wait_for(&mut present, time_max);
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.rings.lock() += 1;
        self.rung.notify_all();
    }
}
