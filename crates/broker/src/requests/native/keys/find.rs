//! Finds keys by their secondary keys.

use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{KeyRange, Log, SCAN_KEYS_MAX, SecondaryPosition, StreamPartition};
use millstream_wire::ResponseError;
use millstream_wire::native::{FindKeysRequest, FindKeysResponse, FoundKey, SecondaryPlace};

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

/// The most ranges of one request. Each may pass over some thousand candidates.
const RANGES_MAX: usize = 256;

/// Returns the newest versions of the keys that have certain secondary keys.
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
        let bytes_max = bytes_max(client, self.bytes_max);
        match wanted(broker.log(), self, bytes_max) {
            Ok(wanted) => reply(broker, wanted),
            Err(refused) => refused.answer::<FindKeysResponse>().into(),
        }
    }
}

/// Ranges of secondary keys, whose keys are read in their order.
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

impl LookUp for Wanted {
    type Answer = FindKeysResponse;

    fn partitions(&self) -> Vec<StreamPartition> {
        vec![self.partition.clone()]
    }

    fn index(&self) -> Option<&str> {
        Some(&self.index)
    }

    fn bytes(&self) -> usize {
        ANSWER_BYTES + self.bytes_max
    }

    fn read(&self, room: &mut AnswerRoom) -> Result<FindKeysResponse, Unread> {
        let found = self.partition.find_in(
            &self.index,
            &self.ranges,
            self.from.as_ref(),
            self.keys_max,
            self.bytes_max,
        )?;
        let next = found.next.map(|next| SecondaryPlace {
            secondary: next.secondary.into(),
            key: next.key.into(),
        });
        let next_bytes = |next: &SecondaryPlace| next.secondary.len() + next.key.len();
        let mut bytes = AnswerBytes::new(ANSWER_BYTES + 2 * next.as_ref().map_or(0, next_bytes));
        let mut keys = Vec::with_capacity(found.entries.len());
        for entry in found.entries {
            let key = FoundKey {
                secondary: Bytes::from(entry.secondary),
                key: entry.key.into(),
                newest: wire_version(entry.version),
            };
            let names = bytes_in_answer(&key.key) + bytes_in_answer(&key.secondary);
            bytes.add(KEY_OVERHEAD_BYTES + names);
            bytes.add_value(&key.newest.value);
            keys.push(key);
        }
        bytes.take(room, keys.iter_mut().map(|key| &mut key.newest.value))?;
        Ok(FindKeysResponse {
            keys,
            next,
            ..FindKeysResponse::default()
        })
    }
}
