//! Groups and segments: handed out to consumers, and which there are.

use kafka_protocol::protocol::StrBytes;
use millstream_base::{Cursor, GroupId, Position, SegmentIndex, StreamId, StreamletIndex};

use super::{native, nullable};

native! {
    /// Has the next groups of a streamlet handed to a consumer (getNextGroups of kera, table 6.1).
    /// No other consumer of the application gets them until they are done or released.
    NextGroupsRequest {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletIndex,
        /// What consumers of the same task share.
        application: StrBytes,
        /// Who asks: unique within the application.
        consumer: StrBytes,
        /// How many at most.
        groups_max: u32,
    }

    /// Answers [`NextGroupsRequest`].
    #[derive(Default)]
    NextGroupsResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// Where to read each, in the order of their ids.
        cursors: Vec<Cursor>,
    }

    /// Takes note that everything before some cursors is done, each in its group. A closed group that
    /// is done to its end is never handed out again.
    CommitCursorsRequest {
        /// What consumers of the same task share.
        application: StrBytes,
        /// Who the groups were handed to.
        consumer: StrBytes,
        /// How far they are done.
        cursors: Vec<Cursor>,
    }

    /// Answers [`CommitCursorsRequest`], when the positions are durable.
    #[derive(Default)]
    CommitCursorsResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// What is wrong with the whole request: 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// One for each cursor, in their order; none if the whole request is refused.
        commits: Vec<CommittedCursor>,
    }

    /// What became of a commit.
    #[derive(Default)]
    CommittedCursor {
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
    }

    /// Gives all groups of a consumer back; others get them from where they were committed.
    ReleaseGroupsRequest {
        /// The stream.
        stream: StreamId,
        /// What consumers of the same task share.
        application: StrBytes,
        /// Whose groups.
        consumer: StrBytes,
    }

    /// Answers [`ReleaseGroupsRequest`].
    #[derive(Default)]
    ReleaseGroupsResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
    }

    /// Asks for the next segments of a group (getNextSegments of kera, table 6.1).
    NextSegmentsRequest {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletIndex,
        /// The group.
        group: GroupId,
        /// The first one that is asked for.
        from: SegmentIndex,
        /// How many at most.
        segments_max: u32,
    }

    /// Answers [`NextSegmentsRequest`].
    #[derive(Default)]
    NextSegmentsResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// Segments, in their order.
        segments: Vec<SegmentStart>,
    }

    /// Where a segment starts.
    SegmentStart {
        /// Its number in the group.
        segment: SegmentIndex,
        /// The position in the group of its first byte.
        position: Position,
    }

    /// Asks which groups of a streamlet are stored (getAvailableGroups of kera, table 6.2).
    AvailableGroupsRequest {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletIndex,
    }

    /// Answers [`AvailableGroupsRequest`].
    #[derive(Default)]
    AvailableGroupsResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// The first and the last one; null if there is none.
        groups: Option<GroupRange>,
    }

    /// Groups of a streamlet, which have ids in the order of their creation.
    GroupRange {
        /// The oldest.
        first: GroupId,
        /// The newest.
        last: GroupId,
    }

    /// Asks which segments a group has (getAvailableSegments of kera, table 6.2).
    AvailableSegmentsRequest {
        /// The stream.
        stream: StreamId,
        /// The streamlet.
        streamlet: StreamletIndex,
        /// The group.
        group: GroupId,
    }

    /// Answers [`AvailableSegmentsRequest`].
    #[derive(Default)]
    AvailableSegmentsResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// The first and the last one; null if there is none.
        segments: Option<SegmentRange>,
    }

    /// Segments of a group, which have numbers in the order of their creation.
    SegmentRange {
        /// The oldest.
        first: SegmentIndex,
        /// The newest.
        last: SegmentIndex,
    }
}

nullable!(GroupRange, SegmentRange);
