//! Decides about a change of a key, given the key's newest version.

use std::borrow::Cow;

use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_record::{Life, later};

use super::{ChangeError, KeyChange, KeyCondition, NewValue};
use crate::keys::tail::{Content, InTail, KeyTail};

/// The newest version of a key that a look-up has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Older {
    pub offset: Offset,
    pub content: Content,
    pub life: Life,
}

/// The decision about a change.
#[derive(Debug)]
pub enum Decision<'a> {
    Store {
        value: Option<Cow<'a, [u8]>>,
        /// The sum, for a change that adds.
        sum: Option<i64>,
        /// The expiry that the new record names.
        expires: Option<Timestamp>,
    },
    Refuse {
        why: ChangeError,
        /// The reason holds for good when the lane is durable up to here.
        settled_at: Offset,
    },
}

/// The stream and the time of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The time by the stream's clock.
    pub now: Timestamp,
    /// The lifetime of values without an expiry of their own.
    pub ttl: Option<Duration>,
    /// Versions before it have been deleted.
    pub earliest: Offset,
    /// Whether also changes without a condition refuse the keys of open transactions.
    pub is_exclusive: bool,
}

/// Decides about a change of a key. `older` is the key's newest version before the tail; `None` if it had no value.
pub fn decide<'a>(
    change: &KeyChange<'a>,
    tail: &KeyTail,
    older: Option<Older>,
    moment: &Moment,
) -> Decision<'a> {
    let Moment {
        now, ttl, earliest, ..
    } = *moment;
    let new_end = change.ttl.map(|ttl| later(now, ttl));
    let in_tail = tail.get(change.key, earliest);
    if !change.is_conditional() {
        return match moment.is_exclusive && in_tail == InTail::Undecided {
            true => refuse(ChangeError::Undecided, Offset(0)),
            false => store(change.value, None, new_end),
        };
    }
    let (newest, settled_at) = match in_tail {
        InTail::Undecided => return refuse(ChangeError::Undecided, Offset(0)),
        InTail::Older => (older, Offset(0)),
        InTail::Newest(version) => {
            let newest = Older {
                offset: version.offset,
                content: version.content,
                life: version.life,
            };
            (Some(newest), version.settled_at)
        }
    };
    let has_value = |newest: &Older| {
        let is_stored = newest.content != Content::Tombstone && newest.offset >= earliest;
        is_stored && !newest.life.is_over(ttl, now)
    };
    let newest = newest.filter(has_value);
    let holds = match change.condition {
        KeyCondition::Any => true,
        KeyCondition::Present => newest.is_some(),
        KeyCondition::Absent => newest.is_none(),
        KeyCondition::Version(offset) => newest.is_some_and(|newest| newest.offset == offset),
    };
    if !holds {
        let newest = newest.map(|newest| newest.offset);
        return refuse(ChangeError::OtherVersion { newest }, settled_at);
    }
    let NewValue::Add(number) = change.value else {
        return store(change.value, None, new_end);
    };
    let value = match newest {
        None => 0,
        Some(Older {
            content: Content::Number(value),
            ..
        }) => value,
        Some(Older { offset, .. }) => {
            return refuse(ChangeError::NotANumber { newest: offset }, settled_at);
        }
    };
    match value.checked_add(number) {
        Some(sum) => {
            let end = newest.map_or(new_end, |newest| newest.life.expires);
            store(change.value, Some(sum), end)
        }
        None => refuse(ChangeError::Overflow { value }, settled_at),
    }
}

fn store(value: NewValue<'_>, sum: Option<i64>, end: Option<Timestamp>) -> Decision<'_> {
    let value = match value {
        NewValue::Put(value) => Some(Cow::Borrowed(value)),
        NewValue::Delete => None,
        NewValue::Add(_) => sum.map(|sum| Cow::Owned(sum.to_string().into_bytes())),
    };
    let expires = end.filter(|_| value.is_some());
    Decision::Store {
        value,
        sum,
        expires,
    }
}

fn refuse<'a>(why: ChangeError, settled_at: Offset) -> Decision<'a> {
    Decision::Refuse { why, settled_at }
}
