//! Authorization: one place checks every request before it is carried out, and every answer before
//! it is sent. A [table](rules) names the checks of each kind of request:
//!
//! - The broker refuses a request if one of its [`demands`] as a whole is not met.
//! - From a request with a list, of topics for example, it [takes out](parts::withhold) and refuses
//!   the items that the client may not touch, and carries out the rest. Then it merges the answers.
//! - A stream that is named by an id and that the client may not know of [is answered](unknown) as
//!   one that does not exist.
//! - Resources that the client may not know of and has not named [are left out](hidden::hide) of
//!   listing answers.
//! - A client that asks for its permitted operations [gets them](operations::fill_in).
//!
//! The operation that each request needs is the same as in Apache Kafka.

mod demands;
mod hidden;
mod operations;
mod parts;
mod rights;
mod rules;
mod unknown;

use millstream_wire::messages::ProduceRequest;
use millstream_wire::{Request, ResponseError, refuse};

pub use self::rights::Access;
use self::rights::denied;
use self::rules::Check;
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
    let checks = rules::checks(request.api());
    let operations = match checks.contains(&Check::Operations) {
        true => operations::fill_in(client.access(), &request),
        false => None,
    };
    let reply = match client.access().is_restricted() {
        true => carry_out_permitted(client, version, request, checks, carry_out),
        false => carry_out(client, request),
    };
    match operations {
        Some(fill_in) => reply.map(fill_in),
        None => reply,
    }
}

fn carry_out_permitted(
    client: &mut Client,
    version: i16,
    mut request: Request,
    checks: &[Check],
    carry_out: impl FnOnce(&mut Client, Request) -> Reply,
) -> Reply {
    let mut refused = Vec::new();
    let mut changes = Vec::new();
    for check in checks {
        match check {
            Check::Whole => {
                if let Err(error) = demands::check(client, version, &request) {
                    let is_unknown = error == ResponseError::UnknownTopicId;
                    let message = is_unknown.then_some(unknown::NO_SUCH_ID);
                    return refuse(&request, version, error, message).into();
                }
            }
            Check::Items => refused = parts::withhold(client, version, &mut request),
            Check::Ids => changes.extend(unknown::withhold(client, &mut request)),
            Check::Listed => changes.extend(hidden::hide(client.access(), &request)),
            Check::Operations | Check::Handler => {}
        }
    }
    if let Request::Produce(ProduceRequest { acks: 0, .. }) = request
        && !refused.is_empty()
    {
        return Reply::Close("it may not write to a topic, and wants no answer".to_owned());
    }
    let reply = carry_out(client, request);
    if refused.is_empty() && changes.is_empty() {
        return reply;
    }
    reply.map(move |response| {
        for refused in refused {
            parts::merge(response, refused);
        }
        for change in changes {
            change(response);
        }
    })
}
