//! Ranks that are threads of this process.

mod agreement;
mod channels;
mod failure;
mod leaving;
mod traffic;

#[path = "../common/mod.rs"]
mod common;

use std::thread;

use millstream_exchange::{ChannelId, ExchangeError, Fingerprint, Ranks};

const CHANNEL: ChannelId = ChannelId {
    source: 3,
    target: 7,
};
const CREDIT: u64 = 4096;

/// Runs `part` on each rank; returns the results, in order. A rank that returns has dropped its
/// ranks.
fn on_each<T: Send>(count: u32, part: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let part = &part;
        let start = |ranks| scope.spawn(move || part(ranks));
        let threads: Vec<_> = Ranks::threads(count).into_iter().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn agree(ranks: &Ranks) -> Result<u64, ExchangeError> {
    ranks.agree(Fingerprint::default(), u64::from(ranks.rank()) + 1)
}

#[track_caller]
fn assert_failed<T: std::fmt::Debug>(outcome: Result<T, ExchangeError>, rank: u32, what: &str) {
    match outcome {
        Err(ExchangeError::Failed {
            rank: failed,
            message,
        }) => {
            assert!(message.contains(what), "{message}");
            assert_eq!(failed, rank, "{message}");
        }
        other => panic!("not a failure of rank {rank}: {other:?}"),
    }
}
