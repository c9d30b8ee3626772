//! Groups: requests of their members and administrators, which the coordinator of groups answers.

mod admin;
mod classic;
mod consumer;
mod convert;
mod offsets;
mod share;
mod streams;

use std::sync::Arc;

use millstream_wire::ResponseError;
use millstream_wire::messages::{GroupId, TopicName};

pub use self::offsets::commit;
use super::handle::Handle;
use super::rights::{Checked, need_group, need_topic};
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::service::GroupService;
use crate::groups::{Answer, Request};
use crate::reply::Reply;
use crate::security::Operation;

/// Hands a request to the coordinator, and converts the content of its answer, which is of this kind.
macro_rules! coordinate {
    ($broker:expr, $version:expr, $request:expr, $asked:expr, $kind:ident($answer:ident) => $response:expr) => {
        $crate::requests::groups::coordinate_one(
            $broker,
            $version,
            $request,
            $asked,
            move |answer| match answer {
                $crate::groups::Answer::$kind($answer) => Some($response),
                _ => None,
            },
        )
    };
}
use coordinate;

/// Hands a request to the coordinator; `respond` converts its answer, and returns `None` for an answer of another kind.
fn coordinate_one<R: Handle>(
    broker: &Broker,
    version: i16,
    request: R,
    asked: Result<Request, ResponseError>,
    respond: impl FnOnce(Answer) -> Option<R::Answer> + Send + 'static,
) -> Reply {
    let asked = asked.map(|asked| vec![asked]);
    coordinate_all(broker, version, request, asked, |_, mut answers| {
        respond(answers.pop()?)
    })
}

/// Hands requests to the coordinator: one for each group if the message names several that are answered apart. `respond`
/// converts the answers, which are in the order of the requests.
fn coordinate_all<R: Handle>(
    broker: &Broker,
    version: i16,
    request: R,
    asked: Result<Vec<Request>, ResponseError>,
    respond: impl FnOnce(&R, Vec<Answer>) -> Option<R::Answer> + Send + 'static,
) -> Reply {
    let service = Arc::clone(broker.groups());
    let answers: Vec<_> = match asked {
        Ok(asked) => asked.into_iter().map(|asked| service.ask(asked)).collect(),
        Err(error) => return Reply::from(request.refused(version, error)),
    };
    Reply::later(async move {
        let mut answered = Vec::with_capacity(answers.len());
        for answer in answers {
            match answer.await {
                Ok(answer) => answered.push(answer),
                Err(_) => return request.refused(version, unavailable(&service)),
            }
        }
        let response = respond(&request, answered);
        response.unwrap_or_else(|| request.refused(version, ResponseError::InvalidRequest))
    })
}

/// Returns the error for a request that the coordinator could not answer. Clients look the coordinator up again, and retry.
pub fn unavailable(service: &GroupService) -> ResponseError {
    match service.is_damaged() {
        true => ResponseError::CoordinatorNotAvailable,
        false => ResponseError::NotCoordinator,
    }
}

/// Checks the heartbeat of a group that the broker assigns to: the group, and the topics that the member wants to read.
fn need_heartbeat(client: &Client, group: &GroupId, topics: Option<&[TopicName]>) -> Checked {
    need_group(client, Operation::Read, group)?;
    let mut topics = topics.unwrap_or_default().iter();
    topics.try_for_each(|name| need_topic(client, Operation::Describe, name))
}
