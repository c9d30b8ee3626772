//! Watches: subscriptions to the changes of keys. They deliver as all subscriptions do, and end where a change would be missed.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_base::{KeyRange, Offset};
use millstream_log::{Stream, StreamPartition, Subscription};
use millstream_wire::ResponseError;
use millstream_wire::native::{WatchKeysRequest, WatchKeysResponse, WatchStart, WatchedPartition};

use super::{check_room, hand_out, handed_bytes};
use crate::broker::Broker;
use crate::client::Client;
use crate::native::keyed_stream;
use crate::native::refused::{Refused, answered};
use crate::push::outlet::Outlet;
use crate::push::shared::Terms;
use crate::push::subscriptions::Reads;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::Operation;

/// The longest key that bounds a watched range: each subscription holds two.
const WATCHED_KEY_BYTES_MAX: usize = 16 << 10;

/// Begins a subscription to the changes of keys.
impl Handle for WatchKeysRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Read, &self.stream)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let stream = context.client.stream(&self.stream).ok();
        context.elements(stream.map_or(0, |stream| stream.partition_count() as usize))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        watch_keys(broker, client, &self)
    }
}

/// Begins a subscription to the changes of keys.
fn watch_keys(broker: &Arc<Broker>, client: &mut Client, request: &WatchKeysRequest) -> Reply {
    answered(begin(broker, client, request)).into()
}

fn begin(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: &WatchKeysRequest,
) -> Result<WatchKeysResponse, Refused> {
    let range = range_of(request)?;
    let stream = keyed_stream(broker.log(), &request.stream)?;
    check_same(&stream, request)?;
    check_room(client, partition_count(&stream, request))?;
    let watched = partitions_of(&stream, request)?;
    let lanes = watched.iter().map(|(partition, position)| WatchStart {
        partition: partition.index(),
        position: *position,
        epoch: partition.watch_epoch(),
    });
    let lanes = lanes.collect();
    let ttl = watched.first().and_then(|(partition, _)| partition.ttl());
    let outlet = Outlet::new(Subscription::of_keys(watched, &range));
    let mut reads = Reads {
        partitions: partition_count(&stream, request),
        ..Reads::default()
    };
    reads.streams.insert(stream.name().to_owned());
    let terms = Terms {
        layout: request.layout,
        handed_bytes: handed_bytes(request.bytes_max),
        ahead_bytes: request.ahead_bytes,
    };
    let begun = hand_out(broker, client, reads, vec![outlet], terms)?;
    Ok(WatchKeysResponse {
        subscription: begun.subscription,
        stream_id: stream.uuid(),
        ttl_ms: ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)),
        lanes,
        shared: begun.shared,
        not_shared: begun.not_shared,
        ..WatchKeysResponse::default()
    })
}

fn range_of(request: &WatchKeysRequest) -> Result<KeyRange, Refused> {
    let until = request.until.as_deref();
    let longest = request.from.len().max(until.map_or(0, <[u8]>::len));
    if longest > WATCHED_KEY_BYTES_MAX {
        let message = format!(
            "a key of the watched range has {longest} bytes, and may have at most {WATCHED_KEY_BYTES_MAX}"
        );
        return Err(Refused::new(ResponseError::InvalidRequest, message));
    }
    Ok(KeyRange::new(
        request.from.to_vec(),
        until.map(<[u8]>::to_vec),
    ))
}

/// Checks that positions are of this stream, and not of an earlier one of its name.
fn check_same(stream: &Stream, request: &WatchKeysRequest) -> Result<(), Refused> {
    let has_positions = request.partitions.iter().any(|it| it.position.is_some());
    match request.stream_id {
        Some(id) if id != stream.uuid() => {
            let message = format!(
                "stream {} was deleted and made again since the position: begin again with a snapshot",
                stream.name()
            );
            Err(Refused::new(ResponseError::UnknownTopicId, message))
        }
        None if has_positions => Err(Refused::new(
            ResponseError::InvalidRequest,
            "a position needs the id of its stream",
        )),
        _ => Ok(()),
    }
}

/// Returns the number of watched partitions.
fn partition_count(stream: &Stream, request: &WatchKeysRequest) -> usize {
    match request.partitions.len() {
        0 => stream.partition_count() as usize,
        named => named,
    }
}

/// Returns the watched partitions, each with the offset that the watch begins at.
fn partitions_of(
    stream: &Stream,
    request: &WatchKeysRequest,
) -> Result<Vec<(StreamPartition, Offset)>, Refused> {
    if request.partitions.is_empty() {
        let partitions = (0..stream.partition_count()).map(|index| stream.partition(index));
        return partitions
            .map(|partition| partition.map(from_now).map_err(Refused::from))
            .collect();
    }
    let mut known = HashSet::new();
    let watched = request.partitions.iter().map(|asked| {
        let WatchedPartition {
            partition,
            position,
            epoch,
        } = *asked;
        if !known.insert(partition) {
            let message = format!("the request names partition {partition} twice");
            return Err(Refused::new(ResponseError::InvalidRequest, message));
        }
        let partition = stream.partition(partition)?;
        let Some(position) = position else {
            return Ok(from_now(partition));
        };
        partition.check_watch(position, epoch)?;
        Ok((partition, position))
    });
    watched.collect()
}

fn from_now(partition: StreamPartition) -> (StreamPartition, Offset) {
    let end = partition.last_stable_offset();
    (partition, end)
}
