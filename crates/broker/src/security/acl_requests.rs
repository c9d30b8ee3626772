//! Kafka's requests about access rules: DescribeAcls, CreateAcls and DeleteAcls. The caller checks
//! whether the client may send them.

use std::collections::HashSet;

use millstream_wire::messages::create_acls_request::AclCreation;
use millstream_wire::messages::create_acls_response::AclCreationResult;
use millstream_wire::messages::delete_acls_request::DeleteAclsFilter;
use millstream_wire::messages::delete_acls_response::{
    DeleteAclsFilterResult, DeleteAclsMatchingAcl,
};
use millstream_wire::messages::describe_acls_response::{AclDescription, DescribeAclsResource};
use millstream_wire::messages::{
    CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse,
    DescribeAclsRequest, DescribeAclsResponse,
};
use millstream_wire::{ResponseError, StrBytes};

use super::Record;
use super::acl::{
    Acl, AclFilter, Operation, Pattern, PatternFilter, PatternType, Permission, ResourceType,
};
use super::store::Store;

/// The most access rules: each takes memory. Kafka has no bound.
pub const ACLS_MAX: usize = 1_000_000;

/// In a filter: matches everything.
const ANY: i8 = 1;
/// In a filter: the patterns of every type that match the named resource.
const MATCH: i8 = 2;

/// Why a request about rules is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("{field} {code} is unknown, or not supported")]
    Code { field: &'static str, code: i8 },
    #[error(transparent)]
    Pattern(#[from] super::acl::InvalidPattern),
    #[error(transparent)]
    Principal(#[from] super::principal::InvalidPrincipal),
    #[error(transparent)]
    Host(#[from] super::principal::InvalidHost),
    #[error("there may be {ACLS_MAX} access rules at most")]
    TooMany,
}

impl Refusal {
    fn code(&self) -> i16 {
        match self {
            Refusal::TooMany => ResponseError::PolicyViolation.code(),
            _ => ResponseError::InvalidRequest.code(),
        }
    }

    fn message(&self) -> Option<StrBytes> {
        Some(StrBytes::from_string(self.to_string()))
    }
}

impl Store {
    /// Returns the rules that the request's filter finds, by pattern.
    pub fn describe_acls(&self, request: &DescribeAclsRequest) -> DescribeAclsResponse {
        let filter = filter(
            [request.resource_type_filter, request.pattern_type_filter],
            [request.operation, request.permission_type],
            [
                &request.resource_name_filter,
                &request.principal_filter,
                &request.host_filter,
            ],
        );
        match filter {
            Ok(filter) => {
                let resources = by_pattern(&self.acls().find(&filter));
                DescribeAclsResponse::default()
                    .with_error_message(None)
                    .with_resources(resources)
            }
            Err(refusal) => DescribeAclsResponse::default()
                .with_error_code(refusal.code())
                .with_error_message(refusal.message()),
        }
    }

    /// Returns the records that add the request's rules. Adding an existing rule succeeds and needs
    /// no record.
    pub fn create_acls(&self, request: &CreateAclsRequest) -> (CreateAclsResponse, Vec<Record>) {
        let mut records = Vec::new();
        let mut added = HashSet::new();
        let results = request.creations.iter().map(|creation| {
            let result = self.create_acl(creation, &mut added);
            match result {
                Ok(record) => {
                    records.extend(record);
                    AclCreationResult::default().with_error_message(None)
                }
                Err(refusal) => AclCreationResult::default()
                    .with_error_code(refusal.code())
                    .with_error_message(refusal.message()),
            }
        });
        let results = results.collect();
        let response = CreateAclsResponse::default().with_results(results);
        (response, records)
    }

    fn create_acl(
        &self,
        creation: &AclCreation,
        added: &mut HashSet<Acl>,
    ) -> Result<Option<Record>, Refusal> {
        let acl = acl(creation)?;
        let Some(record) = self.acl_record(&acl)? else {
            return Ok(None);
        };
        if self.acls().len() + added.len() >= ACLS_MAX {
            return Err(Refusal::TooMany);
        }
        Ok(added.insert(acl).then_some(record))
    }

    /// Returns the records that remove the rules that the request's filters find, one for each
    /// rule.
    pub fn delete_acls(&self, request: &DeleteAclsRequest) -> (DeleteAclsResponse, Vec<Record>) {
        let mut records = Vec::new();
        let mut removed = HashSet::new();
        let mut earlier = HashSet::new();
        let results = request
            .filters
            .iter()
            .map(|wanted| match filter_of(wanted) {
                // The first of two equal filters leaves no rule for the second.
                Ok(filter) if !earlier.insert(filter.clone()) => {
                    DeleteAclsFilterResult::default().with_error_message(None)
                }
                Ok(filter) => {
                    let found = self.acls().find(&filter);
                    let matching = found.iter().map(matching).collect();
                    for acl in found {
                        let record = self.acl_tombstone(&acl);
                        records.extend(record.filter(|_| removed.insert(acl)));
                    }
                    DeleteAclsFilterResult::default()
                        .with_error_message(None)
                        .with_matching_acls(matching)
                }
                Err(refusal) => DeleteAclsFilterResult::default()
                    .with_error_code(refusal.code())
                    .with_error_message(refusal.message()),
            });
        let results = results.collect();
        let response = DeleteAclsResponse::default().with_filter_results(results);
        (response, records)
    }
}

fn acl(creation: &AclCreation) -> Result<Acl, Refusal> {
    let kind = known(
        "resource type",
        creation.resource_type,
        ResourceType::from_code,
    )?;
    let pattern_type = creation.resource_pattern_type;
    let pattern_type = known("pattern type", pattern_type, PatternType::from_code)?;
    let pattern = Pattern {
        kind,
        pattern_type,
        name: creation.resource_name.to_string(),
    };
    pattern.check()?;
    Ok(Acl {
        pattern,
        principal: creation.principal.parse()?,
        host: creation.host.parse()?,
        operation: known("operation", creation.operation, Operation::from_code)?,
        permission: known(
            "permission type",
            creation.permission_type,
            Permission::from_code,
        )?,
    })
}

fn known<T>(field: &'static str, code: i8, known: fn(i8) -> Option<T>) -> Result<T, Refusal> {
    known(code).ok_or(Refusal::Code { field, code })
}

fn known_or_any<T>(
    field: &'static str,
    code: i8,
    from_code: fn(i8) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    match code {
        ANY => Ok(None),
        _ => known(field, code, from_code).map(Some),
    }
}

fn filter_of(wanted: &DeleteAclsFilter) -> Result<AclFilter, Refusal> {
    filter(
        [wanted.resource_type_filter, wanted.pattern_type_filter],
        [wanted.operation, wanted.permission_type],
        [
            &wanted.resource_name_filter,
            &wanted.principal_filter,
            &wanted.host_filter,
        ],
    )
}

fn filter(
    [kind, pattern_type]: [i8; 2],
    [operation, permission]: [i8; 2],
    texts: [&Option<StrBytes>; 3],
) -> Result<AclFilter, Refusal> {
    let [name, principal, host] = texts.map(|text| text.as_ref().map(|text| text.to_string()));
    Ok(AclFilter {
        kind: known_or_any("resource type", kind, ResourceType::from_code)?,
        name,
        pattern_type: match pattern_type {
            ANY => PatternFilter::Any,
            MATCH => PatternFilter::Match,
            code => PatternFilter::Is(known("pattern type", code, PatternType::from_code)?),
        },
        principal,
        host,
        operation: known_or_any("operation", operation, Operation::from_code)?,
        permission: known_or_any("permission type", permission, Permission::from_code)?,
    })
}

fn by_pattern(sorted: &[Acl]) -> Vec<DescribeAclsResource> {
    let same = sorted.chunk_by(|one, other| one.pattern == other.pattern);
    let described = same.map(|acls| {
        let pattern = &acls[0].pattern;
        DescribeAclsResource::default()
            .with_resource_type(pattern.kind.code())
            .with_resource_name(StrBytes::from_string(pattern.name.clone()))
            .with_pattern_type(pattern.pattern_type.code())
            .with_acls(acls.iter().map(description).collect())
    });
    described.collect()
}

fn description(acl: &Acl) -> AclDescription {
    AclDescription::default()
        .with_principal(StrBytes::from_string(acl.principal.to_string()))
        .with_host(StrBytes::from_string(acl.host.to_string()))
        .with_operation(acl.operation.code())
        .with_permission_type(acl.permission.code())
}

fn matching(acl: &Acl) -> DeleteAclsMatchingAcl {
    DeleteAclsMatchingAcl::default()
        .with_error_message(None)
        .with_resource_type(acl.pattern.kind.code())
        .with_resource_name(StrBytes::from_string(acl.pattern.name.clone()))
        .with_pattern_type(acl.pattern.pattern_type.code())
        .with_principal(StrBytes::from_string(acl.principal.to_string()))
        .with_host(StrBytes::from_string(acl.host.to_string()))
        .with_operation(acl.operation.code())
        .with_permission_type(acl.permission.code())
}
