//! A coordinator with its clock and its log, and helpers that send requests to it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, Timestamp};
use millstream_broker::groups::*;

pub const SECOND: Duration = Duration::from_secs(1);
pub const SESSION: Duration = Duration::from_secs(10);
pub const REBALANCE: Duration = Duration::from_secs(60);
pub const GROUP: &str = "group";
/// The id of the topic in [`topic_commits`].
pub const TOPIC_ID: TopicId = TopicId(0x0a0b);

/// A coordinator, its clock and its log.
pub struct World {
    pub config: Config,
    pub coordinator: Coordinator,
    pub now: Moment,
    /// The log, compacted.
    pub log: BTreeMap<Bytes, Bytes>,
    /// Everything that was ever appended.
    pub records: Vec<Record>,
    /// Topics that the coordinator asked to create.
    pub creations: Vec<Creation>,
    answers: BTreeMap<RequestId, Answer>,
    requests: u64,
    topics: Vec<Topic>,
}

impl World {
    pub fn new() -> Self {
        World::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        let now = Moment {
            elapsed: Duration::from_secs(1000),
            timestamp: Timestamp(1_700_000_000_000),
        };
        World {
            coordinator: Coordinator::new(config.clone(), now),
            config,
            now,
            log: BTreeMap::new(),
            records: Vec::new(),
            creations: Vec::new(),
            answers: BTreeMap::new(),
            requests: 0,
            topics: Vec::new(),
        }
    }

    /// Sends a request; its answer may come later.
    pub fn send(&mut self, request: Request) -> RequestId {
        self.requests += 1;
        let id = RequestId(self.requests);
        let actions = self.coordinator.handle(self.now, id, request);
        self.apply(actions);
        id
    }

    /// Takes the answer to a request, if there is one.
    pub fn answer(&mut self, id: RequestId) -> Option<Answer> {
        self.answers.remove(&id)
    }

    /// Sends a request that is answered at once.
    pub fn ask(&mut self, request: Request) -> Answer {
        let id = self.send(request);
        self.answer(id).expect("an answer at once")
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.elapsed + time;
        while let Some(deadline) = self.coordinator.next_deadline()
            && deadline <= end
        {
            self.set_clock(deadline);
            let actions = self.coordinator.tick(self.now);
            self.apply(actions);
        }
        self.set_clock(end);
    }

    /// Lets an empty group's first members wait for others.
    pub fn settle(&mut self) {
        self.pass(2 * self.config.initial_rebalance_delay);
    }

    fn set_clock(&mut self, elapsed: Duration) {
        let passed = elapsed - self.now.elapsed;
        self.now.elapsed = elapsed;
        self.now.timestamp.0 += passed.as_millis() as i64;
    }

    fn apply(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Persist(record) => {
                    self.records.push(record.clone());
                    match record.value {
                        Some(value) => self.log.insert(record.key, value),
                        None => self.log.remove(&record.key),
                    };
                }
                Action::Answer(id, answer) => {
                    let before = self.answers.insert(id, answer);
                    assert_eq!(before, None, "request {id} is answered twice");
                }
                Action::CreateTopics(creation) => self.creations.push(creation),
            }
        }
        assert_eq!(
            self.snapshot(),
            self.log,
            "the snapshot equals the persisted records"
        );
    }

    /// The coordinator's own view of the log.
    pub fn snapshot(&self) -> BTreeMap<Bytes, Bytes> {
        let records = self.coordinator.snapshot().into_iter();
        let entries = records.map(|record| (record.key, record.value.expect("no tombstones")));
        entries.collect()
    }

    /// Restarts the coordinator from the log. Waiting requests are lost with their connections.
    pub fn restart(&mut self) {
        let records: Vec<Record> = match self.requests % 2 {
            0 => self.records.clone(),
            _ => self.coordinator.snapshot(),
        };
        self.coordinator = Coordinator::restore(self.config.clone(), self.now, records).unwrap();
        for topic in &self.topics {
            self.coordinator.put_topic(topic.clone());
        }
        assert_eq!(self.snapshot(), self.log, "a restart changes nothing");
    }

    pub fn put_topic(&mut self, name: &str, id: u128, partitions: i32) {
        let topic = Topic {
            name: name.into(),
            id: TopicId(id),
            partitions,
        };
        self.topics.retain(|known| known.name != topic.name);
        self.topics.push(topic.clone());
        self.coordinator.put_topic(topic);
    }

    /// Deletes a topic, and creates another of the same name.
    pub fn replace_topic(&mut self, topic: Topic) {
        self.topics.retain(|known| known.name != topic.name);
        self.topics.push(topic.clone());
        let actions = self.coordinator.replace_topic(self.now, topic);
        self.apply(actions);
    }

    pub fn remove_topic(&mut self, name: &str) {
        self.topics.retain(|known| *known.name != *name);
        let actions = self.coordinator.remove_topic(self.now, &name.into());
        self.apply(actions);
    }

    /// A new member of a classic group: its request to join, with the id that it got.
    pub fn new_member(&mut self, client: &str) -> JoinGroup {
        let mut join = join(client);
        join.random = RandomBytes(u128::from(self.requests) << 64);
        let Answer::JoinGroup(Err(refused)) = self.ask(Request::JoinGroup(join.clone())) else {
            panic!("a new member gets an id first");
        };
        assert_eq!(refused.error, GroupError::MemberIdRequired);
        join.member = refused.member;
        join
    }

    /// The answer to a request to join.
    pub fn joined(&mut self, id: RequestId) -> Joined {
        match self.answer(id) {
            Some(Answer::JoinGroup(Ok(joined))) => joined,
            other => panic!("joined, not {other:?}"),
        }
    }

    pub fn synced(&mut self, id: RequestId) -> Bytes {
        match self.answer(id) {
            Some(Answer::SyncGroup(Ok(synced))) => synced.assignment,
            other => panic!("synced, not {other:?}"),
        }
    }

    /// Makes a stable group of members: each has its own id as assignment. The leader is the first.
    pub fn stable_group(&mut self, clients: &[&str]) -> Vec<Joined> {
        let joins: Vec<_> = clients
            .iter()
            .map(|client| self.new_member(client))
            .collect();
        self.join_all(joins)
    }

    /// Lets all join, and the leader assign.
    pub fn join_all(&mut self, joins: Vec<JoinGroup>) -> Vec<Joined> {
        let sent: Vec<_> = joins
            .into_iter()
            .map(|join| self.send(Request::JoinGroup(join)))
            .collect();
        self.settle();
        let mut joined: Vec<_> = sent.into_iter().map(|id| self.joined(id)).collect();
        joined.sort_by_key(|joined| joined.leader != joined.member);
        self.sync_all(&joined);
        joined
    }

    /// Lets the leader assign to each member its id, and all others ask for it.
    pub fn sync_all(&mut self, joined: &[Joined]) {
        for member in joined {
            let ids = member.members.iter().map(|member| &member.member);
            let assignments = ids.map(|id| (id.clone(), Bytes::copy_from_slice(id.as_bytes())));
            let mut sync = sync(member);
            sync.assignments = assignments.collect();
            let id = self.send(Request::SyncGroup(sync));
            assert_eq!(self.synced(id), member.member.as_bytes());
        }
    }

    pub fn heartbeat(&mut self, member: &Joined) -> Result<(), GroupError> {
        match self.ask(Request::Heartbeat(heartbeat(member))) {
            Answer::Heartbeat(result) => result,
            other => panic!("heartbeat, not {other:?}"),
        }
    }

    pub fn describe(&mut self) -> DescribedGroup {
        match self.ask(Request::DescribeGroups(vec![GROUP.into()])) {
            Answer::DescribeGroups(groups) => groups.into_iter().next().unwrap(),
            other => panic!("described, not {other:?}"),
        }
    }

    pub fn state(&mut self) -> GroupState {
        self.describe().state
    }

    pub fn list(&mut self, states: &[&str], types: &[&str]) -> Vec<ListedGroup> {
        let list = ListGroups::named(states, types);
        match self.ask(Request::ListGroups(list)) {
            Answer::ListGroups(groups) => groups,
            other => panic!("listed, not {other:?}"),
        }
    }

    pub fn delete_group(&mut self) -> Result<(), GroupError> {
        match self.ask(Request::DeleteGroups(vec![GROUP.into()])) {
            Answer::DeleteGroups(results) => results[0].1,
            other => panic!("deleted, not {other:?}"),
        }
    }

    /// Commits; returns the result of the first partition.
    pub fn commit(&mut self, commit: CommitOffsets) -> Result<(), GroupError> {
        match self.ask(Request::CommitOffsets(commit)) {
            Answer::CommitOffsets(topics) => topics[0].partitions[0].1,
            other => panic!("committed, not {other:?}"),
        }
    }

    /// Reads the offset of partition 0 of a topic.
    pub fn fetch(&mut self, topic: &str, require_stable: bool) -> Result<Option<u64>, GroupError> {
        let fetch = FetchOffsets {
            group: GROUP.into(),
            member: None,
            member_epoch: Generation::NONE,
            topics: Some(vec![(topic.into(), vec![Partition(0)])]),
            require_stable,
        };
        match self.ask(Request::FetchOffsets(fetch)) {
            Answer::FetchOffsets(Ok(topics)) => {
                let offset = topics[0].partitions[0].1.clone();
                offset.map(|offset| offset.map(|offset| offset.offset.0))
            }
            other => panic!("fetched, not {other:?}"),
        }
    }
}

/// A consumer that wants to join, without id.
pub fn join(client: &str) -> JoinGroup {
    JoinGroup {
        group: GROUP.into(),
        member: MemberId::default(),
        instance: None,
        client: client_of(client),
        session_timeout: SESSION,
        rebalance_timeout: REBALANCE,
        protocol_type: "consumer".into(),
        protocols: vec![protocol("range", &["orders"])],
        member_id_required: true,
        can_skip_assignment: true,
        random: RandomBytes(7),
    }
}

pub fn client_of(id: &str) -> Client {
    Client {
        id: id.into(),
        host: "127.0.0.1".into(),
    }
}

/// A protocol with a subscription, as consumers write it.
pub fn protocol(name: &str, topics: &[&str]) -> Protocol {
    let mut metadata = vec![0, 1];
    metadata.extend((topics.len() as i32).to_be_bytes());
    for topic in topics {
        metadata.extend((topic.len() as i16).to_be_bytes());
        metadata.extend(topic.as_bytes());
    }
    // No user data.
    metadata.extend([0xff; 4]);
    Protocol {
        name: name.into(),
        metadata: metadata.into(),
    }
}

pub fn sync(member: &Joined) -> SyncGroup {
    SyncGroup {
        group: GROUP.into(),
        member: member.member.clone(),
        instance: None,
        generation: member.generation,
        protocol_type: member.protocol_type.clone(),
        protocol: member.protocol.clone(),
        assignments: Vec::new(),
    }
}

pub fn heartbeat(member: &Joined) -> Heartbeat {
    Heartbeat {
        group: GROUP.into(),
        member: member.member.clone(),
        instance: None,
        generation: member.generation,
    }
}

pub fn leave(members: &[(&str, Option<&str>)]) -> Request {
    let leaving = members.iter().map(|(member, instance)| LeavingMember {
        member: (*member).into(),
        instance: instance.map(InstanceId::from),
    });
    Request::LeaveGroup(LeaveGroup {
        group: GROUP.into(),
        members: leaving.collect(),
    })
}

/// The errors of an answer to [`leave`].
pub fn left(answer: Answer) -> Vec<Option<GroupError>> {
    match answer {
        Answer::LeaveGroup(Ok(members)) => members.into_iter().map(|left| left.error).collect(),
        other => panic!("left, not {other:?}"),
    }
}

/// A commit of partition 0 of a topic, without a member.
pub fn commit(topic: &str, offset: u64) -> CommitOffsets {
    CommitOffsets {
        group: GROUP.into(),
        member: MemberId::default(),
        instance: None,
        generation: Generation::NONE,
        knows_member_epochs: true,
        retention: None,
        topics: topic_commits(topic, offset),
    }
}

/// A commit of partition 0 of a topic, by a member.
pub fn commit_by(member: &Joined, topic: &str, offset: u64) -> CommitOffsets {
    CommitOffsets {
        member: member.member.clone(),
        generation: member.generation,
        ..commit(topic, offset)
    }
}

pub fn topic_commits(topic: &str, offset: u64) -> Vec<TopicCommit> {
    vec![TopicCommit {
        topic: topic.into(),
        id: TOPIC_ID,
        partitions: vec![PartitionCommit {
            partition: Partition(0),
            offset: Offset(offset),
            leader_epoch: None,
            metadata: "".into(),
        }],
    }]
}

/// The error of an answer to a request to join.
pub fn join_error(answer: Answer) -> GroupError {
    match answer {
        Answer::JoinGroup(Err(refused)) => refused.error,
        other => panic!("refused, not {other:?}"),
    }
}

pub fn sync_error(answer: Answer) -> GroupError {
    match answer {
        Answer::SyncGroup(Err(error)) => error,
        other => panic!("refused, not {other:?}"),
    }
}
