//! The task of a feed.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{KeyEvent, KeyRange, WatchFrom};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::{AskedProgress, End, Feed, Source};

/// How often a feed looks for a new complete checkpoint.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The time that each subscriber adds to the interval of progress, so that idle watches take little processor time: a feed sends a
/// thousand of these events in a second at most.
const LOOK_LATER_BY: Duration = Duration::from_millis(1);

/// The changes and handed items after which other tasks have their turn.
const WORK_MAX: usize = 256;

/// Reads the changelog and hands out its changes, until it cannot.
pub async fn run(feed: Arc<Feed>, source: Arc<dyn Source>) {
    let end = follow(&feed, &*source).await;
    feed.end(end);
}

async fn follow(feed: &Feed, source: &dyn Source) -> End {
    let Ok(mut reader) = source.watch(KeyRange::all(), WatchFrom::Now).await else {
        return End::Broken;
    };
    feed.begin(reader.positions());
    let mut looks = Looks::new();
    let mut work = 0;
    loop {
        let event = {
            let mut next = reader.next();
            tokio::select! {
                biased;
                event = &mut next => Some(event),
                goes_on = looks.step(feed, source) => match goes_on {
                    true => None,
                    false => return End::FlowEnded,
                },
            }
        };
        match event {
            None => {}
            Some(Ok(None)) => feed.reach(reader.positions()),
            Some(Ok(Some(event @ KeyEvent::Change { .. }))) => {
                match feed.hand_change(event, reader.positions(), source) {
                    Ok(handed) => work += 1 + handed,
                    // The watches whose keys it is of find out by themselves.
                    Err(_) => return End::Broken,
                }
            }
            Some(Ok(Some(_)) | Err(_)) => return End::Broken,
        }
        looks.hand(feed);
        if work >= WORK_MAX {
            work = 0;
            feed.moved().notify_waiters();
            yield_now().await;
        }
    }
}

/// The questions for the progress of the flow: one for each checkpoint, at most as often as subscribers may get it.
struct Looks {
    next_at: Instant,
    /// The last checkpoint whose progress was handed out.
    last: u64,
    state: Looking,
}

enum Looking {
    /// For a new complete checkpoint.
    Idle,
    Asking(AskedProgress),
    /// For the changes of this checkpoint.
    Waiting(u64),
}

impl Looks {
    fn new() -> Looks {
        Looks {
            next_at: Instant::now(),
            last: 0,
            state: Looking::Idle,
        }
    }

    /// Does one step, when it is time to. Returns `false` if the flow is gone.
    async fn step(&mut self, feed: &Feed, source: &dyn Source) -> bool {
        if let Looking::Asking(asking) = &mut self.state {
            self.state = match asking.await {
                Ok(progress) => {
                    let checkpoint = progress.checkpoint;
                    feed.tell(progress);
                    Looking::Waiting(checkpoint)
                }
                // Another rank does not answer: the next look asks again.
                Err(_) => Looking::Idle,
            };
            return true;
        }
        sleep_until(self.next_at).await;
        self.next_at = Instant::now() + LOOK_EVERY;
        let Some(complete) = source.checkpoint() else {
            return false;
        };
        if matches!(self.state, Looking::Idle) && complete > self.last {
            self.state = Looking::Asking(source.progress(complete));
        }
        true
    }

    /// Hands out the progress behind the changes of its checkpoint.
    fn hand(&mut self, feed: &Feed) {
        if let Looking::Waiting(checkpoint) = self.state
            && feed.hand_progress()
        {
            self.last = checkpoint;
            self.state = Looking::Idle;
            let later = LOOK_LATER_BY * feed.subscribers() as u32;
            self.next_at = self.next_at.max(Instant::now() + later);
        }
    }
}
