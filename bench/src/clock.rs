//! The system's clocks.

use rustix::time::{ClockId, clock_gettime};

/// The time of a clock in seconds, such as the processor time of this process or thread.
pub fn cpu_s(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Nanoseconds of the monotonic clock, which is the same in all processes.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
