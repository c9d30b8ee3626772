//! Holds: promises that a keyed stream can be read by key with its values of a moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_record::later;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::error::{LogError, Result};
use crate::lane::holds::HoldId;
use crate::names::check_plain;

/// The most holds of a stream: each takes a merge of key files, and two groups of each partition.
pub const HOLDS_MAX: usize = 16;

/// The lifetime of a hold that names no time.
pub const HOLD_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The longest time for which a hold stays.
pub const HOLD_LIFE_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The longest text that names the owner of a hold.
pub const HOLD_OWNER_BYTES_MAX: usize = 1100;

/// A hold to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewHold<'a> {
    /// Its name, which no other hold of the stream has.
    pub name: &'a str,
    /// The user or the job that asks for it.
    pub owner: &'a str,
    /// How long it stays; [`HOLD_LIFE`] by default, and [`HOLD_LIFE_MAX`] at most.
    pub life: Option<Duration>,
}

/// A hold: of each key, compaction keeps the version that it had when the hold was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Its name.
    pub name: String,
    /// The user or the job that has asked for it.
    pub owner: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// How many partitions the stream had. If it has more now, keys may have other owners, and nothing is found by the hold.
    pub partitions: u32,
    /// The partitions with records, by their numbers.
    pub(crate) held: Vec<HeldPartition>,
}

/// A hold in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldPartition {
    pub partition: u32,
    /// The offset behind the versions that it keeps.
    pub end: Offset,
    /// The partition's first offset when the hold was made.
    pub first: Offset,
    /// The leader epoch of the record before `end`: a higher one there means that records were lost since.
    pub epoch: i32,
}

/// A hold of a list.
#[derive(Debug, Clone)]
pub struct ListedHold {
    /// The hold.
    pub hold: Arc<Hold>,
    /// Whether all that it had is there: retention has removed nothing since.
    pub is_whole: bool,
}

impl NewHold<'_> {
    pub(crate) fn check(&self) -> Result<Duration> {
        check_plain(self.name)?;
        let life = self.life.unwrap_or(HOLD_LIFE);
        if life.is_zero() || life > HOLD_LIFE_MAX {
            return Err(LogError::BadSetting {
                setting: "until",
                why: "a hold stays for a millisecond to 366 days".to_owned(),
            });
        }
        if self.owner.len() > HOLD_OWNER_BYTES_MAX {
            return Err(LogError::BadSetting {
                setting: "owner",
                why: format!("it is longer than {HOLD_OWNER_BYTES_MAX} bytes"),
            });
        }
        Ok(life)
    }
}

impl Hold {
    pub(crate) fn new(new: &NewHold<'_>, life: Duration, now: Timestamp, partitions: u32) -> Hold {
        Hold {
            name: new.name.to_owned(),
            owner: new.owner.to_owned(),
            created: now,
            until: later(now, life),
            partitions,
            held: Vec::new(),
        }
    }

    /// Returns the offset behind the versions of a partition that it keeps; 0 if there were none.
    pub fn end_of(&self, partition: u32) -> Offset {
        let held = self
            .held
            .binary_search_by_key(&partition, |held| held.partition);
        held.map_or(Offset(0), |n| self.held[n].end)
    }

    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.until <= now
    }
}

/// The holds of a stream.
#[derive(Debug, Default)]
pub struct StreamHolds {
    state: Mutex<State>,
    /// Locked while a hold is removed.
    changing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    /// The holds by name. `None` is a hold that is being created.
    holds: BTreeMap<String, (HoldId, Option<Arc<Hold>>)>,
}

impl StreamHolds {
    /// Reserves a name.
    ///
    /// # Errors
    /// When a hold has it, or there are too many.
    pub fn reserve(&self, stream: &str, name: &str) -> Result<HoldId> {
        let mut state = self.state.lock();
        if state.holds.contains_key(name) {
            return Err(LogError::Exists {
                name: format!("hold {name} of stream {stream}"),
            });
        }
        if state.holds.len() >= HOLDS_MAX {
            return Err(LogError::TooManyHolds {
                stream: stream.to_owned(),
            });
        }
        let id = HoldId(state.next_id);
        state.next_id += 1;
        state.holds.insert(name.to_owned(), (id, None));
        Ok(id)
    }

    /// Adds a hold that a start has found.
    pub fn restore(&self, hold: Arc<Hold>) -> HoldId {
        let mut state = self.state.lock();
        let id = HoldId(state.next_id);
        state.next_id += 1;
        state.holds.insert(hold.name.clone(), (id, Some(hold)));
        id
    }

    /// Puts a hold in force whose name is reserved.
    pub fn put(&self, id: HoldId, hold: Arc<Hold>) {
        let mut state = self.state.lock();
        state.holds.insert(hold.name.clone(), (id, Some(hold)));
    }

    /// Forgets a name.
    pub fn remove(&self, name: &str) {
        self.state.lock().holds.remove(name);
    }

    /// Returns a hold in force.
    pub fn get(&self, name: &str) -> Option<(HoldId, Arc<Hold>)> {
        let state = self.state.lock();
        let (id, hold) = state.holds.get(name)?;
        Some((*id, Arc::clone(hold.as_ref()?)))
    }

    /// Returns all holds in force, by name.
    pub fn all(&self) -> Vec<Arc<Hold>> {
        let state = self.state.lock();
        let holds = state.holds.values();
        holds.filter_map(|(_, hold)| hold.clone()).collect()
    }

    /// Returns the right to take holds away.
    pub fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }
}

pub(crate) fn unknown(stream: &str, name: &str) -> LogError {
    LogError::UnknownHold {
        stream: stream.to_owned(),
        name: name.chars().take(HOLD_OWNER_BYTES_MAX).collect(),
    }
}
