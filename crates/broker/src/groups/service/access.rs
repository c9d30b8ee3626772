//! The topics that the members of groups may see, by the access rules.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::groups::{Sees, TopicAccess, TopicName};
use crate::security::service::SecurityService;
use crate::security::{Operation, Principal, Resource};

/// The access rules, for the coordinator.
pub struct Rules(pub Arc<SecurityService>);

impl TopicAccess for Rules {
    fn of(&self, principal: &str, host: &str) -> Option<Sees<'_>> {
        if !self.0.is_restricted() {
            return None;
        }
        let principal: Option<Principal> = principal.parse().ok();
        let address: Option<IpAddr> = host.trim_start_matches('/').parse().ok();
        let Some((principal, address)) = principal.zip(address) else {
            // The stored member is older than the rules, and has no principal: its next heartbeat brings one.
            return Some(Box::new(|_| false));
        };
        let from = SocketAddr::new(address, 0);
        Some(Box::new(move |topic: &TopicName| {
            let resource = Resource::topic(topic);
            let rules = &self.0;
            rules.permits(&principal, from, Operation::Describe, resource)
        }))
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Rules")
    }
}
