//! A state element on all ranks of a flow, those in other processes, too.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use millstream_base::KeyRange;
use millstream_flow::{
    Greatest, GreatestQuery, OrderedState, ReadLevel, StateAnswer, StateEntry, StateReader,
    StateRequest, StateValue,
};
use serde::Serialize;
use serde_json::Value;

use super::headers;
use super::query::{Range, StateQuery, Top, Wanted};
use super::ranks::FlowRanks;
use super::watch::FoundKeys;
use crate::error::RequestError;
use crate::shown::ANSWER_TIME_MAX;

/// How often a list of committed values is read again if ranks had different complete checkpoints, and the time between.
pub(super) const READS_MAX: usize = 20;
pub(super) const READ_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A state element on the ranks that a reader asks.
pub struct Element {
    pub name: String,
    level: ReadLevel,
    /// Committed values are of this checkpoint or a later one.
    least: u64,
    /// The element on a rank of this process. It has the same type on all of them.
    state: Arc<dyn StateReader>,
    ranks: FlowRanks,
}

/// The checkpoint of an answer, and whether its values are committed.
#[derive(Clone, Copy)]
pub struct Found {
    is_committed: bool,
    pub(super) checkpoint: Option<u64>,
}

/// Some entries of an element.
pub struct List {
    pub entries: Vec<Entry>,
    /// The last key, if there are more behind it.
    pub next: Option<String>,
    pub found: Found,
}

#[derive(Serialize)]
pub struct Entry {
    /// The secondary key that the entry was found by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub key: String,
    pub value: Value,
}

impl From<StateEntry> for Entry {
    fn from(StateEntry { key, value, .. }: StateEntry) -> Entry {
        let by = None;
        Entry { by, key, value }
    }
}

impl Element {
    /// Finds an element of a flow.
    pub fn find(
        ranks: &FlowRanks,
        name: &str,
        query: &StateQuery,
    ) -> Result<Element, RequestError> {
        let Some(state) = ranks.first().state(name) else {
            return Err(RequestError::UnknownElement {
                flow: ranks.flow.clone(),
                element: name.to_owned(),
            });
        };
        let asked = ranks.only(query.rank)?;
        if query.level == ReadLevel::Committed {
            if ranks.first().checkpoints().is_none() {
                return Err(RequestError::NoCheckpoints {
                    flow: ranks.flow.clone(),
                });
            }
            if state.ordered().is_none() {
                return Err(RequestError::LiveOnly {
                    element: name.to_owned(),
                });
            }
        }
        Ok(Element {
            name: name.to_owned(),
            level: query.level,
            least: 0,
            state,
            ranks: asked,
        })
    }

    /// Reads committed values of this checkpoint or a later one.
    pub fn since(&mut self, checkpoint: u64) {
        self.least = checkpoint;
    }

    pub fn flow(&self) -> &str {
        &self.ranks.flow
    }

    /// Reads one key; `None` if no rank owns it, or the element does not know.
    pub fn value(&self, key: &str) -> Result<Option<StateValue>, RequestError> {
        Ok(self.all_values(&[key.to_owned()])?.remove(0))
    }

    /// Reads the entries that a query wants.
    pub fn list(&self, wanted: &Wanted) -> Result<List, RequestError> {
        match wanted {
            Wanted::Keys(keys) => self.values(keys.clone()),
            Wanted::Range(range, limit) => self.range(range, *limit),
            Wanted::Greatest(range, top) => self.greatest(range, top),
        }
    }

    /// Reads some keys.
    fn values(&self, keys: Vec<String>) -> Result<List, RequestError> {
        let values = self.all_values(&keys)?;
        // A key without an owner has no value, and so no checkpoint to agree on.
        let found = values.iter().flatten().map(|value| Found::of(Some(value)));
        let found = Found::all(found);
        let entries = keys.into_iter().zip(values).filter_map(|(key, value)| {
            let value = value?.value?;
            let by = None;
            Some(Entry { by, key, value })
        });
        Ok(List {
            entries: entries.collect(),
            next: None,
            found,
        })
    }

    /// Reads up to `limit` keys of a range, and fewer if their values are large.
    fn range(&self, range: &Range, limit: usize) -> Result<List, RequestError> {
        let range = self.key_range(range)?;
        if self.state.ordered().is_none() {
            return self.unordered_list(limit);
        }
        let request = StateRequest::Range {
            element: self.name.clone(),
            range,
            limit,
            level: self.level,
        };
        let answers = self.agreed(&request)?;
        let mut entries: Vec<StateEntry> = Vec::new();
        let mut has_more = false;
        // The last key of a page that has more: what follows it is not complete.
        let mut last: Option<Vec<u8>> = None;
        let mut found = Vec::new();
        for answer in answers {
            if let StateAnswer::Range(page) = answer {
                if page.has_more {
                    has_more = true;
                    let of_page = page.entries.last().map(|entry| entry.bytes.clone());
                    last = last.into_iter().chain(of_page).min();
                }
                entries.extend(page.entries);
                found.push(Found {
                    is_committed: page.is_committed,
                    checkpoint: page.checkpoint,
                });
            }
        }
        if let Some(last) = &last {
            entries.retain(|entry| entry.bytes <= *last);
        }
        entries.sort_unstable_by(|one, other| one.bytes.cmp(&other.bytes));
        has_more |= entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| has_more);
        Ok(List {
            next: next.map(|last| last.key.clone()),
            entries: entries.into_iter().map(Entry::from).collect(),
            found: Found::all(found.into_iter()),
        })
    }

    /// Reads the entries of a range with the greatest numbers.
    fn greatest(&self, range: &Range, top: &Top) -> Result<List, RequestError> {
        if self.ranks.count() > 1 && !self.state.has_owners() {
            return Err(RequestError::SharesTop {
                element: self.name.clone(),
            });
        }
        let pointer = top.pointer.as_deref().unwrap_or(self.state.compared());
        let answers = self.agreed(&StateRequest::Greatest {
            element: self.name.clone(),
            query: GreatestQuery {
                count: top.count,
                pointer: pointer.to_owned(),
                range: self.key_range(range)?,
                level: self.level,
            },
        })?;
        let mut greatest = Greatest::new(top.count, pointer);
        let (mut misfit, mut found) = (None, Vec::new());
        for answer in answers {
            let StateAnswer::Greatest(answer) = answer else {
                continue;
            };
            let of_rank = answer.map_err(|error| RequestError::Search {
                element: self.name.clone(),
                error,
            })?;
            of_rank.entries.into_iter().for_each(|it| greatest.add(it));
            misfit = misfit.or(of_rank.misfit);
            found.push(Found {
                is_committed: of_rank.is_committed,
                checkpoint: of_rank.checkpoint,
            });
        }
        let (entries, _) = greatest.finish();
        if let Some(misfit) = misfit.filter(|_| entries.is_empty()) {
            return Err(RequestError::Numbers {
                element: self.name.clone(),
                misfit,
            });
        }
        Ok(List {
            entries: entries.into_iter().map(Entry::from).collect(),
            next: None,
            found: Found::all(found.into_iter()),
        })
    }

    /// Returns the changes of the keys of a range, or of one key.
    pub fn watched(self, range: Range, key: Option<String>) -> Result<FoundKeys, RequestError> {
        let watched = self.ranks.first().watched(&self.name);
        let watched = watched.map_err(|why| RequestError::NotWatched {
            flow: self.ranks.flow.clone(),
            element: self.name.clone(),
            why,
        })?;
        let ordered = self.state.ordered().filter(|_| watched.has_plain_keys());
        let (range, key) = match (ordered, range, key) {
            (Some(state), _, Some(key)) => (KeyRange::key(self.key_bytes(&key, state)?), None),
            (Some(_), range, None) => (self.key_range(&range)?, None),
            (None, Range::All, key) => (KeyRange::all(), key),
            (None, ..) => {
                return Err(RequestError::Unordered { element: self.name });
            }
        };
        Ok(FoundKeys {
            flow: Arc::downgrade(self.ranks.first()),
            name: self.ranks.flow,
            watched,
            range,
            key,
        })
    }

    /// Returns the headers of an answer.
    pub fn headers(&self, found: Found) -> Result<HeaderMap, RequestError> {
        let checkpoint = match self.level {
            ReadLevel::Live => None,
            // No rank remembers the beginning of the run.
            ReadLevel::Committed => Some(found.checkpoint.unwrap_or(0)),
        };
        let ranks = self.ranks.progress(checkpoint)?;
        Ok(headers::of(&ranks, found.is_committed, self.level))
    }

    /// Returns the values that the ranks have for each key.
    pub(super) fn all_values(
        &self,
        keys: &[String],
    ) -> Result<Vec<Option<StateValue>>, RequestError> {
        let answers = self.agreed(&StateRequest::Values {
            element: self.name.clone(),
            keys: keys.to_vec(),
            level: self.level,
        })?;
        let mut all = vec![None; keys.len()];
        for answer in answers {
            let values = match answer {
                StateAnswer::Values(values) => values,
                StateAnswer::Large => {
                    return Err(RequestError::Large {
                        element: self.name.clone(),
                    });
                }
                _ => continue,
            };
            for ((all, value), key) in all.iter_mut().zip(values).zip(keys) {
                self.add(all, value, key)?;
            }
        }
        Ok(all)
    }

    /// Adds another rank's value of a key.
    fn add(
        &self,
        all: &mut Option<StateValue>,
        value: Option<StateValue>,
        key: &str,
    ) -> Result<(), RequestError> {
        let has_value = |of: &Option<StateValue>| of.as_ref().is_some_and(|it| it.value.is_some());
        match (has_value(all), has_value(&value)) {
            (true, true) if self.state.ordered().is_none() => {
                return Err(RequestError::Shares {
                    element: self.name.clone(),
                    key: key.to_owned(),
                });
            }
            // A text may be that of two keys: the one with a value counts.
            (false, true) => *all = value,
            (false, false) if all.is_none() => *all = value,
            _ => {}
        }
        Ok(())
    }

    fn unordered_list(&self, limit: usize) -> Result<List, RequestError> {
        let answers = self.ranks.ask(&StateRequest::Keys {
            element: self.name.clone(),
            limit,
        })?;
        let keys = answers.into_iter().flat_map(|answer| match answer {
            StateAnswer::Keys(keys) => keys,
            _ => Vec::new(),
        });
        let keys: BTreeSet<String> = keys.collect();
        // The flow may remove a key meanwhile.
        self.values(keys.into_iter().take(limit).collect())
    }

    /// Returns whether a text is a key of the element's type, as far as that is known.
    pub fn may_have(&self, key: &str) -> bool {
        let encoded = self.state.ordered().map(|state| state.encode(key));
        encoded.is_none_or(|encoded| encoded.is_some())
    }

    fn key_range(&self, range: &Range) -> Result<KeyRange, RequestError> {
        let unordered = || RequestError::Unordered {
            element: self.name.clone(),
        };
        let state = || self.state.ordered().ok_or_else(unordered);
        let bytes = |key: &String| self.key_bytes(key, state()?);
        match range {
            Range::All => Ok(KeyRange::all()),
            // The bytes of a string are its text, and those of no other key.
            Range::Prefix(prefix) => match state()?.encode(prefix) {
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

    fn key_bytes(&self, key: &str, state: &dyn OrderedState) -> Result<Vec<u8>, RequestError> {
        state.encode(key).ok_or_else(|| RequestError::KeyType {
            element: self.name.clone(),
            key: key.to_owned(),
        })
    }

    /// Asks until all that the ranks answer is of one checkpoint, which is not before the least one.
    fn agreed(&self, request: &StateRequest) -> Result<Vec<StateAnswer>, RequestError> {
        let until = Instant::now() + ANSWER_TIME_MAX;
        for _ in 0..READS_MAX {
            let answers = self.ranks.ask(request)?;
            if self.do_agree(&answers) {
                return Ok(answers);
            }
            if Instant::now() > until {
                break;
            }
            self.ranks.pause(READ_AGAIN_AFTER)?;
        }
        Err(RequestError::Checkpoints)
    }

    /// Returns whether all answers are of one checkpoint, which is not before the least one.
    fn do_agree(&self, answers: &[StateAnswer]) -> bool {
        let (mut first, mut do_agree) = (None, true);
        let mut look = |checkpoint: Option<u64>| {
            // A rank may not know yet that a checkpoint is complete.
            let is_late = checkpoint.is_some_and(|it| it < self.least);
            do_agree &= !is_late && *first.get_or_insert(checkpoint) == checkpoint;
        };
        for answer in answers {
            match answer {
                StateAnswer::Values(values) => {
                    values.iter().flatten().for_each(|it| look(it.checkpoint));
                }
                StateAnswer::Range(page) => look(page.checkpoint),
                StateAnswer::Greatest(Ok(found)) => look(found.checkpoint),
                StateAnswer::Greatest(Err(_))
                | StateAnswer::Keys(_)
                | StateAnswer::Progress(_)
                | StateAnswer::Large => {}
            }
        }
        do_agree
    }
}

impl Found {
    /// The checkpoint of a value. A key that no rank owns, and an element without an owner for each key, have nothing
    /// committed.
    pub fn of(value: Option<&StateValue>) -> Found {
        Found {
            is_committed: value.is_some_and(|value| value.is_committed),
            checkpoint: value.and_then(|value| value.checkpoint),
        }
    }

    /// The checkpoint of a list, whose parts are of one checkpoint.
    pub fn all(parts: impl Iterator<Item = Found>) -> Found {
        let both = |one: Found, other: Found| Found {
            is_committed: one.is_committed && other.is_committed,
            ..one
        };
        parts.reduce(both).unwrap_or(Found::of(None))
    }
}
