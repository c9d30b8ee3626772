//! What a client may do, asked for every request in one place: before it is carried out, and of what it
//! is answered.
//!
//! - A request has [`demands`] as a whole. If one is not met it is refused.
//! - Of a request with a list, of topics say, what may not be touched is [taken out](parts::withhold)
//!   and refused, and the rest carried out. The answers are put together.
//! - A stream that is named by an id and that the client may not know of [is answered](unknown) as one that is not there.
//! - What is listed without being named [is left out](hidden::hide) of the answer.
//! - Who asks [is told](operations::tell) what it may do.
//!
//! Who needs which operation on what is as in Apache Kafka.

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

/// Carries out what the client may do of a request, and refuses the rest.
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
