//! Decides about a change of a key, given the key's newest version.

use std::borrow::Cow;

use millstream_base::Offset;

use super::{ChangeError, KeyChange, KeyCondition, NewValue};
use crate::keys::tail::{Content, InTail, KeyTail};

/// The newest version of a key that a look-up has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Older {
    pub offset: Offset,
    pub content: Content,
}

/// The decision about a change.
#[derive(Debug)]
pub enum Decision<'a> {
    Store {
        value: Option<Cow<'a, [u8]>>,
        /// Of a change that adds.
        sum: Option<i64>,
    },
    Refuse {
        why: ChangeError,
        /// The reason holds for good when the lane is durable up to here.
        settled_at: Offset,
    },
}

/// Decides about a change of a key. `older` is the key's newest version before the tail; `None` if it had no value. Versions
/// before `earliest` have been deleted.
pub fn decide<'a>(
    change: &KeyChange<'a>,
    tail: &KeyTail,
    older: Option<Older>,
    earliest: Offset,
) -> Decision<'a> {
    if !change.is_conditional() {
        return store(change.value, None);
    }
    let (newest, settled_at) = match tail.get(change.key, earliest) {
        InTail::Undecided => return refuse(ChangeError::Undecided, Offset(0)),
        InTail::Older => (older, Offset(0)),
        InTail::Newest(version) => {
            let newest = Older {
                offset: version.offset,
                content: version.content,
            };
            (Some(newest), version.settled_at)
        }
    };
    let has_value =
        |newest: &Older| newest.content != Content::Tombstone && newest.offset >= earliest;
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
        return store(change.value, None);
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
        Some(sum) => store(change.value, Some(sum)),
        None => refuse(ChangeError::Overflow { value }, settled_at),
    }
}

fn store(value: NewValue<'_>, sum: Option<i64>) -> Decision<'_> {
    let value = match value {
        NewValue::Put(value) => Some(Cow::Borrowed(value)),
        NewValue::Delete => None,
        NewValue::Add(_) => sum.map(|sum| Cow::Owned(sum.to_string().into_bytes())),
    };
    Decision::Store { value, sum }
}

fn refuse<'a>(why: ChangeError, settled_at: Offset) -> Decision<'a> {
    Decision::Refuse { why, settled_at }
}
