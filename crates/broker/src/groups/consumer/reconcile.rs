//! The steps of a member from its current assignment to its target.

use std::collections::{BTreeMap, BTreeSet};

use super::{Assignment, ConsumerGroup, Current, MemberState};
use crate::groups::record::{Key, Value};
use crate::groups::turn::Turn;
use crate::groups::{Epoch, MemberId, Partition, TopicId};

/// The difference between a member's current assignment and its target.
struct Next {
    /// The partitions that it keeps, or gets now.
    assigned: Assignment,
    /// The partitions that it is to give up.
    revoking: Assignment,
    /// The partitions that it lacks and that are free.
    free: Assignment,
    /// Whether it lacks partitions that other members have yet to give up.
    has_to_wait: bool,
}

impl ConsumerGroup {
    /// Moves a member as close to its target as the other members allow. `owned` are the partitions that the member
    /// claims to have, if it names them.
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
            // The member keeps its epoch until it has given these up.
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
                // A partition that the member itself is about to give up is not free either: it gets that back with
                // the next heartbeat.
                match self.owners.contains_key(&(*topic, *partition)) {
                    true => next.has_to_wait = true,
                    false => add(&mut next.free, *topic, *partition),
                }
            }
        }
        next
    }

    /// Replaces a member's current assignment, and stores it. New partitions are its own since this epoch.
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

    /// Whether a member with this epoch and these partitions may go on.
    pub(super) fn is_current(current: &Current, epoch: Epoch, owned: Option<&Assignment>) -> bool {
        let is_part = |owned: &Assignment| {
            owned.iter().all(|(topic, partitions)| {
                let assigned = current.assigned.get(topic);
                assigned.is_some_and(|assigned| partitions.is_subset(assigned))
            })
        };
        // The member joins again, with nothing; or it has missed the answer with its new epoch.
        epoch == Epoch::JOIN
            || epoch == current.epoch
            || epoch < current.epoch
                && epoch == current.previous_epoch
                && owned.is_some_and(is_part)
    }
}

/// Whether a member may own any of these partitions; it does unless its heartbeat names others.
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
