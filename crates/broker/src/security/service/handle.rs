//! Carries out requests about security.

use std::sync::Arc;

use millstream_wire::{Request, Response, ResponseError, refuse};

use super::SecurityService;
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::reply::Reply;
use crate::security::{Record, Store};

/// Carries out a request about security.
pub fn handle(broker: &Arc<Broker>, client: &Client, version: i16, request: Request) -> Reply {
    let service = broker.security();
    let store = service.store.read();
    match request {
        Request::SaslHandshake(request) => match client.login() {
            Some(login) => login.lock().handshake(version, &request).into(),
            None => refuse(
                &request.into(),
                version,
                ResponseError::IllegalSaslState,
                None,
            )
            .into(),
        },
        Request::SaslAuthenticate(request) => {
            let Some(login) = client.login().cloned() else {
                let error = ResponseError::IllegalSaslState;
                return refuse(&request.into(), version, error, None).into();
            };
            let (service, from) = (Arc::clone(service), client.peer().address);
            Reply::Alone(Box::pin(async move {
                service.authenticate(&login, from, request).await.into()
            }))
        }
        Request::DescribeAcls(request) => store.describe_acls(&request).into(),
        Request::DescribeUserScramCredentials(request) => store.describe_users(&request).into(),
        Request::DescribeClientQuotas(request) => store.describe_quotas(&request).into(),
        request => {
            drop(store);
            change(service, client, version, request)
        }
    }
}

fn change(
    service: &Arc<SecurityService>,
    client: &Client,
    version: i16,
    request: Request,
) -> Reply {
    let service = Arc::clone(service);
    let (who, from) = (client.access().principal().clone(), client.peer().address);
    // A change that has begun goes on when the client disconnects.
    let made = tokio::spawn(async move {
        let made = service.change(&who, from, |store| plan(store, version, &request));
        made.await.unwrap_or_else(|error| {
            let message = error.to_string();
            refuse(&request, version, response_error(&error), Some(&message))
        })
    });
    Reply::Alone(Box::pin(async move {
        match made.await {
            Ok(response) => response.into(),
            Err(error) => Reply::Close(format!("the change was not carried out: {error}")),
        }
    }))
}

fn plan(store: &Store, version: i16, request: &Request) -> (Response, Vec<Record>) {
    match request {
        Request::CreateAcls(request) => answered(store.create_acls(request)),
        Request::DeleteAcls(request) => answered(store.delete_acls(request)),
        Request::AlterUserScramCredentials(request) => answered(store.alter_users(request)),
        Request::AlterClientQuotas(request) => answered(store.alter_quotas(request)),
        request => {
            let error = ResponseError::UnsupportedVersion;
            (refuse(request, version, error, None), Vec::new())
        }
    }
}

fn answered<R: Into<Response>>((response, records): (R, Vec<Record>)) -> (Response, Vec<Record>) {
    (response.into(), records)
}
