//! Requests of shared groups, and requests that list groups and segments.

use kafka_protocol::protocol::StrBytes;
use millstream_base::{Cursor, GroupId, Position, SegmentIndex, StreamId, StreamletIndex};

use super::{native, nullable};

native! {
    /// Assigns the next groups of a streamlet to a consumer of a shared group (getNextGroups of kera, table
    /// 6.1). No other consumer of the shared group gets them until this consumer has finished or released them.
    NextGroupsRequest {
        /// The id of the stream.
        stream: StreamId,
        /// The number of the streamlet.
        streamlet: StreamletIndex,
        /// The name of the shared group.
        shared_group: StrBytes,
        /// The name of the consumer, unique within the shared group.
        consumer: StrBytes,
        /// The most groups in the answer.
        groups_max: u32,
    }

    /// Answers [`NextGroupsRequest`].
    NextGroupsResponse: Answer {
        /// A cursor for each group, in the order of their ids.
        cursors: Vec<Cursor>,
    }

    /// Commits positions of a shared group: in each group, all records before the cursor are finished. The
    /// broker never assigns a closed group again that is finished to its end.
    CommitCursorsRequest {
        /// The name of the shared group.
        shared_group: StrBytes,
        /// The consumer that holds the groups.
        consumer: StrBytes,
        /// The position that the consumer has finished, for each group.
        cursors: Vec<Cursor>,
    }

    /// Answers [`CommitCursorsRequest`] after the positions are durable.
    CommitCursorsResponse: Answer {
        /// One element for each cursor, in their order; empty if the whole request failed.
        commits: Vec<CommittedCursor>,
    }

    /// The result for a cursor.
    #[derive(Default)]
    CommittedCursor {
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
    }

    /// Releases all groups of a consumer; other consumers get them from their committed positions on.
    ReleaseGroupsRequest {
        /// The id of the stream.
        stream: StreamId,
        /// The name of the shared group.
        shared_group: StrBytes,
        /// The consumer that gives up its groups.
        consumer: StrBytes,
    }

    /// Answers [`ReleaseGroupsRequest`].
    ReleaseGroupsResponse: Answer {
    }

    /// Returns the next segments of a group (getNextSegments of kera, table 6.1).
    NextSegmentsRequest {
        /// The id of the stream.
        stream: StreamId,
        /// The number of the streamlet.
        streamlet: StreamletIndex,
        /// The id of the group.
        group: GroupId,
        /// The first segment.
        from: SegmentIndex,
        /// The most segments in the answer.
        segments_max: u32,
    }

    /// Answers [`NextSegmentsRequest`].
    NextSegmentsResponse: Answer {
        /// The segments, in their order.
        segments: Vec<SegmentStart>,
    }

    /// The start of a segment.
    SegmentStart {
        /// The number of the segment in the group.
        segment: SegmentIndex,
        /// The position of its first byte in the group.
        position: Position,
    }

    /// Returns the range of stored groups of a streamlet (getAvailableGroups of kera, table 6.2).
    AvailableGroupsRequest {
        /// The id of the stream.
        stream: StreamId,
        /// The number of the streamlet.
        streamlet: StreamletIndex,
    }

    /// Answers [`AvailableGroupsRequest`].
    AvailableGroupsResponse: Answer {
        /// The first and the last group; null if there is none.
        groups: Option<GroupRange>,
    }

    /// Groups of a streamlet; their ids are in the order of their creation.
    GroupRange {
        /// The oldest group.
        first: GroupId,
        /// The newest group.
        last: GroupId,
    }

    /// Returns the range of segments of a group (getAvailableSegments of kera, table 6.2).
    AvailableSegmentsRequest {
        /// The id of the stream.
        stream: StreamId,
        /// The number of the streamlet.
        streamlet: StreamletIndex,
        /// The id of the group.
        group: GroupId,
    }

    /// Answers [`AvailableSegmentsRequest`].
    AvailableSegmentsResponse: Answer {
        /// The first and the last segment; null if there is none.
        segments: Option<SegmentRange>,
    }

    /// Segments of a group; their numbers are in the order of their creation.
    SegmentRange {
        /// The oldest segment.
        first: SegmentIndex,
        /// The newest segment.
        last: SegmentIndex,
    }
}

nullable!(GroupRange, SegmentRange);
