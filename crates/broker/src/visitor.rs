//! Those who look at the broker without speaking Kafka's protocol: by HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_base::{Credentials, Timestamp};
use parking_lot::Mutex;

use crate::access::Access;
use crate::broker::Broker;
use crate::security::service::SecurityService;
use crate::security::{Operation, Principal, Resource};

/// What a visitor is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may look.
    Allowed,
    /// It has to log in, or has not shown that it is the user that it claims to be.
    LogIn {
        /// Whether it may log in with a token, too.
        takes_tokens: bool,
    },
    /// The user may not look.
    Denied,
}

/// The other side of a connection that looks at the broker: users and access rules hold for it as for clients.
pub struct Visitor {
    security: Arc<SecurityService>,
    from: SocketAddr,
    certified: Option<Principal>,
    /// The last login that was accepted.
    login: Mutex<Option<Login>>,
}

/// A login that was accepted.
struct Login {
    credentials: Credentials,
    principal: Principal,
    /// When the token ends, if it is one.
    ends_at: Option<Timestamp>,
    /// The version of users and rules at that time.
    version: u64,
}

impl Visitor {
    /// The other side of a new connection; `certified` is the user of its certificate.
    pub fn new(broker: &Broker, from: SocketAddr, certified: Option<Principal>) -> Visitor {
        Visitor {
            security: Arc::clone(broker.security()),
            from,
            certified,
            login: Mutex::default(),
        }
    }

    /// Whether the visitor may look at all that the broker shows: that takes the right to describe the cluster. Users, passwords
    /// and the wait after a wrong one are those of clients that log in by PLAIN, tokens those of OAUTHBEARER.
    pub async fn admit(&self, credentials: Option<Credentials>) -> Admission {
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
        match access.may(Operation::Describe, Resource::CLUSTER) {
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
        // Checking a password is made to be expensive, and each check of a token is a line of the audit.
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
