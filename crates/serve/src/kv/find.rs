//! Keys by their secondary keys.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use millstream_base::KeyRange;
use percent_encoding::percent_decode_str;

use super::{Entries, entry};
use crate::bounds::{ENTRIES_DEFAULT, ENTRIES_MAX, KEYS_MAX};
use crate::error::RequestError;
use crate::keyed::{FoundPlace, KeyedStreams};

/// A parsed query.
#[derive(Debug, PartialEq, Eq)]
struct FindQuery {
    index: String,
    ranges: Vec<KeyRange>,
    from: Option<FoundPlace>,
    limit: usize,
}

/// Returns whether a query asks for secondary keys.
pub fn is_find(query: &str) -> bool {
    query.split('&').any(|pair| pair.starts_with("by="))
}

/// Answers with the keys that have the secondary keys of a query.
pub async fn found(
    streams: Arc<dyn KeyedStreams>,
    stream: String,
    query: &str,
) -> Result<Response, RequestError> {
    let refused = || RequestError::FindQuery(query.to_owned());
    let FindQuery {
        index,
        ranges,
        from,
        limit,
    } = parse(query).ok_or_else(refused)?;
    let page = streams.find(&stream, index, ranges, from, limit).await?;
    let next = page.next.as_ref().map(token);
    let entries = page.entries.iter();
    let entries = entries.map(|(place, value)| entry(Some(&place.secondary), &place.key, value));
    Ok(Json(Entries {
        entries: entries.collect(),
        next: next.as_deref(),
        next_base64: None,
    })
    .into_response())
}

/// Parses a query; `None` if it is malformed.
fn parse(query: &str) -> Option<FindQuery> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let [
        mut index,
        mut prefix,
        mut from,
        mut until,
        mut limit,
        mut page,
    ] = [const { None }; 6];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        // A form encodes a space as a plus sign.
        let value: Vec<u8> = percent_decode_str(&value.replace('+', " ")).collect();
        let field = match name {
            "key" => {
                keys.push(value);
                continue;
            }
            "by" => &mut index,
            "prefix" => &mut prefix,
            "from" => &mut from,
            "to" => &mut until,
            "limit" => &mut limit,
            "page" => &mut page,
            _ => return None,
        };
        if field.replace(value).is_some() {
            return None;
        }
    }
    let limit = match limit {
        Some(limit) => std::str::from_utf8(&limit).ok()?.parse().ok()?,
        None => ENTRIES_DEFAULT,
    };
    let has_range = prefix.is_some() || from.is_some() || until.is_some();
    let is_right = keys.is_empty() || !has_range && keys.len() <= KEYS_MAX;
    if !is_right || !(1..=ENTRIES_MAX).contains(&limit) {
        return None;
    }
    Some(FindQuery {
        index: String::from_utf8(index?).ok()?,
        ranges: match keys.is_empty() {
            true => vec![range(prefix, from, until)],
            false => {
                keys.sort_unstable();
                keys.dedup();
                keys.into_iter().map(KeyRange::key).collect()
            }
        },
        from: match page {
            Some(page) => Some(place(&page)?),
            None => None,
        },
        limit,
    })
}

/// Returns the range that the fields limit together.
fn range(prefix: Option<Vec<u8>>, from: Option<Vec<u8>>, until: Option<Vec<u8>>) -> KeyRange {
    let mut range = prefix.map_or_else(KeyRange::all, KeyRange::prefix);
    range.from = range.from.max(from.unwrap_or_default());
    range.until = match (range.until, until) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    range
}

/// Returns a place as text, for a later query.
fn token(place: &FoundPlace) -> String {
    let length = (place.secondary.len() as u32).to_be_bytes();
    let bytes = [&length[..], &place.secondary, &place.key].concat();
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn place(token: &[u8]) -> Option<FoundPlace> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (secondary, key) = rest.split_at_checked(length)?;
    Some(FoundPlace {
        secondary: secondary.to_vec(),
        key: key.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_secondary_keys_or_a_range_and_an_optional_position() {
        let at = FoundPlace {
            secondary: b"\xffa b".to_vec(),
            key: b"k".to_vec(),
        };
        assert_eq!(place(token(&at).as_bytes()), Some(at.clone()));
        let parsed = |query: &str| {
            assert!(is_find(query), "{query}");
            parse(query).map(|query| (query.index, query.ranges, query.from, query.limit))
        };
        let city = || "city".to_owned();
        let keys = ["Namur", "a b"].map(KeyRange::key).to_vec();
        let query = format!("by=city&key=a+b&key=Namur&key=Namur&page={}", token(&at));
        assert_eq!(
            parsed(&query),
            Some((city(), keys, Some(at), ENTRIES_DEFAULT))
        );
        let range = vec![KeyRange::new("ab", Some(b"b".to_vec()))];
        let query = "by=city&prefix=a&from=ab&limit=7";
        assert_eq!(parsed(query), Some((city(), range, None, 7)));
        let all = vec![KeyRange::all()];
        assert_eq!(
            parsed("by=city"),
            Some((city(), all, None, ENTRIES_DEFAULT))
        );
        for query in [
            "by=city&key=a&from=b",
            "by=city&limit=0",
            "by=city&by=zip",
            "by=city&page=x",
            "by=city&after=x",
            "by=%FF",
        ] {
            assert_eq!(parsed(query), None, "{query}");
        }
        assert_eq!(parse("key=a"), None);
        let many = format!("by=city{}", "&key=a".repeat(KEYS_MAX + 1));
        assert_eq!(parsed(&many), None);
    }
}
