//! Reads ranges of keys.

use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{KeyRange, Log, SCAN_KEYS_MAX, StreamPartition};
use millstream_wire::native::{ScanKeysRequest, ScanKeysResponse, ScannedKey};
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

impl Handle for ScanKeysRequest {
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
        scan(broker, client, self)
    }
}

/// Returns the keys of a range, in the order of their bytes.
fn scan(broker: &Arc<Broker>, client: &Client, request: ScanKeysRequest) -> Reply {
    let bytes_max = (request.bytes_max as usize).min(client.answer_bytes_max());
    let wanted = match range_of(broker.log(), request, bytes_max.min(COPIED_BYTES_MAX)) {
        Ok(wanted) => Arc::new(wanted),
        Err(refused) => return ScanKeysResponse::from(refused).into(),
    };
    let (answers, reads) = (Arc::clone(broker.answers()), broker.key_reads());
    Reply::counted(answer(wanted, Arc::clone(reads), answers))
}

struct Wanted {
    partition: StreamPartition,
    range: KeyRange,
    keys_max: usize,
    bytes_max: usize,
}

fn range_of(log: &Log, request: ScanKeysRequest, bytes_max: usize) -> Result<Wanted, Refused> {
    if request.keys_max == 0 {
        return Err(Refused::new(
            ResponseError::InvalidRequest,
            "keys_max is 0, and must be at least 1",
        ));
    }
    check_key(&request.from)?;
    check_key(request.until.as_deref().unwrap_or_default())?;
    Ok(Wanted {
        partition: keyed_stream(log, &request.stream)?.partition(request.partition)?,
        range: KeyRange::new(request.from, request.until.map(Vec::from)),
        keys_max: (request.keys_max as usize).min(SCAN_KEYS_MAX),
        bytes_max,
    })
}

async fn answer(
    wanted: Arc<Wanted>,
    reads: Arc<KeyReads>,
    answers: Arc<AnswerMemory>,
) -> (ScanKeysResponse, AnswerRoom) {
    let mut bytes = ANSWER_BYTES + wanted.bytes_max;
    loop {
        // A request that waits for a rebuild holds no memory.
        reads.catch_up([&wanted.partition]).await;
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
fn read(wanted: &Wanted, mut room: AnswerRoom) -> Result<(ScanKeysResponse, AnswerRoom), usize> {
    let Wanted {
        partition,
        range,
        keys_max,
        bytes_max,
    } = wanted;
    let found = match partition.scan(range, *keys_max, *bytes_max) {
        Ok(found) => found,
        Err(error) => return Ok((refused_read(error).into(), room)),
    };
    let next = found.next.map(Bytes::from);
    let mut rest = ANSWER_BYTES + 2 * next.as_ref().map_or(0, |key| key.len());
    let mut held_bytes = 0;
    let mut keys = Vec::with_capacity(found.entries.len());
    for entry in found.entries {
        let key = ScannedKey {
            key: entry.key.into(),
            newest: wire_version(entry.version),
        };
        rest += KEY_OVERHEAD_BYTES + bytes_in_answer(&key.key);
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
    let response = ScanKeysResponse {
        keys,
        next,
        ..ScanKeysResponse::default()
    };
    Ok((response, room))
}
