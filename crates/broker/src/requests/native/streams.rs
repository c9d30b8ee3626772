//! Streams: created, described, listed, grown, deleted.

use std::sync::Arc;

use millstream_base::{ByteSize, Timestamp};
use millstream_log::{
    CompactionStats, Durability, HOLDS_MAX, LogError, PartitionInfo, Stream, StreamConfig,
};
use millstream_wire::native::{
    self, CreateStreamRequest, CreateStreamResponse, DeleteStreamRequest, DeleteStreamResponse,
    DescribeStreamRequest, DescribeStreamResponse, FurtherSetting, GrowStreamRequest,
    GrowStreamResponse, LaneCompaction, LaneDescription, ListStreamsRequest, ListStreamsResponse,
    ListedStream, StreamSettings,
};
use millstream_wire::{ResponseError, StrBytes};

use super::blocking;
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::native::find::{stream_named, stream_of};
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, PAGE_MAX, TOPIC_BYTES};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message};
use crate::requests::rights::{Check, Checked, TOPIC_DENIED, need_stream, need_topic};
use crate::security::Operation;

/// The most streams in one answer.
const STREAMS_MAX: usize = 1000;

/// A partition of a DescribeStream answer, with a fault.
const DESCRIBED_LANE_BYTES: usize = 1 << 10;

/// Creates a stream.
impl Handle for CreateStreamRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        match client.access().may_create(&self.name) {
            true => Ok(()),
            false => Err(TOPIC_DENIED),
        }
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(1)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, create_stream)
    }
}

/// Returns a stream's id, settings and lanes.
impl Handle for DescribeStreamRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        match &self.name {
            Some(name) => need_topic(client, Operation::Describe, name),
            None => need_stream(client, Operation::Describe, self.stream),
        }
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let stream = match &self.name {
            Some(name) => context.client.stream(name),
            None => context.broker.log().stream_by_id(self.stream),
        };
        let stream = stream.ok().filter(|_| self.with_lanes);
        let lanes = stream.map_or(0, |stream| stream.partition_count() as usize);
        context.list(lanes + HOLDS_MAX, DESCRIBED_LANE_BYTES)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, describe_stream)
    }
}

/// Lists the streams.
impl Handle for ListStreamsRequest {
    const CHECKS: &'static [Check] = &[Check::Handler];

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let count = PAGE_MAX.min(self.streams_max as usize);
        context.list(count, TOPIC_BYTES)
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        blocking(broker, (self, client.access().clone()), list_streams)
    }
}

/// Adds streamlets to a stream.
impl Handle for GrowStreamRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Alter, &self.name)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(1)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, grow_stream)
    }
}

/// Deletes a stream.
impl Handle for DeleteStreamRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Delete, &self.name)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(1)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, delete_stream)
    }
}

/// Creates a stream.
fn create_stream(
    broker: &Broker,
    request: CreateStreamRequest,
) -> Result<CreateStreamResponse, Refused> {
    let config = config_of(request.settings)?;
    check_lanes(broker, config.streamlets, config.lanes)
        .map_err(|why| Refused::new(ResponseError::InvalidConfig, why))?;
    match broker.log().create_stream(&request.name, config) {
        Ok(stream) => {
            broker.groups().topics_changed();
            Ok(created(&stream, true))
        }
        Err(LogError::Exists { .. }) if request.or_existing => {
            let stream = stream_named(broker.log(), &request.name)?;
            Ok(created(&stream, false))
        }
        Err(error) => Err(error.into()),
    }
}

fn created(stream: &Stream, is_new: bool) -> CreateStreamResponse {
    CreateStreamResponse {
        stream: stream.id(),
        is_new,
        ..CreateStreamResponse::default()
    }
}

/// Checks the number of partitions. Kafka's clients see all of them, so a stream has no more than a
/// topic may have.
fn check_lanes(broker: &Broker, streamlets: u32, lanes: u32) -> Result<(), String> {
    let max = broker.config().partitions_max;
    match u64::from(streamlets) * u64::from(lanes) {
        count if (1..=u64::from(max)).contains(&count) => Ok(()),
        _ => Err(format!(
            "a stream has 1 to {max} partitions over all streamlets"
        )),
    }
}

fn config_of(settings: StreamSettings) -> Result<StreamConfig, Refused> {
    let mut config = StreamConfig {
        streamlets: settings.streamlets,
        lanes: settings.lanes,
        virtual_logs: settings.virtual_logs,
        durability: match settings.durability {
            native::Durability::Sync => Durability::Sync,
            native::Durability::Written => Durability::Written,
            native::Durability::Async => Durability::Async,
            native::Durability::Memory => Durability::Memory,
        },
        group_segments: settings.group_segments,
        segment: settings.segment_bytes,
        retention_ms: settings.retention_ms,
        retention: settings.retention_bytes,
        chunk_bytes_max: settings.chunk_bytes_max,
        ..StreamConfig::default()
    };
    for setting in settings.further {
        let name = setting.name.to_string();
        if config.settings.contains_key(&name) {
            let message = format!("setting {name} is given twice");
            return Err(Refused::new(ResponseError::InvalidConfig, message));
        }
        config.settings.insert(name, setting.value.to_string());
    }
    Ok(config)
}

fn settings_of(config: StreamConfig) -> StreamSettings {
    let further = config.settings.into_iter().map(|(name, value)| {
        let name = StrBytes::from_string(name);
        let value = StrBytes::from_string(value);
        FurtherSetting { name, value }
    });
    StreamSettings {
        streamlets: config.streamlets,
        lanes: config.lanes,
        virtual_logs: config.virtual_logs,
        durability: match config.durability {
            Durability::Sync => native::Durability::Sync,
            Durability::Written => native::Durability::Written,
            Durability::Async => native::Durability::Async,
            Durability::Memory => native::Durability::Memory,
        },
        group_segments: config.group_segments,
        segment_bytes: config.segment,
        retention_ms: config.retention_ms,
        retention_bytes: config.retention,
        chunk_bytes_max: config.chunk_bytes_max,
        further: further.collect(),
    }
}

/// Describes a stream, and its partitions if the request asks for them: there may be many.
fn describe_stream(
    broker: &Broker,
    request: DescribeStreamRequest,
) -> Result<DescribeStreamResponse, Refused> {
    let stream = match &request.name {
        Some(name) => stream_named(broker.log(), name)?,
        None => stream_of(broker.log(), request.stream)?,
    };
    let lanes = match request.with_lanes {
        true => stream
            .info()
            .partitions
            .into_iter()
            .map(describe_lane)
            .collect(),
        false => Vec::new(),
    };
    let names = stream.hold_names().into_iter();
    Ok(DescribeStreamResponse {
        name: StrBytes::from_string(stream.name().to_owned()),
        stream: stream.id(),
        uuid: stream.uuid(),
        settings: settings_of(stream.config()),
        chunk_bytes_max: ByteSize(stream.chunk_bytes_max() as u64),
        lanes,
        holds: names.map(StrBytes::from_string).collect(),
        ..DescribeStreamResponse::default()
    })
}

fn describe_lane(lane: PartitionInfo) -> LaneDescription {
    LaneDescription {
        partition: lane.partition,
        streamlet: lane.streamlet,
        lane: lane.lane,
        earliest: lane.earliest,
        durable: lane.durable,
        stable: lane.stable,
        oldest_transaction: lane.oldest_transaction.unwrap_or(Timestamp(-1)),
        groups: u32::try_from(lane.groups).unwrap_or(u32::MAX),
        bytes: ByteSize(lane.bytes),
        cut_bytes: ByteSize(lane.truncated_bytes),
        fault: lane.fault.map(StrBytes::from_string),
        misplaced: lane.keys.map_or(0, |keys| keys.misplaced),
        compaction: lane.compaction.map(describe_compaction),
    }
}

fn describe_compaction(stats: CompactionStats) -> LaneCompaction {
    LaneCompaction {
        total_bytes: ByteSize(stats.total_bytes),
        dirty_bytes: ByteSize(stats.dirty_bytes),
        compacted_to: stats.compacted_to,
        compacted_at: stats.compacted_at.unwrap_or(Timestamp(-1)),
        passes: stats.passes,
        bytes_before: ByteSize(stats.bytes_before),
        bytes_after: ByteSize(stats.bytes_after),
        failed: stats.failed,
        fault: stats.fault.map(StrBytes::from_string),
    }
}

/// Lists streams, a page at a time. Only streams that the client may know of count for the page, so no page is empty before the
/// last one.
fn list_streams(
    broker: &Broker,
    (request, access): (ListStreamsRequest, Access),
) -> Result<ListStreamsResponse, Refused> {
    let is_listed = |name: &String| {
        let is_behind = request.after.as_ref().is_none_or(|after| **name > **after);
        is_behind && name.starts_with(&*request.prefix) && access.sees_topic(name)
    };
    let names = broker.log().stream_names().into_iter().filter(is_listed);
    let mut streams = names.filter_map(|name| {
        // A stream that was deleted meanwhile is not listed.
        let stream = broker.log().stream(&name).ok()?;
        let config = stream.config();
        Some(ListedStream {
            name: StrBytes::from_string(name),
            stream: stream.id(),
            uuid: stream.uuid(),
            streamlets: config.streamlets,
            lanes: config.lanes,
        })
    });
    let streams_max = (request.streams_max as usize).min(STREAMS_MAX);
    Ok(ListStreamsResponse {
        streams: streams.by_ref().take(streams_max).collect(),
        has_more: streams.next().is_some(),
        ..ListStreamsResponse::default()
    })
}

/// Gives a stream more streamlets or lanes.
fn grow_stream(broker: &Broker, request: GrowStreamRequest) -> Result<GrowStreamResponse, Refused> {
    let config = stream_named(broker.log(), &request.name)?.config();
    let (streamlets, lanes) = (request.streamlets, request.lanes);
    // Each growth is stored for ever, so one without an effect is not.
    if (streamlets, lanes) == (config.streamlets, config.lanes) {
        return Ok(GrowStreamResponse::default());
    }
    let refuse = |why: String| Refused::new(ResponseError::InvalidPartitions, why);
    check_lanes(broker, streamlets, lanes).map_err(refuse)?;
    match broker.log().grow_stream(&request.name, streamlets, lanes) {
        Ok(()) => {
            broker.groups().topics_changed();
            Ok(GrowStreamResponse::default())
        }
        Err(error @ LogError::BadSetting { .. }) => Err(refuse(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Deletes a stream, with all that is in it.
fn delete_stream(
    broker: &Broker,
    request: DeleteStreamRequest,
) -> Result<DeleteStreamResponse, Refused> {
    stream_named(broker.log(), &request.name)?;
    broker.log().delete_stream(&request.name)?;
    broker.shares().forget_missing();
    broker.groups().topics_changed();
    Ok(DeleteStreamResponse::default())
}
