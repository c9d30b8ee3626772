//! The streams of a server.

use millstream_base::{ByteSize, Timestamp};
use millstream_client::native::{
    self, DescribeStreamResponse, FurtherSetting, LaneCompaction, LaneDescription, StreamSettings,
};
use millstream_log::{CompactionStats, Durability, PartitionInfo, StreamConfig, StreamInfo};

use super::{Retention, Streams};
use crate::remote::Remote;

/// The names of the retention bounds in Kafka's protocol.
const RETENTION_MS: &str = "retention.ms";
const RETENTION_BYTES: &str = "retention.bytes";

impl Streams for Remote {
    fn create(&self, name: &str, config: StreamConfig) -> anyhow::Result<StreamInfo> {
        self.wait(self.client().create_stream(name, settings(config)))?;
        self.describe(name)
    }

    fn list(&self) -> anyhow::Result<Vec<StreamInfo>> {
        let listed = self.wait(self.client().streams(""))?;
        let infos = listed.iter().map(|stream| self.describe(&stream.name));
        infos.collect()
    }

    fn describe(&self, name: &str) -> anyhow::Result<StreamInfo> {
        self.stream(name).map(info)
    }

    fn grow(&self, name: &str, streamlets: u32, lanes: u32) -> anyhow::Result<()> {
        self.wait(self.client().grow_stream(name, streamlets, lanes))
    }

    fn set_retention(&self, name: &str, retention: Retention) -> anyhow::Result<()> {
        let ms = retention
            .ms
            .map_or_else(|| "-1".to_owned(), |ms| ms.to_string());
        let bytes = retention.bytes;
        let bytes = bytes.map_or_else(|| "-1".to_owned(), |ByteSize(bytes)| bytes.to_string());
        let changes = [(RETENTION_MS, Some(ms)), (RETENTION_BYTES, Some(bytes))];
        self.wait(self.client().alter_settings(name, &changes))
    }

    fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.wait(self.client().delete_stream(name))
    }
}

fn settings(config: StreamConfig) -> StreamSettings {
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
        further: config
            .settings
            .into_iter()
            .map(|(name, value)| FurtherSetting {
                name: name.into(),
                value: value.into(),
            })
            .collect(),
    }
}

fn info(stream: DescribeStreamResponse) -> StreamInfo {
    let settings = stream.settings;
    let further = settings.further.iter();
    StreamInfo {
        name: stream.name.to_string(),
        id: stream.stream,
        uuid: stream.uuid,
        config: StreamConfig {
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
            settings: further
                .map(|setting| (setting.name.to_string(), setting.value.to_string()))
                .collect(),
        },
        partitions: stream.lanes.into_iter().map(lane).collect(),
        holds: stream.holds.iter().map(|name| name.to_string()).collect(),
    }
}

fn lane(lane: LaneDescription) -> PartitionInfo {
    PartitionInfo {
        partition: lane.partition,
        streamlet: lane.streamlet,
        lane: lane.lane,
        earliest: lane.earliest,
        durable: lane.durable,
        stable: lane.stable,
        oldest_transaction: time(lane.oldest_transaction),
        groups: lane.groups as usize,
        bytes: lane.bytes.0,
        truncated_bytes: lane.cut_bytes.0,
        fault: lane.fault.map(|fault| fault.to_string()),
        // The answer does not have it.
        keys: None,
        partly_indexed: None,
        compaction: lane.compaction.map(compaction),
    }
}

/// The time of an answer, which is -1 if there is none.
fn time(time: Timestamp) -> Option<Timestamp> {
    (time >= Timestamp(0)).then_some(time)
}

fn compaction(lane: LaneCompaction) -> CompactionStats {
    CompactionStats {
        total_bytes: lane.total_bytes.0,
        dirty_bytes: lane.dirty_bytes.0,
        compacted_to: lane.compacted_to,
        compacted_at: time(lane.compacted_at),
        passes: lane.passes,
        bytes_before: lane.bytes_before.0,
        bytes_after: lane.bytes_after.0,
        failed: lane.failed,
        fault: lane.fault.map(|fault| fault.to_string()),
    }
}
