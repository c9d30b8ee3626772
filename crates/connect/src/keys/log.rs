//! Looks up keys of a keyed stream of a log, many together.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{iter, thread};

use millstream_base::partition_of_key;
use millstream_flow::BoxError;
use millstream_log::{KeyVersion, LogError, Stream, StreamPartition};

/// The pause before the next try while other readers hold all memory for reads, …
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// … and the number of tries to read a key.
const BUSY_TRIES: u32 = 10_000;

/// The most keys that a thread looks up at once, …
const KEYS_OF_JOB: usize = 16;

/// … and the most threads: a disk answers many reads together sooner than one after the other.
const THREADS_MAX: usize = 16;

/// The places of some keys of a partition.
type Job<'a> = (usize, &'a [usize]);

/// The results of some keys, each with the place of its key.
type Found<T> = Vec<(usize, Option<T>)>;

/// The keys of a stream of a log.
pub struct LogKeys {
    stream: Stream,
    partitions: Vec<StreamPartition>,
}

impl LogKeys {
    /// Looks up keys in all partitions of a stream.
    ///
    /// # Errors
    /// When the stream was deleted.
    pub fn new(stream: &Stream) -> Result<LogKeys, LogError> {
        let partitions = 0..stream.partition_count();
        let partitions = partitions.map(|partition| stream.partition(partition));
        Ok(LogKeys {
            stream: stream.clone(),
            partitions: partitions.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns its partitions, in their order.
    pub fn partitions(&self) -> &[StreamPartition] {
        &self.partitions
    }

    /// Returns what `take` makes of the newest committed version of each key and of the number of its partition; `None` for a key
    /// that has none. Several threads call `take`.
    ///
    /// # Errors
    /// Those of [`StreamPartition::get`] and of `take`.
    pub fn get<T: Send>(
        &self,
        keys: &[Vec<u8>],
        take: impl Fn(usize, KeyVersion) -> Result<T, BoxError> + Sync,
    ) -> Result<Vec<Option<T>>, BoxError> {
        if let [key] = keys {
            // The log keeps a copy in memory for the next look-up.
            let partition = partition_of_key(key, self.partitions.len());
            let version = again(|| self.partitions[partition].get(key))?;
            let taken = version.map(|version| take(partition, version));
            return Ok(vec![taken.transpose()?]);
        }
        let mut by_partition: Vec<Vec<usize>> = vec![Vec::new(); self.partitions.len()];
        for (n, key) in keys.iter().enumerate() {
            by_partition[partition_of_key(key, self.partitions.len())].push(n);
        }
        let jobs = by_partition.iter().enumerate();
        let jobs = jobs.flat_map(|(partition, places)| {
            let parts = places.chunks(KEYS_OF_JOB);
            parts.map(move |part| (partition, part))
        });
        let jobs: Vec<Job<'_>> = jobs.collect();
        let mut values: Vec<Option<T>> = Vec::new();
        values.resize_with(keys.len(), || None);
        for (n, value) in self.run_all(&jobs, keys, &take)? {
            values[n] = value;
        }
        Ok(values)
    }

    /// Runs the jobs in several threads.
    fn run_all<T: Send>(
        &self,
        jobs: &[Job<'_>],
        keys: &[Vec<u8>],
        take: &(impl Fn(usize, KeyVersion) -> Result<T, BoxError> + Sync),
    ) -> Result<Found<T>, BoxError> {
        let next = AtomicUsize::new(0);
        let run = || {
            let mut found = Found::new();
            while let Some((partition, places)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let keys: Vec<&[u8]> = places.iter().map(|n| &keys[*n][..]).collect();
                let versions = newest(&self.partitions[*partition], &keys)?;
                for (n, version) in iter::zip(*places, versions) {
                    let taken = version.map(|version| take(*partition, version));
                    found.push((*n, taken.transpose()?));
                }
            }
            Ok(found)
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
            let mut all: Result<Found<T>, BoxError> = run();
            for helper in helpers {
                let found = helper.join().unwrap_or_else(|panic| resume_unwind(panic));
                all = all.and_then(|mut all| {
                    all.extend(found?);
                    Ok(all)
                });
            }
            all
        })
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
pub fn again<R>(read: impl Fn() -> Result<R, LogError>) -> Result<R, LogError> {
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
