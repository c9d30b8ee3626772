//! Fetch sessions (KIP-227): a client that reads many partitions names only the changes.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_base::{Offset, Random};
use millstream_log::{StreamPartition, Watch, Watched};
use millstream_wire::messages::{FetchRequest, TopicName};
use millstream_wire::{FetchedPartition, ResponseError, Uuid};
use parking_lot::Mutex;

/// The most sessions at the same time. A new one takes the place of the least recently used one.
const SESSIONS_MAX: usize = 1_000;

/// The most partitions of all sessions together.
const PARTITIONS_MAX: usize = 1 << 20;

/// A partition, as the client names it: by its topic's name or id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartitionName {
    pub name: TopicName,
    pub id: Uuid,
    pub partition: i32,
}

/// A partition that the session reads.
pub struct Partition {
    pub place: PartitionName,
    pub lane: Result<StreamPartition, ResponseError>,
    /// The client's next offset; a negative one is out of range.
    pub offset: i64,
    pub bytes_max: usize,
    /// The client's knowledge of the partition; `None` before the first answer.
    pub reported: Option<Reported>,
    /// The durable end at the last look.
    pub seen: Offset,
    pub watched: Option<Watched>,
}

impl Partition {
    /// Whether the client's next record is not in memory.
    pub fn is_old(&self) -> bool {
        let offset = u64::try_from(self.offset);
        let (Ok(lane), Ok(offset)) = (&self.lane, offset) else {
            return false;
        };
        offset < lane.high_watermark().0 && !lane.is_in_memory(Offset(offset))
    }
}

/// The partitions that a client reads, for one request or for a whole session.
#[derive(Default)]
pub struct Session {
    /// Whether the requests name topics by ids instead of names.
    pub has_ids: bool,
    /// In the order of the requests that named them.
    pub partitions: Vec<Partition>,
    /// The position of each partition in `partitions`.
    pub index: HashMap<PartitionName, usize>,
    /// The position of the first partition of the next pass.
    pub first: usize,
    /// Woken by appends to the partitions. It holds positions in `partitions`, and is dropped when
    /// these change.
    pub watch: Option<Watch>,
}

/// The sessions of all connections.
#[derive(Default)]
pub struct Sessions(pub Mutex<Retained>);

/// The sessions that are retained for later requests.
#[derive(Default)]
pub struct Retained {
    by_id: HashMap<i32, RetainedSession>,
    /// Counts requests: the larger, the later.
    turn: u64,
    partitions: usize,
}

struct RetainedSession {
    session: Arc<tokio::sync::Mutex<Session>>,
    /// The epoch that the next request has to carry.
    epoch: i32,
    used_at: u64,
    partitions: usize,
}

impl Retained {
    /// Keeps a session; returns its id, or 0 when there is no room for it, which clients accept.
    pub fn add(
        &mut self,
        session: Arc<tokio::sync::Mutex<Session>>,
        partitions: usize,
        random: &dyn Random,
    ) -> i32 {
        if partitions > PARTITIONS_MAX {
            return 0;
        }
        while self.by_id.len() >= SESSIONS_MAX || self.partitions + partitions > PARTITIONS_MAX {
            self.remove_oldest();
        }
        let mut bytes = [0; 4];
        if random.fill(&mut bytes).is_err() {
            return 0;
        }
        let id = i32::from_be_bytes(bytes) & i32::MAX;
        if id == 0 || self.by_id.contains_key(&id) {
            return 0;
        }
        self.turn += 1;
        self.partitions += partitions;
        let kept = RetainedSession {
            session,
            epoch: 1,
            used_at: self.turn,
            partitions,
        };
        self.by_id.insert(id, kept);
        id
    }

    fn remove_oldest(&mut self) {
        let oldest = self.by_id.iter().min_by_key(|(_, kept)| kept.used_at);
        if let Some(id) = oldest.map(|(id, _)| *id) {
            self.remove(id);
        }
    }

    pub fn remove(&mut self, id: i32) {
        if let Some(kept) = self.by_id.remove(&id) {
            self.partitions -= kept.partitions;
        }
    }

    pub fn next(
        &mut self,
        id: i32,
        epoch: i32,
    ) -> Result<Arc<tokio::sync::Mutex<Session>>, ResponseError> {
        let kept = self
            .by_id
            .get_mut(&id)
            .ok_or(ResponseError::FetchSessionIdNotFound)?;
        if kept.epoch != epoch {
            return Err(ResponseError::InvalidFetchSessionEpoch);
        }
        self.turn += 1;
        kept.used_at = self.turn;
        kept.epoch = epoch.checked_add(1).unwrap_or(1);
        Ok(Arc::clone(&kept.session))
    }

    /// Sets the number of partitions of a session. The least recently used sessions make room, and
    /// this one goes last.
    pub fn resize(&mut self, id: i32, partitions: usize) -> Result<(), ResponseError> {
        if let Some(kept) = self.by_id.get_mut(&id) {
            self.partitions = self.partitions - kept.partitions + partitions;
            kept.partitions = partitions;
        }
        while self.partitions > PARTITIONS_MAX {
            self.remove_oldest();
        }
        match self.by_id.contains_key(&id) {
            true => Ok(()),
            false => Err(ResponseError::FetchSessionIdNotFound),
        }
    }
}

impl Session {
    /// Removes the partitions that the request drops.
    pub fn forget(&mut self, request: &FetchRequest) {
        let mut has_forgotten = false;
        for topic in &request.forgotten_topics_data {
            for partition in &topic.partitions {
                let place = place(&topic.topic, topic.topic_id, self.has_ids, *partition);
                has_forgotten |= self.index.remove(&place).is_some();
            }
        }
        if has_forgotten {
            self.partitions
                .retain(|partition| self.index.contains_key(&partition.place));
            let places = self.partitions.iter().enumerate();
            self.index = places
                .map(|(index, partition)| (partition.place.clone(), index))
                .collect();
            self.first = 0;
        }
    }
}

/// The last answer about a partition, apart from records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    error_code: i16,
    high_watermark: i64,
    last_stable_offset: i64,
    log_start_offset: i64,
}

impl Reported {
    pub fn error_code(self) -> i16 {
        self.error_code
    }

    pub fn of(fetched: &FetchedPartition) -> Reported {
        Reported {
            error_code: fetched.error_code,
            high_watermark: fetched.high_watermark,
            last_stable_offset: fetched.last_stable_offset,
            log_start_offset: fetched.log_start_offset,
        }
    }
}

/// Returns the key of a partition as a request names it.
pub fn place(name: &TopicName, id: Uuid, has_ids: bool, partition: i32) -> PartitionName {
    PartitionName {
        name: match has_ids {
            true => TopicName::default(),
            false => name.clone(),
        },
        id: if has_ids { id } else { Uuid::nil() },
        partition,
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::SystemRandom;

    use super::*;

    #[test]
    fn sessions_grow_only_up_to_a_bound() {
        let mut kept = Retained::default();
        let session = || Arc::new(tokio::sync::Mutex::new(Session::default()));
        let first = kept.add(session(), 10, &SystemRandom);
        let second = kept.add(session(), 10, &SystemRandom);
        assert_eq!(kept.resize(second, PARTITIONS_MAX - 10), Ok(()));
        assert!(kept.by_id.contains_key(&first));
        assert_eq!(kept.resize(second, PARTITIONS_MAX), Ok(()));
        assert!(!kept.by_id.contains_key(&first));
        let gone = Err(ResponseError::FetchSessionIdNotFound);
        assert_eq!(kept.resize(second, PARTITIONS_MAX + 1), gone);
        assert_eq!((kept.by_id.len(), kept.partitions), (0, 0));
        // This session is larger than all room together, so it evicts no other.
        let third = kept.add(session(), 10, &SystemRandom);
        assert_eq!(kept.add(session(), PARTITIONS_MAX + 1, &SystemRandom), 0);
        assert!(kept.by_id.contains_key(&third));
    }
}
