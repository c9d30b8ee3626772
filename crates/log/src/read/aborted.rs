//! The aborted transactions of a lane, from the indexes of its groups.

use millstream_base::Offset;

use crate::error::Result;
use crate::lane::LaneState;
use crate::producers::transactions::AbortedTransaction;
use crate::read::context::ReadContext;

/// Returns the aborted transactions that have records from `from` up to `to`, in the order of their ends.
pub fn aborted_transactions(
    reads: &ReadContext,
    lane: &LaneState,
    from: Offset,
    to: Offset,
) -> Result<Vec<AbortedTransaction>> {
    loop {
        let swaps = lane.swaps();
        let aborted = in_groups(reads, lane, from, to)?;
        // The search may have missed groups that were replaced meanwhile, or visited them twice.
        if lane.swaps() == swaps {
            return Ok(aborted);
        }
    }
}

fn in_groups(
    reads: &ReadContext,
    lane: &LaneState,
    from: Offset,
    to: Offset,
) -> Result<Vec<AbortedTransaction>> {
    let mut aborted = Vec::new();
    let mut next = lane.group_of_offset(from).or_else(|| lane.first_group());
    while let Some(group) = next {
        aborted.extend(
            reads
                .indexes
                .look_at(lane, &group, |index| index.aborted(from, to))??,
        );
        // A transaction that ends behind a group begins behind the last stable offset at its end.
        let is_last = group.end().is_none_or(|end| end.stable >= to);
        next = match is_last {
            true => None,
            false => lane.group_after(group.id),
        };
    }
    Ok(aborted)
}
