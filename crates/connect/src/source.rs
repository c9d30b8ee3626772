//! A stream as the source of a flow.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use event_listener::{Event, EventListener};
use millstream_base::{Cursor, LaneIndex};
use millstream_flow::{BoxError, Output, Parts, Source, SourceStatus};
use millstream_log::{From, LaneReader, Log, LogError, ReadChunks, Stream};
use millstream_record::{ChunkError, Record, Scratch};
use parking_lot::Mutex;

use crate::application::ApplicationReader;

/// How much one item of the source holds, unless a single chunk is larger.
pub(crate) const SLICE_BYTES: usize = 1 << 20;

/// Whole chunks of one lane, in place: what a [`StreamSource`] gives.
#[derive(Debug, Clone)]
pub struct StoredChunks {
    chunks: ReadChunks,
    fault: Arc<OnceLock<SourceError>>,
}

/// Why a flow cannot go on reading a stream.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SourceError {
    /// The log does not give what it holds.
    #[error("stream {stream}: {error}")]
    Log {
        /// The stream.
        stream: String,
        /// What the log says.
        error: LogError,
    },
    /// A lane does not hold all that it should, or cannot be written any more.
    #[error("stream {stream}, partition {partition}: {fault}")]
    Lane {
        /// The stream.
        stream: String,
        /// The lane's number among all of the stream.
        partition: u32,
        /// Why.
        fault: String,
    },
    /// The records of a chunk are not what its header promises.
    #[error("chunk at {cursor}, lane {lane}: {error}; it was stored as its producer sent it")]
    Chunk {
        /// Where the slice begins that holds the chunk.
        cursor: Cursor,
        /// The lane.
        lane: LaneIndex,
        /// What is wrong.
        error: ChunkError,
    },
}

impl StoredChunks {
    /// Where they lie.
    pub fn stored(&self) -> &ReadChunks {
        &self.chunks
    }

    #[inline]
    fn try_for_each_record(&self, mut visit: impl FnMut(&Record<'_>)) -> Result<(), SourceError> {
        let ReadChunks { cursor, lane, .. } = self.chunks;
        let malformed = |error| SourceError::Chunk {
            cursor,
            lane,
            error,
        };
        let mut scratch = Scratch::default();
        for chunk in self.chunks.chunks() {
            let chunk = chunk.map_err(malformed)?;
            for record in chunk.records(&mut scratch).map_err(malformed)? {
                visit(&record.map_err(malformed)?);
            }
        }
        Ok(())
    }
}

/// The records, as they lie in the chunks. Chunks whose records are malformed end the flow: the source
/// reports it when it is polled next. So this belongs into the source's own stage.
impl Parts for StoredChunks {
    type Part<'a> = Record<'a>;

    #[inline]
    fn for_each_part(&self, visit: impl FnMut(&Record<'_>)) {
        if let Err(fault) = self.try_for_each_record(visit) {
            // Only the first fault counts.
            let _ = self.fault.set(fault);
        }
    }
}

/// Reads a stream from the oldest record on, or on from where an application is. Goes on for ever,
/// unless its [`Ending`] says where to end.
///
/// One alone gives the records of each lane in order; [split](StreamSource::split) ones share the
/// work, slice by slice.
pub struct StreamSource {
    shared: Arc<Shared>,
    /// Three, since there may be more to read, or memory to read it into, or nothing more to come.
    /// Listening ends when one hears.
    listeners: Option<[EventListener; 3]>,
}

struct Shared {
    stream: Stream,
    state: Mutex<State>,
    /// Set by the operators that the items go to: nothing is committed any more.
    fault: Arc<OnceLock<SourceError>>,
    /// Notified when the end is known.
    end_known: Event,
}

struct State {
    reader: Reader,
    /// By partition: where to end.
    ends: Option<Vec<Cursor>>,
}

enum Reader {
    Everything(EverythingReader),
    Application(ApplicationReader),
}

/// All lanes from the oldest record on.
#[derive(Default)]
struct EverythingReader {
    /// By partition.
    lanes: Vec<LaneReader>,
    turn: usize,
}

/// Ends the sources of a stream.
#[derive(Clone)]
pub struct Ending {
    shared: Arc<Shared>,
}

impl Ending {
    /// The sources end behind what is durable now.
    pub fn end_at_durable_head(&self) {
        let ends = self.shared.stream.reader(From::Latest).cursors();
        self.shared.state.lock().ends = Some(ends);
        self.shared.end_known.notify(usize::MAX);
    }
}

impl StreamSource {
    /// A source of everything in a stream.
    pub fn new(stream: &Stream) -> Self {
        StreamSource::with(stream, Reader::Everything(EverythingReader::default()))
    }

    /// A source of what an application has not done yet: it reads on where the last flow ended that
    /// read as this application. How far it is, is kept in the log
    /// [from time to time](millstream_flow::FlowSettings::commit_interval) and at the end of the flow,
    /// when the sinks have everything for good. So nothing is lost when a flow ends early, and the last
    /// records may come again.
    ///
    /// What a flow keeps in its states and open windows is not kept with it: a flow that counts
    /// everything reads everything.
    ///
    /// Several flows that read as one application at once share the stream's groups: each ends when
    /// nothing is left that the others do not have.
    ///
    /// # Errors
    /// When there is no such stream, or the application's name is refused.
    ///
    /// ```
    /// use millstream_base::{ProducerId, Timestamp};
    /// use millstream_connect::{StreamProducer, StreamSource};
    /// use millstream_flow::{Emit, Flow};
    /// use millstream_log::{Log, LogConfig, StreamConfig};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let log = Log::open(LogConfig::new(dir.path()))?;
    /// let orders = log.create_stream("orders", StreamConfig::default())?;
    /// let mut producer = StreamProducer::new(&orders, ProducerId::NONE)?;
    /// for (order, due) in [("one", 1), ("two", 1), ("three", 1), ("none", 0)] {
    ///     producer.push(Timestamp(0), None, Some(order.as_bytes()), &[])?;
    ///     producer.flush()?;
    ///
    ///     let source = StreamSource::of_application(&log, "orders", "billing")?;
    ///     source.ending().end_at_durable_head();
    ///     let mut flow = Flow::new("billing");
    ///     let billed = flow.partial::<u64>("billed");
    ///     flow.source("orders", source)
    ///         .each(|order, emit: &mut Emit<u64>| {
    ///             emit(&u64::from(order.value != Some(b"none")));
    ///             Ok(())
    ///         })
    ///         .fold_local(&billed, |billed, count| *billed += count);
    ///     flow.run()?.join()?;
    ///     assert_eq!(billed.merged(), due);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_application(
        log: &Log,
        stream: &str,
        application: &str,
    ) -> Result<StreamSource, LogError> {
        let stream = log.stream(stream)?;
        let reader = ApplicationReader::new(log, &stream, application)?;
        Ok(StreamSource::with(&stream, Reader::Application(reader)))
    }

    fn with(stream: &Stream, reader: Reader) -> Self {
        let state = State { reader, ends: None };
        StreamSource {
            shared: Arc::new(Shared {
                stream: stream.clone(),
                state: Mutex::new(state),
                fault: Arc::default(),
                end_known: Event::new(),
            }),
            listeners: None,
        }
    }

    /// A source of everything that is durable now.
    pub fn bounded(stream: &Stream) -> Self {
        let source = StreamSource::new(stream);
        source.ending().end_at_durable_head();
        source
    }

    /// So many sources that share the work.
    #[must_use]
    pub fn split(self, instances: usize) -> Vec<Self> {
        let instance = || StreamSource {
            shared: Arc::clone(&self.shared),
            listeners: None,
        };
        std::iter::repeat_with(instance).take(instances).collect()
    }

    /// Tells the source, and those that share its work, where to end.
    pub fn ending(&self) -> Ending {
        Ending {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Source for StreamSource {
    type Item = StoredChunks;

    fn wants_commits(&self) -> bool {
        matches!(self.shared.state.lock().reader, Reader::Application(_))
    }

    fn close(&mut self) {
        if let Reader::Application(reader) = &mut self.shared.state.lock().reader {
            reader.release();
        }
    }

    fn commit(&mut self) -> Result<(), BoxError> {
        self.shared.check_fault()?;
        match &mut self.shared.state.lock().reader {
            Reader::Everything(_) => Ok(()),
            Reader::Application(reader) => {
                Ok(reader.commit().map_err(|error| self.shared.error(error))?)
            }
        }
    }

    /// Gives at most one slice.
    fn poll(
        &mut self,
        out: &mut Output<StoredChunks>,
        _budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        self.shared.check_fault()?;
        loop {
            match self
                .shared
                .read()
                .map_err(|error| self.shared.error(error))?
            {
                Read::Chunks(chunks) => {
                    out.push(StoredChunks {
                        chunks,
                        fault: Arc::clone(&self.shared.fault),
                    });
                    return Ok(SourceStatus::Ready);
                }
                Read::End => {
                    self.shared.check_lanes()?;
                    return Ok(SourceStatus::End);
                }
                Read::Busy | Read::Nothing => {}
            }
            // No event is missed: what comes after the listening began wakes, and what came before
            // is seen by the next look.
            match &mut self.listeners {
                None => {
                    let Shared {
                        stream, end_known, ..
                    } = &*self.shared;
                    self.listeners = Some([
                        stream.listen(),
                        stream.listen_for_memory(),
                        end_known.listen(),
                    ]);
                }
                Some(listeners) => {
                    let mut context = Context::from_waker(waker);
                    let mut hears = |listener| {
                        Future::poll(Pin::new(listener), &mut context) == Poll::Ready(())
                    };
                    if !listeners.iter_mut().any(&mut hears) {
                        return Ok(SourceStatus::Idle);
                    }
                    self.listeners = None;
                }
            }
        }
    }
}

/// Whether there may be something between two places of a lane.
pub(crate) fn is_before(place: &Cursor, other: &Cursor) -> bool {
    (place.group, place.position) < (other.group, other.position)
}

/// What of the chunks, which reach beyond `end`, lies before it. An end lies between two chunks.
pub(crate) fn cut(mut chunks: ReadChunks, end: &Cursor) -> Option<ReadChunks> {
    if !is_before(&chunks.cursor, end) {
        return None;
    }
    let left = usize::try_from(end.position.0 - chunks.cursor.position.0).ok()?;
    chunks.bytes = chunks.bytes.slice(0..left);
    chunks.next = *end;
    Some(chunks)
}

pub(crate) enum Read {
    Chunks(ReadChunks),
    /// Other readers hold all memory for catch-up reads.
    Busy,
    Nothing,
    End,
}

impl EverythingReader {
    /// Reads on in the next lane that has something.
    fn read(&mut self, stream: &Stream, ends: Option<&[Cursor]>) -> Result<Read, LogError> {
        let EverythingReader { lanes, turn } = self;
        if lanes.len() < stream.lane_count() as usize {
            let cursors = stream.reader(From::Earliest).cursors();
            for cursor in cursors.into_iter().skip(lanes.len()) {
                let lane = stream.partition(lanes.len() as u32)?;
                lanes.push(lane.reader(cursor));
            }
        }
        let mut is_at_end = ends.is_some();
        for _ in 0..lanes.len() {
            *turn = (*turn + 1) % lanes.len();
            let lane = &mut lanes[*turn];
            let mut end = None;
            if let Some(ends) = ends {
                // A lane that was added since then has nothing from before.
                let Some(at) = ends.get(*turn).filter(|at| is_before(&lane.cursor(), at)) else {
                    continue;
                };
                end = Some(at);
            }
            match lane.read(SLICE_BYTES) {
                Ok(Some(chunks)) => match end {
                    Some(end) if is_before(end, &chunks.next) => {
                        if let Some(chunks) = cut(chunks, end) {
                            return Ok(Read::Chunks(chunks));
                        }
                    }
                    _ => return Ok(Read::Chunks(chunks)),
                },
                // It may have gone on to the end, though.
                Ok(None) => is_at_end &= end.is_some_and(|end| !is_before(&lane.cursor(), end)),
                Err(LogError::ReadBudget) => return Ok(Read::Busy),
                Err(error) => return Err(error),
            }
        }
        Ok(match is_at_end {
            true => Read::End,
            false => Read::Nothing,
        })
    }
}

impl Shared {
    fn read(&self) -> Result<Read, LogError> {
        let mut state = self.state.lock();
        let State { reader, ends } = &mut *state;
        match reader {
            Reader::Everything(reader) => reader.read(&self.stream, ends.as_deref()),
            Reader::Application(reader) => reader.read(ends.as_deref()),
        }
    }

    fn check_fault(&self) -> Result<(), SourceError> {
        match self.fault.get() {
            None => Ok(()),
            Some(fault) => Err(fault.clone()),
        }
    }

    /// Whether what was read up to the end was everything.
    fn check_lanes(&self) -> Result<(), SourceError> {
        let mut lanes = self.stream.info().lanes.into_iter();
        match lanes.find_map(|lane| Some((lane.partition, lane.fault?))) {
            None => Ok(()),
            Some((partition, fault)) => Err(SourceError::Lane {
                stream: self.stream.name().to_owned(),
                partition,
                fault,
            }),
        }
    }

    fn error(&self, error: LogError) -> SourceError {
        SourceError::Log {
            stream: self.stream.name().to_owned(),
            error,
        }
    }
}
