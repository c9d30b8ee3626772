//! Reads the older versions of a key.

use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{Offset, partition_of_key};
use millstream_log::{HISTORY_VERSIONS_MAX, HistoryVersion, Log, StreamPartition};
use millstream_wire::native::{KeyHistoryRequest, KeyHistoryResponse, PastVersion};
use millstream_wire::{ResponseError, SHARED_BYTES_MIN};

use super::{
    ANSWER_BYTES, COPIED_BYTES_MAX, KEY_OVERHEAD_BYTES, bytes_in_answer, check_key, hold_values,
    not_done, refused_read,
};
use crate::answer_memory::{AnswerMemory, AnswerRoom, Part};
use crate::broker::Broker;
use crate::client::Client;
use crate::key_reads::{KeyReads, OLDER_READ_BYTES_MAX};
use crate::native::keyed_stream;
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::{Operation, Traffic};

impl Handle for KeyHistoryRequest {
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
        history(broker, client, self)
    }
}

/// Returns the stored versions of a key, newest first.
fn history(broker: &Arc<Broker>, client: &Client, request: KeyHistoryRequest) -> Reply {
    let bytes_max = (request.bytes_max as usize).min(client.answer_bytes_max());
    let wanted = match wanted(broker.log(), request, bytes_max.min(COPIED_BYTES_MAX)) {
        Ok(wanted) => Arc::new(wanted),
        Err(refused) => return KeyHistoryResponse::from(refused).into(),
    };
    let (answers, reads) = (Arc::clone(broker.answers()), broker.key_reads());
    Reply::counted(answer(wanted, Arc::clone(reads), answers))
}

struct Wanted {
    partition: StreamPartition,
    key: Bytes,
    before: Offset,
    versions_max: usize,
    bytes_max: usize,
}

fn wanted(log: &Log, request: KeyHistoryRequest, bytes_max: usize) -> Result<Wanted, Refused> {
    if request.versions_max == 0 {
        return Err(Refused::new(
            ResponseError::InvalidRequest,
            "versions_max is 0, and must be at least 1",
        ));
    }
    check_key(&request.key)?;
    let stream = keyed_stream(log, &request.stream)?;
    let partition = partition_of_key(&request.key, stream.partition_count() as usize) as u32;
    Ok(Wanted {
        partition: stream.partition(partition)?,
        key: request.key,
        before: request.before.unwrap_or(Offset(u64::MAX)),
        versions_max: (request.versions_max as usize).min(HISTORY_VERSIONS_MAX),
        bytes_max,
    })
}

async fn answer(
    wanted: Arc<Wanted>,
    reads: Arc<KeyReads>,
    answers: Arc<AnswerMemory>,
) -> (KeyHistoryResponse, AnswerRoom) {
    let mut bytes = ANSWER_BYTES + wanted.bytes_max;
    loop {
        // A request that waits for a rebuild or a thread holds no memory.
        reads.catch_up([&wanted.partition]).await;
        let thread = reads.thread_for_older().await;
        let room = answers.take(Part::Late, bytes).await;
        let wanted = Arc::clone(&wanted);
        let read = match thread {
            Some(thread) => thread.run(move || read(&wanted, room)).await,
            None => None,
        };
        match read {
            Some(Ok(answer)) => return answer,
            Some(Err(needed)) => bytes = needed,
            None => {
                let room = answers.take(Part::Late, ANSWER_BYTES).await;
                return (not_done().into(), room);
            }
        }
    }
}

/// Reads the versions. Fails with the size of the answer, if there is not enough memory for it now.
fn read(wanted: &Wanted, mut room: AnswerRoom) -> Result<(KeyHistoryResponse, AnswerRoom), usize> {
    let found = wanted.partition.key_history(
        &wanted.key,
        wanted.before,
        wanted.versions_max,
        wanted.bytes_max,
        OLDER_READ_BYTES_MAX,
    );
    let found = match found {
        Ok(found) => found,
        Err(error) => return Ok((refused_read(error).into(), room)),
    };
    let mut versions: Vec<PastVersion> = found.versions.into_iter().map(wire_version).collect();
    let (mut rest, mut held_bytes) = (ANSWER_BYTES, 0);
    for version in &versions {
        rest += KEY_OVERHEAD_BYTES;
        let value: &[u8] = version.value.as_deref().unwrap_or_default();
        match value.len() {
            large @ SHARED_BYTES_MIN.. => held_bytes += large,
            _ => rest += bytes_in_answer(value),
        }
    }
    if !room.grow(rest + held_bytes) {
        return Err(rest + held_bytes);
    }
    let values = versions.iter_mut();
    hold_values(
        &mut room,
        rest,
        values.filter_map(|version| version.value.as_mut()),
    );
    let response = KeyHistoryResponse {
        partition: wanted.partition.index(),
        versions,
        next: found.next,
        lacks_older: found.lacks_older,
        ..KeyHistoryResponse::default()
    };
    Ok((response, room))
}

fn wire_version(found: HistoryVersion) -> PastVersion {
    let HistoryVersion {
        version,
        is_deletion,
    } = found;
    PastVersion {
        version: version.offset,
        timestamp: version.timestamp,
        value: (!is_deletion).then_some(version.value),
        expires_at: version.expires_at,
    }
}
