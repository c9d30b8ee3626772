//! Clients of a classic group that come, go, crash and come back at random.
//!
//! After every event: the snapshot equals the persisted records; no request is answered twice; none waits longer than
//! it may; generations do not go back; each has one leader; and no member gets an assignment that another member of
//! the generation has.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use millstream_broker::groups::*;

use crate::random;
use crate::support::*;

/// The longest that a request may wait: a rebalance, and the wait of an empty group's first members.
const WAIT_MAX: Duration = Duration::from_secs(60 + 3);

/// A client of a group. A crash loses the requests that it waits for.
#[derive(Debug, Default)]
struct Client {
    name: String,
    instance: Option<InstanceId>,
    member: MemberId,
    /// The number of topics that it joins with; changes now and then.
    topics: usize,
    waits: Option<(RequestId, Duration)>,
    joined: Option<Joined>,
    is_stable: bool,
}

/// The facts about a generation.
#[derive(Debug, Default)]
struct Known {
    leader: MemberId,
    /// The assignments given out, each with its member.
    given: BTreeMap<Bytes, String>,
}

struct Run {
    world: World,
    clients: Vec<Client>,
    generations: BTreeMap<Generation, Known>,
    /// The last generation that became stable: that one outlives restarts.
    stable: Generation,
    /// The last generation that any client joined since the last restart.
    last: Generation,
}

#[test]
fn classic_groups_keep_their_invariants_under_random_events() {
    random::run(|rng| {
        let mut run = Run::new(rng);
        for _ in 0..rng.usize(20..200) {
            run.event(rng);
        }
        run.converge();
    });
}

impl Run {
    fn new(rng: &mut Rng) -> Self {
        let client = |number: usize| Client {
            name: format!("client{number}"),
            instance: number
                .is_multiple_of(3)
                .then(|| format!("instance{number}").into()),
            ..Client::default()
        };
        Run {
            world: World::new(),
            clients: (0..rng.usize(1..7)).map(client).collect(),
            generations: BTreeMap::new(),
            stable: Generation(0),
            last: Generation(0),
        }
    }

    fn event(&mut self, rng: &mut Rng) {
        let place = rng.usize(..self.clients.len());
        match rng.u32(..100) {
            0..50 => self.act(place),
            50..60 => self.leave(place),
            60..66 => self.clients[place] = self.crashed(place),
            66..70 => self.clients[place].topics += 1,
            70..74 => self.rejoin(place),
            74..80 => self.commit(place),
            80..82 => self.restart(),
            82..84 => drop(self.world.delete_group()),
            84..96 => self.pass(Duration::from_millis(rng.u64(1..4000))),
            _ => self.pass(Duration::from_secs(rng.u64(1..70))),
        }
        self.check();
    }

    fn crashed(&self, place: usize) -> Client {
        let client = &self.clients[place];
        Client {
            name: client.name.clone(),
            instance: client.instance.clone(),
            topics: client.topics,
            ..Client::default()
        }
    }

    /// Makes a client take its next step.
    fn act(&mut self, place: usize) {
        let client = &self.clients[place];
        if client.waits.is_some() {
            return;
        }
        let Some(joined) = client.joined.clone() else {
            return self.join(place);
        };
        let instance = client.instance.clone();
        if client.is_stable {
            let heartbeat = Heartbeat {
                instance,
                ..heartbeat(&joined)
            };
            match self.world.ask(Request::Heartbeat(heartbeat)) {
                Answer::Heartbeat(Ok(())) => {}
                Answer::Heartbeat(Err(error)) => self.refused(place, error),
                other => panic!("heartbeat, not {other:?}"),
            }
        } else {
            self.sync(place, &joined);
        }
    }

    fn join(&mut self, place: usize) {
        let client = &self.clients[place];
        let topics: Vec<String> = (0..=client.topics % 3)
            .map(|topic| topic.to_string())
            .collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let join = JoinGroup {
            member: client.member.clone(),
            instance: client.instance.clone(),
            protocols: vec![protocol("range", &topics), protocol("sticky", &topics)],
            random: RandomBytes(fastrand::u128(..)),
            ..join(&client.name)
        };
        self.send(place, Request::JoinGroup(join));
    }

    /// Syncs as the leader does: each member gets an assignment of its own.
    fn sync(&mut self, place: usize, joined: &Joined) {
        let members = joined.members.iter().filter(|_| !joined.skip_assignment);
        let gift = |id: &MemberId| Bytes::from(format!("{} of {}", id, joined.generation));
        let sync = SyncGroup {
            instance: self.clients[place].instance.clone(),
            assignments: members
                .map(|member| (member.member.clone(), gift(&member.member)))
                .collect(),
            ..sync(joined)
        };
        self.send(place, Request::SyncGroup(sync));
    }

    fn send(&mut self, place: usize, request: Request) {
        let id = self.world.send(request);
        self.clients[place].waits = Some((id, self.world.now.elapsed));
        self.receive();
    }

    /// Hands answers to the clients that wait for them.
    fn receive(&mut self) {
        for place in 0..self.clients.len() {
            let waits = self.clients[place].waits;
            let Some(answer) = waits.and_then(|(id, _)| self.world.answer(id)) else {
                continue;
            };
            self.clients[place].waits = None;
            match answer {
                Answer::JoinGroup(Ok(joined)) => self.has_joined(place, joined),
                Answer::JoinGroup(Err(refused)) => {
                    self.refused(place, refused.error);
                    if refused.error == GroupError::MemberIdRequired {
                        self.clients[place].member = refused.member;
                    }
                }
                Answer::SyncGroup(Ok(synced)) => self.has_synced(place, synced.assignment),
                Answer::SyncGroup(Err(error)) => self.refused(place, error),
                other => panic!("joined or synced, not {other:?}"),
            }
        }
    }

    fn has_joined(&mut self, place: usize, joined: Joined) {
        assert!(joined.generation >= self.last, "generations do not go back");
        assert!(
            joined.generation >= self.stable,
            "nor behind a generation that was stable before a restart"
        );
        let known = self
            .generations
            .entry(joined.generation)
            .or_insert_with(|| Known {
                leader: joined.leader.clone(),
                ..Known::default()
            });
        if joined.generation == self.last && known.leader != joined.leader {
            // Only a static leader that came back under another id, or a group put together anew.
            let is_static = |id: &str| id.starts_with("instance");
            assert!(is_static(&known.leader) && is_static(&joined.leader));
            known.leader = joined.leader.clone();
        }
        self.last = joined.generation;
        let client = &mut self.clients[place];
        client.member = joined.member.clone();
        client.is_stable = false;
        client.joined = Some(joined);
    }

    fn has_synced(&mut self, place: usize, assignment: Bytes) {
        let client = &mut self.clients[place];
        client.is_stable = true;
        let generation = client.joined.as_ref().unwrap().generation;
        self.stable = self.stable.max(generation);
        let known = self.generations.get_mut(&generation).unwrap();
        if !assignment.is_empty() {
            let owner = known
                .given
                .entry(assignment)
                .or_insert_with(|| client.name.clone());
            assert_eq!(*owner, client.name, "two have been given the same");
        }
    }

    /// Reacts to an error as a client does.
    fn refused(&mut self, place: usize, error: GroupError) {
        let client = &mut self.clients[place];
        match error {
            GroupError::MemberIdRequired => {}
            GroupError::RebalanceInProgress => {}
            GroupError::IllegalGeneration => {}
            GroupError::UnknownMemberId | GroupError::FencedInstanceId => {
                client.member = MemberId::default();
            }
            other => panic!("{other:?} was not to be expected"),
        }
        client.joined = None;
        client.is_stable = false;
    }

    /// Joins again without being asked to.
    fn rejoin(&mut self, place: usize) {
        if self.clients[place].waits.is_none() {
            self.join(place);
        }
    }

    fn leave(&mut self, place: usize) {
        let client = &self.clients[place];
        if client.waits.is_some() || client.member.is_empty() {
            return;
        }
        let member = client.member.to_string();
        left(
            self.world
                .ask(leave(&[(&member, client.instance.as_deref())])),
        );
        self.clients[place] = self.crashed(place);
        self.receive();
    }

    fn commit(&mut self, place: usize) {
        if let Some(joined) = self.clients[place].joined.clone() {
            let commit = CommitOffsets {
                instance: self.clients[place].instance.clone(),
                ..commit_by(&joined, "orders", 1)
            };
            let _ = self.world.commit(commit);
        }
    }

    /// Restarts the coordinator. Clients whose requests are lost send them again.
    fn restart(&mut self) {
        self.world.restart();
        self.last = self.stable;
        self.generations
            .retain(|generation, _| *generation <= self.stable);
        for client in &mut self.clients {
            client.waits = None;
        }
    }

    fn pass(&mut self, time: Duration) {
        self.world.pass(time);
        self.receive();
    }

    fn check(&mut self) {
        // A group that was deleted begins anew.
        if self.world.list(&[], &[]).is_empty() {
            self.generations.clear();
            (self.stable, self.last) = (Generation(0), Generation(0));
        }
        for client in &self.clients {
            let waited = client
                .waits
                .map(|(_, since)| self.world.now.elapsed - since);
            assert!(
                waited.unwrap_or_default() <= WAIT_MAX,
                "{client:?} waits too long"
            );
        }
    }

    /// Checks that clients left alone end up in one stable generation.
    fn converge(&mut self) {
        for _ in 0..60 {
            for place in 0..self.clients.len() {
                self.act(place);
            }
            self.pass(3 * SECOND);
        }
        let group = self.world.describe();
        assert_eq!(group.state, GroupState::Stable);
        let members: Vec<_> = group.members.iter().map(|member| &member.member).collect();
        assert_eq!(members.len(), self.clients.len());
        for client in &self.clients {
            assert!(
                client.is_stable && members.contains(&&client.member),
                "{client:?}"
            );
            assert_eq!(client.joined.as_ref().unwrap().generation, self.stable);
        }
    }
}
