//! The rights of one client.

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_wire::ResponseError;

use crate::security::service::SecurityService;
use crate::security::{
    AuditAction, AuditEvent, Identity, Operation, Principal, Resource, ResourceType,
};

/// The rights of one client.
#[derive(Clone)]
pub struct Access {
    security: Arc<SecurityService>,
    principal: Principal,
    from: SocketAddr,
}

impl Access {
    pub fn new(security: Arc<SecurityService>, principal: Principal, from: SocketAddr) -> Access {
        Access {
            security,
            principal,
            from,
        }
    }

    /// Returns the client's user.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Returns whether any operation is denied to any user.
    pub fn is_restricted(&self) -> bool {
        self.security.is_restricted()
    }

    /// Notes the authenticated user.
    pub fn set_principal(&mut self, principal: &Principal) {
        if self.principal != *principal {
            self.principal = principal.clone();
        }
    }

    /// Returns whether the client may do this; writes the decision to the audit log.
    pub fn may(&self, operation: Operation, resource: Resource<'_>) -> bool {
        let allowed = self.would(operation, resource);
        let event = AuditEvent {
            identity: Identity::Known(&self.principal),
            from: self.from,
            action: AuditAction::Use(operation, resource),
            allowed,
        };
        self.security.audit(&event);
        if !allowed {
            self.security.count_denied();
        }
        allowed
    }

    /// Returns whether the client may do this, where it has not asked to: nothing is written to the
    /// audit log.
    pub fn would(&self, operation: Operation, resource: Resource<'_>) -> bool {
        let security = &self.security;
        security.permits(&self.principal, self.from, operation, resource)
    }

    /// Returns whether the client may do this to a topic.
    pub fn may_topic(&self, operation: Operation, topic: &str) -> bool {
        self.may(operation, Resource::topic(topic))
    }

    /// Returns whether the client may create this topic.
    pub fn may_create(&self, topic: &str) -> bool {
        self.would(Operation::Create, Resource::CLUSTER) || self.may_topic(Operation::Create, topic)
    }

    /// Returns whether the client may know of this topic, though it has not named it.
    pub fn sees_topic(&self, topic: &str) -> bool {
        self.would(Operation::Describe, Resource::topic(topic))
    }

    /// Returns whether the client may read every topic.
    pub fn may_read_all(&self) -> bool {
        let (security, topics) = (&self.security, ResourceType::Topic);
        security.permits_all(&self.principal, self.from, Operation::Read, topics)
    }

    /// Returns a number that changes with the access rules and quotas.
    pub fn version(&self) -> u64 {
        self.security.version()
    }

    /// Returns whether the client may be an idempotent producer.
    pub fn may_be_idempotent(&self) -> bool {
        let (security, topics) = (&self.security, ResourceType::Topic);
        security.permits_any(&self.principal, self.from, Operation::Write, topics)
            || self.may(Operation::IdempotentWrite, Resource::CLUSTER)
    }
}

/// The message for a stream that the client named by its id: one that is missing, and one that the client may not know of.
pub const NO_SUCH_ID: &str =
    "no stream has this id, or this user may not describe the stream that has it";

/// The result of a check: the error for the client, if it lacks the right.
pub type Checked = Result<(), ResponseError>;

/// Returns the error for a client that may not use a resource of this type.
pub fn denied(kind: ResourceType) -> ResponseError {
    match kind {
        ResourceType::Topic => ResponseError::TopicAuthorizationFailed,
        ResourceType::Group => ResponseError::GroupAuthorizationFailed,
        ResourceType::Cluster => ResponseError::ClusterAuthorizationFailed,
        ResourceType::TransactionalId => ResponseError::TransactionalIdAuthorizationFailed,
    }
}

/// Returns the error for a stream that the client named by its id and may not use. A stream that the client may not know of
/// gets the same answer, word for word, as one that does not exist, so that no answer shows which ids exist.
pub fn denied_by_id(access: &Access, name: &str) -> ResponseError {
    match access.sees_topic(name) {
        true => ResponseError::TopicAuthorizationFailed,
        false => ResponseError::UnknownTopicId,
    }
}
