//! The stored groups of a lane, by id and by offset.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::{GroupId, Offset, Position};

use crate::group::Group;
use crate::ids::GroupName;
use crate::lane::LaneState;

/// The group that goes on behind another one.
#[derive(Debug, Clone)]
pub enum GroupBehind {
    /// From its beginning on.
    At(Arc<Group>),
    /// From an offset on, which is within it: it has replaced the other group and more.
    Within(Arc<Group>, Offset),
}

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

    /// The last group before `id`.
    pub fn group_before(&self, id: GroupId) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let n = groups.partition_point(|group| group.id < id);
        groups.get(n.checked_sub(1)?).cloned()
    }

    /// The group that goes on behind `position` of `group`, if this is where `group` ends.
    pub fn group_behind(&self, group: &Group, position: Position) -> Option<GroupBehind> {
        let end = group.end().filter(|end| position >= end.position)?;
        let groups = self.groups.read();
        let after = groups.partition_point(|other| other.id <= group.id);
        // The one that has replaced this group, with others behind it.
        let replacing = after.checked_sub(1).and_then(|n| groups.get(n));
        let goes_on = |other: &&Arc<Group>| {
            !std::ptr::eq(&***other, group)
                && other.end().is_some_and(|other| other.offset > end.offset)
        };
        if let Some(other) = replacing.filter(goes_on) {
            return Some(GroupBehind::Within(Arc::clone(other), end.offset));
        }
        groups.get(after).cloned().map(GroupBehind::At)
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

    /// The names of the closed groups before `group`, with their ends.
    pub fn ends_before(&self, group: GroupId) -> Vec<(GroupName, Position)> {
        let groups = self.groups.read();
        let before = groups.iter().take_while(|other| other.id < group);
        let ends = before.filter_map(|other| Some((other.name(), other.end()?.position)));
        ends.collect()
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

    /// Whether adjacent groups are in the lane, none of them replaced.
    pub fn has_groups(&self, expected: &[Arc<Group>]) -> bool {
        Self::place_of(&self.groups.read(), expected).is_some()
    }

    /// Puts a rewritten group in the place of the adjacent groups that it replaces. `start` is the position in it of the
    /// lane's start, if that is in it. Groups are not taken away meanwhile.
    pub fn replace_groups(&self, old: &[Arc<Group>], new: &Arc<Group>, start: Option<Position>) {
        let mut groups = self.groups.write();
        let first = Self::place_of(&groups, old).expect("groups are not taken away meanwhile");
        let behind = groups.split_off(first + old.len());
        groups.truncate(first);
        groups.push_back(Arc::clone(new));
        groups.extend(behind);
        if let Some(start) = start {
            self.start.move_to(new, start);
        }
        self.swaps.fetch_add(1, Ordering::Release);
    }

    /// Returns how often groups were replaced.
    pub fn swaps(&self) -> u64 {
        self.swaps.load(Ordering::Acquire)
    }

    /// Returns the index of the first of adjacent groups, if all are there.
    fn place_of(groups: &VecDeque<Arc<Group>>, expected: &[Arc<Group>]) -> Option<usize> {
        let first = groups
            .binary_search_by_key(&expected.first()?.id, |group| group.id)
            .ok()?;
        let found = groups.iter().skip(first);
        let is_same = expected.len() <= groups.len() - first
            && found
                .zip(expected)
                .all(|(found, expected)| Arc::ptr_eq(found, expected));
        is_same.then_some(first)
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
