//! A range of keys, in the order of their bytes.

use std::ops::Bound;

use serde::{Deserialize, Serialize};

/// A range of keys, in the order of their bytes.
///
/// ```
/// use millstream_base::KeyRange;
///
/// let range = KeyRange::prefix("user/");
/// assert!(range.contains(b"user/7") && !range.contains(b"users"));
/// let range = KeyRange::new("a", Some(b"c".to_vec()));
/// assert!(range.contains(b"bcd") && !range.contains(b"c"));
/// assert!(KeyRange::all().contains(b""));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRange {
    /// The first key.
    pub from: Vec<u8>,
    /// The first key behind the range; `None` is the end of all keys.
    pub until: Option<Vec<u8>>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> KeyRange {
        KeyRange {
            from: Vec::new(),
            until: None,
        }
    }

    /// The keys from `from` on, before `until`. Empty if `until` is not greater than `from`.
    pub fn new(from: impl Into<Vec<u8>>, until: Option<Vec<u8>>) -> KeyRange {
        KeyRange {
            from: from.into(),
            until,
        }
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> KeyRange {
        let from: Vec<u8> = prefix.into();
        let until = from.iter().rposition(|byte| *byte < u8::MAX).map(|last| {
            let mut until = from[..=last].to_vec();
            until[last] += 1;
            until
        });
        KeyRange { from, until }
    }

    /// This key alone.
    pub fn key(key: impl Into<Vec<u8>>) -> KeyRange {
        let from: Vec<u8> = key.into();
        let until = Some([&from[..], b"\0"].concat());
        KeyRange { from, until }
    }

    /// Returns the key of a range of one key.
    pub fn only_key(&self) -> Option<&[u8]> {
        let until = self.until.as_deref()?;
        (until.split_last() == Some((&0, &self.from[..]))).then_some(&self.from[..])
    }

    /// Returns whether the range has no keys.
    pub fn is_empty(&self) -> bool {
        self.until.as_ref().is_some_and(|until| *until <= self.from)
    }

    /// Returns whether a key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.until.as_deref().is_none_or(|until| key < until)
    }

    /// Returns the bounds, for a map.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let until = self.until.as_deref();
        (
            Bound::Included(&self.from),
            until.map_or(Bound::Unbounded, Bound::Excluded),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_range_carries_over_trailing_0xff_bytes() {
        let until = |prefix: &[u8]| KeyRange::prefix(prefix).until;
        assert_eq!(until(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(until(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!((until(b"\xff\xff"), until(b"")), (None, None));
        let range = KeyRange::prefix(b"a\xff");
        assert!(range.contains(b"a\xff") && range.contains(b"a\xff\xff\xff"));
        assert!(!range.contains(b"a\xfe") && !range.contains(b"b"));
    }

    #[test]
    fn a_range_may_have_one_key() {
        for key in [&b""[..], b"a", b"a\0", b"\xff"] {
            let range = KeyRange::key(key);
            assert!(range.contains(key) && !range.contains(&[key, b"\0"].concat()));
            assert_eq!(range.only_key(), Some(key));
        }
        for range in [
            KeyRange::all(),
            KeyRange::prefix("a"),
            KeyRange::new("a", None),
        ] {
            assert_eq!(range.only_key(), None);
        }
        assert_eq!(KeyRange::new("a", Some(b"b\0".to_vec())).only_key(), None);
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_empty() {
        for (from, until, is_empty) in [
            ("a", Some("b"), false),
            ("a", Some("a"), true),
            ("b", Some("a"), true),
            ("", Some(""), true),
            ("", None::<&str>, false),
        ] {
            let range = KeyRange::new(from, until.map(Into::into));
            assert_eq!(range.is_empty(), is_empty, "{range:?}");
            assert_eq!(range.contains(from.as_bytes()), !is_empty, "{range:?}");
        }
    }
}
