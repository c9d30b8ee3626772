//! A stream as the source of a flow.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use event_listener::{Event, EventListener};
use millstream_base::{Cursor, Offset, Timestamp};
use millstream_flow::{
    BoxError, Origin, Output, PartitionId, Partitions, Parts, Position, Positions, Source,
    SourcePartitions, SourceStatus, WouldWait,
};
use millstream_log::{
    Listening, Log, LogError, Next, PinnedSlice, ReadChunks, Share, Stream, Subscription,
    SubscriptionError,
};
use millstream_record::{ChunkError, Chunks, Decompressor, Filter, Record};
use parking_lot::Mutex;

use crate::letter::{origin, show_record};
use crate::saved_positions::{self, PositionsWithEpochs};
use crate::source_error::SourceError;

/// The size of one item of the source, in bytes, unless a single chunk is larger.
const SLICE_BYTES: usize = 1 << 20;

/// Whole chunks of one partition: the items of a [`StreamSource`]. A clone is another handle of the same memory.
///
/// They may be held without a time limit: held chunks pin at most a quarter of the log's pool; beyond that they are
/// copies, and all handles share the same copy.
#[derive(Debug, Clone)]
pub struct StoredChunks(Arc<Stored>);

#[derive(Debug)]
struct Stored {
    stream: Arc<str>,
    cursor: Cursor,
    /// The partition's number in the stream.
    partition: u32,
    bytes: PinnedSlice,
    fault: Arc<OnceLock<SourceError>>,
}

impl StoredChunks {
    /// Returns the position of the first one.
    pub fn cursor(&self) -> Cursor {
        self.0.cursor
    }

    pub(crate) fn partition(&self) -> u32 {
        self.0.partition
    }

    /// Returns whether they lie in place in the log's memory.
    pub fn is_in_place(&self) -> bool {
        self.0.bytes.is_in_place()
    }

    /// The latest time of a record, as the chunks' headers say; [`i64::MIN`] if there is none. For
    /// [`watermarks`](millstream_flow::Operators::watermarks).
    pub fn latest(&self) -> Timestamp {
        let chunks = Chunks::trusted(&self.0.bytes).map_while(Result::ok);
        let times = chunks
            .filter(|chunk| !chunk.header().attributes.is_control())
            .map(|chunk| chunk.header().max_timestamp);
        times.max().unwrap_or(Timestamp(i64::MIN))
    }

    #[inline]
    fn try_for_each_record(&self, mut visit: impl FnMut(&Record<'_>)) -> Result<(), SourceError> {
        let mut offset = Offset::default();
        let mut decompressor = Decompressor::default();
        // Their checksums were checked when they came in.
        let mut chunks = Chunks::trusted(&self.0.bytes);
        let read = chunks.try_for_each(|chunk| {
            let chunk = chunk?;
            offset = chunk.header().base_offset;
            if !chunk.header().attributes.is_control() {
                for record in chunk.records(&mut decompressor)? {
                    let record = record?;
                    visit(&record);
                    offset = record.offset.plus(1);
                }
            }
            offset = chunk.header().next_offset();
            Ok(())
        });
        read.map_err(|error: ChunkError| SourceError::Chunk {
            stream: self.0.stream.to_string(),
            partition: self.0.partition,
            offset,
            error,
        })
    }
}

/// The records of the chunks, in place. A chunk with malformed records ends the flow: the source reports it at its next
/// poll. Take the parts therefore in the source's own stage.
impl Parts for StoredChunks {
    type Part<'a> = Record<'a>;

    #[inline]
    fn for_each_part(&self, visit: impl FnMut(&Record<'_>)) {
        if let Err(fault) = self.try_for_each_record(visit) {
            // Only the first fault counts.
            let _ = self.0.fault.set(fault);
        }
    }

    fn origin(&self, record: &Record<'_>) -> Option<Origin> {
        Some(origin(&self.0.stream, self.0.partition, record))
    }

    fn show(record: &Record<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_record(record, f)
    }

    fn fault(&self) -> Option<BoxError> {
        Some(self.0.fault.get()?.clone().into())
    }
}

/// Reads a stream from the oldest record on, or from the position of a shared group on. It never ends by itself, unless
/// its [`Ending`] sets an end.
///
/// A single source returns the records of each partition in order; [split](StreamSource::split) ones share the work,
/// slice by slice.
pub struct StreamSource {
    shared: Arc<Shared>,
    listening: Option<Listening>,
    /// Listens for the end to become known.
    end_listener: Option<EventListener>,
}

struct Shared {
    stream: Stream,
    /// The stream's name, for the items of the source.
    name: Arc<str>,
    /// The partitions that the sources read.
    share: Share,
    partitions: Partitions,
    /// The number of the share's partitions in `partitions`. Written under the lock of `subscription`.
    partitions_found: AtomicU32,
    subscription: Mutex<Subscription>,
    /// Set by the operators that the items go to: nothing is committed any more.
    fault: Arc<OnceLock<SourceError>>,
    /// Notified when the end is known.
    end_known: Event,
}

/// Ends the sources of a stream.
#[derive(Clone)]
pub struct Ending {
    shared: Arc<Shared>,
}

impl Ending {
    /// Ends the sources at the present end of the durable records.
    pub fn end_at_durable_head(&self) {
        self.shared.subscription.lock().end_at_head();
        self.shared.end_known.notify(usize::MAX);
    }
}

impl StreamSource {
    /// A source of everything in a stream.
    pub fn new(stream: &Stream) -> Self {
        StreamSource::of_share(stream, Share::ALL)
    }

    /// A source of a share of a stream's partitions: each rank of a flow reads one of as many shares as there are ranks.
    pub fn of_share(stream: &Stream, share: Share) -> Self {
        StreamSource::with(stream, share, Subscription::of_share(stream, share))
    }

    /// Returns a source for a shared group: it resumes where the last flow of this group ended. It commits its position
    /// to the log [from time to time](millstream_flow::FlowSettings::commit_interval) and at the end of the flow, once
    /// the sinks have stored all results. So no record is lost when a flow ends early, and the last records may come
    /// again.
    ///
    /// The commit does not include the flow's states and open windows: a flow that counts all records must read all
    /// records.
    ///
    /// Several flows that read as one shared group at once divide the stream's groups among them: each ends when the
    /// others hold all that is left.
    ///
    /// # Errors
    /// When there is no such stream, or the name of the shared group is refused.
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
    ///     let flow = Flow::new("billing");
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
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let stream = log.stream(stream)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let consumer = format!("flow {number}");
        let subscription = Subscription::of_shared_group(log, &stream, application, consumer)?;
        Ok(StreamSource::with(&stream, Share::ALL, subscription))
    }

    fn with(stream: &Stream, share: Share, subscription: Subscription) -> Self {
        StreamSource {
            shared: Arc::new(Shared {
                share,
                partitions: Partitions::default(),
                partitions_found: AtomicU32::new(0),
                name: stream.name().into(),
                stream: stream.clone(),
                subscription: Mutex::new(subscription),
                fault: Arc::default(),
                end_known: Event::new(),
            }),
            listening: None,
            end_listener: None,
        }
    }

    /// A source of everything that is durable now.
    pub fn bounded(stream: &Stream) -> Self {
        let source = StreamSource::new(stream);
        source.ending().end_at_durable_head();
        source
    }

    /// Limits the source to records that match a filter. Call it before the source is split. It is evaluated where the
    /// records lie, so that others cost no more than the look.
    #[must_use]
    pub fn filtered(self, filter: Filter) -> Self {
        self.shared.subscription.lock().set_filter(filter);
        self
    }

    /// Splits the source into `instances` sources that share its partitions.
    #[must_use]
    pub fn split(self, instances: usize) -> Vec<Self> {
        let instance = || StreamSource {
            shared: Arc::clone(&self.shared),
            listening: None,
            end_listener: None,
        };
        std::iter::repeat_with(instance).take(instances).collect()
    }

    pub(crate) fn known_partitions(&self) -> &Partitions {
        &self.shared.partitions
    }

    /// Returns the handle that sets the end of the source, and of those that share its work.
    pub fn ending(&self) -> Ending {
        Ending {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Source for StreamSource {
    type Item = StoredChunks;

    fn partitions(&self) -> SourcePartitions<'_, StoredChunks> {
        SourcePartitions::Many {
            partition_of: |item| partition_id(item.0.partition),
            partitions: &self.shared.partitions,
        }
    }

    fn records_of(&self, item: &StoredChunks) -> u64 {
        let chunks = Chunks::trusted(&item.0.bytes).map_while(Result::ok);
        chunks
            .map(|chunk| u64::from(chunk.header().record_count))
            .sum()
    }

    /// The log keeps and reports the positions of a shared group.
    fn positions(&self) -> Option<Arc<dyn Positions>> {
        let shared = Arc::clone(&self.shared);
        let has_application = shared.subscription.lock().has_shared_group();
        (!has_application).then_some(shared as Arc<dyn Positions>)
    }

    fn wants_commits(&self) -> bool {
        self.shared.subscription.lock().has_shared_group()
    }

    fn close(&mut self) {
        self.shared.subscription.lock().release();
    }

    fn commit(&mut self) -> Result<(), BoxError> {
        self.shared.check_fault()?;
        let committed = self.shared.subscription.lock().commit();
        Ok(committed.map_err(|error| self.shared.error(error))?)
    }

    fn shares_position(&self) -> bool {
        true
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        self.shared.check_fault()?;
        let stream = &self.shared.stream;
        let positions = self.shared.subscription.lock().positions();
        let positions = positions.ok_or_else(|| SourceError::OfApplication {
            stream: stream.name().to_owned(),
        })?;
        let positions = (0..).zip(positions).map(|(place, next)| {
            let partition = self.shared.share.partition(place);
            // Positions that were restored are of this epoch, too, since `restore` checked them.
            let epoch = stream.partition(partition)?.watch_epoch();
            Ok((partition as i32, (next, epoch)))
        });
        let positions = positions.collect::<Result<PositionsWithEpochs, LogError>>();
        let positions = positions.map_err(|error| self.shared.error(error))?;
        saved_positions::save(*stream.uuid().as_bytes(), positions)
    }

    /// Resumes behind the records of all sources together that shared the work; reads partitions that were added since
    /// then from their beginning.
    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let next = self.shared.held_positions(saved)?;
        let mut subscription = self.shared.subscription.lock();
        self.shared.partitions_found.store(0, Ordering::Relaxed);
        let sought = subscription.seek(&next);
        Ok(
            sought.map_err(|SubscriptionError { place, error }| SourceError::Gone {
                stream: self.shared.stream.name().to_owned(),
                partition: place.map(|place| self.shared.share.partition(place)),
                error: error.into(),
            })?,
        )
    }

    /// Gives at most one slice.
    fn poll(
        &mut self,
        out: &mut Output<StoredChunks>,
        _budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        self.shared.check_fault()?;
        let mut subscription = self.shared.subscription.lock();
        let partitions = &self.shared.partitions;
        loop {
            let share = self.shared.share;
            let is_wanted = |place| !partitions.is_held(partition_id(share.partition(place)));
            let next = subscription.next_of(SLICE_BYTES, is_wanted);
            self.shared.find_partitions(&subscription);
            match next.map_err(|SubscriptionError { error, .. }| self.shared.error(error))? {
                Next::Handed(handed) => {
                    let partition = share.partition(handed.place);
                    partitions.pass(partition_id(partition), handed.next);
                    let ReadChunks { cursor, bytes, .. } = handed.chunks;
                    out.push(StoredChunks(Arc::new(Stored {
                        stream: Arc::clone(&self.shared.name),
                        cursor,
                        partition,
                        bytes: bytes.pin(),
                        fault: Arc::clone(&self.shared.fault),
                    })));
                    return Ok(SourceStatus::Ready);
                }
                Next::End => {
                    self.shared.check_partitions()?;
                    return Ok(SourceStatus::End);
                }
                Next::Nothing => {
                    let has_changed = match subscription.has_end() {
                        true => partitions.end_all(),
                        false => partitions.pass_all(),
                    };
                    if has_changed {
                        // Partitions that were held may not be any more.
                        continue;
                    }
                }
                Next::Busy => {}
            }
            let has_more = subscription
                .poll_more(&mut self.listening, waker)
                .is_ready();
            if !has_more && !hears(&mut self.end_listener, &self.shared.end_known, waker) {
                return Ok(SourceStatus::Idle);
            }
        }
    }
}

impl Positions for Shared {
    fn read(&self) -> Vec<Position> {
        let next = self.subscription.lock().positions();
        self.positions(next.unwrap_or_default())
    }

    fn try_read(&self) -> Result<Vec<Position>, WouldWait> {
        // A source that reads from the disk holds the lock.
        let next = self.subscription.try_lock().ok_or(WouldWait)?.positions();
        Ok(self.positions(next.unwrap_or_default()))
    }
}

impl Shared {
    /// Returns the positions, given the next offset of each place.
    fn positions(&self, next: Vec<Offset>) -> Vec<Position> {
        let position = |(place, next): (u32, Offset)| {
            let partition = self.share.partition(place);
            let end = self.stream.partition(partition).ok()?.last_stable_offset();
            Some(Position {
                stream: self.stream.name().to_owned(),
                partition,
                next: next.0,
                end: Some(end.0),
            })
        };
        (0..).zip(next).filter_map(position).collect()
    }
}

fn partition_id(partition: u32) -> PartitionId {
    PartitionId(partition.into())
}

/// Returns whether the event may have happened since the last look.
fn hears(listener: &mut Option<EventListener>, event: &Event, waker: &Waker) -> bool {
    let Some(listening) = listener else {
        // The next look sees events from before this call.
        *listener = Some(event.listen());
        return true;
    };
    let mut context = Context::from_waker(waker);
    let has_heard = Future::poll(Pin::new(listening), &mut context) == Poll::Ready(());
    if has_heard {
        *listener = None;
    }
    has_heard
}

impl Shared {
    /// Reads the saved positions of the places, in order. Fails if records before one of them were lost since, as far as its
    /// epoch is known.
    fn held_positions(&self, saved: &[u8]) -> Result<Vec<Offset>, SourceError> {
        let name = self.stream.name();
        let uuid = *self.stream.uuid().as_bytes();
        let positions = saved_positions::restore_of_share(name, uuid, saved, self.share)?;
        let mut next_of = Vec::with_capacity(positions.len());
        for (place, (number, (next, epoch))) in (0..).zip(positions) {
            let partition = self.share.partition(place);
            if i64::from(number) != i64::from(partition) {
                return Err(SourceError::Unreadable {
                    stream: name.to_owned(),
                    error: postcard::Error::DeserializeBadEncoding,
                });
            }
            let handle = self.stream.partition(partition);
            let handle = handle.map_err(|error| SourceError::Gone {
                stream: name.to_owned(),
                partition: Some(partition),
                error: error.into(),
            })?;
            let is_checked = epoch >= 0 && next > Offset(0);
            if is_checked && !handle.has_history(next, epoch) {
                return Err(SourceError::TakenBack {
                    stream: name.to_owned(),
                    partition,
                    offset: next,
                });
            }
            next_of.push(next);
        }
        Ok(next_of)
    }

    fn check_fault(&self) -> Result<(), SourceError> {
        match self.fault.get() {
            None => Ok(()),
            Some(fault) => Err(fault.clone()),
        }
    }

    /// Adds the partitions to `partitions` that the subscription has added since the last look, and those with records to
    /// read: none of these is idle.
    fn find_partitions(&self, subscription: &Subscription) {
        let count = subscription.partition_count();
        let found = self.partitions_found.swap(count, Ordering::Relaxed)..count;
        for place in found.chain(subscription.ready_partitions()) {
            if let Some(unread) = subscription.unread(place) {
                let partition = partition_id(self.share.partition(place));
                self.partitions.add(partition, unread.start, unread.end);
            }
        }
    }

    /// Returns whether the records read up to the end were complete.
    fn check_partitions(&self) -> Result<(), SourceError> {
        let partitions = self.stream.info().partitions.into_iter();
        let mut own = partitions.filter(|info| self.share.has(info.partition));
        match own.find_map(|info| Some((info.partition, info.fault?))) {
            None => Ok(()),
            Some((partition, fault)) => Err(SourceError::Partition {
                stream: self.stream.name().to_owned(),
                partition,
                fault,
            }),
        }
    }

    fn error(&self, error: LogError) -> SourceError {
        SourceError::read(self.stream.name(), error)
    }
}
