//! Native requests, each with its rights.

use bytes::Bytes;
use millstream_base::{
    ByteSize, Cursor, GroupId, Position, SegmentIndex, StreamId, StreamletIndex,
};
use millstream_broker::security::Operation;
use millstream_wire::StrBytes;
use millstream_wire::native::*;

use Operation::*;

use super::{Case, case, group, topic};
use crate::push::{lanes, of_shared_group, subscribe_request};

/// Native requests about stream `t`, with this id.
pub fn native_cases(stream: StreamId) -> Vec<Case> {
    let (streamlet, group_of_segments) = (StreamletIndex(0), GroupId(0));
    let cursor = Cursor {
        stream,
        streamlet,
        group: group_of_segments,
        segment: SegmentIndex(0),
        position: Position(0),
    };
    let name = || StrBytes::from_static_str("t");
    let shared_group = || StrBytes::from_static_str("g");
    let consumer = || StrBytes::from_static_str("c");
    let created = CreateStreamRequest {
        name: "made-natively".into(),
        settings: StreamSettings::default(),
        or_existing: true,
    };
    let named = DescribeStreamRequest {
        name: Some(name()),
        stream: StreamId(0),
        with_lanes: false,
    };
    let by_id = DescribeStreamRequest {
        name: None,
        stream,
        ..named.clone()
    };
    let grown = GrowStreamRequest {
        name: name(),
        streamlets: 1,
        lanes: 1,
    };
    let deleted = DeleteStreamRequest {
        name: "none".into(),
    };
    let chunks = Vec::new();
    let read = ReadChunksRequest {
        cursors: vec![cursor],
        bytes_max: 1,
        bytes_min: 0,
        wait_ms_max: 0,
    };
    let next = NextGroupsRequest {
        stream,
        streamlet,
        shared_group: shared_group(),
        consumer: consumer(),
        groups_max: 1,
    };
    let committed = CommitCursorsRequest {
        shared_group: shared_group(),
        consumer: consumer(),
        cursors: vec![cursor],
    };
    let released = ReleaseGroupsRequest {
        stream,
        shared_group: shared_group(),
        consumer: consumer(),
    };
    let segments = AvailableSegmentsRequest {
        stream,
        streamlet,
        group: group_of_segments,
    };
    let next_segments = NextSegmentsRequest {
        stream,
        streamlet,
        group: group_of_segments,
        from: SegmentIndex(0),
        segments_max: 1,
    };
    let put = PutObjectRequest {
        name: "o".into(),
        start: 0,
        content: Bytes::from_static(b"content"),
        is_last: true,
    };
    let got = GetObjectRequest {
        name: "o".into(),
        start: 0,
        bytes_max: 10,
    };
    let got_keys = GetKeysRequest {
        stream: name(),
        keys: vec![Bytes::from_static(b"key")],
        at: Vec::new(),
        hold: None,
        with_headers: false,
    };
    let history = KeyHistoryRequest {
        stream: name(),
        key: Bytes::from_static(b"key"),
        before: None,
        versions_max: 1,
        bytes_max: 1,
    };
    let scanned = ScanKeysRequest {
        stream: name(),
        partition: 0,
        from: Bytes::new(),
        until: None,
        keys_max: 1,
        bytes_max: 1,
    };
    let found = FindKeysRequest {
        stream: name(),
        partition: 0,
        index: "city".into(),
        ranges: Vec::new(),
        from: None,
        keys_max: 1,
        bytes_max: 1,
    };
    let put_keys = PutKeysRequest {
        stream: name(),
        entries: Vec::new(),
        all_or_none: true,
    };
    let watched = WatchKeysRequest {
        stream: name(),
        stream_id: None,
        from: Bytes::new(),
        until: None,
        partitions: Vec::new(),
        bytes_max: 1,
        ahead_bytes: ByteSize(0),
        layout: 0,
    };
    let hold = ChangeHoldRequest {
        stream: name(),
        name: "h".into(),
        ends: true,
        life_ms: None,
    };
    let holds = ListHoldsRequest { stream: name() };
    let groups = AvailableGroupsRequest { stream, streamlet };
    let object_deleted = DeleteObjectRequest { name: "o".into() };
    vec![
        case(0, created, [(Create, topic("made-natively"))]),
        case(0, named, [(Describe, topic("t"))]),
        case(0, by_id, [(Describe, topic("t"))]),
        case(0, grown, [(Alter, topic("t"))]),
        case(0, deleted, [(Delete, topic("none"))]),
        case(
            0,
            WriteChunksRequest { stream, chunks },
            [(Write, topic("t"))],
        ),
        case(0, read, [(Read, topic("t"))]),
        case(0, next, [(Read, group("g")), (Read, topic("t"))]),
        case(0, committed, [(Read, group("g")), (Read, topic("t"))]),
        case(0, released, [(Read, group("g")), (Read, topic("t"))]),
        case(0, groups, [(Describe, topic("t"))]),
        case(0, segments, [(Describe, topic("t"))]),
        case(0, next_segments, [(Describe, topic("t"))]),
        case(0, put, [(Write, topic("o"))]),
        case(0, got, [(Read, topic("o"))]),
        case(0, object_deleted, [(Delete, topic("o"))]),
        case(0, got_keys, [(Read, topic("t"))]),
        case(0, history, [(Read, topic("t"))]),
        case(0, scanned, [(Read, topic("t"))]),
        case(0, hold, [(Alter, topic("t"))]),
        case(0, holds, [(Describe, topic("t"))]),
        case(0, found, [(Read, topic("t"))]),
        case(0, put_keys, [(Write, topic("t"))]),
        case(0, watched, [(Read, topic("t"))]),
        case(
            0,
            subscribe_request(vec![lanes(&[(0, 0)])]),
            [(Read, topic("t"))],
        ),
        case(
            0,
            subscribe_request(vec![of_shared_group("g", "one")]),
            [(Read, group("g")), (Read, topic("t"))],
        ),
    ]
}
