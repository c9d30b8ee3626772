//! Holds of streams: their creation, their release, and their end when their time is over.
//!
//! A hold is in force in its lanes before its entry is written, and until the end of the entry is durable. So whatever a crash
//! leaves, no pass has dropped a version that a hold of the catalog names.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use millstream_base::{Offset, Timestamp};
use millstream_record::{Chunks, EndMarker, TransactionEnd, later};

use crate::catalog::holds::hold_key;
use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::handle::partition::StreamPartition;
use crate::hold::{HeldPartition, Hold, ListedHold, NewHold, unknown};
use crate::lane::LaneState;
use crate::lane::holds::HoldId;
use crate::log::Log;
use crate::produce::wait::{wait_durable, wait_for};
use crate::read::fetch::AtLeast;
use crate::settings::config::Durability;
use crate::stream::{StreamKind, StreamState};

/// The time until the end of a hold is retried whose entry could not be removed.
const RETRY_AFTER: Duration = Duration::from_secs(15);

/// The bytes behind a hold that one read fetches.
const REST_READ_BYTES: usize = 1 << 20;

/// The most bytes behind a hold that are searched for committed transactions. Where open ones hold back more, the hold is refused.
const REST_BYTES_MAX: u64 = 64 << 20;

/// A hold that is being made. It ends when this is dropped, unless it is [kept](Self::keep).
pub struct BegunHold {
    log: Log,
    stream: Arc<StreamState>,
    id: HoldId,
    hold: Hold,
    /// The part of each partition behind the hold at the moment of the cut: open transactions, and records behind their beginnings.
    rests: Vec<(Arc<LaneState>, Range<Offset>)>,
    is_cut: bool,
    is_kept: bool,
}

impl Log {
    /// Creates a hold: until it ends, each key of the stream can be looked up with the value that it had when this was
    /// called. Returns when the hold is durable.
    ///
    /// ```
    /// use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, NewHold, StreamConfig};
    /// use millstream_log::{KeyChange, KeyCondition, NewValue};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let log = Log::open(LogConfig::new(dir.path()))?;
    /// let settings = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into();
    /// let config = StreamConfig { settings, ..StreamConfig::default() };
    /// let users = log.create_stream("users", config)?;
    /// let put = |value| -> Result<(), Box<dyn std::error::Error>> {
    ///     let change = KeyChange {
    ///         key: b"ada",
    ///         condition: KeyCondition::Any,
    ///         value: NewValue::Put(value),
    ///         ttl: None,
    ///         secondary: &[],
    ///     };
    ///     let partition = users.partition(0)?;
    ///     let changed = partition.change(&[change])?;
    ///     while partition.last_stable_offset() < changed.answer_at {
    ///         std::thread::yield_now();
    ///     }
    ///     Ok(())
    /// };
    ///
    /// put(b"1815")?;
    /// let hold = NewHold { name: "before", owner: "example", life: None };
    /// log.create_hold("users", &hold)?;
    /// put(b"1852")?;
    /// let held = users.get_at_hold(b"ada", "before")?.expect("it is held");
    /// assert_eq!(&held.value[..], b"1815");
    /// log.delete_hold("users", "before")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the stream is unknown, not keyed or only in memory, the name is taken or refused, the stream has too many holds, open
    /// transactions make it impossible to have all of a committed one ([`LogError::HoldSplits`]), or the hold cannot be stored.
    pub fn create_hold(&self, stream: &str, new: &NewHold<'_>) -> Result<Arc<Hold>> {
        self.begin_hold(stream, new)?.keep()
    }

    /// Begins to make a hold. The caller chooses the moment of its [cut](BegunHold::cut).
    ///
    /// # Errors
    /// As [`create_hold`](Self::create_hold).
    pub fn begin_hold(&self, stream: &str, new: &NewHold<'_>) -> Result<BegunHold> {
        let life = new.check()?;
        let core = &self.inner.core;
        let stream = self.stream(stream)?.stream;
        let shared = &stream.shared;
        if stream.kind != StreamKind::Stream || !core.is_keyed(shared) {
            return Err(LogError::NotKeyed {
                stream: shared.name.clone(),
            });
        }
        if shared.durability == Durability::Memory {
            return Err(LogError::BadSetting {
                setting: "durability",
                why: format!(
                    "stream {} is in memory alone, so it has no holds",
                    shared.name
                ),
            });
        }
        let now = core.clock.now();
        let steady = core.compactor.time.now(&*core.clock);
        end_holds_of(core, &self.inner.catalog, &stream, steady)?;
        let id = shared.holds.reserve(&shared.name, new.name)?;
        Ok(BegunHold {
            log: self.clone(),
            id,
            hold: Hold::new(new, life, now, stream.partition_count()),
            stream,
            rests: Vec::new(),
            is_cut: false,
            is_kept: false,
        })
    }

    /// Ends a hold. A later compaction pass removes the records that only this hold protected.
    ///
    /// # Errors
    /// When stream or hold are unknown, or the end cannot be stored.
    pub fn delete_hold(&self, stream: &str, name: &str) -> Result<()> {
        let core = &self.inner.core;
        let stream = self.stream(stream)?.stream;
        let _one = stream.shared.holds.change();
        let found = stream.shared.holds.get(name);
        let found = found.filter(|(_, hold)| !hold.is_over(core.clock.now()));
        let (id, _) = found.ok_or_else(|| unknown(&stream.shared.name, name))?;
        release(core, &self.inner.catalog, &stream, id, name)
    }

    /// Ends the holds whose time is over. Background threads do it each second, and [`compact_step`](Log::compact_step).
    pub(crate) fn end_holds(&self) {
        end_holds(&self.inner.core, &self.inner.catalog);
    }
}

impl BegunHold {
    /// Lets the hold see the records that are committed by now, and no later ones. Short, and without I/O: the caller may keep
    /// transactions from ending meanwhile, so that the hold sees all of one or nothing, whatever partitions it has.
    pub fn cut(&mut self) {
        self.is_cut = true;
        for lane in self.stream.made_lanes() {
            let first = lane.earliest_offset();
            // Between groups a hold costs least.
            let is_calm = lane.last_stable_offset() == lane.next_offset();
            let rolled = is_calm.then(|| lane.roll()).flatten();
            let end = || match &rolled {
                // No pass takes the last group.
                Some(next) if lane.last_group().is_some_and(|last| last.id == next.id) => {
                    next.first_offset
                }
                _ => lane.last_stable_offset(),
            };
            let end = lane.holds.add(self.id, first, end);
            self.rests
                .push((Arc::clone(&lane), end..lane.next_offset()));
            let Some(last) = end.0.checked_sub(1) else {
                continue;
            };
            self.hold.held.push(HeldPartition {
                partition: lane.partition,
                end,
                first,
                epoch: lane.epochs.at(Offset(last)),
            });
        }
        self.hold.held.sort_by_key(|held| held.partition);
    }

    /// Whether a partition has records of a committed transaction behind the hold, because an earlier transaction is still open
    /// there. Other partitions may have records of the committed transaction before the hold.
    fn splits_transaction(&self) -> Result<bool> {
        if self.hold.partitions == 1 {
            return Ok(false);
        }
        let core = &self.log.inner.core;
        let mut bytes = 0;
        for (lane, rest) in &self.rests {
            let partition = StreamPartition {
                core: Arc::clone(core),
                lane: Arc::clone(lane),
            };
            let mut writers = HashSet::new();
            let (mut next, end) = (rest.start, rest.end.min(lane.high_watermark()));
            while next < end {
                let fetched = partition.fetch(next, end, REST_READ_BYTES, AtLeast::OneChunk)?;
                for piece in &fetched.pieces {
                    bytes += piece.len() as u64;
                    for chunk in Chunks::trusted(piece) {
                        let chunk = chunk.map_err(LogError::Chunk)?;
                        let header = chunk.header();
                        let marker = EndMarker::of(&chunk);
                        let is_commit = |marker: EndMarker| marker.end == TransactionEnd::Commit;
                        let has_written = match header.attributes.is_control() {
                            true => writers.remove(&header.producer_id),
                            false => false,
                        };
                        if has_written && marker.is_some_and(is_commit) {
                            return Ok(true);
                        }
                        let is_record = !header.attributes.is_control();
                        if is_record && header.attributes.is_transactional() {
                            writers.insert(header.producer_id);
                        }
                    }
                }
                if bytes > REST_BYTES_MAX || fetched.next <= next {
                    return Ok(true);
                }
                next = fetched.next;
            }
        }
        Ok(false)
    }

    /// Makes the hold durable.
    ///
    /// # Errors
    /// When it cannot be stored. Then it may be in force all the same, if that is shown by the list.
    pub fn keep(mut self) -> Result<Arc<Hold>> {
        if !self.is_cut {
            self.cut();
        }
        let (core, catalog) = (&self.log.inner.core, &self.log.inner.catalog);
        for held in &self.hold.held {
            let Some(lane) = self.stream.partition(held.partition) else {
                continue;
            };
            // No crash may lose the records that the hold sees, nor the ends of their transactions.
            core.hurry_durable(&lane, lane.next_offset());
            wait_for(core, &lane, LaneState::stable_for_good, held.end)?;
        }
        let shared = &self.stream.shared;
        if self.splits_transaction()? {
            return Err(LogError::HoldSplits {
                stream: shared.name.clone(),
            });
        }
        if self.stream.is_removed() {
            return Err(LogError::UnknownStream {
                name: shared.name.clone(),
            });
        }
        let key = hold_key(shared.id, &self.hold.name);
        let offset = catalog.put(core, &key, Some(&self.hold))?;
        // The next start may find it from here on.
        self.is_kept = true;
        let hold = Arc::new(self.hold.clone());
        shared.holds.put(self.id, Arc::clone(&hold));
        core.note_hold_end(hold.until);
        wait_durable(core, catalog.lane(), offset)?;
        catalog.compact(core);
        Ok(hold)
    }
}

impl Drop for BegunHold {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        for lane in self.stream.made_lanes() {
            lane.holds.release(self.id);
        }
        self.stream.shared.holds.remove(&self.hold.name);
    }
}

/// Ends the holds whose time is over.
pub fn end_holds(core: &Core, catalog: &Table) {
    // Compaction's steady time, as for values that expire: records dropped after a hold's end do not come back.
    let now = core.compactor.time.now(&*core.clock);
    if !core.take_hold_end(now) {
        return;
    }
    let streams: Vec<Arc<StreamState>> = core.streams.read().by_id.values().cloned().collect();
    for stream in streams {
        let ended = end_holds_of(core, catalog, &stream, now);
        let again = match &ended {
            Ok(()) => Timestamp(i64::MIN),
            Err(error) => {
                tracing::warn!(stream = %stream.shared.name, %error,
                    "a hold whose time is over cannot be ended now; it is tried again every 15 seconds");
                later(now, RETRY_AFTER)
            }
        };
        for hold in stream.shared.holds.all() {
            core.note_hold_end(hold.until.max(again));
        }
    }
}

fn end_holds_of(core: &Core, catalog: &Table, stream: &StreamState, now: Timestamp) -> Result<()> {
    let holds = &stream.shared.holds;
    if !holds.all().iter().any(|hold| hold.is_over(now)) {
        return Ok(());
    }
    let _one = holds.change();
    for hold in holds.all().iter().filter(|hold| hold.is_over(now)) {
        if let Some((id, _)) = holds.get(&hold.name) {
            release(core, catalog, stream, id, &hold.name)?;
        }
    }
    Ok(())
}

/// Takes a hold away. The caller has the right to.
fn release(
    core: &Core,
    catalog: &Table,
    stream: &StreamState,
    id: HoldId,
    name: &str,
) -> Result<()> {
    let key = hold_key(stream.shared.id, name);
    let offset = catalog.put::<Hold>(core, &key, None)?;
    wait_durable(core, catalog.lane(), offset)?;
    catalog.compact(core);
    stream.shared.holds.remove(name);
    for lane in stream.made_lanes() {
        if lane.holds.release(id) {
            core.appends.compaction_marks.add(lane.id);
        }
    }
    Ok(())
}

impl StreamState {
    /// Returns the holds in force, by name.
    pub(crate) fn listed_holds(&self, now: Timestamp) -> Vec<ListedHold> {
        let holds = self.shared.holds.all().into_iter();
        let listed = holds.filter(|hold| !hold.is_over(now)).map(|hold| {
            let is_there = |held: &HeldPartition| {
                let lane = self.partition(held.partition);
                lane.is_some_and(|lane| lane.earliest_offset() <= held.first)
            };
            ListedHold {
                is_whole: hold.held.iter().all(is_there),
                hold,
            }
        });
        listed.collect()
    }
}
