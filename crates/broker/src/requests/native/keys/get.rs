//! Looks up keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, partition_of_key};
use millstream_log::{Log, Stream};
use millstream_wire::native::{GetKeysRequest, GetKeysResponse, GotKey};
use millstream_wire::{ResponseError, SHARED_BYTES_MIN};

use super::{
    ANSWER_BYTES, COPIED_BYTES_MAX, KEY_OVERHEAD_BYTES, KEYS_MAX, bytes_in_answer, check_key,
    hold_values, not_done, refused_read, wire_version,
};
use crate::answer_memory::{AnswerMemory, AnswerRoom, Part};
use crate::broker::Broker;
use crate::client::Client;
use crate::key_reads::KeyReads;
use crate::native::keyed_stream;
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::{Operation, Traffic};

/// How long one answer looks for older versions. Then the client asks again for the other keys.
const OLDER_TIME_MAX: Duration = Duration::from_millis(500);

impl Handle for GetKeysRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Consumed);

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Read, &self.stream)
    }

    refuse_with_message!();
    errors!(error_code, keys.error_code);
    tell_throttle!();

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        get(broker, client, self)
    }
}

/// Returns the newest versions of keys, or those at earlier versions.
fn get(broker: &Arc<Broker>, client: &Client, request: GetKeysRequest) -> Reply {
    let stream = match keys_of(broker.log(), &request) {
        Ok(stream) => stream,
        Err(refused) => return GetKeysResponse::from(refused).into(),
    };
    let wanted = Arc::new(Wanted {
        stream,
        keys: request.keys,
        at: request.at,
        hold: request.hold.map(|hold| hold.to_string()),
        log: broker.log().clone(),
        values_max: client.answer_bytes_max().min(COPIED_BYTES_MAX),
    });
    let (answers, reads) = (Arc::clone(broker.answers()), broker.key_reads());
    Reply::counted(answer(wanted, Arc::clone(reads), answers))
}

fn keys_of(log: &Log, request: &GetKeysRequest) -> Result<Stream, Refused> {
    if request.keys.len() > KEYS_MAX {
        return Err(Refused::too_many("keys", KEYS_MAX));
    }
    if !request.at.is_empty() && request.at.len() != request.keys.len() {
        return Err(Refused::new(
            ResponseError::InvalidRequest,
            format!(
                "the request has {} keys and {} versions, and must have one version for each key or none",
                request.keys.len(),
                request.at.len()
            ),
        ));
    }
    let stream = keyed_stream(log, &request.stream)?;
    if let Some(hold) = &request.hold {
        if !request.at.is_empty() {
            let message = "the request has versions and a hold, and may have one of them";
            return Err(Refused::new(ResponseError::InvalidRequest, message));
        }
        stream.hold(hold)?;
    }
    Ok(stream)
}

struct Wanted {
    stream: Stream,
    keys: Vec<Bytes>,
    /// The version of each key at which to look; empty for the newest ones.
    at: Vec<Offset>,
    /// The hold at which to look.
    hold: Option<String>,
    log: Log,
    /// About the most bytes of values in the answer.
    values_max: usize,
}

impl Wanted {
    /// Whether older versions are asked for.
    fn is_older(&self) -> bool {
        !self.at.is_empty() || self.hold.is_some()
    }

    /// Returns the partition of a key.
    fn partition(&self, key: &[u8]) -> u32 {
        partition_of_key(key, self.stream.partition_count() as usize) as u32
    }

    /// Returns the memory of the answer, beside values and messages.
    fn plain_bytes(&self) -> usize {
        ANSWER_BYTES + self.keys.len() * KEY_OVERHEAD_BYTES
    }
}

async fn answer(
    wanted: Arc<Wanted>,
    reads: Arc<KeyReads>,
    answers: Arc<AnswerMemory>,
) -> (GetKeysResponse, AnswerRoom) {
    let partitions = wanted.keys.iter().filter_map(|key| {
        let partition = wanted.partition(key);
        Some((partition, wanted.stream.partition(partition).ok()?))
    });
    let partitions: BTreeMap<_, _> = partitions.collect();
    let mut bytes = wanted.plain_bytes();
    if !wanted.is_older() {
        let room = answers.take(Part::Late, bytes).await;
        // Nothing that memory has needs a thread that may block.
        if let Ok(Some(answer)) = look_up(&wanted, room, find_hot) {
            return answer;
        }
    }
    loop {
        // A request that waits for a rebuild, or for a thread that reads much, holds no memory.
        reads.catch_up(partitions.values()).await;
        let thread = match wanted.is_older() {
            true => reads.thread_for_older().await,
            false => None,
        };
        let room = answers.take(Part::Late, bytes).await;
        let looked_up = {
            let wanted = Arc::clone(&wanted);
            move || look_up(&wanted, room, find)
        };
        let looked_up = match thread {
            Some(thread) => thread.run(looked_up).await,
            None => reads.run(looked_up).await,
        };
        match looked_up {
            Some(Ok(Some(answer))) => return answer,
            Some(Err(needed)) => bytes = needed,
            Some(Ok(None)) | None => {
                let room = answers.take(Part::Late, ANSWER_BYTES).await;
                return (not_done().into(), room);
            }
        }
    }
}

/// The newest version of a key, or the reason why it is not known.
type Found = Result<Option<millstream_log::KeyVersion>, Refused>;

/// Looks up keys with `find` until the values fill the answer; `None` if it does not know one. Fails with the size of an
/// answer that has the first key's value, if there is not enough memory for it now.
fn look_up(
    wanted: &Wanted,
    mut room: AnswerRoom,
    find: fn(&Wanted, usize) -> Option<Found>,
) -> Result<Option<(GetKeysResponse, AnswerRoom)>, usize> {
    let mut keys: Vec<GotKey> = Vec::with_capacity(wanted.keys.len());
    let (mut bytes, mut held_bytes, mut values) = (wanted.plain_bytes(), 0, 0);
    let now = || wanted.log.clock().monotonic();
    let end = wanted.is_older().then(|| now() + OLDER_TIME_MAX);
    for (n, key) in wanted.keys.iter().enumerate() {
        if !keys.is_empty() && end.is_some_and(|end| now() >= end) {
            break;
        }
        let Some(found) = find(wanted, n) else {
            return Ok(None);
        };
        let got = got_key(wanted.partition(key), found);
        let value: &[u8] = got.newest.as_ref().map_or(&[], |newest| &newest.value);
        let message = got
            .error_message
            .as_ref()
            .map_or(0, |message| message.len());
        let needed = bytes + bytes_in_answer(value) + 3 * message;
        values += value.len();
        let has_room = values <= wanted.values_max || keys.is_empty();
        if !has_room || !room.grow(needed) {
            match keys.is_empty() {
                true => return Err(needed),
                // The client asks again for this key and those behind it.
                false => break,
            }
        }
        if value.len() >= SHARED_BYTES_MIN {
            held_bytes += value.len();
        }
        bytes = needed;
        keys.push(got);
    }
    let newest = keys.iter_mut().filter_map(|key| key.newest.as_mut());
    hold_values(
        &mut room,
        bytes - held_bytes,
        newest.map(|newest| &mut newest.value),
    );
    let response = GetKeysResponse {
        keys,
        ..GetKeysResponse::default()
    };
    Ok(Some((response, room)))
}

fn find(wanted: &Wanted, n: usize) -> Option<Found> {
    let (stream, key) = (&wanted.stream, &wanted.keys[n]);
    let found = check_key(key).and_then(|()| {
        let found = match (wanted.at.get(n), &wanted.hold) {
            (Some(at), _) => stream.get_at(key, *at),
            (None, Some(hold)) => stream.get_at_hold(key, hold),
            (None, None) => stream.get(key),
        };
        found.map_err(refused_read)
    });
    Some(found)
}

/// Finds the newest version of a key in memory only.
fn find_hot(wanted: &Wanted, n: usize) -> Option<Found> {
    wanted
        .stream
        .get_hot(&wanted.keys[n])
        .ok()
        .flatten()
        .map(Ok)
}

fn got_key(partition: u32, found: Found) -> GotKey {
    let mut got = GotKey {
        error_code: 0,
        error_message: None,
        partition,
        newest: None,
    };
    match found {
        Ok(newest) => got.newest = newest.map(wire_version),
        Err(refused) => {
            got.error_code = refused.code();
            got.error_message = refused.message();
        }
    }
    got
}
