//! Parcels between ranks, and the transport that carries them.

use std::fmt;

use bytes::Bytes;

use crate::error::Failure;
use crate::fingerprint::Hello;

/// A channel between two ranks: from an operator of the one to an operator of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId {
    /// The operator that sends.
    pub source: u32,
    /// The operator that receives.
    pub target: u32,
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "from operator {} to operator {}",
            self.source, self.target
        )
    }
}

/// A unit that one rank sends to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parcel {
    Message {
        channel: ChannelId,
        bytes: Bytes,
    },
    /// The receiver of the channel gives back credit.
    Credit {
        channel: ChannelId,
        bytes: u64,
    },
    Hello(Hello),
    Failure(Failure),
    /// The rank leaves: this is its last parcel.
    Leave,
}

/// Carries parcels to other ranks: each whole and once, and those to one rank in their order.
pub trait Transport: Send + Sync {
    /// Never waits, and holds no more than it is given.
    fn post(&self, to: u32, parcel: Parcel);

    /// Waits until all posted parcels are sent, and the transport has released its resources.
    /// Called once this rank has posted [`Parcel::Leave`] to all others, and these have left as
    /// well or a rank has failed.
    fn finish(&self);
}
