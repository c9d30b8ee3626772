//! A state element on all ranks of a flow, those in other processes, too.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use millstream_base::KeyRange;
use millstream_flow::{
    AskError, Asked, Greatest, GreatestQuery, OrderedState, Progress, ReadLevel, Running, StateAnswer, StateEntry,
    StateReader, StateRequest, StateValue,
};
use serde::Serialize;
use serde_json::Value;

use super::headers;
use super::query::{Range, StateQuery, Top, Wanted};
use super::watch::FoundKeys;
use crate::Content;
use crate::error::RequestError;
use crate::shown::running;

/// How often a list of committed values is read again if ranks had different complete checkpoints, and the time between.
pub(super) const READS_MAX: usize = 20;
pub(super) const READ_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// How long other ranks may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// A state element on the ranks that a reader asks.
pub struct Element {
    pub flow: String,
    pub name: String,
    level: ReadLevel,
    /// The element on a rank of this process. It has the same type on all of them.
    state: Arc<dyn StateReader>,
    here: Vec<Arc<Running>>,
    /// Ranks in other processes, and the rank here that asks them.
    away: Vec<u32>,
    asks: Arc<Running>,
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
    pub fn find(
        content: &dyn Content,
        flow: String,
        name: String,
        query: &StateQuery,
    ) -> Result<Element, RequestError> {
        let mut here = running(content, &flow, None)?;
        let asks = Arc::clone(&here[0]);
        let Some(state) = asks.state(&name) else {
            return Err(RequestError::UnknownElement {
                flow,
                element: name,
            });
        };
        let wanted = match query.rank {
            Some(rank) if rank >= asks.ranks() => {
                return Err(RequestError::UnknownRank { flow, rank });
            }
            Some(rank) => rank..rank + 1,
            None => 0..asks.ranks(),
        };
        here.retain(|rank| wanted.contains(&rank.rank()));
        let is_away = |rank: &u32| here.iter().all(|here| here.rank() != *rank);
        if query.level == ReadLevel::Committed {
            if asks.checkpoints().is_none() {
                return Err(RequestError::NoCheckpoints { flow });
            }
            if state.ordered().is_none() {
                return Err(RequestError::LiveOnly { element: name });
            }
        }
        Ok(Element {
            flow,
            name,
            level: query.level,
            away: wanted.filter(is_away).collect(),
            state,
            here,
            asks,
        })
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

    /// Reads up to `limit` keys of a range.
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
        let mut found = Vec::new();
        for answer in answers {
            if let StateAnswer::Range(page) = answer {
                entries.extend(page.entries);
                has_more |= page.has_more;
                found.push(Found {
                    is_committed: page.is_committed,
                    checkpoint: page.checkpoint,
                });
            }
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
        if self.here.len() + self.away.len() > 1 && !self.state.has_owners() {
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
        let watched = self.asks.watched(&self.name);
        let watched = watched.map_err(|why| RequestError::NotWatched {
            flow: self.flow.clone(),
            element: self.name.clone(),
            why,
        })?;
        let ordered = self.state.ordered().filter(|_| watched.has_plain_keys());
        let (range, key) = match (ordered, range, key) {
            (Some(state), _, Some(key)) => (KeyRange::key(self.key_bytes(&key, state)?), None),
            (Some(state), range, None) => (self.key_range(&range)?, None),
            (None, Range::All, key) => (KeyRange::all(), key),
            (None, ..) => {
                return Err(RequestError::Unordered { element: self.name });
            }
        };
        Ok(FoundKeys {
            flow: Arc::downgrade(&self.asks),
            name: (self.flow, self.name),
            watched,
            range,
            key,
        })
    }

    /// Returns how far all ranks were at a checkpoint, as an object.
    pub fn progress_at(&self, checkpoint: u64) -> Result<String, RequestError> {
        let ranks = self.progress(Some(checkpoint))?;
        // A rank remembers the last checkpoints only.
        if ranks
            .iter()
            .any(|rank| rank.checkpoint_age_seconds.is_none())
        {
            return Err(RequestError::Checkpoints);
        }
        Ok(headers::progress(&ranks, checkpoint).to_string())
    }

    fn progress(&self, checkpoint: Option<u64>) -> Result<Vec<Progress>, RequestError> {
        let answers = self.ask_all(&StateRequest::Progress { checkpoint })?;
        let ranks = answers.into_iter().filter_map(|answer| match answer {
            StateAnswer::Progress(progress) => Some(progress),
            _ => None,
        });
        Ok(ranks.collect())
    }

    /// Returns the headers of an answer.
    pub fn headers(&self, found: Found) -> Result<HeaderMap, RequestError> {
        let checkpoint = match self.level {
            ReadLevel::Live => None,
            // No rank remembers the beginning of the run.
            ReadLevel::Committed => Some(found.checkpoint.unwrap_or(0)),
        };
        let ranks = self.progress(checkpoint)?;
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
            let StateAnswer::Values(values) = answer else {
                continue;
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
        let answers = self.ask_all(&StateRequest::Keys {
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

    /// Asks until all that the ranks answer is of one checkpoint.
    fn agreed(&self, request: &StateRequest) -> Result<Vec<StateAnswer>, RequestError> {
        let until = Instant::now() + ANSWER_TIME_MAX;
        for _ in 0..READS_MAX {
            let answers = self.ask_all(request)?;
            let checkpoints: BTreeSet<_> = answers.iter().flat_map(checkpoints).collect();
            if checkpoints.len() <= 1 {
                return Ok(answers);
            }
            if Instant::now() > until {
                break;
            }
            thread::sleep(READ_AGAIN_AFTER);
        }
        Err(RequestError::Checkpoints)
    }

    /// Asks all ranks, and waits for their answers.
    fn ask_all(&self, request: &StateRequest) -> Result<Vec<StateAnswer>, RequestError> {
        let until = Instant::now() + ANSWER_TIME_MAX;
        let asked = self.away.iter().map(|rank| self.asks.ask(*rank, request));
        let asked: Vec<Asked> = asked.collect::<Result<_, _>>()?;
        let mut answers = Vec::new();
        for rank in &self.here {
            let answer = rank.read(request).map_err(|error| AskError::Failed {
                rank: rank.rank(),
                error: error.to_string(),
            });
            answers.push(answer?);
        }
        for asked in asked {
            answers.push(asked.wait(until.saturating_duration_since(Instant::now()))?);
        }
        Ok(answers)
    }
}

/// The checkpoints of a rank's answer.
fn checkpoints(answer: &StateAnswer) -> Vec<Option<u64>> {
    match answer {
        StateAnswer::Values(values) => values.iter().flatten().map(|it| it.checkpoint).collect(),
        StateAnswer::Range(page) => vec![page.checkpoint],
        StateAnswer::Greatest(Ok(found)) => vec![found.checkpoint],
        StateAnswer::Greatest(Err(_)) | StateAnswer::Keys(_) | StateAnswer::Progress(_) => {
            Vec::new()
        }
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
