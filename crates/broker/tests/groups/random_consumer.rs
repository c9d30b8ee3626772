//! Members of a group of KIP-848 that come, go, crash and come back at random, as topics do.
//!
//! After every event: the snapshot equals the persisted records; no partition is owned by two members, be it as the
//! coordinator sees it or as they see it themselves; epochs do not go back, and none is ahead of the group's. Left
//! alone, all members reach the group's epoch, and all partitions are owned.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use millstream_broker::groups::*;

use crate::random;
use crate::support::*;

type Places = BTreeSet<(TopicId, Partition)>;

/// A member, as it sees itself.
#[derive(Debug, Default, Clone)]
struct Member {
    id: MemberId,
    instance: Option<InstanceId>,
    topics: Vec<TopicName>,
    regex: Option<&'static str>,
    is_in: bool,
    epoch: Epoch,
    owned: Places,
    /// Its last assignment, until it has taken it.
    assigned: Option<Places>,
}

struct Run {
    world: World,
    members: Vec<Member>,
    topics: BTreeMap<&'static str, Topic>,
    epoch: Epoch,
    ids: u128,
}

const TOPICS: [&str; 4] = ["a", "b", "ba", "c"];

#[test]
fn consumer_groups_keep_their_invariants_under_random_events() {
    random::run(|rng| {
        let mut run = Run::new(rng);
        for _ in 0..rng.usize(20..200) {
            run.event(rng);
            run.check();
        }
        run.converge();
    });
}

impl Run {
    fn new(rng: &mut Rng) -> Self {
        let mut run = Run {
            world: World::new(),
            members: Vec::new(),
            topics: BTreeMap::new(),
            epoch: Epoch(0),
            ids: 0,
        };
        for number in 0..rng.usize(1..6) {
            run.members.push(Member {
                instance: (number % 2 == 1).then(|| format!("instance{number}").into()),
                ..Member::default()
            });
            run.subscribe(rng, number);
        }
        for _ in 0..3 {
            run.change_topic(rng);
        }
        run
    }

    fn event(&mut self, rng: &mut Rng) {
        let place = rng.usize(..self.members.len());
        let is_in = self.members[place].is_in;
        match rng.u32(..100) {
            0..55 if is_in => self.beat(place, rng.u32(..8) == 0),
            0..55 => self.join(place),
            55..60 if is_in => self.leave(place, Epoch::LEAVE),
            60..65 if is_in => self.leave(place, Epoch::LEAVE_FOR_NOW),
            65..70 => self.forget(place),
            // The member gives up its epoch, and joins again under its id.
            70..73 => self.join(place),
            73..77 => self.subscribe(rng, place),
            77..80 => self.change_topic(rng),
            80..82 => self.world.restart(),
            82..98 => self.world.pass(Duration::from_millis(rng.u64(1..8000))),
            98.. => self.world.pass(Duration::from_secs(rng.u64(1..70))),
            _ => {}
        }
    }

    fn subscribe(&mut self, rng: &mut Rng, place: usize) {
        let member = &mut self.members[place];
        let topics = TOPICS.iter().filter(|_| rng.bool());
        member.topics = topics.map(|topic| TopicName::from(*topic)).collect();
        member.regex = (rng.u32(..4) == 0).then_some("b.*");
    }

    fn change_topic(&mut self, rng: &mut Rng) {
        let name = TOPICS[rng.usize(..TOPICS.len())];
        match self.topics.get_mut(name) {
            Some(_) if rng.u32(..3) == 0 => {
                self.topics.remove(name);
                self.world.remove_topic(name);
            }
            Some(topic) => {
                topic.partitions += rng.i32(0..3);
                self.world.put_topic(name, topic.id.0, topic.partitions);
            }
            None => {
                self.ids += 1;
                let topic = Topic {
                    name: name.into(),
                    id: TopicId(self.ids),
                    partitions: rng.i32(1..6),
                };
                self.world.put_topic(name, topic.id.0, topic.partitions);
                self.topics.insert(name, topic);
            }
        }
    }

    /// Crashes a member: it loses its partitions.
    fn forget(&mut self, place: usize) {
        let member = &mut self.members[place];
        *member = Member {
            instance: member.instance.clone(),
            topics: member.topics.clone(),
            regex: member.regex,
            ..Member::default()
        };
    }

    fn heartbeat(&self, place: usize, epoch: Epoch) -> ConsumerHeartbeat {
        let member = &self.members[place];
        ConsumerHeartbeat {
            group: GROUP.into(),
            member: member.id.clone(),
            gets_member_id: false,
            epoch,
            instance: member.instance.clone(),
            rack: None,
            client: client_of("client"),
            principal: "User:app".into(),
            rebalance_timeout: Some(REBALANCE),
            topics: Some(member.topics.clone()),
            regex: Some(member.regex.unwrap_or_default().into()),
            assignor: None,
            owned: Some(in_topics(&member.owned)),
            random: RandomBytes(0),
        }
    }

    fn ask(&mut self, heartbeat: ConsumerHeartbeat) -> Result<ConsumerBeat, GroupError> {
        match self.world.ask(Request::ConsumerHeartbeat(heartbeat)) {
            Answer::ConsumerHeartbeat(result) => result.map_err(|refused| refused.error),
            other => panic!("heartbeat, not {other:?}"),
        }
    }

    fn join(&mut self, place: usize) {
        let member = &mut self.members[place];
        if member.id.is_empty() {
            self.ids += 1;
            member.id = format!("member{}", self.ids).into();
        }
        member.owned.clear();
        member.assigned = None;
        member.is_in = false;
        let heartbeat = self.heartbeat(place, Epoch::JOIN);
        match self.ask(heartbeat) {
            Ok(beat) => self.learn(place, beat),
            // The earlier incarnation has crashed, and its session goes on.
            Err(GroupError::UnreleasedInstanceId) => {}
            Err(error) => panic!("{error:?} was not to be expected"),
        }
    }

    /// Takes its last assignment, and sends a heartbeat; the answer may be lost.
    fn beat(&mut self, place: usize, is_lost: bool) {
        let member = &mut self.members[place];
        if let Some(assigned) = member.assigned.take() {
            member.owned.retain(|owned| assigned.contains(owned));
        }
        let heartbeat = self.heartbeat(place, self.members[place].epoch);
        match self.ask(heartbeat) {
            Ok(_) if is_lost => {}
            Ok(beat) => self.learn(place, beat),
            Err(GroupError::FencedMemberEpoch) => self.join(place),
            Err(GroupError::UnknownMemberId | GroupError::FencedInstanceId) => self.forget(place),
            Err(error) => panic!("{error:?} was not to be expected"),
        }
    }

    /// Takes new partitions at once; gives up the others later.
    fn learn(&mut self, place: usize, beat: ConsumerBeat) {
        let member = &mut self.members[place];
        member.is_in = true;
        member.epoch = beat.epoch;
        if let Some(assignment) = beat.assignment {
            let assigned: Places = places(&assignment);
            member.owned.extend(assigned.iter().copied());
            member.assigned = Some(assigned);
        }
    }

    fn leave(&mut self, place: usize, epoch: Epoch) {
        if epoch == Epoch::LEAVE_FOR_NOW && self.members[place].instance.is_none() {
            return;
        }
        let heartbeat = self.heartbeat(place, epoch);
        match self.ask(heartbeat) {
            Ok(beat) => assert_eq!(beat.epoch, epoch),
            Err(GroupError::UnknownMemberId | GroupError::FencedInstanceId) => {}
            Err(error) => panic!("{error:?} was not to be expected"),
        }
        self.forget(place);
    }

    fn described(&mut self) -> DescribedConsumerGroup {
        match self
            .world
            .ask(Request::DescribeConsumerGroups(vec![GROUP.into()]))
        {
            Answer::DescribeConsumerGroups(groups) => groups.into_iter().next().unwrap(),
            other => panic!("described, not {other:?}"),
        }
    }

    fn check(&mut self) {
        let group = self.described();
        assert!(group.epoch >= self.epoch, "epochs do not go back");
        self.epoch = group.epoch;
        assert!(group.target_epoch <= group.epoch);
        let mut assigned = BTreeMap::new();
        let mut targeted = BTreeMap::new();
        let mut owned = BTreeMap::new();
        for described in &group.members {
            assert!(described.epoch <= group.target_epoch);
            only_owner(&mut assigned, &described.member, named(&described.assigned));
            only_owner(&mut targeted, &described.member, named(&described.target));
            // A removed member does not know it yet; but the group ignores it.
            let mut members = self.members.iter().filter(|member| member.is_in);
            if let Some(member) = members.find(|member| member.id == described.member) {
                only_owner(&mut owned, &described.member, member.owned.iter().copied());
            }
        }
    }

    /// Checks that members left alone follow the target, and that all subscribed partitions are owned.
    fn converge(&mut self) {
        for _ in 0..30 {
            for place in 0..self.members.len() {
                match self.members[place].is_in {
                    true => self.beat(place, false),
                    false => self.join(place),
                }
                self.check();
            }
            self.world.pass(5 * SECOND);
        }
        let group = self.described();
        assert_eq!(group.state, GroupState::Stable);
        assert_eq!(group.members.len(), self.members.len());
        let mut owned = Places::new();
        for member in &self.members {
            assert_eq!(member.epoch, group.epoch, "{member:?}");
            owned.extend(&member.owned);
        }
        let mut wanted = Places::new();
        for topic in self.topics.values() {
            let subscribes = |member: &Member| {
                member.topics.contains(&topic.name)
                    || member.regex.is_some() && topic.name.starts_with('b')
            };
            if self.members.iter().any(subscribes) {
                wanted.extend((0..topic.partitions).map(|number| (topic.id, Partition(number))));
            }
        }
        assert_eq!(owned, wanted);
        // One more heartbeat changes nothing.
        let records = self.world.records.len();
        self.beat(0, false);
        assert_eq!(self.world.records.len(), records);
    }
}

fn only_owner(
    owners: &mut BTreeMap<(TopicId, Partition), MemberId>,
    owner: &MemberId,
    owned: impl IntoIterator<Item = (TopicId, Partition)>,
) {
    for place in owned {
        let other = owners.insert(place, owner.clone());
        assert_eq!(other, None, "{place:?} has two owners");
    }
}

fn places(partitions: &TopicPartitions) -> Places {
    let topics = partitions.iter();
    topics
        .flat_map(|(topic, numbers)| numbers.iter().map(|number| (*topic, *number)))
        .collect()
}

fn in_topics(places: &Places) -> TopicPartitions {
    places
        .iter()
        .map(|(topic, number)| (*topic, vec![*number]))
        .collect()
}

fn named(topics: &[TopicAssignment]) -> Places {
    let all = topics
        .iter()
        .map(|topic| (topic.id, topic.partitions.clone()));
    places(&all.collect())
}
