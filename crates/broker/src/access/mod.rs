//! What a client may do, asked for every request in one place: before it is carried out, and of what it
//! is answered.
//!
//! - A request has [`demands`] as a whole. If one is not met it is refused.
//! - Of a request with a list, of topics say, what may not be touched is [taken out](parts::withhold)
//!   and refused, and the rest carried out. The answers are put together.
//! - A stream that is named by an id and that the client may not know of [is answered](unknown) as one that is not there.
//! - What is listed without being named [is left out](hidden::hide) of the answer.
//! - Who asks [is told](operations::tell) what it may do.
//!
//! Who needs which operation on what is as in Apache Kafka.

mod demands;
mod hidden;
mod operations;
mod parts;
mod unknown;

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_wire::messages::ProduceRequest;
use millstream_wire::{Request, Response, ResponseError, refuse};

use crate::client::Client;
use crate::reply::Reply;
use crate::security::{AuditAction, AuditEvent, Operation, Principal, Resource, ResourceType, Who};
use crate::security_service::SecurityService;

pub use self::unknown::denied_by_id;

/// Changes an answer.
type Change = Box<dyn FnOnce(&mut Response) + Send>;

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
    fn may_be_idempotent(&self) -> bool {
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

/// Carries out what the client may do of a request, and refuses the rest.
pub fn guard(
    client: &mut Client,
    version: i16,
    request: Request,
    carry_out: impl FnOnce(&mut Client, Request) -> Reply,
) -> Reply {
    let tell = operations::tell(client.access(), &request);
    let reply = carry_out_permitted(client, version, request, carry_out);
    match tell {
        Some(tell) => reply.map(tell),
        None => reply,
    }
}

fn carry_out_permitted(
    client: &mut Client,
    version: i16,
    mut request: Request,
    carry_out: impl FnOnce(&mut Client, Request) -> Reply,
) -> Reply {
    if !client.access().is_restricted() {
        return carry_out(client, request);
    }
    if let Err(error) = demands::check(client, version, &request) {
        let is_unknown = error == ResponseError::UnknownTopicId;
        let message = is_unknown.then_some(unknown::NO_SUCH_ID);
        return refuse(&request, version, error, message).into();
    }
    let refused = parts::withhold(client, version, &mut request);
    if let Request::Produce(ProduceRequest { acks: 0, .. }) = request
        && !refused.is_empty()
    {
        return Reply::Close("it may not write to a topic, and wants no answer".to_owned());
    }
    let hidden = hidden::hide(client.access(), &request);
    let unknown = unknown::withhold(client, &mut request);
    let reply = carry_out(client, request);
    if refused.is_empty() && hidden.is_none() && unknown.is_none() {
        return reply;
    }
    reply.map(move |response| {
        for refused in refused {
            parts::merge(response, refused);
        }
        for change in hidden.into_iter().chain(unknown) {
            change(response);
        }
    })
}
