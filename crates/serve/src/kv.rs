//! The pages of keyed streams, below `/kv`.

pub mod entry;
mod find;
mod past;
mod tags;
mod together;
mod write;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use millstream_base::{KeyRange, Offset};
use percent_encoding::percent_decode_str;
use serde::Serialize;

use crate::bounds::{ENTRIES_DEFAULT, ENTRIES_MAX};
use crate::connection::Connection;
use crate::error::RequestError;
use crate::gate::{Visited, credentials_of};
use crate::keyed::{KeyPage, KeyedStreams, KeyedValue};
use crate::shown::Shown;
use crate::watch::{self, Asked, Reader};

use self::entry::{Entry, ShownValue, shown_value, text};
use self::find::{found, is_find};
use self::tags::Tags;
pub use self::tags::tag_of;
pub use self::together::post;
pub use self::write::{delete, patch, put, refuse};

/// The path that all of these pages begin with.
const ROOT: &str = "/kv/";

/// When a value ends, in milliseconds since 1970.
const EXPIRES_AT: HeaderName = HeaderName::from_static("millstream-expires-at");

/// The last second that a date of HTTP can name, since 1970.
const HTTP_SECONDS_MAX: u64 = 253_402_300_799;

/// A parsed path.
#[derive(Debug, PartialEq, Eq)]
struct KvPath {
    stream: String,
    /// `None` for the page of the whole stream.
    key: Option<Vec<u8>>,
}

/// Returns the stream whose records a path names; `None` for other paths.
pub fn stream_of(path: &str) -> Option<String> {
    let name = path.strip_prefix(ROOT)?.split('/').next()?;
    Some(percent_decode_str(name).decode_utf8_lossy().into_owned())
}

/// Returns whether requests may write at a path: keys of a stream, or one key.
pub fn is_written(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| !rest.is_empty())
}

/// Returns whether a path names a key.
pub fn names_key(path: &str) -> bool {
    let rest = path.strip_prefix(ROOT);
    rest.is_some_and(|rest| rest.contains('/'))
}

fn parse(path: &str) -> Result<KvPath, RequestError> {
    let unknown = || RequestError::UnknownPath(path.to_owned());
    let rest = path.strip_prefix(ROOT).ok_or_else(unknown)?;
    // A slash of the stream's name is encoded; one of the key may be.
    let (name, key) = match rest.split_once('/') {
        Some((name, key)) => (name, Some(key)),
        None => (rest, None),
    };
    let name = percent_decode_str(name).decode_utf8();
    let name = name.map_err(|_| RequestError::StreamName(path.to_owned()))?;
    match name.is_empty() {
        true => Err(unknown()),
        false => Ok(KvPath {
            stream: name.into_owned(),
            key: key.map(|key| percent_decode_str(key).collect()),
        }),
    }
}

/// Answers `/kv/<stream>/<key>` with the value, and `/kv/<stream>` with some keys.
pub async fn page(
    State(shown): State<Arc<Shown>>,
    Extension(connection): Extension<Arc<Connection>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let unknown = || RequestError::UnknownPath(uri.path().to_owned());
    let streams = shown.content.keyed().ok_or_else(unknown)?;
    let KvPath { stream, key } = parse(uri.path())?;
    let query = uri.query().unwrap_or_default();
    if is_watch(query) {
        let refused = || RequestError::WatchQuery(query.to_owned());
        let (range, asked) = parse_watch(query, key).ok_or_else(refused)?;
        let credentials = headers.get(header::AUTHORIZATION);
        let reader = Reader {
            visitor: Arc::clone(&connection.visitor),
            visited: Visited::Read(stream.clone()),
            credentials: credentials.and_then(credentials_of),
        };
        let place = watch::place(&shown.watches)?;
        let from = watch::from(asked, &headers)?;
        let begun = streams.watch(&stream, range, from).await?;
        return watch::answer(
            begun,
            &shown.watches,
            Arc::clone(&connection.time),
            (reader, place),
        );
    }
    match key {
        Some(key) => past::page(streams, stream, key, (query, &headers)).await,
        None if is_find(query) => found(streams, stream, query).await,
        None => entries(streams, stream, query).await,
    }
}

/// The moment at which a key is looked up.
#[derive(Debug, PartialEq, Eq)]
enum At {
    Now,
    Version(Offset),
    /// When the hold of this name was made.
    Hold(String),
}

/// Answers with the value of a key at a moment.
async fn value(
    streams: Arc<dyn KeyedStreams>,
    stream: String,
    key: Vec<u8>,
    at: At,
    headers: &HeaderMap,
) -> Result<Response, RequestError> {
    let found = match at {
        At::Version(at) => streams.get_at(&stream, key.clone(), at).await?,
        At::Hold(hold) => streams.get_at_hold(&stream, key.clone(), hold).await?,
        At::Now => streams.get(&stream, key.clone()).await?,
    };
    let Some(found) = found else {
        return Err(RequestError::AbsentKey {
            misplaced: streams.misplaced(&stream),
            key: String::from_utf8_lossy(&key).into_owned(),
            stream,
        });
    };
    // A malformed header of a read names no version.
    let tags = Tags::of(headers, &header::IF_NONE_MATCH).ok().flatten();
    let is_known = tags.is_some_and(|tags| tags.have(found.version));
    let mut headers = headers_of(&found);
    if is_known {
        headers.remove(header::CONTENT_TYPE);
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    Ok((headers, Body::from(found.value)).into_response())
}

fn headers_of(found: &KeyedValue) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let content_type = match shown_value(&found.value) {
        Some(ShownValue::Json(_)) => "application/json",
        Some(ShownValue::Text(_)) => "text/plain; charset=utf-8",
        None => "application/octet-stream",
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    let mut insert = |name: HeaderName, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    insert(header::ETAG, tag_of(found.version));
    let seconds = u64::try_from(found.timestamp.0).map(|millis| millis / 1000);
    // A producer may give a record any time.
    if let Ok(seconds @ 0..=HTTP_SECONDS_MAX) = seconds {
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        insert(header::LAST_MODIFIED, httpdate::fmt_http_date(time));
    }
    if let Some(end) = found.expires_at {
        insert(EXPIRES_AT, end.0.to_string());
    }
    headers
}

/// A page of entries.
#[derive(Serialize)]
struct Entries<'a> {
    entries: Vec<Entry<'a>>,
    next: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_base64: Option<String>,
}

async fn entries(
    streams: Arc<dyn KeyedStreams>,
    stream: String,
    query: &str,
) -> Result<Response, RequestError> {
    let refused = || RequestError::KeysQuery(query.to_owned());
    let (range, limit) = parse_query(query).ok_or_else(refused)?;
    let page = streams.scan(&stream, range, limit).await?;
    let KeyPage { entries, next } = &page;
    let (next, next_base64) = text(next.as_deref());
    let entries = entries.iter().map(|(key, found)| entry(None, key, found));
    Ok(Json(Entries {
        entries: entries.collect(),
        next,
        next_base64,
    })
    .into_response())
}

fn entry<'a>(secondary: Option<&'a [u8]>, key: &'a [u8], found: &'a KeyedValue) -> Entry<'a> {
    let (secondary, secondary_base64) = text(secondary);
    let (key, key_base64) = text(Some(key));
    let value = shown_value(&found.value);
    let value_base64 = value
        .is_none()
        .then(|| BASE64_STANDARD.encode(&found.value));
    Entry {
        secondary,
        secondary_base64,
        key,
        key_base64,
        entry: None,
        partition: found.version.partition,
        version: found.version.version,
        timestamp: found.timestamp,
        value,
        value_base64,
        expires_at: found.expires_at,
        deleted: false,
    }
}

/// The fields of a query, decoded.
#[derive(Default)]
struct Fields {
    prefix: Option<Vec<u8>>,
    from: Option<Vec<u8>>,
    until: Option<Vec<u8>>,
    limit: Option<Vec<u8>>,
    history: Option<Vec<u8>>,
    version: Option<Vec<u8>>,
    hold: Option<Vec<u8>>,
    before: Option<Vec<u8>>,
    watch: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

impl Fields {
    /// Returns the fields; `None` if one is unknown, or there twice.
    fn of(query: &str) -> Option<Fields> {
        let mut fields = Fields::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = match pair {
                "watch" | "history" => (pair, ""),
                pair => pair.split_once('=')?,
            };
            let field = match name {
                "prefix" => &mut fields.prefix,
                "from" => &mut fields.from,
                "to" => &mut fields.until,
                "limit" => &mut fields.limit,
                "history" => &mut fields.history,
                "version" => &mut fields.version,
                "hold" => &mut fields.hold,
                "before" => &mut fields.before,
                "watch" => &mut fields.watch,
                "after" => &mut fields.after,
                _ => return None,
            };
            // A form encodes a space as a plus sign.
            let value = value.replace('+', " ");
            if field
                .replace(percent_decode_str(&value).collect())
                .is_some()
            {
                return None;
            }
        }
        Some(fields)
    }

    /// Whether they have none of those that only a key has.
    fn is_of_stream(&self) -> bool {
        let has_none = |fields: [&Option<Vec<u8>>; 4]| fields.iter().all(|field| field.is_none());
        has_none([&self.history, &self.version, &self.hold, &self.before])
    }

    /// Returns the range that the fields limit together.
    fn range(&mut self) -> KeyRange {
        let mut range = self
            .prefix
            .take()
            .map_or_else(KeyRange::all, KeyRange::prefix);
        range.from = range.from.max(self.from.take().unwrap_or_default());
        range.until = match (range.until, self.until.take()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        range
    }
}

/// Parses a query; `None` if it is malformed.
fn parse_query(query: &str) -> Option<(KeyRange, usize)> {
    let mut fields = Fields::of(query)
        .filter(|it| it.watch.is_none() && it.after.is_none() && it.is_of_stream())?;
    let limit = limit(&fields)?;
    Some((fields.range(), limit))
}

/// Returns the most entries of a page; `None` if it is malformed.
fn limit(fields: &Fields) -> Option<usize> {
    let limit = match &fields.limit {
        Some(limit) => std::str::from_utf8(limit).ok()?.parse().ok()?,
        None => ENTRIES_DEFAULT,
    };
    (1..=ENTRIES_MAX).contains(&limit).then_some(limit)
}

/// Returns whether a query asks for changes.
pub fn is_watch(query: &str) -> bool {
    let mut pairs = query.split('&');
    pairs.any(|pair| pair == "watch" || pair.starts_with("watch="))
}

/// Parses the query of a watch, perhaps of one key; `None` if it is malformed.
fn parse_watch(query: &str, key: Option<Vec<u8>>) -> Option<(KeyRange, Asked)> {
    let mut fields =
        Fields::of(query).filter(|fields| fields.limit.is_none() && fields.is_of_stream())?;
    let asked = match (fields.after.take(), fields.watch.as_deref()?) {
        (Some(after), b"") => Asked::After(String::from_utf8(after).ok()?),
        (None, b"") => Asked::Now,
        (None, b"snapshot") => Asked::Snapshot,
        _ => return None,
    };
    let range = match key {
        None => fields.range(),
        Some(key) => {
            let has_range =
                fields.prefix.is_some() || fields.from.is_some() || fields.until.is_some();
            (!has_range).then(|| KeyRange::key(key))?
        }
    };
    Some((range, asked))
}

#[cfg(test)]
mod tests {
    use millstream_base::Timestamp;

    use super::*;
    use crate::keyed::KeyedVersion;

    #[track_caller]
    fn check_path(path: &str, stream: &str, key: Option<&[u8]>) {
        let expected = KvPath {
            stream: stream.to_owned(),
            key: key.map(<[u8]>::to_vec),
        };
        assert_eq!(parse(path).unwrap(), expected, "{path}");
        assert_eq!(stream_of(path).as_deref(), Some(stream), "{path}");
        assert_eq!(names_key(path), key.is_some(), "{path}");
    }

    #[test]
    fn a_path_names_a_stream_and_optionally_a_key_of_any_bytes() {
        check_path("/kv/t", "t", None);
        check_path("/kv/t/", "t", Some(b""));
        check_path("/kv/a%2Fb/c/d%2Fe", "a/b", Some(b"c/d/e"));
        check_path("/kv/t/gr%C3%BC%25+%FF", "t", Some(b"gr\xc3\xbc%+\xff"));
        for path in ["/kv/", "/kv//key", "/kv", "/state/t"] {
            assert!(
                matches!(parse(path), Err(RequestError::UnknownPath(_))),
                "{path}"
            );
        }
        let wrong = parse("/kv/%FF/key");
        assert!(matches!(wrong, Err(RequestError::StreamName(_))));
        assert_eq!(stream_of("/state/t"), None);
        assert!(!names_key("/state/t/key"));
    }

    #[track_caller]
    fn check_query(query: &str, from: &[u8], until: Option<&[u8]>, limit: usize) {
        let range = KeyRange::new(from, until.map(<[u8]>::to_vec));
        assert_eq!(parse_query(query), Some((range, limit)), "{query}");
    }

    #[test]
    fn the_fields_of_a_query_limit_the_range_together() {
        check_query("", b"", None, ENTRIES_DEFAULT);
        check_query("limit=7", b"", None, 7);
        check_query("from=a&to=b%FF", b"a", Some(b"b\xff"), ENTRIES_DEFAULT);
        check_query("prefix=a+b&limit=1", b"a b", Some(b"a c"), 1);
        check_query("prefix=a&from=ab", b"ab", Some(b"b"), ENTRIES_DEFAULT);
        check_query("prefix=b&from=a&to=c", b"b", Some(b"c"), ENTRIES_DEFAULT);
        check_query("prefix=b&to=ba", b"b", Some(b"ba"), ENTRIES_DEFAULT);
        for query in [
            "limit=0",
            "limit=10001",
            "limit=-1",
            "limit=",
            "form=a",
            "from",
            "to=a&to=b",
        ] {
            assert_eq!(parse_query(query), None, "{query}");
        }
    }

    #[test]
    fn a_watch_has_a_key_or_a_range_and_an_optional_position() {
        let parsed = |query: &str, key: Option<&str>| {
            assert!(is_watch(query), "{query}");
            parse_watch(query, key.map(|key| key.as_bytes().to_vec()))
        };
        let all = KeyRange::all();
        assert_eq!(parsed("watch", None), Some((all.clone(), Asked::Now)));
        assert_eq!(
            parsed("watch=snapshot&prefix=a+b", None),
            Some((KeyRange::prefix("a b"), Asked::Snapshot))
        );
        assert_eq!(
            parsed("from=a&to=b&after=x&watch=", None),
            Some((
                KeyRange::new("a", Some(b"b".to_vec())),
                Asked::After("x".to_owned())
            ))
        );
        assert_eq!(
            parsed("watch", Some("k")),
            Some((KeyRange::key("k"), Asked::Now))
        );
        for (query, key) in [
            ("watch=now", None),
            ("watch&watch", None),
            ("watch&limit=5", None),
            ("watch=snapshot&after=x", None),
            ("watch&prefix=a", Some("k")),
        ] {
            assert_eq!(parsed(query, key), None, "{query}");
        }
        for query in ["", "watched=1", "prefix=watch"] {
            assert!(!is_watch(query), "{query}");
        }
        assert_eq!(parse_query("after=x"), None);
    }

    #[test]
    fn a_value_is_json_text_or_bytes() {
        let kind = |value: &[u8]| match shown_value(value) {
            Some(ShownValue::Json(_)) => "json",
            Some(ShownValue::Text(_)) => "text",
            None => "bytes",
        };
        for (value, expected) in [
            (&b"{\"a\":1.50}"[..], "json"),
            (b"12345678901234567890123", "json"),
            (b"word", "text"),
            (b"", "text"),
            (b"{\"a\":", "text"),
            (b"\xff", "bytes"),
            (b"\"\xff\"", "bytes"),
        ] {
            assert_eq!(kind(value), expected, "{value:?}");
        }
    }

    #[test]
    fn times_outside_the_range_of_http_dates_are_omitted() {
        let date = |millis| {
            let headers = headers_of(&KeyedValue {
                version: KeyedVersion {
                    partition: 1,
                    version: Offset(7),
                },
                timestamp: Timestamp(millis),
                value: "x".into(),
                expires_at: Some(Timestamp(9)),
            });
            assert_eq!(headers[EXPIRES_AT], "9");
            assert_eq!(headers[header::ETAG], "\"1-7\"");
            headers.contains_key(header::LAST_MODIFIED)
        };
        for (millis, has_date) in [(0, true), (-1, false), (i64::MAX, false)] {
            assert_eq!(date(millis), has_date, "{millis}");
        }
    }
}
