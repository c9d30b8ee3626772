//! A fixed share of a processor for a load generator: it takes the same time from the programs that it measures at every
//! load.

use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// The shortest time that the kernel may add to a sleep, in nanoseconds, so that turns begin in time.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// The turns of a thread: in each period it works or spins for a part, and sleeps for the rest.
pub struct FixedShare {
    period: Duration,
    part: Duration,
    began_at: Instant,
    next_at: Instant,
}

impl FixedShare {
    /// Begins, for this thread.
    pub fn new(period: Duration, part: Duration) -> Result<FixedShare> {
        rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS))?;
        let now = Instant::now();
        Ok(FixedShare {
            period,
            part,
            began_at: now,
            next_at: now,
        })
    }

    /// Waits for the next period. One that is missed is left out.
    pub fn wait(&mut self) {
        let now = Instant::now();
        if now < self.next_at {
            thread::sleep(self.next_at - now);
        }
        self.began_at = Instant::now();
        self.next_at = (self.next_at + self.period).max(self.began_at);
    }

    /// Whether the part of this period is over.
    pub fn is_over(&self) -> bool {
        self.began_at.elapsed() >= self.part
    }
}

#[cfg(test)]
mod tests {
    use rustix::time::ClockId;

    use super::*;
    use crate::clock::cpu_s;

    #[test]
    fn the_share_bounds_the_processor_time() -> Result<()> {
        let mut share = FixedShare::new(Duration::from_millis(10), Duration::from_millis(1))?;
        let before = cpu_s(ClockId::ThreadCPUTime);
        let since = Instant::now();
        for _ in 0..20 {
            share.wait();
            while !share.is_over() {}
        }
        let cpu = cpu_s(ClockId::ThreadCPUTime) - before;
        assert!(since.elapsed() >= Duration::from_millis(190));
        assert!(cpu < 0.1, "{cpu} s of {:?}", since.elapsed());
        Ok(())
    }
}
