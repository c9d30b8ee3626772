//! The changelog of a state element in a stream of a log.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;

use millstream_base::Timestamp;
use millstream_flow::{
    BoxError, Change, Changelog, ChangelogReader, RestoreChange, Sink, SinkStart,
};
use millstream_log::{
    CLEANUP_POLICY, COMPACT, KEYED_CLOCK, KEYED_CLOCK_MIN, Log, LogError, Stream, StreamConfig,
    StreamPartition,
};

use super::changelog::{
    ChangelogError, Encode, PARTITIONS, check_stream, stream_name, text_of_key,
};
use super::changelog_clock::{ChangelogClock, lowered, raised, time_of};
use super::log_reader::LogReader;
use crate::sink::{SinkError, StreamSink};

/// As compaction has it: values that have left memory are looked up one by one.
const CHUNK_BYTES: usize = 16 << 10;

/// Appends the changes in transactions, and reads them back.
pub struct LogChangelog {
    log: Log,
    stream: Stream,
    clock: ChangelogClock,
    sink: StreamSink<Encode>,
}

impl LogChangelog {
    /// Opens the changelog of a state element; creates its stream if it is missing.
    pub fn open(log: &Log, flow: &str, element: &str) -> Result<LogChangelog, BoxError> {
        let name = stream_name(flow, element);
        let policy = (CLEANUP_POLICY.to_owned(), COMPACT.to_owned());
        let config = StreamConfig {
            streamlets: PARTITIONS,
            settings: [policy, clock_setting(KEYED_CLOCK_MIN)].into(),
            ..StreamConfig::default()
        };
        let stream = log.stream_or_create(&name, config)?;
        check_stream(&stream)?;
        // An earlier version has not given it a clock.
        let given = match time_of(clock_of(&stream).as_deref()) {
            None => set_clock(log, &name, KEYED_CLOCK_MIN),
            Some(_) => Ok(()),
        };
        let clock = ChangelogClock::of(&name, given);
        let mut sink = StreamSink::new(&stream, clock.encode())?;
        // The checkpoint fails, and the flow goes on.
        sink.fail_on_full_disk();
        sink.set_chunk_bytes(CHUNK_BYTES);
        let log = log.clone();
        Ok(LogChangelog {
            log,
            stream,
            clock,
            sink,
        })
    }

    fn check_all_decided(&self, reader: &LogReader) -> Result<(), BoxError> {
        let mut partitions = reader.partitions().iter();
        partitions.try_for_each(|partition| self.check_decided(partition))
    }

    /// Fails if a transaction of another program hides changes. Other ranks of this flow may have begun already.
    fn check_decided(&self, partition: &StreamPartition) -> Result<(), BoxError> {
        if partition.last_stable_offset() >= partition.high_watermark() {
            return Ok(());
        }
        let own = self.sink.producers_of_all_ranks();
        let mut open = partition
            .producers()
            .into_iter()
            .filter(|known| known.transaction.is_some());
        match open.find(|known| !own.contains(&known.producer)) {
            None => Ok(()),
            Some(other) => Err(ChangelogError::Undecided {
                stream: self.stream.name().to_owned(),
                partition: partition.index(),
                producer: format!("producer {}", other.producer.0),
            }
            .into()),
        }
    }

    fn check_not_aborted(&self, aborted: Option<String>) -> Result<(), BoxError> {
        match aborted {
            None => Ok(()),
            Some(transaction) => Err(ChangelogError::Aborted {
                stream: self.stream.name().to_owned(),
                transaction,
            }
            .into()),
        }
    }
}

impl Sink<Change> for LogChangelog {
    fn push(&mut self, changes: &[Change], waker: &Waker) -> Result<usize, BoxError> {
        let pushed = self.sink.push(changes, waker);
        pushed.map_err(|error| match error.downcast_ref() {
            Some(&SinkError {
                error: LogError::ChunkTooLarge { bytes, bytes_max },
                ..
            }) => ChangelogError::TooLarge {
                stream: self.stream.name().to_owned(),
                key: text_of_key(self.sink.last_key()),
                bytes,
                bytes_max: bytes_max.to_string(),
            }
            .into(),
            _ => error,
        })
    }

    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        Sink::<Change>::flush(&mut self.sink, waker)
    }

    fn waits_for_commit(&self) -> bool {
        Sink::<Change>::waits_for_commit(&self.sink)
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        Sink::<Change>::recover(&mut self.sink, start)?;
        self.check_not_aborted(self.sink.aborted(start.prepared)?)
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        Sink::<Change>::prepare(&mut self.sink, checkpoint)
    }

    /// Later checkpoints do not name the committed transactions, so a start from them would not find that one was aborted.
    fn commit(&mut self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        let names = self.sink.prepared_up_to(checkpoint);
        let is_done = Sink::<Change>::commit(&mut self.sink, checkpoint, waker)?;
        self.check_not_aborted(self.sink.aborted_of(&names)?)?;
        Ok(is_done)
    }
}

impl Changelog for LogChangelog {
    fn restore(
        &mut self,
        resumed: Option<u64>,
        each: &mut RestoreChange<'_>,
    ) -> Result<(), BoxError> {
        if resumed.is_none()
            && let Some(time) = lowered(clock_of(&self.stream).as_deref())
        {
            set_clock(&self.log, self.stream.name(), time)?;
        }
        let reader = LogReader::new(&self.stream, resumed)?;
        self.check_all_decided(&reader)?;
        reader.read_all(&AtomicBool::new(false), each)
    }

    fn reader(
        &mut self,
        resumed: Option<u64>,
    ) -> Result<Option<Arc<dyn ChangelogReader>>, BoxError> {
        let reader = LogReader::new(&self.stream, resumed)?;
        self.check_all_decided(&reader)?;
        Ok(Some(Arc::new(reader)))
    }

    fn give_up(&mut self) {
        self.sink.give_up();
    }

    fn passed(&mut self, time: i64) -> Result<(), BoxError> {
        let (log, stream) = (&self.log, &self.stream);
        self.clock.raise(stream.name(), || {
            let raised = raised(clock_of(stream).as_deref(), time);
            raised.map_or(Ok(()), |time| set_clock(log, stream.name(), time))
        });
        Ok(())
    }
}

/// Returns the setting of a stream's clock.
fn clock_of(stream: &Stream) -> Option<String> {
    stream.config().settings.remove(KEYED_CLOCK)
}

fn clock_setting(time: Timestamp) -> (String, String) {
    (KEYED_CLOCK.to_owned(), time.0.to_string())
}

fn set_clock(log: &Log, stream: &str, time: Timestamp) -> Result<(), BoxError> {
    let setting = clock_setting(time);
    let alter = |config: &mut StreamConfig| config.settings.extend([setting]);
    log.alter_stream(stream, alter)?;
    Ok(())
}
