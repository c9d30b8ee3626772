//! Share-partitions (KIP-932): one partition of a topic as the members of one share group consume it.
//!
//! Several members read the same partition. The broker locks each record for one member, and the member acknowledges
//! each record by itself.
//!
//! ```text
//!                    acquire                  ACCEPT
//!      Available ───────────────► Acquired ───────────────► Acknowledged
//!          ▲                       │   │
//!          │  RELEASE, time-out,   │   │  REJECT, GAP; or RELEASE, time-out or end of
//!          │  end of the session   │   │  the session after the last delivery
//!          └───────────────────────┘   └──────────────────► Archived
//! ```
//!
//! Each `acquire` adds 1 to the record's delivery count. No record leaves the states Acknowledged and Archived, so this
//! module holds both as one: finished. The offsets fall into three parts:
//!
//! ```text
//!      0 … start         start … end                      end …
//!      finished          in flight: a state for each      available, never delivered
//! ```
//!
//! [`SharePartition`] is a state machine without I/O and clock. It holds runs of records with the same state, so that
//! a million records take the memory of one while their states agree. Invariants:
//!
//! - The runs cover `start … end` without gap or overlap, and no two neighbours have the same state.
//! - The first run is not finished: `start` moves behind finished runs.
//! - At most [`ShareSettings::record_locks_max`] records between `start` and `end` are unfinished. So there are at most
//!   twice as many runs, and one more.
//! - An acquired record belongs to one member. Only that member's acknowledgement, before the lock times out, changes
//!   its state; an acknowledgement counts as a whole or not at all.
//! - An available record in flight was delivered at least once, and may be delivered once more, except in a group that
//!   is ordered by key.
//!
//! A group may be [ordered by key](Order::Key). Then the keys of all unfinished records in flight are known. Records
//! enter the part in flight with their keys before a member acquires them, and a record is blocked, a state beside
//! Available, until all earlier ones of its key are finished.
//!
//! A group may have a [topic for dead letters](ShareSettings::dead_letter_topic). Then a record that would be archived is
//! dead first, a state beside Acquired, and is archived when its dead letter is durable. It counts as unfinished, so the
//! next record of its key waits for the letter.
//!
//! A member may leave the acknowledgement of records to a transaction. These records are prepared, a state beside
//! Acquired without a lock: the commit finishes them, and the abort gives them back. They count as unfinished.
//!
//! Around the state machine, [`service`] keeps the states in the log, and answers requests about records.
//!
//! The [record](record) of a share-partition holds all that a restart needs. It holds an acquired record as an available
//! one with its delivery count: locks do not outlive the process. A prepared record stays prepared.

mod acknowledgement;
mod keys;
mod partition;
mod receipt;
pub mod record;
pub mod service;
mod settings;
#[cfg(test)]
mod tests;

pub use self::acknowledgement::{Acknowledgement, Refused, checked};
pub use self::keys::KeyHash;
pub use self::partition::{AcquiredRun, DeadRecord, Death, SharePartition};
pub use self::receipt::Receipt;
pub use self::settings::{
    DEAD_LETTERS_ENABLE, DEAD_LETTERS_PREFIX, Isolation, OffsetReset, Order, ShareSettings,
};
