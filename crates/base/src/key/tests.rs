use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::format::LEVELS_MAX;
use super::{KeyError, decode_key, encode_key};

fn encoded<K: Serialize + ?Sized>(key: &K) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(key, &mut bytes).unwrap();
    bytes
}

/// Checks that bytes of two keys compare as the keys do, and that the keys return.
fn check<K: Serialize + DeserializeOwned + Ord + Debug>(one: &K, other: &K) {
    let (bytes, others) = (encoded(one), encoded(other));
    assert_eq!(one.cmp(other), bytes.cmp(&others), "{one:?} {other:?}");
    assert_eq!(&decode_key::<K>(&bytes).unwrap(), one);
}

/// Checks that bytes are refused, or are the one encoding of a key.
fn check_bytes<K: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(key) = decode_key::<K>(bytes) {
        assert_eq!(encoded(&key), bytes);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Event {
    Open,
    Tagged(String),
    Click(u16),
    Moved(i16, Option<String>),
    Typed { text: Vec<u8>, times: Vec<i16> },
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Id(Vec<u8>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Whole {
    ids: Vec<Id>,
    events: Vec<Event>,
    flags: (bool, (), char),
    digest: [u8; 3],
    counts: BTreeMap<String, Option<i64>>,
    wide: (u128, i128),
    bytes: Vec<Small>,
    names: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Small(u8);

/// Text and bytes over few values, so that prefixes and zeros are frequent.
fn text() -> impl Strategy<Value = String> {
    "[\0\u{1}a\u{ff}]{0,4}"
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![Just(0), Just(1), Just(0xff), any::<u8>()], 0..4)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Open),
        text().prop_map(Event::Tagged),
        any::<u16>().prop_map(Event::Click),
        (-1_i16..2, proptest::option::of(text())).prop_map(|(by, to)| Event::Moved(by, to)),
        (bytes(), vec(-1_i16..2, 0..3)).prop_map(|(text, times)| Event::Typed { text, times }),
    ]
}

fn whole() -> impl Strategy<Value = Whole> {
    let few = (vec(bytes().prop_map(Id), 0..2), vec(event(), 0..2));
    let flags = (any::<bool>(), Just(()), any::<char>());
    let counts = btree_map(text(), any::<Option<i64>>(), 0..3);
    let small = vec((0_u8..3).prop_map(Small), 0..3);
    let names = proptest::option::of(vec(text(), 0..3));
    let parts = (
        few,
        flags,
        any::<[u8; 3]>(),
        counts,
        any::<(u128, i128)>(),
        small,
        names,
    );
    parts.prop_map(
        |((ids, events), flags, digest, counts, wide, bytes, names)| Whole {
            ids,
            events,
            flags,
            digest,
            counts,
            wide,
            bytes,
            names,
        },
    )
}

proptest! {
    #[test]
    fn integers_sort_as_their_bytes(one: (i8, u16, i32, u64), other: (i8, u16, i32, u64)) {
        check(&one, &other);
        check(&one.0, &other.0);
        check(&one.1, &other.1);
        check(&one.2, &other.2);
        check(&one.3, &other.3);
        check(&i64::from(one.2), &i64::from(other.2));
        check(&(one.0, i128::from(one.2)), &(other.0, i128::from(other.2)));
    }

    #[test]
    fn text_and_bytes_sort_as_their_bytes_at_any_place_in_a_key(one in (text(), bytes()), other in (text(), bytes())) {
        check(&one, &other);
        check(&one.0, &other.0);
        check(&one.1, &other.1);
        check(&(Id(one.1.clone()), 1_u8), &(Id(other.1.clone()), 0));
        check(&(vec![one.1.clone()], one.0.clone()), &(vec![other.1.clone()], other.0.clone()));
    }

    #[test]
    fn enums_and_structs_sort_as_their_bytes(one in event(), other in event(), wholes in (whole(), whole())) {
        check(&one, &other);
        check(&Some(one.clone()), &Some(other.clone()));
        check(&vec![one.clone(), other.clone()], &vec![one, other]);
        check(&wholes.0, &wholes.1);
        // The fields behind differ only if all before are equal.
        let near = Whole { names: wholes.1.names.clone(), ..wholes.0.clone() };
        check(&wholes.0, &near);
        let near = Whole { counts: wholes.1.counts, bytes: wholes.1.bytes, ..wholes.0.clone() };
        check(&wholes.0, &near);
    }

    #[test]
    fn floats_sort_by_their_total_order(one: f64, other: f64, small: f32) {
        prop_assert_eq!(encoded(&one).cmp(&encoded(&other)), one.total_cmp(&other));
        prop_assert_eq!(decode_key::<f64>(&encoded(&one)).unwrap().to_bits(), one.to_bits());
        prop_assert_eq!(decode_key::<f32>(&encoded(&small)).unwrap().to_bits(), small.to_bits());
    }

    #[test]
    fn decoding_accepts_only_the_canonical_bytes_of_a_key(
        any in vec(any::<u8>(), 0..40),
        whole in whole(),
        event in event(),
        flips in vec((0_usize..400, any::<u8>()), 1..3),
    ) {
        check_bytes::<(Vec<String>, Vec<u8>)>(&any);
        check_bytes::<(f32, f64, Option<char>)>(&any);
        check_bytes::<BTreeMap<u8, Option<bool>>>(&any);
        check_bytes::<Event>(&any);
        for mut bytes in [encoded(&whole), encoded(&event)] {
            for (at, byte) in &flips {
                let len = bytes.len();
                if let Some(place) = bytes.get_mut(at % len) {
                    *place = *byte;
                }
            }
            check_bytes::<Whole>(&bytes);
            check_bytes::<Event>(&bytes);
            check_bytes::<Whole>(&bytes[..bytes.len() / 2]);
        }
    }
}

#[test]
fn formats_md_shows_the_bytes_of_keys() {
    #[derive(Serialize)]
    enum Action {
        _Open,
        _Close,
        Click(u16),
    }
    let examples = [
        (r#""ada""#, encoded("ada")),
        (r#""""#, encoded("")),
        ("300", encoded(&300_u32)),
        ("-2", encoded(&-2_i64)),
        ("1.5", encoded(&1.5_f64)),
        ("-1.5", encoded(&-1.5_f32)),
        ("true", encoded(&true)),
        ("'é'", encoded(&'é')),
        (r#"("ada", 7)"#, encoded(&("ada", 7_u16))),
        (r#"("a\0b", "c\0")"#, encoded(&("a\0b", "c\0"))),
        (r#"(7, "ada")"#, encoded(&(7_u16, "ada"))),
        ("None", encoded(&None::<String>)),
        (r#"Some("ada")"#, encoded(&Some("ada"))),
        ("Click(7)", encoded(&Action::Click(7))),
        ("[1, 2]", encoded(&vec![1_u16, 2])),
        ("([1, 2], true)", encoded(&(vec![1_u16, 2], true))),
        (r#"["a", ""]"#, encoded(&vec!["a", ""])),
        (r#"{"a": 1}"#, encoded(&BTreeMap::from([("a", 1_u8)]))),
    ];
    let page = include_str!("../../../../docs/formats.md");
    let section = page.split("\n## ").find(|it| it.starts_with("Keys\n"));
    let rows = section
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| `"));
    let shown: Vec<(String, String)> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            let key = cells.next().unwrap().trim_matches('`').to_owned();
            let hex = cells.next_back().unwrap().replace(['`', ' '], "");
            (key, hex)
        })
        .collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let written: Vec<(String, String)> = examples
        .iter()
        .map(|(key, bytes)| ((*key).to_owned(), hex(bytes)))
        .collect();
    assert_eq!(shown, written);
}

#[test]
fn every_nan_encodes_to_one_key_and_the_two_zeros_to_two() {
    let nan = encoded(&f64::NAN);
    assert_eq!(encoded(&-f64::NAN), nan);
    assert_eq!(encoded(&f64::from_bits(0x7ff0_0000_0000_0001)), nan);
    assert_eq!(encoded(&f64::INFINITY).cmp(&nan), Ordering::Less);
    assert_eq!(encoded(&-0.0_f64).cmp(&encoded(&0.0_f64)), Ordering::Less);
    assert!(decode_key::<f64>(&nan).unwrap().is_nan());
    assert!(decode_key::<f64>(&[0xff; 8]).is_err());
}

#[test]
fn a_hash_map_is_encoded_in_the_order_of_its_keys() {
    let map: HashMap<u32, u32> = (0..50).map(|key| (key * 77 % 50, key)).collect();
    let sorted: BTreeMap<u32, u32> = map.clone().into_iter().collect();
    assert_eq!(encoded(&map), encoded(&sorted));
}

#[test]
fn decoding_refuses_trailing_and_missing_bytes() {
    let trailing = KeyError::Trailing { at: 2, len: 3 };
    assert_eq!(decode_key::<u16>(&[0, 0, 0]), Err(trailing));
    assert_eq!(decode_key::<u16>(&[0]), Err(KeyError::Ends { at: 1 }));
    assert_eq!(
        decode_key::<(String, u8)>(b"ada"),
        Err(KeyError::Ends { at: 3 })
    );
    assert_eq!(decode_key::<()>(&[]), Ok(()));
    for (bytes, at) in [(&b"\0\x02"[..], 1), (b"a\0\0", 2)] {
        let expected = "255, or 1 at the end of the text";
        let error = KeyError::Unexpected { at, expected };
        assert_eq!(decode_key::<(String, u8)>(bytes), Err(error));
    }
    assert_eq!(
        decode_key::<String>(b"ab\xffc"),
        Err(KeyError::Unexpected {
            at: 2,
            expected: "text in UTF-8"
        })
    );
}

#[test]
fn encoding_refuses_a_type_that_skips_fields_and_appends_nothing() {
    #[derive(Serialize)]
    struct Sparse {
        first: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        second: Option<u8>,
    }
    let mut bytes = b"before".to_vec();
    let sparse = Sparse {
        first: 1,
        second: None,
    };
    let refused = encode_key(&sparse, &mut bytes);
    assert_eq!(refused, Err(KeyError::SkippedField { field: "second" }));
    assert_eq!(bytes, b"before");
}

#[test]
fn the_nesting_depth_of_a_key_is_bounded() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum List {
        End,
        More(Box<List>),
    }
    let list = |levels: u32| (1..levels).fold(List::End, |list, _| List::More(Box::new(list)));
    let deepest = list(LEVELS_MAX);
    assert_eq!(decode_key::<List>(&encoded(&deepest)), Ok(deepest));
    let refused = encode_key(&list(LEVELS_MAX + 1), &mut Vec::new());
    assert_eq!(refused, Err(KeyError::Levels));
    let endless = [0, 0, 0, 1].repeat(100_000);
    assert_eq!(decode_key::<List>(&endless), Err(KeyError::Levels));
}
