//! The deletions that lanes may lack, for a list of files that is made anew: those before the end of the last group that compaction
//! has rewritten.

use millstream_base::{Offset, Timestamp};

use crate::files::manifest::{Listed, Record};
use crate::ids::{Generation, LaneId};

/// Lists for all lanes from where on they have all deletions.
pub fn list_deletions(listed: &mut Listed) {
    let lanes: Vec<(LaneId, Offset)> = listed
        .lanes()
        .filter_map(|(id, lane)| {
            let groups: Vec<_> = lane.groups(id).collect();
            let last = groups
                .iter()
                .rposition(|group| group.generation > Generation::FIRST)?;
            // Compaction leaves the last group alone. If the files behind are lost, all may have been dropped.
            let end = groups.get(last + 1).map(|next| next.first_offset);
            Some((id, end.unwrap_or(Offset(u64::MAX - 1))))
        })
        .collect();
    for (lane, deletions_from) in lanes {
        let noted = listed.apply(Record::Compacted {
            lane,
            to: Offset(0),
            at: Timestamp(0),
            deletions_from: Some(deletions_from),
        });
        noted.expect("it may follow any record");
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::{GroupId, LaneIndex, StreamId, StreamletIndex};

    use super::*;
    use crate::ids::GroupName;

    fn name(lane: u32, id: u64, generation: Generation) -> GroupName {
        GroupName {
            lane: LaneId {
                stream: StreamId(16),
                streamlet: StreamletIndex(0),
                lane: LaneIndex(lane),
            },
            id: GroupId(id),
            first_offset: Offset(10 * id),
            generation,
        }
    }

    #[test]
    fn a_rebuilt_list_assumes_missing_deletions_up_to_the_last_rewritten_group() {
        let (first, second) = (Generation::FIRST, Generation::FIRST.rewritten());
        for (generations, expected) in [
            (&[first, first][..], 0),
            (&[second, first, second, first], 40),
            (&[second], u64::MAX - 1),
        ] {
            let mut listed = Listed::default();
            for (id, generation) in (1..).zip(generations) {
                listed
                    .apply(Record::Group(name(0, id, *generation)))
                    .unwrap();
            }
            listed.apply(Record::Group(name(1, 1, first))).unwrap();
            list_deletions(&mut listed);
            let lane = name(0, 1, first).lane;
            assert_eq!(listed.deletions_from(lane), Offset(expected));
            assert_eq!(listed.deletions_from(name(1, 1, first).lane), Offset(0));
        }
    }
}
