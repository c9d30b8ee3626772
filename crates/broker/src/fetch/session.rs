//! Fetch sessions (KIP-227): a client that reads many partitions names only what changes.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_base::Random;
use millstream_log::{Lane, Watch, Watched};
use millstream_wire::messages::{FetchRequest, TopicName};
use millstream_wire::{ResponseError, Uuid};
use parking_lot::Mutex;

use super::{Told, place};
use crate::client::Client;
use crate::error::response_error;
use crate::offsets::{epoch_error, lane_of};
use crate::topics::Named;

/// Sessions at the same time. The one that was used least lately makes room for another.
const SESSIONS_MAX: usize = 1_000;

/// Partitions of all sessions.
const PARTITIONS_MAX: usize = 1 << 20;

/// No session is wanted.
const FINAL_EPOCH: i32 = -1;
/// A session is to begin.
const INITIAL_EPOCH: i32 = 0;

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
    pub watched: Option<Watched>,
}

/// What a client reads, for one request or for as long as it goes on.
#[derive(Default)]
pub struct Session {
    /// In the order of the requests that named them.
    pub partitions: Vec<Partition>,
    /// By place.
    index: HashMap<Place, usize>,
    /// The partition that is looked at first.
    pub first: usize,
    /// Told by the lanes. Dropped with the partitions' places in it.
    pub watch: Option<Watch>,
}

/// A request that was taken in.
pub struct Begun {
    pub session: Arc<tokio::sync::Mutex<Session>>,
    /// 0 for none.
    pub session_id: i32,
    /// It is the first answer of the session, or the only one.
    pub is_new: bool,
    /// Only what has changed is answered.
    pub is_incremental: bool,
}

/// The sessions of all connections.
#[derive(Default)]
pub struct Sessions(Mutex<Kept>);

#[derive(Default)]
struct Kept {
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

impl Sessions {
    /// Takes in what a request says of its session, or lack of one.
    pub fn begin(
        &self,
        client: &mut Client,
        random: &dyn Random,
        has_ids: bool,
        request: FetchRequest,
    ) -> Result<Begun, ResponseError> {
        let is_whole = matches!(request.session_epoch, INITIAL_EPOCH | FINAL_EPOCH);
        if is_whole {
            if request.session_id != 0 {
                self.0.lock().remove(request.session_id);
            }
            return Ok(self.begin_whole(client, random, has_ids, request));
        }
        let session = self
            .0
            .lock()
            .next(request.session_id, request.session_epoch)?;
        let session_id = request.session_id;
        let mut changed = session
            .try_lock()
            // An earlier request of the session is still being answered: no client does this.
            .map_err(|_| ResponseError::InvalidFetchSessionEpoch)?;
        changed.forget(has_ids, &request);
        changed.update(client, has_ids, request);
        let partitions = changed.partitions.len();
        drop(changed);
        self.0.lock().resize(session_id, partitions);
        Ok(Begun {
            session,
            session_id,
            is_new: false,
            is_incremental: true,
        })
    }

    fn begin_whole(
        &self,
        client: &mut Client,
        random: &dyn Random,
        has_ids: bool,
        request: FetchRequest,
    ) -> Begun {
        let wants_session = request.session_epoch == INITIAL_EPOCH;
        let mut session = Session::default();
        session.update(client, has_ids, request);
        let partitions = session.partitions.len();
        let session = Arc::new(tokio::sync::Mutex::new(session));
        let session_id = match wants_session {
            true => self.0.lock().add(Arc::clone(&session), partitions, random),
            false => 0,
        };
        Begun {
            session,
            session_id,
            is_new: true,
            is_incremental: false,
        }
    }
}

impl Kept {
    /// Keeps a session; returns its id, or 0 when it cannot be kept, which clients put up with.
    fn add(
        &mut self,
        session: Arc<tokio::sync::Mutex<Session>>,
        partitions: usize,
        random: &dyn Random,
    ) -> i32 {
        while self.by_id.len() >= SESSIONS_MAX || self.partitions + partitions > PARTITIONS_MAX {
            let oldest = self.by_id.iter().min_by_key(|(_, kept)| kept.used_at);
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                return 0;
            };
            self.remove(oldest);
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

    fn remove(&mut self, id: i32) {
        if let Some(kept) = self.by_id.remove(&id) {
            self.partitions -= kept.partitions;
        }
    }

    fn next(
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

    fn resize(&mut self, id: i32, partitions: usize) {
        if let Some(kept) = self.by_id.get_mut(&id) {
            self.partitions = self.partitions - kept.partitions + partitions;
            kept.partitions = partitions;
        }
    }
}

impl Session {
    /// Takes over what a request says of partitions.
    fn update(&mut self, client: &mut Client, has_ids: bool, request: FetchRequest) {
        for topic in request.topics {
            let stream = Named::of(has_ids, &topic.topic, topic.topic_id).stream(client);
            for asked in topic.partitions {
                let lane = match (&stream, epoch_error(asked.current_leader_epoch)) {
                    (_, Some(error)) => Err(error),
                    (Ok(stream), None) => {
                        lane_of(stream, asked.partition).map_err(|error| response_error(&error))
                    }
                    (Err(error), None) => Err(*error),
                };
                let place = place(
                    topic.topic.clone(),
                    topic.topic_id,
                    has_ids,
                    asked.partition,
                );
                let partition = Partition {
                    place: place.clone(),
                    lane,
                    offset: asked.fetch_offset,
                    bytes_max: asked.partition_max_bytes.max(0) as usize,
                    told: None,
                    watched: None,
                };
                match self.index.get(&place) {
                    Some(index) => {
                        let before = &mut self.partitions[*index];
                        let told = before.told;
                        *before = Partition { told, ..partition };
                    }
                    None => {
                        self.index.insert(place, self.partitions.len());
                        self.partitions.push(partition);
                    }
                }
            }
        }
    }

    /// Forgets the partitions that the request does not want any more.
    fn forget(&mut self, has_ids: bool, request: &FetchRequest) {
        let mut has_forgotten = false;
        for topic in &request.forgotten_topics_data {
            for partition in &topic.partitions {
                let place = place(topic.topic.clone(), topic.topic_id, has_ids, *partition);
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
