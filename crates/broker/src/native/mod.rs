//! The native requests: streams, chunks, groups, keys and objects, and those that are not supported.
//!
//! The broker's internal streams are hidden from all of them: they answer as if these did not
//! exist.

mod applications;
mod chunks;
mod find;
mod groups;
mod holds;
mod keys;
mod objects;
mod read;
pub(crate) mod refused;
mod shared;
mod streams;
mod upload;

use std::sync::Arc;

use millstream_wire::{Request, ResponseError, refuse};

pub use self::find::stream_named;
pub use self::groups::COMMITS_MAX;
pub use self::keys::keyed_stream;
pub use self::read::CURSORS_MAX;
pub use self::shared::Shared;
pub use self::upload::Upload;
use crate::broker::Broker;
use crate::client::Client;
use crate::push;
use crate::reply::Reply;

/// Handles a native request. Requests for streams, groups and objects run one by one in the order
/// of their connection; chunks are appended when this returns.
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
        Request::PutObject(request) => {
            let uploads = &broker.native.uploads;
            upload::put(&mut client.upload, uploads, broker.log(), request)
        }
        Request::GetObject(request) => objects::get(broker, request),
        Request::ListObjects(request) => objects::list(broker, request),
        Request::DeleteObject(request) => objects::delete(broker, request),
        Request::GetKeys(request) => keys::get(broker, client, request),
        Request::ScanKeys(request) => keys::scan(broker, client, request),
        Request::KeyHistory(request) => keys::history(broker, client, request),
        Request::PutKeys(request) => keys::put(broker, request),
        Request::ChangeHold(request) => holds::change(broker, client, request),
        Request::ListHolds(request) => holds::list(broker, request),
        Request::FindKeys(request) => keys::find(broker, client, request),
        Request::WatchKeys(request) => push::watch_keys(broker, client, &request),
        Request::LocalSocket(_) => push::local_socket(broker).into(),
        Request::Subscribe(request) => push::subscribe(broker, client, request),
        Request::Receive(request) => push::receive(client, request),
        Request::Unsubscribe(request) => push::unsubscribe(client, &request).into(),
        request => refuse(&request, version, ResponseError::UnsupportedVersion, None).into(),
    }
}
