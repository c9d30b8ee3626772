//! Accepts a fetch, and updates its session as the request says.

use std::sync::Arc;

use millstream_base::{Offset, Random};
use millstream_wire::messages::fetch_request::FetchTopic;
use millstream_wire::messages::{FetchRequest, TopicName};
use millstream_wire::{ResponseError, Uuid};

use crate::client::Client;
use crate::error::response_error;
use crate::fetch::session::{Partition, PartitionName, Reported, Session, Sessions, place};
use crate::partitions::{lane_of, with_epoch};
use crate::requests::topics::{Named, topic_name};
use crate::security::Operation;
use crate::topic_names::NAME_BYTES_MAX;

/// The epoch of a fetch without a session.
const FINAL_EPOCH: i32 = -1;
/// The epoch of a fetch that begins a session.
const INITIAL_EPOCH: i32 = 0;

/// An accepted request.
pub struct Begun {
    pub session: Arc<tokio::sync::Mutex<Session>>,
    /// The session's id; 0 for none.
    pub session_id: i32,
    /// Whether this is the first answer of the session, or the only one.
    pub is_new: bool,
    /// Whether the answer has only the changed partitions.
    pub is_incremental: bool,
}

/// Begins a fetch: in its session, in a new one, or without one.
pub fn begin(
    sessions: &Sessions,
    client: &mut Client,
    random: &dyn Random,
    has_ids: bool,
    request: FetchRequest,
) -> Result<Begun, ResponseError> {
    let is_no_name = |topic: &FetchTopic| topic.topic.len() > NAME_BYTES_MAX;
    if request.session_epoch != FINAL_EPOCH && request.topics.iter().any(is_no_name) {
        // No topic can have this name, so a session must not keep it.
        return Err(ResponseError::InvalidTopicException);
    }
    let is_whole = matches!(request.session_epoch, INITIAL_EPOCH | FINAL_EPOCH);
    if is_whole {
        if request.session_id != 0 {
            sessions.0.lock().remove(request.session_id);
        }
        return Ok(begin_whole(sessions, client, random, has_ids, request));
    }
    let session = sessions
        .0
        .lock()
        .next(request.session_id, request.session_epoch)?;
    let session_id = request.session_id;
    let mut changed = session
        .try_lock()
        // An earlier request of the session is still being answered: no correct client sends a
        // second one.
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
    sessions.0.lock().resize(session_id, partitions)?;
    Ok(Begun {
        session,
        session_id,
        is_new: false,
        is_incremental: true,
    })
}

fn begin_whole(
    sessions: &Sessions,
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
        true => sessions
            .0
            .lock()
            .add(Arc::clone(&session), partitions, random),
        false => 0,
    };
    Begun {
        session,
        session_id,
        is_new: true,
        is_incremental: false,
    }
}

impl Session {
    /// Takes over the request's partitions and their offsets.
    fn update(&mut self, client: &mut Client, request: FetchRequest) {
        for topic in request.topics {
            let named = Named::of(self.has_ids, &topic.topic, topic.topic_id);
            let stream = named.permitted(client, Operation::Read);
            // A slice of the request would keep its whole receive buffer.
            let name = topic_name(&topic.topic);
            for asked in topic.partitions {
                let lane = match &stream {
                    Ok(stream) => {
                        lane_of(stream, asked.partition).map_err(|error| response_error(&error))
                    }
                    Err(error) => Err(*error),
                };
                let lane = lane.and_then(|lane| with_epoch(lane, asked.current_leader_epoch));
                let place = place(&name, topic.topic_id, self.has_ids, asked.partition);
                let partition = Partition {
                    place: place.clone(),
                    lane,
                    offset: asked.fetch_offset,
                    bytes_max: asked.partition_max_bytes.max(0) as usize,
                    reported: None,
                    seen: Offset(0),
                    watched: None,
                };
                match self.index.get(&place) {
                    Some(index) => {
                        let before = &mut self.partitions[*index];
                        let reported = before.reported;
                        *before = Partition {
                            reported,
                            ..partition
                        };
                    }
                    None => {
                        self.index.insert(place, self.partitions.len());
                        self.partitions.push(partition);
                    }
                }
            }
        }
    }

    /// Looks up missing topics again: one may have been created meanwhile, and the client does not
    /// repeat its name.
    fn look_again(&mut self, client: &mut Client) {
        let is_missing = |partition: &&mut Partition| {
            let code = match (&partition.lane, partition.reported) {
                (Err(error), _) => error.code(),
                (Ok(_), reported) => reported.map_or(0, Reported::error_code),
            };
            code == ResponseError::UnknownTopicOrPartition.code()
                || code == ResponseError::UnknownTopicId.code()
                || code == ResponseError::TopicAuthorizationFailed.code()
        };
        for partition in self.partitions.iter_mut().filter(is_missing) {
            let PartitionName { name, id, .. } = &partition.place;
            let named = Named::of(self.has_ids, name, *id);
            let stream = named.permitted(client, Operation::Read);
            partition.lane = stream.and_then(|stream| {
                lane_of(&stream, partition.place.partition).map_err(|error| response_error(&error))
            });
            partition.watched = None;
        }
    }

    /// Checks again whether the client may read its topics: the rules may have changed, and another
    /// client may have begun the session.
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
            let PartitionName { name, id, .. } = &partition.place;
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
}
