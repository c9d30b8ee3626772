//! Divides the groups of a pass at the holds of their lane.
//!
//! A hold keeps, for each key, the newest version before its offset. So a pass works on each *stretch* of groups between two holds
//! by itself: the newest version of each stretch is the one that the hold behind it keeps, unless an older stretch has it. A rewritten
//! group never has records on both sides of a hold, so it still has one record of each key. A group within which a hold lies is a
//! stretch of its own, and stays as it is: it was open when the hold was made, or held back by a transaction.
//!
//! Nothing changes any more in a stretch behind which there is another one, so holds add no rewrites but one for each release.

use std::ops::Range;

use millstream_base::Offset;

use crate::lane::holds::HeldOffsets;

/// Groups of a pass without a hold between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Their indexes.
    pub groups: Range<usize>,
    /// Whether a hold lies within its group, which stays as it is.
    pub is_split: bool,
}

/// Returns the stretches of adjacent groups, oldest first, each with its first offset and its end.
pub fn stretches(groups: &[(Offset, Offset)], held: &HeldOffsets) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for (n, (first, end)) in groups.iter().enumerate() {
        let is_split = held.split(*first, *end);
        let is_divided = n > 0 && held.divide(groups[n - 1].0, *first);
        match stretches.last_mut() {
            Some(last) if !is_split && !is_divided && !last.is_split => last.groups.end = n + 1,
            _ => stretches.push(Stretch {
                groups: n..n + 1,
                is_split,
            }),
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stretches of groups of ten offsets.
    fn of(groups: u64, held: &[u64]) -> Vec<(usize, usize, bool)> {
        let groups = (0..groups).map(|n| (Offset(10 * n), Offset(10 * n + 10)));
        let groups: Vec<_> = groups.collect();
        let stretches = stretches(&groups, &HeldOffsets::of(held)).into_iter();
        let parts = |stretch: Stretch| (stretch.groups.start, stretch.groups.end, stretch.is_split);
        stretches.map(parts).collect()
    }

    #[test]
    fn groups_are_divided_at_holds_and_a_group_around_a_hold_stands_alone() {
        assert_eq!(of(0, &[5]), []);
        assert_eq!(of(3, &[]), [(0, 3, false)]);
        assert_eq!(of(3, &[30, 40]), [(0, 3, false)]);
        assert_eq!(of(3, &[10]), [(0, 1, false), (1, 3, false)]);
        assert_eq!(
            of(4, &[10, 10, 15]),
            [(0, 1, false), (1, 2, true), (2, 4, false)]
        );
        assert_eq!(
            of(4, &[5, 12, 17]),
            [(0, 1, true), (1, 2, true), (2, 4, false)]
        );
        assert_eq!(of(2, &[19]), [(0, 1, false), (1, 2, true)]);
    }
}
