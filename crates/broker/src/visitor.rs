//! Visitors: clients of the broker over HTTP, without Kafka's protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_base::{Credentials, Timestamp};
use parking_lot::Mutex;

use crate::access::Access;
use crate::broker::Broker;
use crate::security::service::SecurityService;
use crate::security::{Operation, Principal, Resource};

/// The answer to a visitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The visitor has the right.
    Allowed,
    /// The visitor has to log in, or has not proved the identity that it claims.
    LogIn {
        /// Whether it may also log in with a token.
        takes_tokens: bool,
    },
    /// The user lacks the right.
    Denied,
}

/// The thing that a visitor wants to do.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// See the state of the broker.
    Describe,
    /// Read this stream.
    Read(&'a str),
    /// Write to this stream.
    Write(&'a str),
}

/// The other side of an HTTP connection: users and access rules apply to it as to clients.
pub struct Visitor {
    security: Arc<SecurityService>,
    from: SocketAddr,
    certified: Option<Principal>,
    /// The last login that was accepted.
    login: Mutex<Option<Login>>,
}

/// An accepted login.
struct Login {
    credentials: Credentials,
    principal: Principal,
    /// The end of the token's validity, if the login used a token.
    ends_at: Option<Timestamp>,
    /// The version of users and rules at that time.
    version: u64,
}

impl Visitor {
    /// Returns the visitor of a new connection; `certified` is the user of its certificate.
    pub fn new(broker: &Broker, from: SocketAddr, certified: Option<Principal>) -> Visitor {
        Visitor {
            security: Arc::clone(broker.security()),
            from,
            certified,
            login: Mutex::default(),
        }
    }

    /// Decides whether the visitor may see the state of the broker, or read or write a stream: that requires the right to
    /// describe the cluster, or to read or write the stream. Users, passwords and the wait after a wrong one are those of
    /// clients that log in with PLAIN, tokens those of OAUTHBEARER.
    pub async fn admit(&self, wanted: Wanted<'_>, credentials: Option<Credentials>) -> Admission {
        let principal = match (&self.certified, credentials) {
            _ if self.security.login().is_none() => {
                let anonymous = Principal::anonymous;
                Some(self.certified.clone().unwrap_or_else(anonymous))
            }
            (_, Some(credentials)) => self.log_in(credentials).await,
            (certified, None) => certified.clone(),
        };
        let Some(principal) = principal else {
            let takes_tokens = self.security.tokens().is_some();
            return Admission::LogIn { takes_tokens };
        };
        let access = Access::new(Arc::clone(&self.security), principal, self.from);
        let may = match wanted {
            Wanted::Describe => access.may(Operation::Describe, Resource::CLUSTER),
            Wanted::Read(stream) => access.may_topic(Operation::Read, stream),
            Wanted::Write(stream) => access.may_topic(Operation::Write, stream),
        };
        match may {
            true => Admission::Allowed,
            false => Admission::Denied,
        }
    }

    async fn log_in(&self, credentials: Credentials) -> Option<Principal> {
        let version = self.security.version();
        let now = self.security.now();
        let is_same = |login: &&Login| {
            login.credentials == credentials
                && login.version == version
                && login.ends_at.is_none_or(|ends_at| now < ends_at)
        };
        // A password check is expensive on purpose, and each check of a token writes a line to the
        // audit log.
        let known = self
            .login
            .lock()
            .as_ref()
            .filter(is_same)
            .map(|login| login.principal.clone());
        if known.is_some() {
            return known;
        }
        let (principal, ends_at) = self.security.log_in(self.from, &credentials).await?;
        *self.login.lock() = Some(Login {
            credentials,
            principal: principal.clone(),
            ends_at,
            version,
        });
        Some(principal)
    }
}
