//! Durations, windows and watermarks, in few words.

use std::time::Duration;

use millstream_flow::Watermarks;
use millstream_flow::windows::Windows;

/// Returns a duration of whole seconds.
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a duration of milliseconds.
pub const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Windows of this size, one after another.
///
/// # Panics
/// If the size is less than a millisecond.
pub fn tumbling(size: Duration) -> Windows {
    Windows::tumbling(millis_of(size))
}

/// Windows of this size, of which one begins with each `slide`.
///
/// # Panics
/// If one of them is less than a millisecond, or `slide` is more than `size`.
pub fn sliding(size: Duration, slide: Duration) -> Windows {
    Windows::sliding(millis_of(size), millis_of(slide))
}

/// Items that are less than `gap` apart, in one window.
///
/// # Panics
/// If the gap is less than a millisecond.
pub fn session(gap: Duration) -> Windows {
    Windows::session(millis_of(gap))
}

/// Items of a partition are out of order by at most `disorder_max`; one that comes later than that may be too late for
/// its window.
pub fn out_of_order(disorder_max: Duration) -> Watermarks {
    Watermarks::bounded(disorder_max)
}

fn millis_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
