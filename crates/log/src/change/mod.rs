//! Conditional changes of keys: puts and deletes that demand a version, and sums.
//!
//! A change compares with the newest *appended* version of its key, durable or not, so of two changes that demand the same
//! version one wins. These hold, whatever threads append, look up, commit, abort and compact at the same time:
//!
//! 1. **No record of the key comes between the comparison and the append.** A change looks its key up, which may take I/O;
//!    then it has the lane's [tail](crate::keys::tail) for itself, which has every record that the look-up may have missed up
//!    to a moment ago; then it takes the lock of the lane's head, and adds the few records since. It begins anew if one is
//!    of its key. Under that lock it reads memory only.
//! 2. **Look-up and tail leave no gap**: the tail begins at or before the last stable offset (LSO) of the look-up's beginning.
//!    All transactions with earlier records had ended then, so the tail knows each transaction that may still change a key.
//! 3. **A key that an open or prepared transaction has written is refused**: its newest version is not known.
//! 4. **A refusal may name a version that a crash loses**, so the caller must answer it only once that version is as durable as
//!    the stream's setting asks for.
//!
//! Unconditional puts and deletes go with the others and need none of this.
//!
//! Changes that are made *together* are in one chunk. In a transaction, which makes changes in several partitions together, also
//! unconditional ones refuse a key that another open transaction has written: else two of them could end in one order in one
//! partition, and in the other order in another.

mod append;
mod decide;

use std::time::Duration;

use millstream_base::{Offset, ProducerEpoch, ProducerId};
use millstream_record::Header;

use crate::error::LogError;

pub use self::append::CHANGE_OVERHEAD_BYTES;
pub(crate) use self::append::{Place, change_keys, change_keys_together, changes_bytes_max};
pub(crate) use self::decide::Older;

/// A change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyChange<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The condition for the change.
    pub condition: KeyCondition,
    /// The key's new value.
    pub value: NewValue<'a>,
    /// How long the new value lives from the time of the stream's clock on ([`KEYED_CLOCK`](crate::KEYED_CLOCK)); `None` for as long as the stream's setting says ([`TTL`](crate::TTL)). The value that a
    /// number is added to keeps its end.
    pub ttl: Option<Duration>,
    /// The secondary keys of the new record, as headers: see [`secondary_key`](millstream_record::secondary_key). They take the
    /// place of the older version's. A deletion has none.
    pub secondary: &'a [Header<'a>],
}

/// The demand of a change on the newest version of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyCondition {
    /// Nothing.
    Any,
    /// The key has a value.
    Present,
    /// The key has no value.
    Absent,
    /// The version that has this offset is the newest, and has a value.
    Version(Offset),
}

/// The new value of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewValue<'a> {
    /// These bytes.
    Put(&'a [u8]),
    /// None: the key is deleted.
    Delete,
    /// The sum of the present value and this number, in decimal digits. The present value is a whole number from −2⁶³ to
    /// 2⁶³ − 1 as JSON writes it; an absent one counts as 0.
    Add(i64),
}

/// A change that was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// The new version: the offset of its record.
    pub version: Offset,
    /// The new value of an [`NewValue::Add`].
    pub sum: Option<i64>,
}

/// The reason why a change was not stored.
#[derive(Clone, thiserror::Error)]
pub enum ChangeError {
    /// Its condition does not hold.
    #[error("the condition does not hold: {}", newest_in_words(*.newest))]
    OtherVersion {
        /// The newest version; `None` if the key has no value.
        newest: Option<Offset>,
    },
    /// The value is not a whole number, or one beyond the bounds.
    #[error(
        "the value of version {newest} is not a whole number from {} to {} in decimal digits; put one first",
        i64::MIN,
        i64::MAX
    )]
    NotANumber {
        /// The version of the value.
        newest: Offset,
    },
    /// The sum is beyond the bounds.
    #[error(
        "the value is {value}, and the sum is not between {} and {}",
        i64::MIN,
        i64::MAX
    )]
    Overflow {
        /// The present value.
        value: i64,
    },
    /// A transaction that has not ended has written the key.
    #[error(
        "a transaction that has not ended has written the key: try again when it has (`millstream transaction list`)"
    )]
    Undecided,
    /// Another change of the same call is refused.
    #[error("another change is refused, and they are made together or not at all")]
    NotAlone,
    /// The log has an error.
    #[error(transparent)]
    Log(#[from] LogError),
}

millstream_base::debug_as_display!(ChangeError);

fn newest_in_words(newest: Option<Offset>) -> String {
    match newest {
        Some(newest) => format!("the newest version of the key is {newest}"),
        None => "the key has no value".to_owned(),
    }
}

/// A transaction that changes keys. It has no record in the partition yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeTransaction {
    /// Its producer.
    pub producer: ProducerId,
    /// The producer's epoch: each transaction has its own.
    pub epoch: ProducerEpoch,
}

/// The changes that are stored together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Each change that is not refused.
    Each,
    /// All of them, or none.
    Together(Option<ChangeTransaction>),
}

/// The outcomes of changes.
#[derive(Debug, Clone)]
pub struct KeyChanges {
    /// The outcome of each change, in the order of the changes.
    pub outcomes: Vec<Result<Changed, ChangeError>>,
    /// The client may be answered when a producer of the records before this offset would be.
    pub answer_at: Offset,
}

impl KeyChange<'_> {
    /// Whether it depends on the key's newest version.
    pub(crate) fn is_conditional(&self) -> bool {
        self.condition != KeyCondition::Any || matches!(self.value, NewValue::Add(_))
    }
}
