//! Reads the changes of a state element in a stream of a log: all of them, or those of single keys.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{iter, thread};

use millstream_base::{KeyRange, Offset, partition_of_key};
use millstream_flow::{BoxError, ChangelogReader, RestoreChange, ValuePage};
use millstream_log::{KeyEntry, KeyVersion, LogError, Next, Stream, StreamPartition, Subscription};
use millstream_record::{Chunks, Decompressor};

use super::changelog::{Restoring, Unread, is_large, of_stream};

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// The pause before the next try while other readers hold all memory for reads, …
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// … and the number of tries to read a key.
const BUSY_TRIES: u32 = 10_000;

/// The most keys that a thread looks up at once, …
const KEYS_OF_JOB: usize = 16;

/// … and the most threads: a disk answers many reads together sooner than one after the other.
const THREADS_MAX: usize = 16;

/// The places of some keys of a partition.
type Job<'a> = (&'a Readable, &'a [usize]);

/// Values with the places of their keys.
type Values = Vec<(usize, Option<Vec<u8>>)>;

/// A reader of the changes that were committed when it was made.
pub struct LogReader {
    stream: Stream,
    partitions: Vec<Readable>,
    /// The checkpoint that the flow resumes from, if it does.
    resumed: Option<u64>,
}

/// A partition, up to the last stable offset when the reader was made. Changes behind it are of this run.
struct Readable {
    partition: StreamPartition,
    end: Offset,
}

impl LogReader {
    /// Makes a reader, before this run of the flow appends on any rank.
    ///
    /// # Errors
    /// When first records were removed.
    pub fn new(stream: &Stream, resumed: Option<u64>) -> Result<LogReader, BoxError> {
        let partitions = (0..stream.partition_count()).map(|partition| {
            let partition = stream.partition(partition)?;
            let end = partition.last_stable_offset();
            Ok(Readable { partition, end })
        });
        let partitions = partitions.collect::<Result<_, LogError>>()?;
        let reader = LogReader {
            stream: stream.clone(),
            partitions,
            resumed,
        };
        for partition in reader.partitions() {
            let earliest = partition.earliest_offset();
            reader
                .restoring(partition.index())
                .check_start(earliest.0)?;
        }
        Ok(reader)
    }

    pub fn partitions(&self) -> impl Iterator<Item = &StreamPartition> {
        self.partitions.iter().map(|it| &it.partition)
    }

    fn restoring(&self, partition: u32) -> Restoring<'_> {
        Restoring {
            stream: self.stream.name(),
            partition,
            partitions: self.partitions.len(),
            resumed: self.resumed,
        }
    }

    fn read_partition(
        &self,
        Readable { partition, end }: &Readable,
        is_stopped: &AtomicBool,
        each: &mut RestoreChange<'_>,
        unread: &mut Unread,
    ) -> Result<(), BoxError> {
        let restoring = self.restoring(partition.index());
        let start = (partition.clone(), partition.earliest_offset());
        let mut subscription = Subscription::of_partitions([start]);
        subscription.end_at_head();
        let mut decompressor = Decompressor::default();
        let mut next = partition.earliest_offset();
        while next < *end && !is_stopped.load(Ordering::Relaxed) {
            let handed = match subscription.next(READ_BYTES)? {
                Next::Handed(handed) => handed,
                Next::End => return Ok(()),
                Next::Busy | Next::Nothing => {
                    thread::sleep(BUSY_PAUSE);
                    continue;
                }
            };
            next = handed.next;
            for chunk in Chunks::trusted(&handed.chunks.bytes) {
                let chunk = chunk?;
                if chunk.header().attributes.is_control() {
                    continue;
                }
                for record in chunk.records(&mut decompressor)? {
                    let record = record?;
                    // The first chunk may begin with deleted records.
                    if record.offset >= handed.from && record.offset < *end {
                        restoring.restore(&record, each, unread)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        if let [key] = keys {
            // The log keeps a copy in memory for the next look-up.
            let readable = &self.partitions[partition_of_key(key, self.partitions.len())];
            let version = again(|| readable.partition.get(key))?;
            return Ok(vec![self.value(readable, version)?]);
        }
        let mut by_partition: Vec<Vec<usize>> = vec![Vec::new(); self.partitions.len()];
        for (n, key) in keys.iter().enumerate() {
            by_partition[partition_of_key(key, self.partitions.len())].push(n);
        }
        let jobs = iter::zip(&self.partitions, &by_partition);
        let jobs = jobs.flat_map(|(readable, places)| {
            let parts = places.chunks(KEYS_OF_JOB);
            parts.map(move |part| (readable, part))
        });
        let jobs: Vec<Job<'_>> = jobs.collect();
        let mut values = vec![None; keys.len()];
        for (n, value) in self.run_all(&jobs, keys)? {
            values[n] = value;
        }
        Ok(values)
    }

    /// Runs the jobs in several threads.
    fn run_all(&self, jobs: &[Job<'_>], keys: &[Vec<u8>]) -> Result<Values, BoxError> {
        let next = AtomicUsize::new(0);
        let run = || {
            let mut values = Values::new();
            while let Some((readable, places)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let keys: Vec<&[u8]> = places.iter().map(|n| &keys[*n][..]).collect();
                for (n, version) in iter::zip(*places, newest(&readable.partition, &keys)?) {
                    values.push((*n, self.value(readable, version)?));
                }
            }
            Ok(values)
        };
        thread::scope(|scope| {
            // Few keys of many partitions are not worth a thread for each.
            let helpers = 1..keys.len().div_ceil(KEYS_OF_JOB).min(THREADS_MAX);
            // This thread does what the system has no threads for.
            let helpers = helpers.filter_map(|_| {
                let thread = thread::Builder::new().name("millstream-get".to_owned());
                thread.spawn_scoped(scope, run).ok()
            });
            let helpers: Vec<_> = helpers.collect();
            let mut all: Result<Values, BoxError> = run();
            for helper in helpers {
                let values = helper.join().unwrap_or_else(|panic| resume_unwind(panic));
                all = all.and_then(|mut all| {
                    all.extend(values?);
                    Ok(all)
                });
            }
            all
        })
    }

    fn value(
        &self,
        Readable { partition, end }: &Readable,
        version: Option<KeyVersion>,
    ) -> Result<Option<Vec<u8>>, BoxError> {
        let Some(version) = version else {
            return Ok(None);
        };
        self.check(partition, *end, &version)?;
        Ok(Some(version.value.to_vec()))
    }

    /// Checks a change that was there when the reader was made. Later ones are of this run.
    fn check(
        &self,
        partition: &StreamPartition,
        end: Offset,
        version: &KeyVersion,
    ) -> Result<(), BoxError> {
        if version.offset < end {
            let headers = version.headers.iter();
            let headers = headers.map(|it| (&it.name[..], it.value.as_deref()));
            let restoring = self.restoring(partition.index());
            restoring.check_checkpoint(version.offset, headers)?;
        }
        Ok(())
    }

    fn range_of_all(&self, range: &KeyRange, limit: usize) -> Result<ValuePage, BoxError> {
        let mut page = ValuePage::default();
        for Readable { partition, end } in &self.partitions {
            let scan = again(|| partition.scan(range, limit, READ_BYTES))?;
            for KeyEntry { key, version } in scan.entries {
                self.check(partition, *end, &version)?;
                page.values.push((key, version.value.to_vec()));
            }
            // The first key that one of the partitions has left out begins the next page.
            page.next = match (page.next, scan.next) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        page.values.sort_unstable();
        let is_behind =
            |(key, _): &(Vec<u8>, _)| page.next.as_ref().is_some_and(|next| key >= next);
        let mut len = page.values.len();
        len -= page
            .values
            .iter()
            .rev()
            .take_while(|it| is_behind(it))
            .count();
        if len > limit {
            page.next = Some(page.values[limit].0.clone());
            len = limit;
        }
        page.values.truncate(len);
        Ok(page)
    }
}

/// Reads the newest versions of keys; half of them at once while there is no memory to read all.
fn newest(
    partition: &StreamPartition,
    keys: &[&[u8]],
) -> Result<Vec<Option<KeyVersion>>, LogError> {
    match partition.get_many(keys) {
        Err(LogError::ReadBudget | LogError::DecompressionBusy { .. }) if keys.len() > 1 => {
            let (first, last) = keys.split_at(keys.len() / 2);
            let mut versions = newest(partition, first)?;
            versions.extend(newest(partition, last)?);
            Ok(versions)
        }
        Err(LogError::ReadBudget | LogError::DecompressionBusy { .. }) => {
            again(|| partition.get_many(keys))
        }
        read => read,
    }
}

/// Reads keys, again while there is no memory to read them.
fn again<R>(read: impl Fn() -> Result<R, LogError>) -> Result<R, LogError> {
    for _ in 1..BUSY_TRIES {
        match read() {
            Err(LogError::ReadBudget | LogError::DecompressionBusy { .. }) => {
                thread::sleep(BUSY_PAUSE);
            }
            done => return done,
        }
    }
    read()
}

impl ChangelogReader for LogReader {
    fn is_large(&self) -> bool {
        let (mut records, mut bytes) = (0, 0);
        for Readable { partition, end } in &self.partitions {
            let info = partition.info();
            records += end.0.saturating_sub(info.earliest.0);
            bytes += info.bytes;
        }
        is_large(records, bytes)
    }

    fn get(
        &self,
        keys: &[Vec<u8>],
        _is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        let values = self.get_all(keys);
        values.map_err(|error| of_stream(self.stream.name(), error))
    }

    fn read_all(
        &self,
        is_stopped: &AtomicBool,
        each: &mut RestoreChange<'_>,
    ) -> Result<(), BoxError> {
        let mut unread = Unread::default();
        for partition in &self.partitions {
            let read = self.read_partition(partition, is_stopped, each, &mut unread);
            read.map_err(|error| of_stream(self.stream.name(), error))?;
        }
        match is_stopped.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Ok(unread.check()?),
        }
    }

    fn range(
        &self,
        range: &KeyRange,
        limit: usize,
        _is_stopped: &AtomicBool,
    ) -> Result<ValuePage, BoxError> {
        let page = self.range_of_all(range, limit);
        page.map_err(|error| of_stream(self.stream.name(), error))
    }

    fn ends(&self, _is_stopped: &AtomicBool) -> Result<Vec<u64>, BoxError> {
        let partitions = self.partitions();
        Ok(partitions.map(|it| it.high_watermark().0).collect())
    }

    fn is_stable(&self, ends: &[u64], _is_stopped: &AtomicBool) -> Result<bool, BoxError> {
        let mut partitions = iter::zip(self.partitions(), ends);
        Ok(partitions.all(|(partition, end)| partition.last_stable_offset().0 >= *end))
    }
}
