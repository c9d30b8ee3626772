//! A member on its way from what it has to its target.

use std::collections::{BTreeMap, BTreeSet};

use super::{Assignment, ConsumerGroup, Current, MemberState};
use crate::groups::record::{Key, Value};
use crate::groups::turn::Turn;
use crate::groups::{Epoch, MemberId, Partition, TopicId};

/// What is missing from a member's target.
struct Next {
    /// What it keeps, or gets now.
    assigned: Assignment,
    /// What it is to give up.
    revoking: Assignment,
    /// What is free for it.
    free: Assignment,
    /// Whether there is something that others have yet to give up.
    has_to_wait: bool,
}

impl ConsumerGroup {
    /// Takes a member as far towards its target as the others allow. `owned` is what the member says that
    /// it has, if it does.
    pub(super) fn reconcile(&mut self, turn: &mut Turn, id: &MemberId, owned: Option<&Assignment>) {
        let Some(member) = self.members.get(id) else {
            return;
        };
        let current = &member.current;
        if current.has_reached(self.target_epoch) {
            return;
        }
        if current.state == MemberState::Unrevoked && owns_any(owned, &current.revoking) {
            return;
        }
        let next = self.next(current, &member.target, owned);
        self.set_current(turn, id, next);
    }

    fn next(&self, current: &Current, target: &Assignment, owned: Option<&Assignment>) -> Current {
        let mut next = self.compare(&current.assigned, target);
        if owns_any(owned, &next.revoking) {
            // It keeps its epoch until it has given these up.
            return Current {
                epoch: current.epoch,
                previous_epoch: current.epoch,
                state: MemberState::Unrevoked,
                assigned: next.assigned,
                revoking: next.revoking,
                since: BTreeMap::new(),
            };
        }
        for (topic, partitions) in next.free {
            next.assigned.entry(topic).or_default().extend(partitions);
        }
        Current {
            epoch: self.target_epoch,
            previous_epoch: current.epoch,
            state: match next.has_to_wait {
                true => MemberState::Unreleased,
                false => MemberState::Stable,
            },
            assigned: next.assigned,
            revoking: Assignment::new(),
            since: BTreeMap::new(),
        }
    }

    fn compare(&self, has: &Assignment, target: &Assignment) -> Next {
        let mut next = Next {
            assigned: Assignment::new(),
            revoking: Assignment::new(),
            free: Assignment::new(),
            has_to_wait: false,
        };
        let nothing = BTreeSet::new();
        let add = |to: &mut Assignment, topic: TopicId, partition: Partition| {
            to.entry(topic).or_default().insert(partition);
        };
        for (topic, partitions) in has {
            let wanted = target.get(topic).unwrap_or(&nothing);
            for partition in partitions {
                let to = match wanted.contains(partition) {
                    true => &mut next.assigned,
                    false => &mut next.revoking,
                };
                add(to, *topic, *partition);
            }
        }
        for (topic, partitions) in target {
            let kept = has.get(topic).unwrap_or(&nothing);
            for partition in partitions.difference(kept) {
                // What it is about to give up itself is not free either: it gets that back with the next
                // heartbeat.
                match self.owners.contains_key(&(*topic, *partition)) {
                    true => next.has_to_wait = true,
                    false => add(&mut next.free, *topic, *partition),
                }
            }
        }
        next
    }

    /// Changes what a member has, and stores it. What is new has been its since this epoch.
    pub(super) fn set_current(&mut self, turn: &mut Turn, id: &MemberId, mut next: Current) {
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        let since = next.owned().map(|place| {
            let since = member.current.since.get(&place);
            (place, since.copied().unwrap_or(next.epoch))
        });
        next.since = since.collect();
        if member.current == next {
            return;
        }
        for place in member.current.owned() {
            self.owners.remove(&place);
        }
        for place in next.owned() {
            let before = self.owners.insert(place, id.clone());
            assert_eq!(before, None, "a partition has one owner");
        }
        member.current = next.clone();
        let rebalance_timeout = member.subscription.rebalance_timeout;
        let timer = self.rebalance_timer(id);
        match next.state {
            MemberState::Unrevoked => turn.set_timer(timer, rebalance_timeout),
            MemberState::Stable | MemberState::Unreleased => turn.cancel_timer(&timer),
        }
        turn.store(
            &Key::Current(self.name.clone(), id.clone()),
            &Value::Current(next),
        );
    }

    /// Whether a member that says what it owns, and brought this epoch, may go on.
    pub(super) fn is_current(current: &Current, epoch: Epoch, owned: Option<&Assignment>) -> bool {
        let is_part = |owned: &Assignment| {
            owned.iter().all(|(topic, partitions)| {
                let assigned = current.assigned.get(topic);
                assigned.is_some_and(|assigned| partitions.is_subset(assigned))
            })
        };
        // It joins again, with nothing; or it has missed the answer with its new epoch.
        epoch == Epoch::JOIN
            || epoch == current.epoch
            || epoch < current.epoch
                && epoch == current.previous_epoch
                && owned.is_some_and(is_part)
    }
}

/// Whether a member may own any of these; it does unless it says otherwise.
fn owns_any(owned: Option<&Assignment>, these: &Assignment) -> bool {
    let Some(owned) = owned else {
        return !these.is_empty();
    };
    these.iter().any(|(topic, partitions)| {
        owned
            .get(topic)
            .is_some_and(|owned| !owned.is_disjoint(partitions))
    })
}
