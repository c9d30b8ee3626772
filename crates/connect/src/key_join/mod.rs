//! The join of two keyed streams by a secondary key of the first one, without state of its own.
//!
//! The *left* stream has records by their keys, each with the key of a record of the *right* stream in a header, its secondary key.
//! A change of either stream only says which left keys are concerned: a left change its own key, and a right change those that an
//! index of secondary keys has for it. For each of these keys the join looks up the left record, then the right record that it names,
//! and emits the row of both, or that there is none. So a row is always that of two present records, whatever led to it, and a second
//! look-up of a key changes nothing. Invariant N9 has the argument why the last row of each key is
//! right.

mod finder;
mod scan;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use millstream_base::{Timestamp, partition_of_key};
use millstream_flow::{
    BoxError, Output, Parts, Position, Positions, Source, SourcePartitions, SourceStatus, WouldWait,
};
use millstream_log::{SECONDARY_KEY_BYTES_MAX, Share};
use millstream_record::SECONDARY_KEY_PREFIX;
use serde::{Deserialize, Serialize};

use crate::any_source::AnySource;
use crate::keys::any::AnyKeys;
use finder::{Changed, Done, Finder, Job, KEYS_AT_ONCE, Tables};
use scan::Scan;

/// The most changed left keys of a job.
const CHANGED_AT_ONCE: usize = 2 * KEYS_AT_ONCE;

/// The most right keys whose left keys are looked at in turn. Beyond it, the right stream is not read.
const SCANS_MAX: usize = 1024;

/// The most right keys of a job.
const SCANS_AT_ONCE: usize = 64;

/// The most rows that a join holds at one time: those of one job.
pub const JOINED_ROWS_MAX: usize = CHANGED_AT_ONCE + KEYS_AT_ONCE;

/// A keyed stream that is joined.
pub struct JoinInput {
    /// Its changes: of the left stream those in the share's partitions, of the right stream all of them.
    pub changes: AnySource,
    /// Its records by their keys.
    pub keys: AnyKeys,
}

/// The way in which two keyed streams are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyJoin {
    /// The index of secondary keys of the left stream that has the keys of the right one. Of several headers with its name the first
    /// one counts.
    pub index: String,
    /// Whether a left record without a right one has a row.
    pub is_left_outer: bool,
    /// The left partitions of this source: with several ranks each has a share of them.
    pub share: Share,
}

/// The present row of a left key: the item of a [`KeyJoinSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedRow {
    /// The latest time of the records and of the change that led to the row.
    pub time: Timestamp,
    /// The key of the left record.
    pub key: Box<[u8]>,
    /// The values of the left record and of the right one; `None` if the key has no row.
    pub values: Option<(Bytes, Option<Bytes>)>,
}

/// A row is its own single part.
impl Parts for JoinedRow {
    type Part<'a> = JoinedRow;

    fn for_each_part(&self, mut visit: impl FnMut(&JoinedRow)) {
        visit(self);
    }
}

/// Joins two keyed streams: gives the rows of left keys that have changed, each as it is now. The rows of one key come in their order.
pub struct KeyJoinSource {
    left: Changes,
    right: Changes,
    tables: Arc<Tables>,
    /// The right keys whose left keys are being looked at.
    scans: BTreeMap<Vec<u8>, Scan>,
    /// Their turns.
    turns: VecDeque<Vec<u8>>,
    /// `None` before the flow begins, and after its end.
    finder: Option<Finder>,
}

/// The changes of one of the streams.
struct Changes {
    source: AnySource,
    partitions: usize,
    /// The keys that have changed, in their order, and that are not done, …
    keys: VecDeque<Changed>,
    /// … and the position of the source before them.
    before: Vec<u8>,
    has_ended: bool,
}

/// The position of a join in a checkpoint.
#[derive(Serialize, Deserialize)]
struct Saved {
    left: Vec<u8>,
    right: Vec<u8>,
    scans: BTreeMap<Vec<u8>, Scan>,
    /// The left partitions, of which `scans` speak.
    partitions: Vec<u32>,
}

impl KeyJoinSource {
    /// Joins two streams.
    ///
    /// # Errors
    /// When the number of their partitions cannot be found.
    pub fn new(left: JoinInput, right: JoinInput, join: KeyJoin) -> Result<Self, BoxError> {
        let counts = [left.keys.partition_count()?, right.keys.partition_count()?];
        let partitions = (0..counts[0]).filter(|partition| join.share.has(*partition));
        let changes = |source, partitions: u32| Changes {
            source,
            partitions: partitions as usize,
            keys: VecDeque::new(),
            before: Vec::new(),
            has_ended: false,
        };
        Ok(KeyJoinSource {
            left: changes(left.changes, counts[0]),
            right: changes(right.changes, counts[1]),
            tables: Arc::new(Tables {
                left: left.keys,
                right: right.keys,
                header: format!("{SECONDARY_KEY_PREFIX}{}", join.index),
                index: join.index,
                is_left_outer: join.is_left_outer,
                partitions: partitions.collect(),
            }),
            scans: BTreeMap::new(),
            turns: VecDeque::new(),
            finder: None,
        })
    }

    /// Takes the results of a job.
    fn take(&mut self, done: Done, out: &mut Output<JoinedRow>) {
        out.extend(done.rows);
        self.left.keys.drain(..done.changed);
        for right in done.waiting.into_iter().rev() {
            self.turns.push_front(right);
        }
        for (right, scan) in done.scans {
            match scan {
                Some(scan) => {
                    self.turns.push_back(right.clone());
                    self.scans.insert(right, scan);
                }
                None => drop(self.scans.remove(&right)),
            }
        }
    }

    /// Begins to look at the left keys of right keys that have changed.
    fn begin_scans(&mut self) {
        while self.scans.len() < SCANS_MAX
            && let Some((right, time)) = self.right.keys.pop_front()
        {
            // The index has no longer ones.
            if right.len() > SECONDARY_KEY_BYTES_MAX {
                continue;
            }
            match self.scans.get_mut(&right) {
                Some(scan) => scan.change(time),
                None => {
                    self.turns.push_back(right.clone());
                    self.scans.insert(right, Scan::new(time));
                }
            }
        }
    }

    /// Returns the next job, if there is something to do.
    fn next_job(&mut self) -> Option<Job> {
        let changed = self.left.keys.iter().take(CHANGED_AT_ONCE).cloned();
        let turns = self.turns.len().min(SCANS_AT_ONCE);
        let turns = self.turns.drain(..turns);
        let scans = turns.filter_map(|right| {
            let scan = self.scans.get(&right)?.clone();
            Some((right, scan))
        });
        let job = Job {
            changed: changed.collect(),
            scans: scans.collect(),
        };
        let is_empty = job.changed.is_empty() && job.scans.is_empty();
        (!is_empty).then_some(job)
    }
}

impl Changes {
    /// Reads the next changes, unless some are not done. Returns whether there may be more at once.
    fn read(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        if self.has_ended || !self.keys.is_empty() {
            return Ok(false);
        }
        self.before = self.source.save()?;
        let mut out = Output::default();
        let status = self.source.poll(&mut out, 1, waker)?;
        self.has_ended = status == SourceStatus::End;
        let mut changed = BTreeMap::new();
        for records in out.drain() {
            let partition = records.partition() as usize;
            records.for_each_part(|record| {
                // A record that another partition should have is not found by its key.
                if let Some(key) = record.key
                    && partition_of_key(key, self.partitions) == partition
                {
                    changed.insert(key.to_vec(), record.timestamp);
                }
            });
            if let Some(fault) = records.fault() {
                return Err(fault);
            }
        }
        self.keys = changed.into_iter().collect();
        Ok(status == SourceStatus::Ready)
    }

    /// Returns the position behind the changes that are done.
    fn position(&mut self) -> Result<Vec<u8>, BoxError> {
        match self.keys.is_empty() {
            true => self.source.save(),
            false => Ok(self.before.clone()),
        }
    }
}

impl Source for KeyJoinSource {
    type Item = JoinedRow;

    /// Gives at most [`JOINED_ROWS_MAX`] rows.
    fn poll(
        &mut self,
        out: &mut Output<JoinedRow>,
        _budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let finder = match &mut self.finder {
            Some(finder) => finder,
            none => none.insert(Finder::start(Arc::clone(&self.tables))?),
        };
        let mut is_ready = false;
        if finder.is_busy() {
            let Some(done) = finder.take()? else {
                return Ok(SourceStatus::Idle);
            };
            self.take(done, out);
            is_ready = true;
        }
        is_ready |= self.left.read(waker)?;
        is_ready |= self.right.read(waker)?;
        self.begin_scans();
        match (self.next_job(), &mut self.finder) {
            (Some(job), Some(finder)) => finder.begin(job, waker)?,
            _ if is_ready => {}
            _ if self.left.has_ended && self.right.has_ended => return Ok(SourceStatus::End),
            _ => {}
        }
        Ok(match is_ready {
            true => SourceStatus::Ready,
            false => SourceStatus::Idle,
        })
    }

    /// Rows have no event time of their own that could be late.
    fn partitions(&self) -> SourcePartitions<'_, JoinedRow> {
        SourcePartitions::One
    }

    fn positions(&self) -> Option<Arc<dyn Positions>> {
        let inputs = [&self.left, &self.right];
        let positions = inputs.map(|input| input.source.positions());
        Some(Arc::new(JoinPositions(
            positions.into_iter().flatten().collect(),
        )))
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(postcard::to_stdvec(&Saved {
            left: self.left.position()?,
            right: self.right.position()?,
            scans: self.scans.clone(),
            partitions: self.tables.partitions.clone(),
        })?)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let saved: Saved = postcard::from_bytes(saved)?;
        if saved.partitions != self.tables.partitions {
            return Err(format!(
                "the checkpoint is of a join over the partitions {:?}, and these are now {:?}: resume on as many ranks as before",
                saved.partitions, self.tables.partitions
            )
            .into());
        }
        self.left.source.restore(&saved.left)?;
        self.right.source.restore(&saved.right)?;
        self.turns = saved.scans.keys().cloned().collect();
        self.scans = saved.scans;
        Ok(())
    }

    fn close(&mut self) {
        self.finder = None;
        self.left.source.close();
        self.right.source.close();
    }
}

/// The positions in both streams.
struct JoinPositions(Vec<Arc<dyn Positions>>);

impl Positions for JoinPositions {
    fn read(&self) -> Vec<Position> {
        self.0
            .iter()
            .flat_map(|positions| positions.read())
            .collect()
    }

    fn try_read(&self) -> Result<Vec<Position>, WouldWait> {
        let read = self.0.iter().map(|positions| positions.try_read());
        let read: Vec<_> = read.collect::<Result<_, _>>()?;
        Ok(read.into_iter().flatten().collect())
    }
}
