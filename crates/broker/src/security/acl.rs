//! Access rules in Kafka's model: each allows or denies a user an operation on resources, from a
//! host.
//!
//! The numbers of the types are those of Kafka's protocol, on the wire and in the log.

use std::fmt;

use super::principal::{Host, Principal, is_name};

/// The longest name of a resource, in bytes.
const RESOURCE_BYTES_MAX: usize = 1024;
/// As the name of a [literal](PatternType::Literal) pattern: all resources of its type.
pub const ANY_RESOURCE: &str = "*";
/// The only resource of type [`Cluster`](ResourceType::Cluster).
pub const CLUSTER_NAME: &str = "kafka-cluster";

/// An enum whose numbers stand in messages and in the log.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i8)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// Returns the number in Kafka's protocol.
            pub const fn code(self) -> i8 {
                self as i8
            }

            /// Returns the variant of a number; `None` if it has no meaning, or one that is not
            /// supported.
            pub const fn from_code(code: i8) -> Option<Self> {
                match code {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $($name::$variant => $text,)*
                })
            }
        }
    };
}

numbered! {
    /// The types of resources that rules can cover.
    ResourceType {
        /// A topic, which is a stream.
        Topic = 2 "topic",
        /// A consumer group.
        Group = 3 "group",
        /// The cluster as a whole, named [`CLUSTER_NAME`].
        Cluster = 4 "cluster",
        /// The id of a transactional producer.
        TransactionalId = 5 "transactional-id",
    }
}

numbered! {
    /// The way in which a pattern's name matches resources.
    PatternType {
        /// Matches the resource of this name, or all if it is `*`.
        Literal = 3 "literal",
        /// Matches all resources whose names begin with it.
        Prefixed = 4 "prefixed",
    }
}

numbered! {
    /// The operations on resources.
    Operation {
        /// Every operation.
        All = 2 "All",
        /// Read records, commit offsets.
        Read = 3 "Read",
        /// Append records.
        Write = 4 "Write",
        /// Create a new one.
        Create = 5 "Create",
        /// Delete it, or records of it.
        Delete = 6 "Delete",
        /// Change it, or access to it.
        Alter = 7 "Alter",
        /// See that it exists, and its description.
        Describe = 8 "Describe",
        /// Requests that brokers send to each other.
        ClusterAction = 9 "ClusterAction",
        /// See its settings.
        DescribeConfigs = 10 "DescribeConfigs",
        /// Change its settings.
        AlterConfigs = 11 "AlterConfigs",
        /// Append records without duplicates.
        IdempotentWrite = 12 "IdempotentWrite",
        /// Leave transactions open that another system decides.
        TwoPhaseCommit = 15 "TwoPhaseCommit",
    }
}

impl ResourceType {
    /// Returns the operations on resources of this type, apart from [`All`](Operation::All). As in
    /// Apache Kafka.
    pub const fn operations(self) -> &'static [Operation] {
        use Operation::*;
        match self {
            ResourceType::Topic => &[
                Read,
                Write,
                Create,
                Delete,
                Alter,
                Describe,
                DescribeConfigs,
                AlterConfigs,
            ],
            ResourceType::Group => &[Read, Delete, Describe, DescribeConfigs, AlterConfigs],
            ResourceType::Cluster => &[
                Create,
                Alter,
                Describe,
                ClusterAction,
                DescribeConfigs,
                AlterConfigs,
                IdempotentWrite,
            ],
            ResourceType::TransactionalId => &[Write, Describe, TwoPhaseCommit],
        }
    }
}

numbered! {
    /// Whether a rule allows or denies.
    Permission {
        /// Denies, and overrides all rules that allow.
        Deny = 2 "deny",
        /// Allows.
        Allow = 3 "allow",
    }
}

/// A set of operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Operations(u16);

impl Operations {
    const fn bit(operation: Operation) -> u16 {
        1 << operation.code()
    }

    pub fn of(operations: &[Operation]) -> Self {
        let bits = operations.iter().map(|operation| Self::bit(*operation));
        Operations(bits.fold(0, |all, bit| all | bit))
    }

    pub fn insert(&mut self, operation: Operation) {
        self.0 |= Self::bit(operation);
    }

    pub fn remove(&mut self, operation: Operation) {
        self.0 &= !Self::bit(operation);
    }

    pub fn contains(self, operation: Operation) -> bool {
        self.0 & Self::bit(operation) != 0
    }

    pub fn has_any_of(self, other: Operations) -> bool {
        self.0 & other.0 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Operation> {
        let all = Operation::ALL.iter().copied();
        all.filter(move |operation| self.contains(*operation))
    }
}

impl Operation {
    /// Returns the operations whose denial also denies this operation.
    pub(super) fn denied_by(self) -> Operations {
        Operations::of(&[self, Operation::All])
    }

    /// Returns the operations whose permission also permits this operation: a client that may
    /// change a resource may see it.
    pub(super) fn allowed_by(self) -> Operations {
        use Operation::{All, Alter, AlterConfigs, Delete, Describe, DescribeConfigs, Read, Write};
        match self {
            Describe => Operations::of(&[All, Describe, Read, Write, Delete, Alter]),
            DescribeConfigs => Operations::of(&[All, DescribeConfigs, AlterConfigs]),
            _ => self.denied_by(),
        }
    }
}

/// The resource of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource<'a> {
    /// Its type.
    pub kind: ResourceType,
    /// Its name.
    pub name: &'a str,
}

impl<'a> Resource<'a> {
    /// The cluster as a whole.
    pub const CLUSTER: Resource<'static> = Resource {
        kind: ResourceType::Cluster,
        name: CLUSTER_NAME,
    };

    /// Returns the resource of a topic.
    pub const fn topic(name: &'a str) -> Self {
        let kind = ResourceType::Topic;
        Resource { kind, name }
    }

    /// Returns the resource of a consumer group.
    pub const fn group(name: &'a str) -> Self {
        let kind = ResourceType::Group;
        Resource { kind, name }
    }

    /// Returns the resource of a transactional id.
    pub const fn transactional_id(name: &'a str) -> Self {
        let kind = ResourceType::TransactionalId;
        Resource { kind, name }
    }
}

/// In a rule: the resources that it covers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    /// Their type.
    pub kind: ResourceType,
    /// Their name, or its beginning.
    pub name: String,
    /// The way in which the name matches.
    pub pattern_type: PatternType,
}

/// An access rule, in Kafka's words: an ACL binding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acl {
    /// The resources that the rule covers.
    pub pattern: Pattern,
    /// The user that it applies to.
    pub principal: Principal,
    /// The origin of the requests that it applies to.
    pub host: Host,
    /// The operation that it allows or denies.
    pub operation: Operation,
    /// Whether it allows or denies.
    pub permission: Permission,
}

impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:?} from {} to {} on {} {} {:?}",
            self.permission,
            self.principal,
            self.host,
            self.operation,
            self.pattern.pattern_type,
            self.pattern.kind,
            self.pattern.name
        )
    }
}

/// The error for a pattern that matches no possible resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// The name is not possible.
    #[error("a resource's name has 1 to {RESOURCE_BYTES_MAX} bytes and no control characters")]
    Name,
    /// The name is not that of the cluster.
    #[error("the only valid name for the cluster resource is {CLUSTER_NAME}")]
    Cluster,
}

impl Pattern {
    /// Checks the pattern.
    ///
    /// # Errors
    /// When no resource can have the name.
    pub fn check(&self) -> Result<(), InvalidPattern> {
        if !is_name(&self.name) {
            return Err(InvalidPattern::Name);
        }
        // As in Kafka, which treats all other names of the cluster as mistakes.
        let names = [CLUSTER_NAME, ANY_RESOURCE];
        if self.kind == ResourceType::Cluster && !names.contains(&&*self.name) {
            return Err(InvalidPattern::Cluster);
        }
        Ok(())
    }
}

/// The patterns that a filter finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PatternFilter {
    /// Patterns of either type.
    Any,
    /// Patterns of every type that match the named resource.
    Match,
    /// Patterns of this type.
    Is(PatternType),
}

/// A filter of access rules. A field that is `None` matches every rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AclFilter {
    /// The type of the resource.
    pub kind: Option<ResourceType>,
    /// Its name.
    pub name: Option<String>,
    /// How the name is compared.
    pub pattern_type: PatternFilter,
    /// The principal, as text: one that is not possible is in no rule.
    pub principal: Option<String>,
    /// The host, likewise.
    pub host: Option<String>,
    /// The operation.
    pub operation: Option<Operation>,
    /// Whether the rule allows or denies.
    pub permission: Option<Permission>,
}

impl AclFilter {
    /// The filter that finds all rules.
    pub const ALL: AclFilter = AclFilter {
        kind: None,
        name: None,
        pattern_type: PatternFilter::Any,
        principal: None,
        host: None,
        operation: None,
        permission: None,
    };

    /// Returns whether the filter finds this rule.
    pub fn finds(&self, acl: &Acl) -> bool {
        fn is<T: PartialEq>(filter: Option<T>, value: T) -> bool {
            filter.is_none_or(|filter| filter == value)
        }
        is(self.kind, acl.pattern.kind)
            && self.finds_name(&acl.pattern)
            && is(self.operation, acl.operation)
            && is(self.permission, acl.permission)
            && is(self.principal.clone(), acl.principal.to_string())
            && is(self.host_text(), acl.host.to_string())
    }

    fn finds_name(&self, pattern: &Pattern) -> bool {
        if let PatternFilter::Is(pattern_type) = self.pattern_type
            && pattern_type != pattern.pattern_type
        {
            return false;
        }
        let Some(name) = &self.name else {
            return true;
        };
        match (self.pattern_type, pattern.pattern_type) {
            (PatternFilter::Match, PatternType::Prefixed) => name.starts_with(&pattern.name),
            (PatternFilter::Match, PatternType::Literal) => {
                *name == pattern.name || pattern.name == ANY_RESOURCE
            }
            _ => *name == pattern.name,
        }
    }

    /// Returns the host in its normal form: all forms of an address are the same host.
    fn host_text(&self) -> Option<String> {
        let host = self.host.as_ref()?;
        Some(
            host.parse::<Host>()
                .map_or_else(|_| host.clone(), |host| host.to_string()),
        )
    }
}
