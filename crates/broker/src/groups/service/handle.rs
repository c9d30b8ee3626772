//! Hands requests of connections to the coordinator, and its answers to connections.

use std::sync::Arc;

use millstream_wire::{Request, ResponseError, refuse};

use super::{requests, responses};
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::Answer;
use crate::reply::Reply;

/// Handles a request about groups.
pub fn handle(broker: &Arc<Broker>, client: &Client, version: i16, request: Request) -> Reply {
    let asked = requests::translate(broker, client, version, &request);
    let groups = broker.groups();
    let answers: Vec<_> = match asked {
        Ok(asked) => asked
            .into_iter()
            .map(|request| groups.ask(request))
            .collect(),
        Err(error) => return refuse(&request, version, error, None).into(),
    };
    let damaged = Arc::clone(groups);
    let shares = Arc::clone(broker.shares());
    Reply::later(async move {
        let mut answered = Vec::with_capacity(answers.len());
        for answer in answers {
            match answer.await {
                Ok(answer) => answered.push(answer),
                // Clients look the coordinator up again, and retry.
                Err(_) => {
                    let error = match damaged.is_damaged() {
                        true => ResponseError::CoordinatorNotAvailable,
                        false => ResponseError::NotCoordinator,
                    };
                    return refuse(&request, version, error, None);
                }
            }
        }
        for answer in &answered {
            if let Answer::DeleteGroups(results) = answer {
                let deleted = results.iter().filter(|(_, result)| result.is_ok());
                shares.forget_groups(deleted.map(|(group, _)| group)).await;
            }
        }
        responses::translate(version, &request, answered)
    })
}
