//! The assignors: they compute which member is to have which partitions.
//!
//! Members are numbered from 0. Only subscribers of a topic may get its partitions, and each partition of a topic with
//! subscribers goes to one of them.

use std::collections::BTreeSet;

use super::Assignment;
use crate::groups::{Partition, TopicId};

/// The names of the assignors, the default first.
pub(super) const NAMES: [&str; 2] = ["uniform", "range"];

/// A topic, and its subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Demand {
    pub topic: TopicId,
    /// How many partitions it has.
    pub partitions: i32,
    /// At least one, in growing order.
    pub subscribers: Vec<usize>,
}

/// Computes a new assignment for each member, given the previous ones.
type Assignor = fn(&[Demand], &[&Assignment]) -> Vec<Assignment>;

/// An assignor by its name; the default for any other name.
pub(super) fn by_name(name: &str) -> Assignor {
    match name {
        "range" => range,
        _ => uniform,
    }
}

/// Gives each member a run of each topic's partitions, so that members that subscribe to the same topics
/// have the same numbers of each.
fn range(demands: &[Demand], before: &[&Assignment]) -> Vec<Assignment> {
    let mut targets = vec![Assignment::new(); before.len()];
    for demand in demands {
        let members = demand.subscribers.len() as i32;
        let (share, more) = (demand.partitions / members, demand.partitions % members);
        let mut first = 0;
        for (place, member) in (0..).zip(&demand.subscribers) {
            let end = first + share + i32::from(place < more);
            if first < end {
                let run = (first..end).map(Partition).collect();
                targets[*member].insert(demand.topic, run);
            }
            first = end;
        }
    }
    targets
}

/// Gives all members about as many partitions, and moves as few as that takes.
///
/// No single partition could go to another subscriber without making the loads more uneven, or as uneven the
/// other way round. If all members subscribe to the same topics, their loads differ by one at most.
fn uniform(demands: &[Demand], before: &[&Assignment]) -> Vec<Assignment> {
    let mut draft = Draft {
        targets: vec![Assignment::new(); before.len()],
        loads: vec![0; before.len()],
    };
    let mut free: Vec<(&Demand, Vec<Partition>)> = Vec::new();
    for demand in demands {
        free.push((demand, draft.keep(demand, before)));
    }
    // Topics with few subscribers first: their loads end up uneven, and the other topics can even them out.
    free.sort_by_key(|(demand, _)| demand.subscribers.len());
    for (demand, partitions) in &free {
        draft.hand_out(demand, partitions);
    }
    // Each move brings the loads closer together (the sum of their squares falls), so this ends.
    while draft.even_out_all(demands) {}
    draft.targets
}

/// An unfinished target assignment.
struct Draft {
    targets: Vec<Assignment>,
    /// How many partitions each member has.
    loads: Vec<usize>,
}

impl Draft {
    fn give(&mut self, member: usize, topic: TopicId, partition: Partition) {
        self.targets[member]
            .entry(topic)
            .or_default()
            .insert(partition);
        self.loads[member] += 1;
    }

    /// Leaves partitions with their previous owners; returns the others.
    fn keep(&mut self, demand: &Demand, before: &[&Assignment]) -> Vec<Partition> {
        let mut kept = BTreeSet::new();
        for member in &demand.subscribers {
            for partition in before[*member].get(&demand.topic).into_iter().flatten() {
                if (0..demand.partitions).contains(&partition.0) && kept.insert(*partition) {
                    self.give(*member, demand.topic, *partition);
                }
            }
        }
        let all = (0..demand.partitions).map(Partition);
        all.filter(|partition| !kept.contains(partition)).collect()
    }

    /// Gives unowned partitions to the subscribers with the least load.
    fn hand_out(&mut self, demand: &Demand, partitions: &[Partition]) {
        let mut by_load = self.by_load(&demand.subscribers);
        for partition in partitions {
            if let Some((load, member)) = by_load.pop_first() {
                self.give(member, demand.topic, *partition);
                by_load.insert((load + 1, member));
            }
        }
    }

    /// Evens out each topic once; returns whether any partition was moved.
    fn even_out_all(&mut self, demands: &[Demand]) -> bool {
        let mut has_moved = false;
        for demand in demands {
            has_moved |= self.even_out(demand);
        }
        has_moved
    }

    /// Moves partitions of a topic from the subscriber with the highest load to the one with the lowest, for as long
    /// as that brings their loads closer together; returns whether any was moved.
    fn even_out(&mut self, demand: &Demand) -> bool {
        let mut has_moved = false;
        let mut by_load = self.by_load(&demand.subscribers);
        let has_some =
            |targets: &[Assignment], member: usize| targets[member].contains_key(&demand.topic);
        let mut owners: BTreeSet<(usize, usize)> = by_load.clone();
        owners.retain(|(_, member)| has_some(&self.targets, *member));
        loop {
            let (Some(&most), Some(&least)) = (owners.last(), by_load.first()) else {
                return has_moved;
            };
            if most.0 < least.0 + 2 {
                return has_moved;
            }
            let Some(partition) = self.take(most.1, demand.topic) else {
                return has_moved;
            };
            self.give(least.1, demand.topic, partition);
            has_moved = true;
            let moved = [
                (most, (most.0 - 1, most.1)),
                (least, (least.0 + 1, least.1)),
            ];
            for (before, after) in moved {
                by_load.remove(&before);
                by_load.insert(after);
                owners.remove(&before);
                if has_some(&self.targets, after.1) {
                    owners.insert(after);
                }
            }
        }
    }

    /// Takes the last partition of a topic from a member.
    fn take(&mut self, member: usize, topic: TopicId) -> Option<Partition> {
        let partitions = self.targets[member].get_mut(&topic)?;
        let partition = partitions.pop_last()?;
        if partitions.is_empty() {
            self.targets[member].remove(&topic);
        }
        self.loads[member] -= 1;
        Some(partition)
    }

    fn by_load(&self, members: &[usize]) -> BTreeSet<(usize, usize)> {
        members
            .iter()
            .map(|member| (self.loads[*member], *member))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn demand(topic: u128, partitions: i32, subscribers: &[usize]) -> Demand {
        Demand {
            topic: TopicId(topic),
            partitions,
            subscribers: subscribers.to_vec(),
        }
    }

    fn loads(targets: &[Assignment]) -> Vec<usize> {
        let load = |target: &Assignment| target.values().map(BTreeSet::len).sum();
        targets.iter().map(load).collect()
    }

    #[test]
    fn range_assigns_a_member_the_same_partition_numbers_of_each_topic() {
        let demands = [demand(1, 5, &[0, 1]), demand(2, 5, &[0, 1])];
        let targets = range(&demands, &[&Assignment::new(); 2]);
        let first: BTreeSet<_> = (0..3).map(Partition).collect();
        let second: BTreeSet<_> = (3..5).map(Partition).collect();
        for topic in [TopicId(1), TopicId(2)] {
            assert_eq!(targets[0][&topic], first);
            assert_eq!(targets[1][&topic], second);
        }
    }

    #[test]
    fn uniform_moves_no_more_than_it_must() {
        let demands = [demand(1, 6, &[0, 1])];
        let two = uniform(&demands, &[&Assignment::new(); 2]);
        assert_eq!(loads(&two), [3, 3]);

        let demands = [demand(1, 6, &[0, 1, 2])];
        let three = uniform(&demands, &[&two[0], &two[1], &Assignment::new()]);
        assert_eq!(loads(&three), [2, 2, 2]);
        for member in 0..2 {
            let kept = &three[member][&TopicId(1)];
            assert!(kept.is_subset(&two[member][&TopicId(1)]));
        }
    }

    #[test]
    fn uniform_evens_out_over_topics_with_different_subscribers() {
        let demands = [demand(1, 4, &[0]), demand(2, 4, &[0, 1])];
        assert_eq!(loads(&uniform(&demands, &[&Assignment::new(); 2])), [4, 4]);
    }

    /// Members, topics with their subscribers, and arbitrary previous assignments of the members.
    fn cases() -> impl Strategy<Value = (Vec<Demand>, Vec<Assignment>)> {
        (1..6_usize).prop_flat_map(|members| {
            let subscribers = prop::collection::btree_set(0..members, 1..=members);
            let topics = prop::collection::vec((0..8_i32, subscribers), 0..5);
            let topics = topics.prop_map(|topics| {
                let demand =
                    |(topic, (partitions, subscribers)): (u128, (i32, BTreeSet<usize>))| Demand {
                        topic: TopicId(topic),
                        partitions,
                        subscribers: subscribers.into_iter().collect(),
                    };
                (0..).zip(topics).map(demand).collect()
            });
            let partitions = prop::collection::btree_set((0..10_i32).prop_map(Partition), 1..6);
            let had = prop::collection::btree_map((0..6_u128).prop_map(TopicId), partitions, 0..4);
            (topics, prop::collection::vec(had, members..=members))
        })
    }

    /// Checks that each partition has one owner, and that the owner subscribes to its topic.
    fn check(demands: &[Demand], targets: &[Assignment]) -> Result<(), TestCaseError> {
        let mut given = BTreeMap::new();
        for (member, target) in targets.iter().enumerate() {
            for (topic, partitions) in target {
                prop_assert!(!partitions.is_empty());
                for partition in partitions {
                    prop_assert_eq!(given.insert((*topic, *partition), member), None);
                }
            }
        }
        let mut expected = 0;
        for demand in demands {
            for partition in (0..demand.partitions).map(Partition) {
                let owner = given.get(&(demand.topic, partition));
                prop_assert!(owner.is_some_and(|owner| demand.subscribers.contains(owner)));
                expected += 1;
            }
        }
        prop_assert_eq!(given.len(), expected);
        Ok(())
    }

    proptest! {
        #[test]
        fn every_partition_has_one_owner((demands, had) in cases()) {
            let before: Vec<&Assignment> = had.iter().collect();
            check(&demands, &range(&demands, &before))?;
            let targets = uniform(&demands, &before);
            check(&demands, &targets)?;

            // No single move brings the loads closer together.
            let loads = loads(&targets);
            for demand in &demands {
                let owners = demand.subscribers.iter();
                let owners = owners.filter(|owner| targets[**owner].contains_key(&demand.topic));
                let most = owners.map(|owner| loads[*owner]).max().unwrap_or_default();
                let least = demand.subscribers.iter().map(|member| loads[*member]).min();
                prop_assert!(most <= least.unwrap_or_default() + 1);
            }

            // Nothing moves when nothing has changed.
            let again: Vec<&Assignment> = targets.iter().collect();
            prop_assert_eq!(uniform(&demands, &again), targets.clone());
        }
    }
}
