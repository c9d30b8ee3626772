//! The keys of an index of secondary keys: a secondary key and the record's key, in one sequence of bytes that sorts as the pair.
//!
//! A zero in the secondary key is followed by 255, and its end is a zero and a one. So no secondary key with its end begins
//! another one, and a key that continues another comes behind all entries of that.

use millstream_base::KeyRange;

/// Follows a zero within a secondary key.
const ESCAPE: u8 = 255;

/// The end of a secondary key.
const END: [u8; 2] = [0, 1];

/// Replaces `bytes` by the entry of a secondary key and a record's key.
pub fn encode(secondary: &[u8], key: &[u8], bytes: &mut Vec<u8>) {
    bytes.clear();
    for byte in secondary {
        bytes.push(*byte);
        if *byte == 0 {
            bytes.push(ESCAPE);
        }
    }
    bytes.extend(END);
    bytes.extend_from_slice(key);
}

/// Returns the secondary key and the record's key of an entry; `None` if it is none.
pub fn decode(entry: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let key = key_of(entry)?;
    let mut rest = entry[..entry.len() - key.len() - END.len()].iter();
    let mut secondary = Vec::with_capacity(rest.len());
    while let Some(byte) = rest.next() {
        secondary.push(*byte);
        if *byte == 0 {
            rest.next();
        }
    }
    Some((secondary, key))
}

/// Returns the record's key of an entry; `None` if it is none.
pub fn key_of(entry: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        at += entry[at..].iter().position(|byte| *byte == 0)?;
        let (next, rest) = entry[at + 1..].split_first()?;
        match *next {
            ESCAPE => at += 2,
            next if next == END[1] => return Some(rest),
            _ => return None,
        }
    }
}

/// Returns the entries of a range of secondary keys, from an entry on if one is given.
pub fn range_of(range: &KeyRange, from: Option<(&[u8], &[u8])>) -> KeyRange {
    let first = |secondary: &[u8], key: &[u8]| {
        let mut bytes = Vec::new();
        encode(secondary, key, &mut bytes);
        bytes
    };
    let begin = first(&range.from, b"");
    let from = from.map(|(secondary, key)| first(secondary, key));
    KeyRange {
        from: from.map_or_else(|| begin.clone(), |from| from.max(begin.clone())),
        until: range.until.as_deref().map(|until| first(until, b"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_entries_sort_as_their_pairs_and_round_trip() {
        let parts: [&[u8]; 12] = [
            b"", b"\0", b"\0\0", b"\0\x01", b"\0\xff", b"\x01", b"a", b"a\0", b"a\0b", b"ab",
            b"\xff", b"\xff\0",
        ];
        let mut pairs: Vec<(&[u8], &[u8])> = Vec::new();
        for secondary in parts {
            pairs.extend(parts.map(|key| (secondary, key)));
        }
        let encoded = |(secondary, key): (&[u8], &[u8])| {
            let mut bytes = Vec::new();
            encode(secondary, key, &mut bytes);
            bytes
        };
        for one in &pairs {
            let entry = encoded(*one);
            assert_eq!(decode(&entry), Some((one.0.to_vec(), one.1)));
            for other in &pairs {
                assert_eq!(
                    entry.cmp(&encoded(*other)),
                    one.cmp(other),
                    "{one:?} {other:?}"
                );
            }
        }
    }

    #[test]
    fn decoding_other_bytes_gives_no_entry() {
        for bytes in [&b""[..], b"a", b"\0", b"a\0", b"a\0\x02k", b"\0\xff"] {
            assert_eq!((decode(bytes), key_of(bytes)), (None, None), "{bytes:?}");
        }
    }

    #[test]
    fn a_range_of_secondary_keys_has_their_entries_and_no_others() {
        let ranges = [
            KeyRange::all(),
            KeyRange::key("a"),
            KeyRange::key(""),
            KeyRange::prefix("a"),
            KeyRange::prefix([255]),
            KeyRange::new("a\0", Some(b"b".to_vec())),
            KeyRange::new("b", Some(b"a".to_vec())),
        ];
        let parts: [&[u8]; 8] = [b"", b"\0", b"a", b"a\0", b"a\0\x01", b"ab", b"b", b"\xff"];
        let mut entry = Vec::new();
        for range in &ranges {
            for secondary in parts {
                for key in parts {
                    encode(secondary, key, &mut entry);
                    let entries = range_of(range, None);
                    let is_in = range.contains(secondary) && !range.is_empty();
                    assert_eq!(entries.contains(&entry), is_in, "{range:?} {entry:?}");
                    let from = range_of(range, Some((b"a", b"b")));
                    let is_behind = (secondary, key) >= (&b"a"[..], &b"b"[..]);
                    assert_eq!(
                        from.contains(&entry),
                        is_in && is_behind,
                        "{range:?} {entry:?}"
                    );
                }
            }
        }
    }
}
