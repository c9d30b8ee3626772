//! The objectives of produce and fetch, beside those of flows in the pool of the process.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use millstream_pool::{Measured, Meter, Objective, Pool};
use millstream_wire::ApiKey;
use tokio::time::Instant;

use crate::config::BrokerConfig;

/// The names of the objectives. No flow has one with a `/`.
const PRODUCE: &str = "broker/produce";
const FETCH: &str = "broker/fetch";

/// Measures requests that have an objective.
#[derive(Default)]
pub struct Objectives {
    produce: Option<Arc<Meter>>,
    fetch: Option<Arc<Meter>>,
}

impl Objectives {
    /// Adds the objectives of the settings to the pool of the process.
    ///
    /// # Errors
    /// If the machine gives no thread that watches over them.
    pub fn new(config: &BrokerConfig) -> io::Result<Objectives> {
        let meter = |name, objective: Option<Objective>| {
            let added = objective.map(|objective| Pool::of_process().objective(name, objective));
            added.transpose()
        };
        Ok(Objectives {
            produce: meter(PRODUCE, config.produce_objective)?,
            fetch: meter(FETCH, config.fetch_objective)?,
        })
    }

    /// Returns for how long a client is to be held that sends a request of this kind, since its next one would be answered too
    /// late.
    pub fn hold(&self, api: ApiKey) -> Option<Duration> {
        let meter = match api {
            ApiKey::Produce => self.produce.as_ref(),
            ApiKey::Fetch => self.fetch.as_ref(),
            _ => None,
        };
        meter?.hold()
    }

    /// Measures a request that has arrived at `since`, if its kind has an objective and it waits for no event.
    pub fn begin(&self, api: ApiKey, since: Instant) -> Option<Measured> {
        let meter = self.produce.as_ref().filter(|_| api == ApiKey::Produce)?;
        Some(meter.begin_at(since.into_std()))
    }

    /// Whether fetches have an objective.
    pub fn has_fetch(&self) -> bool {
        self.fetch.is_some()
    }

    /// Measures a fetch that has found records at `since`, if fetches have an objective.
    pub fn begin_fetch(&self, since: Instant) -> Option<Measured> {
        let meter = self.fetch.as_ref()?;
        Some(meter.begin_at(since.into_std()))
    }
}

/// Waits for a future. Returns the time at which the event has woken the task, too, which may be earlier than that at which a
/// thread was free for it.
pub async fn woken<F: Future>(future: F) -> (F::Output, Instant) {
    let mut future = pin!(future);
    let mut last: Option<Arc<WakeTime>> = None;
    poll_fn(|context| {
        let woken_at = last.as_ref().and_then(|last| last.at.get().copied());
        let wakes = Arc::new(WakeTime {
            task: context.waker().clone(),
            at: OnceLock::new(),
        });
        let waker = Waker::from(Arc::clone(&wakes));
        last = Some(wakes);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        polled.map(|output| (output, woken_at.unwrap_or_else(Instant::now)))
    })
    .await
}

/// Notes the time of the first wake.
struct WakeTime {
    task: Waker,
    at: OnceLock<Instant>,
}

impl Wake for WakeTime {
    fn wake(self: Arc<Self>) {
        self.at.get_or_init(Instant::now);
        self.task.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_time_is_that_of_the_event_and_not_of_the_free_thread() {
        let (sender, event) = oneshot::channel();
        // The only thread of the runtime is busy while the event comes.
        let busy = async {
            let sent_at = Instant::now();
            sender.send(()).unwrap();
            thread::sleep(Duration::from_millis(200));
            sent_at
        };
        let ((received, woken_at), sent_at) = tokio::join!(woken(event), busy);
        received.unwrap();
        let late = woken_at.elapsed();
        assert!(
            woken_at >= sent_at && late >= Duration::from_millis(100),
            "{late:?}"
        );
    }
}
