//! A program's handle of its ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use crate::endpoint::{Counts, Endpoint};
use crate::environment::Tasks;
use crate::error::ExchangeError;
use crate::fingerprint::Fingerprint;
use crate::parcel::ChannelId;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::threads;

/// One rank's view of all ranks. A clone is another handle of the same rank.
///
/// When the last handle is dropped before [`leave`](Ranks::leave), as by a panic, all ranks fail.
#[derive(Clone)]
pub struct Ranks {
    handle: Arc<Handle>,
}

struct Handle {
    endpoint: Arc<Endpoint>,
    /// Channels that were numbered.
    channels: AtomicU32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.endpoint.fate.is_leaving() {
            self.endpoint
                .fail(self.endpoint.rank, "it ended without a word");
            // All failures are known by now.
            let _ = self.endpoint.leave();
        }
    }
}

impl Ranks {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Ranks {
        Ranks {
            handle: Arc::new(Handle {
                endpoint,
                channels: AtomicU32::new(0),
            }),
        }
    }

    /// Returns a rank that is alone.
    pub fn alone() -> Ranks {
        let mut ranks = Ranks::threads(1);
        ranks.remove(0)
    }

    /// Returns `count` ranks for threads of this process, in order.
    pub fn threads(count: u32) -> Vec<Ranks> {
        threads::endpoints(count)
            .into_iter()
            .map(Ranks::new)
            .collect()
    }

    /// Returns this process's rank under MPI. This succeeds once, and MPI ends with [`leave`](Ranks::leave).
    ///
    /// When a rank has failed and left, the others have 10 seconds to do the same; then MPI ends their processes with exit
    /// code 1. It also does so, if its launcher has not changed that, when a process dies.
    ///
    /// # Errors
    /// When MPI cannot begin, or has begun before.
    #[cfg(feature = "mpi")]
    pub fn mpi() -> Result<Ranks, ExchangeError> {
        crate::mpi::endpoint(None).map(Ranks::new)
    }

    /// Returns the rank as which this process was started: one of several by `mpirun` or `srun`, else the only one.
    ///
    /// # Errors
    /// When it is one of several, and cannot reach the others.
    pub fn from_environment() -> Result<Ranks, ExchangeError> {
        let tasks = Tasks::find(|name| std::env::var(name).ok());
        tasks.map_or_else(|| Ok(Ranks::alone()), Tasks::join)
    }

    /// Returns this rank's number, counted from 0.
    pub fn rank(&self) -> u32 {
        self.endpoint().rank
    }

    /// Returns the number of ranks.
    pub fn count(&self) -> u32 {
        self.endpoint().count
    }

    /// Returns a new channel id. All ranks that call this in the same order get the same ids.
    pub fn next_channel(&self) -> ChannelId {
        let number = self.handle.channels.fetch_add(1, Ordering::Relaxed);
        ChannelId {
            source: number,
            target: number,
        }
    }

    /// Announces this rank's fingerprint, and waits for the fingerprints of all others. Then all ranks have every channel that
    /// they made before, and may send. Returns a seed, the same on every rank, to which the `random` of each
    /// contributes equally.
    ///
    /// Ranks may agree more than once, one time after the other, and all of them equally often.
    ///
    /// # Errors
    /// When not all fingerprints are equal (every rank gets this error), or a rank has failed, or has left before its
    /// announcement.
    pub fn agree(&self, fingerprint: Fingerprint, random: u64) -> Result<u64, ExchangeError> {
        self.endpoint().agree(fingerprint, random)
    }

    /// Makes the end of a channel that sends to rank `to`. `credit` is the number of bytes that may be in flight or
    /// held by the receiver; both ends must be given the same.
    ///
    /// # Panics
    /// When there is no such rank, or this end was made before.
    pub fn sender(&self, to: u32, channel: ChannelId, credit: u64) -> Sender {
        Sender::new(self.endpoint().outlet(to, channel, credit))
    }

    /// Makes the end of a channel that receives from rank `from`. Make it before [`agree`](Ranks::agree): a message on
    /// a channel that does not exist is a failure.
    ///
    /// # Panics
    /// When there is no such rank, or this end was made before.
    pub fn receiver(&self, from: u32, channel: ChannelId, credit: u64) -> Receiver {
        Receiver::new(self.endpoint().inlet(from, channel, credit))
    }

    /// Aborts all ranks: each learns which one has failed, and the reason. The first failure counts.
    /// [`Leave`](Ranks::leave) after it: then every rank has received it before the process ends.
    pub fn fail(&self, message: &str) {
        self.endpoint().fail(self.rank(), message);
    }

    /// Returns the failure that has aborted all ranks: the rank and the reason; `None` if there is none.
    pub fn failure(&self) -> Option<(u32, Arc<str>)> {
        let failure = self.endpoint().fate.failure()?;
        Some((failure.rank, failure.message.clone()))
    }

    /// Has a waker woken when a rank fails; at once, if one has. Wakers of senders and receivers are woken anyway.
    pub fn on_failure(&self, waker: Waker) {
        self.endpoint().watch(waker);
    }

    /// Leaves: this rank sends nothing any more. Waits until all ranks have called it, and have received all messages.
    ///
    /// # Errors
    /// When one of them has failed.
    pub fn leave(&self) -> Result<(), ExchangeError> {
        self.endpoint().leave()
    }

    /// Returns the traffic of each channel of this rank so far.
    pub fn counters(&self) -> Counters {
        let [sent, received] = self.endpoint().counts().map(ChannelCount::list);
        Counters { sent, received }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.handle.endpoint
    }
}

/// The traffic of one rank's channels, in order of the other ranks and the channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// The messages that were handed to each sender.
    pub sent: Vec<ChannelCount>,
    /// The messages that have arrived for each receiver, taken or not.
    pub received: Vec<ChannelCount>,
}

/// The traffic of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelCount {
    /// The rank on the other end.
    pub peer: u32,
    /// The channel.
    pub channel: ChannelId,
    /// Messages.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
}

impl ChannelCount {
    fn list(counts: Vec<Counts>) -> Vec<ChannelCount> {
        let mut list: Vec<_> = counts
            .into_iter()
            .map(|((peer, channel), (messages, bytes))| ChannelCount {
                peer,
                channel,
                messages,
                bytes,
            })
            .collect();
        list.sort_unstable();
        list
    }
}
