//! The rights of one client.

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_wire::ResponseError;

use crate::security::service::SecurityService;
use crate::security::{AuditAction, AuditEvent, Operation, Principal, Resource, ResourceType, Who};

/// What one client may do.
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

    /// Who it is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether there is anything that somebody may not do.
    pub fn is_restricted(&self) -> bool {
        self.security.is_restricted()
    }

    /// It has shown who it is.
    pub fn set_principal(&mut self, principal: &Principal) {
        if self.principal != *principal {
            self.principal = principal.clone();
        }
    }

    /// Whether it may do this, which is written down.
    pub fn may(&self, operation: Operation, resource: Resource<'_>) -> bool {
        let allowed = self.would(operation, resource);
        let event = AuditEvent {
            who: Who::Known(&self.principal),
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

    /// Whether it may do this, when it has not asked for it.
    pub fn would(&self, operation: Operation, resource: Resource<'_>) -> bool {
        let security = &self.security;
        security.permits(&self.principal, self.from, operation, resource)
    }

    /// Whether it may do this to a topic.
    pub fn may_topic(&self, operation: Operation, topic: &str) -> bool {
        self.may(operation, Resource::topic(topic))
    }

    /// Whether it may create this topic.
    pub fn may_create(&self, topic: &str) -> bool {
        self.would(Operation::Create, Resource::CLUSTER) || self.may_topic(Operation::Create, topic)
    }

    /// Whether this is a topic that it may know of, though it has not named it.
    pub fn sees_topic(&self, topic: &str) -> bool {
        self.would(Operation::Describe, Resource::topic(topic))
    }

    /// Whether it may read every topic.
    pub fn may_read_all(&self) -> bool {
        let (security, topics) = (&self.security, ResourceType::Topic);
        security.permits_all(&self.principal, self.from, Operation::Read, topics)
    }

    /// Another one when access rules or quotas have changed.
    pub fn version(&self) -> u64 {
        self.security.version()
    }

    /// Whether it may write without doubles.
    pub fn may_be_idempotent(&self) -> bool {
        let (security, topics) = (&self.security, ResourceType::Topic);
        security.permits_any(&self.principal, self.from, Operation::Write, topics)
            || self.may(Operation::IdempotentWrite, Resource::CLUSTER)
    }
}

/// What a client is told that may not use a resource of this type.
pub fn denied(kind: ResourceType) -> ResponseError {
    match kind {
        ResourceType::Topic => ResponseError::TopicAuthorizationFailed,
        ResourceType::Group => ResponseError::GroupAuthorizationFailed,
        ResourceType::Cluster => ResponseError::ClusterAuthorizationFailed,
        ResourceType::TransactionalId => ResponseError::TransactionalIdAuthorizationFailed,
    }
}
