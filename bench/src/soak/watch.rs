//! Watches the server while it works: it must stay up, within its memory, and keep its connections.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::plan::POOL_MIB;
use super::run::{Phase, Run};
use crate::server::{Sample, Server};

/// The warm-up: a part of the run, and its longest time. Memory is bounded from then on.
const WARM_UP_PART: u32 = 4;
const WARM_UP_MAX: Duration = Duration::from_secs(120);

/// The samples of a warm-up, at least: on a slow machine the clients come later than a quick run's warm-up ends.
const WARM_UP_SAMPLES_MIN: u32 = 10;

/// The growth of the server's memory beside the pool, once it is warm: a fixed part, and a part for each greedy client,
/// for which the server copies answers.
const GROWTH_MIB_MAX: f64 = 64.0;
const GREEDY_MIB_MAX: f64 = 2.0;

/// The pool, with records that are read again from disk, and rounded up.
const POOL_MIB_MAX: f64 = POOL_MIB * 1.25;

/// The part of the connections, and the number beyond it, that may be closed at a moment, since clients come and go.
const AWAY_PART_MAX: f64 = 0.1;
const AWAY_MAX: f64 = 20.0;

/// How long clients may take to connect, and to come back after an outage.
const COME_MAX: Duration = Duration::from_secs(10);

/// Samples the state of the server, and stores the samples.
#[derive(Default)]
pub struct Watch {
    samples: u32,
    /// Beside the pool, while it was warming up.
    warm_mib: f64,
    is_warm: bool,
    /// The highest since.
    pub resident_mib: f64,
    pub beside_pool_mib: f64,
    /// The fewest and the most at once, once all had come; shorter runs have none.
    pub sockets_min: Option<usize>,
    pub sockets_max: usize,
    /// After an outage nothing is expected to be connected before.
    settled_at: Duration,
}

impl Watch {
    /// Returns how much may be resident beside the pool.
    pub fn bound_mib(&self, run: &Run) -> f64 {
        self.warm_mib + GROWTH_MIB_MAX + run.plan.greedy as f64 * GREEDY_MIB_MAX
    }

    /// The server was killed and listens again.
    pub fn expect_return(&mut self, run: &Run) {
        self.settled_at = run.started_at.elapsed() + COME_MAX;
    }

    /// # Errors
    /// When the server has ended, or has more than it may, or fewer are connected than should be.
    pub fn look(&mut self, run: &Run, server: &mut Server) -> Result<Sample> {
        server.check_it_runs()?;
        let sample = server.sample()?;
        let now = run.started_at.elapsed();
        let beside_pool = sample.resident_mib - sample.pool_mib;
        let warm_up = (run.lasts / WARM_UP_PART).min(WARM_UP_MAX);
        self.is_warm |= now >= warm_up && self.samples >= WARM_UP_SAMPLES_MIN;
        self.samples += 1;
        ensure!(
            sample.pool_mib <= POOL_MIB_MAX,
            "the pool of {POOL_MIB} MiB takes {:.0}",
            sample.pool_mib
        );
        if !self.is_warm {
            self.warm_mib = self.warm_mib.max(beside_pool);
            return Ok(sample);
        }
        self.resident_mib = self.resident_mib.max(sample.resident_mib);
        self.beside_pool_mib = self.beside_pool_mib.max(beside_pool);
        let bound = self.bound_mib(run);
        ensure!(
            beside_pool <= bound,
            "the server has {beside_pool:.0} MiB beside the pool; when it was warm it had {:.0}, so \
             {bound:.0} are allowed",
            self.warm_mib
        );
        if now >= self.settled_at.max(COME_MAX) && !run.is_in(Phase::Drain) {
            self.look_at_sockets(run, &sample)?;
        }
        Ok(sample)
    }

    fn look_at_sockets(&mut self, run: &Run, sample: &Sample) -> Result<()> {
        let fewest = self.sockets_min.unwrap_or(sample.sockets);
        self.sockets_min = Some(fewest.min(sample.sockets));
        self.sockets_max = self.sockets_max.max(sample.sockets);
        let asked = run.plan.connections as f64;
        ensure!(
            sample.sockets as f64 >= asked * (1.0 - AWAY_PART_MAX) - AWAY_MAX,
            "of {asked} connections only {} are open",
            sample.sockets
        );
        Ok(())
    }
}
