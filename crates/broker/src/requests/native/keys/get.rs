//! Looks up keys.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, partition_of_key};
use millstream_log::{Log, Stream, StreamPartition};
use millstream_wire::ResponseError;
use millstream_wire::native::{GetKeysRequest, GetKeysResponse, GotKey, KeyHeader};

use super::look_up::{
    ANSWER_BYTES, AnswerBytes, COPIED_BYTES_MAX, HEADER_OVERHEAD_BYTES, KEY_OVERHEAD_BYTES, LookUp,
    Unread, answer, refused_read,
};
use super::{KEYS_MAX, check_key, wire_version};
use crate::answer_memory::{AnswerRoom, Part};
use crate::broker::Broker;
use crate::client::Client;
use crate::native::keyed_stream;
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::{Operation, Traffic};

/// How long one answer looks for older versions. Then the client asks again for the other keys.
const OLDER_TIME_MAX: Duration = Duration::from_millis(500);

/// Returns the newest versions of keys, or those at earlier versions.
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
        Err(refused) => return refused.answer::<GetKeysResponse>().into(),
    };
    let wanted = Arc::new(Wanted {
        stream,
        keys: request.keys,
        at: request.at,
        hold: request.hold.map(|hold| hold.to_string()),
        with_headers: request.with_headers,
        log: broker.log().clone(),
        values_max: client.answer_bytes_max().min(COPIED_BYTES_MAX),
    });
    let (answers, reads) = (Arc::clone(broker.answers()), Arc::clone(broker.key_reads()));
    Reply::counted(async move {
        if !wanted.is_older() {
            let mut room = answers.take(Part::Late, wanted.bytes()).await;
            // Nothing that memory has needs a thread that may block.
            if let Ok(answer) = look_up(&wanted, &mut room, find_hot) {
                return (answer, room);
            }
        }
        answer(wanted, &reads, &answers).await
    })
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
    /// Whether the answer has the headers of the records.
    with_headers: bool,
    log: Log,
    /// About the most bytes of values in the answer.
    values_max: usize,
}

impl Wanted {
    /// Returns the partition of a key.
    fn partition(&self, key: &[u8]) -> u32 {
        partition_of_key(key, self.stream.partition_count() as usize) as u32
    }
}

impl LookUp for Wanted {
    type Answer = GetKeysResponse;

    fn partitions(&self) -> Vec<StreamPartition> {
        let partitions = self.keys.iter().filter_map(|key| {
            let partition = self.partition(key);
            Some((partition, self.stream.partition(partition).ok()?))
        });
        let partitions: BTreeMap<u32, StreamPartition> = partitions.collect();
        partitions.into_values().collect()
    }

    fn is_older(&self) -> bool {
        !self.at.is_empty() || self.hold.is_some()
    }

    /// The values take theirs as they are found.
    fn bytes(&self) -> usize {
        ANSWER_BYTES + self.keys.len() * KEY_OVERHEAD_BYTES
    }

    fn read(&self, room: &mut AnswerRoom) -> Result<GetKeysResponse, Unread> {
        look_up(self, room, |wanted, n| Ok(find(wanted, n)))
    }
}

/// The newest version of a key, or the reason why it is not known.
type Found = Result<Option<millstream_log::KeyVersion>, Refused>;

/// The error of a look-up in memory that needs a read, or memory for its answer.
struct NotHot;

impl From<Unread> for NotHot {
    fn from(_: Unread) -> NotHot {
        NotHot
    }
}

/// Looks up keys with `find` until the values fill the answer. The answer to a request with keys has at least one.
fn look_up<E: From<Unread>>(
    wanted: &Wanted,
    room: &mut AnswerRoom,
    find: fn(&Wanted, usize) -> Result<Found, E>,
) -> Result<GetKeysResponse, E> {
    let mut keys: Vec<GotKey> = Vec::with_capacity(wanted.keys.len());
    let (mut bytes, mut values) = (AnswerBytes::new(wanted.bytes()), 0);
    let now = || wanted.log.clock().monotonic();
    let end = wanted.is_older().then(|| now() + OLDER_TIME_MAX);
    for (n, key) in wanted.keys.iter().enumerate() {
        if !keys.is_empty() && end.is_some_and(|end| now() >= end) {
            break;
        }
        let mut got = got_key(wanted.partition(key), find(wanted, n)?);
        if !wanted.with_headers {
            got.headers.clear();
        }
        let message = got
            .error_message
            .as_ref()
            .map_or(0, |message| message.len());
        let mut needed = bytes;
        needed.add(3 * message);
        needed.add(got.headers.len() * HEADER_OVERHEAD_BYTES);
        for bytes in bytes_of(&mut got) {
            needed.add_value(bytes);
            values += bytes.len();
        }
        let has_room = values <= wanted.values_max || keys.is_empty();
        if !has_room || !room.grow(needed.total()) {
            match keys.is_empty() {
                true => return Err(Unread::NeedsMemory(needed.total()).into()),
                // The client asks again for this key and those behind it.
                false => break,
            }
        }
        bytes = needed;
        keys.push(got);
    }
    bytes.take(room, keys.iter_mut().flat_map(bytes_of))?;
    Ok(GetKeysResponse {
        keys,
        ..GetKeysResponse::default()
    })
}

/// Returns the bytes that the log has of a key: its value, and the names and values of its headers.
fn bytes_of(got: &mut GotKey) -> impl Iterator<Item = &mut Bytes> {
    let value = got.newest.iter_mut().map(|newest| &mut newest.value);
    let headers = got.headers.iter_mut();
    value.chain(headers.flat_map(|header| iter::once(&mut header.name).chain(&mut header.value)))
}

fn find(wanted: &Wanted, n: usize) -> Found {
    let (stream, key) = (&wanted.stream, &wanted.keys[n]);
    check_key(key).and_then(|()| {
        let found = match (wanted.at.get(n), &wanted.hold) {
            (Some(at), _) => stream.get_at(key, *at),
            (None, Some(hold)) => stream.get_at_hold(key, hold),
            (None, None) => stream.get(key),
        };
        found.map_err(refused_read)
    })
}

/// Finds the newest version of a key in memory only.
fn find_hot(wanted: &Wanted, n: usize) -> Result<Found, NotHot> {
    match wanted.stream.get_hot(&wanted.keys[n]) {
        Ok(Some(newest)) => Ok(Ok(newest)),
        Ok(None) | Err(_) => Err(NotHot),
    }
}

fn got_key(partition: u32, found: Found) -> GotKey {
    let mut got = GotKey {
        error_code: 0,
        error_message: None,
        partition,
        newest: None,
        headers: Vec::new(),
    };
    match found {
        Ok(None) => {}
        Ok(Some(mut newest)) => {
            let headers = std::mem::take(&mut newest.headers).into_iter();
            let headers = headers.map(|header| KeyHeader {
                name: header.name,
                value: header.value,
            });
            got.headers = headers.collect();
            got.newest = Some(wire_version(newest));
        }
        Err(refused) => {
            got.error_code = refused.code();
            got.error_message = refused.message();
        }
    }
    got
}
