//! Access rules: who may do what with what.

use std::fmt;
use std::str::FromStr;

use millstream_wire::messages::create_acls_request::AclCreation;
use millstream_wire::messages::delete_acls_request::DeleteAclsFilter;
use millstream_wire::messages::{CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest};

use crate::client::{Client, text};
use crate::error::ClientError;

/// What a filter asks for that takes any.
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

                /// How it is written.
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
    /// What a rule is about.
    ResourceType {
        /// A stream.
        Stream = 2, "stream";
        /// A consumer group.
        Group = 3, "group";
        /// All of the cluster.
        Cluster = 4, "cluster";
        /// A producer's transactions.
        TransactionalId = 5, "transactional-id";
        /// A user.
        User = 7, "user";
    }

    /// Which names a rule is about.
    PatternType {
        /// This one; `*` for all.
        Literal = 3, "literal";
        /// All that begin with it.
        Prefixed = 4, "prefixed";
    }

    /// What may be done.
    AclOperation {
        /// Everything.
        All = 2, "all";
        /// Read records.
        Read = 3, "read";
        /// Store records.
        Write = 4, "write";
        /// Make it.
        Create = 5, "create";
        /// Delete it.
        Delete = 6, "delete";
        /// Change it.
        Alter = 7, "alter";
        /// Look at it.
        Describe = 8, "describe";
        /// What brokers do among themselves.
        ClusterAction = 9, "cluster-action";
        /// Look at its settings.
        DescribeConfigs = 10, "describe-configs";
        /// Change its settings.
        AlterConfigs = 11, "alter-configs";
        /// Have chunks numbered.
        IdempotentWrite = 12, "idempotent-write";
    }

    /// Whether it may be done.
    Permission {
        /// It must not, whatever else is said.
        Deny = 2, "deny";
        /// It may.
        Allow = 3, "allow";
    }
}

/// An access rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acl {
    /// What it is about.
    pub resource: ResourceType,
    /// Its name; `*` for all.
    pub name: String,
    /// Which names that means.
    pub pattern: PatternType,
    /// Who: `User:alice`, or `User:*` for everybody.
    pub principal: String,
    /// From where: an address, or `*`.
    pub host: String,
    /// What may be done.
    pub operation: AclOperation,
    /// Whether it may.
    pub permission: Permission,
}

/// Which rules are meant: those that agree with all that is said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AclFilter {
    /// What they are about.
    pub resource: Option<ResourceType>,
    /// Its name, as the rule has it.
    pub name: Option<String>,
    /// Which names that means.
    pub pattern: Option<PatternType>,
    /// Who.
    pub principal: Option<String>,
    /// From where.
    pub host: Option<String>,
    /// What may be done.
    pub operation: Option<AclOperation>,
    /// Whether it may.
    pub permission: Option<Permission>,
}

impl Client {
    /// Adds a rule.
    ///
    /// # Errors
    /// When it makes no sense, or it is not allowed.
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

    /// The rules that a filter means. Those that are not known here are left out.
    ///
    /// # Errors
    /// When it is not allowed.
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

    /// Removes the rules that a filter means; returns how many.
    ///
    /// # Errors
    /// When it is not allowed.
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
