//! Reads the changes of a state element in a stream of a log: all of them, or those of single keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{iter, thread};

use millstream_base::{KeyRange, Offset};
use millstream_flow::{BoxError, ChangelogReader, RestoreChange, ValuePage};
use millstream_log::{KeyEntry, KeyVersion, Next, Stream, StreamPartition, Subscription};
use millstream_record::{Chunks, Decompressor};

use super::changelog::{Restoring, Unread, is_large, of_stream};
use crate::keys::log::{LogKeys, again};

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// The pause before the next try while other readers hold all memory for reads.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// A reader of the changes that were committed when it was made.
pub struct LogReader {
    keys: LogKeys,
    /// By partition: the last stable offset when the reader was made. Changes behind it are of this run.
    ends: Vec<Offset>,
    /// The checkpoint that the flow resumes from, if it does.
    resumed: Option<u64>,
}

impl LogReader {
    /// Makes a reader, before this run of the flow appends on any rank.
    ///
    /// # Errors
    /// When first records were removed.
    pub fn new(stream: &Stream, resumed: Option<u64>) -> Result<LogReader, BoxError> {
        let keys = LogKeys::new(stream)?;
        let ends = keys.partitions().iter();
        let reader = LogReader {
            ends: ends.map(StreamPartition::last_stable_offset).collect(),
            keys,
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

    pub fn partitions(&self) -> &[StreamPartition] {
        self.keys.partitions()
    }

    /// Returns each partition with its end.
    fn readable(&self) -> impl Iterator<Item = (&StreamPartition, Offset)> {
        iter::zip(self.partitions(), self.ends.iter().copied())
    }

    fn restoring(&self, partition: u32) -> Restoring<'_> {
        Restoring {
            stream: self.keys.stream().name(),
            partition,
            partitions: self.ends.len(),
            resumed: self.resumed,
        }
    }

    fn read_partition(
        &self,
        (partition, end): (&StreamPartition, Offset),
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
        while next < end && !is_stopped.load(Ordering::Relaxed) {
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
                    if record.offset >= handed.from && record.offset < end {
                        restoring.restore(&record, each, unread)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        self.keys.get(keys, |partition, version| {
            self.check(partition, &version)?;
            Ok(version.value.to_vec())
        })
    }

    /// Checks a change that was there when the reader was made. Later ones are of this run.
    fn check(&self, partition: usize, version: &KeyVersion) -> Result<(), BoxError> {
        if version.offset < self.ends[partition] {
            let headers = version.headers.iter();
            let headers = headers.map(|it| (&it.name[..], it.value.as_deref()));
            let restoring = self.restoring(partition as u32);
            restoring.check_checkpoint(version.offset, headers)?;
        }
        Ok(())
    }

    fn range_of_all(&self, range: &KeyRange, limit: usize) -> Result<ValuePage, BoxError> {
        let mut page = ValuePage::default();
        for (number, partition) in self.partitions().iter().enumerate() {
            let scan = again(|| partition.scan(range, limit, READ_BYTES))?;
            for KeyEntry { key, version } in scan.entries {
                self.check(number, &version)?;
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

impl ChangelogReader for LogReader {
    fn is_large(&self) -> bool {
        let (mut records, mut bytes) = (0, 0);
        for (partition, end) in self.readable() {
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
        values.map_err(|error| of_stream(self.keys.stream().name(), error))
    }

    fn read_all(
        &self,
        is_stopped: &AtomicBool,
        each: &mut RestoreChange<'_>,
    ) -> Result<(), BoxError> {
        let mut unread = Unread::default();
        for partition in self.readable() {
            let read = self.read_partition(partition, is_stopped, each, &mut unread);
            read.map_err(|error| of_stream(self.keys.stream().name(), error))?;
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
        page.map_err(|error| of_stream(self.keys.stream().name(), error))
    }

    fn ends(&self, _is_stopped: &AtomicBool) -> Result<Vec<u64>, BoxError> {
        let partitions = self.partitions().iter();
        Ok(partitions.map(|it| it.high_watermark().0).collect())
    }

    fn is_stable(&self, ends: &[u64], _is_stopped: &AtomicBool) -> Result<bool, BoxError> {
        let mut partitions = iter::zip(self.partitions(), ends);
        Ok(partitions.all(|(partition, end)| partition.last_stable_offset().0 >= *end))
    }
}
