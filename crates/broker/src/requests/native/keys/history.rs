//! Reads the older versions of a key.

use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{Offset, partition_of_key};
use millstream_log::{HISTORY_VERSIONS_MAX, HistoryVersion, Log, StreamPartition};
use millstream_wire::ResponseError;
use millstream_wire::native::{KeyHistoryRequest, KeyHistoryResponse, PastVersion};

use super::check_key;
use super::look_up::{
    ANSWER_BYTES, AnswerBytes, KEY_OVERHEAD_BYTES, LookUp, Unread, bytes_max, reply,
};
use crate::answer_memory::AnswerRoom;
use crate::broker::Broker;
use crate::client::Client;
use crate::key_reads::OLDER_READ_BYTES_MAX;
use crate::native::keyed_stream;
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::{Operation, Traffic};

/// Returns the stored versions of a key, newest first.
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
        let bytes_max = bytes_max(client, self.bytes_max);
        match wanted(broker.log(), self, bytes_max) {
            Ok(wanted) => reply(broker, wanted),
            Err(refused) => refused.answer::<KeyHistoryResponse>().into(),
        }
    }
}

/// The stored versions of a key, newest first.
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

impl LookUp for Wanted {
    type Answer = KeyHistoryResponse;

    fn partitions(&self) -> Vec<StreamPartition> {
        vec![self.partition.clone()]
    }

    fn is_older(&self) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        ANSWER_BYTES + self.bytes_max
    }

    fn read(&self, room: &mut AnswerRoom) -> Result<KeyHistoryResponse, Unread> {
        let found = self.partition.key_history(
            &self.key,
            self.before,
            self.versions_max,
            self.bytes_max,
            OLDER_READ_BYTES_MAX,
        )?;
        let versions = found.versions.into_iter().map(wire_version);
        let mut versions: Vec<PastVersion> = versions.collect();
        let mut bytes = AnswerBytes::new(ANSWER_BYTES);
        for version in &versions {
            bytes.add(KEY_OVERHEAD_BYTES);
            bytes.add_value(version.value.as_deref().unwrap_or_default());
        }
        let values = versions.iter_mut();
        bytes.take(room, values.filter_map(|version| version.value.as_mut()))?;
        Ok(KeyHistoryResponse {
            partition: self.partition.index(),
            versions,
            next: found.next,
            lacks_older: found.lacks_older,
            ..KeyHistoryResponse::default()
        })
    }
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
