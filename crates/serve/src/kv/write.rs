//! Writes of keys.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use millstream_base::Offset;
use percent_encoding::percent_decode_str;
use tokio::time::timeout;

use super::tags::{Tags, tag_of};
use super::{KvPath, names_key, parse};
use crate::body::discard_unless_awaited;
use crate::error::RequestError;
use crate::keyed::{
    KeyChange, KeyChanged, KeyCondition, KeyWrite, KeyedError, KeyedStreams, SecondaryKeys,
};
use crate::shown::Shown;

/// The time for a write, which ends before the server closes the connection.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// The bytes of the longest number.
const NUMBER_BYTES_MAX: usize = 32;

/// The field of a query that says how long a value lives, in milliseconds.
const TTL: &str = "ttl_ms";

/// The beginning of the fields of a query that are secondary keys.
const SECONDARY: &str = "k.";

/// The number of no version.
const NO_VERSION: Offset = Offset(u64::MAX);

/// Headers that change the meaning of a write, but not here.
const REFUSED_HEADERS: [HeaderName; 3] = [
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::IF_UNMODIFIED_SINCE,
];

/// Stores the body as the value of a key.
pub async fn put(
    State(shown): State<Arc<Shown>>,
    request: Request,
) -> Result<Response, RequestError> {
    let (head, body) = request.into_parts();
    let (target, body) = admitted(&shown, &head, body, Some(TTL)).await?;
    let bytes_max = target.value_bytes_max;
    let value = shown.bodies.read(&head.headers, body, bytes_max).await?;
    let stored = target.change(KeyChange::Put(value)).await?;
    let status = match target.condition {
        Condition::Absent => StatusCode::CREATED,
        // An unconditional one does not ask whether there was a value.
        Condition::None | Condition::Match(_) => StatusCode::NO_CONTENT,
    };
    let tag = [(header::ETAG, tag_of(stored.version))];
    Ok((status, tag).into_response())
}

/// Removes the value of a key, if there is one.
pub async fn delete(
    State(shown): State<Arc<Shown>>,
    request: Request,
) -> Result<StatusCode, RequestError> {
    let (head, body) = request.into_parts();
    let (target, body) = admitted(&shown, &head, body, None).await?;
    discard_unless_awaited(&head.headers, body).await;
    target.change(KeyChange::Delete).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Adds the number in the body to the value of a key, and answers with the sum.
pub async fn patch(
    State(shown): State<Arc<Shown>>,
    request: Request,
) -> Result<Response, RequestError> {
    let (head, body) = request.into_parts();
    let (target, body) = admitted(&shown, &head, body, Some(TTL)).await?;
    let read = shown.bodies.read(&head.headers, body, NUMBER_BYTES_MAX);
    let number = match read.await {
        Ok(body) => number(&body).ok_or(RequestError::Increment)?,
        Err(RequestError::Keyed(KeyedError::TooLarge { .. })) => {
            return Err(RequestError::Increment);
        }
        Err(error) => return Err(error),
    };
    let added = target.change(KeyChange::Add(number)).await?;
    let sum = added.sum.map_or_else(String::new, |sum| sum.to_string());
    let headers = [
        (header::ETAG, tag_of(added.version)),
        (header::CONTENT_TYPE, "application/json".to_owned()),
    ];
    Ok((headers, sum).into_response())
}

/// Refuses the methods that a key, or a stream, does not have.
pub async fn refuse(State(shown): State<Arc<Shown>>, method: Method, uri: Uri) -> RequestError {
    match shown.content.keyed() {
        None => RequestError::UnknownPath(uri.path().to_owned()),
        Some(_) => RequestError::Method {
            method: method.to_string(),
            allowed: match names_key(uri.path()) {
                true => "GET, HEAD, PUT, PATCH, DELETE",
                false => "GET, HEAD, POST",
            },
        },
    }
}

/// Parses a whole number, perhaps with a line break behind it.
fn number(body: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(body).ok()?;
    text.trim_ascii().parse().ok()
}

/// A key that a request changes, and its condition.
struct Target<'a> {
    streams: Arc<dyn KeyedStreams>,
    stream: String,
    key: Vec<u8>,
    value_bytes_max: usize,
    condition: Condition<'a>,
    ttl: Option<Duration>,
    secondary: Vec<(String, Vec<u8>)>,
}

enum Condition<'a> {
    None,
    /// The key has no value.
    Absent,
    /// The key has a value with one of these tags.
    Match(Tags<'a>),
}

/// Checks all of a request but its body, which it reads if it refuses the request. `field` is the one that the query may have.
async fn admitted<'a>(
    shown: &Shown,
    head: &'a Parts,
    body: Body,
    field: Option<&str>,
) -> Result<(Target<'a>, Body), RequestError> {
    match target(shown, head, field) {
        Ok(target) => Ok((target, body)),
        Err(error) => {
            discard_unless_awaited(&head.headers, body).await;
            Err(error)
        }
    }
}

fn target<'a>(
    shown: &Shown,
    head: &'a Parts,
    field: Option<&str>,
) -> Result<Target<'a>, RequestError> {
    let unknown = || RequestError::UnknownPath(head.uri.path().to_owned());
    let streams = shown.content.keyed().ok_or_else(unknown)?;
    let KvPath { stream, key } = parse(head.uri.path())?;
    let key = key.ok_or_else(|| RequestError::Method {
        method: head.method.to_string(),
        allowed: "GET, HEAD, POST",
    })?;
    let query = head.uri.query().filter(|query| !query.is_empty());
    let (ttl, secondary) = match query {
        Some(query) => fields(query, field).ok_or_else(|| RequestError::WriteQuery {
            query: query.to_owned(),
            may_live: field.is_some(),
        })?,
        None => (None, Vec::new()),
    };
    check_headers(&head.headers)?;
    let condition = condition(&head.headers)?;
    let value_bytes_max = streams.value_bytes_max(&stream)?;
    Ok(Target {
        streams,
        stream,
        key,
        value_bytes_max,
        condition,
        ttl,
        secondary,
    })
}

/// Refuses the headers that change the meaning of a write, but not here.
pub fn check_headers(headers: &HeaderMap) -> Result<(), RequestError> {
    let mut refused = REFUSED_HEADERS.iter();
    match refused.find(|name| headers.contains_key(*name)) {
        Some(name) => Err(RequestError::WriteHeader(name.clone())),
        None => Ok(()),
    }
}

/// Parses a query: how long the new value lives, and its secondary keys. Where there is no `field`, a write has neither.
fn fields(query: &str, field: Option<&str>) -> Option<(Option<Duration>, SecondaryKeys)> {
    let (mut life, mut secondary) = (None, Vec::new());
    for pair in query.split('&') {
        match pair.strip_prefix(SECONDARY) {
            Some(pair) if field.is_some() => {
                let (name, key) = pair.split_once('=')?;
                let name = percent_decode_str(name).decode_utf8().ok()?;
                let key = key.replace('+', " ");
                secondary.push((name.into_owned(), percent_decode_str(&key).collect()));
            }
            _ if life.is_none() => life = Some(ttl(pair, field)?),
            _ => return None,
        }
    }
    Some((life, secondary))
}

/// Parses a query that says how long the new value lives.
fn ttl(query: &str, field: Option<&str>) -> Option<Duration> {
    let (name, ms) = query.split_once('=')?;
    let ms: i64 = ms.parse().ok()?;
    let ms = u64::try_from(ms).ok().filter(|ms| *ms > 0)?;
    (Some(name) == field).then_some(Duration::from_millis(ms))
}

fn condition(headers: &HeaderMap) -> Result<Condition<'_>, RequestError> {
    let tags = |name| Tags::of(headers, &name).map_err(|_| RequestError::Tags(name));
    match (tags(header::IF_MATCH)?, tags(header::IF_NONE_MATCH)?) {
        (None, None) => Ok(Condition::None),
        (Some(tags), None) => Ok(Condition::Match(tags)),
        (None, Some(Tags::Any)) => Ok(Condition::Absent),
        (_, Some(_)) => Err(RequestError::Tags(header::IF_NONE_MATCH)),
    }
}

impl Target<'_> {
    async fn change(&self, change: KeyChange) -> Result<KeyChanged, RequestError> {
        in_time(self.change_if(change)).await
    }

    async fn change_if(&self, change: KeyChange) -> Result<KeyChanged, RequestError> {
        let condition = match &self.condition {
            Condition::None => KeyCondition::Any,
            Condition::Absent => KeyCondition::Absent,
            Condition::Match(Tags::Any) => KeyCondition::Present,
            Condition::Match(tags) => return Ok(self.change_listed(tags, change).await?),
        };
        Ok(self.try_change(condition, change).await?)
    }

    /// Changes the key if one of the tags is that of its newest version. A change sees versions that look-ups do not
    /// see yet, so its own check decides; the look-up saves most changes a second try.
    async fn change_listed(
        &self,
        tags: &Tags<'_>,
        change: KeyChange,
    ) -> Result<KeyChanged, KeyedError> {
        let found = self.streams.get(&self.stream, self.key.clone()).await?;
        let seen = found.map(|found| found.version);
        let seen = seen.filter(|version| tags.have_strongly(*version));
        let mut version = seen.map_or(NO_VERSION, |seen| seen.version);
        loop {
            let condition = KeyCondition::Version(version);
            match self.try_change(condition, change.clone()).await {
                // It ends: a key's newer version has a higher number, and the tags are few.
                Err(KeyedError::OtherVersion {
                    newest: Some(newest),
                }) if newest.version != version && tags.have_strongly(newest) => {
                    version = newest.version;
                }
                done => return done,
            }
        }
    }

    async fn try_change(
        &self,
        condition: KeyCondition,
        change: KeyChange,
    ) -> Result<KeyChanged, KeyedError> {
        let (stream, key) = (&self.stream, self.key.clone());
        let write = KeyWrite {
            condition,
            change,
            ttl: self.ttl,
            secondary: self.secondary.clone(),
        };
        self.streams.change(stream, key, write).await
    }
}

/// Waits for a write, not too long.
pub async fn in_time<T>(
    write: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    let written = timeout(WRITE_TIME_MAX, write).await;
    written.unwrap_or(Err(RequestError::SlowWrite(WRITE_TIME_MAX)))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_does_not_become_durable_is_answered() {
        let written = in_time::<()>(pending()).await;
        assert!(matches!(written, Err(RequestError::SlowWrite(_))));
    }

    #[test]
    fn a_query_may_set_the_time_to_live_of_a_value() {
        let ms = |query| ttl(query, Some(TTL)).map(|ttl| ttl.as_millis());
        assert_eq!(ms("ttl_ms=1"), Some(1));
        assert_eq!(ms("ttl_ms=9223372036854775807"), Some(i64::MAX as u128));
        for query in [
            "ttl_ms=0",
            "ttl_ms=-1",
            "ttl_ms=9223372036854775808",
            "ttl_ms=1s",
            "ttl_ms=",
            "ttl_ms",
            "ttl=1",
            "ttl_ms=1&ttl_ms=2",
        ] {
            assert_eq!(ms(query), None, "{query}");
        }
        assert_eq!(ttl("ttl_ms=1", None), None);
        let key = |name: &str, key: &str| (name.to_owned(), key.as_bytes().to_vec());
        let both = fields("k.city=La+Paz&ttl_ms=7&k.zip=%3D1", Some(TTL));
        let keys = vec![key("city", "La Paz"), key("zip", "=1")];
        assert_eq!(both, Some((Some(Duration::from_millis(7)), keys)));
        for query in ["k.city", "k.city=a&x=1", "ttl_ms=1&ttl_ms=2", "k.%FF=a"] {
            assert_eq!(fields(query, Some(TTL)), None, "{query}");
        }
        assert_eq!(fields("k.city=a", None), None, "a deletion has none");
    }

    #[test]
    fn whole_numbers_are_parsed() {
        for (text, expected) in [
            ("1", Some(1)),
            ("-5\r\n", Some(-5)),
            (" 9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("1.0", None),
            ("1 2", None),
            ("", None),
            ("one", None),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(number(b"\xff"), None);
    }
}
