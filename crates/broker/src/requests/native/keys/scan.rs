//! Reads ranges of keys.

use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{KeyRange, Log, SCAN_KEYS_MAX, StreamPartition};
use millstream_wire::ResponseError;
use millstream_wire::native::{ScanKeysRequest, ScanKeysResponse, ScannedKey};

use super::look_up::{
    ANSWER_BYTES, AnswerBytes, KEY_OVERHEAD_BYTES, LookUp, Unread, bytes_in_answer, bytes_max,
    reply,
};
use super::{check_key, wire_version};
use crate::answer_memory::AnswerRoom;
use crate::broker::Broker;
use crate::client::Client;
use crate::native::keyed_stream;
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::{Operation, Traffic};

/// Returns the newest versions of a range of keys, in the order of the keys.
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
        let bytes_max = bytes_max(client, self.bytes_max);
        match range_of(broker.log(), self, bytes_max) {
            Ok(wanted) => reply(broker, wanted),
            Err(refused) => refused.answer::<ScanKeysResponse>().into(),
        }
    }
}

/// A range of keys, which are read in the order of their bytes.
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

impl LookUp for Wanted {
    type Answer = ScanKeysResponse;

    fn partitions(&self) -> Vec<StreamPartition> {
        vec![self.partition.clone()]
    }

    fn bytes(&self) -> usize {
        ANSWER_BYTES + self.bytes_max
    }

    fn read(&self, room: &mut AnswerRoom) -> Result<ScanKeysResponse, Unread> {
        let found = self
            .partition
            .scan(&self.range, self.keys_max, self.bytes_max)?;
        let next = found.next.map(Bytes::from);
        let mut bytes = AnswerBytes::new(ANSWER_BYTES + 2 * next.as_ref().map_or(0, Bytes::len));
        let mut keys = Vec::with_capacity(found.entries.len());
        for entry in found.entries {
            let key = ScannedKey {
                key: entry.key.into(),
                newest: wire_version(entry.version),
            };
            bytes.add(KEY_OVERHEAD_BYTES + bytes_in_answer(&key.key));
            bytes.add_value(&key.newest.value);
            keys.push(key);
        }
        bytes.take(room, keys.iter_mut().map(|key| &mut key.newest.value))?;
        Ok(ScanKeysResponse {
            keys,
            next,
            ..ScanKeysResponse::default()
        })
    }
}
