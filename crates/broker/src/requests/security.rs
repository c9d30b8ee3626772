//! Logins, access rules, users and quotas.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_wire::messages::alter_client_quotas_response::{EntityData, EntryData};
use millstream_wire::messages::alter_user_scram_credentials_response::AlterUserScramCredentialsResult;
use millstream_wire::messages::create_acls_response::AclCreationResult;
use millstream_wire::messages::delete_acls_response::DeleteAclsFilterResult;
use millstream_wire::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse, CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest,
    DeleteAclsResponse, DescribeAclsRequest, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse, DescribeUserScramCredentialsRequest, SaslAuthenticateRequest,
    SaslHandshakeRequest,
};
use millstream_wire::{Question, ResponseError};

use super::bounds::{Bound, BoundContext, nested};
use super::handle::{
    Handle, Refusal, each, errors, messages, refuse_with_code, refuse_with_message,
};
use super::rights::{Check, Checked, need_cluster};
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::reply::Reply;
use crate::security::{Operation, Record, Store};

/// Chooses the mechanism of a login.
impl Handle for SaslHandshakeRequest {
    const CHECKS: &'static [Check] = &[];

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, _: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        match client.login() {
            Some(login) => login.lock().handshake(version, &self).into(),
            None => self
                .refused(version, ResponseError::IllegalSaslState)
                .into(),
        }
    }
}

/// Carries out a step of a login.
impl Handle for SaslAuthenticateRequest {
    const CHECKS: &'static [Check] = &[];

    refuse_with_message!();
    errors!(error_code);
    messages!(error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        let Some(login) = client.login().cloned() else {
            let error = ResponseError::IllegalSaslState;
            return self.refused(version, error).into();
        };
        let (service, from) = (Arc::clone(broker.security()), client.peer().address);
        Reply::Alone(Box::pin(async move {
            service.authenticate(&login, from, self).await.into()
        }))
    }
}

/// Lists access rules.
impl Handle for DescribeAclsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Describe)
    }

    refuse_with_message!();
    errors!(error_code);
    messages!(error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        broker.security().store().describe_acls(&self).into()
    }
}

/// Creates access rules.
impl Handle for CreateAclsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Alter)
    }

    fn refuse(&self, refusal: &Refusal) -> CreateAclsResponse {
        CreateAclsResponse::default().with_results(each(&self.creations, |_| {
            AclCreationResult::default()
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
        }))
    }

    errors!(results.error_code);
    messages!(results.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.creations.len())
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        change(broker, client, version, self, Store::create_acls)
    }
}

/// Deletes access rules.
impl Handle for DeleteAclsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Alter)
    }

    fn refuse(&self, refusal: &Refusal) -> DeleteAclsResponse {
        DeleteAclsResponse::default().with_filter_results(each(&self.filters, |_| {
            DeleteAclsFilterResult::default()
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
        }))
    }

    errors!(filter_results.error_code);
    messages!(
        filter_results.error_message,
        filter_results.matching_acls.error_message
    );

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        change(broker, client, version, self, Store::delete_acls)
    }
}

/// Lists the users that have a password, and how its hash was made.
impl Handle for DescribeUserScramCredentialsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Describe)
    }

    refuse_with_message!();
    errors!(error_code, results.error_code);
    messages!(error_message, results.error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        broker.security().store().describe_users(&self).into()
    }
}

/// Sets and removes the passwords of users.
impl Handle for AlterUserScramCredentialsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Alter)
    }

    /// Returns one result for each user, even if the request names a user several times.
    fn refuse(&self, refusal: &Refusal) -> AlterUserScramCredentialsResponse {
        let deleted = self.deletions.iter().map(|deletion| &deletion.name);
        let changed = self.upsertions.iter().map(|upsertion| &upsertion.name);
        let users: BTreeSet<_> = deleted.chain(changed).collect();
        let results = users.into_iter().map(|user| {
            AlterUserScramCredentialsResult::default()
                .with_user(user.clone())
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
        });
        AlterUserScramCredentialsResponse::default().with_results(results.collect())
    }

    errors!(results.error_code);
    messages!(results.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.deletions.len() + self.upsertions.len())
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        change(broker, client, version, self, Store::alter_users)
    }
}

/// Lists quotas of users, clients and addresses.
impl Handle for DescribeClientQuotasRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::DescribeConfigs)
    }

    fn refuse(&self, refusal: &Refusal) -> DescribeClientQuotasResponse {
        DescribeClientQuotasResponse::default()
            .with_error_code(refusal.code)
            .with_error_message(refusal.message.clone())
            .with_entries(None)
    }

    errors!(error_code);
    messages!(error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        broker.security().store().describe_quotas(&self).into()
    }
}

/// Changes quotas of users, clients and addresses.
impl Handle for AlterClientQuotasRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::AlterConfigs)
    }

    fn refuse(&self, refusal: &Refusal) -> AlterClientQuotasResponse {
        AlterClientQuotasResponse::default().with_entries(each(&self.entries, |entry| {
            EntryData::default()
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
                .with_entity(each(&entry.entity, |entity| {
                    EntityData::default()
                        .with_entity_type(entity.entity_type.clone())
                        .with_entity_name(entity.entity_name.clone())
                }))
        }))
    }

    errors!(entries.error_code);
    messages!(entries.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(nested(&self.entries, |entry| entry.entity.len()))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        change(broker, client, version, self, Store::alter_quotas)
    }
}

/// The answer to a request, and the records that make its change.
type Planned<R> = (<R as Question>::Answer, Vec<Record>);

/// Makes the change that `plan` returns, with its answer.
fn change<R: Handle + Sync>(
    broker: &Broker,
    client: &Client,
    version: i16,
    request: R,
    plan: fn(&Store, &R) -> Planned<R>,
) -> Reply {
    let service = Arc::clone(broker.security());
    let (who, from) = (client.access().principal().clone(), client.peer().address);
    // A change that has begun goes on when the client disconnects.
    let made = tokio::spawn(async move {
        let made = service.change(&who, from, |store| plan(store, &request));
        made.await.unwrap_or_else(|error| {
            let message = error.to_string();
            request.refused_since(version, response_error(&error), &message)
        })
    });
    Reply::Alone(Box::pin(async move {
        match made.await {
            Ok(response) => Reply::from(response),
            Err(error) => Reply::Close(format!("the change was not carried out: {error}")),
        }
    }))
}
