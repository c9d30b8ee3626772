//! A watch of a state element: it reads by itself until it has reached the feed, and then follows the feed.
//!
//! 1. **Alone.** It has a reader of its own: for a snapshot, or for the changes behind a position.
//! 2. **Joining.** It has joined at a position of the feed that its reader has not passed, so no change is in the queue that it has
//!    sent. It reads on up to that position, and leaves out the changes that its reader finds behind it: the queue has them.
//! 3. **Following.** The position is reached, so it needs no reader.
//!
//! When the feed drops it, it takes the rest of the queue, and begins again behind that.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use millstream_base::{KeyEvent, KeyRange, WatchFrom, WatchPositions};
use millstream_flow::{ChangelogWatch, WatchError};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use super::feeds::{Feeds, Running};
use super::{End, Item, Join, News, Progress, Source, Subscription, WatchedBy, pairs, shown};
use crate::watch::{Seen, Watched};

/// How long a watch that is before the feed waits for it, rather than read on.
const HOLD_MAX: Duration = Duration::from_millis(200);

/// The pause before a watch asks for another feed when one is broken.
const FEED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The bytes of the frames that are sent together, at about. Each watch may have some of them that a slow client does not take.
const TOGETHER_BYTES_MAX: usize = 4 << 10;

/// A watch of a state element.
pub struct Following {
    /// The names of the flow and the element.
    name: (String, String),
    source: Arc<dyn Source>,
    feeds: Arc<Feeds>,
    range: KeyRange,
    watched: WatchedBy,
    feed: Arc<Running>,
    /// When it asks for another feed, if this one is broken.
    feed_again_at: Instant,
    phase: Phase,
    /// The last checkpoint whose progress was sent.
    shown: u64,
    /// Progress of the feed, until the own reader has reached it.
    progress: Option<Arc<Progress>>,
}

enum Phase {
    Alone(Reader),
    /// Up to this position of the feed.
    Joining(Reader, Subscription, WatchPositions),
    /// It is at least at this position.
    Following(Subscription, WatchPositions),
    /// For a reader behind this position.
    Beginning(WatchPositions, Beginning),
}

struct Reader {
    changelog: Box<dyn ChangelogWatch>,
    _turn: OwnedSemaphorePermit,
    /// Until when it waits for the feed.
    hold_until: Option<Instant>,
}

type Beginning = Pin<Box<dyn Future<Output = Result<Reader, WatchError>> + Send>>;

const ENDED: &str = "the flow has ended, or begins anew: come back with the id of the last event";

/// The event of a step, if it has one.
type Step = Result<Option<Seen>, String>;

impl Following {
    /// Begins to watch an element of a flow: the keys of a range, or of these the one with a text.
    pub async fn begin(
        feeds: &Arc<Feeds>,
        (name, source): ((String, String), Arc<dyn Source>),
        (range, text): (KeyRange, Option<String>),
        (from, turn): (WatchFrom, OwnedSemaphorePermit),
    ) -> Result<Following, WatchError> {
        let watched = match (text, range.only_key()) {
            (Some(text), _) => WatchedBy::Text(text),
            (None, Some(key)) => WatchedBy::Key(Bytes::copy_from_slice(key)),
            (None, None) => WatchedBy::Range(range.clone()),
        };
        let feed = feeds.of(&name, &source);
        let changelog = source.watch(range.clone(), from).await?;
        Ok(Following {
            name,
            feeds: Arc::clone(feeds),
            source,
            range,
            watched,
            feed,
            feed_again_at: Instant::now() + FEED_AGAIN_AFTER,
            phase: Phase::Alone(Reader::new(changelog, turn)),
            shown: 0,
            progress: None,
        })
    }

    async fn next_seen(&mut self) -> Result<Seen, String> {
        loop {
            let seen = match &mut self.phase {
                Phase::Alone(_) => self.read_alone().await?,
                Phase::Joining(..) => self.join().await?,
                Phase::Following(..) => self.follow().await?,
                Phase::Beginning(_, beginning) => {
                    let reader = beginning.await.map_err(|error| error.to_string())?;
                    self.phase = Phase::Alone(reader);
                    None
                }
            };
            if let Some(seen) = seen {
                return Ok(seen);
            }
        }
    }

    async fn read_alone(&mut self) -> Step {
        let Phase::Alone(reader) = &mut self.phase else {
            return Ok(None);
        };
        if reader.changelog.is_in_snapshot() {
            let event = reader.changelog.next().await;
            return self.seen(event);
        }
        let feed = Arc::clone(&self.feed);
        // It listens before it looks.
        let mut moved = pin!(feed.feed.moved().notified());
        moved.as_mut().enable();
        let positions = reader.changelog.positions();
        if let Some(progress) = self.own_progress(&positions) {
            return Ok(Some(progress));
        }
        let Phase::Alone(reader) = &mut self.phase else {
            return Ok(None);
        };
        let mut is_behind = false;
        let mut again_at = None;
        match feed.feed.join(&self.watched, &positions, self.shown) {
            Join::Joined(subscription, at) => {
                self.progress = None;
                let alone = std::mem::replace(&mut self.phase, Phase::nowhere(&at));
                if let Phase::Alone(reader) = alone {
                    self.phase = Phase::Joining(reader, subscription, at);
                }
                return Ok(None);
            }
            Join::Ended(End::FlowEnded) => return Err(ENDED.to_owned()),
            Join::Ended(End::Broken) if Instant::now() < self.feed_again_at => {
                again_at = Some(self.feed_again_at);
            }
            Join::Ended(End::Broken) => {
                self.feed = self.feeds.of(&self.name, &self.source);
                self.feed_again_at = Instant::now() + FEED_AGAIN_AFTER;
                return Ok(None);
            }
            Join::Behind => is_behind = true,
            Join::Other => {}
        }
        if is_behind {
            let now = Instant::now();
            let until = *reader.hold_until.get_or_insert(now + HOLD_MAX);
            if now < until {
                tokio::select! {
                    () = moved => {}
                    () = sleep_until(until) => {}
                }
                return Ok(None);
            }
        }
        let again = async {
            match again_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            biased;
            event = reader.changelog.next() => event,
            () = moved => return Ok(None),
            () = again => return Ok(None),
        };
        reader.hold_until = None;
        self.seen(event)
    }

    /// Returns the progress that the feed knows, if the own reader has reached it.
    fn own_progress(&mut self, positions: &WatchPositions) -> Option<Seen> {
        if self.progress.is_none() {
            let known = self.feed.feed.progress();
            self.progress = known.filter(|it| it.checkpoint > self.shown);
        }
        let progress = self.progress.take_if(|it| it.is_before(positions))?;
        self.shown = progress.checkpoint;
        Some(Seen::Progress(progress.text.clone()))
    }

    async fn join(&mut self) -> Step {
        let Phase::Joining(reader, _, at) = &mut self.phase else {
            return Ok(None);
        };
        let positions = reader.changelog.positions();
        if pairs(&positions, at).all(|(now, at)| now.next >= at.next) {
            let at = at.clone();
            let joining = std::mem::replace(&mut self.phase, Phase::nowhere(&at));
            if let Phase::Joining(_, subscription, at) = joining {
                self.phase = Phase::Following(subscription, at);
            }
            return Ok(None);
        }
        let event = reader.changelog.next().await;
        if let Ok(Some(KeyEvent::Change { version, .. })) = &event
            && pairs(at, at)
                .any(|(at, _)| at.partition == version.partition && version.version >= at.next)
        {
            // The queue has it.
            return Ok(None);
        }
        if reader.changelog.is_in_snapshot() {
            // It has missed changes, and begins again.
            let at = at.clone();
            let joining = std::mem::replace(&mut self.phase, Phase::nowhere(&at));
            if let Phase::Joining(reader, ..) = joining {
                self.phase = Phase::Alone(reader);
            }
        }
        self.seen(event)
    }

    async fn follow(&mut self) -> Step {
        let Phase::Following(subscription, positions) = &mut self.phase else {
            return Ok(None);
        };
        let Some(first) = subscription.items.recv().await else {
            if self.feed.feed.end_reason() == Some(End::FlowEnded) {
                return Err(ENDED.to_owned());
            }
            let at = subscription.dropped_at().unwrap_or(positions).clone();
            self.phase = self.begin_behind(at);
            return Ok(None);
        };
        let mut taken = |item: &Item| match item.news {
            News::Progress(checkpoint) => self.shown = checkpoint,
            News::Change(version) => {
                let mut partitions = positions.partitions.iter_mut();
                if let Some(it) = partitions.find(|it| it.partition == version.partition) {
                    it.next = version.version.plus(1);
                }
            }
        };
        taken(&first);
        let mut text = first.text;
        let mut together = Vec::new();
        while text.len().max(together.len()) < TOGETHER_BYTES_MAX
            && let Ok(item) = subscription.items.try_recv()
        {
            taken(&item);
            if together.is_empty() {
                together.extend_from_slice(&text);
                text.clear();
            }
            together.extend_from_slice(&item.text);
        }
        Ok(Some(Seen::Frames(match together.is_empty() {
            true => text,
            false => together.into(),
        })))
    }

    /// Begins to read again.
    fn begin_behind(&self, at: WatchPositions) -> Phase {
        let readers = self.feeds.readers();
        let source = Arc::clone(&self.source);
        let (range, from) = (self.range.clone(), WatchFrom::After(at.clone()));
        let beginning = async move {
            let turn = readers.acquire_owned().await;
            let turn = turn.map_err(|error| WatchError::Failed(error.into()))?;
            let changelog = source.watch(range, from).await?;
            Ok(Reader::new(changelog, turn))
        };
        Phase::Beginning(at, Box::pin(beginning))
    }

    /// Decodes an event of the own reader; `None` if it is of another key.
    fn seen(&self, event: Result<Option<KeyEvent>, WatchError>) -> Step {
        let Some(event) = event.map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        if !matches!(event, KeyEvent::Change { .. }) {
            return Ok(Some(Seen::Key(event)));
        }
        let shown = shown(event, &*self.source)?;
        let is_of = |key: &String| match &self.watched {
            WatchedBy::Text(text) => text == key,
            WatchedBy::Key(_) | WatchedBy::Range(_) => true,
        };
        Ok(shown.and_then(|(key, seen)| is_of(&key).then_some(seen)))
    }
}

impl Reader {
    fn new(changelog: Box<dyn ChangelogWatch>, turn: OwnedSemaphorePermit) -> Reader {
        Reader {
            changelog,
            _turn: turn,
            hold_until: None,
        }
    }
}

impl Phase {
    /// While the next phase is made.
    fn nowhere(at: &WatchPositions) -> Phase {
        Phase::Beginning(at.clone(), Box::pin(std::future::pending()))
    }
}

impl Watched for Following {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Seen, String>> + Send + '_>> {
        Box::pin(self.next_seen())
    }

    fn positions(&self) -> WatchPositions {
        match &self.phase {
            Phase::Alone(reader) => reader.changelog.positions(),
            Phase::Joining(reader, _, at) => {
                let mut positions = reader.changelog.positions();
                // The queue has the changes behind it.
                for (position, at) in positions.partitions.iter_mut().zip(&at.partitions) {
                    position.next = position.next.min(at.next);
                }
                positions
            }
            Phase::Following(subscription, positions) => subscription
                .positions()
                .unwrap_or_else(|| positions.clone()),
            Phase::Beginning(at, _) => at.clone(),
        }
    }

    fn is_in_snapshot(&self) -> bool {
        match &self.phase {
            Phase::Alone(reader) | Phase::Joining(reader, ..) => reader.changelog.is_in_snapshot(),
            Phase::Following(..) | Phase::Beginning(..) => false,
        }
    }
}
