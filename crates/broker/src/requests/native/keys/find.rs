//! Finds keys by their secondary keys.

use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{KeyRange, Log, SCAN_KEYS_MAX, SecondaryPosition, StreamPartition};
use millstream_wire::native::{FindKeysRequest, FindKeysResponse, FoundKey, SecondaryPlace};
use millstream_wire::{ResponseError, SHARED_BYTES_MIN};

use super::{
    ANSWER_BYTES, COPIED_BYTES_MAX, KEY_OVERHEAD_BYTES, bytes_in_answer, check_key, hold_values,
    not_done, refused_read, wire_version,
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

/// The most ranges of one request. Each may pass over some thousand candidates.
const RANGES_MAX: usize = 256;

impl Handle for FindKeysRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Consumed);

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Read, &self.stream)
    }

    refuse_with_message!();
    errors!(error_code);
    tell_throttle!();

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        find(broker, client, self)
    }
}

/// Returns the keys that have secondary keys of some ranges, in their order.
fn find(broker: &Arc<Broker>, client: &Client, request: FindKeysRequest) -> Reply {
    let bytes_max = (request.bytes_max as usize).min(client.answer_bytes_max());
    let wanted = match wanted(broker.log(), request, bytes_max.min(COPIED_BYTES_MAX)) {
        Ok(wanted) => Arc::new(wanted),
        Err(refused) => return FindKeysResponse::from(refused).into(),
    };
    let (answers, reads) = (Arc::clone(broker.answers()), broker.key_reads());
    Reply::counted(answer(wanted, Arc::clone(reads), answers))
}

struct Wanted {
    partition: StreamPartition,
    index: String,
    ranges: Vec<KeyRange>,
    from: Option<SecondaryPosition>,
    keys_max: usize,
    bytes_max: usize,
}

fn wanted(log: &Log, request: FindKeysRequest, bytes_max: usize) -> Result<Wanted, Refused> {
    let refused = |why| Err(Refused::new(ResponseError::InvalidRequest, why));
    if request.keys_max == 0 {
        return refused("keys_max is 0, and must be at least 1");
    }
    if request.ranges.len() > RANGES_MAX {
        return Err(Refused::too_many("ranges", RANGES_MAX));
    }
    for range in &request.ranges {
        check_key(&range.from)?;
        check_key(range.until.as_deref().unwrap_or_default())?;
    }
    let ranges = request.ranges.into_iter();
    let ranges = ranges.map(|range| KeyRange::new(range.from, range.until.map(Vec::from)));
    let ranges: Vec<KeyRange> = ranges.collect();
    let follow = |pair: &[KeyRange]| {
        pair[0]
            .until
            .as_ref()
            .is_some_and(|end| *end <= pair[1].from)
    };
    if !ranges.windows(2).all(follow) {
        return refused("a range of secondary keys does not end before the next one begins");
    }
    let from = request.from.map(|from| SecondaryPosition {
        secondary: from.secondary.into(),
        key: from.key.into(),
    });
    Ok(Wanted {
        partition: keyed_stream(log, &request.stream)?.partition(request.partition)?,
        index: request.index.to_string(),
        ranges,
        from,
        keys_max: (request.keys_max as usize).min(SCAN_KEYS_MAX),
        bytes_max,
    })
}

async fn answer(
    wanted: Arc<Wanted>,
    reads: Arc<KeyReads>,
    answers: Arc<AnswerMemory>,
) -> (FindKeysResponse, AnswerRoom) {
    let mut bytes = ANSWER_BYTES + wanted.bytes_max;
    loop {
        // A request that waits for a rebuild holds no memory.
        reads.catch_up([&wanted.partition]).await;
        reads
            .catch_up_secondary([&wanted.partition], &wanted.index)
            .await;
        let room = answers.take(Part::Late, bytes).await;
        let read = reads.run({
            let wanted = Arc::clone(&wanted);
            move || read(&wanted, room)
        });
        match read.await {
            Some(Ok(answer)) => return answer,
            Some(Err(needed)) => bytes = needed,
            None => {
                let room = answers.take(Part::Late, ANSWER_BYTES).await;
                return (not_done().into(), room);
            }
        }
    }
}

/// Reads the keys. Fails with the size of the answer, if there is not enough memory for it now.
fn read(wanted: &Wanted, mut room: AnswerRoom) -> Result<(FindKeysResponse, AnswerRoom), usize> {
    let (partition, from) = (&wanted.partition, wanted.from.as_ref());
    let Wanted {
        index,
        ranges,
        keys_max,
        bytes_max,
        ..
    } = wanted;
    let found = match partition.find_in(index, ranges, from, *keys_max, *bytes_max) {
        Ok(found) => found,
        Err(error) => return Ok((refused_read(error).into(), room)),
    };
    let next = found.next.map(|next| SecondaryPlace {
        secondary: next.secondary.into(),
        key: next.key.into(),
    });
    let bytes = |next: &SecondaryPlace| next.secondary.len() + next.key.len();
    let mut rest = ANSWER_BYTES + 2 * next.as_ref().map_or(0, bytes);
    let mut held_bytes = 0;
    let mut keys = Vec::with_capacity(found.entries.len());
    for entry in found.entries {
        let key = FoundKey {
            secondary: Bytes::from(entry.secondary),
            key: entry.key.into(),
            newest: wire_version(entry.version),
        };
        rest += KEY_OVERHEAD_BYTES + bytes_in_answer(&key.key) + bytes_in_answer(&key.secondary);
        match key.newest.value.len() {
            large @ SHARED_BYTES_MIN.. => held_bytes += large,
            _ => rest += bytes_in_answer(&key.newest.value),
        }
        keys.push(key);
    }
    if !room.grow(rest + held_bytes) {
        return Err(rest + held_bytes);
    }
    let values = keys.iter_mut().map(|key| &mut key.newest.value);
    hold_values(&mut room, rest, values);
    let response = FindKeysResponse {
        keys,
        next,
        ..FindKeysResponse::default()
    };
    Ok((response, room))
}
