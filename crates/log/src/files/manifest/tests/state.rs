//! The list that records leave.

use millstream_base::{GroupId, LaneIndex, Offset, Position, StreamId, StreamletIndex, Timestamp};

use super::super::record::Record;
use super::super::state::{Listed, ListedJournalFile};
use crate::ids::{Generation, GroupName, LaneId};

const LANE: LaneId = LaneId {
    stream: StreamId(16),
    streamlet: StreamletIndex(0),
    lane: LaneIndex(0),
};

fn name(id: u64, generation: u32) -> GroupName {
    GroupName {
        lane: LANE,
        id: GroupId(id),
        first_offset: Offset(10 * id),
        generation: Generation(generation),
    }
}

fn first(group: u64, offset: u64) -> Record {
    Record::First {
        lane: LANE,
        group: GroupId(group),
        offset: Offset(offset),
    }
}

fn replaced(by: GroupName, last: u64) -> Record {
    let last = GroupId(last);
    Record::Replaced { by, last }
}

/// A lane with the groups 1, 2, 4 and 5.
fn listed() -> Listed {
    let mut listed = Listed::default();
    for id in [1, 2, 4, 5] {
        listed.apply(Record::Group(name(id, 0))).unwrap();
    }
    listed
}

fn groups(listed: &Listed) -> Vec<GroupName> {
    listed.lane(LANE).unwrap().groups(LANE).collect()
}

/// An earlier program did not note because of which records a group lacks others.
#[test]
fn a_lane_with_rewritten_groups_lacks_versions_up_to_the_offset_that_compaction_noted() {
    let mut listed = Listed::default();
    assert_eq!(listed.versions_from(LANE), Offset(0));
    let rewritten = GroupName {
        lane: LANE,
        id: GroupId(1),
        first_offset: Offset(0),
        generation: Generation::FIRST.rewritten(),
    };
    listed.apply(Record::Group(rewritten)).unwrap();
    assert_eq!(listed.versions_from(LANE), Offset(u64::MAX));
    let noted = Record::VersionsFrom {
        lane: LANE,
        from: Offset(30),
    };
    listed.apply(noted).unwrap();
    assert_eq!(listed.versions_from(LANE), Offset(30));
    let mut again = Listed::default();
    for record in listed.records() {
        again.apply(record).unwrap();
    }
    assert_eq!(again, listed);
}

#[test]
fn groups_before_a_lanes_first_group_are_no_longer_listed() {
    let mut listed = listed();
    listed.apply(first(4, 40)).unwrap();
    assert_eq!(groups(&listed), [name(4, 0), name(5, 0)]);
    listed.apply(first(6, 60)).unwrap();
    assert_eq!(groups(&listed), []);
    let lane = listed.lane(LANE).unwrap();
    assert_eq!(lane.first(), Some((GroupId(6), Offset(60))));
}

#[test]
fn a_file_replaces_neighbouring_groups() {
    let mut listed = listed();
    listed.apply(replaced(name(2, 1), 4)).unwrap();
    assert_eq!(groups(&listed), [name(1, 0), name(2, 1), name(5, 0)]);
    listed.apply(replaced(name(1, 2), 3)).unwrap();
    assert_eq!(groups(&listed), [name(1, 2), name(5, 0)]);
}

#[test]
fn records_that_contradict_the_list_are_refused_and_change_nothing() {
    let mut listed = listed();
    for record in [
        replaced(name(2, 1), 2),
        Record::Epoch {
            lane: LANE,
            epoch: 3,
            from: Offset(50),
        },
        Record::JournalFile {
            sequence: 1,
            secret: 2,
            end: Position(0),
        },
        // A start finds where it ends.
        Record::JournalFile {
            sequence: 1,
            secret: 2,
            end: Position(70),
        },
        first(2, 20),
    ] {
        listed.apply(record).unwrap();
    }
    let before = listed.clone();
    let other = LaneId {
        lane: LaneIndex(1),
        ..LANE
    };
    for record in [
        Record::Group(name(5, 0)),
        Record::Group(name(3, 0)),
        Record::Group(GroupName {
            first_offset: Offset(49),
            ..name(6, 0)
        }),
        first(1, 20),
        first(2, 10),
        replaced(name(3, 1), 5),
        replaced(name(2, 1), 5),
        replaced(name(4, 1), 3),
        replaced(name(6, 1), 7),
        replaced(
            GroupName {
                lane: other,
                ..name(1, 1)
            },
            1,
        ),
        Record::Epoch {
            lane: LANE,
            epoch: 3,
            from: Offset(60),
        },
        Record::Epoch {
            lane: other,
            epoch: 0,
            from: Offset(40),
        },
        Record::JournalFile {
            sequence: 1,
            secret: 3,
            end: Position(70),
        },
        Record::JournalFile {
            sequence: 1,
            secret: 2,
            end: Position(60),
        },
        Record::JournalReleased { sequence: 2 },
    ] {
        let refused = listed.apply(record);
        assert!(refused.is_err(), "{record:?}");
        assert_eq!(listed, before);
    }
}

#[test]
fn replaying_the_records_of_a_list_gives_the_same_list() {
    let mut listed = listed();
    for record in [
        replaced(name(2, 1), 4),
        // A deletion within the group.
        first(2, 25),
        Record::Epoch {
            lane: LANE,
            epoch: 1,
            from: Offset(0),
        },
        Record::Epoch {
            lane: LANE,
            epoch: 3,
            from: Offset(50),
        },
        Record::Compacted {
            lane: LANE,
            to: Offset(50),
            at: Timestamp(7),
            deletions_from: Some(Offset(30)),
        },
        Record::JournalFile {
            sequence: 2,
            secret: 3,
            end: Position(90),
        },
        Record::JournalFile {
            sequence: 4,
            secret: 5,
            end: Position(0),
        },
    ] {
        listed.apply(record).unwrap();
    }
    let mut again = Listed::default();
    for record in listed.records() {
        again.apply(record).unwrap();
    }
    assert_eq!(again, listed);
    let lane = again.lane(LANE).unwrap();
    // The first record has epoch 1.
    assert_eq!(again.epochs(LANE), [(1, Offset(0)), (3, Offset(50))]);
    assert_eq!(lane.compacted(), Some((Offset(50), Timestamp(7))));
    let file = |secret, end| ListedJournalFile { secret, end };
    let journal: Vec<_> = again.journal().collect();
    assert_eq!(
        journal,
        [(2, file(3, Some(Position(90)))), (4, file(5, None))]
    );
}

#[test]
fn a_list_of_an_earlier_program_assumes_dropped_deletions_in_compacted_groups() {
    let mut listed = listed();
    assert_eq!(listed.deletions_from(LANE), Offset(0));
    for (deletions_from, expected) in [(None, 40), (Some(Offset(15)), 15), (Some(Offset(0)), 0)] {
        let compacted = Record::Compacted {
            lane: LANE,
            to: Offset(40),
            at: Timestamp(7),
            deletions_from,
        };
        listed.apply(compacted).unwrap();
        assert_eq!(listed.deletions_from(LANE), Offset(expected));
    }
}
