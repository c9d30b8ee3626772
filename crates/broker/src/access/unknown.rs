//! Hides streams that a client names by an id. A stream that the client may not know of gets the
//! same answer, word for word, as one that does not exist, so that no answer shows which ids exist.

use millstream_base::Cursor;
use millstream_wire::native::{CommittedCursor, Payload, ReadFromCursor};
use millstream_wire::{Request, Response, ResponseError, StrBytes};

use super::Access;
use crate::client::Client;
use crate::native::{COMMITS_MAX, CURSORS_MAX};
use crate::reply::Change;
use crate::security::{Operation, Resource};

/// The message for both cases: a missing stream, and one that the client may not know of.
pub const NO_SUCH_ID: &str =
    "no stream has this id, or this user may not describe the stream that has it";

/// Returns the error for a stream that the client named by its id and may not use.
pub fn denied_by_id(access: &Access, name: &str) -> ResponseError {
    match access.sees_topic(name) {
        true => ResponseError::TopicAuthorizationFailed,
        false => ResponseError::UnknownTopicId,
    }
}

/// Takes out the cursors whose streams do not exist or must stay unknown to the client, and returns
/// the change that puts their answers in place.
pub fn withhold(client: &Client, request: &mut Request) -> Option<Change> {
    let is_unknown = |cursor: &Cursor| {
        let name = client.stream_name(cursor.stream);
        let may_read = |name: &str| {
            client
                .access()
                .would(Operation::Read, Resource::topic(name))
        };
        // If the client may know of a stream and not read it, the request was refused as a whole.
        !name.is_some_and(|name| may_read(&name))
    };
    match request {
        // Larger requests are refused as a whole, before any lookup.
        Request::ReadChunks(request) if request.cursors.len() <= CURSORS_MAX => {
            let unknown = take(&mut request.cursors, is_unknown)?;
            // The client gets the errors at once.
            request.wait_ms_max = 0;
            Some(Box::new(move |response| {
                if let Response::ReadChunks(response) = response
                    && response.error_code == 0
                {
                    put(&mut response.reads, unknown, |cursor| ReadFromCursor {
                        error_code: ResponseError::UnknownTopicId.code(),
                        error_message: Some(StrBytes::from_static_str(NO_SUCH_ID)),
                        next: cursor,
                        chunks: Payload::default(),
                    });
                }
            }))
        }
        Request::CommitCursors(request) if request.cursors.len() <= COMMITS_MAX => {
            let unknown = take(&mut request.cursors, is_unknown)?;
            Some(Box::new(move |response| {
                if let Response::CommitCursors(response) = response
                    && response.error_code == 0
                {
                    put(&mut response.commits, unknown, |_| CommittedCursor {
                        error_code: ResponseError::UnknownTopicId.code(),
                        error_message: Some(StrBytes::from_static_str(NO_SUCH_ID)),
                    });
                }
            }))
        }
        Request::ReadChunks(_) | Request::CommitCursors(_) => None,
        request => unreachable!("{:?} names no cursors", request.api()),
    }
}

/// Takes out the cursors that pass, each with its place.
fn take(
    cursors: &mut Vec<Cursor>,
    is_unknown: impl Fn(&Cursor) -> bool,
) -> Option<Vec<(usize, Cursor)>> {
    let places = std::mem::take(cursors).into_iter().enumerate();
    let (unknown, rest): (Vec<_>, Vec<_>) = places.partition(|(_, cursor)| is_unknown(cursor));
    cursors.extend(rest.into_iter().map(|(_, cursor)| cursor));
    (!unknown.is_empty()).then_some(unknown)
}

/// Puts the answers to the taken-out cursors among the others.
fn put<T>(answers: &mut Vec<T>, unknown: Vec<(usize, Cursor)>, answer: impl Fn(Cursor) -> T) {
    let mut others = std::mem::take(answers).into_iter();
    for (place, cursor) in unknown {
        let before = place - answers.len();
        answers.extend(others.by_ref().take(before));
        answers.push(answer(cursor));
    }
    answers.extend(others);
}
