//! The keys of windows, and their text in an address.

use std::any::Any;
use std::fmt;
use std::hash::Hash;

use serde::de::{DeserializeOwned, Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A key of windows. Serialized, it goes to other ranks and into checkpoints. As text, it names state for readers: a
/// string as it is, a number in digits, anything else as JSON, such as `["tea",7]` for a pair. A key that JSON cannot
/// hold (a map whose keys are no strings) works, but its state cannot be read by text.
///
/// Equal keys must serialize alike, since the [canonical encoding](millstream_base::key) of a key decides its owner.
pub trait Key: Hash + Eq + Clone + Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<K> Key for K where K: Hash + Eq + Clone + Serialize + DeserializeOwned + Send + Sync + 'static {}

/// The key of windows over all items: see
/// [`Operators::aggregate`](crate::Operators::aggregate). As text it is `all`; in a
/// [`WindowResult`](super::WindowResult) it is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct All;

const ALL: &str = "all";

impl All {
    /// Whether `key` is this one. The type of the key decides it when this is compiled.
    #[inline(always)]
    pub(crate) fn is<K: 'static>(key: &K) -> bool {
        (key as &dyn Any).is::<All>()
    }
}

impl fmt::Display for All {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALL)
    }
}

/// Takes no bytes between ranks.
impl Serialize for All {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_str(ALL),
            false => serializer.serialize_unit(),
        }
    }
}

/// A text without a key stands for this key, too.
impl<'de> Deserialize<'de> for All {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfText;

        impl<'de> Visitor<'de> for OfText {
            type Value = All;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{ALL}\" or nothing")
            }

            fn visit_none<E: Error>(self) -> Result<All, E> {
                Ok(All)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<All, D::Error> {
                deserializer.deserialize_str(self)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<All, E> {
                match text {
                    ALL => Ok(All),
                    other => Err(E::custom(format!("\"{other}\" is not \"{ALL}\""))),
                }
            }
        }

        match deserializer.is_human_readable() {
            true => deserializer.deserialize_option(OfText),
            false => <()>::deserialize(deserializer).map(|()| All),
        }
    }
}

/// The text of a key; `None` if JSON cannot hold it.
pub(crate) fn text_of<K: Key>(key: &K) -> Option<String> {
    let json = serde_json::to_string(key).ok()?;
    match json.starts_with('"') {
        true => serde_json::from_str(&json).ok(),
        false => Some(json),
    }
}

/// The keys that have this text: most have a type that leaves one, or none.
pub(crate) fn of_text<K: Key>(text: &str) -> impl Iterator<Item = K> {
    let as_string = serde_json::from_value(Value::String(text.to_owned())).ok();
    as_string.into_iter().chain(serde_json::from_str(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fmt::Debug;
    use std::net::Ipv4Addr;

    #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
    enum Place {
        Home,
        Shop { number: u32, street: String },
    }

    #[track_caller]
    fn check<K: Key + Debug>(key: K, text: &str) {
        assert_eq!(text_of(&key).as_deref(), Some(text));
        assert!(of_text::<K>(text).any(|read| read == key), "{text}");
    }

    #[test]
    fn the_text_of_a_key_is_its_string_or_number_or_else_json() {
        check(7_u32, "7");
        check(-7_i64, "-7");
        check(u64::MAX, "18446744073709551615");
        check(u128::MAX, "340282366920938463463374607431768211455");
        check(true, "true");
        check('x', "x");
        check("tea".to_owned(), "tea");
        check(String::new(), "");
        check("7".to_owned(), "7");
        check("\"7\"".to_owned(), "\"7\"");
        check("a \"b\" /\n\\ ä".to_owned(), "a \"b\" /\n\\ ä");
        check(("a".to_owned(), 1), r#"["a",1]"#);
        check((1, "b".to_owned()), r#"[1,"b"]"#);
        check(Some(3), "3");
        check(None::<u32>, "null");
        check(Some("tea".to_owned()), "tea");
        check(Place::Home, "Home");
        check(
            Place::Shop {
                number: 3,
                street: "Elm".to_owned(),
            },
            r#"{"Shop":{"number":3,"street":"Elm"}}"#,
        );
        check(Ipv4Addr::LOCALHOST, "127.0.0.1");
        check(b"ab".to_vec(), "[97,98]");
        check(All, "all");
    }

    #[test]
    fn a_text_that_is_no_key_does_not_parse() {
        assert_eq!(of_text::<u32>("three").count(), 0);
        assert_eq!(of_text::<u8>("256").count(), 0);
        assert_eq!(of_text::<(u32, u32)>("[1]").count(), 0);
        assert_eq!(of_text::<All>("some").count(), 0);
    }

    #[test]
    fn a_key_that_json_cannot_hold_has_no_text() {
        let key = BTreeMap::from([((1, 2), 3)]);
        assert_eq!(text_of(&key), None);
    }

    #[test]
    fn the_key_of_all_items_takes_no_bytes_between_ranks() {
        assert!(postcard::to_stdvec(&All).unwrap().is_empty());
        let pair: (All, u8) = postcard::from_bytes(&[3]).unwrap();
        assert_eq!(pair, (All, 3));
    }
}
