//! Access rules: the operations that each user may perform on each resource.

use std::fmt;
use std::str::FromStr;

use millstream_wire::messages::create_acls_request::AclCreation;
use millstream_wire::messages::delete_acls_request::DeleteAclsFilter;
use millstream_wire::messages::{CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest};

use crate::client::{Client, text};
use crate::error::ClientError;

/// The value of a filter's field that matches any value.
const ANY: i8 = 1;

/// Declares words of access rules, with the numbers that Kafka's protocol has for them.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $word:ident = $number:literal, $text:literal;)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
            #[repr(i8)]
            pub enum $name {
                $($(#[$word_doc])* $word = $number,)*
            }

            impl $name {
                /// All of them.
                pub const ALL: &[$name] = &[$($name::$word,)*];

                /// The word as users write it.
                pub const fn text(self) -> &'static str {
                    match self {
                        $($name::$word => $text,)*
                    }
                }

                fn from_number(number: i8) -> Option<$name> {
                    match number {
                        $($number => Some($name::$word),)*
                        _ => None,
                    }
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.pad(self.text())
                }
            }

            impl FromStr for $name {
                type Err = String;

                fn from_str(text: &str) -> Result<$name, String> {
                    let mut all = $name::ALL.iter().copied();
                    let expected: &[&str] = &[$($text,)*];
                    all.find(|word| word.text() == text)
                        .ok_or_else(|| format!("must be one of {}", expected.join(", ")))
                }
            }
        )*
    };
}

words! {
    /// The kind of resource that a rule covers.
    ResourceType {
        /// A stream.
        Stream = 2, "stream";
        /// A consumer group.
        Group = 3, "group";
        /// The whole cluster.
        Cluster = 4, "cluster";
        /// A producer's transactions.
        TransactionalId = 5, "transactional-id";
        /// A user.
        User = 7, "user";
    }

    /// How a rule's name matches the names of resources.
    PatternType {
        /// Exactly this name; `*` matches all names.
        Literal = 3, "literal";
        /// All names with this prefix.
        Prefixed = 4, "prefixed";
    }

    /// An operation that a rule allows or denies.
    AclOperation {
        /// Everything.
        All = 2, "all";
        /// Read records.
        Read = 3, "read";
        /// Store records.
        Write = 4, "write";
        /// Create the resource.
        Create = 5, "create";
        /// Delete the resource.
        Delete = 6, "delete";
        /// Change the resource.
        Alter = 7, "alter";
        /// Describe the resource.
        Describe = 8, "describe";
        /// The requests that brokers send to each other.
        ClusterAction = 9, "cluster-action";
        /// Describe the resource's settings.
        DescribeConfigs = 10, "describe-configs";
        /// Change the resource's settings.
        AlterConfigs = 11, "alter-configs";
        /// Produce idempotently.
        IdempotentWrite = 12, "idempotent-write";
        /// Leave transactions undecided without a timeout.
        TwoPhaseCommit = 15, "two-phase-commit";
    }

    /// Whether a rule allows or denies its operation.
    Permission {
        /// Denies the operation; takes precedence over every rule that allows it.
        Deny = 2, "deny";
        /// Allows the operation.
        Allow = 3, "allow";
    }
}

/// An access rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acl {
    /// The kind of resource.
    pub resource: ResourceType,
    /// The resource's name; `*` for all.
    pub name: String,
    /// How `name` matches names of resources.
    pub pattern: PatternType,
    /// The user: `User:alice`, or `User:*` for all users.
    pub principal: String,
    /// The address that the client connects from, or `*` for all.
    pub host: String,
    /// The operation.
    pub operation: AclOperation,
    /// Whether the rule allows or denies the operation.
    pub permission: Permission,
}

/// Selects the rules that agree with all fields that are set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AclFilter {
    /// The kind of resource.
    pub resource: Option<ResourceType>,
    /// The resource's name, as the rule has it.
    pub name: Option<String>,
    /// How the rule's name matches names of resources.
    pub pattern: Option<PatternType>,
    /// The user.
    pub principal: Option<String>,
    /// The address that the client connects from.
    pub host: Option<String>,
    /// The operation.
    pub operation: Option<AclOperation>,
    /// Whether the rule allows or denies the operation.
    pub permission: Option<Permission>,
}

impl Client {
    /// Adds a rule.
    ///
    /// # Errors
    /// When the server finds the rule invalid, or the client may not change rules.
    pub async fn create_acl(&self, acl: &Acl) -> Result<(), ClientError> {
        let creation = AclCreation::default()
            .with_resource_type(acl.resource as i8)
            .with_resource_name(text(&acl.name))
            .with_resource_pattern_type(acl.pattern as i8)
            .with_principal(text(&acl.principal))
            .with_host(text(&acl.host))
            .with_operation(acl.operation as i8)
            .with_permission_type(acl.permission as i8);
        let request = CreateAclsRequest::default().with_creations(vec![creation]);
        for result in self.ask(request).await?.results {
            let message = result.error_message.as_deref();
            ClientError::check(result.error_code, message, "the access rule")?;
        }
        Ok(())
    }

    /// Returns the rules that a filter selects, without those that this client does not know.
    ///
    /// # Errors
    /// When the client may not read rules.
    pub async fn acls(&self, filter: &AclFilter) -> Result<Vec<Acl>, ClientError> {
        let request = DescribeAclsRequest::default()
            .with_resource_type_filter(filter.resource.map_or(ANY, |word| word as i8))
            .with_resource_name_filter(filter.name.as_deref().map(text))
            .with_pattern_type_filter(filter.pattern.map_or(ANY, |word| word as i8))
            .with_principal_filter(filter.principal.as_deref().map(text))
            .with_host_filter(filter.host.as_deref().map(text))
            .with_operation(filter.operation.map_or(ANY, |word| word as i8))
            .with_permission_type(filter.permission.map_or(ANY, |word| word as i8));
        let answer = self.ask(request).await?;
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, "listing access rules")?;
        let mut acls = Vec::new();
        for resource in answer.resources {
            acls.extend(resource.acls.iter().filter_map(|acl| {
                Some(Acl {
                    resource: ResourceType::from_number(resource.resource_type)?,
                    name: resource.resource_name.to_string(),
                    pattern: PatternType::from_number(resource.pattern_type)?,
                    principal: acl.principal.to_string(),
                    host: acl.host.to_string(),
                    operation: AclOperation::from_number(acl.operation)?,
                    permission: Permission::from_number(acl.permission_type)?,
                })
            }));
        }
        acls.sort();
        Ok(acls)
    }

    /// Removes the rules that a filter selects; returns their number.
    ///
    /// # Errors
    /// When the client may not change rules.
    pub async fn delete_acls(&self, filter: &AclFilter) -> Result<usize, ClientError> {
        let filter = DeleteAclsFilter::default()
            .with_resource_type_filter(filter.resource.map_or(ANY, |word| word as i8))
            .with_resource_name_filter(filter.name.as_deref().map(text))
            .with_pattern_type_filter(filter.pattern.map_or(ANY, |word| word as i8))
            .with_principal_filter(filter.principal.as_deref().map(text))
            .with_host_filter(filter.host.as_deref().map(text))
            .with_operation(filter.operation.map_or(ANY, |word| word as i8))
            .with_permission_type(filter.permission.map_or(ANY, |word| word as i8));
        let request = DeleteAclsRequest::default().with_filters(vec![filter]);
        let mut count = 0;
        for result in self.ask(request).await?.filter_results {
            let message = result.error_message.as_deref();
            ClientError::check(result.error_code, message, "removing access rules")?;
            for acl in &result.matching_acls {
                let message = acl.error_message.as_deref();
                ClientError::check(acl.error_code, message, "removing an access rule")?;
                count += 1;
            }
        }
        Ok(count)
    }
}
