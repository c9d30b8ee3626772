//! Groups and segments: lists them, hands them to consumers, and stores the consumers' progress.

use std::sync::Arc;

use millstream_base::{Cursor, SegmentIndex};
use millstream_log::{Commit, LogError, SharedGroup};
use millstream_wire::native::{
    AvailableGroupsRequest, AvailableGroupsResponse, AvailableSegmentsRequest,
    AvailableSegmentsResponse, CommitCursorsRequest, CommitCursorsResponse, CommittedCursor,
    GroupRange, NextGroupsRequest, NextGroupsResponse, NextSegmentsRequest, NextSegmentsResponse,
    ReleaseGroupsRequest, ReleaseGroupsResponse, SegmentRange, SegmentStart,
};
use millstream_wire::{ResponseError, StrBytes};

use super::blocking;
use super::unknown::{put, take_unknown};
use crate::access::NO_SUCH_ID;
use crate::broker::Broker;
use crate::client::Client;
use crate::native::find::stream_of;
use crate::native::refused::{Refused, answered};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, PAGE_MAX};
use crate::requests::handle::{Edit, Handle, Refusal, errors, refuse_with_message};
use crate::requests::rights::{Check, Checked, UNKNOWN_ID, need_group, need_listed, need_stream};
use crate::security::Operation;

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

/// Hands groups of a streamlet to a consumer.
impl Handle for NextGroupsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.shared_group)?;
        need_stream(client, Operation::Read, self.stream)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(PAGE_MAX.min(self.groups_max as usize))
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, next_groups)
    }
}

/// Returns the next segments of a group.
impl Handle for NextSegmentsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_stream(client, Operation::Describe, self.stream)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(PAGE_MAX.min(self.segments_max as usize))
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, segment_starts)
    }
}

/// Returns the range of stored groups of a streamlet.
impl Handle for AvailableGroupsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_stream(client, Operation::Describe, self.stream)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(1)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        available(broker, self)
    }
}

/// Returns the range of segments of a group.
impl Handle for AvailableSegmentsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_stream(client, Operation::Describe, self.stream)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(1)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, available_segments)
    }
}

/// Stores the progress of a consumer in its groups.
impl Handle for CommitCursorsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Ids];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.shared_group)?;
        let mut cursors = self.cursors.iter();
        cursors.try_for_each(|cursor| need_listed(client, Operation::Read, cursor.stream))
    }

    fn withhold_unknown(&mut self, client: &Client) -> Option<Edit<Self>> {
        // Larger requests are refused as a whole, before any lookup.
        if self.cursors.len() > COMMITS_MAX {
            return None;
        }
        let unknown = take_unknown(client, &mut self.cursors)?;
        Some(Box::new(move |answer| {
            if answer.error_code == 0 {
                put(&mut answer.commits, unknown, |_| CommittedCursor {
                    error_code: UNKNOWN_ID.code(),
                    error_message: Some(StrBytes::from_static_str(NO_SUCH_ID)),
                });
            }
        }))
    }

    refuse_with_message!();
    errors!(error_code, commits.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.cursors.len())
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, commit_cursors)
    }
}

/// Releases all groups of a consumer, for other consumers.
impl Handle for ReleaseGroupsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.shared_group)?;
        need_stream(client, Operation::Read, self.stream)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(1)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, release_groups)
    }
}

/// Hands groups to a consumer.
fn next_groups(broker: &Broker, request: NextGroupsRequest) -> Result<NextGroupsResponse, Refused> {
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
fn commit_cursors(
    broker: &Broker,
    request: CommitCursorsRequest,
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
fn release_groups(
    broker: &Broker,
    request: ReleaseGroupsRequest,
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
fn segment_starts(
    broker: &Broker,
    request: NextSegmentsRequest,
) -> Result<NextSegmentsResponse, Refused> {
    let stream = stream_of(broker.log(), request.stream)?;
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
fn available(broker: &Arc<Broker>, request: AvailableGroupsRequest) -> Reply {
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
fn available_segments(
    broker: &Broker,
    request: AvailableSegmentsRequest,
) -> Result<AvailableSegmentsResponse, Refused> {
    let stream = stream_of(broker.log(), request.stream)?;
    let segments = stream.available_segments(request.streamlet, request.group)?;
    Ok(AvailableSegmentsResponse {
        segments: segments.map(|(first, last)| SegmentRange { first, last }),
        ..AvailableSegmentsResponse::default()
    })
}
