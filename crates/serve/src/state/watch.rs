//! Watches of state elements: `/state/<flow>/<element>?watch`.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use millstream_base::{KeyEvent, KeyRange, Offset, WatchPositions};
use millstream_flow::{
    ChangelogWatch, ReadLevel, Running, ShownChange, WatchError, WatchedElement,
};
use serde_json::value::to_raw_value;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::element::Element;
use super::query::{Range, StateQuery, StateWatchQuery, Wanted};
use super::ranks::FlowRanks;
use crate::connection::Connection;
use crate::error::RequestError;
use crate::gate::{Visited, credentials_of};
use crate::keyed::KeyedError;
use crate::shown::{Shown, read_state};
use crate::watch::{self, Reader, Seen, Watched};

/// How often a watch looks for a new complete checkpoint.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The keys of an element that a request watches.
pub struct WatchedKeys {
    pub flow: String,
    pub element: String,
    /// `None` for those of the query.
    pub key: Option<String>,
}

/// Answers with the changes of a state element.
pub async fn changes(
    State(shown): State<Arc<Shown>>,
    connection: &Connection,
    keys: WatchedKeys,
    query: &str,
    headers: &HeaderMap,
) -> Result<Response, RequestError> {
    let refused = || RequestError::StateWatchQuery(query.to_owned());
    let query = StateWatchQuery::parse(query).ok_or_else(refused)?;
    if keys.key.is_some() && query.range != Range::All {
        return Err(refused());
    }
    let from = watch::from(query.asked, headers)?;
    let place = watch::place(&shown.watches)?;
    let visited = Visited::State {
        flow: keys.flow.clone(),
        element: keys.element.clone(),
    };
    let found = read_state(State(shown.clone()), move |shown| {
        let ranks = FlowRanks::find(&*shown.content, &keys.flow)?;
        let element = Element::find(&ranks, &keys.element, &LIVE)?;
        element.watched(query.range, keys.key)
    });
    let found = found.await?;
    let begun = found.watched.changelog().watch(found.range, from).await;
    let changelog = begun.map_err(|error| match error {
        WatchError::MadeAgain { stream } => KeyedError::MadeAgain(stream),
        WatchError::Failed(error) => KeyedError::Failed(error.to_string()),
    })?;
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watch = StateWatch {
        changelog,
        element: found.watched,
        key: found.key,
        progress: Progress {
            shown: shown.clone(),
            name: found.name,
            flow: found.flow,
            ticks,
            last: 0,
            state: ProgressState::Looking,
        },
    };
    let credentials = headers.get(header::AUTHORIZATION);
    let reader = Reader {
        visitor: Arc::clone(&connection.visitor),
        visited,
        credentials: credentials.and_then(credentials_of),
    };
    watch::answer(
        watch,
        &shown.watches,
        Arc::clone(&connection.time),
        (reader, place),
    )
}

/// The element on all ranks, as it is now.
const LIVE: StateQuery = StateQuery {
    wanted: Wanted::Range(Range::All, 0),
    by: None,
    level: ReadLevel::Live,
    rank: None,
    at_least: None,
};

/// A state element, and its keys that are watched.
pub struct FoundKeys {
    /// The name of the flow.
    pub name: String,
    pub watched: WatchedElement,
    /// The keys of the changelog.
    pub range: KeyRange,
    /// The text of the only key, where the range cannot name it.
    pub key: Option<String>,
    pub flow: Weak<Running>,
}

/// A watch of a state element.
struct StateWatch {
    changelog: Box<dyn ChangelogWatch>,
    element: WatchedElement,
    /// See [`FoundKeys::key`].
    key: Option<String>,
    progress: Progress,
}

/// The progress of the flow, to be shown behind the changes of the checkpoint that it was made at.
struct Progress {
    shown: Arc<Shown>,
    /// The name of the flow.
    name: String,
    flow: Weak<Running>,
    ticks: Interval,
    /// The last checkpoint that was shown.
    last: u64,
    state: ProgressState,
}

enum ProgressState {
    /// For a new complete checkpoint.
    Looking,
    Asking(u64, Asking),
    /// For the changes before the ends of the partitions.
    Waiting(u64, String, Vec<Offset>),
}

type Asking = Pin<Box<dyn Future<Output = Result<(String, Vec<Offset>), String>> + Send>>;

impl Progress {
    /// Does one step, when it is time to. Returns `false` if the flow is gone.
    async fn step(&mut self, element: &WatchedElement) -> bool {
        match &mut self.state {
            ProgressState::Looking => {
                self.ticks.tick().await;
                let Some(flow) = self.flow.upgrade() else {
                    return false;
                };
                let complete = flow.last_complete_checkpoint();
                if complete > self.last {
                    let asking = ask(
                        self.shown.clone(),
                        self.name.clone(),
                        element.clone(),
                        complete,
                    );
                    self.state = ProgressState::Asking(complete, Box::pin(asking));
                }
            }
            ProgressState::Asking(checkpoint, asking) => {
                let checkpoint = *checkpoint;
                self.state = match asking.await {
                    Ok((progress, ends)) => ProgressState::Waiting(checkpoint, progress, ends),
                    // Another rank does not answer: the next look asks again.
                    Err(_) => ProgressState::Looking,
                };
            }
            ProgressState::Waiting(..) => {
                self.ticks.tick().await;
            }
        }
        true
    }

    /// Returns the progress if all changes before it were seen.
    fn reached(&mut self, positions: &WatchPositions) -> Option<String> {
        let ProgressState::Waiting(checkpoint, progress, ends) = &mut self.state else {
            return None;
        };
        let mut partitions = positions.partitions.iter();
        let is_reached = partitions.all(|position| {
            let end = ends.get(position.partition as usize);
            end.is_none_or(|end| position.next >= *end)
        });
        if !is_reached {
            return None;
        }
        let progress = std::mem::take(progress);
        self.last = *checkpoint;
        self.state = ProgressState::Looking;
        Some(progress)
    }
}

/// Asks all ranks how far they were at a checkpoint, and then where the changelog ends.
async fn ask(
    shown: Arc<Shown>,
    flow: String,
    element: WatchedElement,
    checkpoint: u64,
) -> Result<(String, Vec<Offset>), String> {
    let progress = read_state(State(shown), move |shown| {
        FlowRanks::find(&*shown.content, &flow)?.progress_at(checkpoint)
    });
    let progress = progress.await.map_err(|error| error.to_string())?;
    let ends = element.changelog().ends().await;
    Ok((progress, ends.map_err(|error| error.to_string())?))
}

impl StateWatch {
    async fn next_seen(&mut self) -> Result<Seen, String> {
        loop {
            if !self.changelog.is_in_snapshot()
                && let Some(progress) = self.progress.reached(&self.changelog.positions())
            {
                return Ok(Seen::Progress(progress));
            }
            let event = {
                let mut next = self.changelog.next();
                tokio::select! {
                    biased;
                    event = &mut next => Some(event),
                    goes_on = self.progress.step(&self.element) => match goes_on {
                        true => None,
                        false => return Err(ENDED.to_owned()),
                    },
                }
            };
            if let Some(event) = event
                && let Some(seen) = self.seen(event.map_err(|error| error.to_string())?)?
            {
                return Ok(seen);
            }
        }
    }

    /// Decodes an event; `None` if it is of another key.
    fn seen(&self, event: KeyEvent) -> Result<Option<Seen>, String> {
        let KeyEvent::Change {
            key,
            version,
            timestamp,
            value,
            expires_at,
        } = event
        else {
            return Ok(Some(Seen::Key(event)));
        };
        let shown = self.element.show(&key, value.as_deref());
        let shown = shown.map_err(|error| {
            format!(
                "partition {}, offset {}: {error}; the program has an element of another type, or another program has \
                 written to the flow's state",
                version.partition, version.version
            )
        })?;
        let ShownChange {
            key, entry, value, ..
        } = shown;
        // Keys without a text are left out, as in lists.
        let Some(key) = key.filter(|key| self.key.as_ref().is_none_or(|only| only == key)) else {
            return Ok(None);
        };
        let change = KeyEvent::Change {
            key: key.into(),
            version,
            timestamp,
            value: value.map(|value| value.to_string().into()),
            expires_at,
        };
        Ok(Some(
            match entry.and_then(|entry| to_raw_value(&entry).ok()) {
                Some(entry) => Seen::Entry(change, entry),
                None => Seen::Key(change),
            },
        ))
    }
}

const ENDED: &str = "the flow has ended, or begins anew: come back with the id of the last event";

impl Watched for StateWatch {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Seen, String>> + Send + '_>> {
        Box::pin(self.next_seen())
    }

    fn positions(&self) -> WatchPositions {
        self.changelog.positions()
    }

    fn is_in_snapshot(&self) -> bool {
        self.changelog.is_in_snapshot()
    }
}
