//! Authorization: one place checks every request before it is carried out, and every answer before
//! it is sent.
//!
//! - The broker refuses a request if one of its [`demands`] as a whole is not met.
//! - From a request with a list, of topics for example, it [takes out](parts::withhold) and refuses
//!   the items that the client may not touch, and carries out the rest. Then it merges the answers.
//! - A stream that is named by an id and that the client may not know of [is answered](unknown) as
//!   one that does not exist.
//! - Resources that the client may not know of and has not named [are left out](hidden::hide) of
//!   listing answers.
//! - A client that asks for its permitted operations [gets them](operations::tell).
//!
//! The operation that each request needs is the same as in Apache Kafka.

mod demands;
mod hidden;
mod operations;
mod parts;
mod rights;
mod unknown;

use millstream_wire::messages::ProduceRequest;
use millstream_wire::{Request, ResponseError, refuse};

pub use self::rights::Access;
use self::rights::denied;
pub use self::unknown::denied_by_id;
use crate::client::Client;
use crate::reply::Reply;

/// Carries out the permitted parts of a request, and refuses the rest.
pub fn guard(
    client: &mut Client,
    version: i16,
    request: Request,
    carry_out: impl FnOnce(&mut Client, Request) -> Reply,
) -> Reply {
    let tell = operations::tell(client.access(), &request);
    let reply = carry_out_permitted(client, version, request, carry_out);
    match tell {
        Some(tell) => reply.map(tell),
        None => reply,
    }
}

fn carry_out_permitted(
    client: &mut Client,
    version: i16,
    mut request: Request,
    carry_out: impl FnOnce(&mut Client, Request) -> Reply,
) -> Reply {
    if !client.access().is_restricted() {
        return carry_out(client, request);
    }
    if let Err(error) = demands::check(client, version, &request) {
        let is_unknown = error == ResponseError::UnknownTopicId;
        let message = is_unknown.then_some(unknown::NO_SUCH_ID);
        return refuse(&request, version, error, message).into();
    }
    let refused = parts::withhold(client, version, &mut request);
    if let Request::Produce(ProduceRequest { acks: 0, .. }) = request
        && !refused.is_empty()
    {
        return Reply::Close("it may not write to a topic, and wants no answer".to_owned());
    }
    let hidden = hidden::hide(client.access(), &request);
    let unknown = unknown::withhold(client, &mut request);
    let reply = carry_out(client, request);
    if refused.is_empty() && hidden.is_none() && unknown.is_none() {
        return reply;
    }
    reply.map(move |response| {
        for refused in refused {
            parts::merge(response, refused);
        }
        for change in hidden.into_iter().chain(unknown) {
            change(response);
        }
    })
}
