//! Acknowledgements of records.

use millstream_base::Offset;
use millstream_log::StreamPartition;
use millstream_wire::ResponseError;

use super::ShareService;
use crate::groups::MemberId;
use crate::shares::record::Key;
use crate::shares::{Acknowledgement, Refused};

/// The reason why the acknowledgements of a partition do not count.
#[derive(Debug, Clone)]
pub struct Failed {
    pub error: ResponseError,
    pub why: String,
}

impl From<ResponseError> for Failed {
    fn from(error: ResponseError) -> Failed {
        let why = error.to_string();
        Failed { error, why }
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Failed {
        let error = match refused {
            Refused::InvalidRequest | Refused::PastAcquired => ResponseError::InvalidRequest,
            Refused::InvalidRecordState | Refused::RenewalDisabled => {
                ResponseError::InvalidRecordState
            }
        };
        let why = refused.to_string();
        Failed { error, why }
    }
}

impl ShareService {
    /// Applies a member's acknowledgements of records of a share-partition. Returns the offset up to which the ledger has to
    /// be durable before the broker answers.
    pub fn acknowledge(
        &self,
        key: &Key,
        lane: &StreamPartition,
        member: &MemberId,
        batches: &[Acknowledgement],
    ) -> Result<Offset, Failed> {
        let kept = self.find(key);
        let kept = kept.ok_or(ResponseError::UnknownTopicOrPartition)?;
        let mut kept = kept.lock();
        if kept.is_gone {
            return Err(ResponseError::UnknownTopicOrPartition.into());
        }
        let settings = self.settings(&key.group);
        let now = self.now();
        kept.shares.advance(lane.earliest_offset());
        kept.shares.expire(now, &settings);
        kept.shares.check(member, batches, &settings)?;
        let mut draft = kept.shares.draft();
        draft.apply(member, batches, now, &settings);
        Ok(self.put(key, &mut kept, draft)?)
    }
}
