//! A stream, for the users of the log: its lanes, appends by streamlet, groups and segments.

use std::sync::Arc;

use millstream_base::{
    Cursor, GroupId, LaneIndex, Position, ProducerId, SegmentIndex, StreamId, StreamletIndex,
};
use millstream_record::{ChunkHeader, check};
use uuid::Uuid;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::handle::info::{StreamInfo, partition_info};
use crate::handle::partition::StreamPartition;
use crate::handle::readers::{ReadStart, StreamReader};
use crate::lane::LaneState;
use crate::lane::append::Appended;
use crate::produce::append::{append_to_lane, check_foreign};
use crate::settings::compaction::Compaction;
use crate::settings::config::StreamConfig;
use crate::settings::defaults::is_without_retention;
use crate::stream::{StreamKind, StreamState};

/// A stream of the log.
#[derive(Debug, Clone)]
pub struct Stream {
    pub(crate) core: Arc<Core>,
    pub(crate) stream: Arc<StreamState>,
}

impl Stream {
    /// Its id.
    pub fn id(&self) -> StreamId {
        self.stream.shared.id
    }

    /// Its identity: see [`StreamInfo::uuid`].
    pub fn uuid(&self) -> Uuid {
        self.stream.shared.uuid
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.stream.shared.name
    }

    /// Returns whether it is one of the node's internal streams.
    pub fn is_internal(&self) -> bool {
        self.stream.kind == StreamKind::Internal
    }

    /// Returns whether it was deleted after this handle was made.
    pub fn is_deleted(&self) -> bool {
        self.stream.is_removed()
    }

    /// Its settings.
    pub fn config(&self) -> StreamConfig {
        self.stream.shared.config.read().clone()
    }

    /// Returns when it is compacted, by its settings and the node's; `None` if each record stays until retention removes
    /// it.
    pub fn compaction(&self) -> Option<Compaction> {
        let of_user = self.stream.kind == StreamKind::Stream;
        let config = of_user.then(|| self.core.effective(self.stream.kind, self.config()))?;
        Compaction::of(&config.settings)
    }

    /// Returns whether retention removes none of its records: its policy is only [`COMPACT`](crate::COMPACT).
    pub fn is_without_retention(&self) -> bool {
        let config = self.core.effective(self.stream.kind, self.config());
        is_without_retention(&config.settings)
    }

    /// Returns whether records without a key are refused. Costs one atomic read.
    pub fn needs_keys(&self) -> bool {
        self.stream.shared.limits.needs_keys()
    }

    /// Returns the size of the largest chunk that it takes now.
    pub fn chunk_bytes_max(&self) -> usize {
        self.stream.shared.limits.chunk_bytes_max()
    }

    /// Returns its description.
    pub fn info(&self) -> StreamInfo {
        StreamInfo {
            name: self.name().to_owned(),
            id: self.id(),
            uuid: self.uuid(),
            config: self.config(),
            partitions: self.stream.each_lane(partition_info),
            holds: self.hold_names(),
        }
    }

    /// Offsets that were ever durable, in all of its lanes: those of records, and of markers of transactions.
    pub fn durable_offsets_ever(&self) -> u64 {
        let lanes = self.stream.made_lanes().into_iter();
        lanes.map(|lane| lane.durable_offset().0).sum()
    }

    /// Returns the leader epoch of each partition: see [`StreamPartition::leader_epoch`].
    pub fn leader_epochs(&self) -> Vec<i32> {
        let epoch = |lane: Option<&LaneState>| lane.map_or(0, |lane| lane.epochs.current());
        self.stream.each_lane(|_, _, _, lane| epoch(lane))
    }

    /// How many lanes it has.
    pub fn partition_count(&self) -> u32 {
        self.stream.partition_count()
    }

    /// The lane with this number among all of the stream: a partition for Kafka's clients.
    ///
    /// # Errors
    /// When there is none.
    pub fn partition(&self, partition: u32) -> Result<StreamPartition> {
        let lane = self.stream.partition(partition);
        let lane = lane.ok_or_else(|| self.unknown(format!("partition {partition}")))?;
        Ok(self.handle(lane))
    }

    /// The lane of a streamlet where a producer's chunks go.
    ///
    /// # Errors
    /// When there is no such streamlet.
    pub fn partition_for(
        &self,
        streamlet: StreamletIndex,
        producer: ProducerId,
    ) -> Result<StreamPartition> {
        let lane = self.stream.lane_for(streamlet, producer);
        let lane = lane.ok_or_else(|| self.unknown(format!("streamlet {streamlet}")))?;
        Ok(self.handle(lane))
    }

    /// Appends a chunk to the streamlet, in the lane of its producer.
    ///
    /// # Errors
    /// See [`StreamPartition::append`].
    pub fn append(
        &self,
        streamlet: StreamletIndex,
        chunk: &[u8],
    ) -> Result<(StreamPartition, Appended)> {
        self.append_of(streamlet, &check(chunk)?, chunk)
    }

    /// Appends a chunk that another program made: see [`StreamPartition::append_foreign`].
    ///
    /// # Errors
    /// See [`StreamPartition::append_foreign`].
    pub fn append_foreign(
        &self,
        streamlet: StreamletIndex,
        chunk: &[u8],
    ) -> Result<(StreamPartition, Appended)> {
        self.append_of(streamlet, &check_foreign(&self.core, chunk)?, chunk)
    }

    fn append_of(
        &self,
        streamlet: StreamletIndex,
        header: &ChunkHeader,
        chunk: &[u8],
    ) -> Result<(StreamPartition, Appended)> {
        let lane = self.partition_for(streamlet, header.producer_id)?;
        let appended = append_to_lane(&self.core, &lane.lane, header, chunk)?;
        Ok((lane, appended))
    }

    /// Appends chunks to streamlets (multiWriteChunks of kera, table 6.1), and waits until all are
    /// as durable as the stream's setting asks. One result for each chunk.
    pub fn append_all(&self, chunks: &[(StreamletIndex, &[u8])]) -> Vec<Result<Appended>> {
        let appended: Vec<Result<(StreamPartition, Appended)>> = chunks
            .iter()
            .map(|(streamlet, chunk)| self.append(*streamlet, chunk))
            .collect();
        appended
            .into_iter()
            .map(|result| {
                let (lane, appended) = result?;
                lane.acknowledge(&appended)?;
                Ok(appended)
            })
            .collect()
    }

    /// Reads all lanes in turn.
    pub fn reader(&self, from: ReadStart) -> StreamReader {
        StreamReader::new(Arc::clone(&self.core), Arc::clone(&self.stream), from)
    }

    /// Listens for the durable offset of any partition to move from now on: look for data, then wait.
    pub(crate) fn listen(&self) -> event_listener::EventListener {
        self.stream.shared.durable_moved.listen()
    }

    /// The same for partitions that are added.
    pub(crate) fn listen_for_lanes(&self) -> event_listener::EventListener {
        self.stream.shared.grown.listen()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The first and the last group of a streamlet (getAvailableGroups of kera, table 6.2).
    ///
    /// # Errors
    /// When there is no such streamlet.
    pub fn available_groups(
        &self,
        streamlet: StreamletIndex,
    ) -> Result<Option<(GroupId, GroupId)>> {
        let lanes = self.streamlet(streamlet)?;
        let first = lanes
            .iter()
            .filter_map(|lane| lane.first_group())
            .map(|group| group.id)
            .min();
        let last = lanes
            .iter()
            .filter_map(|lane| lane.last_group())
            .map(|group| group.id)
            .max();
        Ok(first.zip(last))
    }

    /// The first and the last segment of a group (getAvailableSegments of kera, table 6.2), and of
    /// which the positions are (getNextSegments, table 6.1).
    ///
    /// # Errors
    /// When there is no such streamlet or group.
    pub fn available_segments(
        &self,
        streamlet: StreamletIndex,
        group: GroupId,
    ) -> Result<Option<(SegmentIndex, SegmentIndex)>> {
        let group = self.group(streamlet, group)?;
        group.load_segments(&self.core.dir)?;
        let last = group.segment_count().checked_sub(1);
        Ok(last.map(|last| (SegmentIndex(0), SegmentIndex(last))))
    }

    /// A cursor at the start of a group.
    pub fn group_cursor(&self, streamlet: StreamletIndex, group: GroupId) -> Cursor {
        Cursor {
            stream: self.id(),
            streamlet,
            group,
            segment: SegmentIndex(0),
            position: Position(0),
        }
    }

    /// A cursor at the start of a segment.
    ///
    /// # Errors
    /// When there is no such streamlet, group or segment.
    pub fn segment_cursor(
        &self,
        streamlet: StreamletIndex,
        group: GroupId,
        segment: SegmentIndex,
    ) -> Result<Cursor> {
        let state = self.group(streamlet, group)?;
        state.load_segments(&self.core.dir)?;
        let position = state
            .segment_base(segment)
            .ok_or_else(|| self.unknown(format!("segment {segment} in group {group}")))?;
        Ok(state.cursor(position))
    }

    /// The lane that a group is part of.
    ///
    /// # Errors
    /// When there is no such streamlet or group.
    pub fn partition_of_group(
        &self,
        streamlet: StreamletIndex,
        group: GroupId,
    ) -> Result<StreamPartition> {
        let mut lanes = self.streamlet(streamlet)?.into_iter();
        let lane = lanes.find(|lane| lane.group(group).is_some());
        let unknown = || self.unknown(format!("group {group} in streamlet {streamlet}"));
        Ok(self.handle(lane.ok_or_else(unknown)?))
    }

    fn group(&self, streamlet: StreamletIndex, group: GroupId) -> Result<Arc<crate::group::Group>> {
        let lanes = self.streamlet(streamlet)?;
        let found = lanes.iter().find_map(|lane| lane.group(group));
        found.ok_or_else(|| self.unknown(format!("group {group} in streamlet {streamlet}")))
    }

    pub(crate) fn streamlet(&self, streamlet: StreamletIndex) -> Result<Vec<Arc<LaneState>>> {
        let lanes = self.stream.streamlet(streamlet);
        lanes.ok_or_else(|| self.unknown(format!("streamlet {streamlet}")))
    }

    pub(crate) fn lane(
        &self,
        streamlet: StreamletIndex,
        lane: LaneIndex,
    ) -> Result<Arc<LaneState>> {
        let found = self.stream.lane(streamlet, lane);
        found.ok_or_else(|| self.unknown(format!("lane {lane} in streamlet {streamlet}")))
    }

    fn unknown(&self, what: String) -> LogError {
        LogError::UnknownPartition {
            stream: self.name().to_owned(),
            what,
        }
    }

    fn handle(&self, lane: Arc<LaneState>) -> StreamPartition {
        StreamPartition {
            core: Arc::clone(&self.core),
            lane,
        }
    }
}
