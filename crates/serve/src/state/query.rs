//! The queries of the pages of state elements.

use millstream_flow::ReadLevel;
use percent_encoding::percent_decode_str;

use super::position::Offsets;
use crate::bounds::{ENTRIES_DEFAULT, ENTRIES_MAX, KEYS_MAX};
use crate::error::RequestError;
use crate::watch::Asked;

/// A parsed query.
#[derive(Debug, PartialEq, Eq)]
pub struct StateQuery {
    pub wanted: Wanted,
    /// The element whose values are the wanted keys; then `wanted` is of that one.
    pub by: Option<String>,
    pub level: ReadLevel,
    /// One rank of the flow; `None` for all.
    pub rank: Option<u32>,
    /// The answer has all records before this position.
    pub at_least: Option<Offsets>,
}

/// A parsed query of a watch.
#[derive(Debug, PartialEq, Eq)]
pub struct StateWatchQuery {
    pub range: Range,
    pub asked: Asked,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    Keys(Vec<String>),
    /// Keys of a range, and how many at most.
    Range(Range, usize),
    /// The entries of a range with the greatest numbers.
    Greatest(Range, Top),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Top {
    pub count: usize,
    /// The place of the number in a value, as a JSON pointer; `None` for that of the element's type.
    pub pointer: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Range {
    All,
    Prefix(String),
    /// From the first key, before the second one.
    Between(Option<String>, Option<String>),
}

impl StateQuery {
    /// Parses the query of a page of keys.
    pub fn parse(query: &str) -> Result<StateQuery, RequestError> {
        let refused = || RequestError::StateQuery(query.to_owned());
        parse(query).ok_or_else(refused)
    }

    /// Parses the query of a page of one key.
    pub fn parse_of_key(query: &str) -> Result<StateQuery, RequestError> {
        let refused = || RequestError::StateKeyQuery(query.to_owned());
        let parsed = parse(query).ok_or_else(refused)?;
        match fields_of_key(query) {
            true => Ok(parsed),
            false => Err(refused()),
        }
    }
}

impl StateWatchQuery {
    /// Parses a query; `None` if it is malformed.
    pub fn parse(query: &str) -> Option<StateWatchQuery> {
        let (mut range, mut watch, mut after) = (String::new(), None, None);
        for (name, value) in pairs(query) {
            let field = match name {
                "watch" => &mut watch,
                "after" => &mut after,
                "prefix" | "from" | "to" => {
                    range = format!("{range}&{name}={value}");
                    continue;
                }
                _ => return None,
            };
            if field.replace(value).is_some() {
                return None;
            }
        }
        let asked = match (watch?, after) {
            ("", Some(after)) => Asked::After(after.to_owned()),
            ("", None) => Asked::Now,
            ("snapshot", None) => Asked::Snapshot,
            _ => return None,
        };
        match parse(&range)?.wanted {
            Wanted::Range(range, _) => Some(StateWatchQuery { range, asked }),
            Wanted::Keys(_) | Wanted::Greatest(..) => None,
        }
    }
}

fn fields_of_key(query: &str) -> bool {
    let mut fields = pairs(query);
    fields.all(|(name, _)| matches!(name, "committed" | "rank" | "at-least"))
}

/// Returns the elements by which a query finds entries.
pub fn secondary_of(query: &str) -> impl Iterator<Item = String> {
    let of_query = pairs(query).filter(|(name, _)| *name == "by");
    of_query.filter_map(|(_, value)| decoded(value))
}

/// Decodes a value; `None` if it is no UTF-8.
fn decoded(value: &str) -> Option<String> {
    // A form encodes a space as a plus sign.
    let value = value.replace('+', " ");
    Some(percent_decode_str(&value).decode_utf8().ok()?.into_owned())
}

fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Returns `None` for a malformed query.
fn parse(query: &str) -> Option<StateQuery> {
    let mut keys = Vec::new();
    let (mut prefix, mut from, mut to) = (None, None, None);
    let (mut limit, mut committed, mut rank) = (None, None, None);
    let (mut top, mut of, mut by, mut at_least) = (None, None, None, None);
    for (name, value) in pairs(query) {
        let value = decoded(value)?;
        let field = match name {
            "keys" => {
                keys.push(value);
                continue;
            }
            "prefix" => &mut prefix,
            "from" => &mut from,
            "to" => &mut to,
            "limit" => &mut limit,
            "committed" => &mut committed,
            "rank" => &mut rank,
            "top" => &mut top,
            "of" => &mut of,
            "by" => &mut by,
            "at-least" => &mut at_least,
            _ => return None,
        };
        if field.replace(value).is_some() {
            return None;
        }
    }
    let level = match committed.as_deref() {
        None | Some("false") => ReadLevel::Live,
        Some("" | "true") => ReadLevel::Committed,
        Some(_) => return None,
    };
    let rank = rank.map(|rank| rank.parse()).transpose().ok()?;
    let has_limit = limit.is_some();
    let limit = count(limit.unwrap_or(ENTRIES_DEFAULT.to_string()))?;
    let range = match (prefix, from, to) {
        (None, None, None) => Range::All,
        (Some(prefix), None, None) => Range::Prefix(prefix),
        (None, from, to) => Range::Between(from, to),
        (Some(_), ..) => return None,
    };
    let wanted = match (top, keys.is_empty(), &range) {
        (Some(top), true, _) if !has_limit && by.is_none() => {
            let count = count(top)?;
            let pointer = of.map(|of| format!("/{of}"));
            Wanted::Greatest(range, Top { count, pointer })
        }
        (None, true, _) if of.is_none() => Wanted::Range(range, limit),
        (None, false, Range::All) if of.is_none() && !has_limit && keys.len() <= KEYS_MAX => {
            Wanted::Keys(keys)
        }
        _ => return None,
    };
    Some(StateQuery {
        wanted,
        by,
        level,
        rank,
        at_least: match at_least {
            Some(text) => Some(Offsets::parse(&text)?),
            None => None,
        },
    })
}

/// Parses a number of entries.
fn count(text: String) -> Option<usize> {
    let count = text.parse().ok()?;
    (1..=ENTRIES_MAX).contains(&count).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(query: &str, wanted: Wanted) {
        assert_eq!(parse(query).map(|query| query.wanted), Some(wanted));
    }

    #[test]
    fn a_query_names_keys_or_a_range() {
        let text = |text: &str| Some(text.to_owned());
        check("", Wanted::Range(Range::All, ENTRIES_DEFAULT));
        check("limit=7", Wanted::Range(Range::All, 7));
        let keys = ["a,b", "", "c d"].map(str::to_owned);
        check("keys=a,b&keys=&keys=c+d", Wanted::Keys(keys.to_vec()));
        let prefix = Range::Prefix("a/".to_owned());
        check("prefix=a%2F&limit=1", Wanted::Range(prefix, 1));
        let between = Range::Between(text("a"), text("b"));
        check("from=a&to=b", Wanted::Range(between, ENTRIES_DEFAULT));
        let behind = Range::Between(None, text("b"));
        check("to=b", Wanted::Range(behind, ENTRIES_DEFAULT));
        let pointer = Some("/total/price".to_owned());
        let top = Top { count: 3, pointer };
        check("top=3&of=total%2Fprice", Wanted::Greatest(Range::All, top));
        let top = Top {
            count: ENTRIES_MAX,
            pointer: None,
        };
        let prefix = Range::Prefix("a".to_owned());
        check("prefix=a&top=10000", Wanted::Greatest(prefix, top));
        let by = parse("by=names&keys=ann").unwrap();
        assert_eq!(by.by, text("names"));
        assert_eq!(by.wanted, Wanted::Keys(vec!["ann".to_owned()]));
    }

    #[test]
    fn malformed_queries_are_refused() {
        for query in [
            "limit=0",
            "limit=10001",
            "limit=",
            "form=a",
            "prefix=a&from=b",
            "prefix=a&to=b",
            "keys=a&limit=1",
            "keys=a&prefix=b",
            "to=a&to=b",
            "keys=%FF",
            "prefix=%FF",
            "committed=yes",
            "committed&committed",
            "rank=-1",
            "top=0",
            "top=10001",
            "top=",
            "top=-1",
            "top=1&limit=1",
            "top=1&keys=a",
            "top=1&by=names",
            "top=1&top=1",
            "of=price",
            "of=price&keys=a",
            "by=names&by=names",
            "at-least=",
            "at-least=orders",
            "at-least=orders/0=1&at-least=orders/0=2",
            "rank=",
        ] {
            assert_eq!(parse(query), None, "{query}");
        }
        let keys = "keys=a&".repeat(KEYS_MAX + 1);
        assert_eq!(parse(&keys), None);
    }

    #[test]
    fn a_watch_names_a_range_and_its_beginning() {
        let check = |query: &str, range: Range, asked: Asked| {
            let expected = StateWatchQuery { range, asked };
            assert_eq!(StateWatchQuery::parse(query), Some(expected), "{query}");
        };
        check("watch", Range::All, Asked::Now);
        check("watch=snapshot&", Range::All, Asked::Snapshot);
        let prefix = Range::Prefix("a b".to_owned());
        let after = Asked::After("00ff".to_owned());
        check("prefix=a+b&watch&after=00ff", prefix, after);
        let between = Range::Between(Some("a".to_owned()), Some("b".to_owned()));
        check("from=a&watch&to=b", between, Asked::Now);
        for query in [
            "",
            "prefix=a",
            "watch=now",
            "watch&watch",
            "watch=snapshot&after=00",
            "watch&prefix=a&from=b",
            "watch&from=a&from=b",
            "watch&keys=a",
            "watch&limit=1",
            "watch&committed",
            "watch&rank=0",
            "watch&prefix=%FF",
        ] {
            assert_eq!(StateWatchQuery::parse(query), None, "{query}");
        }
    }

    #[test]
    fn the_parameter_committed_needs_no_value() {
        for (query, level) in [
            ("", ReadLevel::Live),
            ("committed=false", ReadLevel::Live),
            ("committed", ReadLevel::Committed),
            ("committed=true&rank=3", ReadLevel::Committed),
        ] {
            assert_eq!(StateQuery::parse_of_key(query).unwrap().level, level);
        }
        assert!(StateQuery::parse_of_key("limit=3").is_err());
        let at_least = StateQuery::parse_of_key("at-least=orders/0=7")
            .unwrap()
            .at_least;
        assert_eq!(at_least, Offsets::parse("orders/0=7"));
    }
}
