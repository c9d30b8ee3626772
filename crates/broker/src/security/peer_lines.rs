//! Log lines that a client can cause without a login: a few at a time, and the number of the
//! others.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use millstream_base::LineLimit;

use super::audit::{Event, TARGET};

/// The length of the intervals that the bounds apply to.
pub const EVERY: Duration = Duration::from_secs(10);

/// The most warnings about connections in each interval.
const WARNINGS_MAX: u32 = 20;

/// The most audit lines about unauthenticated clients in each interval.
const REFUSALS_MAX: u32 = 100;

/// Writes these lines. Without a bound, a client that reaches the port could fill the disk with them.
#[derive(Debug)]
pub struct PeerLines {
    warnings: LineLimit,
    refusals: LineLimit,
}

impl Default for PeerLines {
    fn default() -> PeerLines {
        PeerLines {
            warnings: LineLimit::new(WARNINGS_MAX, EVERY),
            refusals: LineLimit::new(REFUSALS_MAX, EVERY),
        }
    }
}

impl PeerLines {
    /// Logs a warning about a connection from this address.
    pub fn warn(&self, address: SocketAddr, what: fmt::Arguments<'_>, now: Duration) {
        match self.warnings.take(now) {
            Some(0) => tracing::warn!(%address, "{what}"),
            Some(left_out) => tracing::warn!(%address, left_out, "{what}"),
            None => {}
        }
    }

    /// Writes the audit line of an unauthenticated client.
    pub fn audit(&self, event: &Event<'_>, now: Duration) {
        if let Some(left_out) = self.refusals.take(now) {
            report_refusals(left_out);
            event.log();
        }
    }

    /// Reports the number of left-out lines when the interval is over. Called periodically, since
    /// no further line may come.
    pub fn report_left_out(&self, now: Duration) {
        match self.warnings.take_left_out(now) {
            0 => {}
            left_out => tracing::warn!(left_out, "more warnings about connections were left out"),
        }
        report_refusals(self.refusals.take_left_out(now));
    }
}

fn report_refusals(left_out: u64) {
    if left_out > 0 {
        tracing::info!(
            target: TARGET,
            left_out,
            "audit: denied {left_out} more requests of clients that are not logged in, whose lines were left out"
        );
    }
}
