//! Authorization: one place checks every request before it is carried out, and every answer before it is sent. The
//! [checks](Check) of a kind stand in its entry.

use std::sync::Arc;

use super::handle::{Handle, Refusal, edit};
use super::rights::Check;
use crate::broker::Broker;
use crate::client::Client;
use crate::reply::Reply;

/// Carries out the permitted parts of a request, and refuses the rest.
pub fn guard<R: Handle>(
    broker: &Arc<Broker>,
    client: &mut Client,
    version: i16,
    request: R,
) -> Reply {
    if let Err(error) = client.admit(R::API) {
        let why = "log in first: SaslHandshake, then SaslAuthenticate";
        return Reply::from(request.refused_since(version, error, why));
    }
    let operations = match R::CHECKS.contains(&Check::Operations) {
        true => request.operations(client.access()),
        false => None,
    };
    let reply = match client.access().is_restricted() {
        true => handle_permitted(broker, client, version, request),
        false => request.handle(broker, client, version),
    };
    match operations {
        Some(fill_in) => edit::<R>(reply, fill_in),
        None => reply,
    }
}

fn handle_permitted<R: Handle>(
    broker: &Arc<Broker>,
    client: &mut Client,
    version: i16,
    mut request: R,
) -> Reply {
    let mut refused = Vec::new();
    let mut changes = Vec::new();
    for check in R::CHECKS {
        match check {
            Check::Whole => {
                if let Err(error) = request.check(client, version) {
                    return Reply::from(request.refuse(&Refusal::denied(version, error)));
                }
            }
            Check::Items => refused = request.withhold(client, version),
            Check::Ids => changes.extend(request.withhold_unknown(client)),
            Check::Listed => changes.extend(request.hide(client.access())),
            Check::Operations | Check::Handler => {}
        }
    }
    if !request.wants_answer() && !refused.is_empty() {
        return Reply::Close("it may not write to a topic, and wants no answer".to_owned());
    }
    let reply = request.handle(broker, client, version);
    if refused.is_empty() && changes.is_empty() {
        return reply;
    }
    edit::<R>(reply, move |answer| {
        for refused in refused {
            R::merge(answer, refused);
        }
        for change in changes {
            change(answer);
        }
    })
}
