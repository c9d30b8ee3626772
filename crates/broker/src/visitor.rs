//! Those who look at the broker without speaking Kafka's protocol: by HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::access::Access;
use crate::broker::Broker;
use crate::security::{Operation, Principal, Resource};
use crate::security_service::SecurityService;

/// What a visitor is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may look.
    Allowed,
    /// It has to log in, or has not shown that it is the user that it claims to be.
    LogIn,
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
    user: String,
    password: String,
    principal: Principal,
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

    /// Whether the visitor may look at all that the broker shows: that takes the right to describe the cluster. Users and their
    /// passwords, and the wait after a wrong one, are those of clients that log in by PLAIN.
    pub async fn admit(&self, credentials: Option<(&str, &str)>) -> Admission {
        let principal = match (&self.certified, credentials) {
            _ if self.security.login().is_none() => {
                let anonymous = Principal::anonymous;
                Some(self.certified.clone().unwrap_or_else(anonymous))
            }
            (_, Some((user, password))) => self.log_in(user, password).await,
            (certified, None) => certified.clone(),
        };
        let Some(principal) = principal else {
            return Admission::LogIn;
        };
        let access = Access::new(Arc::clone(&self.security), principal, self.from);
        match access.may(Operation::Describe, Resource::CLUSTER) {
            true => Admission::Allowed,
            false => Admission::Denied,
        }
    }

    async fn log_in(&self, user: &str, password: &str) -> Option<Principal> {
        let version = self.security.version();
        let is_same = |login: &&Login| {
            login.user == user && login.password == password && login.version == version
        };
        // Checking a password is made to be expensive.
        let known = self
            .login
            .lock()
            .as_ref()
            .filter(is_same)
            .map(|login| login.principal.clone());
        if known.is_some() {
            return known;
        }
        let principal = self.security.log_in(self.from, user, password).await?;
        *self.login.lock() = Some(Login {
            user: user.to_owned(),
            password: password.to_owned(),
            principal: principal.clone(),
            version,
        });
        Some(principal)
    }
}
