//! Descriptions of streams and partitions, as the log's users get them.

use millstream_base::{LaneIndex, Offset, StreamId, StreamletIndex, Timestamp};
use serde::Serialize;
use uuid::Uuid;

use crate::compact::stats::CompactionStats;
use crate::keys::table::KeyStats;
use crate::lane::LaneState;
use crate::settings::config::StreamConfig;

/// A description of a stream.
#[derive(Debug, Clone, Serialize)]
pub struct StreamInfo {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: StreamId,
    /// Its identity, which no other stream ever has, also of the same name. Nil for
    /// the log's own.
    pub uuid: Uuid,
    /// Its settings.
    pub config: StreamConfig,
    /// Its partitions, by index.
    pub partitions: Vec<PartitionInfo>,
    /// The names of its holds.
    pub holds: Vec<String>,
}

/// A description of a partition.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionInfo {
    /// Its number in the stream, from 0.
    pub partition: u32,
    /// The streamlet that it belongs to.
    pub streamlet: StreamletIndex,
    /// Its number in the streamlet.
    pub lane: LaneIndex,
    /// The offset of the first record that is stored.
    pub earliest: Offset,
    /// The offset behind the last durable record.
    pub durable: Offset,
    /// The offset before which all transactions have ended for good. Readers of committed records, and compaction, go no
    /// further.
    pub stable: Offset,
    /// When the oldest open transaction began; `None` without one.
    pub oldest_transaction: Option<Timestamp>,
    /// Groups that are stored.
    pub groups: usize,
    /// Durable bytes.
    pub bytes: u64,
    /// Bytes that the start truncated from the end of its last file, which a crash had left incomplete.
    #[serde(rename = "cut_bytes")]
    pub truncated_bytes: u64,
    /// The failure after which it refuses writes, or the damage that a read has found.
    pub fault: Option<String>,
    /// The size of its key index; `None` before the first lookup of a key after a start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeyStats>,
    /// Records of which an index of secondary keys leaves some out, since they have more than
    /// [`SECONDARY_KEYS_MAX`](millstream_record::SECONDARY_KEYS_MAX) or too long ones; `None` before the first use of an index after
    /// a start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partly_indexed: Option<u64>,
    /// Its compaction; `None` if it is not compacted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionStats>,
}

pub fn partition_info(
    partition: u32,
    streamlet: StreamletIndex,
    lane: LaneIndex,
    state: Option<&LaneState>,
) -> PartitionInfo {
    let groups = state.map(LaneState::groups).unwrap_or_default();
    let fault = state.and_then(|state| state.fault().or(state.read_fault()));
    PartitionInfo {
        partition,
        streamlet,
        lane,
        earliest: state.map_or(Offset(0), LaneState::earliest_offset),
        durable: state.map_or(Offset(0), LaneState::durable_offset),
        stable: state.map_or(Offset(0), LaneState::last_stable_offset),
        oldest_transaction: state.and_then(LaneState::oldest_transaction),
        groups: groups.len(),
        bytes: groups.iter().map(|group| group.durable().0).sum(),
        truncated_bytes: state.map_or(0, |state| state.truncated_bytes),
        fault: fault.map(ToString::to_string),
        keys: state.and_then(LaneState::key_stats),
        partly_indexed: state.and_then(LaneState::partly_indexed),
        compaction: state.and_then(LaneState::compaction_stats),
    }
}
