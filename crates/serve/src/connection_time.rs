//! How long a connection may live.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The time up to which a connection may live. An answer that goes on extends it while its client reads.
#[derive(Debug)]
pub struct ConnectionTime {
    opened_at: Instant,
    until: watch::Sender<Instant>,
}

impl ConnectionTime {
    /// A connection may live for this time from now on.
    pub fn new(time: Duration) -> ConnectionTime {
        let opened_at = Instant::now();
        ConnectionTime {
            opened_at,
            until: watch::Sender::new(opened_at + time),
        }
    }

    /// Lets the connection live for this time from its opening on, at least.
    pub fn live_for(&self, time: Duration) {
        self.live_until(self.opened_at + time);
    }

    /// Lets the connection live for this time from now on, at least.
    pub fn extend(&self, time: Duration) {
        self.live_until(Instant::now() + time);
    }

    fn live_until(&self, extended: Instant) {
        self.until.send_if_modified(|until| {
            let is_later = *until < extended;
            *until = extended.max(*until);
            is_later
        });
    }

    /// Whether the connection was opened this long ago.
    pub fn is_older_than(&self, time: Duration) -> bool {
        self.opened_at.elapsed() >= time
    }

    /// Waits until the time is over.
    pub async fn is_over(&self) {
        loop {
            let until = *self.until.borrow();
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}
