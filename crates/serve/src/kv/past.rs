//! The value of a key at a version, and the versions of a key.

use std::sync::Arc;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use millstream_base::Offset;
use serde::Serialize;

use super::entry::{Entry, shown_value};
use super::{At, Fields, limit, value};
use crate::error::RequestError;
use crate::keyed::{KeyedStreams, PastVersion};

/// The request of a query for a key.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// The value at a moment.
    Value(At),
    /// The versions before one, and at most how many.
    History(Offset, usize),
}

/// Answers `/kv/<stream>/<key>`.
pub async fn page(
    streams: Arc<dyn KeyedStreams>,
    stream: String,
    key: Vec<u8>,
    (query, headers): (&str, &HeaderMap),
) -> Result<Response, RequestError> {
    let refused = || RequestError::KeyQuery(query.to_owned());
    match parse(query).ok_or_else(refused)? {
        Asked::Value(at) => value(streams, stream, key, at, headers).await,
        Asked::History(before, limit) => history(streams, stream, key, before, limit).await,
    }
}

/// Parses the query of a key; `None` if it is malformed. Earlier programs took no notice of other fields, so these are left alone
/// where neither of the two is asked for.
fn parse(query: &str) -> Option<Asked> {
    let names = query
        .split('&')
        .map(|pair| pair.split('=').next().unwrap_or_default());
    if !names
        .into_iter()
        .any(|name| ["history", "version", "hold", "before"].contains(&name))
    {
        return Some(Asked::Value(At::Now));
    }
    let fields = Fields::of(query).filter(|fields| {
        fields.prefix.is_none()
            && fields.from.is_none()
            && fields.until.is_none()
            && fields.watch.is_none()
            && fields.after.is_none()
    })?;
    let offset = |text: &Option<Vec<u8>>| match text {
        Some(text) => std::str::from_utf8(text).ok()?.parse().ok().map(Some),
        None => Some(None),
    };
    let has_bounds = fields.limit.is_some() || fields.before.is_some();
    match (&fields.history, &fields.version, &fields.hold) {
        (None, Some(_), None) if !has_bounds => {
            let at = Offset(offset(&fields.version)??);
            Some(Asked::Value(At::Version(at)))
        }
        (None, None, Some(name)) if !has_bounds => {
            let name = std::str::from_utf8(name).ok()?;
            Some(Asked::Value(At::Hold(name.to_owned())))
        }
        (Some(text), None, None) if text.is_empty() => {
            let before = offset(&fields.before)?.unwrap_or(u64::MAX);
            Some(Asked::History(Offset(before), limit(&fields)?))
        }
        _ => None,
    }
}

/// A page of versions.
#[derive(Serialize)]
struct Versions<'a> {
    versions: Vec<Entry<'a>>,
    next: Option<Offset>,
    /// Null where the page has a next one.
    lacks_older: Option<bool>,
}

async fn history(
    streams: Arc<dyn KeyedStreams>,
    stream: String,
    key: Vec<u8>,
    before: Offset,
    limit: usize,
) -> Result<Response, RequestError> {
    let page = streams.history(&stream, key, before, limit).await?;
    Ok(Json(Versions {
        versions: page.versions.iter().map(entry).collect(),
        next: page.next,
        lacks_older: page.next.is_none().then_some(page.lacks_older),
    })
    .into_response())
}

fn entry(found: &PastVersion) -> Entry<'_> {
    let value = found.value.as_deref();
    let shown = value.and_then(shown_value);
    let base64 = value.filter(|_| shown.is_none());
    Entry {
        entry: None,
        secondary: None,
        secondary_base64: None,
        key: None,
        key_base64: None,
        partition: found.version.partition,
        version: found.version.version,
        timestamp: found.timestamp,
        value_base64: base64.map(|value| BASE64_STANDARD.encode(value)),
        value: shown,
        expires_at: found.expires_at,
        deleted: value.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::ENTRIES_DEFAULT;

    #[test]
    fn a_query_asks_for_a_value_or_for_versions() {
        let all = Offset(u64::MAX);
        for (query, expected) in [
            ("", Asked::Value(At::Now)),
            ("x=1", Asked::Value(At::Now)),
            ("version=7", Asked::Value(At::Version(Offset(7)))),
            ("hold=a%2Fb", Asked::Value(At::Hold("a/b".to_owned()))),
            ("history", Asked::History(all, ENTRIES_DEFAULT)),
            ("history=&limit=2", Asked::History(all, 2)),
            (
                "history&before=9",
                Asked::History(Offset(9), ENTRIES_DEFAULT),
            ),
        ] {
            assert_eq!(parse(query), Some(expected), "{query}");
        }
        for query in [
            "version=",
            "version=-1",
            "version=1&version=1",
            "version=1&history",
            "version=1&hold=a",
            "hold=a&before=1",
            "version=1&limit=1",
            "before=1",
            "history&limit=0",
            "history&prefix=a",
            "history=2",
            "history&x=1",
        ] {
            assert_eq!(parse(query), None, "{query}");
        }
    }
}
