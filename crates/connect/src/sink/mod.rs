//! Streams as sinks: the same sink in the process and over a server.

mod destination;
mod log;
mod server;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use millstream_base::{Clock, SystemClock, Timestamp};
use millstream_flow::{BoxError, Sink, SinkStart};
use millstream_record::{Header, TransactionEnd};

use self::destination::{Destination, Room};
pub use self::log::StreamSink;
pub use self::server::{ServerSink, ServerSinkError};
use crate::flow_transactions::FlowTransactionId;

/// Transactions of one sink that are not decided, and the one that is open. Beyond that the flow waits for
/// checkpoints to be complete.
const TRANSACTIONS_MAX: usize = 8;

/// A record in the making; its buffers are used for one record after another.
#[derive(Debug, Default)]
pub struct EncodedRecord {
    /// The record's time: the present time, unless it is set.
    pub timestamp: Timestamp,
    /// The primary key; an empty one is none, unless [`has_empty_key`](Self::has_empty_key) is set.
    pub key: Vec<u8>,
    /// Whether an empty `key` is a key of 0 bytes.
    pub has_empty_key: bool,
    /// The value.
    pub value: Vec<u8>,
    /// Whether it has no value: the record deletes its key.
    pub is_deletion: bool,
    /// The headers, name and value; those named `k.<name>` are secondary keys.
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl EncodedRecord {
    /// Begins the next one.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.timestamp = now;
        self.key.clear();
        self.has_empty_key = false;
        self.value.clear();
        self.is_deletion = false;
        self.headers.clear();
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        (self.has_empty_key || !self.key.is_empty()).then_some(&self.key)
    }

    pub(crate) fn value(&self) -> Option<&[u8]> {
        (!self.is_deletion).then_some(&self.value)
    }

    /// The headers, which most records have none of: then nothing is allocated.
    pub(crate) fn headers(&self) -> Vec<Header<'_>> {
        let headers = self.headers.iter().map(|(name, value)| Header {
            name,
            value: value.as_deref(),
        });
        headers.collect()
    }
}

/// Writes the items of a flow to a stream: `encode` turns an item into a record, and the record's key decides its
/// partition, as Kafka's own clients choose it. Records without a key fill one chunk after another of all partitions.
/// [`StreamSink`] writes to a log in the process, [`ServerSink`] to a server; all else is the same.
///
/// With checkpoints, readers of committed records see each result *exactly once*, for any operators between sources and
/// sink, on any number of ranks. The sink writes results in transactions, one for each checkpoint, which are
/// [committed](Sink::commit) as soon as the checkpoint is complete on all ranks; so readers see them about one
/// checkpoint interval later. Transactions of a killed flow stay open until it is started again, and readers wait at
/// them.
///
/// Without checkpoints each result is stored *at least once*: it is stored before sources commit.
///
/// While the disk of a log in the process is full, the sink takes no results, so the flow waits.
///
/// The sink calls `encode` again for an item that found no room. A record's timestamp is the present time, unless
/// `encode` sets it.
pub struct RecordSink<F, D: Destination> {
    stream: Arc<str>,
    encode: F,
    record: EncodedRecord,
    clock: SystemClock,
    /// The id of the sink's transactions; `None` without checkpoints.
    id: Option<FlowTransactionId>,
    /// A slot for each transaction that may be open, at most [`TRANSACTIONS_MAX`]; a single one without checkpoints.
    slots: Vec<Slot<D>>,
    /// The slot that takes records.
    open: Option<usize>,
    /// The worker that waits for a slot.
    waker: Option<Waker>,
    /// A full disk that takes no records. It is an error instead if `fails_on_full_disk`.
    full_for_records: FullDisk,
    fails_on_full_disk: bool,
    /// A full disk that takes no commits.
    full_for_commits: FullDisk,
    /// Last, so that the work of its producers ends before it.
    destination: D,
}

/// A wait for the end of a full disk.
#[derive(Default)]
struct FullDisk(Option<Room>);

/// A transaction, or room for one.
struct Slot<D: Destination> {
    producer: D::Producer,
    state: SlotState<D::Name>,
}

enum SlotState<N> {
    Free,
    /// Takes records.
    Open,
    /// Waits for its checkpoint to be complete.
    Prepared {
        checkpoint: u64,
        names: Vec<N>,
    },
    /// Is aborted before the slot is free.
    Failed,
}

/// An error because of which a flow cannot write to a stream.
#[derive(Clone, thiserror::Error)]
#[error("stream {stream}: {error}")]
pub struct SinkError<E> {
    /// The stream.
    pub stream: String,
    /// The reason.
    pub error: E,
}

millstream_base::debug_as_display!(SinkError<E>);

impl<F, D: Destination> RecordSink<F, D> {
    fn of(stream: &str, encode: F, destination: D) -> Self {
        RecordSink {
            stream: stream.into(),
            encode,
            record: EncodedRecord::default(),
            clock: SystemClock::default(),
            id: None,
            slots: Vec::new(),
            open: None,
            waker: None,
            full_for_records: FullDisk::default(),
            fails_on_full_disk: false,
            full_for_commits: FullDisk::default(),
            destination,
        }
    }

    /// Returns the key of the record that was encoded last.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.record.key
    }

    /// Makes a full disk an error for records. Commits still wait: the sink never gives up transactions that a checkpoint names.
    pub(crate) fn fail_on_full_disk(&mut self) {
        self.fails_on_full_disk = true;
    }

    /// Gives up the open transaction after an error: it is aborted before another one opens, so its records never
    /// count, and the sink takes records again.
    pub(crate) fn give_up(&mut self) {
        if self.id.is_some()
            && let Some(open) = self.open.take()
        {
            self.slots[open].state = SlotState::Failed;
        }
    }

    /// Returns a transaction that was aborted by force although a checkpoint names it, as far as that is known. Of a
    /// server, ask before [`recover`](Sink::recover), which begins later ones.
    pub(crate) fn aborted(&self, prepared: Option<&[u8]>) -> Result<Option<String>, BoxError> {
        self.aborted_of(&self.named(prepared)?)
    }

    /// As [`aborted`](Self::aborted), of transactions with these names.
    pub(crate) fn aborted_of(&self, names: &[D::Name]) -> Result<Option<String>, BoxError> {
        let aborted = self.destination.aborted(names);
        aborted.map_err(|error| sink_error(&self.stream, error))
    }

    /// Returns the names of the transactions that a commit of this checkpoint ends.
    pub(crate) fn prepared_up_to(&self, checkpoint: u64) -> Vec<D::Name> {
        let names = self.slots.iter().flat_map(|slot| match &slot.state {
            SlotState::Prepared {
                checkpoint: of,
                names,
            } if *of <= checkpoint => &names[..],
            _ => &[],
        });
        names.cloned().collect()
    }

    /// Reads the names of transactions in a checkpoint.
    fn named(&self, prepared: Option<&[u8]>) -> Result<Vec<D::Name>, BoxError> {
        let Some(prepared) = prepared else {
            return Ok(Vec::new());
        };
        postcard::from_bytes(prepared).map_err(|error| {
            let stream = &self.stream;
            format!(
                "stream {stream}: the checkpoint names its transactions in another way ({error}): resume the flow with \
                 the program that took the checkpoint, or begin anew"
            )
            .into()
        })
    }

    /// Returns the slot that takes records; `None` while all are under way.
    fn open(&mut self, waker: &Waker) -> Result<Option<usize>, D::Error> {
        let Some(id) = self.id.as_ref().filter(|_| self.open.is_none()) else {
            return Ok(self.open);
        };
        for slot in &mut self.slots {
            if matches!(slot.state, SlotState::Failed) {
                let abort = TransactionEnd::Abort;
                if !self.destination.end(&mut slot.producer, abort, waker)? {
                    return Ok(None);
                }
                slot.state = SlotState::Free;
            }
        }
        let is_free = |slot: &Slot<D>| matches!(slot.state, SlotState::Free);
        let mut free = self.slots.iter().position(is_free);
        if free.is_none() && self.slots.len() < TRANSACTIONS_MAX {
            let name = id.slot(self.slots.len());
            if let Some(producer) = self.destination.producer(name, waker)? {
                free = Some(self.slots.len());
                self.slots.push(Slot::free(producer));
            }
        }
        match free {
            Some(free) => {
                let slot = &mut self.slots[free];
                self.destination.begin(&slot.producer)?;
                slot.state = SlotState::Open;
                self.open = Some(free);
            }
            None => self.waker = Some(waker.clone()),
        }
        Ok(self.open)
    }

    /// Takes items, as many as there is room for. An error belongs to the first item that is not taken.
    fn take<T>(&mut self, items: &[T], waker: &Waker) -> (usize, Result<(), D::Error>)
    where
        F: FnMut(&T, &mut EncodedRecord),
    {
        let open = match self.open(waker) {
            Ok(Some(open)) => open,
            Ok(None) => return (0, Ok(())),
            Err(error) => return (0, Err(error)),
        };
        let producer = &mut self.slots[open].producer;
        let destination = &mut self.destination;
        match destination.has_room(producer, waker) {
            Ok(true) => {}
            Ok(false) => return (0, Ok(())),
            Err(error) => return (0, Err(error)),
        }
        for (taken, item) in items.iter().enumerate() {
            self.record.begin(self.clock.now());
            (self.encode)(item, &mut self.record);
            match destination.offer(producer, &self.record, waker) {
                Ok(true) => {}
                Ok(false) => return (taken, Ok(())),
                Err(error) => return (taken, Err(error)),
            }
        }
        (items.len(), Ok(()))
    }

    /// Begins to wait if the error is a full disk. The caller goes on as if there were no room.
    fn wait_for_disk(&mut self, error: D::Error, waker: &Waker) -> Result<(), BoxError> {
        let room = self.destination.room(&error);
        match room.filter(|_| !self.fails_on_full_disk) {
            Some(room) => self.full_for_records.begin(room, waker),
            None => return Err(sink_error(&self.stream, error)),
        }
        Ok(())
    }
}

impl FullDisk {
    /// Begins to wait; `waker` is woken when the disk may have room.
    fn begin(&mut self, room: Room, waker: &Waker) {
        self.0 = Some(room);
        if !self.is_on(waker) {
            waker.wake_by_ref();
        }
    }

    /// Whether the disk is still full; then `waker` is woken when it may have room.
    fn is_on(&mut self, waker: &Waker) -> bool {
        let Some(room) = &mut self.0 else {
            return false;
        };
        if room.as_mut().poll(&mut Context::from_waker(waker)) == Poll::Ready(()) {
            self.0 = None;
        }
        self.0.is_some()
    }
}

impl<T, F, D> Sink<T> for RecordSink<F, D>
where
    F: FnMut(&T, &mut EncodedRecord) + Send + 'static,
    D: Destination,
{
    fn push(&mut self, items: &[T], waker: &Waker) -> Result<usize, BoxError> {
        if self.full_for_records.is_on(waker) {
            return Ok(0);
        }
        let (taken, result) = self.take(items, waker);
        if let Err(error) = result {
            self.wait_for_disk(error, waker)?;
        }
        Ok(taken)
    }

    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        let Some(open) = self.open else {
            return Ok(true);
        };
        if self.full_for_records.is_on(waker) {
            return Ok(false);
        }
        let producer = &mut self.slots[open].producer;
        match self.destination.flush(producer, waker) {
            Ok(is_flushed) => Ok(is_flushed),
            Err(error) => self.wait_for_disk(error, waker).map(|()| false),
        }
    }

    fn waits_for_commit(&self) -> bool {
        true
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        let fault = |error| sink_error(&self.stream, error);
        if !start.takes_checkpoints {
            self.slots = vec![Slot::free(self.destination.plain().map_err(fault)?)];
            self.open = Some(0);
            return Ok(());
        }
        let names = self.named(start.prepared)?;
        if let Some(aborted) = self.destination.aborted(&names).map_err(fault)? {
            let stream = &self.stream;
            tracing::warn!(
                "stream {stream}: {aborted} was aborted by force: the results in it are lost"
            );
        }
        let id = FlowTransactionId::of(start);
        let recovered = self.destination.recover(&id, start.ranks, names);
        self.slots = recovered
            .map_err(fault)?
            .into_iter()
            .map(Slot::free)
            .collect();
        self.open = None;
        self.id = Some(id);
        Ok(())
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        if self.id.is_none() {
            return Ok(Vec::new());
        }
        if let Some(open) = self.open {
            let slot = &mut self.slots[open];
            let names = self.destination.names(&slot.producer);
            let names = names.map_err(|error| sink_error(&self.stream, error))?;
            // A transaction without records stays open.
            if !names.is_empty() {
                slot.state = SlotState::Prepared { checkpoint, names };
                self.open = None;
            }
        }
        let names = self.slots.iter().flat_map(|slot| match &slot.state {
            SlotState::Prepared { names, .. } => &names[..],
            SlotState::Free | SlotState::Open | SlotState::Failed => &[],
        });
        Ok(postcard::to_stdvec(&names.collect::<Vec<_>>())?)
    }

    fn commit(&mut self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        if self.full_for_commits.is_on(waker) {
            return Ok(false);
        }
        let mut is_done = true;
        for slot in &mut self.slots {
            match slot.state {
                SlotState::Prepared { checkpoint: of, .. } if of <= checkpoint => {}
                _ => continue,
            }
            let commit = TransactionEnd::Commit;
            match self.destination.end(&mut slot.producer, commit, waker) {
                Ok(true) => {
                    slot.state = SlotState::Free;
                    self.waker.take().inspect(Waker::wake_by_ref);
                }
                Ok(false) => is_done = false,
                Err(error) => match self.destination.room(&error) {
                    Some(room) => {
                        self.full_for_commits.begin(room, waker);
                        return Ok(false);
                    }
                    None => return Err(sink_error(&self.stream, error)),
                },
            }
        }
        Ok(is_done)
    }
}

impl<D: Destination> Slot<D> {
    fn free(producer: D::Producer) -> Self {
        Slot {
            producer,
            state: SlotState::Free,
        }
    }
}

fn sink_error<E: std::error::Error + Send + Sync + 'static>(stream: &str, error: E) -> BoxError {
    let stream = stream.to_owned();
    SinkError { stream, error }.into()
}
