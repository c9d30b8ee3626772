//! The native requests: streams, chunks, groups, keys, objects and subscriptions.

mod chunks;
mod groups;
mod holds;
mod keys;
mod objects;
mod push;
mod read;
mod streams;
mod unknown;

use std::sync::Arc;

use millstream_wire::Response;
use millstream_wire::native::Answer;

use crate::broker::Broker;
use crate::native::refused::{Refused, answered};
use crate::reply::Reply;

/// Carries out a request on a thread that may block. Later requests of the connection come after it.
fn blocking<R: Send + 'static, A: Answer + Into<Response> + 'static>(
    broker: &Arc<Broker>,
    request: R,
    work: fn(&Broker, R) -> Result<A, Refused>,
) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || answered(work(&broker, request)))
}
