//! The bytes of native messages, which never change.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use millstream_base::{
    ByteSize, Cursor, GroupId, LaneIndex, Offset, Position, SegmentIndex, StreamId, StreamletIndex,
    Timestamp,
};

use super::round_trips::body;
use crate::native::*;
use crate::{
    Request, RequestHeader, Response, SUPPORTED, Uuid, decode_request, decode_response,
    encode_request, encode_response,
};

/// The bytes before the body: api key, version, correlation id, no client id, no tagged fields.
const REQUEST_HEADER_BYTES: usize = 11;
/// The bytes before the body: correlation id, no tagged fields.
const RESPONSE_HEADER_BYTES: usize = 5;

const GOLDEN: &str = include_str!("golden.txt");

fn settings() -> StreamSettings {
    StreamSettings {
        streamlets: 2,
        lanes: 3,
        virtual_logs: 4,
        durability: Durability::Async,
        group_segments: 16,
        segment_bytes: ByteSize(8 << 20),
        retention_ms: Some(1000),
        retention_bytes: None,
        chunk_bytes_max: Some(ByteSize(4096)),
        further: vec![FurtherSetting {
            name: "cleanup.policy".into(),
            value: "delete".into(),
        }],
    }
}

fn cursor() -> Cursor {
    Cursor {
        stream: StreamId(16),
        streamlet: StreamletIndex(1),
        group: GroupId(7),
        segment: SegmentIndex(2),
        position: Position(300),
    }
}

fn object() -> ObjectDescription {
    ObjectDescription {
        name: "a/b".into(),
        bytes: ByteSize(5),
        crc32c: 0x9a71_bb4c,
        created: Timestamp(-1),
        stream: StreamId(17),
    }
}

fn key_version() -> KeyVersion {
    KeyVersion {
        version: Offset(200),
        timestamp: Timestamp(-1),
        value: Bytes::from_static(b"{}"),
        expires_at: Some(Timestamp(300)),
    }
}

fn wrong() -> Option<StrBytes> {
    Some("wrong".into())
}

fn shared_memory() -> SharedMemory {
    SharedMemory {
        pool_path: "/proc/7/fd/8".into(),
        pool_bytes: ByteSize(1 << 30),
        rings_path: "/proc/7/fd/9".into(),
        identity: 42,
    }
}

fn requests() -> Vec<Request> {
    let stream = StreamId(16);
    let streamlet = StreamletIndex(1);
    let group = GroupId(7);
    let shared_group = StrBytes::from("count");
    let consumer = StrBytes::from("c-1");
    vec![
        CreateStreamRequest {
            name: "lines".into(),
            settings: settings(),
            or_existing: true,
        }
        .into(),
        DescribeStreamRequest {
            name: None,
            stream,
            with_lanes: true,
        }
        .into(),
        ListStreamsRequest {
            prefix: "l".into(),
            after: Some("lines".into()),
            streams_max: 100,
        }
        .into(),
        GrowStreamRequest {
            name: "lines".into(),
            streamlets: 3,
            lanes: 4,
        }
        .into(),
        DeleteStreamRequest {
            name: "lines".into(),
        }
        .into(),
        WriteChunksRequest {
            stream,
            chunks: vec![ChunkToWrite {
                streamlet,
                chunk: Bytes::from_static(b"chunk"),
            }],
        }
        .into(),
        ReadChunksRequest {
            cursors: vec![cursor(), cursor()],
            bytes_max: 1 << 20,
            bytes_min: 1,
            wait_ms_max: 500,
        }
        .into(),
        NextGroupsRequest {
            stream,
            streamlet,
            shared_group: shared_group.clone(),
            consumer: consumer.clone(),
            groups_max: 4,
        }
        .into(),
        NextSegmentsRequest {
            stream,
            streamlet,
            group,
            from: SegmentIndex(2),
            segments_max: 8,
        }
        .into(),
        AvailableGroupsRequest { stream, streamlet }.into(),
        AvailableSegmentsRequest {
            stream,
            streamlet,
            group,
        }
        .into(),
        CommitCursorsRequest {
            shared_group: shared_group.clone(),
            consumer: consumer.clone(),
            cursors: vec![cursor()],
        }
        .into(),
        ReleaseGroupsRequest {
            stream,
            shared_group,
            consumer,
        }
        .into(),
        PutObjectRequest {
            name: "a/b".into(),
            start: 2,
            content: Bytes::from_static(b"llo"),
            is_last: true,
        }
        .into(),
        GetObjectRequest {
            name: "a/b".into(),
            start: 1,
            bytes_max: 3,
        }
        .into(),
        ListObjectsRequest {
            prefix: StrBytes::default(),
            after: None,
            objects_max: 10,
        }
        .into(),
        DeleteObjectRequest { name: "a/b".into() }.into(),
        LocalSocketRequest {}.into(),
        SubscribeRequest {
            sources: vec![
                SubscribedSource {
                    lanes: vec![SubscribedLane {
                        stream: "lines".into(),
                        partition: 3,
                        offset: Offset(200),
                    }],
                    shared_group: None,
                },
                SubscribedSource {
                    lanes: Vec::new(),
                    shared_group: Some(SubscribedSharedGroup {
                        stream: "lines".into(),
                        name: "words".into(),
                        consumer: "one".into(),
                    }),
                },
            ],
            filter: Some("key = \"a\"".into()),
            bytes_max: 1 << 20,
            ahead_bytes: ByteSize(16 << 20),
            layout: 1,
        }
        .into(),
        ReceiveRequest {
            subscription: 1,
            source: 2,
            bytes_max: 1 << 20,
        }
        .into(),
        UnsubscribeRequest { subscription: 1 }.into(),
        GetKeysRequest {
            stream: "users".into(),
            keys: vec![Bytes::from_static(b"ann"), Bytes::new()],
            at: vec![Offset(200), Offset(3)],
            hold: Some("before".into()),
            with_headers: false,
        }
        .into(),
        ScanKeysRequest {
            stream: "users".into(),
            partition: 3,
            from: Bytes::from_static(b"a"),
            until: Some(Bytes::from_static(b"b")),
            keys_max: 100,
            bytes_max: 1 << 20,
        }
        .into(),
        PutKeysRequest {
            stream: "users".into(),
            entries: vec![
                KeyToPut {
                    key: Bytes::from_static(b"ann"),
                    value: Some(Bytes::from_static(b"{}")),
                    secondary: vec![SecondaryKey {
                        name: "city".into(),
                        key: Bytes::from_static(b"Namur"),
                    }],
                    ..KeyToPut::default()
                },
                KeyToPut {
                    condition: KeyCondition::Version,
                    version: Offset(300),
                    ..KeyToPut::default()
                },
                KeyToPut {
                    key: Bytes::from_static(b"bob"),
                    value: Some(Bytes::new()),
                    condition: KeyCondition::Absent,
                    ..KeyToPut::default()
                },
                KeyToPut {
                    key: Bytes::from_static(b"cid"),
                    add: Some(-2),
                    ttl_ms: Some(60_000),
                    ..KeyToPut::default()
                },
            ],
            all_or_none: true,
        }
        .into(),
        WatchKeysRequest {
            stream: "users".into(),
            stream_id: Some(Uuid::from_u128(0x1122)),
            from: Bytes::from_static(b"a"),
            until: Some(Bytes::from_static(b"b")),
            partitions: vec![
                WatchedPartition {
                    partition: 3,
                    position: Some(Offset(300)),
                    epoch: 2,
                },
                WatchedPartition {
                    partition: 4,
                    position: None,
                    epoch: -1,
                },
            ],
            bytes_max: 1 << 20,
            ahead_bytes: ByteSize(16 << 20),
            layout: 1,
        }
        .into(),
        KeyHistoryRequest {
            stream: "users".into(),
            key: Bytes::from_static(b"ann"),
            before: Some(Offset(200)),
            versions_max: 10,
            bytes_max: 1 << 20,
        }
        .into(),
        ChangeHoldRequest {
            stream: "users".into(),
            name: "before".into(),
            ends: false,
            life_ms: Some(60_000),
        }
        .into(),
        ListHoldsRequest {
            stream: "users".into(),
        }
        .into(),
        FindKeysRequest {
            stream: "users".into(),
            partition: 3,
            index: "city".into(),
            ranges: vec![SecondaryRange {
                from: Bytes::from_static(b"Namur"),
                until: None,
            }],
            from: Some(SecondaryPlace {
                secondary: Bytes::from_static(b"Turin"),
                key: Bytes::from_static(b"ann"),
            }),
            keys_max: 100,
            bytes_max: 1 << 20,
        }
        .into(),
    ]
}

fn responses() -> Vec<Response> {
    let stream = StreamId(16);
    let (throttle_time_ms, error_code, error_message) = (9, 42, wrong());
    vec![
        CreateStreamResponse {
            stream,
            is_new: true,
            ..CreateStreamResponse::default()
        }
        .into(),
        DescribeStreamResponse {
            name: "lines".into(),
            stream,
            uuid: Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            settings: settings(),
            chunk_bytes_max: ByteSize(2048),
            lanes: vec![LaneDescription {
                partition: 5,
                streamlet: StreamletIndex(1),
                lane: LaneIndex(2),
                earliest: Offset(100),
                durable: Offset(200),
                stable: Offset(150),
                oldest_transaction: Timestamp(1_700_000_000_000),
                groups: 3,
                bytes: ByteSize(4096),
                cut_bytes: ByteSize(77),
                fault: wrong(),
                misplaced: 21,
                compaction: Some(LaneCompaction {
                    total_bytes: ByteSize(4000),
                    dirty_bytes: ByteSize(1000),
                    compacted_to: Offset(150),
                    compacted_at: Timestamp(1_700_000_000_000),
                    passes: 3,
                    bytes_before: ByteSize(9000),
                    bytes_after: ByteSize(3000),
                    failed: 1,
                    fault: wrong(),
                }),
            }],
            holds: vec!["before".into()],
            ..DescribeStreamResponse::default()
        }
        .into(),
        ListStreamsResponse {
            streams: vec![ListedStream {
                name: "lines".into(),
                stream,
                uuid: Uuid::from_u128(1),
                streamlets: 2,
                lanes: 3,
            }],
            has_more: true,
            ..ListStreamsResponse::default()
        }
        .into(),
        GrowStreamResponse {
            throttle_time_ms,
            error_code,
            error_message: error_message.clone(),
        }
        .into(),
        DeleteStreamResponse::default().into(),
        WriteChunksResponse {
            chunks: vec![WrittenChunk {
                error_code,
                error_message: wrong(),
                lane: LaneIndex(2),
                base_offset: Offset(200),
                next_offset: Offset(210),
                is_duplicate: true,
            }],
            ..WriteChunksResponse::default()
        }
        .into(),
        ReadChunksResponse {
            reads: vec![ReadFromCursor {
                error_code: 0,
                error_message: None,
                next: cursor(),
                chunks: Bytes::from_static(b"chunks").into(),
            }],
            ..ReadChunksResponse::default()
        }
        .into(),
        NextGroupsResponse {
            cursors: vec![cursor()],
            ..NextGroupsResponse::default()
        }
        .into(),
        NextSegmentsResponse {
            segments: vec![SegmentStart {
                segment: SegmentIndex(2),
                position: Position(300),
            }],
            ..NextSegmentsResponse::default()
        }
        .into(),
        AvailableGroupsResponse {
            groups: Some(GroupRange {
                first: GroupId(1),
                last: GroupId(7),
            }),
            ..AvailableGroupsResponse::default()
        }
        .into(),
        AvailableSegmentsResponse {
            segments: Some(SegmentRange {
                first: SegmentIndex(0),
                last: SegmentIndex(2),
            }),
            ..AvailableSegmentsResponse::default()
        }
        .into(),
        CommitCursorsResponse {
            commits: vec![CommittedCursor::default()],
            ..CommitCursorsResponse::default()
        }
        .into(),
        ReleaseGroupsResponse::default().into(),
        PutObjectResponse {
            object: Some(object()),
            ..PutObjectResponse::default()
        }
        .into(),
        GetObjectResponse {
            object: Some(object()),
            content: Bytes::from_static(b"ell").into(),
            ..GetObjectResponse::default()
        }
        .into(),
        ListObjectsResponse {
            objects: vec![object(), object()],
            ..ListObjectsResponse::default()
        }
        .into(),
        DeleteObjectResponse {
            throttle_time_ms,
            error_code,
            error_message: error_message.clone(),
        }
        .into(),
        LocalSocketResponse {
            path: Some("/data/push.sock".into()),
            ..LocalSocketResponse::default()
        }
        .into(),
        SubscribeResponse {
            subscription: 1,
            shared: Some(shared_memory()),
            not_shared: Some("no".into()),
            ..SubscribeResponse::default()
        }
        .into(),
        ReceiveResponse {
            delivered: vec![DeliveredChunks {
                lane: 1,
                error_code: 0,
                error_message: None,
                from: Offset(200),
                next: Offset(210),
                end: Offset(220),
                cursor: cursor(),
                chunks: Bytes::from_static(b"chunks").into(),
            }],
            ..ReceiveResponse::default()
        }
        .into(),
        UnsubscribeResponse {
            throttle_time_ms,
            error_code,
            error_message,
        }
        .into(),
        GetKeysResponse {
            keys: vec![
                GotKey {
                    error_code: 0,
                    error_message: None,
                    partition: 3,
                    newest: Some(key_version()),
                    headers: Vec::new(),
                },
                GotKey {
                    error_code,
                    error_message: wrong(),
                    partition: 0,
                    newest: None,
                    headers: Vec::new(),
                },
            ],
            ..GetKeysResponse::default()
        }
        .into(),
        ScanKeysResponse {
            keys: vec![ScannedKey {
                key: Bytes::from_static(b"ann"),
                newest: key_version(),
            }],
            next: Some(Bytes::from_static(b"bob")),
            ..ScanKeysResponse::default()
        }
        .into(),
        PutKeysResponse {
            entries: vec![StoredKey {
                error_code,
                error_message: wrong(),
                partition: 3,
                version: Offset(210),
                sum: Some(-7),
                newest: Some(Offset(209)),
            }],
            ..PutKeysResponse::default()
        }
        .into(),
        WatchKeysResponse {
            subscription: 1,
            stream_id: Uuid::from_u128(0x1122),
            ttl_ms: Some(1000),
            lanes: vec![WatchStart {
                partition: 3,
                position: Offset(300),
                epoch: 2,
            }],
            shared: Some(shared_memory()),
            not_shared: Some("no".into()),
            ..WatchKeysResponse::default()
        }
        .into(),
        KeyHistoryResponse {
            partition: 3,
            versions: vec![
                PastVersion {
                    version: Offset(199),
                    timestamp: Timestamp(-1),
                    value: Some(Bytes::from_static(b"{}")),
                    expires_at: Some(Timestamp(300)),
                },
                PastVersion {
                    version: Offset(198),
                    timestamp: Timestamp(-1),
                    value: None,
                    expires_at: None,
                },
            ],
            next: Some(Offset(198)),
            lacks_older: true,
            ..KeyHistoryResponse::default()
        }
        .into(),
        ChangeHoldResponse {
            hold: Some(listed_hold()),
            ..ChangeHoldResponse::default()
        }
        .into(),
        ListHoldsResponse {
            holds: vec![listed_hold()],
            ..ListHoldsResponse::default()
        }
        .into(),
        FindKeysResponse {
            keys: vec![FoundKey {
                secondary: Bytes::from_static(b"Namur"),
                key: Bytes::from_static(b"ann"),
                newest: key_version(),
            }],
            next: Some(SecondaryPlace {
                secondary: Bytes::from_static(b"Turin"),
                key: Bytes::from_static(b"bob"),
            }),
            ..FindKeysResponse::default()
        }
        .into(),
    ]
}

fn listed_hold() -> ListedHold {
    ListedHold {
        name: "before".into(),
        owner: "User:ann".into(),
        created: Timestamp(200),
        until: Timestamp(300),
        is_whole: true,
        ends: vec![Offset(3), Offset(0)],
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn native_messages_have_their_golden_bytes() {
    let mut written = String::new();
    for (request, response) in requests().into_iter().zip(responses()) {
        let header = RequestHeader {
            api: request.api(),
            version: 0,
            correlation_id: 1,
            client_id: None,
        };
        let frame = body(encode_request(&header, &request).unwrap());
        let bytes = hex(&frame[REQUEST_HEADER_BYTES..]);
        written.push_str(&format!("{:?}Request {bytes}\n", header.api));
        assert_eq!(decode_request(frame), Ok((header.clone(), request)));

        let frame = body(encode_response(&header, &response).unwrap());
        let bytes = hex(&frame[RESPONSE_HEADER_BYTES..]);
        written.push_str(&format!("{:?}Response {bytes}\n", header.api));
        assert_eq!(decode_response(header.api, 0, frame), Ok((1, response)));
    }
    assert_eq!(written, GOLDEN);
}

/// The messages of version 1 with what version 0 lacks.
fn with_headers() -> (Request, Response) {
    let request = GetKeysRequest {
        stream: "users".into(),
        keys: vec![Bytes::from_static(b"ann")],
        at: Vec::new(),
        hold: None,
        with_headers: true,
    };
    let got = GotKey {
        error_code: 0,
        error_message: None,
        partition: 3,
        newest: Some(key_version()),
        headers: vec![
            KeyHeader {
                name: Bytes::from_static(b"checkpoint"),
                value: Some(Bytes::from_static(b"7")),
            },
            KeyHeader {
                name: Bytes::from_static(b"none"),
                value: None,
            },
        ],
    };
    let response = GetKeysResponse {
        keys: vec![got],
        ..GetKeysResponse::default()
    };
    (request.into(), response.into())
}

#[test]
fn the_headers_of_keys_have_their_golden_bytes_from_version_1_on() {
    let (request, response) = with_headers();
    let header = |version| RequestHeader {
        api: crate::ApiKey::GetKeys,
        version,
        correlation_id: 1,
        client_id: None,
    };
    let frame = body(encode_request(&header(1), &request).unwrap());
    assert_eq!(
        hex(&frame[REQUEST_HEADER_BYTES..]),
        "0675736572730204616e6e01000100"
    );
    assert_eq!(decode_request(frame), Ok((header(1), request.clone())));
    let frame = body(encode_response(&header(1), &response).unwrap());
    assert_eq!(
        hex(&frame[RESPONSE_HEADER_BYTES..]),
        "0000000000000002000000000000030100000000000000c8ffffffffffffffff037b7d01000000000000012c00030b636865636b706f696e7402370005"
            .to_owned()
            + "6e6f6e6500000000"
    );
    assert_eq!(decode_response(header(1).api, 1, frame), Ok((1, response)));
    let error = encode_request(&header(0), &request).unwrap_err();
    let expected = "with_headers needs version 1";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn every_native_message_has_its_golden_bytes() {
    let native: Vec<_> = SUPPORTED
        .iter()
        .map(|supported| supported.api)
        .filter(|api| *api as i16 >= 10_000)
        .collect();
    let of_requests: Vec<_> = requests().iter().map(Request::api).collect();
    let of_responses: Vec<_> = responses().iter().map(Response::api).collect();
    assert_eq!(of_requests, native);
    assert_eq!(of_responses, native);
}

#[test]
fn tagged_fields_of_the_future_are_skipped() {
    let header = RequestHeader {
        api: crate::ApiKey::DeleteStream,
        version: 0,
        correlation_id: 1,
        client_id: None,
    };
    let request = Request::from(DeleteStreamRequest {
        name: "lines".into(),
    });
    let frame = body(encode_request(&header, &request).unwrap());
    let mut future = frame[..frame.len() - 1].to_vec();
    future.extend_from_slice(b"\x02\x00\x03abc\x05\x00");
    assert_eq!(decode_request(future.into()), Ok((header, request)));
}
