//! Flows on several ranks of which one may die.

use std::thread;
use std::time::Duration;

use millstream_exchange::Ranks;
use millstream_flow::{FlowError, Running};

use crate::support::on_ranks;

/// Runs a flow on several ranks until it ends, or until one rank dies after `until`. Returns whether all have ended.
pub fn run_or_die(
    count: u32,
    until: Option<(u32, Duration)>,
    start: impl Fn(&Ranks) -> Result<Running, FlowError> + Sync,
) -> bool {
    let ends = on_ranks(count, |ranks| {
        // Another rank may have died before this one began.
        let running = start(ranks).inspect_err(|error| println!("{error}")).ok()?;
        match until {
            Some((rank, after)) if rank == ranks.rank() => {
                thread::sleep(after);
                drop(running);
                None
            }
            _ => {
                let joined = running.join();
                joined.inspect_err(|error| println!("{error}")).ok()
            }
        }
    });
    ends.iter().all(Option::is_some)
}
