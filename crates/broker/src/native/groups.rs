//! Groups and segments: lists them, hands them to consumers, and stores the consumers' progress.

use std::sync::Arc;

use millstream_base::{Cursor, SegmentIndex};
use millstream_log::{Commit, Log, LogError, SharedGroup};
use millstream_wire::ResponseError;
use millstream_wire::native::{
    AvailableGroupsRequest, AvailableGroupsResponse, AvailableSegmentsRequest,
    AvailableSegmentsResponse, CommitCursorsRequest, CommitCursorsResponse, CommittedCursor,
    GroupRange, NextGroupsRequest, NextGroupsResponse, NextSegmentsRequest, NextSegmentsResponse,
    ReleaseGroupsRequest, ReleaseGroupsResponse, SegmentRange, SegmentStart,
};

use super::find::stream_of;
use super::refused::{Refused, answered};
use crate::broker::Broker;
use crate::reply::Reply;

/// The most groups that are handed out at once.
const GROUPS_MAX: usize = 1000;

/// The most segments in one answer.
const SEGMENTS_MAX: u32 = 1000;

/// The most cursors in one commit.
pub const COMMITS_MAX: usize = 1000;

/// The longest name of a consumer.
const CONSUMER_BYTES_MAX: usize = 249;

fn check_consumer(consumer: &str) -> Result<(), Refused> {
    match consumer.len() {
        1..=CONSUMER_BYTES_MAX => Ok(()),
        _ => Err(Refused::new(
            ResponseError::InvalidRequest,
            format!("a consumer's name has 1 to {CONSUMER_BYTES_MAX} bytes"),
        )),
    }
}

/// Hands groups to a consumer.
pub fn next(broker: &Arc<Broker>, request: NextGroupsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || answered(next_groups(&broker, &request)))
}

fn next_groups(
    broker: &Broker,
    request: &NextGroupsRequest,
) -> Result<NextGroupsResponse, Refused> {
    check_consumer(&request.consumer)?;
    let log = broker.log();
    let stream = stream_of(log, request.stream)?;
    let applications = &broker.native.applications;
    let application = applications.open(log, &stream, &request.shared_group)?;
    let groups_max = (request.groups_max as usize).min(GROUPS_MAX);
    let cursors = application.next_groups(request.streamlet, &request.consumer, groups_max)?;
    Ok(NextGroupsResponse {
        cursors,
        ..NextGroupsResponse::default()
    })
}

/// Stores a consumer's progress.
pub fn commit(broker: &Arc<Broker>, request: CommitCursorsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || answered(commit_cursors(&broker, &request)))
}

fn commit_cursors(
    broker: &Broker,
    request: &CommitCursorsRequest,
) -> Result<CommitCursorsResponse, Refused> {
    check_consumer(&request.consumer)?;
    if request.cursors.len() > COMMITS_MAX {
        return Err(Refused::too_many("cursors", COMMITS_MAX));
    }
    // All of them wait for the disk together.
    let begun = request
        .cursors
        .iter()
        .map(|cursor| begin_commit(broker, &request.shared_group, &request.consumer, cursor));
    let begun = Vec::from_iter(begun).into_iter();
    let commits = begun.map(|begun| {
        let finished = begun.and_then(|(application, commit)| {
            let finished = application.finish_commit(commit);
            finished.map_err(Refused::from)
        });
        match finished {
            Ok(()) => CommittedCursor::default(),
            Err(refused) => CommittedCursor {
                error_code: refused.code(),
                error_message: refused.message(),
            },
        }
    });
    Ok(CommitCursorsResponse {
        commits: commits.collect(),
        ..CommitCursorsResponse::default()
    })
}

fn begin_commit(
    broker: &Broker,
    application: &str,
    consumer: &str,
    cursor: &Cursor,
) -> Result<(Arc<SharedGroup>, Commit), Refused> {
    let not_handed_out =
        |error: LogError| Refused::new(ResponseError::UnknownMemberId, error.to_string());
    let log = broker.log();
    let stream = stream_of(log, cursor.stream)?;
    let found = broker.native.applications.find(log, &stream, application)?;
    let Some(application) = found else {
        return Err(not_handed_out(LogError::NotHandedOut {
            group: cursor.group,
            consumer: consumer.to_owned(),
            shared_group: application.to_owned(),
        }));
    };
    match application.begin_commit(consumer, cursor) {
        Ok(commit) => Ok((application, commit)),
        Err(error @ LogError::NotHandedOut { .. }) => Err(not_handed_out(error)),
        Err(error) => Err(error.into()),
    }
}

/// Takes a consumer's groups back.
pub fn release(broker: &Arc<Broker>, request: ReleaseGroupsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || answered(release_groups(&broker, &request)))
}

fn release_groups(
    broker: &Broker,
    request: &ReleaseGroupsRequest,
) -> Result<ReleaseGroupsResponse, Refused> {
    let log = broker.log();
    let stream = stream_of(log, request.stream)?;
    let applications = &broker.native.applications;
    if let Some(application) = applications.find(log, &stream, &request.shared_group)? {
        application.release(&request.consumer);
    }
    Ok(ReleaseGroupsResponse::default())
}

/// Returns where the next segments of a group start.
pub fn next_segments(broker: &Arc<Broker>, request: NextSegmentsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || answered(segment_starts(broker.log(), &request)))
}

fn segment_starts(
    log: &Log,
    request: &NextSegmentsRequest,
) -> Result<NextSegmentsResponse, Refused> {
    let stream = stream_of(log, request.stream)?;
    let (streamlet, group) = (request.streamlet, request.group);
    let mut response = NextSegmentsResponse::default();
    let Some((_, last)) = stream.available_segments(streamlet, group)? else {
        return Ok(response);
    };
    let count = request.segments_max.min(SEGMENTS_MAX);
    let end = request.from.0.saturating_add(count).min(last.0 + 1);
    for segment in (request.from.0..end).map(SegmentIndex) {
        let cursor = stream.segment_cursor(streamlet, group, segment)?;
        response.segments.push(SegmentStart {
            segment,
            position: cursor.position,
        });
    }
    Ok(response)
}

/// Lists the groups of a streamlet.
pub fn available(broker: &Arc<Broker>, request: AvailableGroupsRequest) -> Reply {
    let answer = stream_of(broker.log(), request.stream).and_then(|stream| {
        let groups = stream.available_groups(request.streamlet)?;
        Ok(AvailableGroupsResponse {
            groups: groups.map(|(first, last)| GroupRange { first, last }),
            ..AvailableGroupsResponse::default()
        })
    });
    answered(answer).into()
}

/// Lists the segments of a group.
pub fn available_segments(broker: &Arc<Broker>, request: AvailableSegmentsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let answer = stream_of(broker.log(), request.stream).and_then(|stream| {
            let segments = stream.available_segments(request.streamlet, request.group)?;
            Ok(AvailableSegmentsResponse {
                segments: segments.map(|(first, last)| SegmentRange { first, last }),
                ..AvailableSegmentsResponse::default()
            })
        });
        answered(answer)
    })
}
