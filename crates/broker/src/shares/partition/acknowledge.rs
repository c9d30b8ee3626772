//! Acknowledgements of members.

use std::time::Duration;

use millstream_base::Offset;

use super::{Death, Run, SharePartition, State};
use crate::groups::MemberId;
use crate::shares::acknowledgement::Verdict;
use crate::shares::{Acknowledgement, Refused, ShareSettings};

impl SharePartition {
    /// Applies a member's acknowledgements, all or none of them.
    #[cfg(test)]
    pub fn acknowledge(
        &mut self,
        member: &MemberId,
        acknowledgements: &[Acknowledgement],
        now: Duration,
        settings: &ShareSettings,
    ) -> Result<(), Refused> {
        self.expire(now, settings);
        self.check(member, acknowledgements, settings)?;
        self.apply(member, acknowledgements, now, settings);
        Ok(())
    }

    /// Applies a member's acknowledgements, which the caller has [checked](Self::check).
    pub fn apply(
        &mut self,
        member: &MemberId,
        acknowledgements: &[Acknowledgement],
        now: Duration,
        settings: &ShareSettings,
    ) {
        let until = now.saturating_add(settings.record_lock);
        for batch in acknowledgements {
            // Records before the start are finished already: retention may have removed them.
            for (from, to, verdict) in batch.verdicts(self.start) {
                self.change(from..to, |range, state| match (state, verdict) {
                    (State::Acquired { deliveries, .. }, Verdict::Release) => {
                        Some((range.end, State::given_back(*deliveries, settings)))
                    }
                    (State::Acquired { deliveries, .. }, Verdict::Renew) => {
                        let state = State::Acquired {
                            member: member.clone(),
                            until,
                            deliveries: *deliveries,
                        };
                        Some((range.end, state))
                    }
                    (State::Acquired { deliveries, .. }, Verdict::Reject) => {
                        let state = State::dead(*deliveries, Death::Rejected, settings);
                        Some((range.end, state))
                    }
                    // The transaction decides.
                    (State::Prepared { .. }, _) => None,
                    (_, _) => Some((range.end, State::Finished)),
                });
            }
        }
        if let (Some(first), Some(last)) = (acknowledgements.first(), acknowledgements.last()) {
            self.tidy(first.first..Offset(last.last.0 + 1));
        }
    }

    /// Checks that a member holds the records that it acknowledges, and each once. The caller [expires](Self::expire) locks
    /// before.
    ///
    /// # Errors
    /// When the member does not hold one of the records, or must not renew its locks.
    pub fn check(
        &self,
        member: &MemberId,
        acknowledgements: &[Acknowledgement],
        settings: &ShareSettings,
    ) -> Result<(), Refused> {
        if !settings.may_renew && acknowledgements.iter().any(Acknowledgement::renews) {
            return Err(Refused::RenewalDisabled);
        }
        let mut before = None;
        for batch in acknowledgements {
            if before == Some(batch.first) && batch.first >= self.start {
                return Err(Refused::InvalidRecordState);
            }
            before = Some(batch.last);
            self.check_held(member, batch)?;
        }
        Ok(())
    }

    /// A member may accept once more the records that it acknowledges in a transaction. It changes nothing.
    fn check_held(&self, member: &MemberId, batch: &Acknowledgement) -> Result<(), Refused> {
        if batch.last < self.start {
            return Ok(());
        }
        if batch.last >= self.end {
            return Err(Refused::PastAcquired);
        }
        let from = batch.first.max(self.start);
        let runs = self.runs_from(from);
        let mut runs = runs.take_while(|(first, _)| **first <= batch.last);
        let is_held = |run: &Run| match &run.state {
            State::Acquired { member: holder, .. } => holder == member,
            State::Prepared {
                member: Some(holder),
                ..
            } => holder == member && batch.only_finishes(),
            _ => false,
        };
        match runs.all(|(_, run)| is_held(run)) {
            true => Ok(()),
            false => Err(Refused::InvalidRecordState),
        }
    }
}
