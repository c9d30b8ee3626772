//! Changes of several keys together: `POST /kv/<stream>`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use millstream_base::Offset;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::write::{check_headers, in_time};
use super::{KvPath, parse};
use crate::body::discard_unless_awaited;
use crate::error::RequestError;
use crate::keyed::{KeyChange, KeyCondition, KeyWrite, KeyedError};
use crate::shown::Shown;

/// The most bytes of a body.
const BODY_BYTES_MAX: usize = 4 << 20;

/// The most changes of a request.
const CHANGES_MAX: usize = 1024;

/// The most secondary keys of a change, and the most bytes of their names: the bounds of keyed streams. Each key gets its own copy
/// of its name, so they hold here already.
const SECONDARY_KEYS_MAX: usize = 64;
const SECONDARY_NAME_BYTES_MAX: usize = 64;

/// A change, as the body has it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change<'a> {
    key: Option<String>,
    key_base64: Option<String>,
    /// JSON, which is stored as it is written here.
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    /// A string whose bytes are stored.
    text: Option<String>,
    value_base64: Option<String>,
    add: Option<i64>,
    #[serde(default)]
    delete: bool,
    if_version: Option<u64>,
    #[serde(default)]
    if_absent: bool,
    #[serde(default)]
    if_present: bool,
    ttl_ms: Option<i64>,
    /// By the names of their indexes.
    #[serde(default)]
    secondary: BTreeMap<String, Vec<String>>,
}

/// A change that was made.
#[derive(Serialize)]
struct Made {
    partition: u32,
    version: Offset,
    /// The new value, if it is a sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    sum: Option<i64>,
}

#[derive(Serialize)]
struct AllMade {
    entries: Vec<Made>,
}

/// Makes all changes that the body lists, or none.
pub async fn post(
    State(shown): State<Arc<Shown>>,
    request: Request,
) -> Result<Response, RequestError> {
    let (head, body) = request.into_parts();
    let unknown = || RequestError::UnknownPath(head.uri.path().to_owned());
    let admitted = || {
        let streams = shown.content.keyed().ok_or_else(unknown)?;
        let KvPath { stream, key } = parse(head.uri.path())?;
        if key.is_some() {
            return Err(RequestError::Method {
                method: head.method.to_string(),
                allowed: "GET, HEAD, PUT, PATCH, DELETE",
            });
        }
        if let Some(query) = head.uri.query().filter(|query| !query.is_empty()) {
            let query = query.to_owned();
            let may_live = false;
            return Err(RequestError::WriteQuery { query, may_live });
        }
        check_headers(&head.headers)?;
        streams.value_bytes_max(&stream)?;
        Ok((streams, stream))
    };
    let (streams, stream) = match admitted() {
        Ok(admitted) => admitted,
        Err(error) => {
            discard_unless_awaited(&head.headers, body).await;
            return Err(error);
        }
    };
    let body = shown.bodies.read(&head.headers, body, BODY_BYTES_MAX).await;
    let body = body.map_err(|error| match error {
        RequestError::Keyed(KeyedError::TooLarge { .. }) => {
            RequestError::LargeChanges(BODY_BYTES_MAX)
        }
        error => error,
    })?;
    let changes = changes_of(&body).map_err(RequestError::Changes)?;
    let made = in_time(async { Ok(streams.change_together(&stream, changes).await?) }).await?;
    // Until here its memory counts for the changes.
    drop(body);
    let entries = made.into_iter().map(|made| Made {
        partition: made.version.partition,
        version: made.version.version,
        sum: made.sum,
    });
    let entries = entries.collect();
    Ok(Json(AllMade { entries }).into_response())
}

/// Parses a body; the error names the fault.
fn changes_of(body: &[u8]) -> Result<Vec<(Vec<u8>, KeyWrite)>, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let changes = json.deserialize_seq(Changes);
    let changes = changes.and_then(|changes| json.end().map(|()| changes));
    let changes = changes.map_err(|error| error.to_string())?;
    let changes = changes.into_iter().enumerate();
    let changes = changes.map(|(number, change)| {
        let change = change.parse();
        change.map_err(|why| format!("change {number} {why}"))
    });
    changes.collect()
}

/// Reads the list of changes. It stops at the first change too many: in memory, a change is far larger than its shortest text.
struct Changes;

impl<'de> Visitor<'de> for Changes {
    type Value = Vec<Change<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of changes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut changes = Vec::new();
        while let Some(change) = list.next_element()? {
            if changes.len() == CHANGES_MAX {
                let why = format!("it has more than {CHANGES_MAX} changes, the most of a request");
                return Err(A::Error::custom(why));
            }
            changes.push(change);
        }
        Ok(changes)
    }
}

impl Change<'_> {
    fn parse(self) -> Result<(Vec<u8>, KeyWrite), &'static str> {
        let key = match (self.key, self.key_base64) {
            (Some(key), None) => key.into_bytes(),
            (None, Some(key)) => decoded(&key).ok_or("has a key that is not base64")?,
            _ => return Err("must have one of key and key_base64"),
        };
        let encoded = match self.value_base64 {
            Some(value) => Some(decoded(&value).ok_or("has a value that is not base64")?),
            None => None,
        };
        let put = |value: Vec<u8>| KeyChange::Put(Bytes::from(value));
        let changes = [
            self.value.map(|value| put(value.get().as_bytes().to_vec())),
            self.text.map(|text| put(text.into_bytes())),
            encoded.map(put),
            self.add.map(KeyChange::Add),
            self.delete.then_some(KeyChange::Delete),
        ];
        let mut changes = changes.into_iter().flatten();
        let (Some(change), None) = (changes.next(), changes.next()) else {
            return Err("must have one of value, text, value_base64, add and \"delete\": true");
        };
        let conditions = [
            self.if_version
                .map(|version| KeyCondition::Version(Offset(version))),
            self.if_absent.then_some(KeyCondition::Absent),
            self.if_present.then_some(KeyCondition::Present),
        ];
        let mut conditions = conditions.into_iter().flatten();
        let condition = conditions.next().unwrap_or(KeyCondition::Any);
        if conditions.next().is_some() {
            return Err("may have only one of if_version, if_absent and if_present");
        }
        let ttl = match (self.ttl_ms, &change) {
            (None, _) => None,
            (Some(..=0), _) => return Err("has a ttl_ms below 1"),
            (Some(_), KeyChange::Delete) => return Err("deletes its key, so it has no ttl_ms"),
            (Some(ms), _) => Some(Duration::from_millis(ms.unsigned_abs())),
        };
        if self.secondary.values().map(Vec::len).sum::<usize>() > SECONDARY_KEYS_MAX {
            return Err("may have at most 64 secondary keys");
        }
        let mut names = self.secondary.keys();
        if names.any(|name| name.len() > SECONDARY_NAME_BYTES_MAX) {
            return Err("has secondary keys whose name has more than 64 characters");
        }
        let secondary = self.secondary.into_iter().flat_map(|(name, keys)| {
            let keys = keys.into_iter();
            keys.map(move |key| (name.clone(), key.into_bytes()))
        });
        let write = KeyWrite {
            condition,
            change,
            ttl,
            secondary: secondary.collect(),
        };
        Ok((key, write))
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_body_lists_changes_of_all_kinds() {
        let body = br#"[
            {"key": "a", "value": {"n": 1.50}, "if_version": 7},
            {"key_base64": "/wA=", "text": "x", "if_absent": true, "ttl_ms": 5},
            {"key": "", "value_base64": "/w==", "if_present": true},
            {"key": "n", "add": -3, "secondary": {"city": ["Bonn", "Ulm"]}},
            {"key": "d", "delete": true}
        ]"#;
        let changes = changes_of(body).unwrap();
        let shown = changes
            .iter()
            .map(|(key, write)| (&key[..], &write.change, write.condition));
        let put = |value: &'static [u8]| KeyChange::Put(Bytes::from_static(value));
        let expected = [
            (
                &b"a"[..],
                &put(b"{\"n\": 1.50}"),
                KeyCondition::Version(Offset(7)),
            ),
            (b"\xff\x00", &put(b"x"), KeyCondition::Absent),
            (b"", &put(b"\xff"), KeyCondition::Present),
            (b"n", &KeyChange::Add(-3), KeyCondition::Any),
            (b"d", &KeyChange::Delete, KeyCondition::Any),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert_eq!(changes[1].1.ttl, Some(Duration::from_millis(5)));
        let keys = [("city", "Bonn"), ("city", "Ulm")];
        let keys = keys.map(|(name, key)| (name.to_owned(), key.as_bytes().to_vec()));
        assert_eq!(changes[3].1.secondary, keys);
        assert_eq!(changes_of(b"[]").unwrap(), []);
    }

    #[test]
    fn a_wrong_body_is_named() {
        let many = format!("[{}]", vec!["{}"; 1025].join(","));
        let keyed = |name: &str, keys: usize| {
            let keys = vec!["\"\""; keys].join(",");
            format!(r#"[{{"key":"a","add":1,"secondary":{{"{name}":[{keys}]}}}}]"#)
        };
        let many_keys = keyed("city", 65);
        let long_name = keyed(&"x".repeat(65), 1);
        assert!(changes_of(keyed(&"x".repeat(64), 64).as_bytes()).is_ok());
        for (body, named) in [
            ("", "EOF"),
            ("{}", "invalid type"),
            ("[1]", "invalid type"),
            (r#"[{"key":"a","valve":1}]"#, "valve"),
            (
                r#"[{"key":"a","add":1},{"value":1}]"#,
                "change 1 must have one of key",
            ),
            (r#"[{"key":"a"}]"#, "must have one of value"),
            (r#"[{"key":"a","value":null}]"#, "must have one of value"),
            (
                r#"[{"key":"a","value":1,"text":"1"}]"#,
                "must have one of value",
            ),
            (
                r#"[{"key":"a","key_base64":"","add":1}]"#,
                "must have one of key",
            ),
            (r#"[{"key_base64":"?","add":1}]"#, "not base64"),
            (r#"[{"key":"a","value_base64":"?"}]"#, "not base64"),
            (r#"[{"key":"a","add":1.5}]"#, "invalid type"),
            (
                r#"[{"key":"a","add":1,"if_absent":true,"if_version":1}]"#,
                "only one of",
            ),
            (r#"[{"key":"a","add":1,"ttl_ms":0}]"#, "below 1"),
            (r#"[{"key":"a","delete":true,"ttl_ms":1}]"#, "no ttl_ms"),
            (&many, "more than 1024 changes"),
            (&many_keys, "at most 64 secondary keys"),
            (&long_name, "more than 64 characters"),
        ] {
            let why = changes_of(body.as_bytes()).unwrap_err();
            assert!(why.contains(named), "{body}: {why}");
        }
        assert!(changes_of(b"[{\"key\":\"\xff\"}]").is_err());
    }

    /// A copy of the name for each key would take 100 GiB.
    #[test]
    fn a_body_takes_little_more_memory_than_it_has_bytes() {
        let (name, keys) = ("x".repeat(1 << 20), vec!["\"\""; 100_000].join(","));
        let body = format!(r#"[{{"key":"a","add":1,"secondary":{{"{name}":[{keys}]}}}}]"#);
        assert!(body.len() < BODY_BYTES_MAX);
        let began = Instant::now();
        assert!(changes_of(body.as_bytes()).is_err());
        assert!(began.elapsed() < Duration::from_secs(1));
        // The list is not read beyond the first change too many.
        let mut body = format!("[{}", "{},".repeat(CHANGES_MAX + 1));
        body.push('?');
        let why = changes_of(body.as_bytes()).unwrap_err();
        assert!(why.contains("more than 1024 changes"), "{why}");
    }
}
