//! A coordinator between clients, a log, partitions and groups, of which none is reliable.

mod client;

mod log;
mod participant;

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use millstream_base::Timestamp;
use millstream_broker::groups::{Moment, Partition, RequestId};
use millstream_broker::transactions::*;

use self::client::{Append, Client, Sent};
use self::log::{Call, Log};
use self::participant::{Participant, Tokens};

const IDS: [&str; 2] = ["p0", "p1"];
const TOPIC: &str = "orders";
const PARTITIONS: usize = 3;
const GROUPS: [&str; 2] = ["g0", "g1"];

/// A partition or, behind the partitions, a group: a place where a transaction makes writes
/// visible.
type ParticipantIndex = usize;
const PARTICIPANTS: usize = PARTITIONS + GROUPS.len();

/// The cases that all runs together have reached, so that no run is without a point.
#[derive(Debug, Default)]
pub struct Seen {
    commits: u32,
    aborts: u32,
    timeouts: u32,
    fenced: u32,
    refused_appends: u32,
    crashes_while_ending: u32,
    rotated_ids: u32,
    repeated_ends: u32,
    expired: u32,
}

impl Seen {
    pub fn assert_all(&self) {
        let all = [
            self.commits,
            self.aborts,
            self.timeouts,
            self.fenced,
            self.refused_appends,
            self.crashes_while_ending,
            self.rotated_ids,
            self.repeated_ends,
            self.expired,
        ];
        assert!(all.iter().all(|count| *count > 0), "{self:?}");
    }
}

pub struct Simulation<'s> {
    rng: &'s mut Rng,
    seen: &'s mut Seen,
    config: Config,
    now: Moment,
    coordinator: Coordinator,
    log: Log,
    /// Returned actions that may not be done before the log is durable.
    calls: Vec<Call>,
    participants: Vec<Participant>,
    tokens: Tokens,
    clients: Vec<Client>,
    /// Markers in flight, and groups that are being notified.
    outcomes: Vec<(Ending, ParticipantIndex)>,
    /// Appends under way, which the coordinator has allowed.
    appends: Vec<Append>,
    /// Requests without answer.
    sent: BTreeMap<RequestId, Sent>,
    requests: u64,
    /// Of each transactional id, the last request to begin that was granted.
    begun: BTreeMap<&'static str, RequestId>,
}

impl<'s> Simulation<'s> {
    pub fn new(rng: &'s mut Rng, seen: &'s mut Seen) -> Self {
        let now = Moment {
            elapsed: Duration::from_secs(1000),
            timestamp: Timestamp(1_700_000_000_000),
        };
        let config = Config::default();
        let mut log = Log::default();
        if rng.bool() {
            log.append_used_up(IDS[0], now);
        }
        let coordinator = log.restore(&config, now);
        Simulation {
            rng,
            seen,
            config,
            now,
            coordinator,
            log,
            calls: Vec::new(),
            participants: vec![Participant::default(); PARTICIPANTS],
            tokens: Tokens::default(),
            clients: Vec::new(),
            outcomes: Vec::new(),
            appends: Vec::new(),
            sent: BTreeMap::new(),
            requests: 0,
            begun: BTreeMap::new(),
        }
    }

    pub fn step(&mut self) {
        match self.rng.u32(..100) {
            0 => self.new_client(),
            1..50 => self.client_acts(),
            50..72 => self.sync(),
            72..86 => self.deliver_one(),
            86..94 => self.append_one(),
            94..98 => self.pass_time(),
            98 => self.fail_one(),
            _ => self.crash(),
        }
    }

    fn new_client(&mut self) {
        let id = IDS[self.rng.usize(..IDS.len())];
        self.clients.push(Client::new(id, self.rng.bool()));
    }

    fn client_acts(&mut self) {
        // Those that know that they are fenced should stop; some do not.
        let goes_on_anyway = self.rng.u32(..20) == 0;
        let all = self.clients.iter().enumerate();
        let acting = all.filter(|(_, client)| goes_on_anyway || !client.is_told_to_stop);
        let acting: Vec<_> = acting.map(|(index, _)| index).collect();
        let Some(index) = self.rng.choice(acting) else {
            return self.new_client();
        };
        let Some(request) = self.clients[index].next_request(self.rng) else {
            return;
        };
        self.requests += 1;
        let id = RequestId(self.requests);
        let transactional_id = self.clients[index].transactional_id;
        let is_known = log::describe(&mut self.coordinator, transactional_id, self.now).is_some();
        let client = &mut self.clients[index];
        client.waiting = Some(id);
        let is_older = client
            .begun
            .is_some_and(|begun| begun < self.begun[transactional_id]);
        let sent = Sent {
            client: index,
            request: request.clone(),
            is_fenced: is_known && is_older,
            // A client that resumes a forgotten transactional id begins anew.
            is_beginning: !is_known || client.begun.is_none(),
            guards: self.participants.iter().map(Participant::guard).collect(),
        };
        self.sent.insert(id, sent);
        let actions = self.coordinator.handle(self.now, id, request);
        self.calls.push(Call::new(actions));
    }

    /// Makes some of the returned records durable, and does the actions that wait for them.
    fn sync(&mut self) {
        let count = match self.rng.bool() {
            true => self.calls.len(),
            false => self.rng.usize(..=self.calls.len()),
        };
        for call in self.calls.drain(..count).collect::<Vec<_>>() {
            call.records
                .into_iter()
                .for_each(|record| self.log.append(record, self.now));
            for action in call.gated {
                self.release(action);
            }
        }
    }

    fn release(&mut self, action: Action) {
        match action {
            Action::Persist(_) => unreachable!("it is in the log"),
            Action::Answer(id, answer) => self.answered(id, answer),
            Action::WriteMarkers(ending, partitions) => {
                let participants = partitions
                    .iter()
                    .map(|partition| partition.partition.0 as usize);
                self.outcomes
                    .extend(participants.map(|participant| (ending.clone(), participant)));
            }
            Action::EndGroupOffsets(ending, groups) => {
                for group in groups {
                    let index = GROUPS.iter().position(|name| **name == *group).unwrap();
                    self.outcomes.push((ending.clone(), PARTITIONS + index));
                }
            }
        }
    }

    fn answered(&mut self, id: RequestId, answer: Answer) {
        let sent = self
            .sent
            .remove(&id)
            .expect("each request is answered once");
        let client = &mut self.clients[sent.client];
        let is_waiting = client.waiting == Some(id);
        assert!(is_waiting, "a client asks one thing at a time");
        client.waiting = None;
        let is_granted = client.on_answer(&sent, &answer, &mut self.tokens, self.seen);
        assert!(
            !(is_granted && sent.is_fenced),
            "a fenced producer is granted {sent:?}"
        );
        if sent.is_fenced {
            self.seen.fenced += 1;
        }
        if is_granted && sent.is_beginning {
            client.begun = Some(id);
            let last = self.begun.entry(client.transactional_id).or_default();
            *last = id.max(*last);
        }
        if is_granted {
            self.appends.extend(client.appends(&sent, &mut self.tokens));
        }
    }

    /// A partition or group learns an outcome.
    fn deliver_one(&mut self) {
        if self.outcomes.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.outcomes.len());
        let (ending, participant) = self.outcomes.swap_remove(index);
        self.participants[participant].end(&ending, &mut self.tokens);
        self.report(ending, participant, true);
    }

    /// A partition or group may have learned an outcome, or not.
    fn fail_one(&mut self) {
        if self.outcomes.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.outcomes.len());
        let (ending, participant) = self.outcomes.swap_remove(index);
        if self.rng.bool() {
            self.participants[participant].end(&ending, &mut self.tokens);
        }
        self.report(ending, participant, false);
    }

    fn report(&mut self, ending: Ending, participant: ParticipantIndex, is_done: bool) {
        let report = match (participant.checked_sub(PARTITIONS), is_done) {
            (None, true) => Report::MarkersWritten(ending, vec![partition(participant)]),
            (None, false) => Report::MarkersFailed(ending, vec![partition(participant)]),
            (Some(group), true) => Report::GroupOffsetsEnded(ending, vec![GROUPS[group].into()]),
            (Some(group), false) => Report::GroupOffsetsFailed(ending, vec![GROUPS[group].into()]),
        };
        let actions = self.coordinator.report(self.now, report);
        self.calls.push(Call::new(actions));
    }

    fn append_one(&mut self) {
        if self.appends.is_empty() {
            return;
        }
        let append = self
            .appends
            .swap_remove(self.rng.usize(..self.appends.len()));
        if !self.participants[append.participant].append(&append, &mut self.tokens) {
            self.seen.refused_appends += 1;
        }
    }

    fn pass_time(&mut self) {
        let passed = match self.rng.u32(..50) {
            0 => 8 * 24 * 60 * 60 * 1000,
            1..10 => self.rng.u64(..120_000),
            _ => self.rng.u64(..5_000),
        };
        self.pass(Duration::from_millis(passed));
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now.elapsed + time;
        loop {
            let next = self.coordinator.next_deadline().max(self.now.elapsed);
            if next > end {
                break;
            }
            self.set_clock(next);
            let actions = self.coordinator.tick(self.now);
            for action in &actions {
                match action {
                    Action::WriteMarkers(..) => self.seen.timeouts += 1,
                    Action::Persist(record) if record.value.is_none() => self.seen.expired += 1,
                    _ => {}
                }
            }
            self.calls.push(Call::new(actions));
        }
        self.set_clock(end);
    }

    fn set_clock(&mut self, elapsed: Duration) {
        let passed = elapsed - self.now.elapsed;
        self.now.elapsed = elapsed;
        self.now.timestamp.0 += passed.as_millis() as i64;
    }

    /// Restarts the coordinator from a log that has all durable records and, in order, any number
    /// of the others.
    fn crash(&mut self) {
        if !self.outcomes.is_empty() {
            self.seen.crashes_while_ending += 1;
        }
        let records = self.calls.drain(..).flat_map(|call| call.records);
        let records: Vec<_> = records.collect();
        let retained = self.rng.usize(..=records.len());
        for record in records.into_iter().take(retained) {
            self.log.append(record, self.now);
        }
        for (ending, participant) in std::mem::take(&mut self.outcomes) {
            if self.rng.bool() {
                self.participants[participant].end(&ending, &mut self.tokens);
            }
        }
        for sent in std::mem::take(&mut self.sent).into_values() {
            self.clients[sent.client].waiting = None;
        }
        self.coordinator = self.log.restore(&self.config, self.now);
    }

    /// When nothing goes wrong any more, everything is answered and ended.
    pub fn finish(&mut self) {
        self.seen.rotated_ids += self.log.rotated_ids;
        while let Some(append) = self.appends.pop() {
            self.participants[append.participant].append(&append, &mut self.tokens);
        }
        for _ in 0..4 {
            self.pass(Duration::from_secs(60));
            self.sync_all();
            while !self.outcomes.is_empty() {
                self.deliver_one();
            }
            self.sync_all();
        }
        assert!(self.sent.is_empty(), "every request is answered");
        for participant in &self.participants {
            participant.assert_nothing_open();
        }
        for id in IDS {
            let state = self.log.state(id);
            let is_open = matches!(
                state,
                Some(State::Ongoing | State::PrepareCommit | State::PrepareAbort)
            );
            assert!(!is_open, "{id} is {state:?}");
        }
    }

    fn sync_all(&mut self) {
        while !self.calls.is_empty() {
            self.sync();
        }
    }
}

fn partition(participant: ParticipantIndex) -> TopicPartition {
    TopicPartition {
        topic: TOPIC.into(),
        partition: Partition(participant as i32),
    }
}
