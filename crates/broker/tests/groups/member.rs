//! A member of a group of KIP-848, and helpers that send its requests.

use std::collections::BTreeSet;

use millstream_broker::groups::*;

use crate::support::*;

pub const ORDERS: u128 = 1;
pub const PAYMENTS: u128 = 2;

/// A member, as its client sees it.
#[derive(Debug, Clone)]
pub struct Consumer {
    pub id: MemberId,
    pub instance: Option<InstanceId>,
    pub epoch: Epoch,
    pub owned: BTreeSet<(u128, i32)>,
    /// The partitions of its last assignment.
    pub wanted: BTreeSet<(u128, i32)>,
}

pub fn world() -> World {
    let mut world = World::new();
    world.put_topic("orders", ORDERS, 4);
    world
}

/// The heartbeat of a consumer of topic `orders` that joins.
pub fn joining(id: &str) -> ConsumerHeartbeat {
    ConsumerHeartbeat {
        group: GROUP.into(),
        member: id.into(),
        gets_member_id: false,
        epoch: Epoch::JOIN,
        instance: None,
        rack: None,
        client: client_of(id),
        principal: "User:app".into(),
        rebalance_timeout: Some(REBALANCE),
        topics: Some(vec!["orders".into()]),
        regex: None,
        assignor: None,
        owned: Some(Vec::new()),
        random: RandomBytes(7),
    }
}

/// The heartbeat of a member without changes.
pub fn staying(member: &MemberId, epoch: Epoch) -> ConsumerHeartbeat {
    ConsumerHeartbeat {
        epoch,
        rebalance_timeout: None,
        topics: None,
        owned: None,
        ..joining(member)
    }
}

pub fn beat(world: &mut World, heartbeat: ConsumerHeartbeat) -> Result<ConsumerBeat, GroupError> {
    match world.ask(Request::ConsumerHeartbeat(heartbeat)) {
        Answer::ConsumerHeartbeat(result) => result.map_err(|refused| refused.error),
        other => panic!("heartbeat, not {other:?}"),
    }
}

pub fn set(partitions: &TopicPartitions) -> BTreeSet<(u128, i32)> {
    let topics = partitions.iter();
    topics
        .flat_map(|(topic, numbers)| numbers.iter().map(|number| (topic.0, number.0)))
        .collect()
}

pub fn of(topic: u128, numbers: impl IntoIterator<Item = i32>) -> BTreeSet<(u128, i32)> {
    numbers.into_iter().map(|number| (topic, number)).collect()
}

impl Consumer {
    pub fn join(world: &mut World, heartbeat: ConsumerHeartbeat) -> Result<Consumer, GroupError> {
        let instance = heartbeat.instance.clone();
        let beat = beat(world, heartbeat)?;
        let mut consumer = Consumer {
            id: beat.member.clone(),
            instance,
            epoch: beat.epoch,
            owned: BTreeSet::new(),
            wanted: BTreeSet::new(),
        };
        consumer.learn(&beat);
        consumer.owned = consumer.wanted.clone();
        Ok(consumer)
    }

    pub fn learn(&mut self, beat: &ConsumerBeat) {
        self.epoch = beat.epoch;
        if let Some(assignment) = &beat.assignment {
            self.wanted = set(assignment);
        }
    }

    /// Sends a heartbeat without changes; does not act on the answer.
    pub fn beat(&mut self, world: &mut World) -> Result<(), GroupError> {
        let mut heartbeat = staying(&self.id, self.epoch);
        heartbeat.instance = self.instance.clone();
        let beat = beat(world, heartbeat)?;
        self.learn(&beat);
        Ok(())
    }

    /// Takes its last assignment, and confirms it.
    pub fn follow(&mut self, world: &mut World) -> Result<(), GroupError> {
        self.owned = self.wanted.clone();
        let topics = self.owned.iter();
        let owned = topics.map(|(topic, number)| (TopicId(*topic), vec![Partition(*number)]));
        let mut heartbeat = staying(&self.id, self.epoch);
        heartbeat.instance = self.instance.clone();
        heartbeat.owned = Some(owned.collect());
        let beat = beat(world, heartbeat)?;
        self.learn(&beat);
        self.owned = self.owned.intersection(&self.wanted).copied().collect();
        Ok(())
    }

    pub fn leave(&self, world: &mut World, epoch: Epoch) -> Result<Epoch, GroupError> {
        let mut heartbeat = staying(&self.id, epoch);
        heartbeat.instance = self.instance.clone();
        Ok(beat(world, heartbeat)?.epoch)
    }
}

pub fn join_one(world: &mut World, id: &str) -> Consumer {
    Consumer::join(world, joining(id)).unwrap()
}

pub fn described(world: &mut World) -> DescribedConsumerGroup {
    match world.ask(Request::DescribeConsumerGroups(vec![GROUP.into()])) {
        Answer::DescribeConsumerGroups(groups) => groups.into_iter().next().unwrap(),
        other => panic!("described, not {other:?}"),
    }
}
