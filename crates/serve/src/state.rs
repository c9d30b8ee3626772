//! The pages of state elements, below `/state`.

mod headers;
mod listing;
mod query;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use millstream_base::KeyRange;
use millstream_flow::{OrderedState, ReadLevel, Running, StateEntry, StateReader};
use serde::Serialize;
use serde_json::Value;

pub use self::listing::{elements, flows};
use self::query::{Range, StateQuery, Wanted};
use crate::Content;
use crate::error::RequestError;
use crate::shown::{Shown, read, running};

/// How often a list of committed values is read again if ranks had different complete checkpoints, and the time between.
const READS_MAX: usize = 20;
const READ_AGAIN_AFTER: Duration = Duration::from_millis(5);

#[derive(Serialize)]
struct Entry {
    key: String,
    value: Value,
}

/// Answers `/state/<flow>/<element>`.
pub async fn entries(
    shown: State<Shown>,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
) -> Result<Response, RequestError> {
    let Path((flow, element)) = path?;
    let query = StateQuery::parse(uri.query().unwrap_or_default())?;
    read(shown, move |Shown { content, .. }| {
        let element = Element::find(&*content, flow, element, &query)?;
        let list = match &query.wanted {
            Wanted::Keys(keys) => element.values(keys, query.level)?,
            Wanted::Range(range, limit) => element.range(range, *limit, query.level)?,
        };
        let mut headers = element.headers(&list.found, query.level);
        headers::next(&mut headers, list.next.as_deref());
        Ok((headers, Json(list.entries)).into_response())
    })
    .await
}

/// Answers `/state/<flow>/<element>/<key>`.
pub async fn value(
    shown: State<Shown>,
    path: Result<Path<(String, String, String)>, PathRejection>,
    uri: Uri,
) -> Result<Response, RequestError> {
    let Path((flow, element, key)) = path?;
    let query = StateQuery::parse_of_key(uri.query().unwrap_or_default())?;
    read(shown, move |Shown { content, .. }| {
        let element = Element::find(&*content, flow, element, &query)?;
        let (value, found) = element.value(&key, query.level)?;
        let headers = element.headers(&found.unwrap_or(Found::nothing()), query.level);
        Ok(match value {
            Some(value) => (headers, Json(value)).into_response(),
            None => {
                let error = RequestError::UnknownKey {
                    flow: element.flow,
                    element: element.name,
                    key,
                };
                (headers, error).into_response()
            }
        })
    })
    .await
}

/// A state element on the ranks of a flow that this process has.
struct Element {
    flow: String,
    name: String,
    ranks: Vec<(Arc<Running>, Arc<dyn StateReader>)>,
}

/// What an answer says about itself.
struct Found {
    is_committed: bool,
    /// The checkpoint of committed values.
    checkpoint: Option<u64>,
}

struct List {
    entries: Vec<Entry>,
    /// The first key behind them.
    next: Option<String>,
    found: Found,
}

impl Element {
    fn find(
        content: &dyn Content,
        flow: String,
        name: String,
        query: &StateQuery,
    ) -> Result<Element, RequestError> {
        let ranks = running(content, &flow, query.rank)?.into_iter();
        let readers = ranks.filter_map(|rank| Some((Arc::clone(&rank), rank.state(&name)?)));
        let ranks: Vec<_> = readers.collect();
        if ranks.is_empty() {
            return Err(RequestError::UnknownElement {
                flow,
                element: name,
            });
        }
        let element = Element { flow, name, ranks };
        if query.level == ReadLevel::Committed {
            let takes_checkpoints = element
                .ranks
                .iter()
                .all(|(rank, _)| rank.checkpoints().is_some());
            if !takes_checkpoints {
                return Err(RequestError::NoCheckpoints { flow: element.flow });
            }
            if element.ordered().is_none() {
                return Err(RequestError::LiveOnly {
                    element: element.name,
                });
            }
        }
        Ok(element)
    }

    /// Returns the element on all ranks, if its keys have an order.
    fn ordered(&self) -> Option<Vec<&dyn OrderedState>> {
        self.ranks.iter().map(|(_, rank)| rank.ordered()).collect()
    }

    /// Reads one key; without `Found` if no rank here owns the key, or the element does not know.
    fn value(
        &self,
        key: &str,
        level: ReadLevel,
    ) -> Result<(Option<Value>, Option<Found>), RequestError> {
        let Some(ranks) = self.ordered() else {
            return Ok((self.unordered_value(key)?, None));
        };
        let found = ranks.iter().find_map(|rank| rank.read(key, level));
        Ok(match found {
            Some(found) => {
                let about = Found {
                    is_committed: found.is_committed,
                    checkpoint: found.checkpoint,
                };
                (found.value, Some(about))
            }
            None => (None, None),
        })
    }

    /// Reads an element of which several ranks may have shares.
    fn unordered_value(&self, key: &str) -> Result<Option<Value>, RequestError> {
        let ranks = self.ranks.iter();
        let mut values = ranks.filter_map(|(_, rank)| rank.get(key));
        let value = values.next();
        match values.next() {
            None => Ok(value),
            Some(_) => Err(RequestError::Shares {
                element: self.name.clone(),
                key: key.to_owned(),
            }),
        }
    }

    fn values(&self, keys: &[String], level: ReadLevel) -> Result<List, RequestError> {
        self.agreed(|| {
            let mut list = List {
                entries: Vec::new(),
                next: None,
                found: Found::nothing(),
            };
            let mut abouts = Vec::new();
            for key in keys {
                let (value, about) = self.value(key, level)?;
                // A key without an owner here has no value, and so no checkpoint to agree on.
                abouts.extend(about);
                list.entries.extend(value.map(|value| Entry {
                    key: key.clone(),
                    value,
                }));
            }
            Ok((list, abouts))
        })
    }

    fn range(&self, range: &Range, limit: usize, level: ReadLevel) -> Result<List, RequestError> {
        let Some(ranks) = self.ordered() else {
            return match range {
                Range::All => self.unordered_list(limit),
                _ => Err(RequestError::Unordered {
                    element: self.name.clone(),
                }),
            };
        };
        let range = self.key_range(range, ranks[0])?;
        self.agreed(|| {
            let mut entries: Vec<StateEntry> = Vec::new();
            let mut has_more = false;
            let mut abouts = Vec::new();
            for rank in &ranks {
                let page = rank.scan(&range, limit, level);
                entries.extend(page.entries);
                has_more |= page.has_more;
                abouts.push(Found {
                    is_committed: page.is_committed,
                    checkpoint: page.checkpoint,
                });
            }
            entries.sort_unstable_by(|one, other| one.bytes.cmp(&other.bytes));
            has_more |= entries.len() > limit;
            entries.truncate(limit);
            let next = entries.last().filter(|_| has_more);
            let list = List {
                next: next.map(|last| last.key.clone()),
                entries: entries
                    .into_iter()
                    .map(|StateEntry { key, value, .. }| Entry { key, value })
                    .collect(),
                found: Found::nothing(),
            };
            Ok((list, abouts))
        })
    }

    fn unordered_list(&self, limit: usize) -> Result<List, RequestError> {
        let ranks = self.ranks.iter();
        let keys: BTreeSet<String> = ranks.flat_map(|(_, rank)| rank.keys(limit)).collect();
        let mut entries = Vec::new();
        for key in keys.into_iter().take(limit) {
            // The flow may have removed a key meanwhile.
            let value = self.unordered_value(&key)?;
            entries.extend(value.map(|value| Entry { key, value }));
        }
        Ok(List {
            entries,
            next: None,
            found: Found::nothing(),
        })
    }

    fn key_range(&self, range: &Range, state: &dyn OrderedState) -> Result<KeyRange, RequestError> {
        let bytes = |key: &String| {
            state.encode(key).ok_or_else(|| RequestError::KeyType {
                element: self.name.clone(),
                key: key.clone(),
            })
        };
        match range {
            Range::All => Ok(KeyRange::all()),
            // The bytes of a string are its text, and those of no other key.
            Range::Prefix(prefix) => match state.encode(prefix) {
                Some(bytes) if bytes == prefix.as_bytes() => Ok(KeyRange::prefix(bytes)),
                _ => Err(RequestError::Prefix {
                    element: self.name.clone(),
                }),
            },
            Range::Between(from, to) => {
                let from = from.as_ref().map(bytes).transpose()?;
                let to = to.as_ref().map(bytes).transpose()?;
                Ok(KeyRange::new(from.unwrap_or_default(), to))
            }
        }
    }

    /// Reads until all parts of a list are of one checkpoint.
    fn agreed(
        &self,
        list: impl Fn() -> Result<(List, Vec<Found>), RequestError>,
    ) -> Result<List, RequestError> {
        for _ in 0..READS_MAX {
            let (mut list, abouts) = list()?;
            let checkpoints: BTreeSet<Option<u64>> =
                abouts.iter().map(|about| about.checkpoint).collect();
            if checkpoints.len() <= 1 {
                list.found = Found {
                    is_committed: !abouts.is_empty()
                        && abouts.iter().all(|about| about.is_committed),
                    checkpoint: checkpoints.first().copied().flatten(),
                };
                return Ok(list);
            }
            thread::sleep(READ_AGAIN_AFTER);
        }
        Err(RequestError::Checkpoints)
    }

    fn headers(&self, found: &Found, level: ReadLevel) -> HeaderMap {
        let ranks: Vec<&Arc<Running>> = self.ranks.iter().map(|(rank, _)| rank).collect();
        headers::of(&ranks, found.is_committed, found.checkpoint, level)
    }
}

impl Found {
    /// Of a key that no rank here has, and of elements that do not know.
    fn nothing() -> Found {
        Found {
            is_committed: false,
            checkpoint: None,
        }
    }
}
