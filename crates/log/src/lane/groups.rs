//! The stored groups of a lane, by id and by offset.

use std::sync::Arc;

use millstream_base::{GroupId, Offset, Position};

use crate::group::Group;
use crate::lane::LaneState;

impl LaneState {
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.read().iter().cloned().collect()
    }

    pub fn first_group(&self) -> Option<Arc<Group>> {
        self.groups.read().front().cloned()
    }

    pub fn last_group(&self) -> Option<Arc<Group>> {
        self.groups.read().back().cloned()
    }

    pub fn group(&self, id: GroupId) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let n = groups.binary_search_by_key(&id, |group| group.id).ok()?;
        Some(Arc::clone(&groups[n]))
    }

    /// The first group after `id`.
    pub fn group_after(&self, id: GroupId) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let n = groups.partition_point(|group| group.id <= id);
        groups.get(n).cloned()
    }

    /// The group that goes on behind `position` of `group`, if this is where `group` ends.
    pub fn group_behind(&self, group: &Group, position: Position) -> Option<Arc<Group>> {
        let ended = group.end().is_some_and(|end| position >= end.position);
        ended.then(|| self.group_after(group.id)).flatten()
    }

    /// The group that goes on behind `position` of a group that is not there any more, if this is
    /// where that group ended and nothing behind it was taken away.
    pub fn group_behind_removed(&self, id: GroupId, position: Position) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let ended = *self.removed_end.lock() == Some((id, position));
        ended.then(|| groups.front().cloned()).flatten()
    }

    /// The group that holds `offset`, or the last one if it lies behind all.
    pub fn group_of_offset(&self, offset: Offset) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let after = groups.partition_point(|group| group.first_offset <= offset);
        groups.get(after.checked_sub(1)?).cloned()
    }

    /// Groups before `group` that are not whole in their files, oldest first.
    pub fn unsettled_before(&self, group: GroupId) -> Vec<Arc<Group>> {
        let groups = self.groups.read();
        let before = groups.partition_point(|other| other.id < group);
        let mut unsettled: Vec<Arc<Group>> = groups
            .range(..before)
            .rev()
            .take_while(|other| !other.is_settled())
            .cloned()
            .collect();
        unsettled.reverse();
        unsettled
    }

    /// Takes the oldest group out of the lane, if it is `id`.
    pub fn remove_first(&self, id: GroupId) -> Option<Arc<Group>> {
        let mut groups = self.groups.write();
        if groups.front()?.id != id {
            return None;
        }
        let removed = groups.pop_front()?;
        *self.removed_end.lock() = removed.end().map(|end| (id, end.position));
        Some(removed)
    }
}
