//! The audit log: one line for each operation or attempt, with its user.

use std::fmt;
use std::net::SocketAddr;

use millstream_wire::sasl::{Hash, Mechanism};

use super::Record;
use super::acl::{Acl, Operation, Resource};
use super::ip_quotas::{ConnectionRate, IpEntity};
use super::principal::Principal;
use super::quotas::{Entity, EntityPart, Limits};
use super::record::Change;

/// The `tracing` target of the lines.
pub const TARGET: &str = "audit";
/// The longest name in a line. Longer names, which can only be of users that do not exist, are cut
/// off.
const NAME_CHARACTERS_MAX: usize = 200;

/// The identity of a client, proved or claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity<'a> {
    /// An authenticated user.
    Known(&'a Principal),
    /// The name that a client claims and could not prove.
    Claimed(&'a str),
}

/// An audited operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// A login.
    LogIn(Option<Mechanism>),
    /// The use of a resource.
    Use(Operation, Resource<'a>),
    /// A new credential for a user, be it the same one.
    SetCredential(&'a str, Hash),
    /// The removal of a credential.
    RemoveCredential(&'a str, Hash),
    /// A new access rule.
    AddAcl(&'a Acl),
    /// The removal of an access rule.
    RemoveAcl(&'a Acl),
    /// New limits of clients.
    Limit(&'a Entity, Limits),
    /// A new limit on the connections that addresses may open per second.
    LimitConnections(IpEntity, Option<ConnectionRate>),
}

/// One line. It has no field that could hold a secret.
///
/// ```
/// use millstream_broker::security::{AuditEvent, AuditAction, Operation, Principal, Resource, Identity};
///
/// let alice = Principal::user("alice").unwrap();
/// let event = AuditEvent {
///     identity: Identity::Known(&alice),
///     from: "10.0.0.1:50000".parse().unwrap(),
///     action: AuditAction::Use(Operation::Write, Resource::topic("orders")),
///     allowed: false,
/// };
/// assert_eq!(
///     event.to_string(),
///     r#"denied "User:alice" from 10.0.0.1:50000: Write topic "orders""#
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The client's identity.
    pub identity: Identity<'a>,
    /// The client's address.
    pub from: SocketAddr,
    /// The operation.
    pub action: Action<'a>,
    /// Whether the broker allowed it.
    pub allowed: bool,
}

impl Event<'_> {
    /// Writes the line: at level debug for the permitted use of a resource, which happens for every
    /// record, and at level info for everything else.
    pub fn log(&self) {
        match (self.action, self.allowed) {
            (Action::Use(..), true) => tracing::debug!(target: TARGET, "audit: {self}"),
            _ => tracing::info!(target: TARGET, "audit: {self}"),
        }
    }
}

/// Writes a line for every change that these records make.
pub fn log_changes(identity: Identity<'_>, from: SocketAddr, records: &[Record]) {
    for record in records {
        let change = Change::decode(record.clone());
        let Some(action) = change.as_ref().ok().and_then(Action::of) else {
            continue;
        };
        let event = Event {
            identity,
            from,
            action,
            allowed: true,
        };
        event.log();
    }
}

impl<'a> Action<'a> {
    /// Returns the operation that made this change; `None` if no user asked for it.
    pub(super) fn of(change: &'a Change) -> Option<Self> {
        match change {
            Change::Secret(_) => None,
            Change::Credential(user, hash, Some(_)) => Some(Action::SetCredential(user, *hash)),
            Change::Credential(user, hash, None) => Some(Action::RemoveCredential(user, *hash)),
            Change::Acl(acl, true) => Some(Action::AddAcl(acl)),
            Change::Acl(acl, false) => Some(Action::RemoveAcl(acl)),
            Change::Quota(entity, limits) => Some(Action::Limit(entity, *limits)),
            Change::ConnectionRate(entity, rate) => Some(Action::LimitConnections(*entity, *rate)),
        }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed { "allowed" } else { "denied" };
        write!(
            f,
            "{verdict} {} from {}: {}",
            self.identity, self.from, self.action
        )
    }
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Known(principal) => write!(f, "{principal:?}"),
            Identity::Claimed(name) => write!(f, "unverified {}", Quoted(name)),
        }
    }
}

impl fmt::Display for Action<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::LogIn(Some(mechanism)) => write!(f, "log in by {mechanism}"),
            Action::LogIn(None) => f.write_str("log in"),
            Action::Use(operation, Resource { kind, name }) => {
                write!(f, "{operation} {kind} {}", Quoted(name))
            }
            Action::SetCredential(user, hash) => {
                write!(
                    f,
                    "set {} of user {}",
                    Mechanism::Scram(*hash),
                    Quoted(user)
                )
            }
            Action::RemoveCredential(user, hash) => {
                write!(
                    f,
                    "remove {} of user {}",
                    Mechanism::Scram(*hash),
                    Quoted(user)
                )
            }
            Action::AddAcl(acl) => write!(f, "add rule {acl}"),
            Action::RemoveAcl(acl) => write!(f, "remove rule {acl}"),
            Action::Limit(entity, limits) => {
                f.write_str("limit")?;
                let parts = [("user", &entity.user), ("client id", &entity.client_id)];
                for (kind, part) in parts {
                    match part {
                        None => {}
                        Some(EntityPart::Default) => write!(f, " every {kind}")?,
                        Some(EntityPart::Named(name)) => write!(f, " {kind} {}", Quoted(name))?,
                    }
                }
                let rates = [
                    ("producing", limits.produced),
                    ("consuming", limits.consumed),
                ];
                for (kind, rate) in rates {
                    match rate {
                        None => write!(f, ", {kind} freely")?,
                        Some(rate) => write!(f, ", {kind} {} B/s", rate.bytes_per_second())?,
                    }
                }
                Ok(())
            }
            Action::LimitConnections(entity, None) => {
                write!(f, "limit {entity}, connecting freely")
            }
            Action::LimitConnections(entity, Some(rate)) => {
                let per_second = rate.per_second();
                write!(f, "limit {entity}, connecting {per_second} times a second")
            }
        }
    }
}

/// Text from outside: quoted, on one line, and not too long.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(NAME_CHARACTERS_MAX) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
        }
    }
}
