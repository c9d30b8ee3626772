//! Watches of state elements: `/state/<flow>/<element>?watch`.

use std::sync::{Arc, Weak};

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use millstream_base::{KeyRange, WatchFrom};
use millstream_flow::{
    BoxError, ChangelogWatch, ReadLevel, Running, ShownChange, WatchError, WatchFuture,
    WatchedElement,
};

use super::element::Element;
use super::feed::{AskedProgress, Following, Progress, Source};
use super::query::{Range, StateQuery, StateWatchQuery, Wanted};
use super::ranks::FlowRanks;
use crate::connection::Connection;
use crate::error::RequestError;
use crate::gate::{Visited, credentials_of};
use crate::keyed::KeyedError;
use crate::shown::{Shown, read_state};
use crate::watch::{self, Reader};

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
    let name = (keys.flow.clone(), keys.element.clone());
    let found = read_state(State(shown.clone()), move |shown| {
        let ranks = FlowRanks::find(&*shown.content, &keys.flow)?;
        let element = Element::find(&ranks, &keys.element, &LIVE)?;
        element.watched(query.range, keys.key)
    });
    let FoundKeys {
        name: flow_name,
        watched: element,
        range,
        key,
        flow,
    } = found.await?;
    let source = Arc::new(Changes {
        element,
        shown: shown.clone(),
        name: flow_name,
        flow,
    });
    let feeds = &shown.feeds;
    let turn = feeds.turn().await.ok_or(RequestError::BusyWatches)?;
    let begun = Following::begin(feeds, (name, source), (range, key), (from, turn)).await;
    let watch = begun.map_err(|error| match error {
        WatchError::MadeAgain { stream } => KeyedError::MadeAgain(stream),
        WatchError::Failed(error) => KeyedError::Failed(error.to_string()),
    })?;
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

/// The changes of an element, and the progress of its flow.
struct Changes {
    element: WatchedElement,
    shown: Arc<Shown>,
    /// The name of the flow.
    name: String,
    flow: Weak<Running>,
}

impl Source for Changes {
    fn watch(
        &self,
        range: KeyRange,
        from: WatchFrom,
    ) -> WatchFuture<'static, Box<dyn ChangelogWatch>> {
        self.element.changelog().watch(range, from)
    }

    fn show(&self, key: &[u8], value: Option<&[u8]>) -> Result<ShownChange, BoxError> {
        self.element.show(key, value)
    }

    fn checkpoint(&self) -> Option<u64> {
        let flow = self.flow.upgrade()?;
        Some(flow.last_complete_checkpoint())
    }

    fn progress(&self, checkpoint: u64) -> AskedProgress {
        let (shown, name, element) = (self.shown.clone(), self.name.clone(), self.element.clone());
        Box::pin(async move {
            let text = read_state(State(shown), move |shown| {
                FlowRanks::find(&*shown.content, &name)?.progress_at(checkpoint)
            });
            let text = text.await.map_err(|error| error.to_string())?;
            // All ranks have stored the changes of a complete checkpoint, so these ends are behind them.
            let ends = element.changelog().ends().await;
            Ok(Progress {
                checkpoint,
                text,
                ends: ends.map_err(|error| error.to_string())?,
            })
        })
    }

    fn run(&self) -> usize {
        self.flow.as_ptr().addr()
    }
}
