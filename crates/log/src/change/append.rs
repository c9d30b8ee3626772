//! Decides about changes of keys, and appends those that hold, as one step.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use millstream_base::{Offset, Sequence};
use millstream_record::{
    ChunkBuilder, Compression, HEADER_BYTES, Header, Producer, check, end_header,
};

use super::decide::{Decision, Moment, Older, decide};
use super::{ChangeError, ChangeTransaction, Changed, KeyChange, KeyChanges, NewValue, Unit};
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::keys::index::KeyIndex;
use crate::keys::tail::KeyTail;
use crate::lane::LaneState;
use crate::lane::append::{AppendStep, Appended};
use crate::produce::append::{append_to_lane, check_size, take_in};
use crate::read::keys::tail::{read_tail, read_tail_under_lock};

/// The most bytes of a chunk with several changes. A look-up reads its chunk whole, so chunks are small.
const CHUNK_BYTES: usize = 16 << 10;

/// The most bytes of a record beside its key, its value and its secondary keys, in a chunk with several changes: among them a sum,
/// and a header with the value's end.
pub const CHANGE_OVERHEAD_BYTES: usize = 80;

/// The most times that changes are decided again, because other records of their keys came between or the end moved too far.
const TRIES_MAX: usize = 1_000;

/// The number of reads of the lane's end before the lock of the head is taken: each time, fewer records remain.
const READS_MAX: usize = 3;

/// The lane of changes, and its index.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub core: &'a Core,
    pub lane: &'a Arc<LaneState>,
    pub index: &'a KeyIndex,
}

/// Changes of different keys, which go into one chunk.
#[derive(Clone, Copy)]
struct Batch<'a> {
    changes: &'a [KeyChange<'a>],
    unit: Unit,
}

/// Decides about changes in their order, and appends those that hold. `look_up` returns the newest version of a change's key
/// that look-ups see; it may wait for I/O.
pub fn change_keys(
    place: Place<'_>,
    changes: &[KeyChange<'_>],
    look_up: impl Fn(&KeyChange<'_>) -> Result<Option<Older>>,
) -> KeyChanges {
    let bytes_max = changes_bytes_max(place.lane);
    let mut all = KeyChanges {
        outcomes: Vec::with_capacity(changes.len()),
        answer_at: Offset(0),
    };
    while let rest = &changes[all.outcomes.len()..]
        && !rest.is_empty()
    {
        let together = &rest[..count_together(rest, bytes_max)];
        let batch = Batch {
            changes: together,
            unit: Unit::Each,
        };
        match place.change(batch, &look_up) {
            Ok(changed) => {
                all.outcomes.extend(changed.outcomes);
                all.answer_at = all.answer_at.max(changed.answer_at);
            }
            Err(error) => {
                let failed = || Err(ChangeError::Log(error.clone()));
                let failed = std::iter::repeat_with(failed).take(together.len());
                all.outcomes.extend(failed);
            }
        }
    }
    all
}

/// Decides about changes of different keys, and appends all of them, or none if one is refused.
///
/// # Errors
/// When two changes are of the same key, or the chunk cannot be stored.
pub fn change_keys_together(
    place: Place<'_>,
    changes: &[KeyChange<'_>],
    transaction: Option<ChangeTransaction>,
    look_up: impl Fn(&KeyChange<'_>) -> Result<Option<Older>>,
) -> Result<KeyChanges> {
    let mut numbers = HashMap::new();
    for (second, change) in (0..).zip(changes) {
        if let Some(first) = numbers.insert(change.key, second) {
            let stream = place.lane.stream.name.clone();
            return Err(LogError::SameKey {
                stream,
                first,
                second,
            });
        }
    }
    let unit = Unit::Together(transaction);
    place.change(Batch { changes, unit }, look_up)
}

/// Returns the most bytes of a chunk with several changes of a lane. A larger change has a chunk of its own.
pub fn changes_bytes_max(lane: &LaneState) -> usize {
    CHUNK_BYTES.min(lane.stream.limits.chunk_bytes_max())
}

/// Returns how many of the first changes go into one chunk of at most `bytes_max`. They are of different keys: a later change of
/// a key compares with the version that an earlier one has appended. And all of them are conditional, or none.
fn count_together(changes: &[KeyChange<'_>], bytes_max: usize) -> usize {
    let is_conditional = changes.first().is_some_and(KeyChange::is_conditional);
    let mut keys = HashSet::new();
    let mut bytes = HEADER_BYTES;
    let together = changes.iter().take_while(|change| {
        let value = match change.value {
            NewValue::Put(value) => value.len(),
            NewValue::Delete | NewValue::Add(_) => 0,
        };
        let headers = change.secondary.iter().map(header_bytes).sum::<usize>();
        bytes += CHANGE_OVERHEAD_BYTES + change.key.len() + value + headers;
        keys.insert(change.key) && bytes <= bytes_max && change.is_conditional() == is_conditional
    });
    together.count().max(1)
}

/// The bytes of a header in a record, at most.
fn header_bytes(header: &Header<'_>) -> usize {
    const LENGTHS: usize = 10;
    LENGTHS + header.name.len() + header.value.map_or(0, <[u8]>::len)
}

impl Place<'_> {
    /// Stores changes of different keys.
    fn change(
        &self,
        batch: Batch<'_>,
        look_up: impl Fn(&KeyChange<'_>) -> Result<Option<Older>>,
    ) -> Result<KeyChanges> {
        let Batch { changes, unit } = batch;
        if !unit.is_exclusive() && !changes.iter().any(KeyChange::is_conditional) {
            return self.append(batch);
        }
        let older = |change: &KeyChange<'_>| match change.is_conditional() {
            true => look_up(change),
            false => Ok(None),
        };
        let started = Instant::now();
        for _ in 0..TRIES_MAX {
            let seen = self.lane.last_stable_offset();
            let older = changes.iter().map(older).collect::<Result<Vec<_>>>()?;
            let mut tail = self.index.tail();
            if !self.bring_up(&mut tail, seen)? {
                continue;
            }
            match self.decide_and_append(&mut tail, batch, &older)? {
                Attempt::Done(changes) => return Ok(changes),
                Attempt::Overtaken => {}
                Attempt::NeedsBuffer => {
                    drop(tail);
                    self.core.wait_for_buffer(started)?;
                }
            }
        }
        Err(LogError::KeysBusy {
            stream: self.lane.stream.name.clone(),
            partition: self.lane.partition,
        })
    }

    /// Stores changes without a condition.
    fn append(&self, batch: Batch<'_>) -> Result<KeyChanges> {
        let tail = KeyTail::default();
        let mut decided = self.decide(&tail, batch, &vec![None; batch.changes.len()])?;
        let chunk = decided.chunk.finish(None)?;
        let appended = append_to_lane(self.core, self.lane, &check(chunk)?, chunk)?;
        Ok(KeyChanges {
            outcomes: with_versions(decided.outcomes, &appended),
            answer_at: appended.next_offset,
        })
    }

    /// Lets the tail have all records from `seen` on, or from before. `false` if look-ups must be made anew.
    fn bring_up(&self, tail: &mut KeyTail, seen: Offset) -> Result<bool> {
        let swaps = self.lane.swaps();
        let end = self.lane.end();
        if tail.is_full() && seen <= tail.from() {
            return Err(self.undecided());
        }
        let is_of_use = !tail.is_full() && tail.next() >= seen && tail.swaps() == swaps;
        if !is_of_use || tail.next() > end.offset {
            *tail = KeyTail::new(seen, swaps);
        }
        tail.sweep(seen);
        if tail.from() > seen {
            return Ok(false);
        }
        for _ in 0..READS_MAX {
            let end = self.lane.end();
            if tail.next() >= end.offset {
                break;
            }
            if !read_tail(&self.core.reads, self.lane, tail, &end)? {
                *tail = KeyTail::default();
                return Ok(false);
            }
        }
        match tail.is_full() {
            true => Err(self.undecided()),
            false => Ok(true),
        }
    }

    fn decide_and_append(
        &self,
        tail: &mut KeyTail,
        batch: Batch<'_>,
        older: &[Option<Older>],
    ) -> Result<Attempt> {
        let Batch { changes, unit } = batch;
        let Decided {
            outcomes,
            mut chunk,
            answer_at,
        } = self.decide(tail, batch, older)?;
        let is_stored = match unit {
            Unit::Each => !chunk.is_empty(),
            Unit::Together(_) => outcomes.iter().all(Result::is_ok),
        };
        if !is_stored {
            let refused = outcomes.into_iter().map(|outcome| match outcome {
                Ok(_) => Err(ChangeError::NotAlone),
                Err(why) => Err(why),
            });
            return Ok(Attempt::Done(KeyChanges {
                outcomes: refused.collect(),
                answer_at,
            }));
        }
        let (core, lane) = (self.core, self.lane);
        let chunk = chunk.finish(unit.producer())?;
        check_size(lane, chunk)?;
        let header = check(chunk)?;
        let decided_at = tail.next();
        let taken = take_in(core, lane, &header, chunk)?;
        let (header, chunk) = match &taken {
            Some(taken) => (&taken.header, &*taken.chunk),
            None => (&header, chunk),
        };
        let step = lane.append_if(&core.appends, header, chunk, |end| {
            let has_all = read_tail_under_lock(&core.reads, lane, tail, end)?;
            let mut changes = changes.iter();
            let is_overtaken = changes.any(|change| tail.has_since(change.key, decided_at));
            Ok(has_all && !tail.is_full() && !is_overtaken)
        })?;
        let appended = match step {
            None => return Ok(Attempt::Overtaken),
            Some(AppendStep::NeedsBuffer) => return Ok(Attempt::NeedsBuffer),
            Some(AppendStep::Done(appended)) => appended,
        };
        Ok(Attempt::Done(KeyChanges {
            outcomes: with_versions(outcomes, &appended),
            answer_at: answer_at.max(appended.next_offset),
        }))
    }

    /// Decides about changes, and makes the chunk of those that hold.
    fn decide(&self, tail: &KeyTail, batch: Batch<'_>, older: &[Option<Older>]) -> Result<Decided> {
        let Batch { changes, unit } = batch;
        let timestamp = self.core.clock.now();
        let limits = &self.lane.stream.limits;
        let moment = Moment {
            now: limits.keyed_clock().now(|| timestamp),
            ttl: limits.ttl(),
            earliest: self.lane.earliest_offset(),
            is_exclusive: unit.is_exclusive(),
        };
        // The stream's own codec takes effect when the chunk is appended.
        let mut chunk = ChunkBuilder::new(Compression::None);
        chunk.set_transactional(unit.is_exclusive());
        let mut answer_at = Offset(0);
        let mut outcomes = Vec::with_capacity(changes.len());
        for (change, older) in changes.iter().zip(older) {
            outcomes.push(match decide(change, tail, *older, &moment) {
                Decision::Store {
                    value,
                    sum,
                    expires,
                } => {
                    let end = expires.map(|end| end.0.to_string());
                    let end = end.as_deref().map(end_header).into_iter();
                    let secondary = change.secondary.iter().filter(|_| value.is_some());
                    let headers: Vec<Header<'_>> = end.chain(secondary.copied()).collect();
                    let (key, value) = (Some(change.key), value.as_deref());
                    chunk.push(timestamp, key, value, &headers)?;
                    Ok(sum)
                }
                Decision::Refuse { why, settled_at } => {
                    answer_at = answer_at.max(settled_at);
                    Err(why)
                }
            });
        }
        Ok(Decided {
            outcomes,
            chunk,
            answer_at,
        })
    }

    fn undecided(&self) -> LogError {
        LogError::TooManyUndecided {
            stream: self.lane.stream.name.clone(),
            partition: self.lane.partition,
        }
    }
}

impl Unit {
    /// Whether also changes without a condition refuse the keys of other open transactions.
    fn is_exclusive(self) -> bool {
        matches!(self, Unit::Together(Some(_)))
    }

    /// The producer of the chunk, which is its first one in the partition.
    fn producer(self) -> Option<Producer> {
        let Unit::Together(transaction) = self else {
            return None;
        };
        transaction.map(|transaction| Producer {
            id: transaction.producer,
            epoch: transaction.epoch,
            sequence: Sequence(0),
        })
    }
}

/// Decisions about changes.
struct Decided {
    /// The sums of the changes that are in the chunk, in their order, and the reasons of the others.
    outcomes: Vec<Result<Option<i64>, ChangeError>>,
    chunk: ChunkBuilder,
    answer_at: Offset,
}

enum Attempt {
    Done(KeyChanges),
    /// Records of the same keys came between, or many others.
    Overtaken,
    /// There is no memory for the chunk now.
    NeedsBuffer,
}

/// Gives the changes that were appended their versions.
fn with_versions(
    outcomes: Vec<Result<Option<i64>, ChangeError>>,
    appended: &Appended,
) -> Vec<Result<Changed, ChangeError>> {
    let mut versions = (appended.base_offset.0..).map(Offset);
    let outcomes = outcomes.into_iter().map(|outcome| {
        let sum = outcome?;
        let version = versions.next().unwrap_or(appended.base_offset);
        Ok(Changed { version, sum })
    });
    outcomes.collect()
}
