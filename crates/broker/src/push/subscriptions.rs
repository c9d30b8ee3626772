//! The subscriptions of one connection.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::asked::Asked;
use super::shared::SharedSubscription;
use crate::access::Access;
use crate::security::{Operation, Resource};

/// The subscriptions of one connection, which end with it.
#[derive(Default)]
pub struct Subscriptions {
    last: u32,
    pub open: HashMap<u32, Open>,
}

/// A subscription, and what it reads.
pub struct Open {
    pub reads: Arc<Reads>,
    pub kind: Kind,
}

/// What a subscription reads, by name.
#[derive(Default)]
pub struct Reads {
    pub streams: BTreeSet<String>,
    pub applications: BTreeSet<String>,
}

impl Reads {
    /// Whether all of it may be read.
    pub fn are_allowed(&self, access: &Access) -> bool {
        let may_read = |resource| access.would(Operation::Read, resource);
        self.streams
            .iter()
            .all(|name| may_read(Resource::topic(name)))
            && self
                .applications
                .iter()
                .all(|name| may_read(Resource::group(name)))
    }
}

/// The way that chunks take to the client.
pub enum Kind {
    Asked(Arc<Asked>),
    Shared(SharedSubscription),
}

impl Subscriptions {
    /// What a subscription reads, if there is one of this number.
    pub fn reads(&self, subscription: u32) -> Option<&Reads> {
        self.open.get(&subscription).map(|open| &*open.reads)
    }

    /// Ends them all.
    pub fn end(&mut self) {
        for (_, open) in self.open.drain() {
            open.end();
        }
    }

    pub fn add(&mut self, open: Open) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.open.insert(self.last, open);
        self.last
    }
}

impl Open {
    /// What was asked for is answered.
    pub fn end(self) {
        if let Kind::Asked(asked) = &self.kind {
            asked.end();
        }
    }
}
