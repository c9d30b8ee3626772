//! Acknowledgements, as clients send them.

use millstream_base::Offset;

/// A member's acknowledgement of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The record is finished: accepted, or not there.
    Finish,
    /// No member can process the record.
    Reject,
    /// The record may be delivered again.
    Release,
    /// The member keeps the record, and its lock begins anew (KIP-1222).
    Renew,
}

/// A member's acknowledgement of consecutive records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The first record.
    pub first: Offset,
    /// The last record.
    pub last: Offset,
    /// One for all records, or one for each.
    types: Vec<i8>,
}

/// The reason why no acknowledgement of a share-partition counts: Kafka's error of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Kafka's protocol does not allow these batches.
    #[error("the batches overlap, are out of order, or do not carry one type for each record")]
    InvalidRequest,
    /// An offset is beyond the last record that was ever acquired.
    #[error("the batch ends behind the last acquired record")]
    PastAcquired,
    /// The member does not hold one of the records: it never did, or the lock has timed out.
    #[error("the member does not hold one of the records any more")]
    InvalidRecordState,
    /// The group's settings forbid to renew locks.
    #[error("share.renew.acknowledge.enable of the group is false")]
    RenewalDisabled,
}

const GAP: i8 = 0;
const RELEASE: i8 = 2;
const REJECT: i8 = 3;
const RENEW: i8 = 4;

/// Checks the parts that do not depend on the state of records: as many types as records or one, known types, and
/// batches in growing order. `batches` are first offset, last offset and types. Only a request that `may_renew` renews
/// locks.
pub fn checked(
    batches: impl IntoIterator<Item = (i64, i64, Vec<i8>)>,
    may_renew: bool,
) -> Result<Vec<Acknowledgement>, Refused> {
    let known = match may_renew {
        true => GAP..=RENEW,
        false => GAP..=REJECT,
    };
    let mut checked: Vec<Acknowledgement> = Vec::new();
    for (first, last, types) in batches {
        let offset = |offset| u64::try_from(offset).map(Offset);
        let (Ok(first), Ok(last)) = (offset(first), offset(last)) else {
            return Err(Refused::InvalidRequest);
        };
        // As in Kafka, a batch may begin with the last record of the one before; the state of that record is wrong
        // then.
        let before = checked.last().map_or(Offset(0), |before| before.last);
        let records = last.0.wrapping_sub(first.0).wrapping_add(1);
        let is_valid = first <= last
            && first >= before
            && (types.len() == 1 || types.len() as u64 == records)
            && types.iter().all(|kind| known.contains(kind));
        if !is_valid {
            return Err(Refused::InvalidRequest);
        }
        checked.push(Acknowledgement { first, last, types });
    }
    Ok(checked)
}

impl Acknowledgement {
    pub(super) fn renews(&self) -> bool {
        self.types.contains(&RENEW)
    }

    /// Whether all records are finished by it.
    pub(super) fn only_finishes(&self) -> bool {
        let finishes = |kind: &i8| !matches!(*kind, RELEASE | REJECT | RENEW);
        self.types.iter().all(finishes)
    }

    /// The verdicts from an offset on, each for as many records as it holds for: first offset, offset behind the last,
    /// verdict.
    pub(super) fn verdicts(&self, from: Offset) -> Vec<(Offset, Offset, Verdict)> {
        let verdict = |kind: i8| match kind {
            RELEASE => Verdict::Release,
            REJECT => Verdict::Reject,
            RENEW => Verdict::Renew,
            _ => Verdict::Finish,
        };
        let end = self.last.0 + 1;
        let from = from.max(self.first).0;
        if from >= end {
            return Vec::new();
        }
        if let [kind] = self.types[..] {
            return vec![(Offset(from), Offset(end), verdict(kind))];
        }
        let mut verdicts: Vec<(Offset, Offset, Verdict)> = Vec::new();
        let skipped = (from - self.first.0) as usize;
        for (at, kind) in (from..end).zip(&self.types[skipped..]) {
            match verdicts.last_mut() {
                Some((_, end, before)) if *before == verdict(*kind) => *end = Offset(at + 1),
                _ => verdicts.push((Offset(at), Offset(at + 1), verdict(*kind))),
            }
        }
        verdicts
    }
}
