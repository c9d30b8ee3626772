//! Tracks whether a member's user polls: a member that is alive while its user hangs would hold
//! partitions that nothing processes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The end of the last poll; `None` during a poll.
type Idle = Option<Instant>;

/// The user's side.
#[derive(Debug, Clone)]
pub(super) struct Polling(Arc<watch::Sender<Idle>>);

/// A poll that is under way; it ends with this.
pub(super) struct Poll(Polling);

/// The side of the task that keeps the member alive.
#[derive(Debug)]
pub(super) struct Polled {
    idle: watch::Receiver<Idle>,
    interval_max: Duration,
}

/// Returns both sides; the user counts as idle after longer than `interval_max` without a poll.
pub(super) fn polling(interval_max: Duration) -> (Polling, Polled) {
    let (sender, idle) = watch::channel(Some(Instant::now()));
    (Polling(Arc::new(sender)), Polled { idle, interval_max })
}

impl Polling {
    pub fn begin(&self) -> Poll {
        self.0.send_replace(None);
        Poll(self.clone())
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        let Poll(Polling(sender)) = self;
        sender.send_replace(Some(Instant::now()));
    }
}

impl Polled {
    /// Waits until the user is idle for too long; forever once the user has gone.
    pub async fn idle(&mut self) {
        loop {
            let since = *self.idle.borrow_and_update();
            // A time beyond the clock's range never comes.
            let ends_at = since.and_then(|since| since.checked_add(self.interval_max));
            let ends = async {
                match ends_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ends => return,
                changed = self.idle.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                }
            }
        }
    }

    /// Waits until the user polls; returns `false` once the user has gone.
    pub async fn resumed(&mut self) -> bool {
        self.idle.wait_for(Option::is_none).await.is_ok()
    }
}
