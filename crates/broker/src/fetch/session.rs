//! Fetch sessions (KIP-227): a client that reads many partitions names only what changes.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_base::{Offset, Random};
use millstream_log::{Lane, Watch, Watched};
use millstream_wire::messages::{FetchRequest, TopicName};
use millstream_wire::{FetchedPartition, ResponseError, Uuid};
use parking_lot::Mutex;

/// Sessions at the same time. The one that was used least lately makes room for another.
const SESSIONS_MAX: usize = 1_000;

/// Partitions of all sessions.
const PARTITIONS_MAX: usize = 1 << 20;

/// Which partition, as the client names it: by its topic's name or id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    pub name: TopicName,
    pub id: Uuid,
    pub partition: i32,
}

/// A partition that is read.
pub struct Partition {
    pub place: Place,
    pub lane: Result<Lane, ResponseError>,
    /// Where the client reads on; negative is out of range.
    pub offset: i64,
    pub bytes_max: usize,
    /// What the client knows; `None` before the first answer.
    pub told: Option<Told>,
    /// Its durable end when it was looked at last.
    pub seen: Offset,
    pub watched: Option<Watched>,
}

/// What a client reads, for one request or for as long as it goes on.
#[derive(Default)]
pub struct Session {
    /// Whether its topics have ids instead of names.
    pub has_ids: bool,
    /// In the order of the requests that named them.
    pub partitions: Vec<Partition>,
    /// By place.
    pub index: HashMap<Place, usize>,
    /// The partition that is looked at first.
    pub first: usize,
    /// Told by the lanes. Dropped with the partitions' places in it.
    pub watch: Option<Watch>,
}

/// The sessions of all connections.
#[derive(Default)]
pub struct Sessions(pub Mutex<Kept>);

/// The sessions that are kept for later requests.
#[derive(Default)]
pub struct Kept {
    by_id: HashMap<i32, KeptSession>,
    /// Counts requests: the larger, the later.
    turn: u64,
    partitions: usize,
}

struct KeptSession {
    session: Arc<tokio::sync::Mutex<Session>>,
    /// What the next request has to carry.
    epoch: i32,
    used_at: u64,
    partitions: usize,
}

impl Kept {
    /// Keeps a session; returns its id, or 0 when it cannot be kept, which clients put up with.
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
        let kept = KeptSession {
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

    /// A session has so many partitions from now on. Those that were used least lately make room, and
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
    /// Forgets the partitions that the request does not want any more.
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

/// What the client was told of a partition last, besides records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    error_code: i16,
    high_watermark: i64,
    last_stable_offset: i64,
    log_start_offset: i64,
}

impl Told {
    pub fn error_code(self) -> i16 {
        self.error_code
    }

    pub fn of(fetched: &FetchedPartition) -> Told {
        Told {
            error_code: fetched.error_code,
            high_watermark: fetched.high_watermark,
            last_stable_offset: fetched.last_stable_offset,
            log_start_offset: fetched.log_start_offset,
        }
    }
}

/// A partition as a request names it.
pub fn place(name: &TopicName, id: Uuid, has_ids: bool, partition: i32) -> Place {
    Place {
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
        let mut kept = Kept::default();
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
        // Larger than all together: it makes nobody go.
        let third = kept.add(session(), 10, &SystemRandom);
        assert_eq!(kept.add(session(), PARTITIONS_MAX + 1, &SystemRandom), 0);
        assert!(kept.by_id.contains_key(&third));
    }
}
