//! Share groups at work: the states of their records in a ledger, the sessions of their members, records from the log.
//!
//! The coordinator of [groups](crate::groups) knows the members of a share group. This service holds a
//! [`SharePartition`] for each partition that a group reads, and answers the requests about records: ShareFetch,
//! ShareAcknowledge, and those about offsets. Invariants:
//!
//! - A change of a share-partition is appended to the ledger under the lock of that share-partition, and a failed
//!   append takes the change back, unless it is a delivery. So the ledger holds the states in their order, and every
//!   end of a record that a client has learned of.
//! - An acknowledgement is answered when its state is durable: the broker delivers none of its records again. A delivery
//!   is answered before its count is stored: a crash may take the count of the [last deliveries](deliveries) back, not the
//!   records.
//! - A deleted group takes its share-partitions with it before a group of the same name can get any: the map of
//!   share-partitions is locked first, then the coordinator or a share-partition.
//! - Nothing needs a timer: each read of a share-partition first releases the locks that have timed out, and a fetch
//!   that waits reads again when a lock times out.

mod acknowledge;
mod deliveries;
mod keys;
mod letters;
mod offsets;
pub mod read;
pub mod sessions;
#[cfg(test)]
mod tests;
mod transactions;

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_base::{Clock, Offset, Timestamp};
use millstream_log::{Log, LogError, ReadSpan, StreamPartition};
use millstream_wire::{ResponseError, Uuid};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

pub use self::acknowledge::Failed;
use self::deliveries::Deliveries;
use self::letters::Letters;
pub use self::offsets::NO_OFFSET;
pub use self::sessions::Held;
use self::sessions::Sessions;
pub use self::transactions::Prepared;
use crate::error::response_error;
use crate::groups::service::GroupService;
use crate::groups::{Answer, GroupName, MemberId, Partition, Request, TopicId};
use crate::ledger::Ledger;
use crate::partitions::lane_of;
use crate::shares::record::{Key, decode, record};
use crate::shares::{OffsetReset, SharePartition, ShareSettings};

/// The stream that the states of records are entry in.
const LEDGER: &str = "__shares";

/// Share-partitions of all groups.
const PARTITIONS_MAX: usize = 1 << 18;

/// Runs and keys of all share-partitions: beyond this nothing is delivered until some are finished. Each takes about 100
/// bytes.
const RUNS_MAX: usize = 4 << 20;

/// All share-partitions, and the sessions of those that read them.
pub struct ShareService {
    /// By group, so that those of a group lie together.
    partitions: Mutex<BTreeMap<Key, Arc<Mutex<Entry>>>>,
    sessions: Sessions,
    /// The share-partitions whose dead letters have to be written.
    letters: Letters,
    deliveries: Deliveries,
    /// The settings of groups that have other ones than the defaults.
    settings: Mutex<BTreeMap<GroupName, Arc<ShareSettings>>>,
    defaults: Arc<ShareSettings>,
    groups: Arc<GroupService>,
    ledger: Arc<Ledger>,
    log: Log,
    clock: Arc<dyn Clock>,
    /// The number of runs of all share-partitions, and of keys of their records.
    runs: AtomicUsize,
    /// Hashes the keys of records. No hash outlives the process, so no producer can choose keys that have the same one.
    key_hasher: RandomState,
    /// The ledger is damaged: nothing is answered, since finished records would be delivered again.
    is_damaged: bool,
}

/// A share-partition in memory.
struct Entry {
    shares: SharePartition,
    /// The number of its runs and keys that `ShareService::runs` includes.
    counted: usize,
    /// The ledger has to be durable up to this offset before a client learns of the share-partition; `None` if the
    /// start restored it.
    begun: Option<Offset>,
    /// The ledger lacks its last deliveries.
    has_unstored: bool,
    /// The last read of records that were never delivered before.
    last_read: Option<ReadSpan>,
    /// Set under the lock of the map when the share-partition is removed from it.
    is_gone: bool,
}

impl ShareService {
    /// Restores the share-partitions from the ledger. If that is damaged, no request is answered.
    ///
    /// # Errors
    /// When the ledger cannot be read, or holds records of another kind.
    pub fn open(
        log: &Log,
        groups: Arc<GroupService>,
        settings: BTreeMap<GroupName, ShareSettings>,
        clock: Arc<dyn Clock>,
    ) -> Result<ShareService, LogError> {
        let ledger = Ledger::open(log, LEDGER)?;
        let (records, is_damaged) = match ledger.read() {
            Err(error @ LogError::Corrupted { .. }) => {
                tracing::error!("share groups are refused: {error}");
                (Vec::new(), true)
            }
            read => (read?, false),
        };
        let shared = settings
            .into_iter()
            .map(|(group, own)| (group, Arc::new(own)));
        let service = ShareService {
            partitions: Mutex::default(),
            sessions: Sessions::default(),
            letters: Letters::default(),
            deliveries: Deliveries::default(),
            settings: Mutex::new(shared.collect()),
            defaults: Arc::default(),
            groups,
            ledger: Arc::new(ledger),
            log: log.clone(),
            clock,
            runs: AtomicUsize::new(0),
            key_hasher: RandomState::new(),
            is_damaged,
        };
        let mut partitions = service.partitions.lock();
        let mut changed = Vec::new();
        for stored in records {
            let (key, shares) = decode(stored).map_err(|error| LogError::BadSetting {
                setting: LEDGER,
                why: format!("the stream holds something else than states of records: {error}"),
            })?;
            let Some(mut shares) = shares else {
                continue;
            };
            // A crash may have come between the deletion of a group and that of its states.
            if service.is_missing(&key) {
                changed.push(record(&key, None));
                continue;
            }
            // The partition may have lost records that the ledger has the states of: its new records are others.
            let end = service.end_of(&key);
            if end.is_some_and(|end| shares.truncate(end)) {
                changed.push(record(&key, Some(&shares)));
            }
            let entry = service.entry(&key, shares);
            partitions.insert(key, Arc::new(Mutex::new(entry)));
        }
        drop(partitions);
        if !changed.is_empty() {
            let stored = service.ledger.append(changed, service.clock.now());
            // Durable before there are new records, which the states would otherwise belong to after a crash.
            let stored = stored.and_then(|end| service.ledger.lane().wait_durable(end));
            if let Err(error) = stored {
                tracing::warn!(
                    "cannot remove the states of deleted share groups and of lost records; the next start tries again: {error}"
                );
            }
        }
        Ok(service)
    }

    /// Returns whether requests go unanswered, since the ledger cannot be read.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Returns the sessions of members.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns the groups.
    pub fn groups(&self) -> &GroupService {
        &self.groups
    }

    /// The settings of a group.
    pub fn settings(&self, group: &GroupName) -> Arc<ShareSettings> {
        let settings = self.settings.lock();
        Arc::clone(settings.get(group).unwrap_or(&self.defaults))
    }

    /// Sets the settings of a group. They apply from now on; a held lock keeps its time-out.
    pub fn set_settings(&self, group: GroupName, settings: ShareSettings) {
        let mut all = self.settings.lock();
        match settings == *self.defaults {
            true => all.remove(&group),
            false => all.insert(group.clone(), Arc::new(settings)),
        };
        drop(all);
        self.sessions.ring(&group);
        self.letters.hurry(&group);
    }

    fn entry(&self, key: &Key, shares: SharePartition) -> Entry {
        let mut entry = Entry {
            shares,
            counted: 0,
            begun: None,
            has_unstored: false,
            last_read: None,
            is_gone: false,
        };
        self.count(key, &mut entry);
        entry
    }

    /// Counts the runs and keys of a share-partition anew, and sees to its dead letters.
    fn count(&self, key: &Key, entry: &mut Entry) {
        let runs = match entry.is_gone {
            true => 0,
            false => entry.shares.run_count() + entry.shares.key_count(),
        };
        self.runs.fetch_add(runs, Ordering::Relaxed);
        self.runs.fetch_sub(entry.counted, Ordering::Relaxed);
        entry.counted = runs;
        if entry.shares.has_dead() && !entry.is_gone {
            self.letters.add(key);
        }
    }

    fn is_full(&self) -> bool {
        self.runs.load(Ordering::Relaxed) >= RUNS_MAX
    }

    /// Returns the time of the monotonic clock.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// The share-partition of this key, if there is one.
    fn find(&self, key: &Key) -> Option<Arc<Mutex<Entry>>> {
        self.partitions.lock().get(key).cloned()
    }

    /// The share-partition of this key, or a new one if `is_permitted` still allows it under the lock.
    fn find_or_begin(
        &self,
        key: &Key,
        lane: &StreamPartition,
        settings: &ShareSettings,
        is_permitted: impl Fn() -> bool,
    ) -> Result<Arc<Mutex<Entry>>, ResponseError> {
        if let Some(entry) = self.find(key) {
            return Ok(entry);
        }
        let start = match settings.offset_reset {
            OffsetReset::Latest => lane.high_watermark(),
            OffsetReset::Earliest => lane.earliest_offset(),
            OffsetReset::ByDuration(age) => {
                let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
                let from = Timestamp(self.clock.now().0.saturating_sub(age));
                let found = lane
                    .record_at(from)
                    .map_err(|error| response_error(&error))?;
                found.map_or(lane.high_watermark(), |(offset, _)| offset)
            }
        };
        self.begin(key, start, is_permitted)
    }

    fn begin(
        &self,
        key: &Key,
        start: Offset,
        is_permitted: impl Fn() -> bool,
    ) -> Result<Arc<Mutex<Entry>>, ResponseError> {
        let mut partitions = self.partitions.lock();
        if let Some(entry) = partitions.get(key) {
            return Ok(Arc::clone(entry));
        }
        if !is_permitted() {
            return Err(ResponseError::GroupIdNotFound);
        }
        if partitions.len() >= PARTITIONS_MAX {
            return Err(ResponseError::GroupMaxSizeReached);
        }
        let shares = SharePartition::new(start);
        let appended = self.store(key, Some(&shares))?;
        let mut entry = self.entry(key, shares);
        entry.begun = Some(appended);
        let entry = Arc::new(Mutex::new(entry));
        partitions.insert(key.clone(), Arc::clone(&entry));
        Ok(entry)
    }

    /// Stores a [draft](SharePartition::draft) of a share-partition in the ledger, then in memory; returns the offset up to
    /// which the ledger has to be durable. If the append fails, nothing changes.
    fn put(
        &self,
        key: &Key,
        entry: &mut MutexGuard<'_, Entry>,
        draft: SharePartition,
    ) -> Result<Offset, ResponseError> {
        let stored = self.store(key, Some(&draft));
        match stored {
            Ok(_) => {
                entry.shares = draft;
                entry.has_unstored = false;
            }
            Err(_) => entry.shares.forget_keys(),
        }
        self.count(key, entry);
        stored
    }

    fn store(&self, key: &Key, shares: Option<&SharePartition>) -> Result<Offset, ResponseError> {
        let appended = self.ledger.append([record(key, shares)], self.clock.now());
        let appended = appended.map_err(|error| {
            tracing::warn!("cannot store the states of records of share groups: {error}");
            response_error(&error)
        })?;
        self.ledger.compact_if_due();
        Ok(appended)
    }

    /// Waits until the ledger is durable up to an offset.
    pub async fn durable(&self, offset: Option<Offset>) -> Result<(), ResponseError> {
        match offset {
            Some(offset) if self.ledger.lane().durable_offset() < offset => {
                let durable = self.ledger.lane().durable(offset).await;
                durable.map_err(|error| response_error(&error))
            }
            _ => Ok(()),
        }
    }

    /// The share-partitions of a group.
    fn of_group(&self, group: &GroupName) -> Vec<(Key, Arc<Mutex<Entry>>)> {
        let partitions = self.partitions.lock();
        let of_group = partitions.range(range_of(group));
        of_group
            .map(|(key, entry)| (key.clone(), Arc::clone(entry)))
            .collect()
    }

    /// Releases all records that a member holds.
    fn release(&self, group: &GroupName, member: &MemberId) {
        let settings = self.settings(group);
        for (key, entry) in self.of_group(group) {
            let mut entry = entry.lock();
            // A restart does the same: the ledger need not know.
            entry.shares.release(member, &settings);
            self.count(&key, &mut entry);
        }
    }

    /// Removes share-partitions; returns the offset up to which the ledger has to be durable.
    ///
    /// # Errors
    /// When the ledger rejects a record: its share-partition and those behind it stay as they are.
    fn forget(
        &self,
        going: impl IntoIterator<Item = (Key, Arc<Mutex<Entry>>)>,
    ) -> Result<Option<Offset>, ResponseError> {
        let mut durable = None;
        for (key, entry) in going {
            let mut partitions = self.partitions.lock();
            let mut entry = entry.lock();
            if entry.is_gone {
                continue;
            }
            durable = Some(self.store(&key, None)?);
            entry.is_gone = true;
            self.count(&key, &mut entry);
            partitions.remove(&key);
        }
        Ok(durable)
    }

    /// Deletes groups without members, and their share-partitions with them. Returns the coordinator's answer, and the
    /// offset up to which the ledger has to be durable.
    pub fn delete_groups(
        &self,
        groups: Vec<GroupName>,
    ) -> (oneshot::Receiver<Answer>, Option<Offset>) {
        let mut durable = None;
        // Under the lock no request finds or begins a share-partition. So a new group of the same name gets none of the
        // old share-partitions, and keeps its own.
        let mut partitions = self.partitions.lock();
        let answer = self.groups.ask(Request::DeleteGroups(groups.clone()));
        for group in groups.iter().filter(|group| self.is_deleted(group)) {
            self.sessions.end_group(group);
            for (key, entry) in partitions.extract_if(range_of(group), |_, _| true) {
                let mut entry = entry.lock();
                entry.is_gone = true;
                self.count(&key, &mut entry);
                // If this fails, the next start removes the share-partition.
                durable = durable.max(self.store(&key, None).ok());
            }
        }
        (answer, durable)
    }

    /// Removes the share-partitions whose group or topic is gone.
    pub fn forget_missing(&self) {
        let partitions = self.partitions.lock();
        let missing = partitions.iter().filter(|(key, _)| self.is_missing(key));
        let missing: Vec<_> = missing
            .map(|(key, entry)| (key.clone(), Arc::clone(entry)))
            .collect();
        drop(partitions);
        // If a removal fails, the next start repeats it.
        let _ = self.forget(missing);
    }

    /// Returns the offset behind the last record of a partition; `None` if damage hides it.
    fn end_of(&self, key: &Key) -> Option<Offset> {
        let stream = self.log.stream_by_uuid(Uuid::from_u128(key.topic.0));
        let lane = lane_of(&stream.ok()?, key.partition.0).ok()?;
        lane.damage().is_none().then(|| lane.next_offset())
    }

    /// Whether the group or the topic of a share-partition is gone.
    fn is_missing(&self, key: &Key) -> bool {
        let stream = self.log.stream_by_uuid(Uuid::from_u128(key.topic.0));
        if matches!(stream, Err(LogError::UnknownStream { .. })) {
            return true;
        }
        self.is_deleted(&key.group)
    }

    /// Whether there is no share group of this name. Where the groups cannot be read, nothing is known of them.
    fn is_deleted(&self, group: &GroupName) -> bool {
        !self.groups.is_damaged() && self.groups.share_group_members(group).is_none()
    }
}

/// The keys of a group's share-partitions.
fn range_of(group: &GroupName) -> RangeInclusive<Key> {
    let key = |topic, partition| Key {
        group: group.clone(),
        topic: TopicId(topic),
        partition: Partition(partition),
    };
    key(u128::MIN, i32::MIN)..=key(u128::MAX, i32::MAX)
}
