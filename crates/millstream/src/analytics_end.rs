//! The end of the flows of a job that take no requests. The ranks of the job inform each other about it.

use std::mem;

use millstream_exchange::{Ranks, Receiver, Sender};

/// Bytes on their way from one rank to another: more than those of the only message.
const CREDIT_BYTES: u64 = 1 << 10;

/// The connection to the other ranks of a job.
pub(crate) struct AnalyticsEnd {
    senders: Vec<Sender>,
    /// Of the ranks whose flows have not ended yet.
    receivers: Vec<Receiver>,
    is_sent: bool,
}

impl AnalyticsEnd {
    /// Makes the channels; called before the ranks agree, and by all of them.
    pub fn new(ranks: &Ranks) -> Self {
        let channel = ranks.next_channel();
        let others = (0..ranks.count()).filter(|rank| *rank != ranks.rank());
        let senders = others.clone();
        AnalyticsEnd {
            senders: senders
                .map(|rank| ranks.sender(rank, channel, CREDIT_BYTES))
                .collect(),
            receivers: others
                .map(|rank| ranks.receiver(rank, channel, CREDIT_BYTES))
                .collect(),
            is_sent: false,
        }
    }

    /// Informs the other ranks, once, that the flows have ended on this rank. Returns whether they have ended on all ranks.
    pub fn is_everywhere(&mut self) -> bool {
        if !mem::replace(&mut self.is_sent, true) {
            for sender in &mut self.senders {
                // It fails when a rank has failed, which ends all flows.
                let _ = sender.send(Vec::new());
            }
        }
        self.receivers
            .retain_mut(|receiver| !matches!(receiver.take(), Ok(Some(_))));
        self.receivers.is_empty()
    }
}
