//! Streams: created, described, listed, grown, deleted.

use millstream_base::{ByteSize, LaneIndex, Offset, StreamId, StreamletIndex};
use millstream_log::{CLEANUP_POLICY, COMPACT};
use millstream_wire::ResponseError;
use millstream_wire::native::{
    CreateStreamRequest, DeleteStreamRequest, DescribeStreamRequest, DescribeStreamResponse,
    Durability, FurtherSetting, GrowStreamRequest, ListStreamsRequest, StreamSettings,
};

use crate::chunks::write;
use crate::client::{Broker, Client, answer, ask, chunk, creation, settings, text};

fn by_name(client: &mut Client, name: &str) -> DescribeStreamResponse {
    let request = DescribeStreamRequest {
        name: Some(text(name)),
        stream: StreamId(0),
        with_lanes: true,
    };
    ask!(client, DescribeStream, request)
}

fn by_id(client: &mut Client, stream: StreamId) -> DescribeStreamResponse {
    let request = DescribeStreamRequest {
        name: None,
        stream,
        with_lanes: false,
    };
    ask!(client, DescribeStream, request)
}

fn names(client: &mut Client, prefix: &str, after: Option<&str>, most: u32) -> (Vec<String>, bool) {
    let request = ListStreamsRequest {
        prefix: text(prefix),
        after: after.map(text),
        streams_max: most,
    };
    let listed = ask!(client, ListStreams, request);
    assert_eq!(listed.error_code, 0);
    let names = listed.streams.iter().map(|stream| stream.name.to_string());
    (names.collect(), listed.has_more)
}

fn grow(client: &mut Client, name: &str, streamlets: u32, lanes: u32) -> i16 {
    let request = GrowStreamRequest {
        name: text(name),
        streamlets,
        lanes,
    };
    ask!(client, GrowStream, request).error_code
}

fn delete(client: &mut Client, name: &str) -> i16 {
    let request = DeleteStreamRequest { name: text(name) };
    ask!(client, DeleteStream, request).error_code
}

#[test]
fn a_stream_keeps_its_settings_also_over_a_restart() {
    let mut broker = Broker::start();
    let mut client = broker.client();
    let wanted = StreamSettings {
        streamlets: 3,
        lanes: 2,
        virtual_logs: 2,
        durability: Durability::Async,
        group_segments: 5,
        segment_bytes: ByteSize(128 << 10),
        retention_ms: Some(1000),
        retention_bytes: Some(ByteSize(1 << 30)),
        chunk_bytes_max: Some(ByteSize(1 << 10)),
        further: vec![FurtherSetting {
            name: text("owner"),
            value: text("team"),
        }],
    };
    let created = ask!(client, CreateStream, creation("a/b:c", wanted.clone()));
    assert_eq!((created.error_code, created.is_new), (0, true));
    let before = by_name(&mut client, "a/b:c");
    broker.restart();
    let mut client = broker.client();
    let described = by_name(&mut client, "a/b:c");
    assert_eq!(described.settings, wanted);
    assert_eq!(described.chunk_bytes_max, ByteSize(1 << 10));
    assert_eq!(described.stream, created.stream);
    assert_eq!(described.uuid, before.uuid);
    assert_eq!(described.lanes.len(), 6);
    let last = &described.lanes[5];
    let place = (last.partition, last.streamlet, last.lane);
    assert_eq!(place, (5, StreamletIndex(2), LaneIndex(1)));

    let same = by_id(&mut client, created.stream);
    assert_eq!((&*same.name, same.lanes.len()), ("a/b:c", 0));
    assert_eq!(same.uuid, described.uuid);
}

#[test]
fn partitions_report_their_offsets_and_bytes() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("held", 1, 1);
    let bytes = chunk(b"value");
    assert_eq!(write(&mut client, stream, 0, &bytes).error_code, 0);
    let described = by_name(&mut client, "held");
    let partition = &described.lanes[0];
    assert_eq!(
        (partition.earliest, partition.durable),
        (Offset(0), Offset(1))
    );
    assert_eq!(
        (partition.groups, partition.bytes.0),
        (1, bytes.len() as u64)
    );
    assert_eq!(partition.fault, None);
}

#[test]
fn invalid_creations_are_refused() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.create("taken", 1, 1);
    let twice = FurtherSetting {
        name: text("twice"),
        value: text(""),
    };
    let refusals = [
        ("taken", settings(1, 1), ResponseError::TopicAlreadyExists),
        ("", settings(1, 1), ResponseError::InvalidTopicException),
        ("a b", settings(1, 1), ResponseError::InvalidTopicException),
        (
            "__groups",
            settings(1, 1),
            ResponseError::InvalidTopicException,
        ),
        ("new", settings(0, 1), ResponseError::InvalidConfig),
        (
            "new",
            settings(u32::MAX, u32::MAX),
            ResponseError::InvalidConfig,
        ),
        // More than a topic may have partitions.
        ("new", settings(101, 100), ResponseError::InvalidConfig),
        (
            "new",
            StreamSettings {
                segment_bytes: ByteSize(1000),
                ..settings(1, 1)
            },
            ResponseError::InvalidConfig,
        ),
        (
            "new",
            StreamSettings {
                further: vec![twice.clone(), twice],
                ..settings(1, 1)
            },
            ResponseError::InvalidConfig,
        ),
    ];
    for (name, settings, error) in refusals {
        let refused = ask!(client, CreateStream, creation(name, settings.clone()));
        assert_eq!(refused.error_code, error.code(), "{name} {settings:?}");
        assert!(refused.error_message.is_some());
    }
    assert_eq!(names(&mut client, "", None, 10).0, ["taken"]);
}

#[test]
fn concurrent_creations_make_one_stream_for_all_clients() {
    let broker = Broker::start();
    let threads = (0..8).map(|_| {
        let mut client = broker.client();
        std::thread::spawn(move || {
            let request = CreateStreamRequest {
                or_existing: true,
                ..creation("shared", settings(2, 1))
            };
            ask!(client, CreateStream, request)
        })
    });
    let threads: Vec<_> = threads.collect();
    let created: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert!(
        created.iter().all(|created| created.error_code == 0),
        "{created:?}"
    );
    assert!(created.iter().all(|one| one.stream == created[0].stream));
    assert_eq!(created.iter().filter(|one| one.is_new).count(), 1);
}

#[test]
fn streams_are_listed_in_pages_and_by_prefix() {
    let broker = Broker::start();
    let mut client = broker.client();
    for name in ["b2", "a1", "b1", "b3"] {
        client.create(name, 1, 1);
    }
    assert_eq!(names(&mut client, "", None, 10).0, ["a1", "b1", "b2", "b3"]);
    let first = names(&mut client, "b", None, 2);
    assert_eq!(first, (vec!["b1".to_owned(), "b2".to_owned()], true));
    let second = names(&mut client, "b", Some("b2"), 2);
    assert_eq!(second, (vec!["b3".to_owned()], false));
    assert_eq!(names(&mut client, "", None, 0), (vec![], true));
    assert_eq!(names(&mut client, "c", None, 10), (vec![], false));
}

#[test]
fn a_stream_grows_and_never_shrinks() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("growing", 1, 2);
    assert_eq!(grow(&mut client, "growing", 2, 3), 0);
    assert_eq!(by_name(&mut client, "growing").lanes.len(), 6);
    // This writes into a new streamlet.
    assert_eq!(write(&mut client, stream, 1, &chunk(b"x")).error_code, 0);

    let invalid = ResponseError::InvalidPartitions.code();
    assert_eq!(grow(&mut client, "growing", 1, 3), invalid);
    assert_eq!(grow(&mut client, "growing", 2, 2), invalid);
    assert_eq!(grow(&mut client, "growing", 0, 0), invalid);
    assert_eq!(grow(&mut client, "growing", 10_001, 3), invalid);
    assert_eq!(grow(&mut client, "growing", u32::MAX, u32::MAX), invalid);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(grow(&mut client, "missing", 2, 2), unknown);
    assert_eq!(by_name(&mut client, "growing").lanes.len(), 6);
}

#[test]
fn keyed_streams_do_not_grow() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.create("users", 1, 2);
    let compact = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())];
    let log = broker.log();
    log.alter_stream("users", |config| config.settings.extend(compact))
        .unwrap();
    let request = GrowStreamRequest {
        name: text("users"),
        streamlets: 1,
        lanes: 3,
    };
    let refused = ask!(client, GrowStream, request);
    assert_eq!(refused.error_code, ResponseError::InvalidPartitions.code());
    let message = refused.error_message.unwrap_or_default();
    assert!(
        message.contains("millstream stream copy users NEW"),
        "{message}"
    );
    assert_eq!(grow(&mut client, "users", 1, 2), 0);
    assert_eq!(log.stream("users").unwrap().partition_count(), 2);
}

#[test]
fn growing_to_the_same_size_writes_no_journal() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.create("same", 2, 2);
    let before = broker.log().stats().journal_bytes;
    for _ in 0..10 {
        assert_eq!(grow(&mut client, "same", 2, 2), 0);
    }
    assert_eq!(broker.log().stats().journal_bytes, before);
}

#[test]
fn the_name_of_a_deleted_stream_can_be_used_again() {
    let broker = Broker::start();
    let mut client = broker.client();
    let old = client.create("short", 1, 1);
    assert_eq!(delete(&mut client, "short"), 0);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(by_name(&mut client, "short").error_code, unknown);
    let unknown_id = ResponseError::UnknownTopicId.code();
    assert_eq!(by_id(&mut client, old).error_code, unknown_id);
    assert_eq!(delete(&mut client, "short"), unknown);
    let new = client.create("short", 1, 1);
    assert_ne!(new, old);
}

#[test]
fn internal_streams_are_hidden() {
    let broker = Broker::start();
    let mut client = broker.client();
    let internal = broker.log().internal_stream("__secret").unwrap();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let unknown_id = ResponseError::UnknownTopicId.code();
    assert_eq!(by_name(&mut client, "__secret").error_code, unknown);
    assert_eq!(by_id(&mut client, internal.id()).error_code, unknown_id);
    assert_eq!(grow(&mut client, "__secret", 2, 2), unknown);
    assert_eq!(delete(&mut client, "__secret"), unknown);
    assert_eq!(names(&mut client, "", None, 10), (vec![], false));
    let written = write(&mut client, internal.id(), 0, &chunk(b"x"));
    assert_eq!(written.error_code, unknown_id);
    // The log's own.
    for id in [0, 1].map(StreamId) {
        assert_eq!(by_id(&mut client, id).error_code, unknown_id);
        assert_eq!(
            write(&mut client, id, 0, &chunk(b"x")).error_code,
            unknown_id
        );
    }
}

#[test]
fn a_message_does_not_repeat_a_long_name() {
    let broker = Broker::start();
    let mut client = broker.client();
    let refused = by_name(&mut client, &"x".repeat(1 << 20));
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(refused.error_code, unknown);
    assert!(
        refused
            .error_message
            .is_some_and(|message| message.len() < 2000)
    );
}

#[test]
fn answers_come_in_the_order_of_the_requests() {
    let broker = Broker::start();
    let mut client = broker.client();
    client.send(creation("one", settings(1, 1)));
    client.send(DeleteStreamRequest { name: text("one") });
    client.send(creation("one", settings(1, 1)));
    assert_eq!(answer!(client, CreateStream).error_code, 0);
    assert_eq!(answer!(client, DeleteStream).error_code, 0);
    assert_eq!(answer!(client, CreateStream).error_code, 0);
}
