//! Acknowledgements that are part of a transaction.
//!
//! A record that is [prepared](State::Prepared) has no lock any more, and no member gets it: it waits for the end of the
//! transaction. A commit finishes it, and an abort gives it back.
//!
//! A delivery count names the lock of a record: each acquisition adds 1. So a producer whose lock has timed out cannot
//! acknowledge the delivery to the next member. Counts repeat after the group was moved to another offset, or a crash
//! took the last ones back: then only a request that names its member is sure to mean its own delivery.

use millstream_base::{Offset, ProducerId};

use super::{Death, Prepared, Run, SharePartition, State};
use crate::groups::MemberId;
use crate::shares::{Receipt, Refused, ShareSettings};

impl SharePartition {
    /// Makes acknowledgements part of a producer's transaction. The caller has [checked](Self::check_receipts) them. A
    /// repetition changes nothing.
    pub fn prepare(&mut self, producer: ProducerId, receipts: &[Receipt]) {
        for receipt in receipts {
            let range = receipt.first..Offset(receipt.last.0 + 1);
            self.change(range.clone(), |range, state| match state {
                State::Acquired { member, .. } => {
                    let state = State::Prepared {
                        member: Some(member.clone()),
                        acknowledged: receipt.prepared(producer),
                    };
                    Some((range.end, state))
                }
                _ => None,
            });
            self.tidy(range);
        }
    }

    /// Checks that members hold the acknowledged records, or that they are part of the transaction already. If the request
    /// names its member, this one has to hold them. The caller [expires](Self::expire) locks before.
    ///
    /// # Errors
    /// When a record is not held any more.
    pub fn check_receipts(
        &self,
        producer: ProducerId,
        member: Option<&MemberId>,
        receipts: &[Receipt],
    ) -> Result<(), Refused> {
        let mut receipts = receipts.iter();
        receipts.try_for_each(|receipt| self.check_receipt(producer, member, receipt))
    }

    fn check_receipt(
        &self,
        producer: ProducerId,
        member: Option<&MemberId>,
        receipt: &Receipt,
    ) -> Result<(), Refused> {
        if receipt.last >= self.end {
            return Err(Refused::PastAcquired);
        }
        let prepared = receipt.prepared(producer);
        let is_held = |run: &Run| match &run.state {
            State::Acquired {
                member: holder,
                deliveries,
                ..
            } => *deliveries == receipt.deliveries && member.is_none_or(|member| member == holder),
            State::Prepared { acknowledged, .. } => *acknowledged == prepared,
            _ => false,
        };
        let runs = self.runs_from(receipt.first);
        let mut runs = runs.take_while(|(first, _)| **first <= receipt.last);
        match self.start <= receipt.first && runs.all(|(_, run)| is_held(run)) {
            true => Ok(()),
            false => Err(Refused::InvalidRecordState),
        }
    }

    /// The producers of the transactions that records are part of, one for each run.
    pub fn producers(&self) -> impl Iterator<Item = ProducerId> {
        let runs = (self.prepared > 0).then(|| self.runs.values());
        runs.into_iter()
            .flatten()
            .filter_map(|run| match &run.state {
                State::Prepared { acknowledged, .. } => Some(acknowledged.producer),
                _ => None,
            })
    }

    /// Whether records are part of a producer's transaction.
    pub fn has_prepared(&self, producer: ProducerId) -> bool {
        self.producers().any(|of| of == producer)
    }

    /// Ends a producer's transaction: its acknowledgements count, or the records are given back.
    pub fn end_transaction(
        &mut self,
        producer: ProducerId,
        is_committed: bool,
        settings: &ShareSettings,
    ) {
        let all = self.start..self.end;
        self.change(all.clone(), |range, state| {
            let State::Prepared {
                acknowledged:
                    Prepared {
                        producer: of,
                        deliveries,
                        is_accepted,
                    },
                ..
            } = state
            else {
                return None;
            };
            let ended = || match (is_committed, is_accepted) {
                (true, true) => State::Finished,
                (true, false) => State::dead(*deliveries, Death::Rejected, settings),
                (false, _) => State::given_back(*deliveries, settings),
            };
            (*of == producer).then(|| (range.end, ended()))
        });
        self.tidy(all);
    }
}
