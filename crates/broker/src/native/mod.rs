//! The native requests: streams, chunks, groups and objects as they are, and what is not supported.
//!
//! What the broker keeps for itself is hidden from all of them: it is as if it were not there.

mod chunks;
mod groups;
mod objects;
mod read;
pub(crate) mod refused;
mod streams;
mod upload;

use std::sync::Arc;

use millstream_base::StreamId;
use millstream_log::{Log, Stream};
use millstream_wire::{Request, ResponseError, refuse};

use self::groups::Applications;
pub use self::groups::COMMITS_MAX;
pub use self::read::CURSORS_MAX;
use self::refused::Refused;
pub use self::upload::Upload;
use self::upload::Uploads;
use crate::broker::Broker;
use crate::client::{Client, not_internal};
use crate::push;
use crate::reply::Reply;

/// What all connections share of the native requests.
#[derive(Default)]
pub struct Shared {
    uploads: Uploads,
    applications: Applications,
}

impl Shared {
    pub fn applications(&self) -> &Applications {
        &self.applications
    }
}

/// Works on a native request. Requests for streams, groups and objects are carried out one by one in the
/// order of their connection; chunks are appended when this returns.
pub fn handle(broker: &Arc<Broker>, client: &mut Client, version: i16, request: Request) -> Reply {
    match request {
        Request::CreateStream(request) => streams::create(broker, request),
        Request::DescribeStream(request) => streams::describe(broker, request),
        Request::ListStreams(request) => streams::list(broker, request),
        Request::GrowStream(request) => streams::grow(broker, request),
        Request::DeleteStream(request) => streams::delete(broker, request),
        Request::WriteChunks(request) => chunks::write(broker, request),
        Request::ReadChunks(request) => read::read(broker, client, request),
        Request::NextGroups(request) => groups::next(broker, request),
        Request::NextSegments(request) => groups::next_segments(broker, request),
        Request::AvailableGroups(request) => groups::available(broker, request),
        Request::AvailableSegments(request) => groups::available_segments(broker, request),
        Request::CommitCursors(request) => groups::commit(broker, request),
        Request::ReleaseGroups(request) => groups::release(broker, request),
        Request::PutObject(request) => upload::put(broker, client, request),
        Request::GetObject(request) => objects::get(broker, request),
        Request::ListObjects(request) => objects::list(broker, request),
        Request::DeleteObject(request) => objects::delete(broker, request),
        Request::LocalSocket(_) => push::local_socket(broker).into(),
        Request::Subscribe(request) => push::subscribe(broker, client, request),
        Request::Receive(request) => push::receive(client, request),
        Request::Unsubscribe(request) => push::unsubscribe(client, &request).into(),
        request => refuse(&request, version, ResponseError::UnsupportedVersion, None).into(),
    }
}

/// The stream of this id.
fn stream_of(log: &Log, id: StreamId) -> Result<Stream, Refused> {
    let stream = log.stream_by_id(id).and_then(not_internal);
    stream.map_err(|_| unknown_id(id))
}

fn unknown_id(id: StreamId) -> Refused {
    Refused::new(
        ResponseError::UnknownTopicId,
        format!("there is no stream with id {id}"),
    )
}

/// The stream of this name.
pub(crate) fn stream_named(log: &Log, name: &str) -> Result<Stream, Refused> {
    Ok(not_internal(log.stream(name)?)?)
}
