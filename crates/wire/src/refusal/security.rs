//! Refusals of requests about access rules, quotas and credentials.

use std::collections::BTreeSet;

use kafka_protocol::messages::alter_client_quotas_response::{EntityData, EntryData};
use kafka_protocol::messages::alter_user_scram_credentials_response::AlterUserScramCredentialsResult;
use kafka_protocol::messages::create_acls_response::AclCreationResult;
use kafka_protocol::messages::delete_acls_response::DeleteAclsFilterResult;
use kafka_protocol::messages::*;

use super::{Refusal, each};

impl Refusal {
    pub(super) fn describe_acls(&self) -> DescribeAclsResponse {
        DescribeAclsResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
    }

    pub(super) fn create_acls(&self, request: &CreateAclsRequest) -> CreateAclsResponse {
        CreateAclsResponse::default().with_results(each(&request.creations, |_| {
            AclCreationResult::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
        }))
    }

    pub(super) fn delete_acls(&self, request: &DeleteAclsRequest) -> DeleteAclsResponse {
        DeleteAclsResponse::default().with_filter_results(each(&request.filters, |_| {
            DeleteAclsFilterResult::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
        }))
    }

    pub(super) fn describe_client_quotas(&self) -> DescribeClientQuotasResponse {
        DescribeClientQuotasResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
            .with_entries(None)
    }

    pub(super) fn alter_client_quotas(
        &self,
        request: &AlterClientQuotasRequest,
    ) -> AlterClientQuotasResponse {
        AlterClientQuotasResponse::default().with_entries(each(&request.entries, |entry| {
            EntryData::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
                .with_entity(each(&entry.entity, |entity| {
                    EntityData::default()
                        .with_entity_type(entity.entity_type.clone())
                        .with_entity_name(entity.entity_name.clone())
                }))
        }))
    }

    pub(super) fn describe_credentials(&self) -> DescribeUserScramCredentialsResponse {
        DescribeUserScramCredentialsResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
    }

    /// Returns one result for each user, even if the request names a user several times.
    pub(super) fn alter_credentials(
        &self,
        request: &AlterUserScramCredentialsRequest,
    ) -> AlterUserScramCredentialsResponse {
        let deleted = request.deletions.iter().map(|deletion| &deletion.name);
        let changed = request.upsertions.iter().map(|upsertion| &upsertion.name);
        let users: BTreeSet<_> = deleted.chain(changed).collect();
        let results = users.into_iter().map(|user| {
            AlterUserScramCredentialsResult::default()
                .with_user(user.clone())
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
        });
        AlterUserScramCredentialsResponse::default().with_results(results.collect())
    }
}
