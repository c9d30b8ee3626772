//! How long a connection may live.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The time up to which a connection may live. An answer that goes on extends it while its client reads.
#[derive(Debug)]
pub struct ConnectionTime {
    until: watch::Sender<Instant>,
}

impl ConnectionTime {
    /// A connection may live for this time from now on.
    pub fn new(time: Duration) -> ConnectionTime {
        ConnectionTime {
            until: watch::Sender::new(Instant::now() + time),
        }
    }

    /// Lets the connection live for this time from now on, at least.
    pub fn extend(&self, time: Duration) {
        let extended = Instant::now() + time;
        self.until.send_if_modified(|until| {
            let is_later = *until < extended;
            *until = extended.max(*until);
            is_later
        });
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
