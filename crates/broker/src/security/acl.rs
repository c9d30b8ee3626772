//! What access rules say, in Kafka's model: who may do what to which resource, and from where.
//!
//! The numbers of the types are those of Kafka's protocol, on the wire and in the log.

use std::fmt;

use super::principal::{Host, Principal, is_name};

/// No name of a resource is longer, in bytes.
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
            /// All that there are.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// The number in Kafka's protocol.
            pub const fn code(self) -> i8 {
                self as i8
            }

            /// What the number means; `None` if nothing, or nothing that is supported.
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
    /// What kinds of things there are rules for.
    ResourceType {
        /// A topic, that is, a stream.
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
    /// Which resources a pattern's name means.
    PatternType {
        /// The one of this name, or all if it is `*`.
        Literal = 3 "literal",
        /// All whose names begin with it.
        Prefixed = 4 "prefixed",
    }
}

numbered! {
    /// What can be done to a resource.
    Operation {
        /// Whatever there is.
        All = 2 "All",
        /// Read records, commit positions.
        Read = 3 "Read",
        /// Append records.
        Write = 4 "Write",
        /// Make a new one.
        Create = 5 "Create",
        /// Remove it, or records of it.
        Delete = 6 "Delete",
        /// Change it, or access to it.
        Alter = 7 "Alter",
        /// See that it exists, and what it is like.
        Describe = 8 "Describe",
        /// What brokers do among themselves.
        ClusterAction = 9 "ClusterAction",
        /// See its settings.
        DescribeConfigs = 10 "DescribeConfigs",
        /// Change its settings.
        AlterConfigs = 11 "AlterConfigs",
        /// Append records without duplicates.
        IdempotentWrite = 12 "IdempotentWrite",
        /// Leave transactions open that another system decides about.
        TwoPhaseCommit = 15 "TwoPhaseCommit",
    }
}

impl ResourceType {
    /// What can be done to resources of this type, apart from [`All`](Operation::All) of it. As in Apache Kafka.
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
    /// Whether a rule lets through or stops.
    Permission {
        /// Stops, whatever other rules say.
        Deny = 2 "deny",
        /// Lets through.
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
    /// A rule that stops one of these stops this operation.
    pub(super) fn denied_by(self) -> Operations {
        Operations::of(&[self, Operation::All])
    }

    /// A rule that lets one of these through lets this operation through: who may change a thing may
    /// see it.
    pub(super) fn allowed_by(self) -> Operations {
        use Operation::{All, Alter, AlterConfigs, Delete, Describe, DescribeConfigs, Read, Write};
        match self {
            Describe => Operations::of(&[All, Describe, Read, Write, Delete, Alter]),
            DescribeConfigs => Operations::of(&[All, DescribeConfigs, AlterConfigs]),
            _ => self.denied_by(),
        }
    }
}

/// What a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource<'a> {
    /// What kind of thing.
    pub kind: ResourceType,
    /// What it is called.
    pub name: &'a str,
}

impl<'a> Resource<'a> {
    /// The cluster as a whole.
    pub const CLUSTER: Resource<'static> = Resource {
        kind: ResourceType::Cluster,
        name: CLUSTER_NAME,
    };

    /// A topic.
    pub const fn topic(name: &'a str) -> Self {
        let kind = ResourceType::Topic;
        Resource { kind, name }
    }

    /// A consumer group.
    pub const fn group(name: &'a str) -> Self {
        let kind = ResourceType::Group;
        Resource { kind, name }
    }

    /// The id of a transactional producer.
    pub const fn transactional_id(name: &'a str) -> Self {
        let kind = ResourceType::TransactionalId;
        Resource { kind, name }
    }
}

/// In a rule: which resources it is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    /// What kind of thing.
    pub kind: ResourceType,
    /// What they are called.
    pub name: String,
    /// How the name is meant.
    pub pattern_type: PatternType,
}

/// An access rule, in Kafka's words: an ACL binding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acl {
    /// Which resources it is about.
    pub pattern: Pattern,
    /// Whom.
    pub principal: Principal,
    /// Requests from where.
    pub host: Host,
    /// What they do.
    pub operation: Operation,
    /// Whether they may.
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

/// Refused: a pattern that no resource can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// The name.
    #[error("a resource's name has 1 to {RESOURCE_BYTES_MAX} bytes and no control characters")]
    Name,
    /// The name of the cluster.
    #[error("the only valid name for the cluster resource is {CLUSTER_NAME}")]
    Cluster,
}

impl Pattern {
    /// Checks it.
    ///
    /// # Errors
    /// When no resource can have the name.
    pub fn check(&self) -> Result<(), InvalidPattern> {
        if !is_name(&self.name) {
            return Err(InvalidPattern::Name);
        }
        // As in Kafka, which leaves all other names of the cluster to mistakes.
        let names = [CLUSTER_NAME, ANY_RESOURCE];
        if self.kind == ResourceType::Cluster && !names.contains(&&*self.name) {
            return Err(InvalidPattern::Cluster);
        }
        Ok(())
    }
}

/// Which patterns are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternFilter {
    /// Of either type.
    Any,
    /// Those that are about the named resource, by whatever pattern.
    Match,
    /// Of this type.
    Is(PatternType),
}

/// Which rules are looked for. What is `None` is not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclFilter {
    /// The type of the resource.
    pub kind: Option<ResourceType>,
    /// Its name.
    pub name: Option<String>,
    /// How the name is compared.
    pub pattern_type: PatternFilter,
    /// The principal, as text: one that nobody can have is in no rule.
    pub principal: Option<String>,
    /// The host, likewise.
    pub host: Option<String>,
    /// The operation.
    pub operation: Option<Operation>,
    /// Whether the rule lets through.
    pub permission: Option<Permission>,
}

impl AclFilter {
    /// All rules.
    pub const ALL: AclFilter = AclFilter {
        kind: None,
        name: None,
        pattern_type: PatternFilter::Any,
        principal: None,
        host: None,
        operation: None,
        permission: None,
    };

    /// Whether it finds this rule.
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

    /// An address is the same in all its forms.
    fn host_text(&self) -> Option<String> {
        let host = self.host.as_ref()?;
        Some(
            host.parse::<Host>()
                .map_or_else(|_| host.clone(), |host| host.to_string()),
        )
    }
}
