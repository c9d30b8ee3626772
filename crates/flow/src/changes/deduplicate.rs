//! The first item of a key within a duration.

use std::time::Duration;

use millstream_base::Timestamp;

use crate::stage::chain::Emit;

/// How long an item keeps later ones of its key out: see [`Keyed::deduplicate`](crate::Keyed::deduplicate). A
/// [`Duration`] is one with the usual lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within {
    /// The duration of event time.
    pub event_time: Duration,
    /// The [lifetime](crate::Flow::lifetime) of a key's state.
    pub lifetime: Duration,
}

/// The usual lifetime is this many times the duration of event time.
const LIFETIME_FACTOR: u32 = 2;

/// The usual lifetime is no shorter: a flow may lag behind, and is stopped for an update.
const LIFETIME_MIN: Duration = Duration::from_secs(3600);

impl Within {
    /// Returns the rule for a duration of event time. The state of a key ends when the key was silent by the wall clock for
    /// twice this duration, and at least an hour.
    pub fn new(event_time: Duration) -> Within {
        let lifetime = event_time.saturating_mul(LIFETIME_FACTOR);
        Within {
            event_time,
            lifetime: lifetime.max(LIFETIME_MIN),
        }
    }

    /// Sets the time by the wall clock after which the state of a silent key ends. It should be longer than the duration of
    /// event time by as much as the flow may lag behind or be stopped. Behind it a duplicate passes.
    #[must_use]
    pub fn lifetime(self, lifetime: Duration) -> Within {
        Within { lifetime, ..self }
    }
}

impl From<Duration> for Within {
    fn from(event_time: Duration) -> Within {
        Within::new(event_time)
    }
}

/// Returns a function for [`Keyed::update`](crate::Keyed::update), which does the work of
/// [`Keyed::deduplicate`](crate::Keyed::deduplicate). The value of a key is the time of the newest item that passed.
pub fn deduplicate<K, T>(
    within: Duration,
    time: impl Fn(&T) -> Timestamp + Send + Sync + 'static,
) -> impl Fn(&K, &mut Option<Timestamp>, &T, &mut Emit<'_, T>) + Send + Sync + 'static
where
    K: 'static,
    T: 'static,
{
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    move |_, newest, item, emit| {
        let time = time(item);
        match *newest {
            Some(passed) if passed.0.abs_diff(time.0) < within_ms => {}
            Some(passed) => {
                *newest = Some(passed.max(time));
                emit(item);
            }
            None => {
                *newest = Some(time);
                emit(item);
            }
        }
    }
}
