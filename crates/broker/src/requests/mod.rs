//! The requests: an entry for each kind, by families.
//!
//! The requests lie above the state of [`Broker`], which knows none of them. A kind consists of its row in the [table of
//! requests](millstream_wire::apis) and of its [entry](Handle) here; this file hands each request, and each answer, to its
//! entry.

mod bounds;
mod cluster;
mod commits;
mod configs;
mod features;
mod fetch;
mod groups;
mod guard;
mod handle;
mod native;
mod offsets;
mod produce;
mod producers;
mod replicas;
mod rights;
mod security;
mod shares;
mod telemetry;
#[cfg(test)]
mod tests;
mod topics;
mod transactions;

use std::sync::Arc;
use std::time::Duration;

use millstream_wire::{ApiKey, Request, RequestHeader, Response};

pub use self::bounds::Bound;
use self::bounds::BoundContext;
pub use self::configs::started_documentation;
use self::guard::guard;
use self::handle::Handle;
use crate::broker::Broker;
use crate::client::Client;
use crate::reply::Reply;
use crate::security::Traffic;

macro_rules! table {
    ($($name:ident = $key:literal, $request:ty, $response:ty, $versions:expr, $flexible:expr;)*) => {
        /// Carries out a request, after the login and the access rules. When this returns, its changes are made, or
        /// under way in their order.
        pub fn handle(
            broker: &Arc<Broker>,
            client: &mut Client,
            header: &RequestHeader,
            request: Request,
        ) -> Reply {
            client.set_id(header.client_id.as_deref());
            match request {
                $(Request::$name(request) => guard(broker, client, header.version, request),)*
            }
        }

        /// Returns the bound of the answer to a request, whose frame has `request_bytes` bytes.
        pub fn bound(
            broker: &Broker,
            client: &mut Client,
            version: i16,
            request_bytes: usize,
            request: &Request,
        ) -> Bound {
            let mut context = BoundContext {
                broker,
                client,
                version,
                request_bytes,
            };
            match request {
                $(Request::$name(request) => request.bound(&mut context),)*
            }
        }

        /// Returns whether an answer reports an error, for the whole request or for a part of it.
        pub fn has_error(response: &Response) -> bool {
            match response {
                $(Response::$name(answer) => <$request>::has_error(answer),)*
            }
        }

        /// Makes empty error messages in an answer null.
        pub fn clear_messages(response: &mut Response) {
            match response {
                $(Response::$name(answer) => <$request>::clear_messages(answer),)*
            }
        }

        /// Writes into the answer for how long the client is held; returns `false` where the answer has no place for it.
        pub fn tell_throttle(response: &mut Response, wait: Duration) -> bool {
            let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
            match response {
                $(Response::$name(answer) => <$request>::tell_throttle(answer, wait_ms),)*
            }
        }

        /// Returns the direction in which records go with a request, if they do.
        pub fn traffic_of(api: ApiKey) -> Option<Traffic> {
            match api {
                $(ApiKey::$name => <$request>::TRAFFIC,)*
            }
        }
    };
}

millstream_wire::apis!(table);
