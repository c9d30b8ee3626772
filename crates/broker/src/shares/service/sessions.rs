//! Share sessions: the partitions that a member reads, so that its requests name only the changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use millstream_wire::ResponseError;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ShareService;
use crate::groups::{GroupName, MemberId, Partition, TopicId};

/// The most sessions at the same time: Kafka's default.
const SESSIONS_MAX: usize = 2_000;

/// Partitions of all sessions.
const PARTITIONS_MAX: usize = 1 << 20;

/// The session ends with the request.
pub const FINAL_EPOCH: i32 = -1;
/// The session begins with the request.
pub const INITIAL_EPOCH: i32 = 0;

/// A partition, as sessions name it.
pub type PartitionKey = (TopicId, Partition);

/// The sessions of all connections.
#[derive(Default)]
pub struct Sessions(Mutex<State>);

#[derive(Default)]
struct State {
    by_member: HashMap<(GroupName, MemberId), Session>,
    /// The bells that the members of a group wait for: see [`Reading::bell`].
    bells: HashMap<GroupName, Weak<Notify>>,
    /// Sessions that were ever begun.
    begun: u64,
    /// Partitions of all sessions.
    partitions: usize,
}

struct Session {
    number: u64,
    /// The epoch that the next request has to carry.
    epoch: i32,
    partitions: BTreeSet<PartitionKey>,
    /// The partition with which the last request began; the next one begins behind it.
    last_first: Option<PartitionKey>,
    bell: Arc<Notify>,
}

/// The partitions that a request of a session reads.
pub struct Reading {
    /// Distinguishes this session from others of the same member.
    pub number: u64,
    /// The partitions, in the order of the reads: each request begins with another, so that none is starved.
    pub partitions: Vec<PartitionKey>,
    /// Rung when records of the group may be available again.
    pub bell: Arc<Notify>,
}

impl Sessions {
    /// Begins a session, in place of the one that the member may have.
    pub fn begin(
        &self,
        group: &GroupName,
        member: &MemberId,
        partitions: BTreeSet<PartitionKey>,
    ) -> Result<Reading, ResponseError> {
        let mut kept = self.0.lock();
        let key = (group.clone(), member.clone());
        kept.remove(&key);
        if kept.by_member.len() >= SESSIONS_MAX
            || kept.partitions + partitions.len() > PARTITIONS_MAX
        {
            return Err(ResponseError::ShareSessionLimitReached);
        }
        kept.begun += 1;
        kept.partitions += partitions.len();
        let mut session = Session {
            number: kept.begun,
            epoch: 1,
            partitions,
            last_first: None,
            bell: kept.bell(group),
        };
        let reading = session.reading();
        kept.by_member.insert(key, session);
        Ok(reading)
    }

    /// Applies a request to its session. A partition that the same request adds and forgets is not read.
    pub fn next(
        &self,
        group: &GroupName,
        member: &MemberId,
        epoch: i32,
        added: BTreeSet<PartitionKey>,
        forgotten: &BTreeSet<PartitionKey>,
    ) -> Result<Reading, ResponseError> {
        let mut kept = self.0.lock();
        let total = kept.partitions;
        let session = kept.current(group, member, epoch)?;
        let before = session.partitions.len();
        session.partitions.extend(added);
        session
            .partitions
            .retain(|place| !forgotten.contains(place));
        let after = session.partitions.len();
        let reading = session.reading();
        let partitions = total - before + after;
        kept.partitions = partitions;
        if partitions > PARTITIONS_MAX {
            kept.remove(&(group.clone(), member.clone()));
            return Err(ResponseError::ShareSessionLimitReached);
        }
        Ok(reading)
    }

    /// Applies a request that reads nothing; returns the number of the session.
    pub fn touch(
        &self,
        group: &GroupName,
        member: &MemberId,
        epoch: i32,
    ) -> Result<(u64, Arc<Notify>), ResponseError> {
        let mut kept = self.0.lock();
        let session = kept.current(group, member, epoch)?;
        Ok((session.number, Arc::clone(&session.bell)))
    }

    /// Whether this session continues.
    pub fn is_current(&self, group: &GroupName, member: &MemberId, number: u64) -> bool {
        let kept = self.0.lock();
        let session = kept.by_member.get(&(group.clone(), member.clone()));
        session.is_some_and(|session| session.number == number)
    }

    /// Ends a session; `None` if it has ended before.
    fn end(&self, group: &GroupName, member: &MemberId, number: u64) -> Option<Arc<Notify>> {
        let mut kept = self.0.lock();
        let key = (group.clone(), member.clone());
        let session = kept.by_member.get(&key)?;
        if session.number != number {
            return None;
        }
        let bell = Arc::clone(&session.bell);
        kept.remove(&key);
        Some(bell)
    }

    /// Ends all sessions of a group.
    pub fn end_group(&self, group: &GroupName) {
        let mut kept = self.0.lock();
        let ended = kept.by_member.extract_if(|(of, _), _| of == group);
        let partitions: usize = ended.map(|(_, session)| session.partitions.len()).sum();
        kept.partitions -= partitions;
        kept.ring(group);
    }

    /// Wakes the members of a group that wait for records.
    pub fn ring(&self, group: &GroupName) {
        self.0.lock().ring(group);
    }
}

impl State {
    fn remove(&mut self, key: &(GroupName, MemberId)) {
        if let Some(session) = self.by_member.remove(key) {
            self.partitions -= session.partitions.len();
        }
    }

    /// The session that a request carries on.
    fn current(
        &mut self,
        group: &GroupName,
        member: &MemberId,
        epoch: i32,
    ) -> Result<&mut Session, ResponseError> {
        let session = self.by_member.get_mut(&(group.clone(), member.clone()));
        let session = session.ok_or(ResponseError::ShareSessionNotFound)?;
        if epoch == FINAL_EPOCH {
            return Ok(session);
        }
        if session.epoch != epoch {
            return Err(ResponseError::InvalidShareSessionEpoch);
        }
        session.epoch = epoch.checked_add(1).unwrap_or(1);
        Ok(session)
    }

    fn ring(&self, group: &GroupName) {
        if let Some(bell) = self.bells.get(group).and_then(Weak::upgrade) {
            bell.notify_waiters();
        }
    }

    fn bell(&mut self, group: &GroupName) -> Arc<Notify> {
        if let Some(bell) = self.bells.get(group).and_then(Weak::upgrade) {
            return bell;
        }
        if self.bells.len() >= SESSIONS_MAX {
            self.bells.retain(|_, bell| bell.strong_count() > 0);
        }
        let bell = Arc::new(Notify::new());
        self.bells.insert(group.clone(), Arc::downgrade(&bell));
        bell
    }
}

impl Session {
    fn reading(&mut self) -> Reading {
        let first = match self.last_first {
            Some(last) => {
                let mut behind = self
                    .partitions
                    .range(last..)
                    .filter(|place| **place != last);
                behind.next().or(self.partitions.first())
            }
            None => self.partitions.first(),
        };
        self.last_first = first.copied();
        let partitions = match self.last_first {
            Some(first) => {
                let begin = self.partitions.range(first..);
                begin
                    .chain(self.partitions.range(..first))
                    .copied()
                    .collect()
            }
            None => Vec::new(),
        };
        Reading {
            number: self.number,
            partitions,
            bell: Arc::clone(&self.bell),
        }
    }
}

/// The sessions that were begun over a connection. They end with it.
pub struct Held {
    service: Arc<ShareService>,
    numbers: HashMap<(GroupName, MemberId), u64>,
}

impl Held {
    pub fn new(service: Arc<ShareService>) -> Held {
        let numbers = HashMap::new();
        Held { service, numbers }
    }

    /// Adds a session.
    pub fn add(&mut self, group: GroupName, member: MemberId, number: u64) {
        let sessions = &self.service.sessions;
        // Drop the numbers of ended sessions, so that there are no more numbers than sessions.
        self.numbers
            .retain(|(group, member), number| sessions.is_current(group, member, *number));
        self.numbers.insert((group, member), number);
    }

    /// Ends the sessions, and releases the records that their members hold.
    pub fn end(&mut self) {
        for ((group, member), number) in self.numbers.drain() {
            self.service.end_session(&group, &member, number);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end();
    }
}

impl ShareService {
    /// Ends a session, and releases the records that its member holds.
    pub fn end_session(&self, group: &GroupName, member: &MemberId, number: u64) {
        if let Some(bell) = self.sessions.end(group, member, number) {
            self.release(group, member);
            bell.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(partition: i32) -> PartitionKey {
        (TopicId(1), Partition(partition))
    }

    #[test]
    fn each_request_of_a_session_begins_with_the_next_partition() {
        let sessions = Sessions::default();
        let (group, member) = (GroupName::from("g"), MemberId::from("m"));
        let partitions: BTreeSet<PartitionKey> = (0..3).map(place).collect();
        let none = BTreeSet::new();
        let firsts = |reading: Reading| reading.partitions[0].1.0;
        let first = sessions.begin(&group, &member, partitions).unwrap();
        assert_eq!(first.partitions, [place(0), place(1), place(2)]);
        for (epoch, expected) in [(1, 1), (2, 2), (3, 0), (4, 1)] {
            let next = sessions.next(&group, &member, epoch, none.clone(), &none);
            assert_eq!(firsts(next.unwrap()), expected);
        }
        let gone: BTreeSet<PartitionKey> = [place(1), place(2)].into();
        let next = sessions.next(&group, &member, 5, none.clone(), &gone);
        assert_eq!(next.unwrap().partitions, [place(0)]);
        let error = sessions.next(&group, &member, 5, none.clone(), &none);
        assert_eq!(error.err(), Some(ResponseError::InvalidShareSessionEpoch));
        let other = MemberId::from("other");
        let error = sessions.next(&group, &other, 1, none.clone(), &none);
        assert_eq!(error.err(), Some(ResponseError::ShareSessionNotFound));
    }

    #[test]
    fn sessions_are_bounded_and_ended_ones_make_room() {
        let sessions = Sessions::default();
        let group = GroupName::from("g");
        let begin = |number: usize| {
            let member = MemberId::from(format!("{number}"));
            sessions.begin(&group, &member, BTreeSet::from([place(0)]))
        };
        let numbers: Vec<u64> = (0..SESSIONS_MAX)
            .map(|number| begin(number).unwrap().number)
            .collect();
        let full = begin(SESSIONS_MAX).err();
        assert_eq!(full, Some(ResponseError::ShareSessionLimitReached));
        // A member that begins again takes its own place.
        let again = begin(0).unwrap().number;
        assert!(sessions.end(&group, &"0".into(), numbers[0]).is_none());
        assert!(sessions.end(&group, &"0".into(), again).is_some());
        assert!(begin(SESSIONS_MAX).is_ok());
        assert_eq!(sessions.0.lock().partitions, SESSIONS_MAX);
        sessions.end_group(&group);
        assert_eq!(sessions.0.lock().partitions, 0);
    }
}
