//! Fetch sessions (KIP-227): a client that reads many partitions names only what changes.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_base::{Offset, Random};
use millstream_log::{Lane, Watch, Watched};
use millstream_wire::messages::fetch_request::FetchTopic;
use millstream_wire::messages::{FetchRequest, TopicName};
use millstream_wire::{ResponseError, Uuid};
use parking_lot::Mutex;

use super::{Told, place};
use crate::client::Client;
use crate::error::response_error;
use crate::offsets::{epoch_error, lane_of};
use crate::security::Operation;
use crate::topic_names::NAME_BYTES_MAX;
use crate::topics::{Named, topic_name};

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
    /// Its durable end when it was looked at last.
    pub seen: Offset,
    pub watched: Option<Watched>,
}

/// What a client reads, for one request or for as long as it goes on.
#[derive(Default)]
pub struct Session {
    /// Whether its topics have ids instead of names.
    has_ids: bool,
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
        let is_no_name = |topic: &FetchTopic| topic.topic.len() > NAME_BYTES_MAX;
        if request.session_epoch != FINAL_EPOCH && request.topics.iter().any(is_no_name) {
            // A session would keep what no topic can be called.
            return Err(ResponseError::InvalidTopicException);
        }
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
        if changed.has_ids != has_ids {
            return Err(ResponseError::FetchSessionTopicIdError);
        }
        changed.forget(&request);
        changed.look_again(client);
        changed.check(client);
        changed.update(client, request);
        let partitions = changed.partitions.len();
        drop(changed);
        self.0.lock().resize(session_id, partitions)?;
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
        let mut session = Session {
            has_ids,
            ..Session::default()
        };
        session.update(client, request);
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

    /// A session has so many partitions from now on. Those that were used least lately make room, and
    /// this one goes last.
    fn resize(&mut self, id: i32, partitions: usize) -> Result<(), ResponseError> {
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
    /// Takes over what a request says of partitions.
    fn update(&mut self, client: &mut Client, request: FetchRequest) {
        for topic in request.topics {
            let named = Named::of(self.has_ids, &topic.topic, topic.topic_id);
            let stream = named.permitted(client, Operation::Read);
            // As a slice of the request it would keep the buffer that this was received in.
            let name = topic_name(&topic.topic);
            for asked in topic.partitions {
                let lane = match (&stream, epoch_error(asked.current_leader_epoch)) {
                    (_, Some(error)) => Err(error),
                    (Ok(stream), None) => {
                        lane_of(stream, asked.partition).map_err(|error| response_error(&error))
                    }
                    (Err(error), None) => Err(*error),
                };
                let place = place(&name, topic.topic_id, self.has_ids, asked.partition);
                let partition = Partition {
                    place: place.clone(),
                    lane,
                    offset: asked.fetch_offset,
                    bytes_max: asked.partition_max_bytes.max(0) as usize,
                    told: None,
                    seen: Offset(0),
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

    /// Looks up again what was not there: a topic may have been made meanwhile, which the client does not
    /// tell.
    fn look_again(&mut self, client: &mut Client) {
        let is_missing = |partition: &&mut Partition| {
            let code = match (&partition.lane, partition.told) {
                (Err(error), _) => error.code(),
                (Ok(_), told) => told.map_or(0, Told::error_code),
            };
            code == ResponseError::UnknownTopicOrPartition.code()
                || code == ResponseError::UnknownTopicId.code()
                || code == ResponseError::TopicAuthorizationFailed.code()
        };
        for partition in self.partitions.iter_mut().filter(is_missing) {
            let Place { name, id, .. } = &partition.place;
            let named = Named::of(self.has_ids, name, *id);
            let stream = named.permitted(client, Operation::Read);
            partition.lane = stream.and_then(|stream| {
                lane_of(&stream, partition.place.partition).map_err(|error| response_error(&error))
            });
            partition.watched = None;
        }
    }

    /// Asks again whether the client may read what it reads: the rules may have changed, and it need not
    /// be the one that began the session.
    fn check(&mut self, client: &mut Client) {
        if !client.access().is_restricted() {
            return;
        }
        let has_ids = self.has_ids;
        let mut last: Option<(TopicName, Uuid, Option<ResponseError>)> = None;
        for partition in self
            .partitions
            .iter_mut()
            .filter(|partition| partition.lane.is_ok())
        {
            let Place { name, id, .. } = &partition.place;
            let denied = match &last {
                Some((last, of, verdict)) if last == name && of == id => *verdict,
                _ => {
                    let named = Named::of(has_ids, name, *id);
                    let permitted = named.permitted(client, Operation::Read);
                    permitted.err().filter(|error| {
                        use ResponseError::{TopicAuthorizationFailed, UnknownTopicId};
                        matches!(error, TopicAuthorizationFailed | UnknownTopicId)
                    })
                }
            };
            last = Some((name.clone(), *id, denied));
            if let Some(error) = denied {
                partition.lane = Err(error);
                partition.watched = None;
            }
        }
    }

    /// Forgets the partitions that the request does not want any more.
    fn forget(&mut self, request: &FetchRequest) {
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
