//! Groups and segments: lists of them, and consumers that share them.

use bytes::Bytes;
use millstream_base::{Cursor, GroupId, Position, SegmentIndex, StreamId, StreamletIndex};
use millstream_wire::ResponseError;
use millstream_wire::native::{
    AvailableGroupsRequest, AvailableGroupsResponse, AvailableSegmentsRequest,
    AvailableSegmentsResponse, CommitCursorsRequest, CommitCursorsResponse, DeleteStreamRequest,
    NextGroupsRequest, NextGroupsResponse, NextSegmentsRequest, NextSegmentsResponse,
    ReleaseGroupsRequest,
};

use crate::chunks::write;
use crate::client::{Broker, Client, answer, ask, chunk, text};
use crate::reading::{read_group, start_of};

fn next(client: &mut Client, stream: StreamId, consumer: &str, most: u32) -> Vec<Cursor> {
    let response = next_of(client, stream, 0, "shared", consumer, most);
    assert_eq!(response.error_code, 0, "{:?}", response.error_message);
    response.cursors
}

fn next_of(
    client: &mut Client,
    stream: StreamId,
    streamlet: u32,
    shared_group: &str,
    consumer: &str,
    groups_max: u32,
) -> NextGroupsResponse {
    let request = NextGroupsRequest {
        stream,
        streamlet: StreamletIndex(streamlet),
        shared_group: text(shared_group),
        consumer: text(consumer),
        groups_max,
    };
    ask!(client, NextGroups, request)
}

fn commit(client: &mut Client, consumer: &str, cursors: &[Cursor]) -> CommitCursorsResponse {
    let request = CommitCursorsRequest {
        shared_group: text("shared"),
        consumer: text(consumer),
        cursors: cursors.to_vec(),
    };
    ask!(client, CommitCursors, request)
}

fn codes(response: &CommitCursorsResponse) -> Vec<i16> {
    let commits = response.commits.iter();
    commits.map(|commit| commit.error_code).collect()
}

fn release(client: &mut Client, stream: StreamId, consumer: &str) -> i16 {
    let request = ReleaseGroupsRequest {
        stream,
        shared_group: text("shared"),
        consumer: text(consumer),
    };
    ask!(client, ReleaseGroups, request).error_code
}

fn groups(client: &mut Client, stream: StreamId, streamlet: u32) -> AvailableGroupsResponse {
    let request = AvailableGroupsRequest {
        stream,
        streamlet: StreamletIndex(streamlet),
    };
    ask!(client, AvailableGroups, request)
}

fn segments(client: &mut Client, stream: StreamId, group: u64) -> AvailableSegmentsResponse {
    let request = AvailableSegmentsRequest {
        stream,
        streamlet: StreamletIndex(0),
        group: GroupId(group),
    };
    ask!(client, AvailableSegments, request)
}

fn starts(client: &mut Client, group: Cursor, from: u32, most: u32) -> NextSegmentsResponse {
    let request = NextSegmentsRequest {
        stream: group.stream,
        streamlet: group.streamlet,
        group: group.group,
        from: SegmentIndex(from),
        segments_max: most,
    };
    ask!(client, NextSegments, request)
}

/// Creates a stream with at least four groups, and returns its chunks.
fn filled(client: &mut Client, name: &str) -> (StreamId, Vec<Bytes>) {
    let stream = client.create(name, 1, 1);
    let values: Vec<Bytes> = (0..16).map(|n| Bytes::from(vec![n; 30_000])).collect();
    for value in &values {
        assert_eq!(write(client, stream, 0, &chunk(value)).error_code, 0);
    }
    let last = groups(client, stream, 0).groups.unwrap().last;
    assert!(last >= GroupId(4), "there are {last}");
    (stream, values)
}

#[test]
fn groups_and_segments_are_reported() {
    let broker = Broker::start();
    let mut client = broker.client();
    let empty = client.create("empty", 1, 1);
    assert_eq!(groups(&mut client, empty, 0).groups, None);

    let (stream, _) = filled(&mut client, "filled");
    assert_eq!(
        groups(&mut client, stream, 0).groups.unwrap().first,
        GroupId(1)
    );
    let available = segments(&mut client, stream, 1).segments.unwrap();
    assert_eq!(available.first, SegmentIndex(0));
    assert!(available.last >= SegmentIndex(1));

    let group = start_of(stream, 1);
    let all = starts(&mut client, group, 0, 100).segments;
    assert_eq!(all.len(), available.last.0 as usize + 1);
    assert_eq!(all[0].position, Position(0));
    assert!(
        all.windows(2)
            .all(|pair| pair[0].position < pair[1].position)
    );
    assert_eq!(starts(&mut client, group, 1, 1).segments, all[1..2]);
    assert_eq!(starts(&mut client, group, 0, 0).segments, []);
    assert_eq!(starts(&mut client, group, u32::MAX, u32::MAX).segments, []);

    // From the start of a segment on there are whole chunks.
    let cursor = Cursor {
        segment: all[1].segment,
        position: all[1].position,
        ..group
    };
    let whole = read_group(&mut client, group, 1 << 20).0;
    let rest = read_group(&mut client, cursor, 1 << 20).0;
    assert!(!rest.is_empty() && rest.len() < whole.len());
    assert_eq!(rest, whole[whole.len() - rest.len()..]);
}

#[test]
fn requests_about_unknown_streams_and_groups_are_refused() {
    let broker = Broker::start();
    let mut client = broker.client();
    let (stream, _) = filled(&mut client, "filled");
    let missing = StreamId(999);
    let unknown_id = ResponseError::UnknownTopicId.code();
    assert_eq!(groups(&mut client, missing, 0).error_code, unknown_id);
    assert_eq!(segments(&mut client, missing, 1).error_code, unknown_id);
    let there = start_of(missing, 1);
    assert_eq!(starts(&mut client, there, 0, 1).error_code, unknown_id);
    let next = next_of(&mut client, missing, 0, "a", "c", 1);
    assert_eq!(next.error_code, unknown_id);
    assert_eq!(release(&mut client, missing, "c"), unknown_id);

    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(groups(&mut client, stream, 1).error_code, unknown);
    assert_eq!(segments(&mut client, stream, 99).error_code, unknown);
    let there = start_of(stream, 99);
    assert_eq!(starts(&mut client, there, 0, 1).error_code, unknown);
    let next = next_of(&mut client, stream, 1, "a", "c", 1);
    assert_eq!(next.error_code, unknown);

    for name in ["", "a b", "__groups", &"a".repeat(250)] {
        let next = next_of(&mut client, stream, 0, name, "c", 1);
        assert_eq!(
            next.error_code,
            ResponseError::InvalidGroupId.code(),
            "{name}"
        );
    }
    for name in ["", &"c".repeat(250)] {
        let next = next_of(&mut client, stream, 0, "a", name, 1);
        assert_eq!(
            next.error_code,
            ResponseError::InvalidRequest.code(),
            "{name}"
        );
    }
}

#[test]
fn consumers_of_a_shared_group_divide_the_groups() {
    let broker = Broker::start();
    let (mut one, mut two) = (broker.client(), broker.client());
    let (stream, written) = filled(&mut one, "shared");
    let first = next(&mut one, stream, "one", 2);
    assert_eq!(
        first
            .iter()
            .map(|cursor| cursor.group.0)
            .collect::<Vec<_>>(),
        [1, 2]
    );
    let second = next(&mut two, stream, "two", 100);
    assert_eq!(second[0].group, GroupId(3));
    assert!(next(&mut one, stream, "one", 100).is_empty());

    let mut all = Vec::new();
    for cursor in first.iter().chain(&second) {
        all.extend(read_group(&mut one, *cursor, 1 << 20).0);
    }
    assert_eq!(all, written);

    // Another shared group gets all of them for itself.
    let other = next_of(&mut two, stream, 0, "other", "one", 100);
    assert_eq!(other.cursors.len(), first.len() + second.len());
}

#[test]
fn commits_survive_a_restart_and_uncommitted_groups_are_assigned_again() {
    let mut broker = Broker::start();
    let mut client = broker.client();
    let (stream, _) = filled(&mut client, "commits");
    let handed = next(&mut client, stream, "one", 2);
    let (_, end) = read_group(&mut client, handed[0], 1 << 20);
    let start = starts(&mut client, handed[1], 1, 1).segments[0].clone();
    let half = Cursor {
        segment: start.segment,
        position: start.position,
        ..handed[1]
    };
    let done = commit(&mut client, "one", &[end, half]);
    assert_eq!((done.error_code, codes(&done)), (0, vec![0, 0]));
    broker.restart();
    let mut client = broker.client();
    let again = next(&mut client, stream, "two", 1);
    // The segment depends on how the group is divided now.
    let places = again.iter().map(|cursor| (cursor.group, cursor.position));
    assert_eq!(places.collect::<Vec<_>>(), [(half.group, half.position)]);
}

#[test]
fn released_groups_go_to_others() {
    let broker = Broker::start();
    let mut client = broker.client();
    let (stream, _) = filled(&mut client, "given-back");
    // No consumer has anything yet.
    assert_eq!(release(&mut client, stream, "one"), 0);
    let handed = next(&mut client, stream, "one", 100);
    let (_, end) = read_group(&mut client, handed[0], 1 << 20);
    assert_eq!(codes(&commit(&mut client, "one", &[end])), [0]);
    assert!(next(&mut client, stream, "two", 100).is_empty());
    assert_eq!(release(&mut client, stream, "one"), 0);
    assert_eq!(next(&mut client, stream, "two", 100), handed[1..]);
    let late = commit(&mut client, "one", &handed[1..2]);
    assert_eq!(codes(&late), [ResponseError::UnknownMemberId.code()]);
}

#[test]
fn a_commit_is_refused_cursor_by_cursor() {
    let broker = Broker::start();
    let mut client = broker.client();
    let (stream, _) = filled(&mut client, "strict");
    let refused = commit(&mut client, "one", &[start_of(stream, 1)]);
    assert_eq!(codes(&refused), [ResponseError::UnknownMemberId.code()]);

    let handed = next(&mut client, stream, "one", 1);
    let beyond = Cursor {
        position: Position(1 << 40),
        ..handed[0]
    };
    let elsewhere = Cursor {
        streamlet: StreamletIndex(9),
        ..handed[0]
    };
    let cursors = [
        start_of(StreamId(999), 1),
        start_of(stream, 2),
        beyond,
        elsewhere,
        handed[0],
    ];
    let expected = [
        ResponseError::UnknownTopicId.code(),
        ResponseError::UnknownMemberId.code(),
        ResponseError::OffsetOutOfRange.code(),
        ResponseError::UnknownTopicOrPartition.code(),
        0,
    ];
    assert_eq!(codes(&commit(&mut client, "one", &cursors)), expected);
    let other = commit(&mut client, "two", &handed);
    assert_eq!(codes(&other), [ResponseError::UnknownMemberId.code()]);
    let many = commit(&mut client, "one", &vec![handed[0]; 1001]);
    assert_eq!(many.error_code, ResponseError::InvalidRequest.code());
    assert!(many.commits.is_empty());
}

#[test]
fn shared_groups_are_bounded_and_deleted_streams_free_theirs() {
    let broker = Broker::start();
    let mut client = broker.client();
    let stream = client.create("crowded", 1, 1);
    let request = |n: u32, stream| NextGroupsRequest {
        stream,
        streamlet: StreamletIndex(0),
        shared_group: text(&format!("group-{n}")),
        consumer: text("one"),
        groups_max: 1,
    };
    for batch in 0..200 {
        for n in 0..50 {
            client.send(request(batch * 50 + n, stream));
        }
        for _ in 0..50 {
            assert_eq!(answer!(client, NextGroups).error_code, 0);
        }
    }
    let refused = ask!(client, NextGroups, request(10_000, stream));
    let quota = ResponseError::ThrottlingQuotaExceeded.code();
    assert_eq!(refused.error_code, quota);
    let known = ask!(client, NextGroups, request(9_999, stream));
    assert_eq!(known.error_code, 0);

    let other = client.create("other", 1, 1);
    let deletion = DeleteStreamRequest {
        name: text("crowded"),
    };
    assert_eq!(ask!(client, DeleteStream, deletion).error_code, 0);
    assert_eq!(ask!(client, NextGroups, request(0, other)).error_code, 0);
}

#[test]
fn all_cursors_of_a_commit_share_one_wait_for_the_disk() {
    let broker = Broker::start();
    let mut client = broker.client();
    let (stream, _) = filled(&mut client, "s");
    let cursors = next(&mut client, stream, "one", 1);
    let syncs = |broker: &Broker| {
        let stats = broker.log().stats();
        stats.journal_blocks + stats.direct_commits
    };
    let before = syncs(&broker);
    let cursors = vec![cursors[0]; 200];
    let committed = commit(&mut client, "one", &cursors);
    assert!(codes(&committed).iter().all(|code| *code == 0));
    let made = syncs(&broker) - before;
    assert!(made < 100, "{made} syncs for one request");
}
